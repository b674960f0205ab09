"""What fairseq logs."""

import logging

import torch
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.tasks.fairseq_task import FairseqTask

import fairseq_diverse
from fairseq_diverse.host.batches import ONCE


def test_how_batches_are_made_is_logged_once(caplog):
    """fairseq-interactive makes batches for every sentence, fairseq-train for every epoch."""
    fairseq_diverse.register()
    ONCE.said.clear()
    data = LanguagePairDataset([torch.tensor([4, 2])], [2], Dictionary())
    with caplog.at_level(logging.INFO, "fairseq.tasks.fairseq_task"):
        for epoch in (1, 1, 2):
            FairseqTask(None).get_batch_iterator(data, max_sentences=1, epoch=epoch, disable_iterator_cache=True)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len(set(said))
    assert [line for line in said if "new batches" in line] == [f"creating new batches for epoch {n}" for n in (1, 2)]
