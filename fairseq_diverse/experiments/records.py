"""The files that a run leaves: JSON objects, its summary above all."""

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_diverse.support.files import atomic_write
from fairseq_diverse.support.yaml_files import shown

AGAIN = "delete this file and start the run again, which keeps what its other files hold"
ORDERS = 4  # BLEU's n-grams


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


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a dictionary, a line for each of its entries."""
    lines = (f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in content.items())
    with atomic_write(path) as f:
        f.write("{\n" + ",\n".join(lines) + "\n}\n")


def read_summary(path: Path, hint: str) -> dict[str, Any]:
    """A finished run's summary, or a copy of it, with all that reports need.

    Raises:
        ValueError: it is damaged or something else; names the file, and ``hint`` says what to do.
    """
    summary = read_json(path, hint) or {}
    kinds: dict[str, Any] = {"system": str, "data": str, "seed": int, "commands": list, "words_per_second": dict}
    kinds |= {"parameters": int | None, "commit": str | None, "dirty": bool | None, "data_hash": str | None}
    number, figures = int | float, []
    try:
        wrong = [key for key, kind in kinds.items() if not isinstance(summary[key], kind)]
        commands = [shlex.split(line) for line in summary["commands"] if isinstance(line, str)]
        wrong += [] if commands and len(commands) == len(summary["commands"]) else ["commands"]
        wrong += [] if isinstance(summary.get("updates", 0), int) else ["updates"]
        figures += [speed for speed in summary["words_per_second"].values() if speed is not None]
        figures += [speed for speed in summary.get("updates_per_second", {}).values() if speed is not None]
        figures += [] if summary.get("epoch_minutes") is None else [summary["epoch_minutes"]]
        figures += [] if summary.get("valid_nll") is None else [summary["valid_nll"]["last"]]
        if "chosen" in summary:
            figures += [summary["chosen"]["lenpen"], *summary["chosen"]["valid_bleu"].values()]
        wrong += [] if isinstance(summary.get("machine", {}), dict) else ["machine"]
        wrong += [] if isinstance(summary.get("test", ""), str) else ["test"]
        if "glue" in summary:
            for part in summary["glue"].values():
                figures += [*part["metrics"].values(), *part.get("majority", {}).values(), part["examples"]]
            wrong += [] if summary["glue"] and all(p["metrics"] for p in summary["glue"].values()) else ["glue"]
        elif "pretraining" in summary:
            figures.append(summary["valid_nll"]["last"])
        elif "accuracy" in summary:
            for name, part in summary["accuracy"].items():
                count = len(part["hits"])
                wrong += [] if count and sum(part["classes"]) == count and not part["hits"].strip("01") else [name]
        else:
            for part in (summary, *summary.get("tests", {}).values()):
                metrics, nll = part["metrics"], part["test_nll"]
                figures += [
                    *nll,
                    *(metrics[name] for name in metrics.keys() - {"signatures"} | {"bleu", "chrf", "ter"}),
                ]
                wrong += [] if bleu_statistics(part["bleu_counts"]).shape == (len(nll), 2 + 2 * ORDERS) else ["counts"]
                wrong += [] if isinstance(metrics["signatures"]["bleu"], str) else ["signatures"]
                wrong += [] if "length_ratio" in metrics and isinstance(part["language"], str) else ["language"]
        wrong += [str(figure) for figure in figures if not isinstance(figure, number)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        raise ValueError(f"{path}: not a summary of a run ({shown(error)}); {hint}") from None
    if wrong:
        raise ValueError(f"{path}: not a summary of a run ({shown(wrong[0])}); {hint}")
    return summary


def bleu_statistics(counts: list[list[int]]) -> np.ndarray:
    """sacreBLEU's statistics (sentences, 10) from ``bleu_counts``: a hypothesis of m tokens has m - n + 1 n-grams."""
    kept = np.array(counts)
    totals = np.maximum(kept[:, :1] - np.arange(ORDERS), 0)
    return np.concatenate([kept, totals], axis=1).astype(np.float64)
