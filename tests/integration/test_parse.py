"""`fairseq-diverse parse` with the small real models of spaCy and benepar, and with models that stanza trains here."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from fairseq_diverse.cli import main
from fairseq_diverse.data.live_trees import LiveTrees
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.syntax import parse
from fairseq_diverse.syntax.parsers import load_parser, parser_of
from fairseq_diverse.syntax.trees import local_phrases, read_brackets, read_conllu
from tests.integration.commands import ROOT, cli, in_this_process
from tests.unit.test_parse import RunsOnLoading

PARSERS = Path(os.environ.get("FAIRSEQ_DIVERSE_PARSERS", ROOT.parent / "shared/parsers"))
MODELS = {"dependency": PARSERS / "en_ewt_small", "constituency": PARSERS / "benepar_ptb_small"}
COMMAND = [sys.executable, "-m", "fairseq_diverse.cli", "parse"]
needs_models = pytest.mark.skipif(
    not all(path.is_dir() for path in MODELS.values()),
    reason=f"{PARSERS} is absent; set FAIRSEQ_DIVERSE_PARSERS to the directory that holds the small models",
)  # fmt: skip
GOOD = ["a dog ( big ) runs .", "Hello . How are you ?", "the man said &quot; it &apos;s well @-@ known &quot; ."]
LINES = [GOOD[0], "", GOOD[1], "x", GOOD[2]]
KINDS = ("dependency", "constituency")


def flags(kind, model, text, out):
    given = {"--kind": kind, "--model": model, "--input": text, "--out": out, "--workers": 1}
    return [str(word) for pair in given.items() for word in pair]


def check_trees(kind, out, lines=LINES):
    """Every line has its own words; the trees."""
    words = [GOOD[0], None, GOOD[1], lines[3], 'the man said " it \'s well - known " .']
    trees = list(read_conllu(out) if kind == "dependency" else read_brackets(out))
    leaves = (lambda one: one.words) if kind == "dependency" else (lambda one: one.leaves() if one else ())
    found = [" ".join(leaves(one)).replace("-LRB-", "(").replace("-RRB-", ")") or None for one in trees]
    assert all(one == expected for one, expected in zip(found, words, strict=True) if one), found
    return trees


@needs_models
@pytest.mark.parametrize("kind", MODELS)
def test_unparsable_lines_do_not_shift_trees(kind, tmp_path, monkeypatch, output_of):
    lines = [*LINES[:3], " ".join(["word"] * 1000), LINES[4]]
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    common = flags(kind, MODELS[kind], tmp_path / "text", tmp_path / "out")
    done = subprocess.run([*COMMAND, *common], capture_output=True, text=True)
    assert done.returncode == 0 and "1 x empty line: line 2" in done.stdout, done.stderr
    trees, unparsed = check_trees(kind, tmp_path / "out", lines), (tmp_path / "out.unparsed").read_text().splitlines()
    if kind == "dependency":
        assert [tree.heads is None for tree in trees] == [False, True, False, False, False]
        assert trees[0].heads[1] == 5  # dog <- runs
    else:
        assert "x ValueError: Sentence of length 1000 exceeds the maximum" in done.stdout and "line 4" in done.stdout
        assert [tree is None for tree in trees] == [False, True, False, True, False]
        assert len(local_phrases(trees[0])[0]) == len(trees[0].leaves())
    assert [line.split("\t")[0] for line in unparsed] == (["2"] if kind == "dependency" else ["2", "4"])
    made = json.loads((tmp_path / "out.json").read_text())
    assert made["versions"][made["parser"]] == version(made["parser"])
    assert (made["model"] in made["versions"]) == (kind == "dependency")  # benepar's have no version
    # shards joined are the whole
    monkeypatch.setattr(parse, "parallel_map", in_this_process)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # as the parsers set it
    for shard in ("1/2", "2/2"):
        output_of("parse", *common, "--out", tmp_path / "piece", "--shard", shard)
    joined = "".join((tmp_path / f"piece.{shard}-of-2").read_text() for shard in (1, 2))
    assert joined == (tmp_path / "out").read_text()
    assert "there already" in output_of("parse", *common)


@needs_models
def test_killed_and_started_again_it_resumes(tmp_path):
    text, whole, again = (tmp_path / name for name in ("text", "whole", "again"))
    text.write_text("\n".join(GOOD[i % 3].replace("dog", f"dog{i}") for i in range(2000)) + "\n")
    cli("parse", *flags("dependency", MODELS["dependency"], text, whole))
    common = flags("dependency", MODELS["dependency"], text, again)
    process = subprocess.Popen([*COMMAND, *common], start_new_session=True)
    parts = tmp_path / "again.parts"
    limit = time.monotonic() + 120
    while not list(parts.glob("0*.json")) and time.monotonic() < limit:
        time.sleep(0.01)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()  # only this process: its workers end with it
    process.wait()
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < limit:
        time.sleep(0.05)
    assert children and not any(Path(f"/proc/{child}").exists() for child in children)
    kept = {path.name: path.stat().st_mtime_ns for path in parts.glob("0*.json")}
    assert kept and not again.exists()
    cli("parse", *common)
    assert again.read_text() == whole.read_text() and not parts.exists()


# --- stanza ---


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stanza")
    subprocess.run([sys.executable, "-m", "tests.integration.stanza_models", folder], check=True, capture_output=True)
    return folder


def test_the_models_are_trained(models, tmp_path):
    """So that the other tests have trees of sense: many words of the test split have the right head."""
    assert main(["parse", *flags("dependency", models, models / "raw/test.en", tmp_path / "out")]) == 0
    found, gold = (list(read_conllu(path)) for path in (tmp_path / "out", models / "raw/test.en.conllu"))
    same = [a == b for one, other in zip(found, gold, strict=True) for a, b in zip(one.heads, other.heads, strict=True)]
    assert sum(same) > 0.15 * len(same)  # any word: about 0.07


@pytest.mark.parametrize("kind", KINDS)
def test_every_line_keeps_its_tree_and_its_words(kind, models, tmp_path, output_of):
    (tmp_path / "text").write_text("\n".join(LINES) + "\n")
    said = output_of("parse", *flags(kind, models, tmp_path / "text", tmp_path / "out"))
    assert "5 lines, 1 without a tree\n  1 x empty line: line 2" in said
    trees = check_trees(kind, tmp_path / "out")
    if kind == "dependency":
        assert [tree.heads is None for tree in trees] == [False, True, False, False, False]
        assert all(sum(head == n for n, head in enumerate(tree.heads)) <= 1 for tree in trees if tree.heads)
    else:
        assert [tree is None for tree in trees] == [False, True, False, False, False] and trees[0].label() != "ROOT"
    made = json.loads((tmp_path / "out.json").read_text())
    assert (made["parser"], made["model"], made["versions"]) == ("stanza", str(models), {"stanza": version("stanza")})


def test_new_text_is_parsed_as_the_record_says(models):
    how = {"parser": "stanza", "model": str(models), "language": "en", "given": "--model"}
    trees, unparsed = LiveTrees(KINDS, dict.fromkeys(KINDS, how), {}, "none")(LINES, LINES)
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
