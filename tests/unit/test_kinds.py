"""Kinds of experiments: the page's example, written into a folder, is a kind like those of the package."""

import json
import re
from pathlib import Path

import pytest
import torch

from fairseq_diverse.cli import main
from fairseq_diverse.experiments.kinds.kind import KINDS, Kind, kind_of, register_kind
from fairseq_diverse.experiments.runs import execution
from fairseq_diverse.experiments.runs.find import find_runs
from fairseq_diverse.experiments.runs.folder import read_summary, stage
from fairseq_diverse.experiments.tables.load import load_table
from tests.refusals import refused
from tests.unit.test_records import RECORD

MODELS = {"text/bpe.codes": "#version: 0.2\na b</w>\n", "text/bpe.vocab.en": "ab 5\n", "text/truecase.en": "ab (5/5)\n"}
PAGE = Path(__file__).parents[2] / "docs/adding-a-kind.md"


@pytest.fixture
def own_table(tmp_path, table):
    """A table with the kind of the page in its folder."""
    (tmp_path / "copying").mkdir()
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "copying/__init__.py").write_text(code)
    yield table(("flags: {", "user-dir: copying\nflags: {task: copying, "))
    KINDS.pop("copying", None)


def test_the_kind_of_the_page(own_table, prepared, monkeypatch, capsys, output_of, error_of):
    """Its table is planned, a run of it is carried out with substitutes for fairseq's programs, and shown."""
    texts = ["ein Satz", "noch ein Satz", "der dritte Satz", "Ende"]
    copies = [*texts[:3], "Anfang"]
    (prepared / "text").mkdir()
    for name, content in {"preprocess.json": json.dumps(RECORD), **MODELS}.items():
        (prepared / name).write_text(content)
    (prepared / "text/test.de").write_text("".join(f"{text}\n" for text in texts))
    shown = output_of("run", own_table, "--rows", "second", "--dry-run", "--commands")
    assert "\n# second seed 1: new, " in shown and "fairseq_cli.generate" in shown
    assert shown.count("--task copying") == 2
    row = load_table(own_table).rows["second"]
    (run,) = find_runs([row], [1], cpu=True)

    def spawn(run, step, command, environment, lock):
        log = "".join(f"H-{n}\t-0.1\t{text}\nD-{n}\t-0.1\t{text}\n" for n, text in enumerate(copies))
        if step == "train":
            run.checkpoints.mkdir(parents=True)
            state = {"model": {"w": torch.zeros(1)}, "optimizer_history": [{"num_updates": row.max_update}]}
            torch.save(state, run.checkpoints / "checkpoint_last.pt")
        (run.directory / f"{step}.log").write_text(log if step == "generate" else "")
        yield execution.Progress(step)
        return 2**20

    monkeypatch.setattr(execution, "_spawn", spawn)
    list(execution.execute(run, {}))
    summary = read_summary(run.directory / "summary.json", "")
    assert (summary["kind"], summary["exact"], summary["sentences"]) == ("copying", 75, 4) and stage(run) == "done"
    assert summary["row"]["train"]["task"] == "copying" and summary["peak_memory"]["generate"] == 2**20
    assert main(["run", own_table, "--rows", "second"]) == 0
    assert "second seed 1: exact match 75.00 (done before" in capsys.readouterr().err
    lines = {line["row"]: line for line in json.loads(output_of("report", own_table, "--format", "json"))["rows"]}
    assert lines["second"]["exact"] == 75 and lines["first"]["seeds"] == 0
    (run.directory / "summary.json").write_text(json.dumps(summary | {"exact": "all"}))
    assert stage(run).endswith(
        "summary.json: not a summary of a run (exact: a number expected, not all); delete this file and start the run "
        "again, which keeps what its other files hold"
    )
    assert summary["row"]["generate"] == {"beam": "5"}
    (run.directory / "summary.json").unlink()
    monkeypatch.setattr(KINDS["copying"], "summarize", lambda run, state: {"exakt": 75.0})
    refused("kind copying: summarize and its type Measured differ: no `exact`", list, execution.execute(run, {}))
    assert not (run.directory / "summary.json").exists()
    monkeypatch.setattr(KINDS["copying"], "tasks", ("copy",))
    assert "kind copying: tasks: copy: not a task of fairseq; correct it or" in error_of("run", own_table, "--dry-run")


def test_names_and_tasks_are_of_one_kind():
    for attributes, taken in (({"name": "glue"}, "glue"), ({"name": "new", "tasks": ("masked_lm",)}, "masked_lm")):
        refused(f"New: {taken}: kind (glue|pretraining) has this", register_kind, type("New", (Kind,), attributes))
    assert "new" not in KINDS


@pytest.mark.parametrize(
    ("task", "kind"),
    [(None, "translation"), ("translation_multi_simple_epoch", "translation"), ("masked_lm", "pretraining")],
)
def test_the_task_of_a_row_decides_on_its_kind(task, kind, table):
    row = load_table(table(), settings=[f"task={task}"] if task else []).rows["first"]
    assert kind_of(row).name == kind
