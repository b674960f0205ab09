"""How this package is installed, and what its metadata say."""

import json
import shlex
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module, metadata
from typing import Any
from urllib.parse import unquote, urlsplit

from fairseq_diverse.support.errors import UserError

NAME = "fairseq-diverse"
FAIRSEQ = ("fairseq-fixed", "fairseq")  # packages that hold fairseq: the one of the extra, and fairseq's own or a fork


def versions(names: Iterable[str]) -> dict[str, str]:
    """The versions of those packages that are installed."""
    known = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError, ValueError):  # the latter of what is no name
            known[name] = metadata.version(name)
    return known


def needed(module: str, missing: str) -> Any:
    """The imported module; raises ``UserError`` with the message ``missing`` where its package is not installed."""
    try:
        return import_module(module)
    except ImportError:
        raise UserError(missing) from None


def install(extra: str) -> str:
    """The command that installs an extra: from where the package was installed, such as a clone, else by name."""
    try:
        origin = json.loads(metadata.distribution(NAME).read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        origin = {}
    url = urlsplit(origin.get("url", ""))
    if url.scheme != "file":
        return f"pip install '{NAME}[{extra}]'"
    editable = "-e " * origin.get("dir_info", {}).get("editable", False)
    return f"pip install {editable}{shlex.quote(unquote(url.path))}'[{extra}]'"
