"""The hook of mkdocs.yml, which adds the pages that are not Markdown files in docs/.

Every file has its path in the repository, so that a relative link leads where it leads on a git host. Besides docs/
there are the Markdown files of other folders, the notebook, a page for every source file that some page links to, and
docs/flags.md, which is made here from the parsers of the commands.
"""

import argparse
import json
import logging
import posixpath
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("*.md", "docs/*.md", "docs/*.ipynb", "docs/site.css", "benchmarks/README.md")
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")
LANGUAGES = {".py": "python", ".sh": "bash", ".yaml": "yaml", ".cff": "yaml"}


class Constants(griffe.Extension):
    """Of mkdocstrings: a default that is a constant of the package is shown as its value."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        for parameter in func.parameters:
            name = parameter.default
            if isinstance(name, griffe.ExprName) and name.name.isupper() and name.name in func.module.members:
                with suppress(griffe.AliasResolutionError):  # of another module that is not read yet
                    parameter.default = func.module[name.name].value


class Page(File):
    """A page of a file that is not Markdown."""

    def __init__(self, path: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(path, *args, dest_uri=f"{path}.html", **kwargs)

    def is_documentation_page(self) -> bool:
        return True


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The theme's files, the pages, and what they link to."""
    found = Files([file for file in files if file.src_dir != config.docs_dir])
    names = [path.relative_to(ROOT).as_posix() for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    for name in names:  # which grows
        file = site_file(name, config)
        found.append(file)
        if name.endswith((".md", ".ipynb")):
            paths = (posixpath.join(posixpath.dirname(name), link) for link in LINK.findall(file.content_string))
            linked = dict.fromkeys(map(posixpath.normpath, paths))
            names += [path for path in linked if path not in names and (ROOT / path).is_file()]
    found.append(File.generated(config, "docs/flags.md", content="\n".join(flags())))
    return found


def site_file(name: str, config: MkDocsConfig) -> File:
    """The file of the site for a file of the repository."""
    path = ROOT / name
    if path.suffix in (".md", ".png", ".css"):
        return File.generated(config, name, abs_src_path=str(path))
    if path.suffix == ".ipynb":
        return Page.generated(config, name, content=notebook(path))
    shown = f"# {name}\n\n~~~~{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text(encoding='utf-8')}\n~~~~\n"
    return Page.generated(config, name, content=shown, inclusion=InclusionLevel.NOT_IN_NAV)


def notebook(path: Path) -> str:
    """A notebook as Markdown: its text, its code, and what the code printed and drew."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
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
