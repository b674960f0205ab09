"""GLUE: fine-tuning on one of its tasks, scored on the dev sets; also as text, where a T5 writes words for labels."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from fairseq_diverse.experiments.flags import Flags, own_command
from fairseq_diverse.experiments.kinds.kind import Kind, Measured, State, Summary, register_kind
from fairseq_diverse.experiments.kinds.lines import Compared, Line, Measure, TaskLine, TaskTable, grouped
from fairseq_diverse.experiments.run import DataSet, Row, Run
from fairseq_diverse.host.programs import model_name
from fairseq_diverse.metrics.glue import HEADINGS
from fairseq_diverse.metrics.seeds import Difference, Spread, corrected_p_values, over_seeds, p_text
from fairseq_diverse.models.systems import BERT_ARCHITECTURES
from fairseq_diverse.preparation import glue, pipeline
from fairseq_diverse.support.files import read_json
from fairseq_diverse.support.paths import folders_of_data

FILE = "glue.json"
AVERAGE = "average"
HIDDEN = "\0"  # before the name of a system that is not shown: no row's name has it
OTHER_START = "other start"
UNTESTED = {
    "": "one seed, or no spread over seeds, so that nothing is tested",
    OTHER_START: "starts from another checkpoint than its baseline; seeds are of fine-tuning only, nothing is tested",
}


class DevSet(msgspec.Struct):
    """Metrics are times 100; ``majority`` are those of always predicting the most frequent label; ``no_label`` is how
    many answers of a model that writes text are none, and count as wrong."""

    examples: int
    metrics: dict[str, float]
    majority: dict[str, float] = {}
    no_label: int = 0


class Tuned(Measured):
    """By dev set."""

    glue: dict[str, DevSet]

    def __post_init__(self) -> None:
        task = next((task for task in glue.TASKS.values() if {*task.named("valid")} == {*self.glue}), None)
        if not task or any({*part.metrics} != {*task.metrics} for part in self.glue.values()):
            raise ValueError("glue")


@register_kind
class Glue(Kind):
    """Rows of fairseq's task ``sentence_prediction``, on prepared tasks of GLUE."""

    name = "glue"
    tasks = ("sentence_prediction",)
    generates = False
    keys = frozenset({"pretrained"})
    evaluation = ("glue",)
    Measured = Tuned
    published = (*glue.TASKS, AVERAGE)
    opening = "scores on GLUE's dev sets, times 100; ±: standard deviation over seeds"
    draws_rows = False
    as_text = False

    def examples(self, data: str) -> int | None:
        """Of the prepared data, else as GLUE has them."""
        for folder in folders_of_data(data):
            if (folder / pipeline.FILE).is_file() and pipeline.glue_task(record := pipeline.read_record(folder)):
                return int(pipeline.entry(folder, record, "splits", "train", "kept"))
        task = glue.split_name(Path(data).name)
        return task[0].examples if task else None

    def find_data(self, name: str, folders: Sequence[Path]) -> DataSet | None:
        if not (task := glue.split_name(name)):
            return None
        subwords = {glue.BERT: " --wordpiece VOCAB", glue.T5: " --sentencepiece T5"}.get(task[1], "")
        how = f"--raw DIR{subwords} --out {folders[0]} (DIR has GLUE's files, {glue.ORIGIN})"
        languages = ("input", "label") if glue.is_text(name) else ("en", "")
        return DataSet(name, folders[0], *languages, None, glue=task[0].name, preparation=how)

    def check_data(self, row: Row, data: DataSet, first: DataSet | None) -> None:
        where = f"row {row.name}: data set {row.data}"
        if not data.glue or bool(data.target) != self.as_text:
            name = f"{glue.PREFIX}TASK{glue.AS_TEXT if self.as_text else ''}"
            raise ValueError(f"{where}: no task of GLUE{' as text' * self.as_text} (`fairseq-diverse prepare {name}`)")
        words = data.path / ("dict.input.txt" if self.as_text else "input0/dict.txt")
        if row.first and first and words.read_bytes() != (first.path / "dict.txt").read_bytes():
            wrong = f"another dictionary than {row.first.data}, on which row {row.first.name} pre-trains"
            named = f"{glue.PREFIX}{data.glue}{glue.AS_TEXT * self.as_text}@{Path(row.first.data).name}"
            raise ValueError(f"{where}: has {wrong}; prepare and name {named}")

    def training(self, run: Run) -> Flags:
        """<s> and </s> are where fairseq's RoBERTa has them; between two sentences BERT has one </s>, RoBERTa two."""
        if not run.data.glue:
            return {}
        task = glue.TASKS[run.data.glue]
        classes: Flags = {"num-classes": str(len(task.labels) or 1), "regression-target": task.regression}
        arch = str(run.row.train.get("arch"))
        is_plugin_bert = bool(run.row.user_dir) and model_name(arch) == BERT_ARCHITECTURES[0]  # which imports fairseq
        separator: Flags = {} if is_plugin_bert or arch in BERT_ARCHITECTURES else {"separator-token": "2"}
        return classes | {"init-token": "0"} | separator

    def steps(self, run: Run, state: State) -> dict[str, list[str]]:
        files = ["--checkpoint", str(run.checkpoint), "--data", str(run.data.path)]
        out = ["--save", str(run.directory / FILE), "--predictions", str(run.directory / "predictions")]
        return {"glue": own_command("glue", run, *files, *out)}

    def summarize(self, run: Run, state: State) -> Summary:
        """``glue``: by dev set, see `DevSet`; a validation loss does not choose between its models."""
        return {"valid_nll": None, "glue": read_json(run.directory / FILE) or {}}

    def outcome(self, row: Row, summary: Summary) -> str:
        figures = ((name, *figure) for name, part in summary["glue"].items() for figure in part["metrics"].items())
        return "; ".join(f"{name} {HEADINGS[metric]} {score:.2f}" for name, metric, score in figures)

    def loss(self, summary: Summary) -> float | None:
        return -main_score(summary)

    def measures(self, rows: Sequence[Row]) -> Sequence[Measure]:
        return (Measure("score", "score", main_score),)

    def judge(self, row: Row, baseline: Row, difference: Difference) -> Difference:
        """The difference alone where row and baseline start from different given checkpoints."""
        from_checkpoint = any(isinstance(start, str) for start in (row.pretrained, baseline.pretrained))
        other_start = from_checkpoint and row.pretrained != baseline.pretrained
        return replace(difference, test=None, untested=OTHER_START) if other_start else difference

    def task_table(self, rows: Sequence[Row]) -> TaskTable | None:
        return TaskTable("dev set", "most frequent label", "parameters")

    def task_lines(self, compared: Compared) -> list[TaskLine]:
        """For each figure of a row's task a line, the first of which is compared with the baseline's, and for each
        system that has all tasks its average. Raises ValueError: a system has two data sets of one task."""
        rows = [line.row for line in compared.lines]
        tasks = {row.name: _task(row, compared.summaries[row.name]) for row in rows}
        systems, cells = _systems(rows, tasks), []
        first: dict[tuple[str, str], Row] = {}
        for row in rows:
            if (first_row := first.setdefault((systems[row.name], tasks[row.name]), row)) is not row:
                both = f"two data sets of {tasks[row.name]}, {first_row.data} and {row.data}"
                raise ValueError(f"{systems[row.name]}: {both}; choose one with --rows")
        for line in compared.lines:
            published = str(line.row.published.get(tasks[line.name], "")).split("/")
            for number, (name, metric) in enumerate(_figures(tasks[line.name])):
                cell = _cell(line, systems, name, metric, main=number == 0)
                cell.published = published[number] if number < len(published) else ""
                cell.facts |= {"task": tasks[line.name], "published": cell.published}
                cell.facts["published_parameters"] = str(line.row.published.get("parameters", ""))
                in_grid = _without_data(line.row) != line.row.family
                if line.seeds and not number and in_grid and systems[line.name] == line.row.family:
                    cell.facts["point"] = line.name  # of a grid of more than data, the only one for its task
                cells.append(cell)
        cells += self._averages(compared, tasks, systems)
        for cell in cells:
            if any(difference.untested == OTHER_START for difference in cell.differences.values()):
                cell.facts["other_start"] = True
        return cells

    def _averages(self, compared: Compared, tasks: dict[str, str], systems: dict[str, str]) -> list[TaskLine]:
        """Of every system that has all tasks of the table, the mean of their first figures, by seeds that all have."""
        hidden = {row.name: _task(row, compared.summaries[row.name]) for row in compared.hidden}
        hidden_rows = [row for row in compared.hidden if hidden[row.name] in tasks.values()]
        tasks = hidden | tasks
        systems = {name: f"{HIDDEN}{system}" for name, system in _systems(hidden_rows, tasks).items()} | systems
        rows = grouped((systems[row.name], row) for row in (*(line.row for line in compared.lines), *hidden_rows))
        every = {tasks[line.name] for line in compared.lines}
        rows = {name: r for name, r in rows.items() if len(r) == len(every) == len({tasks[x.name] for x in r}) > 1}
        scores, baselines = {}, {}
        for name, system_rows in rows.items():
            by_task = [{run["seed"]: main_score(run) for run in compared.summaries[row.name]} for row in system_rows]
            shared = sorted(set.intersection(*map(set, by_task)))
            scores[name] = {seed: sum(by_seed[seed] for by_seed in by_task) / len(by_task) for seed in shared}
            baseline = systems.get(system_rows[0].baseline, name)
            baselines[name] = baseline if baseline in rows else name
        differences = over_seeds(scores, baselines)
        lines = []
        for name in (name for name in rows if not name.startswith(HIDDEN)):
            row = replace(rows[name][0], name=name)
            published = row.published.get(AVERAGE, "") if every == set(glue.TASKS) else ""  # of all tasks
            line = TaskLine(row=row, seeds=len(scores[name]), system=name, task=AVERAGE, published=str(published))
            line.facts = {"system": name, "task": AVERAGE, "figure": AVERAGE, "published": published}
            if line.seeds:
                line.score = Spread.over([*scores[name].values()])
                line.scores = {"score": line.score}
            if name in differences:
                line.baseline = baselines[name]
                difference = self.judge(row, rows[line.baseline][0], differences[name])
                line.differences, line.p = {"score": difference}, difference.p
                line.facts |= {} if line.p is None else {"holm_p": line.p}
            lines.append(line)
        return lines

    def notes(self, lines: Sequence[Any]) -> list[str]:
        """How systems are tested and all differences that are, why others are not, and what else figures depend on."""
        judged = [line for line in lines if line.differences]
        text, tested = [], [line for line in judged if line.p is not None]
        if tested:
            on_tasks = [line.differences["score"] for line in tested if line.task != AVERAGE]
            how = "t-tests with the deviation of all systems in each task, by its first figure, then Holm's correction"
            how += f" over {corrected_p_values(on_tasks)}; of the average Dunnett's test; *: p < 0.05, **: p < 0.01"
            text.append(f"against {', '.join(dict.fromkeys(line.baseline for line in tested))}, over seeds: {how}")
            shown = []
            for line in tested:
                difference = line.differences["score"]
                p = difference.p if line.task == AVERAGE else difference.test and difference.test.single_p
                shown.append(f"{line.system} {line.task} {difference.delta:+.2f} ({p_text(p)})")
            text.append(f"differences, p before Holm's correction: {'; '.join(shown)}")
        whys = [(line.differences["score"].untested, line.system) for line in judged]
        untested = grouped((why if why in UNTESTED else "", system) for why, system in whys if why)
        text += [f"{', '.join(dict.fromkeys(untested[why]))}: {UNTESTED[why]}" for why in UNTESTED if why in untested]
        no_label = grouped((line.system, line.facts["no_label"]) for line in lines if "no_label" in line.facts)
        if named := [f"{system}: {', '.join(dict.fromkeys(texts))}" for system, texts in no_label.items()]:
            text.append(f"answers that are no label, which count as wrong, mean over seeds: {'; '.join(named)}")
        if points := [line.facts["point"] for line in lines if "point" in line.facts]:
            text.append(f"the best points of the grids, chosen by the dev sets shown here: {', '.join(points)}")
        return text


