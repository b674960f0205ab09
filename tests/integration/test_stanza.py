"""`fairseq-diverse parse --parser stanza` and live parsing, with models that stanza trains here."""

import json
import pickle
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from fairseq_diverse.cli import main
from fairseq_diverse.data.live_trees import LiveTrees
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.syntax.parsers import load_parser, parser_of
from fairseq_diverse.syntax.trees import read_brackets, read_conllu
from tests.unit.test_parse import RunsOnLoading

LINES = ["the friend ( old ) sees a tower .", "", "He &apos;s in the well @-@ known garden .", "x"]
WORDS = ["the friend ( old ) sees a tower .", None, "He 's in the well - known garden .", "x"]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stanza")
    subprocess.run([sys.executable, "-m", "tests.integration.stanza_models", folder], check=True, capture_output=True)
    return folder


def test_the_models_are_trained(models, tmp_path):
    """So that the other tests have trees of sense: many words of the test split have the right head."""
    assert main([*parse("dependency", models, models / "raw/test.en", tmp_path / "out")]) == 0
    found, gold = (list(read_conllu(path)) for path in (tmp_path / "out", models / "raw/test.en.conllu"))
    same = [a == b for one, other in zip(found, gold, strict=True) for a, b in zip(one.heads, other.heads, strict=True)]
    assert sum(same) > 0.15 * len(same)  # any word: about 0.07


def parse(kind, model, text, out):
    return ["parse", "--kind", kind, "--model", str(model), "--input", str(text), "--out", str(out), "--workers", "1"]


@pytest.mark.parametrize("kind", ["dependency", "constituency"])
def test_every_line_keeps_its_tree_and_its_words(kind, models, tmp_path, capsys):
    (tmp_path / "text").write_text("\n".join(LINES) + "\n")
    assert main(parse(kind, models, tmp_path / "text", tmp_path / "out")) == 0
    assert "4 lines, 1 without a tree\n  1 x empty line: line 2" in capsys.readouterr().out
    if kind == "dependency":
        sentences = list(read_conllu(tmp_path / "out"))
        assert [" ".join(s.words) or None for s in sentences] == WORDS
        assert all(s.heads is None or sum(h == s.heads[n] == n for n, h in enumerate(s.heads)) <= 1 for s in sentences)
    else:
        trees = list(read_brackets(tmp_path / "out"))
        leaves = [tree and " ".join(tree.leaves()).replace("-LRB-", "(").replace("-RRB-", ")") for tree in trees]
        assert leaves == WORDS and trees[0].label() != "ROOT"
    made = json.loads((tmp_path / "out.json").read_text())
    assert (made["parser"], made["model"], made["versions"]) == ("stanza", str(models), {"stanza": version("stanza")})


def test_new_text_is_parsed_as_the_record_says(models):
    how = {"parser": "stanza", "model": str(models), "language": "en", "given": "--model"}
    kinds = ("dependency", "constituency")
    live = LiveTrees(kinds, dict.fromkeys(kinds, how), {}, "none")
    trees, unparsed = live(LINES, LINES)
    assert [len(rows) for rows in trees] == [len(line.split()) + 1 for line in LINES] and unparsed == [1]
    assert parser_of("dependency", str(models)) == "stanza" and parser_of("dependency", None) == "spacy"


def test_models_that_cannot_be_loaded_are_one_line_and_run_no_code(models, tmp_path):
    def refused(folder, kind="dependency", language="en", model=None):
        with pytest.raises(UserError) as caught:
            load_parser(kind, "stanza", model or str(folder), language)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    broken = shutil.copytree(models, tmp_path / "broken")
    ran = tmp_path / "ran"
    for content in (pickle.dumps(RunsOnLoading(ran)), b"", b"?" * 99):
        (broken / "en/depparse/small.pt").write_bytes(content)
        assert refused(broken).startswith(f"--model {broken}: stanza cannot load it (") and not ran.exists()
    (broken / "en/depparse/small.pt").unlink()
    assert "small.pt" in refused(broken)
    record = json.loads((broken / "resources.json").read_text())
    del record["en"]["packages"]["default"]["constituency"]
    (broken / "resources.json").write_text(json.dumps(record))
    assert "has no constituency parser of en, only tokenize, pos" in refused(broken, "constituency")
    assert refused(models, language="fi").startswith(f"--model {models}: ")
    assert "no such file or folder" in refused(tmp_path / "nosuch")
    said = refused(None, model="nosuch")
    assert re.match(r"--model nosuch: stanza cannot load it \(.+\); get it with: python -c .import stanza", said)
