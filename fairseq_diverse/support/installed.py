"""How this package is installed, and what its metadata say."""

import json
import re
import shlex
from importlib import metadata
from urllib.parse import unquote, urlsplit

NAME = "fairseq-diverse"


def extras() -> dict[str, list[str]]:
    """The packages of each extra, without their versions; empty if the package is not installed."""
    found: dict[str, list[str]] = {}
    try:
        required = metadata.requires(NAME) or []
    except metadata.PackageNotFoundError:
        return found
    for line in required:
        if extra := re.search(r"""extra == ["']([\w-]+)["']""", line):
            package = re.match(r"[\w.-]+", line)
            assert package
            found.setdefault(extra[1], []).append(package[0])
    return found


def install(extra: str) -> str:
    """The command that installs an extra: of the clone if the package is installed from one, else by name."""
    source = NAME
    try:
        origin = json.loads(metadata.distribution(NAME).read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable"):
            source = "-e " + shlex.quote(unquote(urlsplit(origin["url"]).path))
    except (metadata.PackageNotFoundError, ValueError):
        pass
    return f"pip install '{source}[{extra}]'" if source == NAME else f"pip install {source}'[{extra}]'"
