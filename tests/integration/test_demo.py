"""`fairseq-diverse demo` with a tiny model: every step, resumed, and what fails; the cells of docs/tutorial.ipynb."""

import base64
import json
import re
import shlex
import tempfile
import warnings
from pathlib import Path

from fairseq_diverse.cli import build_parser
from fairseq_diverse.toy import corpus
from tests.integration.commands import cli, preprocess_in_a_fork
from tests.integration.test_run import SIZE, UPDATES


def test_demo(tmp_path, monkeypatch):
    """In the folder ``demo``, of a corpus with few sentences to translate."""
    write = corpus.write_corpus
    monkeypatch.setattr(corpus, "write_corpus", lambda out, train, valid, test, seed: write(out, train, 20, 20, seed))
    size = tmp_path / "mini.yaml"
    size.write_text(SIZE.replace(f"max-update: {UPDATES}", "max-update: 12").replace("[-20, 20]", "1"))
    asked = ["demo", "--sentences", 300, "--size", size, "--updates", 12, "--rows", "baseline,lpea"]
    first, again = (cli(*asked, cwd=tmp_path) for _ in range(2))
    for output in (first.stdout, again.stdout):
        table = output[output.index("== results") :]
        assert re.search(r"^baseline +[\d,]+ ", table, re.MULTILINE)
        assert re.search(r"^lpea +[\d,]+ .*\(one seed\).* 1$", table, re.MULTILINE)
        assert re.search(r"^word by word: BLEU [\d.]+, chrF [\d.]+ ", table, re.MULTILINE)
        shown = r"^sentence \d+\n  source +\S.*\n  reference +\S.*\n  baseline .*\n  lpea "
        assert len(re.findall(shown, table, re.MULTILINE)) == 5
        assert "the same as a page:  demo/report.html\n" in table
        following = [line.split("  # ")[0].strip() for line in table[table.index("\nNext") :].splitlines()[2:]]
        assert len(following) == 3
    assert first.stderr.count("done before") == 0 and again.stderr.count("done before") == 2
    assert first.stdout.count("drawn before") == 0 and again.stdout.count("drawn before") == 4
    for line in following:
        words = shlex.split(line)
        words = words[words.index("fairseq-diverse") + 1 :]
        build_parser(words).parse_args(words)
    page = (tmp_path / "demo/report.html").read_text()
    assert "baseline" in page and "lpea" in page
    maps = sorted(path.name for path in (tmp_path / "demo/attention").glob("*.png"))
    assert maps == [f"{s}-{c}-2.png" for s in ("baseline", "lpea") for c in ("cross", "encoder")]
    other = cli("demo", "--sentences", 200, *asked[3:], cwd=tmp_path, fails=2).stderr
    assert other == "fairseq-diverse demo: --sentences 200: demo/raw has 300 already; give another --out\n"
    (checkpoint,) = (tmp_path / "demo").glob("toy-mini-baseline-*/seed1/checkpoints/checkpoint_*.pt")
    checkpoint.write_text("damaged")
    failed = cli(*asked, cwd=tmp_path, fails=2)
    assert failed.stderr.count("not a checkpoint") == 2 and failed.stdout.count("drawn before") == 2
    assert failed.stderr.splitlines()[-1] == "fairseq-diverse demo: baseline: a map could not be drawn, see above"


def test_a_wrong_flag_is_refused_before_anything_is_written(tmp_path):
    said = cli("demo", "--rows", "nope", cwd=tmp_path, fails=2).stderr
    assert said.startswith("fairseq-diverse run: --rows: no row nope in toy") and not list(tmp_path.iterdir())


NOTEBOOK = Path(__file__).resolve().parents[2] / "docs/tutorial.ipynb"
CELLS = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def without_numbers(text: str) -> str:
    """They differ a little between machines."""
    return re.sub(r"-?\d+(\.\d+)?", "#", text)


def test_the_cells_run_and_print_what_is_stored(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TQDM_DISABLE", "")  # restored after the test, which sets it
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names: dict = {}
    with preprocess_in_a_fork(), warnings.catch_warnings():
        for number, cell in enumerate(CELLS, 1):
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
            stored = "".join("".join(out["text"]) for out in cell["outputs"] if out.get("name") == "stdout")
            assert without_numbers(capsys.readouterr().out) == without_numbers(stored), number
    assert len(names["cosines"]["baseline"]) == 6
    for place, cosine in names["cosines"]["baseline"].items():
        assert names["cosines"]["disagreement"][place] < min(cosine, -0.2), place
    names["plt"].close(names["figure"])
    assert [text.get_text() for text in names["picture"].legends[0].get_texts()] == ["baseline", "disagreement"]


def test_both_pictures_are_stored_and_small():
    shown = [output.get("data", {}) for cell in CELLS for output in cell["outputs"]]
    pictures = [base64.b64decode(data["image/png"]) for data in shown if "image/png" in data]
    assert len(pictures) == 2
    for picture in pictures:
        assert picture.startswith(b"\x89PNG") and len(picture) < 100_000
