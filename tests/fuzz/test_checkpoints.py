"""Untrusted files: none of their code is run, every problem is a UserError, and damage is found."""

import contextlib
import io
import zipfile
from argparse import Namespace
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_diverse import register
from fairseq_diverse.checkpoints.averaging import average_checkpoints
from fairseq_diverse.checkpoints.loading import load_checkpoint
from fairseq_diverse.checkpoints.settings import EVALUATED, is_literal
from fairseq_diverse.support.errors import UserError
from tests.fuzz.budget import budget

TEMPLATES = ["{}({})", "{}[{}]", "[{} for spy.a in [{}]]", "[{} for x in {}]", "[x for spy[0] in {}]", "({} + {})"]
TEMPLATES += [
    "({} in {})", "[*{}, {}]", "(lambda x={}: {})()", "(x := {})", "f'{{spy!s:{{{}}}}}'", " \t{} if {} else 1"
]  # fmt: skip
TEMPLATES += ["{} and not -{}", "{}.a", "{}.__class__", "{}.__getitem__(0)", "[{}] * {}", "{{{}: {}}}", "{{*{}}}"]
expressions = st.recursive(
    st.sampled_from(["spy", "spy.a", "1", "'a'", "x"]),
    lambda inner: st.builds(str.format, st.sampled_from(TEMPLATES), inner, inner),
    max_leaves=6,
)
literals = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner),
)
EVALUATED_NAMES = ["adaptive_softmax_cutoff", "adam_betas", "encoder_layers", "xformers_att_config", "left_pad_source"]
names = st.sampled_from([*EVALUATED_NAMES, "arch", "user_dir", "data", "eval_bleu_args", "encoder_embed_path", "_name"])
strings = (
    expressions | st.text(max_size=20) | literals.map(repr) | st.sampled_from(["${oc.env:HOME}", "a/b-c.pt", "@@ "])
)
source = st.binary(min_size=1, max_size=3)  # eval runs bytes, and arrays of them
configs = st.recursive(
    strings | source | source.map(lambda code: np.frombuffer(code, np.uint8)) | st.integers(),
    lambda inner: st.one_of(
        st.dictionaries(names, inner, max_size=4),
        st.dictionaries(names, inner, max_size=4).map(lambda settings: Namespace(**settings)),
        st.lists(inner, max_size=3),
    ),
    max_leaves=8,
)


def checkpoint(config: Any = None, **entries: Any) -> dict[str, Any]:
    shared = torch.arange(6.0).reshape(2, 3)
    model = OrderedDict({"a": shared, "b": shared, "half": torch.ones(3).half(), "n": torch.tensor([1, 2])})
    return {
        "args": None,
        "cfg": {"model": Namespace(arch="transformer", adam_betas="(0.9, 0.98)", own=config)},
        "model": model,
        "extra_state": {"counts": np.array([3, 1]), "best": np.float64(3.5), "train_iterator": {"epoch": 2}},
        "optimizer_history": [{"optimizer_name": "FairseqAdam", "lr_scheduler_state": {}, "num_updates": 2}],
        **entries,
    }


def settings(config: Any, name: str = "model") -> Any:
    """Every value in a configuration that ``eval`` takes, with the name of its setting."""
    config = vars(config) if isinstance(config, Namespace) else config
    if isinstance(config, dict):
        for key, value in config.items():
            yield from settings(value, key)
    elif isinstance(config, list):
        for value in config:
            yield from settings(value, name)
    elif isinstance(config, str | bytes | np.ndarray):
        yield name, config


@given(configs)
@budget(2)
def test_what_is_accepted_runs_nothing_when_it_is_evaluated(tmp_path, config):
    path = tmp_path / "checkpoint.pt"
    torch.save(checkpoint(config), path)
    try:
        load_checkpoint(path)
    except UserError as error:
        assert "checkpoint.pt: refused: it" in str(error) and "\n" not in str(error)
        return
    for name, value in settings(config):
        assert "${" not in str(value)
        if name in EVALUATED:
            with contextlib.suppress(TypeError):  # as 1 + "a"
                eval(value, {"__builtins__": {}})  # a name would be a NameError


@given(literals, st.sampled_from(EVALUATED_NAMES))
@budget(0.5)
def test_every_literal_is_accepted(tmp_path, value, name):
    text = repr(value)
    assert is_literal(text)
    if "${" not in text:
        torch.save(checkpoint({name: text}), tmp_path / "checkpoint.pt")
        load_checkpoint(tmp_path / "checkpoint.pt")


edits = st.lists(
    st.tuples(st.sampled_from(["set", "insert", "cut", "end"]), st.floats(0, 1), st.binary(min_size=1, max_size=4))
)


def edited(data: bytes, changes: list[tuple[str, float, bytes]]) -> bytes:
    for kind, place, what in changes:
        at = int(place * len(data))
        if kind == "end":
            data = data[: max(at, len(data) - 9)]
        else:
            data = data[:at] + what * (kind != "cut") + data[at + len(what) * (kind != "insert") :]
    return data


@given(edits, st.sampled_from(["zip", "pickle", "legacy"]))
@budget(2)
def test_a_damaged_file_is_a_user_error(tmp_path, changes, what):
    """The whole file, only its pickle (with the right checksum), and the format before torch 1.6."""
    from fairseq import checkpoint_utils

    register()
    path, file = tmp_path / "checkpoint.pt", io.BytesIO()
    torch.save(checkpoint(), file, _use_new_zipfile_serialization=what != "legacy")
    if what == "pickle":
        with zipfile.ZipFile(file) as source, zipfile.ZipFile(path, "w") as target:
            for name in source.namelist():
                content = source.read(name)
                target.writestr(name, edited(content, changes) if name.endswith("data.pkl") else content)
    else:
        path.write_bytes(edited(file.getvalue(), changes))
    for load in (load_checkpoint, lambda path: checkpoint_utils.load_checkpoint_to_cpu(str(path), {"data": "other"})):
        try:
            load(path)
        except UserError as error:
            assert str(path) in str(error) and "\n" not in str(error)


@pytest.fixture(scope="module")
def average(tmp_path_factory) -> bytes:
    folder = tmp_path_factory.mktemp("average")
    torch.save(checkpoint(), folder / "checkpoint1.pt")
    average_checkpoints([folder / "checkpoint1.pt"] * 2, folder / "average.pt")
    return (folder / "average.pt").read_bytes()


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@budget(0.5)
def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path, average, place, bit):
    data, path = bytearray(average), tmp_path / "average.pt"
    data[int(place * len(data))] ^= 1 << bit
    path.write_bytes(data)
    try:
        loaded = load_checkpoint(path)
    except UserError:
        return
    for key, value in checkpoint()["model"].items():
        assert torch.equal(loaded["model"][key], value)
    assert loaded["cfg"]["model"].adam_betas == "(0.9, 0.98)"
