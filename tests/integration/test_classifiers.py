"""Probing and logical inference as a user runs them: data, encoders, killed and resumed runs, accuracy, report."""

import json
import re
import shutil

import pytest

from fairseq_diverse.cli import main
from fairseq_diverse.data.logic import read_pairs, write_corpus
from fairseq_diverse.data.probing import SURFACE
from fairseq_diverse.toy.probing import write_probing
from tests.integration.commands import cli, run, runs_in
from tests.integration.test_plot import data, plain  # noqa: F401  (fixtures of a prepared data set and a checkpoint)
from tests.integration.training import equal_in_two_processes, figures, refused, train, train_in_two, train_resumed

SMALL = (
    "--task sentence_probing --arch li2021_probing --criterion classification_with_disagreement --optimizer adam "
    "--encoder-layers 1 --encoder-embed-dim 16 --encoder-ffn-embed-dim 16 --encoder-attention-heads 2 --lr 0.01 "
    "--max-tokens 400 --max-update 2 --required-batch-size-multiple 1 --cpu --num-workers 0 --no-progress-bar"
)


def test_probes_of_new_and_of_trained_encoders(data, tmp_path, capsys):  # noqa: F811
    write_probing(tmp_path / "probing", 20)
    train(data, tmp_path / "translation", "--routing em")
    trained = tmp_path / "translation/checkpoint_last.pt"
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


def test_a_trained_encoder_is_probed_in_two_processes(data, plain, tmp_path):  # noqa: F811
    write_probing(tmp_path, 20)
    flags = [tmp_path, *SMALL.split(), "--from-checkpoint", plain, "--checkpoint-data", data]
    flags += ["--criterion", "classification", "--log-format", "json"]
    log = train_in_two(*flags, "--save-dir", tmp_path / "two")
    assert 0 < figures(log)["valid_loss"][-1] < 10
    assert main(["accuracy", f"x={tmp_path}/two/checkpoint_last.pt", "--data", str(tmp_path)]) == 0


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


def test_a_table_of_probes_of_a_trained_encoder(data, plain, tmp_path, capsys, monkeypatch):  # noqa: F811
    write_probing(tmp_path / "probing", 80)
    trained = shutil.copy(plain, tmp_path / "trained.pt")
    (tmp_path / "size.yaml").write_text(SIZE.format(checkpoint=trained, data=data))
    (tmp_path / "table.yaml").write_text(TABLE.format(folder=tmp_path))
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path / "runs"))
    cli("run", tmp_path / "table.yaml", "--jobs", 2)
    assert main(["report", str(tmp_path / "table.yaml")]) == 0
    shown = [re.split(r" {2,}", line) for line in capsys.readouterr().out.splitlines()]
    figures = {cells[0]: float(cells[-1]) for cells in shown if cells[0] in (*SURFACE, "Surface")}
    assert len(figures) == 3 and figures.pop("Surface") == pytest.approx(sum(figures.values()) / 2, abs=0.01)
    moved = shutil.copy(trained, tmp_path / "moved.pt")
    trained.write_bytes(b"another encoder")
    for path, stage in ((trained, "new"), (moved, "done")):
        assert main(["run", str(tmp_path / "table.yaml"), "--dry-run", "--set", f"from-checkpoint={path}"]) == 0
        assert re.findall(r"seed 1: .*\b(new|done)\b", capsys.readouterr().out) == [stage] * 2


LOGIC = (
    "--task logical_inference --arch li2021_logic --encoder-embed-dim 16 --encoder-ffn-embed-dim 16 "
    "--encoder-attention-heads 2 --optimizer adam --lr 0.01 --max-tokens 2000 --cpu --num-workers 0 "
    "--log-format json --log-interval 1 --no-progress-bar"
)
LOGIC_SIZE = """
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
LOGIC_TABLE = """
title: A tiny table of logic
data: {data}
size: {folder}/size.yaml
rows:
  baseline:
  both: {{criterion: classification_with_disagreement, routing: em}}
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logic")
    write_corpus(folder, 30)
    return folder


