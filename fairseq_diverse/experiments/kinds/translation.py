"""Translation: every test set is translated and scored, and the NLL of its references measured."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from fairseq_diverse.experiments import logs
from fairseq_diverse.experiments.flags import Flags, common, own_command, to_arguments, without_folders
from fairseq_diverse.experiments.inputs import trees_read_by
from fairseq_diverse.experiments.kinds.kind import DEFAULT_TASK, Kind, Measured, State, Summary, register_kind
from fairseq_diverse.experiments.kinds.lines import Line, Measure, grouped
from fairseq_diverse.experiments.records import ORDERS, bleu_statistics
from fairseq_diverse.experiments.run import TREES, DataSet, Row, Run
from fairseq_diverse.metrics import scores, significance
from fairseq_diverse.metrics.catalogue import Texts, find
from fairseq_diverse.preparation import pipeline
from fairseq_diverse.support.files import read_json, read_lines, write_text

ALWAYS = ("bleu", "chrf", "ter", "length_ratio")  # of the metrics


class Scored(msgspec.Struct, kw_only=True):
    """What is measured on a test set."""

    language: str
    metrics: dict[str, float | dict[str, str]]
    test_nll: list[float]
    bleu_counts: list[list[Annotated[int, msgspec.Meta(ge=0)]]]
    missing: dict[str, str] = {}
    sentence_scores: dict[str, list[float]] = {}
    data_hash: str | None = None

    def __post_init__(self) -> None:
        for name, value in self.metrics.items():
            if isinstance(value, dict) != (name == "signatures"):
                raise ValueError(f"metrics: {name}")
        if lacking := [name for name in (*ALWAYS, "signatures") if name not in self.metrics]:
            raise ValueError(f"metrics: no {lacking[0]}")
        if "bleu" not in self.metrics["signatures"]:  # type: ignore[operator]
            raise ValueError("metrics: signatures: no bleu")
        if len(self.bleu_counts) != len(self.test_nll) or any(len(counts) != 2 + ORDERS for counts in self.bleu_counts):
            raise ValueError("bleu_counts")


class Chosen(msgspec.Struct):
    lenpen: float
    valid_bleu: dict[str, float]


class Translated(Scored, Measured):
    """The first test set, the others, the length penalty that was chosen, and figures of heads."""

    tests: dict[str, Scored] = {}
    chosen: Chosen | None = None
    heads: dict[str, dict[str, float | None]] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        if lacking := [place for place, figures in self.heads.items() if figures.get("width") is None]:
            raise ValueError(f"heads: {lacking[0]}: no width")


@register_kind
class Translation(Kind):
    """Rows of fairseq's task of translation, of ``translation_with_syntax``, and of tasks that no kind names."""

    name = "translation"
    tasks = (DEFAULT_TASK, TREES)
    keys = frozenset({"metrics", "tests", "heads", "split"})
    losses = ("loss", "nll_loss")
    evaluation = ("generate",)
    Measured = Translated
    published = ("bleu", "ter", "wer-li2022", "meteor", "rouge-l", "cider", "yisi")
    items = "sentences"
    speeds = True
    views = frozenset({"test", "verdict", "by", "heads", "translations"})

    def own_flags(self, row: Row) -> dict[str, set[str]]:
        generate = {"data", *common("", "", False), *generation(row, Path(), "", False)}
        return super().own_flags(row) | {"generate": generate}

    def check_data(self, row: Row, data: DataSet, first: DataSet | None) -> None:
        """Also where the table's data lack a test set that the row names; data that --data gives in their place may."""
        if row.data == row.published_on and (unknown := [name for name in row.tests if name not in data.subsets]):
            known = f"data set {data.name} has no {', '.join(unknown)}; known: {', '.join(data.subsets)}"
            todo = "if its configuration has more, prepare it again with --overwrite: runs stay"
            raise ValueError(f"row {row.name}: tests: {known}; {todo}")
        if data.source and not data.target:
            lacks = "of one language; its row has no --task masked_lm or sentence_prediction"
            raise ValueError(f"row {row.name}: data set {row.data}: {lacks}")

    def languages(self, data: DataSet) -> tuple[str, str]:
        return data.source, data.target

    def steps(self, run: Run, state: State) -> dict[str, list[str]]:
        row, chosen = run.row, chosen_penalty(run.row, state)
        shared = common(*self.languages(run.data), run.cpu, row.user_dir)
        batch: Flags = {} if {"batch-size", "max-tokens"} & set(row.generate) else {"batch-size": "64"}

        def generate(settings: Flags, subset: str, references: bool = False) -> list[str]:
            flags = generation(row, run.checkpoint, subset, references)
            return ["-m", "fairseq_cli.generate", str(run.data.path), *to_arguments(shared | flags | batch | settings)]

        penalties = _penalty_steps(row).items()
        steps = {step: generate(row.generate | {"lenpen": value}, "valid") for value, step in penalties}
        settings = row.generate | ({"lenpen": str(chosen["lenpen"])} if chosen else {})
        model = {flag: value for flag, value in row.generate.items() if flag == "model-overrides"}
        for subset, end in {row.split: "", **{split: f"-{name}" for name, split in run.further.items()}}.items():
            steps[f"generate{end}"] = generate(settings, subset)
            steps[f"reference{end}"] = generate(model, subset, references=True)
        if row.heads:
            files = ["--checkpoint", str(run.checkpoint), "--data", str(run.data.path)]
            steps["heads"] = own_command("heads", run, *files, "--save", str(run.directory / "heads.json"))
        return steps

    def shell_lines(self, run: Run, state: State, lines: dict[str, str]) -> dict[str, str]:
        """Where a length penalty is to be chosen, the user sets it as ``LENPEN``."""
        if not (penalties := _penalty_steps(run.row)):
            return lines
        outputs = {step: str(run.directory / f"{step}.log") for step in penalties.values()}
        lines = lines | {step: f"{lines[step]} > {shlex.quote(log)}" for step, log in outputs.items()}
        text = str(run.data.path / f"text/valid.{run.data.target}")
        score = ["score", "--hyp", *outputs.values(), "--ref", text, "--data", str(run.data.path), "--metrics", "bleu"]
        lines["generate"] = f"{shlex.join([sys.executable, '-m', 'fairseq_diverse.cli', *score])}\n{lines['generate']}"
        for step in () if chosen_penalty(run.row, state) else lines:
            if step.startswith("generate"):
                lines[step] += ' --lenpen "${LENPEN:?set it to the length penalty with the highest BLEU above}"'
        return lines

    def needed(self, row: Row) -> dict[str, set[str]]:
        return {step: {"bleu"} for step in _penalty_steps(row).values()}

    def measure(self, run: Run, step: str) -> dict[str, Any]:
        if step in _penalty_steps(run.row).values():
            log, data = run.directory / f"{step}.log", run.data.path
            references = read_lines(data / "text" / f"valid.{run.data.target}")
            if len(hypotheses := scores.read_translations(log, data)) != (expected := len(references)):
                counts = f"{len(hypotheses)} translations of the validation split's {expected} sentences"
                raise ValueError(f"{log}: {counts}")
            result = scores.sacrebleu_result("bleu", hypotheses, references, run.data.target, pipeline.lowercased(data))
            return {"bleu": round(result.score, 4)}
        test = step.partition("-")[2]
        return test_digests(run, test) if test in run.further else {}

    def stale(self, run: Run, state: State) -> set[str]:
        """Those of a test set that was exchanged since."""
        steps = {f"{step}-{name}": name for name in run.further for step in ("generate", "reference")}
        return {step for step, name in steps.items() if not is_of_test(run, name, state.get(step, {}))}

    def settings(self, row: Row) -> dict[str, Any]:
        generate = {flag: value for flag, value in row.generate.items() if flag not in ("batch-size", "max-tokens")}
        more = {"generate": without_folders(generate), "lenpen": sorted(row.lenpen), "split": row.split}
        return super().settings(row) | more

    def summarize(self, run: Run, state: State) -> Summary:
        """Translations are also written to ``test.hyp``. Scores are detokenized, against the raw reference, and cased
        unless the data's target is lower-cased.

        ``test_nll`` is in nats, one value a sentence; ``bleu_counts`` holds for each sentence the lengths of hypothesis
        and reference and the n-grams that match, n = 1 to 4. ``chosen``, where the run chose its length penalty, holds
        it and BLEU on the validation split by length penalty.
        """
        first = next(iter(run.data.tests)) if run.row.split == "test" else run.row.split
        chosen = chosen_penalty(run.row, state)
        named = {"test": first} if first != "test" else {}
        return named | ({"chosen": chosen} if chosen else {}) | _scored(run)

    def complete(self, run: Run, summary: Summary) -> Summary:
        """``tests`` holds of each further test set what the summary holds of the first. ``heads`` holds the figures of
        each attention (`analysis.diversity`) on the validation split, by component:layer."""
        tests = dict(summary.get("tests", {}))
        for name in run.further:
            if name not in tests or not is_of_test(run, name, tests[name]):
                tests[name] = _scored(run, name) | test_digests(run, name)
            tests[name] = _with_metrics(run, tests[name], name)
        summary = _with_metrics(run, summary) | ({"tests": tests} if tests else {})
        if not run.row.heads:
            return summary
        attentions = (read_json(run.directory / "heads.json") or {})["attentions"].items()
        rounded = {of: {name: x and round(x, 5) for name, x in figures.items()} for of, figures in attentions}
        return summary | {"heads": rounded}

    def is_complete(self, run: Run, summary: Summary, tried: bool = False) -> bool:
        """With every test set and metric, and the figures of heads, if the row wants them."""
        tests = summary.get("tests", {})
        current = (tests[name] for name in run.further if name in tests and is_of_test(run, name, tests[name]))
        parts = [summary, *current]
        measured = [{*part.get("metrics", {}), *(part.get("missing", {}) if tried else ())} for part in parts]
        complete = all(set(run.row.metrics) <= names for names in measured)
        return complete and len(parts) == 1 + len(run.further) and ("heads" in summary or not run.row.heads)

    def outcome(self, row: Row, summary: Summary) -> str:
        metrics = summary["metrics"]
        figures = "BLEU {bleu:.2f}, chrF {chrf:.2f}, TER {ter:.2f}, length ratio {length_ratio:.3f}".format(**metrics)
        updates = summary.get("updates", row.max_update)
        tests = [f"{name} BLEU {part['metrics']['bleu']:.2f}" for name, part in summary.get("tests", {}).items()]
        chosen = [f"length penalty {summary['chosen']['lenpen']:g}"] if "chosen" in summary else []
        early = [f"ended after {updates} of {row.max_update} updates"] if updates < row.max_update else []
        missing = [f"no {name}: {reason}" for name, reason in summary.get("missing", {}).items()]
        return "; ".join([figures, *tests, *chosen, *early, *missing])

    def measures(self, rows: Sequence[Row]) -> Sequence[Measure]:
        """With the further metrics of the rows' tables."""

        def metric(key: str, name: str, digits: int = 2, **options: Any) -> Measure:
            return Measure(key, name, lambda run: run["metrics"].get(key), digits, **options)

        def further(key: str) -> Measure:
            definition = find(key)
            if not definition.neural:
                return metric(key, definition.heading, **unjudged)
            sentence_scores: Any = lambda run: run["sentence_scores"][key]  # noqa: E731
            return metric(key, definition.heading, definition.digits, lower=definition.lower, examples=sentence_scores)

        unjudged = {"deviation": False, "compared": False}
        split = "validation" if any(row.split == "valid" for row in rows) else "test"
        keys = dict.fromkeys(name for row in rows for name in row.metrics if name not in ALWAYS)
        nll = Measure("nll", "NLL", lambda run: float(np.mean(run["test_nll"])), 3, long="negative log-likelihood")
        return (
            metric("bleu", "BLEU", resampled=_resampled_bleu),
            metric("chrf", "chrF", details=True, **unjudged),
            metric("ter", "TER", details=True, **unjudged),
            *map(further, keys),
            metric("length_ratio", "length", 3, details=True, **unjudged),
            replace(nll, scale=f"nats a {split} sentence", lower=True, examples=lambda run: run["test_nll"]),
        )

    def facts(self, row: Row, runs: Sequence[Summary]) -> dict[str, Any]:
        """``metrics`` of the row's table, means over seeds that all have them; ``missing`` ones by name, with the seeds
        of each reason; BLEU's ``signature``."""
        missing: dict[str, dict[str, list[int]]] = {}
        for run in runs:
            for name, why in run.get("missing", {}).items():
                if name in row.metrics and name not in run["metrics"]:
                    missing.setdefault(name, {}).setdefault(why, []).append(run["seed"])
        measured = [run["metrics"] for run in runs]
        shared = [name for name in row.metrics if all(name in metrics for metrics in measured)]
        signed = [named for metrics in measured for named in metrics["signatures"].items()]
        return {
            "metrics": {name: float(np.mean([metrics[name] for metrics in measured])) for name in shared},
            "missing": missing,
            "signature": measured[0]["signatures"]["bleu"],
            "signatures": grouped(named for named in dict.fromkeys(signed) if named[0] in (*ALWAYS, *row.metrics)),
        }

    def notes(self, lines: Sequence[Any]) -> list[str]:
        """Of odd lengths, and which metrics of the table were not measured, of which rows and why."""
        ratios = {line.name: line.scores["length_ratio"].mean for line in lines}
        text = []
        if odd := [f"{name} {ratio:.2f}" for name, ratio in ratios.items() if not 0.8 <= ratio <= 1.25]:
            why = "hardly trained models, or wrong settings of translation (length, divided by the references')"
            text.append(f"translations much shorter or longer than the references: {why}: {', '.join(odd)}")
        rows = grouped(
            ((name, why), line.name + f" seed {', '.join(map(str, seeds))}" * (len(seeds) < line.seeds))
            for line in lines
            for name, reasons in line.facts["missing"].items()
            for why, seeds in reasons.items()
        )
        of = {reason: f" of {', '.join(named)}" * (named != [*ratios]) for reason, named in rows.items()}
        missing = [f"{name} ({why}){named}" for (name, why), named in of.items()]
        return [*text, f"not measured: {'; '.join(missing)}"] if missing else text

    def signatures(self, lines: Sequence[Line], headings: Sequence[str]) -> list[str]:
        """Of BLEU and of the metrics that are shown."""
        merged: dict[str, list[str]] = {}
        for line in lines:
            for name, signatures in line.facts["signatures"].items():
                if name == "bleu" or find(name).heading in headings:
                    merged[name] = sorted({*merged.get(name, ()), *signatures})
        names = {name: "sacreBLEU " if name in scores.METRICS else "" for name in merged}
        return [f"{find(name).heading}: {names[name]}{text}" for name, texts in merged.items() for text in texts]


