"""Probing as a user runs it: a new encoder, a trained one, accuracy by task."""

import re
import shutil

import pytest

from fairseq_diverse.cli import main
from fairseq_diverse.data.probing import SURFACE, TASKS
from fairseq_diverse.toy.probing import write_probing
from tests.integration.commands import TINY, cli, run
from tests.integration.test_plot import data, train  # noqa: F401  (the fixture of a prepared data set)
from tests.integration.training import train_in_two_processes

SMALL = (
    "--task sentence_probing --arch li2021_probing --criterion classification_with_disagreement --optimizer adam "
    "--encoder-layers 1 --encoder-embed-dim 16 --encoder-ffn-embed-dim 16 --encoder-attention-heads 2 --lr 0.01 "
    "--max-tokens 400 --max-update 2 --required-batch-size-multiple 1 --cpu --num-workers 0 --no-progress-bar"
)


def test_probes_of_new_and_of_trained_encoders(data, tmp_path, capsys):  # noqa: F811
    write_probing(tmp_path / "probing", 20)
    trained = train(data, tmp_path / "translation", f"{TINY} --routing em")
    there, moved = shutil.copytree(data, tmp_path / "there"), tmp_path / "moved"
    probes = ("sentence_length", "word_content", "past_present")
    for probe in probes:
        common = [tmp_path / "probing", *SMALL.split(), "--probe", probe]
        run("train", *common, "--save-dir", tmp_path / "new" / probe)
        given = ["--from-checkpoint", trained, "--checkpoint-data", there]
        run("train", *common, *given, "--criterion", "classification", "--save-dir", tmp_path / "given" / probe)
    assert main(["accuracy", f"x={trained}", "--data", str(tmp_path / "probing")]) == 2
    assert f"{tmp_path}/probing: is it a folder of prepared data for {trained}? Could" in capsys.readouterr().err
    trained.unlink()  # the classifiers' checkpoints contain the encoder
    named = [f"{kind}={tmp_path}/{kind}/{probe}/checkpoint_last.pt" for kind in ("new", "given") for probe in probes]
    asked = ["accuracy", *named, "--data", str(tmp_path / "probing"), "--save", str(tmp_path / "a.json")]
    there.rename(moved)
    assert main(asked) == 2 and f"{there}/preprocess.json: cannot be read" in capsys.readouterr().err
    assert main([*asked, "--checkpoint-data", str(moved)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["task", "examples", "largest", "class", "new", "given"]
    assert [line[0] for line in lines[1:]] == [*probes, "Surface"]
    for column in (-1, -2):
        assert float(lines[-1][column]) == (float(lines[1][column]) + float(lines[2][column])) / 2
    assert main(["accuracy", named[0], named[0], "--data", str(tmp_path / "probing")]) == 2
    assert "one task at a time, and a name once for each probe" in capsys.readouterr().err
    assert main(["accuracy", named[0], f"x={trained}", "--data", str(tmp_path / "probing")]) == 2
    shown = capsys.readouterr()
    assert f"{trained}: no such checkpoint" in shown.err and not shown.out


def test_a_trained_encoder_is_probed_in_two_processes(data, tmp_path):  # noqa: F811
    write_probing(tmp_path, 20)
    trained = train(data, tmp_path / "translation", TINY)
    flags = [tmp_path, *SMALL.split(), "--from-checkpoint", trained, "--checkpoint-data", data]
    flags += ["--criterion", "classification", "--log-format", "json"]
    log = train_in_two_processes(*flags, "--save-dir", tmp_path / "two")[0]
    assert 0 < float(re.findall(r'"valid_loss": "([\d.]+)"', log)[-1]) < 10
    assert main(["accuracy", f"x={tmp_path}/two/checkpoint_last.pt", "--data", str(tmp_path)]) == 0


def test_missing_files_are_named_with_their_source(tmp_path):
    log = run("train", tmp_path, *SMALL.split(), check=False)
    assert log.returncode and "Traceback" not in log.stderr
    assert all(f"{task}.txt" in log.stderr for task in TASKS) and "github.com/facebookresearch/SentEval" in log.stderr


TABLE = """
title: A tiny table of probes
data: {folder}/probing
size: {folder}/size.yaml
grid: {{probe: [sentence_length, word_content]}}
rows: {{baseline: }}
"""
SIZE = """
train:
  {{task: sentence_probing, arch: li2021_probing, criterion: classification, optimizer: adam, lr: 0.01,
   from-checkpoint: {checkpoint}, checkpoint-data: {data}, batch-size: 8, max-update: 2}}
"""


def test_a_table_of_probes_of_a_trained_encoder(data, tmp_path, capsys, monkeypatch):  # noqa: F811
    write_probing(tmp_path / "probing", 80)
    trained = train(data, tmp_path / "translation", TINY)
    (tmp_path / "size.yaml").write_text(SIZE.format(checkpoint=trained, data=data))
    (tmp_path / "table.yaml").write_text(TABLE.format(folder=tmp_path))
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path / "runs"))
    assert cli("run", tmp_path / "table.yaml", "--jobs", 2).returncode == 0
    assert main(["report", str(tmp_path / "table.yaml")]) == 0
    shown = [re.split(r" {2,}", line) for line in capsys.readouterr().out.splitlines()]
    figures = {cells[0]: float(cells[-1]) for cells in shown if cells[0] in (*SURFACE, "Surface")}
    assert len(figures) == 3 and figures.pop("Surface") == pytest.approx(sum(figures.values()) / 2, abs=0.01)
    moved = shutil.copy(trained, tmp_path / "moved.pt")
    trained.write_bytes(b"another encoder")
    for path, stage in ((trained, "new"), (moved, "done")):
        assert main(["run", str(tmp_path / "table.yaml"), "--dry-run", "--set", f"from-checkpoint={path}"]) == 0
        assert re.findall(r"seed 1: .*\b(new|done)\b", capsys.readouterr().out) == [stage] * 2