def test_resumed_training_equals_the_uninterrupted(corpus, tmp_path):
    flags = "--criterion classification_with_disagreement --routing em"
    assert figures(train_resumed(corpus, tmp_path, flags, 3, 5, LOGIC))["valid_disagreement_output"][-1] < 0


@pytest.mark.parametrize("criterion", ["classification", "classification_with_disagreement"])
def test_two_processes_equal_one_with_doubled_accumulation(corpus, tmp_path, criterion):
    flags = f"{LOGIC} --criterion {criterion} --dropout 0 --max-update 3 --batch-size 8 --optimizer sgd --lr 0.05"
    names = ["loss", "gnorm", "accuracy", *(["disagreement"] if "with" in criterion else [])]
    equal_in_two_processes(tmp_path, names, corpus, *flags.split())


def test_a_table_of_logic_is_run_and_reported(corpus, tmp_path):
    (tmp_path / "size.yaml").write_text(LOGIC_SIZE)
    (tmp_path / "table.yaml").write_text(LOGIC_TABLE.format(folder=tmp_path, data=corpus))

    def call(*arguments):
        return cli(*arguments, env=runs_in(tmp_path / "runs"))

    done = call("run", tmp_path / "table.yaml", "--jobs", 2)
    (folder,) = (tmp_path / "runs").glob("*-both-*/seed1")
    summary = json.loads((folder / "summary.json").read_text())
    by_operators = summary["accuracy"]
    assert list(by_operators) == [str(count) for count in range(1, 13)]
    for count, part in by_operators.items():
        assert len(part["hits"]) == sum(part["classes"]) == len(read_pairs(corpus / f"test{count}"))
    hits = "".join(part["hits"] for part in by_operators.values())
    share = 100 * hits.count("1") / len(hits)
    assert f"both seed 1: accuracy {share:.2f}" in done.stdout + done.stderr
    call("export", "--to", "safetensors", "--out", tmp_path / "shared", folder)
    assert f"| all | {share:.2f} |" in (tmp_path / "shared/README.md").read_text()
    path = folder / "checkpoints/checkpoint_last.pt"
    tables = [call("accuracy", f"a={one}", "--data", corpus).stdout for one in (path, tmp_path / "shared")]
    assert tables[0] == tables[1] != ""
    shown = call("report", tmp_path / "table.yaml", "--save", tmp_path / "results").stdout
    assert re.search(rf"^both .* {share:.2f} .*\(one seed\) +(< )?[\d.]+ +1$", shown, re.MULTILINE), shown
    by_length = {words[0]: words for words in map(str.split, shown.splitlines()) if words and words[0].isdigit()}
    assert list(by_length) == list(by_operators)
    for count, part in by_operators.items():
        shares = [100 * x / len(part["hits"]) for x in (max(part["classes"]), part["hits"].count("1"))]
        assert [by_length[count][1], by_length[count][-1]] == [f"{share:.2f}" for share in shares]
    assert call("report", tmp_path / "table.yaml", "--results", tmp_path / "results").stdout == shown
    page = call("report", tmp_path / "table.yaml", "--format", "html").stdout
    assert page.count("<table") == 2
    captions = ["Accuracy by number of operators", "Training and validation loss"]
    assert re.findall("<figcaption>([^<]*)<", page) == captions
    out = call("accuracy", f"both={path}", "--data", corpus, "--out", tmp_path / "a.png")
    assert out.stdout.splitlines()[-1].split()[-1] == f"{share:.2f}" and (tmp_path / "a.png").stat().st_size > 1000


def test_errors_are_one_line(corpus, tmp_path):
    flags = (*LOGIC.split(), "--criterion", "classification", "--max-update", 1)
    assert f"error: {tmp_path}/train0" in refused("train", tmp_path, *flags)
    (tmp_path / "train0").write_text("".join((corpus / "train0").read_text().splitlines(keepends=True)[:16]))
    few = f"error: {tmp_path}: 16 training pairs with --train-operators 0: too few, since one in 17"
    assert few in refused("train", tmp_path, *flags, "--train-operators", 0)
    said = cli("run", "li2021-figure4", fails=2, env=runs_in(tmp_path / "runs")).stderr
    assert "run: fairseq-diverse prepare propositional_logic --archives DIR" in said
