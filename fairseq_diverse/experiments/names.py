"""Names of rows, which are parts of files' names."""

import re
from pathlib import Path

from fairseq_diverse.support.yaml_files import shown

NAME_BYTES = 200  # with a seed and a temporary file's marks, what a file system takes
NOT_IN_NAMES = re.compile(r"[/\\\x00-\x1f\x7f-\xa0\u2028\u2029]")


def refuse_name(name: str, path: Path) -> None:
    """Raise ``ValueError`` for a row's name that cannot be part of a file's name."""
    if not name.strip() or name != name.strip() or name[0] == "." or NOT_IN_NAMES.search(name):
        raise ValueError(
            f"{path}: row '{shown(name)}': a row's name is part of names of files: one line of text without / and \\, "
            "that neither starts with a dot nor starts or ends with a space"
        )
    if len(name.encode()) > NAME_BYTES:
        raise ValueError(f"{path}: row {shown(name)}: a name of {len(name.encode())} bytes; at most {NAME_BYTES}")
