"""How this package is installed, and what its metadata say."""

import json
import shlex
from importlib import metadata
from urllib.parse import unquote, urlsplit

NAME = "fairseq-diverse"


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
