"""Steps of a resumable program: finished steps are not repeated."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fairseq_diverse.support.files import atomic_write

T = TypeVar("T")
FILE = "steps.json"


class Steps:
    """Results of finished steps by name, stored in ``folder``; a folder with another ``purpose`` is emptied first.

    Steps write files in ``folder`` and can be repeated; their results, and ``purpose``, are JSON values.
    """

    def __init__(self, folder: Path, purpose: Any):
        self.path = folder / FILE
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # missing or damaged
            kept = None
        if not isinstance(kept, dict) or kept.get("purpose") != purpose or not isinstance(kept.get("done"), dict):
            shutil.rmtree(folder, ignore_errors=True)
            kept = {"purpose": purpose, "done": {}}
        folder.mkdir(parents=True, exist_ok=True)
        self.kept = kept

    def __call__(self, name: str, function: Callable[..., T], *args: Any) -> T:
        """The result of ``function(*args)``, from an earlier run if the step is finished."""
        if name not in self.kept["done"]:
            self.kept["done"][name] = function(*args)
            with atomic_write(self.path) as f:
                json.dump(self.kept, f)
        return self.kept["done"][name]
