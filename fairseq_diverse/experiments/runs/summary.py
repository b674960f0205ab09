"""What a finished run leaves: ``summary.json``."""

from pathlib import Path
from typing import Any

from fairseq_diverse.experiments.runs import logs
from fairseq_diverse.experiments.runs.records import ORDERS, read_json
from fairseq_diverse.experiments.runs.run import Run
from fairseq_diverse.preparation.pipeline import lowercased
from fairseq_diverse.support.files import atomic_write, read_lines


def summarize(run: Run) -> dict[str, Any]:
    """Score a finished run and gather what its steps measured.

    A classifier: ``accuracy``, by number of operators or by probing task, ``classes``, how many examples there are of
    each class, and ``hits``, 1 or 0 for each example.

    A task of GLUE: ``glue``, by dev set ``examples``, ``metrics`` (times 100) and ``majority``, those of always
    predicting the most frequent label. A masked language model: ``valid_nll`` only, nats a masked token.

    A translation (also written to ``test.hyp``): scores are detokenized, against the raw reference, and cased unless
    the data's target is lower-cased.
    ``test_nll`` is in nats, one value a sentence; ``bleu_counts`` holds for each sentence the lengths of hypothesis and
    reference and the n-grams that match, n = 1 to 4. ``chosen``, where the run chose its length penalty, holds it and
    BLEU on the validation split by length penalty.

    Commit, versions and machine are those of the last start of a step; where starts differ, ``starts`` has each.

    ``trees`` is the digest of the trees that it reads, ``read`` has those of what else it reads besides its data.

    Speeds are in (target) subwords and in updates per second, memory in bytes.

    Raises:
        ValueError: translations or scores of test sentences are missing.
    """
    state, first = run.state, next(iter(run.data.tests)) if run.row.split == "test" else run.row.split
    evaluated = {"translation": ("generate",), "classification": ("accuracy",), "glue": ("glue",)}.get(run.kind, ())
    peaks = {step: state[step]["peak_memory"] for step in ("train", *evaluated)}
    if state["train"]["gb_free"] is not None:
        import torch

        peaks["gpu"] = torch.cuda.get_device_properties(0).total_memory - int(state["train"]["gb_free"] * 2**30)
    return {
        "system": run.row.name,
        "data": run.data.name,
        "data_hash": run.data.hash,
        **({"test": first} if first != "test" else {}),
        "size": run.row.size,
        "seed": run.seed,
        "parameters": state["train"]["parameters"],
        "updates": state["train"].get("updates", run.row.max_update),
        "valid_nll": state["train"]["valid_nll"] if run.kind != "glue" else None,
        **({"pretrained": run.row.first.key("")} if run.row.first else {}),
        "average": run.row.average,
        **({"chosen": run.chosen} if run.chosen else {}),
        "words_per_second": {step: state[step].get("words_per_second") for step in ("train", *evaluated)},
        "updates_per_second": {"train": state["train"].get("updates_per_second")},
        "epoch_minutes": state["train"].get("epoch_minutes"),
        "peak_memory": peaks,
        **starts(state),
        **({"parsers": run.parsers} if run.parsers else {}),
        **({"trees": run.trees} if run.trees else {}),
        **({"read": run.read} if run.read else {}),
        "commands": run.shell_lines({"OMP_NUM_THREADS": "1"}),
        **_measured(run),
    }


def starts(state: dict[str, Any]) -> dict[str, Any]:
    """What the last start of a step found (`provenance.collect`), and ``starts``, all that differ, if several do."""
    found: list[dict[str, Any]] = []
    for start in state.get("starts", []):
        found += [] if start in found else [start]
    return {**state.get("starts", [{}])[-1], **({"starts": found} if len(found) > 1 else {})}


def complete(run: Run, summary: dict[str, Any]) -> dict[str, Any]:
    """The summary with the test sets, metrics and figures of heads that the run's row asks for and it lacks.

    ``tests`` holds of each further test set what the summary holds of the first. ``heads`` holds the figures of each
    attention (`analysis.diversity`) on the validation split, by component:layer.
    """
    tests, lines = dict(summary.get("tests", {})), run.lines_by_step({"OMP_NUM_THREADS": "1"})
    for name in run.further:
        if name not in tests or not run.is_of(name, tests[name]):
            tests[name] = _translation(run, name) | run.digests(name)
        tests[name] = add_metrics(run, tests[name], name)
    steps = [f"{step}-{name}" for name in run.further for step in ("generate", "reference")]
    further = [lines[step] for step in [*steps, *["heads"] * run.row.heads]]
    found = add_metrics(run, summary) | ({"tests": tests} if tests else {})
    found |= {"heads": _heads(run)} if run.row.heads else {}
    return found | {"commands": [*summary["commands"], *(line for line in further if line not in summary["commands"])]}


