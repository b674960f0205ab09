"""T5 as a user runs it: text, pre-training by spans, GLUE as text, scores, report."""

import json
import re

import pytest
from fairseq.data import Dictionary

from fairseq_diverse.preparation.glue import TASKS
from fairseq_diverse.support.files import read_lines
from tests.integration.commands import caller
from tests.integration.glue_files import write_task
from tests.integration.test_glue import binarized
from tests.integration.test_prepare import write_raw

COMMON = """
  arch: diverse_t5_tiny
  optimizer: adam
  lr: 0.01
  batch-size: 8
  required-batch-size-multiple: 1
  max-update: 3
  criterion: cross_entropy
average: none
"""
TABLE = """
title: Tiny T5
size: {folder}/tuned.yaml
grid: {{data: [glue-MRPC.text@text, glue-STS-B.text@text]}}
rows:
  first: {{size: {folder}/pretrained.yaml, data: text, grid: {{}}, baseline: first}}
  plain: {{pretrained: first, baseline: plain}}
  evolving: {{pretrained: first, arch: wang2021_evolving_t5_tiny, baseline: plain}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5")
    write_raw(folder / "raw")
    bpe = {"kind": "t5", "size": 50}
    (folder / "text.yaml").write_text(json.dumps({"source": "en", "tokenizer": "none", "normalize": False, "bpe": bpe}))
    for task in ("MRPC", "STS-B", "MNLI"):
        write_task(folder / "raw", task)
    tasks = {"pretrained": "span_corruption\n  tokens-per-sample: 64\n  sentence-avg: true", "tuned": "text_to_text"}
    for name, task in tasks.items():
        (folder / f"{name}.yaml").write_text(f"train:\n  task: {task}{COMMON}")
    (folder / "table.yaml").write_text(TABLE.format(folder=folder))
    call = caller(folder)
    call("prepare", folder / "text.yaml", "--raw", folder / "raw")
    call("prepare", "glue-MRPC@text", "--as-text", "--raw", folder / "raw")
    call("prepare", "glue-STS-B.text@text", "glue-MNLI.text@text", "--raw", folder / "raw")
    return folder


@pytest.fixture
def call(folder):
    return caller(folder)


def test_text_and_tasks_are_prepared_with_one_dictionary(folder):
    data = folder / "runs/data"
    words = Dictionary.load(str(data / "text/dict.txt"))
    assert len(words) == 256 and words[255] == "<extra_id_0>" and words[156] == "<extra_id_99>"
    assert words.symbols[4:51] == [line.split()[0] for line in read_lines(data / "text/dict.txt")][:47]
    for name in ("MRPC", "STS-B", "MNLI"):
        its, task = data / f"glue-{name}.text@text", TASKS[name]
        inputs, labels = (read_lines(its / f"text/valid.{side}") for side in ("input", "label"))
        assert (its / "dict.input.txt").read_text() == (its / "dict.label.txt").read_text()
        assert Dictionary.load(str(its / "dict.input.txt")).symbols == words.symbols
        shape = {"MRPC": "mrpc sentence1: .+ sentence2: .+", "STS-B": "stsb sentence1: .+ sentence2: .+"}
        assert all(re.fullmatch(shape.get(name, "mnli hypothesis: .+ premise: .+"), line) for line in inputs)
        possible = task.words or task.labels or [f"{number}.0" for number in range(6)]
        assert set(labels) <= set(possible) and len(set(labels)) > 1
        assert read_lines(its / "text/test.label") == [""] * 12
        assert (its / "valid1.input-label.label.bin").exists() == (name == "MNLI")  # the mismatched examples
        texts = binarized(its / "valid.input-label.label", words)
        assert [text.replace(" ", "").replace("\u2581", " ").strip() for text in texts] == labels


def test_pretraining_finetuning_scores_and_report(folder, call):
    plan = call("run", folder / "table.yaml", "--seeds", 1, "--dry-run", "--commands")
    assert "--task span_corruption" in plan and "--task text_to_text" in plan and "--source-lang input" in plan
    call("run", folder / "table.yaml", "--seeds", 1)
    report = json.loads(call("report", folder / "table.yaml", "--format", "json"))
    assert {row["task"] for row in report["rows"]} == {"MRPC", "STS-B", "average"}
    assert {row["system"] for row in report["rows"]} == {"plain", "evolving"}
    assert report["pretraining"][0]["nll"] > 0
    text = call("report", folder / "table.yaml", "--format", "markdown")
    assert "NLL: nats a word of a span, a sentinel or the end at the last update" in text and "masked" not in text
    assert "- answers that are no label, which count as wrong, mean over seeds:" in text and "| STS-B Pearson |" in text
    assert re.search(r"plain: MRPC [\d.]+ of 12", text)
    (checkpoint,) = (folder / "runs").glob("glue-MRPC*-plain-*/seed1/checkpoints/checkpoint_last.pt")
    data = folder / "runs/data/glue-MRPC.text@text"
    said = call("glue", "--checkpoint", checkpoint, "--data", data, "--predictions", folder / "send")
    lines = read_lines(folder / "send/MRPC.tsv")
    assert lines[0] == "index\tprediction" and len(lines) == 13 and {line[-1] for line in lines[1:]} <= {"0", "1"}
    assert "answers are no label and count as wrong" in said  # after three updates
    other = folder / "runs/data/glue-STS-B.text@text"
    (first,) = (folder / "runs").glob("text-*/seed1/checkpoints/checkpoint_last.pt")
    said = call("glue", "--checkpoint", first, "--data", other, fails=2)
    assert "not trained for STS-B as text, --task text_to_text" in said
