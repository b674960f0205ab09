"""The shell scripts as a user runs them, with a tiny model."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.integration.test_parse import MODELS, needs_models
from tests.integration.test_prepare import write_raw
from tests.integration.test_run import SIZE

pytestmark = pytest.mark.integration

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def call(script: str, *arguments: object, **variables: object) -> str:
    command = [SCRIPTS / script, *map(str, arguments)]
    env = os.environ | {"OMP_NUM_THREADS": "1"} | {name: str(value) for name, value in variables.items()}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture
def size(tmp_path) -> Path:
    path = tmp_path / "mini.yaml"
    path.write_text(SIZE.replace("max-update: 60", "max-update: 12"))
    return path


def test_demo(tmp_path, size):
    variables = {"SENTENCES": 300, "SIZE": size, "SYSTEMS": "baseline,lpea", "DEMO": tmp_path / "demo"}
    first, again = call("demo.sh", **variables), call("demo.sh", **variables)
    for output in (first, again):
        table = output[output.index("== results") :]
        assert re.search(r"^baseline +[\d,]+ ", table, re.MULTILINE)
        assert re.search(r"^lpea +[\d,]+ .*\(p .*1$", table, re.MULTILINE)
        assert re.search(r"^word by word: BLEU [\d.]+, chrF [\d.]+ ", table, re.MULTILINE)
    assert first.count("done before") == 0 and again.count("done before") == 2
    maps = sorted(path.name for path in (tmp_path / "demo/attention").glob("*.png"))
    assert maps == [f"{s}-{c}-2.png" for s in ("baseline", "lpea") for c in ("cross", "encoder")]


@pytest.fixture
def raw(tmp_path) -> Path:
    folder = write_raw(tmp_path / "raw", lines=100)
    for path in list(folder.iterdir()):
        path.rename(str(path).replace("/valid.", "/val.").replace("/test.", "/test_2016_flickr."))
    return folder


@needs_models
def test_multi30k_with_syntax(tmp_path, raw, size):
    models = {f"{kind.upper()}_MODEL": path for kind, path in MODELS.items()}
    variables = {"SEEDS": 1, "SIZE": size, **models}
    output = call("multi30k.sh", raw, tmp_path / "out", "baseline", "lpea-rhe", **variables)
    assert "train: 100 sentences, 0 without a usable constituency tree" in output
    assert re.search(r"^\| lpea-rhe \| [\d,]+ \| .* \| 1 \|$", output, re.MULTILINE)


def test_multi30k_then_a_length_penalty(tmp_path, raw, size):
    out = tmp_path / "out"
    table = call("multi30k.sh", raw, out, "baseline", SEEDS="1,2", SIZE=size)
    assert re.search(r"^\| baseline \| [\d,]+ \| .* ± .* \| 2 \|$", table, re.MULTILINE)
    checkpoint = next(out.glob("multi30k_en_de-mini-baseline-*/seed2/checkpoints/checkpoint_average.pt"))
    text = call("tune-lenpen.sh", checkpoint, out / "data/multi30k_en_de", 0.5, 2)
    assert re.findall(r"^ *(lenpen-\S+) +\d", text, re.MULTILINE) == ["lenpen-0.5.log", "lenpen-2.log"]
