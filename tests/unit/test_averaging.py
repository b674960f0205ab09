"""Averages: the mean of every parameter; shared tensors stay shared; the right checkpoints are chosen."""

import functools
import math
import resource
import subprocess
import sys
import weakref
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

from fairseq_diverse.checkpoints import averaging
from fairseq_diverse.checkpoints.averaging import average_checkpoints
from fairseq_diverse.checkpoints.loading import load_checkpoint
from fairseq_diverse.cli import main
from tests.refusals import refused


def parameters(seed: int) -> OrderedDict:
    """A model with tied embeddings, a view, half precision, and integers."""
    generator = torch.Generator().manual_seed(seed)
    tied, fused = torch.randn(5, 3, generator=generator), torch.randn(4, 2, generator=generator)
    return OrderedDict(
        {
            "encoder.version": torch.tensor([3.0]), "encoder.embed_tokens.weight": tied, "encoder.first": fused[:2],
            "encoder.second": fused[2:], "decoder.embed_tokens.weight": tied,
            "decoder.half": torch.rand(6, generator=generator).half() * 6e4,
            "decoder.brain": torch.randn(6, generator=generator).bfloat16(),
            "decoder.count": torch.tensor([seed, 1]), "decoder.output_projection.weight": tied,
            "decoder.scalar": torch.tensor(float(seed)), "decoder.empty": torch.zeros(0)
        }
    )  # fmt: skip


def save(path: Path, model: OrderedDict, updates: int = 1, metric: str = "loss", value=None, maximize=False, **extra):
    state = {
        "args": None,
        "cfg": {
            "checkpoint": {"best_checkpoint_metric": metric, "maximize_best_checkpoint_metric": maximize},
            "model": Namespace(arch="transformer"),
        },
        "model": model,
        "extra_state": {"val_loss": value, "ema": model, "train_iterator": {"epoch": 2}, **extra},
        "optimizer_history": [{"num_updates": updates}],
        "last_optimizer_state": {"state": torch.ones(100)},
    }
    torch.save(state, path)
    return path


def save_numbered(folder: Path, values, name: str = "checkpoint_1_{}.pt", **more) -> list[Path]:
    """Checkpoints of updates 1, 2, ... with these values of a metric."""
    model = OrderedDict(weight=torch.ones(1))
    return [save(folder / name.format(n), model, n, value=value, **more) for n, value in enumerate(values, 1)]


@pytest.fixture
def three(tmp_path) -> list[Path]:
    return [save(tmp_path / f"checkpoint{number}.pt", parameters(number), number) for number in (1, 2, 3)]


def test_mean_of_every_parameter(three, tmp_path):
    out = tmp_path / "average.pt"
    average_checkpoints(three, out)
    models, averaged = [parameters(number) for number in (1, 2, 3)], load_checkpoint(out)["model"]
    assert list(averaged) == list(models[0])
    for key, value in averaged.items():
        assert value.dtype == models[0][key].dtype and value.shape == models[0][key].shape
        if key == "decoder.count":
            assert value.tolist() == [3, 1]  # the last checkpoint's
            continue
        mean = np.mean([model[key].double().numpy() for model in models], axis=0)  # a sum in half precision overflows
        precision = max(torch.finfo(value.dtype).eps, 1e-7)
        np.testing.assert_allclose(value.double().numpy(), mean, rtol=precision, atol=precision)


def test_shared_tensors_stay_shared_and_the_rest_is_for_generation(three, tmp_path):
    out = tmp_path / "average.pt"
    average_checkpoints(three, out)
    state = load_checkpoint(out)
    tied = {state["model"][key].data_ptr() for key in state["model"] if "embed" in key or "projection" in key}
    assert len(tied) == 1
    assert state["model"]["encoder.first"].data_ptr() != state["model"]["encoder.second"].data_ptr()
    assert "last_optimizer_state" not in state and "ema" not in state["extra_state"]
    assert state["extra_state"]["averaged"] == [path.name for path in three]
    assert state["extra_state"]["train_iterator"] == {"epoch": 2} and state["optimizer_history"] == [{"num_updates": 3}]
    assert state["cfg"]["model"].arch == "transformer"


