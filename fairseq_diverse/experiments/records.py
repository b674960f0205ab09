"""JSON objects in files, and the statistics that summaries hold."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_diverse.support.files import atomic_write

ORDERS = 4  # BLEU's n-grams


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