def _cell(line: Line, systems: Mapping[str, str], name: str, metric: str, main: bool) -> TaskLine:
    """One figure of a row's task; the ``main`` one is compared with the baseline's."""
    figure, system = f"{name} {HEADINGS[metric]}", systems[line.name]
    cell = TaskLine(row=line.row, seeds=line.seeds, runs=line.runs, system=system, task=figure)
    cell.facts = {"system": system, "figure": figure}
    if not line.seeds:
        return cell
    cell.score = Spread.over([run["glue"][name]["metrics"][metric] for run in line.runs])
    cell.scores = {"score": cell.score}
    cell.guessing = line.runs[0]["glue"][name].get("majority", {}).get(metric)
    cell.facts |= {"majority": cell.guessing, "parameters": line.facts["parameters"]}
    if any(no_label := [run["glue"][name].get("no_label", 0) for run in line.runs]):
        examples = line.runs[0]["glue"][name]["examples"]
        cell.facts["no_label"] = f"{name} {sum(no_label) / len(no_label):.4g} of {examples}"
    if main:
        cell.facts["ended_early"] = line.facts["ended_early"]
    if main and line.differences:
        cell.baseline, cell.baseline_runs = systems[line.baseline], line.baseline_runs
        cell.differences, cell.p = line.differences, line.differences["score"].holm_p
    return cell


