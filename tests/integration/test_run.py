"""`fairseq-diverse run` and `report` as a user runs them: trained, averaged, translated, scored, killed and resumed."""

import html
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from urllib.parse import unquote

import pytest
import torch

from fairseq_diverse.checkpoints.loading import load_checkpoint
from fairseq_diverse.experiments.logs import statistics
from fairseq_diverse.metrics.scores import read_translations, score
from fairseq_diverse.models.loading import load_model
from fairseq_diverse.preparation import DataConfig, prepare
from fairseq_diverse.reports import side_by_side
from fairseq_diverse.support.files import read_lines
from tests.integration.commands import cli, make_bert, preprocess_in_a_fork, runs_in
from tests.integration.test_prepare import CONFIG, write_raw
from tests.integration.training import figures

COMMAND = [sys.executable, "-m", "fairseq_diverse.cli"]
TABLE = """
title: A tiny table
data: {data}
size: {folder}/size.yaml
rows:
  baseline: {{published: {{bleu: 27.3}}}}
  disagreement: &term {{criterion: label_smoothed_cross_entropy_with_disagreement, disagreement: output}}
  wrong: {{finetune-from-model: {folder}/size.yaml}}
"""
UPDATES = 40
SIZE = """
train:
  arch: diverse_transformer_tiny
  share-all-embeddings: true
  dropout: 0.1
  criterion: label_smoothed_cross_entropy
  label-smoothing: 0.1
  optimizer: adam
  lr: 0.005
  max-tokens: 150
  required-batch-size-multiple: 1
  max-update: UPDATES
generate: {beam: 2, max-len-b: 20, lenpen: [-20, 20]}
average: {best: 3, every: 4, by: nll_loss}
""".replace("UPDATES", str(UPDATES))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A prepared data set, a size and a table."""
    folder = tmp_path_factory.mktemp("experiments")
    raw = write_raw(folder / "raw", lines=100)
    for language in ("en", "de"):
        shutil.copyfile(raw / f"valid.{language}", raw / f"second.{language}")
        (raw / f"test.{language}").rename(raw / f"first.{language}")
    config = CONFIG | {"files": {"test": ["first", "second"]}}
    with preprocess_in_a_fork():
        prepare(DataConfig.from_mapping("tiny", config), raw, folder / "data", say=lambda line: None)
    (folder / "size.yaml").write_text(SIZE)
    (folder / "table.yaml").write_text(TABLE.format(folder=folder, data=folder / "data"))
    return folder


def call(runs: Path, *arguments: object, fails: int = 0) -> subprocess.CompletedProcess[str]:
    return cli(*arguments, fails=fails, env=runs_in(runs))


@pytest.fixture(scope="module")
def finished(folder) -> subprocess.CompletedProcess[str]:
    """A row that is trained, and one that fails."""
    return call(folder / "runs", "run", folder / "table.yaml", "--rows", "baseline,wrong", "--jobs", 2, fails=1)


@pytest.fixture(scope="module")
def run(folder, finished) -> Path:
    """The folder of the row that is trained."""
    return directory(folder / "runs", "baseline")


def test_missing_trees_are_said_before_anything_is_trained(folder, tmp_path):
    table = f"data: {folder}/data\nsize: {folder}/size.yaml\nrows: {{plain: , s: {{task: translation_with_syntax, "
    (tmp_path / "table.yaml").write_text(table + "syntax: phrase, enliven: enliven}}\n")
    problem = f"row s: {folder}/data: train has no dependency and constituency trees; data-prep/add-trees.sh or"
    assert problem in call(tmp_path / "runs", "run", tmp_path / "table.yaml", fails=2).stderr
    assert not [*tmp_path.glob("runs/*/*/train.log")]
    assert f"warning: {problem}" in call(tmp_path / "runs", "run", tmp_path / "table.yaml", "--dry-run").stderr


def directory(runs: Path, row: str) -> Path:
    (found,) = runs.glob(f"data-size-{row}-*/seed1")
    return found


def summary(runs: Path, row: str) -> dict:
    return json.loads((directory(runs, row) / "summary.json").read_text())


def losses(log: Path) -> dict[int, str]:
    """The loss of every logged update; for a repeated update, the last."""
    logged = figures(log.read_text())
    return dict(zip(map(int, logged.get("num_updates", ())), logged.get("loss", ()), strict=False))


def test_a_row_is_trained_averaged_translated_and_scored(folder, run):
    result = summary(folder / "runs", "baseline")
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["checkpoint_average.pt"]
    assert "checkpoint_" in (run / "average.log").read_text() and max(losses(run / "train.log")) == UPDATES
    assert len(read_lines(run / "test.hyp")) == len(result["test_nll"]) == len(result["bleu_counts"]) == 6
    state = load_checkpoint(run / "checkpoints/checkpoint_average.pt")["model"]
    tied = {"decoder.embed_tokens.weight", "decoder.output_projection.weight"}
    own = [value for key, value in state.items() if key not in tied and not key.endswith(("version", "_float_tensor"))]
    assert result["parameters"] == sum(value.numel() for value in own)
    assert result["seed"] == 1 and result["updates"] == UPDATES
    assert result["versions"]["torch"] == version("torch")
    assert result["machine"]["threads"] == 1 and result["machine"]["variables"]["MALLOC_MMAP_MAX_"] == "0"
    assert "# MALLOC_MMAP_MAX_=0\n" in (run / "environment.txt").read_text()
    assert result["words_per_second"]["train"] > 0 and result["words_per_second"]["generate"] > 0
    logged = [stats for k, stats in statistics((run / "train.log").read_text().splitlines()) if k == "train_inner"]
    speeds = [float(stats["ups"]) for stats in logged]
    assert min(speeds) - 0.01 <= result["updates_per_second"]["train"] <= max(speeds) + 0.01
    of_epoch = sum(stats["epoch"] == 1 for stats in logged)  # every update is logged
    expected = of_epoch / result["updates_per_second"]["train"] / 60
    assert result["epoch_minutes"] == pytest.approx(expected, rel=0.01, abs=1e-4)
    assert 2**26 < result["peak_memory"]["train"] < 2**36
    assert set(result["metrics"]["signatures"]) == {"bleu", "chrf", "ter"}
    assert result["row"]["average"] == {"best": 3, "every": 4, "by": "nll_loss"}
    valid = figures((run / "train.log").read_text())
    best = sorted(zip(valid["valid_nll_loss"], (-number for number in valid["valid_num_updates"]), strict=True))[:3]
    averaged = re.findall(r"checkpoint_\d+_(\d+)\.pt", (run / "average.log").read_text())
    assert averaged == [f"{-number:.0f}" for _, number in best]


def test_the_length_penalty_is_the_best_on_the_validation_split(folder, finished, run):
    chosen = summary(folder / "runs", "baseline")["chosen"]
    references = read_lines(folder / "data/text/valid.de")
    texts = {value: read_translations(run / f"lenpen-{value}.log", folder / "data") for value in ("-20", "20")}
    bleu = {value: round(score(text, references, "de").bleu, 4) for value, text in texts.items()}
    assert chosen == {"lenpen": float(max(bleu, key=bleu.__getitem__)), "valid_bleu": bleu}
    assert sum(map(len, texts["-20"])) < sum(map(len, texts["20"]))
    assert f"length penalty {chosen['lenpen']:g}" in finished.stderr
    lines = (run / "commands.sh").read_text().splitlines()
    assert f" > {run}/lenpen--20.log" in lines[2] and lines[5].endswith(f"--lenpen {chosen['lenpen']}")
    shown = subprocess.run(lines[4], shell=True, capture_output=True, text=True, env=runs_in(folder / "runs"))
    assert all(f"{value:.2f}" in shown.stdout for value in bleu.values())


def test_test_nll_is_the_sum_of_the_tokens_log_probabilities(folder, run):
    model, task = load_model(run / "checkpoints/checkpoint_average.pt", folder / "data")
    task.load_dataset("test")
    for number, expected in enumerate(summary(folder / "runs", "baseline")["test_nll"]):
        sample = task.dataset("test").collater([task.dataset("test")[number]])
        probabilities = model.get_normalized_probs(model(**sample["net_input"]), log_probs=True)
        nll = -probabilities.gather(2, sample["target"].unsqueeze(2)).sum()
        assert float(nll) == pytest.approx(expected, abs=0.002)


def test_a_failing_row_is_reported_without_a_stack_trace(folder, finished):
    said = finished.stderr
    assert "Traceback" not in said
    assert re.search(r"wrong seed 1: FAILED: train ended with exit code 1; the end of .*train.log:", said), said
    assert f"error: {folder}/size.yaml: not a checkpoint: torch.save did not write this file" in said
    assert re.search(r"baseline seed 1: BLEU \d", said)


def test_a_finished_run_gets_the_metrics_and_test_sets_of_another_table(folder, finished, tmp_path):
    runs = tmp_path / "runs"
    shutil.copytree(folder / "runs", runs)
    before = summary(runs, "baseline")
    trained = (directory(runs, "baseline") / "train.log").read_bytes()
    more = "metrics: yisi-0,yisi-1\ntests: [second, first]\n"
    (tmp_path / "metrics.yaml").write_text((folder / "table.yaml").read_text() + more)
    asked = call(runs, "run", tmp_path / "metrics.yaml", "--rows", "baseline")
    assert "no yisi-1: needs an embedding model" in asked.stderr
    after = summary(runs, "baseline")
    metrics = after["metrics"]
    second, lines = after["tests"]["second"], read_lines(directory(runs, "baseline") / "second.hyp")
    assert after["test"] == "first" and [*after["tests"]] == ["second"] and len(second["test_nll"]) == len(lines) == 5
    bleu = score(lines, read_lines(folder / "raw/second.de"), "de").bleu
    assert second["metrics"]["bleu"] == round(bleu, 4) and second["metrics"]["yisi-0"] > 0
    assert f"second BLEU {bleu:.2f}" in asked.stderr
    assert after["commands"][:-2] == before["commands"] and "--gen-subset test1" in after["commands"][-1]
    assert f"--lenpen {after['chosen']['lenpen']}" in after["commands"][-2]
    assert list(after["missing"]) == list(second["missing"]) == ["yisi-1"]
    assert (directory(runs, "baseline") / "train.log").read_bytes() == trained
    assert 0 < metrics.pop("yisi-0") <= 100 and metrics["signatures"].pop("yisi-0")
    assert metrics == before["metrics"]
    shown = call(runs, "report", tmp_path / "metrics.yaml", "--rows", "baseline")
    assert "YiSi-0" in shown.stdout and "YiSi-1" not in shown.stdout
    command = ["run", tmp_path / "metrics.yaml", "--rows", "baseline", "--yisi-model"]
    said = call(runs, *command, tmp_path, fails=2).stderr
    assert "not a folder of a model" in said and said.count("\n") == 1
    call(runs, *command, make_bert(tmp_path, ["a", "b"]))
    added = summary(runs, "baseline")
    assert 0 <= added["metrics"]["yisi-1"] <= 100 and added["missing"] == {}
    assert "done before" in call(runs, *command[:-1]).stderr
    program = tmp_path / "bin/comet-score"  # a stand-in, which gives each sentence its place
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsource, hypothesis = sys.argv[2], sys.argv[4]\n"
        "for i, line in enumerate(open(hypothesis)):\n    print(f'{hypothesis}\\tSegment {i}\\tscore: {0.1 * i:.4f}')\n"
    )
    program.chmod(0o755)
    table = (folder / "table.yaml").read_text() + "metrics: {comet: a/model}\ntests: [second, first]\n"
    (tmp_path / "comet.yaml").write_text(table)
    path = runs_in(runs) | {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    cli("run", tmp_path / "comet.yaml", "--rows", "baseline", env=path)
    second = summary(runs, "baseline")["tests"]["second"]
    assert second["sentence_scores"] == {"comet:a/model": [0.0, 0.1, 0.2, 0.3, 0.4]}
    assert second["metrics"]["comet:a/model"] == 0.2 and second["metrics"]["yisi-1"] >= 0
    shown = call(runs, "report", tmp_path / "comet.yaml", "--rows", "baseline", "--test", "second").stdout
    assert "0.2000" in shown and "COMET (model): comet-score|model:a/model|version:unknown" in shown


def test_a_finished_run_gets_the_figures_of_its_heads_without_training(folder, finished, tmp_path):
    runs, table = tmp_path / "runs", folder / "table.yaml"
    shutil.copytree(folder / "runs", runs)
    before, run = summary(runs, "baseline"), directory(runs, "baseline")
    kept = {path.name: path.read_bytes() for path in run.glob("*.log")}
    call(runs, "run", table, "--rows", "baseline", "--heads")
    after = summary(runs, "baseline")
    heads, command = after.pop("heads"), after["commands"].pop()
    assert after == before and command.endswith("--save heads.json")
    assert {path.name: path.read_bytes() for path in run.glob("*.log") if path.name in kept} == kept
    checkpoint = run / "checkpoints/checkpoint_average.pt"
    said = call(runs, "heads", "--checkpoint", checkpoint, "--data", folder / "data", "--json").stdout
    expected = json.loads(said)["attentions"]
    assert list(heads) == list(expected) and all(heads[at] == pytest.approx(expected[at], abs=1e-5) for at in heads)
    assert "done before" in call(runs, "run", table, "--rows", "baseline", "--heads").stderr
    shown = call(runs, "report", table, "--rows", "baseline", "--heads").stdout
    mean = sum(heads[f"encoder:{layer}"]["constant share"] for layer in (1, 2)) / 2
    assert f"{mean:.3f}" in shown and "not measured" not in shown


def test_reports_of_runs_are_those_of_their_saved_copies(folder, finished, tmp_path):
    def report(*flags, runs="runs"):
        return call(folder / runs, "report", folder / "table.yaml", *flags)

    saved, of_table = tmp_path / "saved", ("--format", "markdown")
    shown = report(*of_table, "--save", saved).stdout
    again = report(*of_table, "--results", saved, runs="nothing")
    assert again.stdout == shown and "warning" not in again.stderr
    bleu = summary(folder / "runs", "baseline")["metrics"]["bleu"]
    assert f"{bleu:.2f} ±" in shown and "27.30" in shown and shown.count("not run") == 2
    (copy,) = saved.glob("*.json")
    assert copy.name == "baseline-seed1.json" and str(folder) not in copy.read_text()
    short = report(*of_table, "--no-notes").stdout
    assert shown.startswith(short.rstrip("\n")) and "sacreBLEU" not in short
    nothing = report(runs="nothing").stderr
    assert "warning: no row has a finished run; fairseq-diverse run " in nothing
    row = json.loads(report("--rows", "baseline", "--format", "json").stdout)["rows"][0]
    assert row["bleu"] == pytest.approx(bleu)


def test_translations_are_shown_beside_their_references(folder, run):
    command = ("report", folder / "table.yaml", "--rows", "baseline")
    shown = json.loads(call(folder / "runs", *command, "--format", "json", "--translations", 3).stdout)["translations"]
    text, lines = folder / "data/text", read_lines(run / "test.hyp")
    assert [sentence["number"] for sentence in shown] == [1 + number * len(lines) // 3 for number in range(3)]
    for sentence in shown:
        at = sentence["number"] - 1
        for key, language in (("source", "en"), ("reference", "de")):
            assert sentence[key] == read_lines(text / f"test.{language}")[at]
        assert sentence["translations"] == {"baseline": lines[at]}
    as_text = call(folder / "runs", *command, "--translations", 1).stdout
    assert as_text.endswith(
        f"\nsentence 1\n  source     {shown[0]['source']}\n  reference  {shown[0]['reference']}\n"
        f"  baseline   {lines[0]}\n"
    )
    said = call(folder / "runs", *command, "--translations", 2, "--format", "latex", fails=2).stderr
    assert "--translations: is for rows of translation, not for --results," in said


def test_a_page_has_links_to_runs_and_their_translations(folder, run):
    asked = ["report", folder / "table.yaml", "--format", "html", "--out", folder / "pages/a.html"]
    call(folder / "runs", *asked, "--translations", 4)
    page = (folder / "pages/a.html").read_text()
    (link,) = re.findall(r'<a href="([^#][^"]*)">seed 1</a>', page)
    assert (folder / "pages" / unquote(link)).resolve() == run.resolve()
    assert "4 of 6 sentences, evenly spread; seed 1." in page and page.count('<dd dir="auto">') == 3 * 4
    shown = [html.unescape(re.sub("<[^>]*>", "", text)) for text in re.findall(r'<dd dir="auto">(.*)</dd>', page)]
    translations = run / "test.hyp"
    translated, reference = (read_lines(path) for path in (translations, folder / "raw/first.de"))
    assert [text.replace("\u2423", "") for text in shown[2::3]] == [translated[i] for i in (0, 1, 3, 4)]
    assert shown[1::3] == [reference[i] for i in (0, 1, 3, 4)]
    assert re.findall("<figcaption>([^<]*)<", page) == ["Rows: means and seeds", "Training and validation loss"]
    assert "<code>--disagreement output</code>" in page and "--arch diverse_transformer_tiny" in page
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(side_by_side, "read_lines", lambda path: read_lines(path)[: 5 if path == translations else 6])
        call(folder / "runs", *asked)  # as where the data were prepared again
    assert f"<p>not shown: {translations}: 5 translations of the 6" in (folder / "pages/a.html").read_text()


def test_a_run_is_finished_where_its_summary_was_saved(folder, finished, tmp_path):
    """Also on a machine that has only the copies; copies of other data are refused."""
    copies, command = tmp_path / "copies", ["run", folder / "table.yaml", "--rows", "baseline", "--save"]
    call(folder / "runs", *command, copies)
    call(folder / "runs", "report", folder / "table.yaml", "--save", tmp_path / "by-report")
    (copy,) = copies.glob("*.json")
    for path in (copy, copies / "sentences/data.json"):
        assert path.read_bytes() == (tmp_path / "by-report" / path.relative_to(copies)).read_bytes()
    again = call(tmp_path / "elsewhere", *command, copies)
    assert "baseline seed 1: done before, " in again.stderr and not list((tmp_path / "elsewhere").glob("*baseline*"))
    asked = call(tmp_path / "elsewhere", *command, copies, "--seeds", "1,2", "--dry-run").stdout
    assert re.findall("^# (.*): new", asked, re.MULTILINE) == ["baseline seed 2"]
    (tmp_path / "more.yaml").write_text((folder / "table.yaml").read_text() + "tests: [second]\n")
    more = ["run", tmp_path / "more.yaml", *command[2:], copies, "--dry-run"]  # a test set that the copy lacks
    assert "# baseline seed 1: new" in call(tmp_path / "elsewhere", *more).stdout
    copy.write_text(json.dumps(json.loads(copy.read_text()) | {"data_hash": "0"}))
    for flags, message in ([], "copy of baseline seed 1 is of other data"), (["--slurm"], "--save: not with --slurm"):
        assert message in call(tmp_path / "elsewhere", *command, copies, *flags, fails=2).stderr


def test_equal_runs_are_shared_and_finished_steps_are_not_repeated(folder, run):
    other = folder / "other.yaml"
    other.write_text((folder / "table.yaml").read_text().replace("baseline:", "plain:"))
    before = (run / "summary.json").stat().st_mtime_ns
    again = call(folder / "runs", "run", other, "--rows", "plain").stderr
    assert "done before" in again and again.endswith(f"the results: fairseq-diverse report {other} --rows plain\n")
    assert (run / "summary.json").stat().st_mtime_ns == before


def test_an_interrupted_translation_is_repeated_and_the_training_is_not(folder, run):
    first = json.loads((run / "summary.json").read_text())
    state = json.loads((run / "state.json").read_text())
    del state["reference"], state["lenpen-20"]
    (run / "state.json").write_text(json.dumps(state))
    (run / "summary.json").unlink()
    (run / "reference.log").write_text("P-0\t-1.0\n")
    (run / "lenpen-20.log").unlink()
    logs = {name: (run / name).stat().st_mtime_ns for name in ("train.log", "average.log", "generate.log")}
    dry = call(folder / "runs", "run", folder / "table.yaml", "--rows", "baseline", "--dry-run", "--commands")
    assert "resumes with lenpen-20" in dry.stdout and '--lenpen "${LENPEN:?' in dry.stdout
    call(folder / "runs", "run", folder / "table.yaml", "--rows", "baseline")
    assert {name: (run / name).stat().st_mtime_ns for name in logs} == logs
    assert json.loads((run / "summary.json").read_text()) == first

    state = json.loads((run / "state.json").read_text())
    (run / "state.json").write_text(json.dumps({key: value for key, value in state.items() if key != "reference"}))
    (run / "summary.json").unlink()
    cli("run", folder / "table.yaml", "--rows", "baseline", env=runs_in(folder / "runs") | {"MALLOC_ARENA_MAX": "1"})
    variables = [start["machine"]["variables"] for start in summary(folder / "runs", "baseline")["starts"]]
    assert ["MALLOC_ARENA_MAX" in of_start for of_start in variables] == [False, True]
    (run / "summary.json").write_text(json.dumps(first))
    (run / "state.json").write_text(json.dumps(state))


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)], ids=["kill -9", "Ctrl-C"]
)
def test_killed_in_training_and_started_again_it_ends_like_the_uninterrupted(folder, finished, how):
    runs = folder / f"runs-{how.name}"
    same = "--set=generate.lenpen=1"  # nothing here depends on it
    command = [*COMMAND, "run", str(folder / "table.yaml"), "--rows", "baseline", same]
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=runs_in(runs))
    deadline = time.monotonic() + 300
    while not (logs := list(runs.glob("*/seed1/train.log"))) or max(losses(logs[0]), default=0) < 16:
        assert started.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    started.send_signal(how)
    _, shown = started.communicate(timeout=60)
    assert "Traceback" not in shown and started.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL)
    run = directory(runs, "baseline")
    assert "train" not in json.loads((run / "state.json").read_text())
    size = (run / "train.log").stat().st_size
    again = call(runs, "run", folder / "table.yaml", "--rows", "baseline", same)
    assert f"baseline seed 1: {run}, resumes with train\n" in again.stderr
    resumed = (run / "train.log").read_text()[size:]
    assert "Loaded checkpoint" in resumed and '"num_updates": "1"' not in resumed  # not from the start
    whole = directory(folder / "runs", "baseline")
    assert losses(run / "train.log") == losses(whole / "train.log")
    expected, got = (load_checkpoint(path / "checkpoints/checkpoint_average.pt")["model"] for path in (whole, run))
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    assert summary(runs, "baseline")["test_nll"] == summary(folder / "runs", "baseline")["test_nll"]


def scalars(folder: Path) -> dict[str, list[int]]:
    """The updates at which each value was logged, in the files of TensorBoard in a folder."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, list[int]] = {}
    for path in folder.glob("events.*"):
        rest = path.read_bytes()
        while rest:  # length, its checksum, an event, its checksum
            (length,) = struct.unpack("<Q", rest[:8])
            event, rest = Event.FromString(rest[12 : 12 + length]), rest[16 + length :]
            for value in event.summary.value:
                found.setdefault(value.tag, []).append(event.step)
    return found


