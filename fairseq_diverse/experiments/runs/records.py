"""The files that a run leaves: JSON objects, its summary above all."""

import json
import math
import shlex
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_diverse.preparation.glue import TASKS
from fairseq_diverse.support.files import atomic_write
from fairseq_diverse.support.yaml_files import shown

AGAIN = "delete this file and start the run again, which keeps what its other files hold"
ORDERS = 4  # BLEU's n-grams
MACHINE_KEYS = {"cpu": str, "cores": int, "threads": int, "capability": str, "device": str}  # what one is equal in


def read_json(path: Path, hint: str = AGAIN) -> dict[str, Any] | None:
    """The object that a JSON file holds, None where there is none.

    Raises:
        ValueError: the file cannot be read, or holds something else; names it, and ``hint`` says what to do.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{path}: damaged, not whole JSON; {hint}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: damaged, not a JSON object; {hint}")
    return content


def write_copy(path: Path, content: dict[str, Any]) -> None:
    """Write to a folder of results, which may be another person's.

    Raises:
        ValueError: the path is a link, by which any file could be replaced.
    """
    if path.is_symlink():
        raise ValueError(f"{path}: a link; delete it, or save to another folder")
    write_json(path, content)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a dictionary, a line for each of its entries."""
    lines = (f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in content.items())
    with atomic_write(path) as f:
        f.write("{\n" + ",\n".join(lines) + "\n}\n")


def read_summary(path: Path, hint: str) -> dict[str, Any]:
    """A finished run's summary, or a copy of it, with all that reports need: figures are finite, counts whole.

    Raises:
        ValueError: it is damaged or something else; names the file, and ``hint`` says what to do.
    """
    summary = read_json(path, hint) or {}
    kinds: dict[str, Any] = {"system": str, "data": str, "seed": int, "commands": list, "words_per_second": dict}
    kinds |= {"parameters": int | None, "data_hash": str | None}
    figures: dict[str, list[Any]] = {}
    try:
        wrong = [key for key, kind in kinds.items() if not _is(summary[key], kind)]
        commands = [shlex.split(line) for line in summary["commands"] if isinstance(line, str)]
        wrong += [] if commands and len(commands) == len(summary["commands"]) else ["commands"]
        wrong += [] if _is(summary.get("updates", 0), int) else ["updates"]
        for key in ("words_per_second", "updates_per_second"):
            figures[key] = [speed for speed in summary.get(key, {}).values() if speed is not None]
        figures["epoch_minutes"] = [] if summary.get("epoch_minutes") is None else [summary["epoch_minutes"]]
        figures["valid_nll"] = [] if summary.get("valid_nll") is None else [summary["valid_nll"]["last"]]
        if "chosen" in summary:
            figures["chosen"] = [summary["chosen"]["lenpen"], *summary["chosen"]["valid_bleu"].values()]
        wrong += [key for start in (summary, *summary.get("starts", [])) for key in _wrong_start(start)]
        wrong += [] if isinstance(summary.get("test", ""), str) else ["test"]
        wrong += [] if all(isinstance(digest, str) for digest in summary.get("read", {}).values()) else ["read"]
        if "glue" in summary:
            for name, part in summary["glue"].items():
                figures[name] = [*part["metrics"].values(), *part.get("majority", {}).values(), part["examples"]]
            task = next((task for task in TASKS.values() if {*task.named("valid")} == {*summary["glue"]}), None)
            whole = task and all({*part["metrics"]} == {*task.metrics} for part in summary["glue"].values())
            wrong += [] if whole else ["glue"]
        elif "pretraining" in summary:
            figures["valid_nll"] = [summary["valid_nll"]["last"]]
        elif "accuracy" in summary:
            for name, part in summary["accuracy"].items():
                count, classes = len(part["hits"]), part["classes"]
                whole = all(map(is_count, classes)) and sum(classes) == count and not part["hits"].strip("01")
                wrong += [] if count and whole else [name]
        else:
            for test, part in {"": summary, **summary.get("tests", {})}.items():
                metrics, nll, counts = part["metrics"], part["test_nll"], part["bleu_counts"]
                before = f"{test}: " * bool(test)
                figures[f"{before}test_nll"] = nll
                for name in metrics.keys() - {"signatures"} | {"bleu", "chrf", "ter", "length_ratio"}:
                    figures[f"{before}{name}"] = [metrics[name]]
                whole = all(is_count(count) for sentence in counts for count in sentence)
                shaped = whole and bleu_statistics(counts).shape == (len(nll), 2 + 2 * ORDERS)
                wrong += [] if shaped else [f"{before}bleu_counts"]
                wrong += [] if isinstance(metrics["signatures"]["bleu"], str) else [f"{before}signatures"]
                wrong += [] if isinstance(part["language"], str) else [f"{before}language"]
                wrong += [] if all(isinstance(why, str) for why in part.get("missing", {}).values()) else ["missing"]
            for place, of_place in summary.get("heads", {}).items():
                figures[f"heads {place}"] = [
                    of_place["width"],
                    *(value for value in of_place.values() if value is not None),
                ]
        wrong += [f"{name}: {value}" for name, values in figures.items() for value in values if not _is_figure(value)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        raise ValueError(f"{path}: not a summary of a run ({shown(error)}); {hint}") from None
    if wrong:
        raise ValueError(f"{path}: not a summary of a run ({shown(wrong[0])}); {hint}")
    return summary


def _is(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind; JSON's true and false are no numbers."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_figure(value: Any) -> bool:
    return _is(value, int | float) and math.isfinite(value)


def is_count(value: Any) -> bool:
    return _is(value, int) and value >= 0


def _wrong_start(start: dict[str, Any]) -> list[str]:
    """Of what ``provenance.collect`` wrote, the first entry of another type; summaries of old have no machine."""
    if not isinstance(start["commit"], str | None) or not isinstance(start["dirty"], bool | None):
        return ["commit"]
    machine = start.get("machine", {})
    if not isinstance(machine, dict):
        return ["machine"]
    variables = machine.get("variables", {})
    wrong = [key for key, kind in MACHINE_KEYS.items() if machine and not _is(machine.get(key), kind)]
    if not isinstance(variables, dict) or not all(isinstance(value, str) for value in variables.values()):
        wrong.append("variables")
    return [f"machine: {key}" for key in wrong]


def bleu_statistics(counts: list[list[int]]) -> np.ndarray:
    """sacreBLEU's statistics (sentences, 10) from ``bleu_counts``: a hypothesis of m tokens has m - n + 1 n-grams."""
    kept = np.array(counts)
    totals = np.maximum(kept[:, :1] - np.arange(ORDERS), 0)
    return np.concatenate([kept, totals], axis=1).astype(np.float64)
