"""Classification: logical inference and probing, by the accuracy on the test set."""

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from fairseq_diverse.data.plain import PLAIN_DATA
from fairseq_diverse.data.probing import GROUPS, TASKS, group_means
from fairseq_diverse.experiments.flags import own_command
from fairseq_diverse.experiments.kinds.kind import Kind, Measured, State, Summary, register_kind
from fairseq_diverse.experiments.kinds.lines import SMALLEST, Compared, Line, Measure, TaskLine, TaskTable, grouped
from fairseq_diverse.experiments.run import DataSet, Row, Run
from fairseq_diverse.metrics.accuracy import Accuracy, draw_accuracy, pooled
from fairseq_diverse.metrics.dunnett import LEVEL, holm
from fairseq_diverse.metrics.seeds import Difference, Spread, corrected_p_values
from fairseq_diverse.support.files import read_json
from fairseq_diverse.support.pictures import Figure

FILE = "accuracy.json"
OPERATORS = 6  # at most in training, by default
ONE_ENCODER = "one encoder"


class Part(msgspec.Struct):
    """``classes``: how many examples each class has; ``hits``: 1 or 0 for each example."""

    classes: list[Annotated[int, msgspec.Meta(ge=0)]]
    hits: Annotated[str, msgspec.Meta(pattern="^[01]+$")]

    def __post_init__(self) -> None:
        if sum(self.classes) != len(self.hits):
            raise ValueError("classes")


class Classified(Measured):
    """By number of operators or by probing task."""

    accuracy: dict[str, Part]


@register_kind
class Classification(Kind):
    """Rows of the tasks of logical inference and of probing."""

    name = "classification"
    tasks = ("logical_inference", "sentence_probing")
    generates = False
    evaluation = ("accuracy",)
    Measured = Classified
    published = TASKS
    opening = "accuracy in percent; ±: standard deviation over seeds"
    draws_rows = False

    def find_data(self, name: str, folders: Sequence[Path]) -> DataSet | None:
        for folder, plain in itertools.product(folders, PLAIN_DATA.values()):
            present = [file for file in plain.files if (folder / file).is_file()]
            if present and len(present) < len(plain.files):
                missing = ", ".join(file for file in plain.files if file not in present)
                raise ValueError(f"data set {name}: {folder} lacks {missing}, {plain.origin}")
            if present:
                content = b"".join((folder / file).read_bytes() for file in plain.files)
                return DataSet(folder.name, folder, "", "", hashlib.sha256(content).hexdigest())
        if name not in PLAIN_DATA:
            return None
        how = f"(downloads {len(PLAIN_DATA[name].files)} files), or give their folder as --data"
        return DataSet(name, folders[0], "", "", None, preparation=f"--archives DIR --out {folders[0]} {how}")

    def steps(self, run: Run, state: State) -> dict[str, list[str]]:
        files = [f"model={run.checkpoint}", "--data", str(run.data.path), "--save", str(run.directory / FILE)]
        return {"accuracy": own_command("accuracy", run, *files)}

    def summarize(self, run: Run, state: State) -> Summary:
        """``accuracy``, by number of operators or by probing task: see `Part`."""
        return {"accuracy": (read_json(run.directory / FILE) or {})["model"]}

    def outcome(self, row: Row, summary: Summary) -> str:
        return f"accuracy {_pooled(summary).share:.2f}"

    def measures(self, rows: Sequence[Row]) -> Sequence[Measure]:
        """Accuracy with as many operators as in training, with more, and of all, and the share of the largest class."""

        def hits(run: Summary) -> list[bool]:
            return [hit == "1" for hit in _pooled(run).hits]

        return (
            Measure("seen", "as in training", _share(lambda length, trained: length <= trained), compared=False),
            Measure("longer", "longer", _share(lambda length, trained: length > trained), compared=False),
            Measure("all", "all", lambda run: _pooled(run).share, unit="points", examples=hits),
            Measure("largest", "largest class", lambda run: _pooled(run).largest, deviation=False, compared=False),
        )

    def facts(self, row: Row, runs: Sequence[Summary]) -> dict[str, Any]:
        """By number of operators or probe: accuracies, means over seeds, and shares of the largest class."""
        parts = [_parts(run) for run in runs]
        shares = {name: Spread.over([run_parts[name].share for run_parts in parts]).mean for name in parts[0]}
        return {"parts": shares, "largest_parts": {name: part.largest for name, part in parts[0].items()}}

    def tables(self, lines: Sequence[Line]) -> list[tuple[str, list[list[str]]]]:
        """Accuracy by number of operators, a column for each row, with the share of the largest class."""
        if not (done := _logic_lines(lines)):
            return []
        table = [["operators", "largest class", *(line.name for line in done)]]
        for length, largest in done[0].facts["largest_parts"].items():
            shares = [largest, *(line.facts["parts"][length] for line in done)]
            table.append([length, *(f"{share:.2f}" for share in shares)])
        return [("Accuracy by number of operators", table)]

    def pictures(self, lines: Sequence[Line]) -> dict[str, Figure]:
        """Accuracy of every finished row by number of operators, the seeds together."""
        if not (done := _logic_lines(lines)):
            return {}
        trained = max(int(line.row.train.get("train-operators", OPERATORS)) for line in lines)
        lengths = sorted(map(int, _parts(done[0].runs[0])))
        row_parts = [(line.name, list(map(_parts, line.runs))) for line in done]
        accuracies = {row: [pooled(parts[str(n)] for parts in runs) for n in lengths] for row, runs in row_parts}
        return {"Accuracy by number of operators": draw_accuracy(lengths, accuracies, trained)}

    def judge(self, row: Row, baseline: Row, difference: Difference) -> Difference:
        """Seeds of a classifier on one trained encoder say nothing about the system."""
        one_encoder = "from-checkpoint" in row.train.keys() | baseline.train.keys()
        return replace(difference, test=None, untested=ONE_ENCODER) if one_encoder else difference

    def task_table(self, rows: Sequence[Row]) -> TaskTable | None:
        return TaskTable("probe", "largest class") if rows and all("probe" in row.train for row in rows) else None

    def task_lines(self, compared: Compared) -> list[TaskLine]:
        """Of probes, and means over groups of them, of every system that has them all (Li et al., 2021, Table 7)."""
        lines = []
        for line in compared.lines:
            probe = str(line.row.train["probe"])
            system, published = line.name.replace(f"-probe={probe}", ""), line.row.published.get(probe)
            cell = TaskLine(**vars(line), system=system, task=probe, score=line.scores.get("all"))
            cell.facts = cell.facts | {"probe": probe, "system": system, "published": published}
            if line.seeds:
                cell.guessing = _pooled(line.runs[0]).largest
            if line.differences:
                cell.p = line.differences["all"].holm_p
                cell.facts["one_encoder"] = line.differences["all"].untested == ONE_ENCODER
            lines.append(cell)
        lines += _group_means(lines)
        for cell in lines:
            cell.published = "" if cell.facts["published"] is None else f"{cell.facts['published']:.2f}"
        return lines

    def notes(self, lines: Sequence[Any]) -> list[str]:
        """How probes are judged: over seeds with stars, over examples without; relative changes of group means."""
        if not (judged := [line for line in lines if line.differences and isinstance(line, TaskLine)]):
            return []
        differences = [line.differences["all"] for line in judged]
        tests = [difference.test for difference in differences if difference.holm_of and difference.test]
        baselines = {line.system: line.baseline.replace(f"-probe={line.task}", "") for line in judged}
        text = []
        if tests:
            corrected = corrected_p_values([difference for difference in differences if difference.holm_of])
            how = f"t-tests with the deviation of all systems in each probe, then Holm's correction over {corrected}"
            against = ", ".join(sorted({*baselines.values()}))
            text.append(f"against {against}, over seeds: {how}; *: p < 0.05, **: p < 0.01")
            ends = (f"{end(test.smallest for test in tests):.2f}" for end in (min, max))
            text.append(f"{SMALLEST}, by probe, each tested alone: {' to '.join(dict.fromkeys(ends))} points")
        else:
            one_encoder = any(difference.untested == ONE_ENCODER for difference in differences)
            why = "each encoder is one training, seeds are the classifier's: no system is tested"
            text.append(f"{why if one_encoder else 'one seed: nothing is tested over seeds'}, nothing has a star")
        means = {(line.task, line.system): line.score.mean for line in lines if line.task in GROUPS and line.score}
        pairs = [(group, system, baselines.get(system)) for group, system in means]
        changes = [f"{g} {s} {100 * (means[g, s] / means[g, b] - 1):+.2f}%" for g, s, b in pairs if (g, b) in means]
        text += [f"group means relative to the baseline's: {', '.join(changes)}"] if changes else []
        adjusted = zip(judged, holm([line.over_examples["all"].p for line in judged]), strict=True)
        beyond = [f"{line.task} {line.system}" for line, p in adjusted if p < LEVEL]
        over = f"over test examples (paired t-test, Holm's correction over {len(judged)} p-values; no stars), p < 0.05"
        return [*text, f"{over}: {', '.join(beyond) or 'none'}"]


