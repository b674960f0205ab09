"""JSON objects in files, and the statistics that summaries hold."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_diverse.support.files import atomic_write

AGAIN = "delete this file and start the run again, which keeps what its other files hold"
ORDERS = 4  # BLEU's n-grams


def read_json(path: Path, hint: str = AGAIN, not_finite: Callable[[str], Any] | None = None) -> dict[str, Any] | None:
    """The object that a JSON file holds, None where there is none; ``not_finite`` makes a value of NaN and infinity.
    Raises ValueError: the file cannot be read, or holds something else; names it, and ``hint`` says what to do."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=not_finite)
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
    """Write to a folder of results, which may be another person's. Raises ValueError: the path is a link, by which any
    file could be replaced."""
    if path.is_symlink():
        raise ValueError(f"{path}: a link; delete it, or save to another folder")
    write_json(path, content)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a dictionary, a line for each of its entries."""
    lines = (f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in content.items())
    with atomic_write(path) as f:
        f.write("{\n" + ",\n".join(lines) + "\n}\n")


def bleu_statistics(counts: list[list[int]]) -> np.ndarray:
    """sacreBLEU's statistics (sentences, 10) from ``bleu_counts``: a hypothesis of m tokens has m - n + 1 n-grams."""
    kept = np.array(counts)
    totals = np.maximum(kept[:, :1] - np.arange(ORDERS), 0)
    return np.concatenate([kept, totals], axis=1).astype(np.float64)