def _resampled_bleu(run: Summary) -> np.ndarray:
    return significance.bleu_scores(significance.resampled_sums(bleu_statistics(run["bleu_counts"])))


def generation(row: Row, checkpoint: Path, subset: str, references: bool) -> Flags:
    """The run's own flags of translating a split, or of scoring its references."""
    return {
        "task": row.train.get("task", DEFAULT_TASK),
        "path": str(checkpoint),
        "gen-subset": subset,
        "log-format": "none",
        # fairseq's default of 8 drops a last batch whose size is not a multiple of 8: up to seven sentences
        "required-batch-size-multiple": "1",
        "score-reference": references,
        **dict.fromkeys(("quiet", "results-path", "scoring", "num-shards", "shard-id"), False),
    }


def _penalty_steps(row: Row) -> dict[str, str]:
    """The step of each length penalty that is tried on the validation split."""
    return {value: f"lenpen-{value}" for value in row.lenpen}


def chosen_penalty(row: Row, state: State) -> dict[str, Any] | None:
    """The length penalty with the highest BLEU on the validation split, of equal ones the first, and each one's BLEU;
    None before all were tried, or where the row gives one."""
    steps = _penalty_steps(row)
    if not steps or not set(steps.values()) <= set(state):
        return None
    bleu = {value: state[step]["bleu"] for value, step in steps.items()}
    return {"lenpen": float(max(bleu, key=bleu.__getitem__)), "valid_bleu": bleu}


