"""Whatever config.json of a shared model has, it is read as data or refused in one line."""

import json
import tempfile
from argparse import Namespace
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_diverse.checkpoints.loading import load_checkpoint
from fairseq_diverse.checkpoints.shared import CONFIG, write_shared
from fairseq_diverse.models.sharing import shared_folder
from fairseq_diverse.support.errors import UserError
from tests.fuzz.budget import budget

WEIGHT = torch.ones(2, 3)
STATE = {
    "model": {"a": WEIGHT, "b": WEIGHT, "c": torch.zeros(0)},
    "cfg": {"model": Namespace(arch="transformer", lr=[0.1], data="/home/me"), "task": {"_name": "translation"}},
    "optimizer_history": [{"num_updates": 3}],
}
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("../x")
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=3,
)
KEYS = ("schema", "format", "args", "cfg", "namespaces", "task_state", "tied", "files", "updates", "version")
KEYS += ("mechanisms", "architecture", "task", "code")


@given(changes=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3), cut=st.integers(0, 40))
@budget(1)
def test_any_config_is_read_or_refused(changes, cut):
    with tempfile.TemporaryDirectory() as given_folder:
        folder = Path(given_folder)
        write_shared(STATE, folder, version="1")
        whole = load_checkpoint(folder)
        assert whole["model"]["b"].equal(WEIGHT) and whole["cfg"]["model"] == Namespace(
            **vars(STATE["cfg"]["model"]) | {"data": ""}
        )
        text = json.dumps(json.loads((folder / CONFIG).read_text()) | changes)
        (folder / CONFIG).write_text(text[: len(text) - cut] if cut > 30 else text, errors="surrogatepass")
        try:
            assert set(load_checkpoint(folder)["model"]) >= {"a"}
            assert shared_folder(folder) == folder
        except UserError as error:
            assert "\n" not in str(error) and str(folder) in str(error)
