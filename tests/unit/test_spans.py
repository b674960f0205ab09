"""T5's objective: which words are left out, source and target, batches; what does not fit is one line."""

from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.data import Dictionary
from fairseq.tasks.span_masked_lm import SpanMaskedLMConfig

from fairseq_diverse.preparation.subwords import t5_words
from fairseq_diverse.tasks.text_to_text import SpanCorruptionTask, Spans
from fairseq_diverse.testing import models
from tests.cases import build_model
from tests.reference import spans as reference
from tests.refusals import refused

EOS = 2


class Pieces:
    """Of a model of sentencepiece: 40 pieces."""

    def get_piece_size(self):
        return 40

    def id_to_piece(self, number):
        return ["<pad>", "</s>", "<unk>"][number] if number < 3 else f"piece{number}"


def dictionary():
    words = Dictionary()
    for word in t5_words(Pieces())[4:]:
        words.add_symbol(word)
    return words


class Texts(list):
    def __init__(self, *lengths, seed=0):
        draw = torch.Generator().manual_seed(seed)
        words = (torch.randint(4, 41, (length,), generator=draw) for length in lengths)
        super().__init__(torch.cat([text, torch.tensor([EOS])]) for text in words)

    @property
    def sizes(self):
        return torch.tensor(list(map(len, self))).numpy()


def dataset(*lengths, seed=1):
    return Spans(Texts(*lengths), dictionary(), 0.15, 3, shuffle=False, seed=seed)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 40, 333])
def test_spans_equal_the_loop(length):
    made, words = dataset(length), len(dictionary())
    text = made.dataset[0].tolist()[:-1]
    for epoch in range(3):
        made.set_epoch(epoch)
        source, target = (made[0][side].tolist() for side in ("source", "target"))
        assert reference.joined(source, target, EOS, lambda word: word >= words - 100) == text
        if length > 1:
            left_out = list(mask_of(source, target, text, words))
            expected = reference.spans(text, left_out, EOS, lambda number: words - 1 - number)
            assert (source, target) == expected
            assert sum(left_out) == min(max(1, round(length * 0.15)), length - 1)
            spans = sum(word >= words - 100 for word in source)
            assert spans == max(1, round(sum(left_out) / 3)) and not left_out[0] and left_out[-1]


def mask_of(source, target, text, words):
    """True at words of the text that are in the target."""
    sentinels = [word for word in target if word >= words - 100]
    lengths = {}
    for word in target[:-1]:
        if word >= words - 100:
            current = word
            lengths[current] = 0
        else:
            lengths[current] += 1
    assert sentinels == [words - 1 - number for number in range(len(sentinels))]
    for word in source[:-1]:
        yield from [True] * lengths[word] if word >= words - 100 else [False]


def test_spans_are_new_in_each_epoch_and_the_same_for_a_seed():
    first, again, other = dataset(60), dataset(60), dataset(60, seed=2)
    sources = []
    for made in (first, again, other):
        for epoch in (1, 2):
            made.set_epoch(epoch)
            sources.append(made[0]["source"].tolist())
    assert sources[:2] == sources[2:4] and sources[0] != sources[1] and sources[4:] != sources[:2]


def test_batches_of_spans_in_training(monkeypatch):
    """``--sentence-avg`` divides by the number of sentences, where fairseq's task has the length of the first."""
    made = dataset(30, 9, 21)
    batch = made.collater([made[number] for number in range(3)])
    assert batch["nsentences"] == 3 and batch["net_input"]["src_tokens"].shape[0] == 3 and made.collater([]) == {}
    assert batch["ntokens"] == sum(len(made[number]["target"]) for number in range(3))
    monkeypatch.setattr(models, "dictionary", dictionary)
    model, task = build_model({"arch": "diverse_t5"}), SimpleNamespace(target_dictionary=dictionary())
    sums = [CrossEntropyCriterion(task, sentence_avg)(model, batch) for sentence_avg in (False, True)]
    assert [size for _, size, _ in sums] == [batch["ntokens"], 3]
    torch.testing.assert_close(sums[0][0], sums[1][0])
    sums[0][0].backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def task(words, **settings):
    return SpanCorruptionTask(SpanMaskedLMConfig(data="DATA", **settings), words)


def test_a_dictionary_without_sentinels_and_too_long_texts_are_refused():
    without = Dictionary()
    without.add_symbol("word")
    refused(r"DATA/dict.txt: the last word is word, not the sentinel <extra_id_0>", task(without).load_dataset, "train")
    says = "--noise-density 0.15: a text of 4096 words has 205 spans, but 100 sentinels; lower it, or --tokens-per-"
    refused(says, task(dictionary(), tokens_per_sample=4096).load_dataset, "train")
    for settings, says in (
        ({"noise_density": float("nan")}, "--noise-density nan: must be between 0 and 1"),
        ({"mean_noise_span_length": 0}, "--mean-noise-span-length 0: must be at least 1"),
        ({"noise_density": 0.9, "tokens_per_sample": 128}, "a text of 128 words has 38 spans, but 13 words between"),
    ):
        refused(says, task(dictionary(), **settings).load_dataset, "train")
    made = task(dictionary())
    made._load_dataset_split = lambda *given: Texts(10, 2500)  # a sentence is longer than --tokens-per-sample
    refused("a text of 2500 words has 125 spans, but 100 sentinels", made.load_dataset, "train")
