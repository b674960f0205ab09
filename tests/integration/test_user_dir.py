"""A mechanism in a user's folder, through the command line."""

import json
import multiprocessing
import re
import time
from pathlib import Path

import pytest

from fairseq_diverse.checkpoints.loading import load_checkpoint, save_checkpoint
from tests.integration.commands import TINY, cli, make_data, run
from tests.integration.training import refused

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "temperature"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """In a new process, in which the folder registers the package with fairseq."""
    folder = tmp_path_factory.mktemp("own")
    data = make_data(folder)
    flags = [*TINY.split(), "--temperature-on", "encoder,cross:1", "--temperature-initial", "2", "--max-update", 3]
    run("train", data, *flags, "--save-dir", folder / "checkpoints", user_dir=FOLDER, fork=False)
    return data, folder / "checkpoints" / "checkpoint_last.pt"


def test_training_generation_and_size_have_it(trained):
    data, checkpoint = trained
    own = {key: value for key, value in load_checkpoint(checkpoint)["model"].items() if ".temperature." in key}
    assert {key.rsplit(".", 3)[0] for key in own} >= {"encoder.layers.0", "decoder.layers.0"}
    assert all((value - 0.6931).abs().max() > 1e-4 for value in own.values())  # log 2, trained
    flags = ["--path", checkpoint, "--beam", 2, "--cpu", "--max-len-b", 5]
    assert len(re.findall(r"^H-\d+", run("generate", data, *flags, user_dir=FOLDER).stdout, re.MULTILINE)) == 8
    flags = ["--arch", "diverse_transformer_tiny", "--vocabulary", 100, "--temperature-on", "encoder", "--json"]
    assert json.loads(cli("size", *flags, "--user-dir", FOLDER).stdout)["parameters"]["added"] == 2 * 2


def test_without_the_folder_the_message_names_the_flag(trained, tmp_path, error_of):
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
        assert said in refused("generate", data, "--path", path, "--cpu")
    flags = ("--to", "fairseq", "--out", tmp_path / "out.pt", tmp_path / "plain.pt")
    assert "the mechanism temperature cannot go" in error_of("export", *flags)


def test_a_fork_leaves_the_workers_of_its_parent_alone():
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    worker.start()
    try:
        cli("--version")
        assert worker.is_alive()
    finally:
        worker.kill()
        worker.join()