def test_average_of_one_and_of_equal_checkpoints_is_exact(three, tmp_path):
    out = tmp_path / "average.pt"
    for paths in ([three[0]], [three[0]] * 3):
        average_checkpoints(paths, out)
        for key, value in load_checkpoint(out)["model"].items():
            assert torch.equal(value, parameters(1)[key])


def test_an_average_that_was_changed_is_refused(three, tmp_path):
    out = tmp_path / "average.pt"
    average_checkpoints(three, out)
    for key in parameters(1):
        state = load_checkpoint(out)
        if state["model"][key].numel():
            state["model"][key] = torch.zeros_like(state["model"][key])
        else:
            del state["model"][key]
        torch.save(state, tmp_path / "changed.pt")
        refused(r"changed\.pt: the checksum of its parameters is not the", load_checkpoint, tmp_path / "changed.pt")
    average_checkpoints([out], tmp_path / "again.pt")
    assert load_checkpoint(tmp_path / "again.pt")["extra_state"]["averaged"] == ["average.pt"]


def test_a_diverged_checkpoint_is_not_averaged(three, tmp_path, error_of):
    state = load_checkpoint(three[1])
    state["model"]["encoder.first"][0, 0] = float("nan")
    torch.save(state, three[1])
    out = tmp_path / "average.pt"
    printed = error_of("average", "--checkpoints", *three, "--out", out).splitlines()
    assert f"{three[1]}: encoder.first has the value nan: training diverged" in printed[-1] and not out.exists()


def test_one_checkpoint_is_in_memory_at_a_time(three, tmp_path, monkeypatch):
    """When one is loaded, all but the last one used have been freed."""
    loaded: list[weakref.ref] = []

    def load(path, mmap):
        assert all(reference() is None for reference in loaded[:-1])
        state = load_checkpoint(path, mmap)
        loaded.append(weakref.ref(state["model"]["encoder.first"]))
        return state

    monkeypatch.setattr(averaging.loading, "load_checkpoint", load)
    average_checkpoints(three * 2, tmp_path / "average.pt")
    assert len(loaded) == 6


def changed(key: str, value) -> OrderedDict:
    model = parameters(2)
    model[key] = value
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (changed("decoder.new", torch.zeros(1)), "decoder.new is new, compared with "),
        (OrderedDict(list(parameters(2).items())[:-1]), "decoder.empty is missing, compared with "),
        (changed("encoder.version", torch.zeros(2)), r"encoder.version is torch.float32 \(2,\), but torch.float32"),
        (changed("decoder.count", torch.zeros(2)), r"decoder.count is torch.float32 \(2,\), but torch.int64 \(2,\) in"),
        (changed("decoder.output_projection.weight", torch.zeros(5, 3)), "decoder.output_projection.weight is tied to"),
        (changed("decoder.scalar", 1.0), 'not a fairseq checkpoint: "decoder.scalar" of its model is not a tensor'),
    ],
)
def test_other_parameters_are_refused(three, tmp_path, model, message):
    other, out = save(tmp_path / "other.pt", model), tmp_path / "average.pt"
    refused(f"other.pt: {message}", average_checkpoints, [three[0], other], out)
    assert not out.exists()


def test_models_of_other_dictionaries_are_refused(three, tmp_path):
    """One without a digest fits all; what an average keeps is compared again."""
    for path, words in zip(three[:2], ({"source": "1", "target": "2"}, {"source": "1", "target": "3"}), strict=True):
        torch.save({**load_checkpoint(path), "task_state": {"dictionaries": words}}, path)
    average_checkpoints(three[1:], tmp_path / "average.pt")
    with pytest.raises(ValueError, match=f"{three[1]}: does not fit {three[0]}: the target dictionary"):
        average_checkpoints([three[0], three[2], three[1]], tmp_path / "mixed.pt")
    with pytest.raises(ValueError, match=f"{three[1]}: does not fit {three[2]}: the target dictionary has other words"):
        average_checkpoints([three[2], three[0], three[1]], tmp_path / "mixed.pt")
    assert not (tmp_path / "mixed.pt").exists()