def _logic_lines(lines: Sequence[Line]) -> list[Line]:
    """The finished rows of logical inference, which a table may have beside probes."""
    return [line for line in lines if line.seeds and "probe" not in line.row.train]


def _parts(run: Summary) -> dict[str, Accuracy]:
    return {name: Accuracy(part["classes"], part["hits"]) for name, part in run["accuracy"].items()}


def _pooled(run: Summary) -> Accuracy:
    return pooled(_parts(run).values())


def _share(chosen: Callable[[int, int], bool]) -> Callable[[Summary], float | None]:
    """The accuracy of a run on the tests whose number of operators is chosen, given that of training."""

    def share(run: Summary) -> float | None:
        lengths = {int(name): part for name, part in _parts(run).items() if name.isdigit()}
        train = run["row"]["train"] if lengths else {}
        parts = [p for length, p in lengths.items() if chosen(length, int(train.get("train-operators", OPERATORS)))]
        return pooled(parts).share if parts else None

    return share


def _group_means(lines: Sequence[TaskLine]) -> list[TaskLine]:
    means = []
    systems = grouped((line.system, line) for line in lines)
    for (group, tasks), (system, cells) in itertools.product(GROUPS.items(), systems.items()):
        if not set(tasks) <= {cell.task for cell in cells}:
            continue
        published = {cell.task: figure for cell in cells if (figure := cell.facts["published"]) is not None}
        score = group_means({cell.task: cell.score.mean for cell in cells if cell.score}).get(group)
        row, seeds = replace(cells[0].row, name=f"{system}, {group}"), min(c.seeds for c in cells if c.task in tasks)
        mean = None if score is None else Spread(score, None)
        line = TaskLine(row=row, seeds=seeds, system=system, task=group, score=mean)
        line.facts = {"probe": group, "system": system, "published": group_means(published).get(group), "all": score}
        means.append(line)
    return means
