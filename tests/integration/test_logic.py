"""Logical inference as a user runs it: data, tables, killed and resumed runs, accuracy, report."""

import json
import os
import re

import pytest

from fairseq_diverse.data.logic import read_pairs, write_corpus
from tests.integration.commands import cli, run
from tests.integration.training import train_in_two_processes

SMALL = (
    "--task logical_inference --arch li2021_logic --encoder-embed-dim 16 --encoder-ffn-embed-dim 16 "
    "--encoder-attention-heads 2 --optimizer adam --lr 0.01 --max-tokens 2000 --cpu --num-workers 0 "
    "--log-format json --log-interval 1 --no-progress-bar"
)
SIZE = """
train:
  task: logical_inference
  arch: li2021_logic
  encoder-embed-dim: 16
  encoder-ffn-embed-dim: 16
  encoder-attention-heads: 2
  criterion: classification
  optimizer: adam
  lr: 0.01
  max-tokens: 2000
  max-update: 6
average: none
"""
TABLE = """
title: A tiny table of logic
data: {data}
size: {folder}/size.yaml
rows:
  baseline:
  both: {{criterion: classification_with_disagreement, routing: em}}
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logic")
    write_corpus(folder, 30)
    return folder


def accuracies(log):
    return re.findall(r'"valid_accuracy": "([\d.]+)"', log.stdout + log.stderr)


def test_resumed_training_equals_the_uninterrupted(data, tmp_path):
    flags = [data, *SMALL.split(), "--criterion", "classification_with_disagreement", "--routing", "em"]
    whole = run("train", *flags, "--max-epoch", 2, "--save-dir", tmp_path / "whole")
    run("train", *flags, "--max-epoch", 1, "--save-dir", tmp_path / "part")
    rest = run("train", *flags, "--max-epoch", 2, "--save-dir", tmp_path / "part")
    losses = [re.findall(r'"train_loss": "([\d.]+)"', log.stdout + log.stderr) for log in (whole, rest)]
    assert len(losses[0]) == 2 and losses[1] == losses[0][1:]
    assert accuracies(whole)[-1] == accuracies(rest)[-1]
    text = rest.stdout + rest.stderr
    assert '"valid_disagreement_output": "-0.' in text


@pytest.mark.parametrize("criterion", ["classification", "classification_with_disagreement"])
def test_two_processes_equal_one_with_doubled_accumulation(data, tmp_path, criterion):
    flags = [data, *SMALL.split(), "--criterion", criterion, "--dropout", 0, "--max-update", 3, "--batch-size", 8]
    flags += ["--optimizer", "sgd", "--lr", 0.05]
    one = run("train", *flags, "--update-freq", 2, "--save-dir", tmp_path / "one")
    two = train_in_two_processes(*flags, "--save-dir", tmp_path / "two")[0]
    for name in ("loss", "gnorm", "accuracy", *(["disagreement"] if "with" in criterion else [])):
        expected, got = (re.findall(rf'"{name}": "([-\d.]+)"', text) for text in (one.stdout + one.stderr, two))
        assert len(expected) >= 3 and list(map(float, got)) == pytest.approx(list(map(float, expected)), abs=2e-3), name


def test_a_table_of_logic_is_run_and_reported(data, tmp_path):
    (tmp_path / "size.yaml").write_text(SIZE)
    (tmp_path / "table.yaml").write_text(TABLE.format(folder=tmp_path, data=data))
    environment = os.environ | {"FAIRSEQ_DIVERSE_RUNS": str(tmp_path / "runs"), "OMP_NUM_THREADS": "1"}

    def call(*arguments):
        return cli(*arguments, env=environment)

    done = call("run", tmp_path / "table.yaml", "--jobs", 2)
    assert done.returncode == 0, done.stderr[-2000:]
    (folder,) = (tmp_path / "runs").glob("*-both-*/seed1")
    summary = json.loads((folder / "summary.json").read_text())
    found = summary["accuracy"]
    assert list(found) == [str(count) for count in range(1, 13)]
    for count, part in found.items():
        pairs = read_pairs(data / f"test{count}")
        assert len(part["hits"]) == sum(part["classes"]) == len(pairs)
    hits = "".join(part["hits"] for part in found.values())
    share = 100 * hits.count("1") / len(hits)
    assert f"both seed 1: accuracy {share:.2f}" in done.stdout + done.stderr
    assert call("export", "--to", "safetensors", "--out", tmp_path / "shared", folder).returncode == 0
    assert f"| all | {share:.2f} |" in (tmp_path / "shared/README.md").read_text()
    path = folder / "checkpoints/checkpoint_last.pt"
    tables = [call("accuracy", f"a={one}", "--data", data).stdout for one in (path, tmp_path / "shared")]
    assert tables[0] == tables[1] != ""
    shown = call("report", tmp_path / "table.yaml", "--save", tmp_path / "results").stdout
    assert re.search(rf"^both .* {share:.2f} .*\(one seed\) +(< )?[\d.]+ +1$", shown, re.MULTILINE), shown
    by_length = {words[0]: words for words in map(str.split, shown.splitlines()) if words and words[0].isdigit()}
    assert list(by_length) == list(found)
    for count, part in found.items():
        shares = [100 * x / len(part["hits"]) for x in (max(part["classes"]), part["hits"].count("1"))]
        assert [by_length[count][1], by_length[count][-1]] == [f"{share:.2f}" for share in shares]
    again = call("report", tmp_path / "table.yaml", "--results", tmp_path / "results").stdout
    assert again == shown
    page = call("report", tmp_path / "table.yaml", "--format", "html").stdout
    assert page.count("<table") == 2
    captions = ["Accuracy by number of operators", "Training and validation loss"]
    assert re.findall("<figcaption>([^<]*)<", page) == captions
    out = call("accuracy", f"both={folder}/checkpoints/checkpoint_last.pt", "--data", data, "--out", tmp_path / "a.png")
    assert out.stdout.splitlines()[-1].split()[-1] == f"{share:.2f}" and (tmp_path / "a.png").stat().st_size > 1000


def test_errors_are_one_line(data, tmp_path):
    log = run("train", tmp_path, *SMALL.split(), "--criterion", "classification", "--max-update", 1, check=False)
    assert log.returncode and f"error: {tmp_path}/train0" in log.stderr and "Traceback" not in log.stderr
    (tmp_path / "train0").write_text("".join((data / "train0").read_text().splitlines(keepends=True)[:16]))
    flags = ["--criterion", "classification", "--max-update", 1, "--train-operators", 0]
    log = run("train", tmp_path, *SMALL.split(), *flags, check=False)
    assert f"error: {tmp_path}: 16 training pairs with --train-operators 0: too few, since one in 17" in log.stderr
    flags = ["--criterion", "classification", "--max-update", 1, "--syntax", "phrase"]
    log = run("train", data, *SMALL.split(), *flags, check=False)
    assert "error: --syntax, --enliven: the sentences of this task have no trees" in log.stderr
    environment = os.environ | {"FAIRSEQ_DIVERSE_RUNS": str(tmp_path / "runs")}
    log = cli("run", "li2021-figure4", env=environment)
    assert log.returncode == 2 and "run: fairseq-diverse prepare propositional_logic --archives DIR" in log.stderr
