"""What the package needs of fairseq, found in its source files: another fairseq may lack some of it."""

import ast
import pkgutil
from collections.abc import Iterator
from pathlib import Path

from fairseq_diverse.support.paths import PACKAGE


def imports(file: Path) -> Iterator[tuple[str, str]]:
    """Module and name of everything that a file imports from fairseq and its programs."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("fairseq", "fairseq_cli"):
            yield from ((str(node.module), alias.name) for alias in node.names)


def lacking() -> list[str]:
    """The names that the package imports from fairseq, or replaces in it, and that the installed one does not have."""
    wanted = {f"{module}.{name}" for file in PACKAGE.rglob("*.py") for module, name in imports(file)}
    if missing := sorted(name for name in wanted if not _is_there(name)):
        return missing
    from fairseq_diverse.host.changes import CHANGES

    return [place for place in CHANGES if not _is_there(place)]


def _is_there(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True
