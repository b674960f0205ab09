"""`fairseq-diverse parse` with the small real models, as a user runs it."""

import json
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from fairseq_diverse.cli import main
from fairseq_diverse.syntax import parse
from fairseq_diverse.syntax.trees import local_phrases, read_brackets, read_conllu
from tests.integration.commands import cli, in_this_process

ROOT = Path(__file__).resolve().parents[2]
PARSERS = Path(os.environ.get("FAIRSEQ_DIVERSE_PARSERS", ROOT.parent / "shared/parsers"))
MODELS = {"dependency": PARSERS / "en_ewt_small", "constituency": PARSERS / "benepar_ptb_small"}
COMMAND = [sys.executable, "-m", "fairseq_diverse.cli", "parse"]
needs_models = pytest.mark.skipif(
    not all(path.is_dir() for path in MODELS.values()),
    reason=f"{PARSERS} is absent; set FAIRSEQ_DIVERSE_PARSERS to the directory that holds the small models",
)  # fmt: skip
GOOD = ["a dog ( big ) runs .", "Hello . How are you ?", "the man said &quot; it &apos;s well @-@ known &quot; ."]


@needs_models
@pytest.mark.parametrize("kind", MODELS)
def test_unparsable_lines_do_not_shift_trees(kind, tmp_path, monkeypatch, output_of):
    lines = [GOOD[0], "", GOOD[1], " ".join(["word"] * 1000), GOOD[2]]
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    common = ("--kind", kind, "--model", MODELS[kind], "--input", tmp_path / "text", "--workers", 1)
    done = subprocess.run([*COMMAND, *map(str, common), "--out", tmp_path / "out"], capture_output=True, text=True)
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    assert "1 x empty line: line 2" in said
    words = ["a dog ( big ) runs .", None, "Hello . How are you ?", lines[3], 'the man said " it \'s well - known " .']
    if kind == "dependency":
        sentences = list(read_conllu(tmp_path / "out"))
        assert [" ".join(s.words) or None for s in sentences] == words
        assert [s.heads is None for s in sentences] == [False, True, False, False, False]
        assert sentences[0].heads[1] == 5  # dog <- runs
    else:
        assert "x ValueError: Sentence of length 1000 exceeds the maximum" in said and "line 4" in said
        trees = list(read_brackets(tmp_path / "out"))
        assert [tree is None for tree in trees] == [False, True, False, True, False]
        expected = words[0].replace("(", "-LRB-").replace(")", "-RRB-").split()
        assert trees[0].leaves() == expected and len(local_phrases(trees[0])[0]) == len(expected)
    made = json.loads((tmp_path / "out.json").read_text())
    assert made["versions"][made["parser"]] == version(made["parser"])
    assert (made["model"] in made["versions"]) == (kind == "dependency")  # benepar's have no version
    unparsed = (tmp_path / "out.unparsed").read_text().splitlines()
    assert [line.split("\t")[0] for line in unparsed] == (["2"] if kind == "dependency" else ["2", "4"])
    # shards joined are the whole
    monkeypatch.setattr(parse, "parallel_map", in_this_process)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # as the parsers set it
    for shard in (1, 2):
        assert main(["parse", *map(str, common), "--out", f"{tmp_path}/piece", "--shard", f"{shard}/2"]) == 0
    joined = "".join((tmp_path / f"piece.{shard}-of-2").read_text() for shard in (1, 2))
    assert joined == (tmp_path / "out").read_text()
    assert "there already" in output_of("parse", *common, "--out", f"{tmp_path}/out")


@needs_models
def test_killed_and_started_again_it_resumes(tmp_path):
    text, whole, again = (tmp_path / name for name in ("text", "whole", "again"))
    text.write_text("\n".join(GOOD[i % 3].replace("dog", f"dog{i}") for i in range(2000)) + "\n")
    common = ("--kind", "dependency", "--model", MODELS["dependency"], "--input", text, "--workers", 1)
    assert cli("parse", *common, "--out", whole).returncode == 0
    process = subprocess.Popen([*COMMAND, *map(str, common), "--out", again], start_new_session=True)
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
    assert cli("parse", *common, "--out", again).returncode == 0
    assert again.read_text() == whole.read_text() and not parts.exists()
