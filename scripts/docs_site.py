"""Write the pages of the docs site into a folder, by default build/pages, for `make docs`.

Every page has its file's path in the repository, so that a relative link leads where it leads on a git host. Besides
docs/ there are the Markdown files of other folders, the notebook, a page for every source file that some page links to,
and docs/flags.md, which is made here from the parsers of the commands.
"""

import argparse
import json
import logging
import posixpath
import re
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("*.md", "docs/*.md", "docs/*.ipynb", "docs/site.css", "benchmarks/README.md")
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")
SEVERAL = re.compile(r"^( +)(\w+(?:, \w+)+): (.*(?:\n\1 +.*)*)", re.MULTILINE)
LANGUAGES = {".py": "python", ".sh": "bash", ".yaml": "yaml", ".cff": "yaml"}


class Parameters(griffe.Extension):
    """Of mkdocstrings: an entry of several parameters is one of each; a default that is a constant is its value."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = SEVERAL.sub(
                lambda entry: "".join(f"{entry[1]}{name}: {entry[3]}\n" for name in entry[2].split(", ")).rstrip("\n"),
                obj.docstring.value,
            )

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        for parameter in func.parameters:
            name = parameter.default
            if isinstance(name, griffe.ExprName) and name.name.isupper() and name.name in func.module.members:
                with suppress(griffe.AliasResolutionError):  # of another module that is not read yet
                    parameter.default = func.module[name.name].value


def write_pages(out: Path) -> None:
    """Write the pages, and what they link to, into a folder."""
    names = [path.relative_to(ROOT).as_posix() for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    for name in names:  # which grows
        path = ROOT / name
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in (".png", ".css"):
            shutil.copyfile(path, out / name)
            continue
        text = path.read_text(encoding="utf-8")
        if path.suffix in (".md", ".ipynb"):
            text = notebook(text) if path.suffix == ".ipynb" else text
            for link in dict.fromkeys(LINK.findall(text)):
                linked = posixpath.normpath(posixpath.join(posixpath.dirname(name), link))
                if (ROOT / linked).is_file():
                    names += [] if linked in names else [linked]
                    if not linked.endswith((".md", ".png")):
                        text = re.sub(rf"\]\({re.escape(link)}(?=[)#])", f"]({link}.md", text)
        else:
            text = f"# {name}\n\n~~~~{LANGUAGES.get(path.suffix, 'text')}\n{text}\n~~~~\n"
        (out / name).with_name(path.name.removesuffix(".md") + ".md").write_text(text, encoding="utf-8")
    (out / "docs/flags.md").write_text("\n".join(flags()), encoding="utf-8")


def notebook(text: str) -> str:
    """A notebook as Markdown: its text, its code, and what the code printed and drew."""
    parts = []
    for cell in json.loads(text)["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        outputs = cell.get("outputs", ())
        if printed := "".join("".join(output["text"]) for output in outputs if output["output_type"] == "stream"):
            parts.append(_block(printed))
        images = (output.get("data", {}).get("image/png") for output in outputs)
        parts += [f"![](data:image/png;base64,{image.strip()})" for image in images if image]
    return "\n\n".join(parts)


def flags() -> Iterator[str]:
    """The page of all commands and flags, in parts."""
    logging.basicConfig(level=logging.WARNING)  # before fairseq sets the level of the root logger
    with warnings.catch_warnings(action="ignore"):
        from fairseq.dataclass import FairseqDataclass
        from fairseq.dataclass.utils import gen_parser_from_dataclass

        from fairseq_diverse import register
        from fairseq_diverse.attention.registry import add_flags
        from fairseq_diverse.cli import build_parser
        from fairseq_diverse.criterions.disagreement import DisagreementConfig
        from fairseq_diverse.models.layers import add_layer_flags

        register()
    parser = build_parser([], whole=True)
    yield "# All flags\n\nAs `--help` says them. What the commands are for: [commands.md](commands.md)."
    yield from _table(parser)
    yield from _commands(parser)
    train = argparse.ArgumentParser()
    add_flags(train)
    add_layer_flags(train)
    gen_parser_from_dataclass(train, type("Flags", (DisagreementConfig, FairseqDataclass), {})())
    yield "\n## fairseq-train\n\nThe flags that this package adds; rows of tables have them as keys. Those that begin"
    yield "with `--disagreement` need its criterion ([mechanisms.md](mechanisms.md))."
    yield from _table(train)


def _commands(parser: argparse.ArgumentParser, level: int = 2) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield f"\n{'#' * level} {command.prog}\n\n{_plain(command.description or '')}"
                yield from _table(command)
                yield "\n" + _block(f"{command.format_usage()}\n{command.epilog or ''}")
                yield from _commands(command, level + 1)


def _table(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield "\n| flag | meaning |\n| --- | --- |"
    for action in parser._actions:
        if not isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            values: Iterable[str] = map(str, action.choices or [action.dest.upper()])
            value = "" if action.nargs == 0 else action.metavar or ", ".join(values)
            needed = " Needed." if action.option_strings and action.required else ""
            meaning = _plain((action.help or "") % {"default": action.default}) + needed
            names = ", ".join(action.option_strings)
            yield f"| `{f'{names} {value}'.strip()}` | {meaning} |".replace("\n", " ")


def _plain(text: str) -> str:
    """Text without meaning for Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", text)


def _block(text: str) -> str:
    return f"```text\n{text.strip()}\n```"


if __name__ == "__main__":
    pages = ROOT / "build/pages"
    shutil.rmtree(pages, ignore_errors=True)  # those of files that are gone
    write_pages(Path(sys.argv[1]) if len(sys.argv) > 1 else pages)