def main_score(summary: Summary) -> float:
    """The figure of a run that counts in GLUE's average: the first metric of the first dev set."""
    return next(iter(next(iter(summary["glue"].values()))["metrics"].values()))


def _task(row: Row, summaries: Sequence[Summary]) -> str:
    """The task of a row, by what was scored, else by the name of its data."""
    if summaries:
        name = next(iter(summaries[0]["glue"]))
        return next(task.name for task in glue.TASKS.values() if name in task.named("valid"))
    named = glue.split_name(row.data.rpartition("/")[2])
    return named[0].name if named else row.data


def _figures(task: str) -> list[tuple[str, str]]:
    """Dev sets and metrics of a task, the one that counts in the average first."""
    known = glue.TASKS.get(task)
    return [(name, metric) for name in known.named("valid") for metric in known.metrics] if known else []


def _systems(rows: Sequence[Row], tasks: Mapping[str, str]) -> dict[str, str]:
    """What the system of each row is called in all tasks: where there is one point of each grid for a task, as --best
    leaves, the grid's row."""
    one_point = len({(row.family, tasks[row.name]) for row in rows}) == len(rows)
    return {row.name: row.family if one_point else _without_data(row) for row in rows}


def _without_data(row: Row) -> str:
    """The row's name without the value of a grid of data, which may be a path as the file has it."""
    return re.sub(f"-data=.*?{re.escape(Path(row.data).name)}(?=-[^-=]+=|$)", "", row.name, count=1)


@register_kind
class GlueAsText(Glue):
    """Rows of the task ``text_to_text``, on prepared tasks of GLUE as text (``glue-CoLA.text``)."""

    name, within = "glue-text", "glue"
    tasks = ("text_to_text",)
    as_text = True

    def languages(self, data: DataSet) -> tuple[str, str]:
        return data.source, data.target

    def training(self, run: Run) -> Flags:
        """None: the words of the labels are in the data."""
        return {}
