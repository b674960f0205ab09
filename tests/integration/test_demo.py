"""`fairseq-diverse demo` with a tiny model: every step, resumed, and what fails."""

import os
import re
import shlex
from pathlib import Path

import pytest

from fairseq_diverse.cli import build_parser
from fairseq_diverse.toy import corpus
from tests.integration.commands import cli
from tests.integration.test_run import SIZE, UPDATES


@pytest.fixture
def asked(tmp_path, monkeypatch) -> list[str]:
    """A short demo in the folder ``demo``, of a corpus with few sentences to translate."""
    write = corpus.write_corpus
    monkeypatch.setattr(corpus, "write_corpus", lambda out, train, valid, test, seed: write(out, train, 20, 20, seed))
    size = tmp_path / "mini.yaml"
    size.write_text(SIZE.replace(f"max-update: {UPDATES}", "max-update: 12").replace("[-20, 20]", "1"))
    return ["demo", "--sentences", "300", "--size", str(size), "--updates", "12", "--rows", "baseline,lpea"]


def demo(folder: Path, *words: str, status: int = 0) -> tuple[str, str]:
    done = cli(*words, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_demo(tmp_path, asked):
    (first, said), (again, said_again) = demo(tmp_path, *asked), demo(tmp_path, *asked)
    for output in (first, again):
        table = output[output.index("== results") :]
        assert re.search(r"^baseline +[\d,]+ ", table, re.MULTILINE)
        assert re.search(r"^lpea +[\d,]+ .*\(one seed\).* 1$", table, re.MULTILINE)
        assert re.search(r"^word by word: BLEU [\d.]+, chrF [\d.]+ ", table, re.MULTILINE)
        shown = r"^sentence \d+\n  source +\S.*\n  reference +\S.*\n  baseline .*\n  lpea "
        assert len(re.findall(shown, table, re.MULTILINE)) == 5
        assert "the same as a page:  demo/report.html\n" in table
        following = [line.split("  # ")[0].strip() for line in table[table.index("\nNext") :].splitlines()[2:]]
        assert len(following) == 3
    assert said.count("done before") == 0 and said_again.count("done before") == 2
    assert first.count("drawn before") == 0 and again.count("drawn before") == 4
    for line in following:
        words = shlex.split(line)
        words = words[words.index("fairseq-diverse") + 1 :]
        build_parser(words).parse_args(words)
    page = (tmp_path / "demo/report.html").read_text()
    assert "baseline" in page and "lpea" in page
    maps = sorted(path.name for path in (tmp_path / "demo/attention").glob("*.png"))
    assert maps == [f"{s}-{c}-2.png" for s in ("baseline", "lpea") for c in ("cross", "encoder")]
    (checkpoint,) = (tmp_path / "demo").glob("toy-mini-baseline-*/seed1/checkpoints/checkpoint_*.pt")
    checkpoint.write_text("damaged")
    failed, said = demo(tmp_path, *asked, status=2)
    assert said.count("not a checkpoint") == 2 and failed.count("drawn before") == 2
    assert said.splitlines()[-1] == "fairseq-diverse demo: baseline: a map could not be drawn, see above"


def test_a_wrong_flag_is_refused_before_anything_is_written(tmp_path):
    _, said = demo(tmp_path, "demo", "--rows", "nope", status=2)
    assert said.startswith("fairseq-diverse run: --rows: no row nope in toy") and not list(tmp_path.iterdir())