def _heads(run: Run) -> dict[str, dict[str, Any]]:
    places = (read_json(run.directory / "heads.json") or {})["attentions"]
    return {
        place: {name: value if value is None else round(value, 5) for name, value in figures.items()}
        for place, figures in places.items()
    }


def add_metrics(run: Run, summary: dict[str, Any], test: str = "") -> dict[str, Any]:
    """The summary, or its part of a further test set, with the metrics that the run's row asks for and it lacks.

    A metric that cannot be computed here is in ``missing`` with the reason.
    """
    from fairseq_diverse.metrics.catalogue import CATALOGUE, Texts

    wanted = [name for name in run.row.metrics if name not in summary["metrics"]]
    if not wanted:
        return summary
    source, target = (
        read_lines(run.data.path / "text" / f"{run.split_of(test)}.{language}")
        for language in (run.data.source, run.data.target)
    )
    hypotheses = read_lines(run.directory / f"{test or 'test'}.hyp")
    given = Texts(hypotheses, target, run.data.target, source, lowercase=lowercased(run.data.path))
    metrics, signatures, missing = summary["metrics"], {}, {}
    for name in wanted:
        try:
            result = CATALOGUE[name].compute(given)
        except ValueError as error:
            missing[name] = str(error).splitlines()[0]
        else:
            metrics = metrics | {name: round(result.score, 4)}
            signatures[name] = result.signature
    metrics = metrics | {"signatures": metrics["signatures"] | signatures}
    before = {name: why for name, why in summary.get("missing", {}).items() if name not in metrics}
    return summary | {"metrics": metrics, "missing": before | missing}


def validation_bleu(run: Run, log: Path) -> float:
    """BLEU of a translation of the validation split, as that of the test set.

    Raises:
        ValueError: translations are missing.
    """
    from fairseq_diverse.metrics.scores import read_translations, sacrebleu_result

    references = read_lines(run.data.path / "text" / f"valid.{run.data.target}")
    hypotheses = read_translations(log, run.data.path)
    if len(hypotheses) != len(references):
        raise ValueError(f"{log}: {len(hypotheses)} translations of the validation split's {len(references)} sentences")
    return round(sacrebleu_result("bleu", hypotheses, references, run.data.target, lowercased(run.data.path)).score, 4)


def _measured(run: Run) -> dict[str, Any]:
    if run.kind == "pretraining":
        return {"pretraining": {}}
    if run.kind == "glue":
        return {"glue": read_json(run.directory / "glue.json") or {}}
    if run.kind == "classification":
        return {"accuracy": (read_json(run.directory / "accuracy.json") or {})["model"]}
    return _translation(run)


def _translation(run: Run, test: str = "") -> dict[str, Any]:
    """What is measured on the first test set, or on a further one."""
    from fairseq_diverse.metrics.scores import read_translations, score

    suffix = f"-{test}" if test else ""
    references = read_lines(run.data.path / "text" / f"{run.split_of(test)}.{run.data.target}")
    hypotheses = read_translations(run.directory / f"generate{suffix}.log", run.data.path)
    nll = logs.reference_nll(run.directory / f"reference{suffix}.log")
    if not len(hypotheses) == len(references) == len(nll):
        raise ValueError(
            f"{run.directory}: {test or 'test'}: {len(hypotheses)} translations and {len(nll)} scored references of "
            f"{len(references)}"
        )
    with atomic_write(run.directory / f"{test or 'test'}.hyp") as f:
        f.writelines(line + "\n" for line in hypotheses)
    scores = score(hypotheses, references, run.data.target, lowercased(run.data.path))
    return {
        "language": run.data.target,
        "metrics": scores.as_dict(),
        "test_nll": [round(value, 3) for value in nll],
        "bleu_counts": scores.statistics["bleu"][:, : 2 + ORDERS].astype(int).tolist(),
    }
