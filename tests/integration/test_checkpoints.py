"""Checkpoints through fairseq's own commands: ensembles, resuming in two processes; damaged and hostile files."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from fairseq_diverse.checkpoints.loading import load_checkpoint
from fairseq_diverse.cli import main
from fairseq_diverse.host import loading as host_loading
from fairseq_diverse.models import loading
from fairseq_diverse.models.plain import to_fairseq
from tests.integration.commands import TINY, run
from tests.integration.training import refused, train_in_two

TRAIN = [
    *TINY.split(),
    *("--eval-bleu", "--eval-bleu-remove-bpe", "--eval-bleu-args", '{"beam": 1, "max_len_a": 0, "max_len_b": 5}'),
    *("--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"),
]


class Payload:
    """Unpickling it would create the file ``marker``."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.fixture(scope="module")
def model(data, tmp_path_factory) -> Path:
    """The checkpoints of an epoch, evaluated with BLEU: they contain NumPy arrays."""
    folder = tmp_path_factory.mktemp("model")
    run("train", data, *TRAIN, "--max-epoch", 1, "--save-dir", folder)
    assert b"numpy" in (folder / "checkpoint1.pt").read_bytes()  # torch stores without compression
    return folder


@pytest.fixture
def other(data, tmp_path) -> Path:
    """Data as if prepared again: words have other numbers."""
    other = tmp_path / "data"
    shutil.copytree(data, other)
    for dictionary in other.glob("dict.*.txt"):
        first, second, *rest = dictionary.read_text(encoding="utf-8").splitlines(keepends=True)
        dictionary.write_text("".join([second, first, *rest]), encoding="utf-8")
    return other


def test_other_dictionaries_of_the_same_size_are_refused(other, model, tmp_path):
    """Older checkpoints are not compared."""
    path, exported, older = model / "checkpoint1.pt", tmp_path / "plain.pt", tmp_path / "older.pt"
    to_fairseq(path, exported)
    problem = "the source and target dictionary has other words, or in another order"
    for file in (path, exported):
        message = f"{file}: does not fit the data given; was it trained on other data? {problem}"
        assert message in refused("generate", other, "--path", file)
    state = load_checkpoint(path)
    del state["task_state"]["dictionaries"]
    torch.save(state, older)
    run("generate", other, "--path", older)


@pytest.mark.parametrize("flag", ["--restore-file", "--finetune-from-model"])
def test_training_goes_on_with_the_same_dictionaries_only(other, model, tmp_path, flag):
    path, folder = model / "checkpoint1.pt", tmp_path / "further"
    message = f"error: {path}: does not fit these data: the source and target dictionary has other words"
    assert message in refused("train", other, *TRAIN, "--max-epoch", 2, "--save-dir", folder, flag, path)
    assert not [*folder.glob("*.pt")]


@pytest.mark.parametrize(
    ("tool", "hostile", "reason"),
    [
        ("generate", "entry", "refused: it names posix.system"),
        ("generate", "setting", "refused: its setting adaptive_softmax_cutoff"),
        ("train", "entry", "refused: it names posix.system"),
    ],
)
def test_a_hostile_file_is_one_line_and_runs_nothing(data, model, tmp_path, tool, hostile, reason):
    """What else fairseq's loading refuses: ``test_fairseq_loads_through_the_same_checks``."""
    marker, path, state = tmp_path / "marker", tmp_path / "hostile.pt", load_checkpoint(model / "checkpoint1.pt")
    if hostile == "entry":
        state["extra_state"] = Payload(marker)
    else:
        call = f"[argparse.Namespace['touch {marker}'] for argparse.Namespace.__class_getitem__ in [os.system]]"
        state["cfg"]["model"].adaptive_softmax_cutoff = call
    torch.save(state, path)
    more = ["--path", path, "--cpu"] if tool == "generate" else [*TRAIN, "--save-dir", tmp_path, "--restore-file", path]
    last = refused(tool, data, *more).splitlines()[-1]
    assert last.startswith("error: ") and str(path) in last and reason in last and not marker.exists()


def test_every_checkpoint_of_an_ensemble_is_read_once(data, model, monkeypatch):
    read = []
    for room in (loading, host_loading):
        monkeypatch.setattr(room, "load_checkpoint", lambda path: read.append(path) or load_checkpoint(path))
    paths = [model / "checkpoint_best.pt", model / "checkpoint_last.pt"]
    models, *_ = loading.load_models(paths, data)
    assert len(models) == 2 and read == paths


def test_generate_with_an_average(data, model, tmp_path):
    average = tmp_path / "average.pt"
    flags = ["--checkpoints", str(model), "--best", "1", "--metric", "bleu", "--out", str(average)]
    assert main(["average", *flags]) == 0
    common = ("--cpu", "--max-len-b", 5, "--num-workers", 0)
    outputs = [run("generate", data, "--path", p, *common).stdout for p in (average, model / "checkpoint_best.pt")]
    assert outputs[0].count("\nH-") == 8 and outputs[0] == outputs[1]


def test_resume_in_two_processes_and_then_in_one(data, model):
    """The first resumes a checkpoint of --eval-bleu; the second one that was written after loading the first."""
    common = [data, *TRAIN, "--save-dir", model]
    assert "checkpoint_last.pt (epoch 2 @" in train_in_two(*common, "--max-epoch", 2)
    alone = run("train", *common, "--max-epoch", 3)
    assert "checkpoint_last.pt (epoch 3 @" in alone.stdout + alone.stderr