def test_models_of_two_trainings_are_refused_or_named(three, tmp_path, caplog):
    """By their seeds; those of other folders may have been resumed there."""
    for path, seed, folder in zip(three, (1, 1, 2), ("a", "b", "a"), strict=True):
        state = load_checkpoint(path)
        state["cfg"]["common"] = {"seed": seed}
        state["cfg"]["checkpoint"]["save_dir"] = folder
        torch.save(state, path)
    with pytest.raises(ValueError, match=f"{three[2]}: of another training than {three[0]}, --seed 2, not 1: their av"):
        average_checkpoints([three[0], three[2]], tmp_path / "average.pt")
    assert not (tmp_path / "average.pt").exists() and not caplog.messages
    average_checkpoints(three[:2], tmp_path / "average.pt")
    (said,) = caplog.messages
    assert said.startswith(f"warning: {three[1]} was saved in b, {three[0]} in a: the average of two trainings")


def test_a_full_disk_leaves_nothing(three, tmp_path):
    out = tmp_path / "out" / "average.pt"
    command = [sys.executable, "-m", "fairseq_diverse.cli", "average", "--checkpoints", *three, "--out", out]
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (1000, 1000))
    result = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit)
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith(f"fairseq-diverse average: {out}: cannot be written")
    assert list(out.parent.iterdir()) == []


@pytest.fixture
def folder(tmp_path) -> Path:
    """The files of a training: epochs 1-11 with loss (11, 10, ...) and BLEU, updates, and copies."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    model = OrderedDict(weight=torch.zeros(1))
    bleu = {1: 10.0, 2: 35.5, 3: 34.0, 11: 35.0}
    for epoch in range(1, 12):
        valid = [(10, "loss", "AverageMeter", {"val": 0, "sum": torch.tensor(2.0), "count": 2, "round": 3})]
        state = {"metric": "bleu", "value": bleu.get(epoch, 1.0), "maximize": True, "metrics": OrderedDict(valid=valid)}
        save(folder / f"checkpoint{epoch}.pt", model, 100 * epoch, **state)
        if epoch in (2, 11):
            save(folder / f"checkpoint.best_bleu_{bleu[epoch]:.3f}1.pt", model, 100 * epoch, **state)
    for name in ("best", "last"):
        save(folder / f"checkpoint_{name}.pt", model, 1100, **state)
    for update in (50, 150, 1050):
        save(folder / f"checkpoint_{1 + update // 100}_{update}.pt", model, update, metric="accuracy")
    return folder


def chosen(capsys, folder: Path, *flags: str) -> list[str]:
    """The names of the averaged checkpoints."""
    assert main(["average", "--checkpoints", str(folder), "--out", str(folder / "average.pt"), *flags]) == 0
    names = capsys.readouterr().out.split("average of ")[1]
    averaged = load_checkpoint(folder / "average.pt")["extra_state"]["averaged"]
    assert averaged == [name.split(" ")[0] for name in names.strip().split(", ")]
    return names.strip().removesuffix("\n").split(", ")


def test_last_and_range_count_as_numbers_and_fewer_than_asked_are_warned_of(folder, capsys):
    assert chosen(capsys, folder, "--epochs", "--last", "3") == ["checkpoint9.pt", "checkpoint10.pt", "checkpoint11.pt"]
    assert chosen(capsys, folder, "--updates", "--last", "2") == ["checkpoint_2_150.pt", "checkpoint_11_1050.pt"]
    assert chosen(capsys, folder, "--epochs", "--range", "9-10") == ["checkpoint9.pt", "checkpoint10.pt"]
    assert chosen(capsys, folder, "--updates", "--range", "50-150") == ["checkpoint_1_50.pt", "checkpoint_2_150.pt"]
    out = str(folder / "average.pt")
    assert main(["average", "--checkpoints", str(folder), "--out", out, "--updates", "--last", "5"]) == 0
    said = capsys.readouterr()
    kept = "checkpoint_1_50.pt, checkpoint_2_150.pt, checkpoint_11_1050.pt"
    assert said.err == f"warning: 5 checkpoints are wanted, but there are 3: {kept}\n"
    assert chosen(capsys, folder, "--updates", "--last", "5") == chosen(capsys, folder, "--updates", "--last", "3")


def test_best_is_by_value_and_takes_copies_once(folder, capsys):
    best = chosen(capsys, folder, "--best", "3", "--metric", "bleu")
    assert [name.split("(")[1] for name in best] == ["35.5)", "35)", "34)"]
    # the earlier average has a BLEU, too, but is not a candidate
    assert chosen(capsys, folder, "--best", "3", "--metric", "bleu") == best
    # a checkpoint's other figures are means over all validations so far
    assert main(["average", "--checkpoints", str(folder), "--out", "x.pt", "--best", "2", "--metric", "loss"]) == 2
    assert "no checkpoint holds loss (training tracks only --best-checkpoint-metric)" in capsys.readouterr().err


def test_what_is_dropped_in_training_is_never_among_the_best(tmp_path):
    """Also where a later checkpoint is worse than all so far, which fairseq's --keep-best-checkpoints does not keep."""
    values = (3.0, 3.5, 3.4, 3.5, 2.9, 3.6, 3.3, 4.0)
    model = OrderedDict(weight=torch.ones(1))
    for number, value in enumerate(values, start=1):
        save(tmp_path / f"checkpoint_1_{number}.pt", model, number, value=value)
        averaging.drop_worse(tmp_path, 3, "loss")
        expected = {*sorted(range(1, number + 1), key=lambda n: (values[n - 1], -n))[:3], number}
        left = {int(path.stem.split("_")[2]) for path in tmp_path.iterdir()}
        assert expected <= left and len(left) <= 4
    save(tmp_path / "checkpoint_last.pt", model, 9, value=0.0)
    updates = averaging.numbered(list(tmp_path.iterdir()), "updates")
    assert {one.number for one in averaging.best([one.path for one in updates], 3, "loss")} == {5, 1, 7}
    (tmp_path / "checkpoint_1_8.pt").unlink()
    for number in (8, 9):
        save(tmp_path / f"checkpoint_1_{number}.pt", model, number)
    assert len(averaging.best([tmp_path / f"checkpoint_1_{n}.pt" for n in (1, 8, 9)], 3, "loss")) == 1