SHORT = [*["--rows", "disagreement", "--set", "max-update=4", "--set", "generate.lenpen=1", "--set", "average.last=0"]]


def test_tensorboard_gets_what_is_logged_and_the_run_stays_the_same(folder, tmp_path):
    board, table = tmp_path / "board", folder / "table.yaml"
    call(tmp_path, "run", table, *SHORT, "--tensorboard", board)
    run = directory(tmp_path, "disagreement")
    logged = scalars(board / run.parent.name / "seed1" / "train_inner")
    for name in ("loss", "disagreement", "disagreement_output"):
        assert logged[name][:3] == [1, 2, 3]  # a fork may end before the last is written
    assert "disagreement_output" in scalars(board / run.parent.name / "seed1" / "valid")
    call(tmp_path, "run", table, *SHORT)
    assert [*tmp_path.glob("data-size-disagreement-*/seed*")] == [run]
    assert summary(tmp_path, "disagreement")["updates"] == 4


@pytest.mark.slow
def test_weights_and_biases_gets_what_is_logged(folder, tmp_path):
    offline = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}
    words = [*COMMAND, "run", folder / "table.yaml", *SHORT, "--wandb", "a project"]
    done = subprocess.run(words, capture_output=True, text=True, env=runs_in(tmp_path) | offline)
    assert done.returncode == 0, done.stderr[-3000:]
    run = directory(tmp_path, "disagreement")
    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")  # one run, also with its validations
    assert file.name == f"run-{run.parent.name.rpartition('-')[2]}-seed1.wandb"
    for text in (b"train_inner/disagreement_output", b"valid/disagreement", b"disagreement seed 1", b"a project"):
        assert text in file.read_bytes()


def test_dry_run_prints_commands_that_run(folder, finished):
    asked = ["run", folder / "table.yaml", "--seeds", "1,2", "--rows", "baseline", "--dry-run"]
    short, dry = (call(folder / "runs", *asked, *more) for more in ([], ["--commands"]))
    overview = dry.stdout.splitlines()[:3]
    assert overview[0] == f"to do: 1 of 2 runs (rows: 1), {UPDATES} updates; data: data"
    assert overview[1].startswith("tokens an update, size size: ")
    assert re.fullmatch(r"hours of training, one run at a time, by the speed of finished runs: \d+\.\d", overview[2])
    assert len(short.stdout.splitlines()) == 6 and "fairseq_cli" not in short.stdout
    assert not list((folder / "runs").glob("*/seed2"))
    assert "# baseline seed 1: done" in dry.stdout and "# baseline seed 2: new" in dry.stdout
    lines = [line for line in dry.stdout.splitlines() if "seed2" in line and "fairseq_cli.train" in line]
    assert f"--max-update {UPDATES}" in lines[0]
    command = lines[0].replace(f"--max-update {UPDATES}", "--max-update 1")
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=runs_in(folder / "runs"))
    assert done.returncode == 0 and "done training" in done.stdout + done.stderr