def test_digests(run: Run, test: str) -> dict[str, str]:
    """Of the text and the trees of one of ``run.further``, where they are known and read."""
    trees = trees_read_by(run.row, run.data, [run.further[test]])
    return {key: digest for key, digest in {"data_hash": run.data.tests.get(test), "trees": trees}.items() if digest}


def is_of_test(run: Run, test: str, measured: dict[str, Any]) -> bool:
    """Whether something was measured on one of ``run.further`` as it is now; of trees earlier versions kept nothing."""
    now = test_digests(run, test)
    trees = measured.get("trees", now.get("trees"))
    return (measured.get("data_hash"), trees) == (now.get("data_hash"), now.get("trees"))


def _scored(run: Run, test: str = "") -> Summary:
    """What is measured on the first test set, or on a further one."""
    end = f"-{test}" if test else ""
    references = read_lines(run.data.path / "text" / f"{run.split_of(test)}.{run.data.target}")
    hypotheses = scores.read_translations(run.directory / f"generate{end}.log", run.data.path)
    nll = logs.reference_nll(run.directory / f"reference{end}.log")
    if not len(hypotheses) == len(references) == len(nll):
        counts = f"{len(hypotheses)} translations and {len(nll)} scored references of {len(references)}"
        raise ValueError(f"{run.directory}: {test or 'test'}: {counts}")
    write_text(run.directory / f"{test or 'test'}.hyp", "".join(f"{line}\n" for line in hypotheses))
    result = scores.score(hypotheses, references, run.data.target, pipeline.lowercased(run.data.path))
    return {
        "language": run.data.target,
        "metrics": result.as_dict(),
        "test_nll": [round(value, 3) for value in nll],
        "bleu_counts": result.statistics["bleu"][:, : 2 + ORDERS].astype(int).tolist(),
    }


