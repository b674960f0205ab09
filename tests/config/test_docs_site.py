"""The docs site: it builds without a warning, shows what a git host shows, and needs nothing from elsewhere."""

import argparse
import html
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from markdown_it import MarkdownIt

from fairseq_diverse.cli import build_parser

if os.environ.get("CI") != "true":
    pytest.importorskip("zensical", reason="zensical is not installed; pip install -e '.[docs]'")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed; pip install -e '.[docs]'")

ROOT = Path(__file__).resolve().parents[2]
MARKDOWN = [
    *sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("results/**/*.md")),
    ROOT / "benchmarks/README.md", ROOT / "examples/images/README.md", ROOT / "examples/joey_nmt/README.md"
]  # fmt: skip
TAGS = ("h1", "h2", "h3", "p", "ul", "ol", "li", "table", "tr", "td", "th", "pre", "img", "em", "strong", "a")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, as `make docs` builds it; a warning fails."""
    folder = tmp_path_factory.mktemp("docs").resolve()
    shutil.copy(ROOT / "mkdocs.yml", folder)
    for name in ("scripts", "fairseq_diverse"):
        (folder / name).symlink_to(ROOT / name)
    write = [sys.executable, ROOT / "scripts/docs_site.py", folder / "build/pages"]
    subprocess.run(write, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    zensical = Path(sys.executable).with_name("zensical")
    done = subprocess.run([zensical, "build", "--strict"], cwd=folder, capture_output=True, text=True)
    assert not done.returncode, done.stdout + done.stderr
    return folder / "build/site"


@pytest.fixture(scope="module")
def pages(site):
    return {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}


def article(text: str) -> str:
    return text[text.index("<article") : text.index("</article>")]


def built(site: Path, source: Path) -> Path:
    return site / source.relative_to(ROOT).with_name(source.name.replace("README", "index")).with_suffix(".html")


def test_pages_show_what_a_git_host_shows(site):
    """Lists, tables and blocks are those of CommonMark; the site's Markdown has other rules for some of them."""
    assert built(site, ROOT / "docs/api.md").is_file() and (site / "docs/tutorial.ipynb.html").is_file()
    for path in (path for path in MARKDOWN if path.name != "api.md"):
        expected = MarkdownIt("commonmark", {"html": True}).enable("table").render(path.read_text(encoding="utf-8"))
        shown = article(built(site, path).read_text(encoding="utf-8"))
        shown = re.sub(r'<a (class="headerlink"|id="__code|href="#__code|id="__skip)', "<b ", shown)
        for tag in TAGS:
            assert len(re.findall(f"<{tag}[ >]", shown)) == len(re.findall(f"<{tag}[ >]", expected)), (path.name, tag)


def test_links_between_pages_lead_somewhere(site, pages):
    ids = {path: set(re.findall(r' id="?([^" >]+)', text)) for path, text in pages.items()}
    for path, text in pages.items():
        if path.name == "404.html":  # its links are from the root of a server
            continue
        for link in re.findall(r'<a [^>]*href="([^"]+)"', text):
            parts = urlsplit(html.unescape(link))
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.is_file(), f"{path}: {link}"
            if parts.fragment and target in ids:
                assert unquote(parts.fragment) in ids[target], f"{path}: {link}"


def test_nothing_is_loaded_from_elsewhere(site, pages):
    for path, text in pages.items():
        loaded = re.findall(r'<(?:script|img|iframe|source)[^>]* src="?([^" >]+)', text)
        loaded += re.findall(r'<link[^>]* href="?([^" >]+)', text)
        assert loaded and not [link for link in loaded if re.match(r"(?!data:)(\w+:|//)", link)], path
    for path in site.rglob("*.css"):
        assert not re.findall(r"(?:@import|url\()[\s\"']*(?:https?:)?//", path.read_text(encoding="utf-8")), path


def test_the_page_of_flags_has_every_flag(site):
    text = html.unescape((site / "docs/flags.html").read_text(encoding="utf-8"))

    def look(parser: argparse.ArgumentParser) -> None:
        for action in parser._actions:
            if not isinstance(action, argparse._HelpAction):
                assert all(re.search(rf"<code>[^<]*{flag}\b", text) for flag in action.option_strings), action
            if isinstance(action, argparse._SubParsersAction):
                for command in action.choices.values():
                    assert re.search(rf">{command.prog}<", text), command.prog
                    look(command)

    look(build_parser([], whole=True))
    assert "--evolving-carry" in text and "--disagreement-weight" in text


def test_parameters_on_the_api_page_have_types_and_defaults(site):
    page = (site / "docs/api.html").read_text(encoding="utf-8")
    rows = re.findall(r'<tr class="doc-section-item">(.*?)</tr>', page, re.DOTALL)
    assert len(rows) > 300 and not [row for row in rows if re.search(r"<td>\s*</td>", row)]
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    assert not re.findall(r"= [A-Z]{3,}\b", text)
    assert "trials: int = 10000" in text and "seed: int = 12345" in text


def test_the_api_page_shows_what_exists(site):
    text, source = (path.read_text(encoding="utf-8") for path in (site / "docs/api.html", ROOT / "docs/api.md"))
    for name, options in re.findall(r"^::: (\S+)\n((?: +.*\n)*)", source, re.MULTILINE):
        members = yaml.safe_load(options)["options"]["members"] if options else []
        try:
            thing = importlib.import_module(name)
            members = members or thing.__all__
        except ModuleNotFoundError:
            module, _, last = name.rpartition(".")
            thing = getattr(importlib.import_module(module), last)
            assert thing.__doc__, name
        assert f'id="{name}"' in text
        for member in members:
            assert getattr(thing, member).__doc__ and f'id="{name}.{member}"' in text, f"{name}.{member}"
