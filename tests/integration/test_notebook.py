"""docs/tutorial.ipynb: its cells run, and what it shows is what they give."""

import base64
import json
import re
import tempfile
import warnings
from pathlib import Path

from tests.integration.commands import preprocess_in_a_fork

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