def _with_metrics(run: Run, summary: Summary, test: str = "") -> Summary:
    """The summary, or its part of a further test set, with the metrics that the run's row wants and it lacks, or in
    ``missing`` the reasons why they cannot be computed here."""
    wanted = [name for name in run.row.metrics if name not in summary["metrics"]]
    if not wanted:
        return summary
    text = str(run.data.path / "text" / f"{run.split_of(test)}.")
    source, target = (read_lines(text + language) for language in (run.data.source, run.data.target))
    hypotheses = read_lines(run.directory / f"{test or 'test'}.hyp")
    texts = Texts(hypotheses, target, run.data.target, source, lowercase=pipeline.lowercased(run.data.path))
    metrics, signatures, missing = summary["metrics"], {}, {}
    sentences = dict(summary.get("sentence_scores", {}))
    for name in wanted:
        try:
            result = find(name).compute(texts)
        except ValueError as error:
            missing[name] = str(error).splitlines()[0]
            continue
        metrics = metrics | {name: round(result.score, 4)}
        signatures[name] = result.signature
        if find(name).neural:
            sentences[name] = [round(value, 4) for value in result.statistics[:, 0].tolist()]
    metrics = metrics | {"signatures": metrics["signatures"] | signatures}
    before = {name: why for name, why in summary.get("missing", {}).items() if name not in metrics}
    more = {"sentence_scores": sentences} if sentences else {}
    return summary | {"metrics": metrics, "missing": before | missing} | more