def test_the_settings_of_an_older_fairseq_are_read(tmp_path):
    """Which stored its arguments, and no configuration."""
    for path in (files := save_numbered(tmp_path, (0.5, 0.9, 0.7))):
        args = Namespace(best_checkpoint_metric="f1", maximize_best_checkpoint_metric=True)
        torch.save(torch.load(path, weights_only=False) | {"args": args, "cfg": None}, path)
    assert [one.number for one in averaging.best(files, 2, "f1")] == [2, 3]


def test_of_equal_values_the_later_are_best_and_equal_updates_are_no_copies(tmp_path):
    assert [one.number for one in averaging.best(save_numbered(tmp_path, (3.0, 3.0, 3.0)), 2, "loss")] == [3, 2]
    for folder, values in (("one", (1.0, 4.0)), ("two", (3.0, 2.0))):
        (tmp_path / folder).mkdir()
        save_numbered(tmp_path / folder, values, "checkpoint{}.pt")
    found = averaging.best(sorted(tmp_path.glob("*/*.pt")), 3, "loss")
    assert [(one.path.parent.name, one.number) for one in found] == [("one", 1), ("two", 2), ("two", 1)]


def test_an_average_in_the_folder_is_no_candidate(tmp_path):
    files = save_numbered(tmp_path, (3.0, 2.0))
    average_checkpoints(files, tmp_path / "average.pt")
    assert [one.path for one in averaging.best(sorted(tmp_path.iterdir()), 3, "loss")] == files[::-1]


def test_a_loss_that_is_not_finite_is_never_the_best(tmp_path):
    """Wherever it comes among the values, which are sorted."""
    files = save_numbered(tmp_path, (3.0, math.nan, 1.5, -math.inf, 1.0, 1.2))
    assert [one.number for one in averaging.best(files, 6, "loss")] == [5, 6, 3, 1]
    averaging.drop_worse(tmp_path, 2, "loss")
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint_1_5.pt", "checkpoint_1_6.pt"}
    save_numbered(tmp_path, [math.nan] * 6)
    averaging.drop_worse(tmp_path, 2, "loss")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_1_6.pt"]
    refused("no checkpoint holds a finite loss: training diverged", averaging.best, [*tmp_path.iterdir()], 1, "loss")


