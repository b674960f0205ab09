"""Steps that are done once, whatever stops the program between them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fairseq_diverse.support.files import atomic_write

T = TypeVar("T")
FILE = "steps.json"


class Steps:
    """Results of finished steps by name, kept in ``folder``; a folder of another ``purpose`` is emptied first.

    Steps write files of ``folder`` and can begin again; their results, and ``purpose``, are values of JSON.
    """

    def __init__(self, folder: Path, purpose: Any):
        self.path = folder / FILE
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # absent or damaged
            kept = None
        if not isinstance(kept, dict) or kept.get("purpose") != purpose or not isinstance(kept.get("done"), dict):
            shutil.rmtree(folder, ignore_errors=True)
            kept = {"purpose": purpose, "done": {}}
        folder.mkdir(parents=True, exist_ok=True)
        self.kept = kept

    def __call__(self, name: str, function: Callable[..., T], *args: Any) -> T:
        """What ``function(*args)`` returns, or returned when the step was done."""
        if name not in self.kept["done"]:
            self.kept["done"][name] = function(*args)
            with atomic_write(self.path) as f:
                json.dump(self.kept, f)
        return self.kept["done"][name]
