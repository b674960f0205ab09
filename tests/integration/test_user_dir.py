"""A mechanism in a user's folder, through the command line."""

import json
import re
import sys
from pathlib import Path

import pytest

from fairseq_diverse.checkpoints.loading import load_checkpoint, save_checkpoint
from tests.integration.commands import TINY, Fork, make_data, run

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "temperature"
PACKAGE = FOLDER.parents[1] / "fairseq_diverse"


def command(module, *args):
    """In a fork, which the folder's mechanism does not leave."""
    return Fork([sys.executable, "-m", module, *map(str, args)]).wait()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """In a new process, in which the folder registers the package with fairseq."""
    folder = tmp_path_factory.mktemp("own")
    data = make_data(folder)
    flags = [*TINY.split(), "--user-dir", FOLDER, "--temperature-on", "encoder,cross:1", "--temperature-initial", "2"]
    run("train", data, *flags, "--max-update", 3, "--save-dir", folder / "checkpoints", user_dir=False)
    return data, folder / "checkpoints" / "checkpoint_last.pt"


def test_training_saves_its_parameters(trained):
    _, checkpoint = trained
    own = {key: value for key, value in load_checkpoint(checkpoint)["model"].items() if ".temperature." in key}
    assert {key.rsplit(".", 3)[0] for key in own} >= {"encoder.layers.0", "decoder.layers.0"}
    assert all((value - 0.6931).abs().max() > 1e-4 for value in own.values())  # log 2, trained


def test_fairseq_generate_translates_with_it(trained):
    data, checkpoint = trained
    flags = ["--path", checkpoint, "--beam", 2, "--cpu", "--max-len-b", 5]
    done = command("fairseq_cli.generate", data, "--user-dir", FOLDER, *flags)
    assert done.returncode == 0 and len(re.findall(r"^H-\d+", done.stdout, re.MULTILINE)) == 8, done.stderr[-2000:]


def test_size_counts_it(trained):
    flags = ["--arch", "diverse_transformer_tiny", "--vocabulary", 100, "--temperature-on", "encoder", "--json"]
    done = command("fairseq_diverse.cli", "size", *flags, "--user-dir", FOLDER)
    assert done.returncode == 0 and json.loads(done.stdout)["parameters"]["added"] == 2 * 2, done.stderr


def test_without_the_folder_the_message_names_the_flag(trained, tmp_path):
    """Also where the mechanism has no parameters, and where the checkpoint is of before its name was kept."""
    data, checkpoint = trained
    state = load_checkpoint(checkpoint)
    parameters = state["model"]
    plain = {key: value for key, value in parameters.items() if ".temperature." not in key}
    save_checkpoint(state | {"model": plain}, tmp_path / "plain.pt")
    assert state["cfg"]["model"].own_mechanisms == "temperature"
    state["cfg"]["model"].own_mechanisms = None
    save_checkpoint(state, tmp_path / "before.pt")
    name = "the model has the mechanism 'temperature', which is not registered; give its --user-dir"
    unknown = "has a mechanism that is not registered; give its --user-dir"
    for path, said in ((checkpoint, name), (tmp_path / "plain.pt", name), (tmp_path / "before.pt", unknown)):
        done = command("fairseq_cli.generate", data, "--user-dir", PACKAGE, "--path", path, "--cpu")
        assert done.returncode and said in done.stderr and "Traceback" not in done.stderr, done.stderr
    flags = ("--to", "fairseq", "--out", tmp_path / "out.pt", tmp_path / "plain.pt")
    done = command("fairseq_diverse.cli", "export", *flags)
    assert done.returncode and "the mechanism temperature cannot go" in done.stderr