def test_best_by_the_name_of_a_file_and_of_an_unknown_metric(tmp_path, capsys):
    """Of a metric that averaging does not know, the best is what training maximized."""
    model = OrderedDict(weight=torch.ones(1))
    for value in ("36.70", "9.81", "12.00"):
        save(tmp_path / f"checkpoint.best_chrf_{value}.pt", model, updates=int(float(value)))
    best = [name.split(" ")[0] for name in chosen(capsys, tmp_path, "--best", "2", "--metric", "chrf")]
    assert best == ["checkpoint.best_chrf_36.70.pt", "checkpoint.best_chrf_12.00.pt"]
    save_numbered(tmp_path, np.float64([1, 2]), "checkpoint{}.pt", metric="f1", maximize=True)
    assert chosen(capsys, tmp_path, "--best", "1", "--metric", "f1") == ["checkpoint2.pt (2)"]


CHOICES = {
    "": "Add --last N, --range A-B or --best N --metric NAME",
    "--last 2": "choose with --epochs or --updates",
    "--epochs": "--epochs goes with --last, --range or --best",
    "--strict --epochs --last 12": "12 checkpoints are wanted, but there are 11: checkpoint1.pt, checkpoint2.pt, ",
    "--epochs --last 0": "at least 1 checkpoint is needed, not 0",
    "--updates --range 200-300": "no checkpoint from 200 to 300; found checkpoint_1_50.pt, ",
    "--updates --range 300": "--range 300: write the first and the last number",
    "--best 4": "--best and --metric go together",
    "--best 4 --metric meteor": "training tracks only --best-checkpoint-metric); found checkpoint.best_bleu_35.0001",
}


@pytest.mark.parametrize("flags", CHOICES)
def test_an_impossible_choice_is_one_line(folder, tmp_path, error_of, flags):
    out = tmp_path / "average.pt"
    printed = error_of("average", "--checkpoints", folder, "--out", out, *flags.split())
    assert CHOICES[flags] in printed and len(printed.splitlines()) == 1
    assert not out.exists()


def test_paths_that_cannot_be(three, tmp_path, error_of):
    (empty := tmp_path / "empty").mkdir()
    for path, out, message in (
        (tmp_path / "absent", tmp_path / "a.pt", f"{tmp_path}/absent: no such checkpoint"),
        (empty, tmp_path / "a.pt", f"{empty}: no checkpoint (*.pt)"),
        (three[0], tmp_path, f"--out {tmp_path}: a directory; name a file"),
        (three[0], three[0], "is one of --checkpoints; give another file"),
        (three[0], tmp_path / ".." / tmp_path.name / three[0].name, "is one of --checkpoints; give another file"),
    ):
        before = three[0].read_bytes()
        assert message in error_of("average", "--checkpoints", path, "--out", out, *["--last", "1"] * (path == empty))
        assert three[0].read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [{"extra_state": "text"}, {"optimizer_history": [3]}, {"optimizer_history": 5}, {"extra_state": {"metrics": 3}},
     {"extra_state": {"metrics": {"valid": [3]}}}, {"extra_state": {"val_loss": [1]}}],
    ids=str,
)  # fmt: skip
def test_parts_of_other_types_are_one_line(change, tmp_path, error_of):
    path = save(tmp_path / "checkpoint1.pt", parameters(1), value=1.0)
    torch.save(torch.load(path, weights_only=False) | change, path)
    figure = isinstance(change.get("extra_state"), dict)  # which is read for --best alone
    for flags in ([], ["--best", "1", "--metric", "loss"])[figure:]:
        asked = "average", "--checkpoints", path, *flags, "--out", tmp_path / "out.pt"
        assert (path.name if figure else f"{path}: ") in error_of(*asked)
        assert not (tmp_path / "out.pt").exists()
