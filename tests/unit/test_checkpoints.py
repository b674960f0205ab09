"""Loading checkpoints: only files of fairseq can be loaded, and no code in a file is run."""

import ast
import json
import os
import re
import sys
import zipfile
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._inductor.exc import InductorError, InvalidCxxCompiler

from fairseq_diverse import register
from fairseq_diverse.checkpoints import shared
from fairseq_diverse.checkpoints.loading import load_checkpoint
from fairseq_diverse.checkpoints.settings import EVALUATED, is_literal
from fairseq_diverse.host.loading import load_ensemble, load_problem
from fairseq_diverse.host.messages import install_error_hook
from fairseq_diverse.support.errors import UserError
from tests.cases import build_model
from tests.refusals import refused

NUMBERS = [
    np.array([3, 0, 1], dtype=np.int64), np.array([3, 0, 1], dtype=">i4"),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array([[True], [False]]), np.array(7, dtype=np.float16),
    np.float64(36.7), np.int32(-4), np.bool_(True)
]  # fmt: skip


def checkpoint(**model_flags) -> dict:
    """The entries of a checkpoint of fairseq-train, with a model of one weight."""
    model = Namespace(arch="transformer", adam_betas="(0.9, 0.98)", save_dir="runs (2)", **model_flags)
    return {
        "args": None,
        "cfg": {"model": model, "task": {"data": "data-bin (copy)"}, "optimizer": {"lr": [0.1]}},
        "model": OrderedDict(weight=torch.arange(4.0)),
        "extra_state": {"train_iterator": {"epoch": 2}},
        "optimizer_history": [{"optimizer_name": "FairseqAdam", "lr_scheduler_state": {}, "num_updates": 2}],
    }


class Call:
    """Pickled as a call of ``function``."""

    def __init__(self, function, *arguments, state=None):
        self.call = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.call


def forged_array() -> Call:
    """An array of object pointers made from bytes: NumPy's unpickling crashes on it, or runs what it points to."""
    objects = Call(np.dtype, "O8", False, True, state=(3, "|", None, None, None, -1, -1, 0))  # flags: "no objects"
    state = (1, (1,), objects, False, b"A" * 8)
    return Call(np._core.multiarray._reconstruct, np.ndarray, (0,), b"b", state=state)


def pickled_text(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))


def test_fairseq_checkpoint_loads(tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save(checkpoint(adaptive_softmax_cutoff="[2, 3]"), path)
    for mmap in (False, True):
        state = load_checkpoint(path, mmap)
        assert state["cfg"]["model"].adaptive_softmax_cutoff == "[2, 3]"
        assert torch.equal(state["model"]["weight"], torch.arange(4.0))


@pytest.mark.parametrize("part", ["args", "cfg"])
def test_an_older_checkpoint_keeps_what_was_the_default(part, tmp_path):
    """Localness had parameters shared over the heads, and no setting for it."""
    for settings, form in (
        ({"localness_on": "encoder:1"}, "shared"), ({"localness_on": "encoder:1", "localness_form": "heads"}, "heads"),
        ({"localness_on": ""}, None), ({}, None)
    ):  # fmt: skip
        flags = Namespace(**settings)
        path = tmp_path / "checkpoint.pt"
        torch.save({"model": {}, part: flags if part == "args" else {"model": flags}}, path)
        loaded = load_checkpoint(path)[part]
        assert getattr(loaded if part == "args" else loaded["model"], "localness_form", None) == form


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_numpy_numbers_survive_two_rounds(tmp_path, number):
    """As after --eval-bleu, resuming and saving again: the second file has NumPy's classes, too."""
    first, second = tmp_path / "first.pt", tmp_path / "second.pt"
    torch.save({**checkpoint(), "number": number}, first)
    torch.save(load_checkpoint(first), second)
    assert b"fairseq_diverse" not in pickled_text(second)
    loaded = load_checkpoint(second)["number"]
    np.testing.assert_array_equal(loaded, number, strict=number.dtype.isnative)
    assert (loaded + loaded).sum() == (number + number).sum()


def test_numpy_1_names_load(tmp_path):
    path, old = tmp_path / "checkpoint.pt", tmp_path / "old.pt"
    torch.save({**checkpoint(), "counts": NUMBERS[0], "best": NUMBERS[5]}, path)
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(old, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name).replace(b"numpy._core.", b"numpy.core."))
    assert b"numpy.core." in pickled_text(old)
    state = load_checkpoint(old)
    assert state["counts"].tolist() == [3, 0, 1] and state["best"] == 36.7


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("function", [os.system, eval, np.load], ids=lambda f: f.__name__)
def test_payload_is_refused_and_not_run(tmp_path, function, zipped):
    marker, path = tmp_path / "marker", tmp_path / "hostile.pt"
    text = f"touch {marker}" if function is os.system else f"open({str(marker)!r}, 'w')"
    torch.save({**checkpoint(), "extra_state": Call(function, text)}, path, _use_new_zipfile_serialization=zipped)
    refused(rf"hostile\.pt: refused: it names \S*{function.__name__}, .*nothing was run", load_checkpoint, path)
    assert not marker.exists()


@pytest.mark.parametrize(
    "payload",
    [
        forged_array(), np.array([print], dtype=object), np.array(["text"]),
        Call(np._core.multiarray.scalar, "O8", b"A" * 8),
        Call(np._core.multiarray._reconstruct, np.ndarray, (0,), b"b", state=(1, (1,), "O8", False, [1])),
        Call(np._core.multiarray._reconstruct, np.ndarray, (0,), b"b", state=(1, (9,), np.dtype("f8"), False, b"12")),
        Call(np.ndarray, (3,), "O8"), Call(np.dtype, [("field", "O8")]), Call(Namespace, print)
    ],
    ids=["forged", "objects", "text", "scalar", "list", "short", "ndarray", "fields", "namespace"],
)  # fmt: skip
def test_allowed_names_hold_only_numbers_and_flags(tmp_path, payload):
    path = tmp_path / "hostile.pt"
    torch.save({**checkpoint(), "extra_state": payload}, path)
    refused(r"hostile\.pt: (refused|damaged)", load_checkpoint, path)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        *(
            (value, "adaptive_softmax_cutoff")
            for value in (
                "[argparse.Namespace['true'] for argparse.Namespace.__class_getitem__ in [os.system]]",
                "[0] + [argparse.Namespace['true'] for argparse.Namespace.__class_getitem__ in [os.system]] * 2",
                *("os.system", "a[0]", "lambda: 0", "f'{x}'", "1 if x else 2", "not a literal", " \t f()"),
                *("[x() for x in (1,)]", "__import__('os').system('true')", "(" * 60 + "f()" + ")" * 60),
                *("-" * 100_000 + "f()", "${oc.env:HOME}", b"f()", bytearray(b"f()"), ["f()"]),
                *(np.frombuffer(b"f()", np.uint8), np.frombuffer(b"print(1)", np.float64)[0]),
                Namespace(other={"adaptive_softmax_cutoff": "f()"}),
            )
        ),
        ("${oc.env:HOME}", "restore_file"),
        ("fasta", "dataset_impl"),
    ],
    ids=lambda value: repr(value)[:20],
)
@pytest.mark.parametrize("legacy", [True, False], ids=["args", "cfg"])
def test_setting_that_fairseq_would_evaluate_replace_or_run_is_refused(tmp_path, value, name, legacy):
    path = tmp_path / "hostile.pt"
    state = checkpoint(**{name: value})
    if legacy:
        state["args"], state["cfg"] = state["cfg"]["model"], None
    torch.save(state, path)
    refused(rf"hostile\.pt: refused: its setting {name} = ", load_checkpoint, path)


def test_text_and_recursive_lists_load(tmp_path):
    circle: list = ["en-de,de-en", "checkpoints/average.pt", "not set", "@@ ", '{"beam": 1, "nested": [true]}']
    circle.append(circle)
    torch.save(checkpoint(unknown=circle, text="a (b", finetune_from_model="f(x)"), tmp_path / "checkpoint.pt")
    load_checkpoint(tmp_path / "checkpoint.pt")


LITERALS = "1000,2000|[3, 7]|(0.9, 0.98)|(1e-30, 1e-3)|True|None|-1|{'name': 'x', 'drop': 0.1}| [(1, 2)]\n"
CONVOLUTIONS = "[(512, 3)] * 20|[(512, 3)] * 9 + [(1024, 3)] * 4"  # of fairseq


COMPUTED = ["[0] * 10**9", "[0] * 100000", "[[0] * 9] * 9", "([0] * 99) * 99", "2 * 3", "'a' * 3", "", "a\0", "[x] * 2"]


@pytest.mark.parametrize("text", [*LITERALS.split("|"), *CONVOLUTIONS.split("|"), *COMPUTED])
def test_values_are_literals_and_nothing_else_is_computed(text):
    assert is_literal(text) == (text not in COMPUTED)


def evaluated(tree: ast.AST) -> Iterator[str]:
    """The settings in calls of ``eval`` and of fairseq's functions around it; "?" for another expression."""
    flags = {}  # call in the type of a flag -> name of the flag
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in calls:
        match call:
            case ast.Call(func=ast.Attribute(attr="add_argument"), args=[ast.Constant(str(flag)), *_]):
                flags |= dict.fromkeys(ast.walk(call), flag[2:].replace("-", "_"))
    for call in calls:
        if not re.match(r"(\w+\.)?eval_(str_list|str_dict|bool)\(|eval\(", ast.unparse(call)):
            continue
        match call.args[0]:
            case ast.Attribute(attr=setting) | ast.Call(args=[_, ast.Constant(setting), *_]):
                yield setting
            case ast.Name(id=setting):
                yield flags.get(call, setting)
            case _:
                yield "?"


def test_the_settings_that_fairseq_evaluates_are_known():
    """In all of its source and its programs."""
    import fairseq

    root = Path(fairseq.__file__).parent
    files = [*root.rglob("*.py"), *root.with_name("fairseq_cli").glob("*.py")]
    found = {path: set(evaluated(ast.parse(path.read_text()))) for path in files}
    speech = {path.name for path, settings in found.items() if settings & {"?", "line"}}  # lines of data
    assert speech == {"codedataset.py", "data_utils.py", "quantize_f0.py", "sample.py"}
    names = set().union(*found.values()) - {"?", "line", "x"}  # x: in the functions themselves
    assert names == {name for name in EVALUATED if not name.endswith("coder_xformers_att_config")}


@pytest.mark.parametrize(("optimizer", "flag"), [("adam", "--adam-betas"), ("adafactor", "--adafactor-eps")])
def test_flags_that_fairseq_evaluates_are_literals(optimizer, flag):
    from fairseq import options

    register()
    words = ["data", "--arch", "transformer", "--optimizer", optimizer, flag]
    options.parse_args_and_arch(options.get_training_parser(), [*words, "(0.9, 0.98)"])
    parser = options.get_training_parser()
    refused(rf"^{flag} \(0\.9, x\): not a literal", options.parse_args_and_arch, parser, [*words, "(0.9, x)"])


def save_model(path: Path, **parameters) -> Path:
    torch.save({**checkpoint(), "model": OrderedDict(parameters)}, path)
    return path


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_impossible_weight_is_refused(tmp_path, value, dtype):
    weight = torch.ones(3, 2)
    weight[1, 1] = value
    path = save_model(tmp_path / "flipped.pt", fine=torch.ones(1), bad=weight.to(dtype))
    refused(rf"flipped\.pt: bad has the value {value}: training diverged", load_checkpoint, path, mmap=True)
    load_checkpoint(path, verify=False)


@pytest.mark.parametrize("name", ["../other", "/dev/null"])
def test_a_shared_model_names_no_file_outside_its_folder(name, tmp_path):
    config = {"format": shared.FORMAT, "schema": shared.SCHEMA, "files": {name: "0", shared.WEIGHTS: "0"}}
    (tmp_path / shared.CONFIG).write_text(json.dumps(config))
    refused(f"config.json: '{name}' is outside the folder", shared.read_shared, tmp_path)


def test_a_mechanism_may_have_infinities_and_no_nan(tmp_path):
    name = "encoder.layers.0.self_attn.own.mask"
    path = save_model(tmp_path / "diverged.pt", **{name: torch.tensor([float("inf"), float("nan")])})
    refused(rf"diverged\.pt: {name} has the value nan", load_checkpoint, path)


def test_other_entries_may_have_any_value(tmp_path):
    anything = {
        "version": torch.tensor([10**9]), "embed._float_tensor": torch.tensor([float("nan")]), "no": torch.zeros(0),
        "encoder.layers.0.self_attn.own.mask": torch.tensor([float("inf"), float("-inf")])
    }  # fmt: skip
    load_checkpoint(save_model(tmp_path / "checkpoint.pt", most=torch.tensor([3e38, -3e38]), **anything))


def test_parameters_of_mechanisms_are_finite():
    """Their constants need not be, and a file does not say which is which."""
    model = build_model({"relative_on": "encoder"})
    model.encoder.layers[0].self_attn.relative.keys.data[0, 0] = -float("inf")
    said = r"^a\.pt: encoder\.layers\.0\.self_attn\.relative\.keys is not finite:"
    refused(said, load_ensemble, lambda *given: ([model], None, None), ["a.pt"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cfg": [1]}, "its configuration, or its state of training or task, is not a dictionary"),
        ({"cfg": {"task": [1]}}, "its settings of task are not a dictionary"),
        ({"args": "x"}, "its arguments are not a Namespace"),
        ({"model": {5: torch.zeros(1)}}, "a parameter's name is 5"),
        ({"optimizer_history": ["x"]}, "its configuration, or its state of training"),
    ],
    ids=str,
)
def test_parts_of_another_kind_are_refused(tmp_path, change, message):
    torch.save({**checkpoint(), **change}, tmp_path / "other.pt")
    refused(rf"other\.pt: not a fairseq checkpoint: {message}", load_checkpoint, tmp_path / "other.pt")


@pytest.mark.parametrize("name", ["encoder_layers", "classifier_layers", "decoder_embed_dim", "max_source_positions"])
def test_sizes_that_the_file_cannot_have_are_refused(tmp_path, name):
    """Building them would take forever."""
    torch.save(checkpoint(**{name: 10**9}), tmp_path / "large.pt")
    said = rf"large\.pt: refused: its setting {name} = 1000000000 is not that of a model"
    refused(said, load_checkpoint, tmp_path / "large.pt")
    torch.save(checkpoint(encoder_layers=1, max_source_positions=10**6), tmp_path / "fine.pt")
    load_checkpoint(tmp_path / "fine.pt")


def test_a_flipped_bit_is_found(tmp_path):
    """Also if the changed number could be a weight; also in the optimizer's state and the configuration."""
    whole, flipped = tmp_path / "whole.pt", tmp_path / "flipped.pt"
    state = {**checkpoint(), "last_optimizer_state": torch.full((9,), 3.25)}
    torch.save(state, whole)
    load_checkpoint(whole)
    for found in (torch.arange(4.0).numpy().tobytes(), torch.full((9,), 3.25).numpy().tobytes(), b"adam_betas"):
        data = bytearray(whole.read_bytes())
        data[data.index(found) + 5] ^= 1
        flipped.write_bytes(data)
        refused(r"flipped\.pt: damaged: \S+ in it has a wrong checksum", load_checkpoint, flipped, mmap=True)


def test_a_file_written_without_checksums_loads(tmp_path):
    try:
        torch.serialization.set_crc32_options(False)
        torch.save(checkpoint(), tmp_path / "checkpoint.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    load_checkpoint(tmp_path / "checkpoint.pt")
    torch.save(checkpoint(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    load_checkpoint(tmp_path / "old.pt")


def damaged_files(folder: Path) -> dict[str, str]:
    """Files that are not checkpoints, with the expected error for each."""
    torch.save(checkpoint(), folder / "whole.pt")
    whole = (folder / "whole.pt").read_bytes()
    (folder / "truncated.pt").write_bytes(whole[:-100])
    (folder / "start.pt").write_bytes(whole[:10])
    locator = whole.rindex(b"PK\6\7") + 4
    (folder / "disk.pt").write_bytes(whole[:locator] + b"\1" + whole[locator + 1 :])
    (folder / "text.pt").write_text("no checkpoint\n" * 100)
    (folder / "empty.pt").touch()
    (folder / "folder.pt").mkdir()
    with zipfile.ZipFile(folder / "zip.pt", "w") as archive:
        archive.writestr("a.txt", "a")
    torch.save({"weight": torch.zeros(2)}, folder / "foreign.pt")
    torch.save(torch.zeros(2), folder / "tensor.pt")
    return {
        "truncated.pt": "truncated", "start.pt": "truncated", "disk.pt": "truncated", "text.pt": "not a checkpoint",
        "empty.pt": "empty file", "folder.pt": "cannot be read", "absent.pt": "cannot be read",
        "zip.pt": "damaged or not a checkpoint",
        "foreign.pt": 'not a fairseq checkpoint: a torch file without a "model" entry',
        "tensor.pt": "not a fairseq checkpoint"
    }  # fmt: skip


def test_a_wrong_file_gives_one_line(tmp_path):
    for name, expected in damaged_files(tmp_path).items():
        refused(f"^{re.escape(f'{tmp_path / name}: {expected}')}", load_checkpoint, tmp_path / name)


def test_fairseq_loads_through_the_same_checks(tmp_path):
    from fairseq import checkpoint_utils

    register()
    guarded = checkpoint_utils.load_checkpoint_to_cpu

    expected = damaged_files(tmp_path)
    assert guarded(str(tmp_path / "whole.pt"), {"arch": "other"})["cfg"].model.arch == "other"
    torch.save(checkpoint(adaptive_input_cutoff="print()"), tmp_path / "call.pt")
    state = checkpoint()
    state["cfg"]["model"] = {"one": "print", "adaptive_input_cutoff": "${model.one}()"}
    torch.save(state, tmp_path / "interpolated.pt")
    for name in [*expected, "call.pt", "interpolated.pt"]:
        refused(name, guarded, str(tmp_path / name))
    refused(r"Model file not found: absent\.pt", checkpoint_utils.load_model_ensemble, ["absent.pt"])
    state = checkpoint()
    state["cfg"]["task"] = {"_name": "translation", "source_lang": "en", "target_lang": "de", "data": str(tmp_path)}
    torch.save(state, tmp_path / "translation.pt")
    missing = f"{tmp_path}/dict.en.txt: missing; is {tmp_path} a folder of prepared data?"
    refused(re.escape(missing), checkpoint_utils.load_model_ensemble_and_task, [str(tmp_path / "translation.pt")])


def test_fairseq_reads_no_file_to_initialize_loaded_parameters(tmp_path):
    """It does not run a setting of any kind of checkpoint either; damaged states give one line."""
    from fairseq import checkpoint_utils

    register()
    marker, load = tmp_path / "marker", checkpoint_utils.load_model_ensemble_and_task
    for name in ("en", "de"):
        (tmp_path / f"dict.{name}.txt").write_text("w1 1\n")
    task = {"_name": "translation", "data": str(tmp_path), "source_lang": "en", "target_lang": "de"}
    flags = {"encoder_layers": 1, "decoder_layers": 1, "encoder_embed_dim": 4, "decoder_embed_dim": 4}
    flags |= {"encoder_attention_heads": 1, "decoder_attention_heads": 1, "_name": "transformer"}
    absent = {"encoder_embed_path": str(tmp_path / "absent"), "decoder_embed_path": str(tmp_path / "absent")}
    state = checkpoint(**flags, **absent)
    state["cfg"]["task"] = task
    torch.save(state, tmp_path / "embedded.pt")
    made = r"embedded\.pt: does not fit .*trained on other data\? Unexpected key"  # the model was made
    refused(made, load, [str(tmp_path / "embedded.pt")])
    refused("the path of the checkpoint is empty", load, [""])
    call = f"[x.y['touch {marker}'] for x.y in [os.system]]"
    for hostile, problem in (
        ({"lr": call}, "damaged or not a checkpoint"),
        ({"adam_betas": call}, "refused: its setting adam_betas"),
        ({"adam_betas": "1 +"}, "refused: its setting adam_betas"),
    ):
        torch.save({**checkpoint(), "args": Namespace(arch="transformer", **hostile)}, tmp_path / "hostile.pt")
        refused(rf"hostile\.pt: {problem}", load, [str(tmp_path / "hostile.pt")])
    torch.save(checkpoint(), tmp_path / "plain.pt")
    said = r"--model-overrides: refused: its setting adam_betas = "
    refused(said, load, [str(tmp_path / "plain.pt")], {"adam_betas": call})
    torch.save({"model": {}, "cfg": {}}, tmp_path / "bare.pt")
    said = r"bare\.pt: damaged or not a checkpoint \(KeyError"
    refused(said, checkpoint_utils.load_checkpoint_to_cpu, str(tmp_path / "bare.pt"))
    assert not marker.exists()


@pytest.mark.parametrize("change", ["shape", "missing", "unexpected"])
def test_a_mechanism_changed_after_training_is_named(change):
    """Neither the data nor a forgotten --user-dir is blamed."""
    model = build_model({"gated": "head"})
    state = model.state_dict()
    key = next(key for key in state if ".gated." in key)
    if change == "shape":
        state[key] = state[key][..., :1]
    elif change == "missing":
        del state[key]
    else:
        state[f"{key}_before"] = state[key]
    with pytest.raises(RuntimeError) as error:
        torch.nn.Module.load_state_dict(model, state)
    problem = load_problem("a.pt", "data", error.value)
    assert problem.startswith("a.pt: its parameters of the mechanism 'gated' do not fit the class; was the code")
    state["encoder.embed_tokens.weight"] = state["encoder.embed_tokens.weight"][:-1]
    with pytest.raises(RuntimeError) as error:
        torch.nn.Module.load_state_dict(model, state)
    assert "of the mechanism" not in load_problem("a.pt", "data", error.value)


def test_layers_of_another_width_blame_the_settings_not_the_data():
    plain, gated = build_model(), build_model({"gated_feed_forward": True})
    with pytest.raises(RuntimeError) as error:
        torch.nn.Module.load_state_dict(plain, gated.state_dict())
    problem = load_problem("a.pt", "data", error.value)
    blamed = "a.pt: does not fit its settings; leave out --model-overrides, or correct them: size mismatch for "
    assert problem.startswith(blamed)


def test_only_names_that_nobody_registered_are_said_to_be_unknown():
    """Not every assertion of a model of fairseq or of a user's folder: its own words are shown."""
    from fairseq import models, tasks
    from fairseq.modules import MultiheadAttention
    from omegaconf import OmegaConf

    for build, settings in (
        (tasks.setup_task, Namespace(task="absent")),
        (tasks.setup_task, OmegaConf.create({"_name": "absent"})),
        (models.build_model, Namespace(arch="absent")),
        (models.build_model, Namespace(arch="absent", eval_bleu_args="{}")),  # fails in fairseq's own message
        (models.build_model, OmegaConf.create({"_name": "absent"})),
    ):
        with pytest.raises(UserError, match=r"^a\.pt: its task or model is in neither fairseq nor this package$"):
            load_ensemble(lambda *_, build=build, settings=settings: build(settings, task=None), ["a.pt"])
    said = r"^a\.pt: cannot build .*: embed_dim must be divisible"
    refused(said, load_ensemble, lambda *_: MultiheadAttention(10, 3), ["a.pt"])


def test_resumed_half_precision_has_the_trained_weights():
    """The float32 copy is restored, unless the model's weights differ."""
    from fairseq.optim.fp16_optimizer import _FP16OptimizerMixin

    register()

    class Inner:
        def state_dict(self):
            return {"state": {}}

        def load_state_dict(self, state, overrides=None):
            assert state == {"state": {}}

    def optimizer(weights: list, flat: bool):
        mixed = _FP16OptimizerMixin()
        mixed.fp16_params = [torch.nn.Parameter(weight.bfloat16()) for weight in weights]
        copies = [torch.nn.Parameter(weight.bfloat16().float()) for weight in weights]
        mixed.fp32_params = dict(enumerate(copies)) if flat else copies
        mixed.fp32_optimizer, mixed.scaler = Inner(), None
        return mixed, copies

    weights = [torch.randn(3, 2), torch.randn(5)]
    for flat in (True, False):
        trained, copies = optimizer(weights, flat)
        for copy, weight in zip(copies, weights, strict=True):
            copy.data = weight
        saved = trained.state_dict()
        resumed, copies = optimizer([weights[0], weights[1] + 1], flat)
        resumed.load_state_dict(saved)
        assert torch.equal(copies[0], weights[0])
        assert torch.equal(copies[1], (weights[1] + 1).bfloat16().float())
        resumed.load_state_dict({"state": {}})  # of fairseq without the plugin


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UserError("a line"), "a line"),
        (FileNotFoundError(2, "No such file or directory", "a/dict.en.txt"), "a/dict.en.txt: no such file or folder"),
        (FileNotFoundError("Dataset not found: valid (data)"), "data: no split valid of these languages; see --source"),
        (FileNotFoundError("Dataset not found:  test (data)"), "--valid-subset: data has no split ' test'; write"),
        (AssertionError("Must specify --max-tokens"), "--num-batch-buckets: needs --max-tokens"),
        (ValueError("optimizer is required!"), "--optimizer: give one, such as --optimizer adam"),
        (AssertionError("world size is 2 but have 0 available devices"), "--distributed-world-size 2: torch finds 0"),
        (AttributeError("'MaskedLMTask' object has no attribute 'args'"), "--mask-whole-words: does not work in"),
        (
            TypeError("DiverseTransformerModel.forward() missing 1 required positional argument: 'prev_output_tokens'"),
            "the data have no target side: its .bin and .idx are missing",
        ),
        (Exception("Could not infer language pair, please"), "the data folder has no prepared language pair"),
        (
            Exception(
                "Size of sample #4 is invalid (=(7, 7)) since max_positions=(6, 5), skip this example with --skip"
            ),
            "sentence 4 (counted from 0) is longer than the (6, 5) positions of model and task: raise --max-source",
        ),
        (Exception("The dataset is empty. This"), "no batches: every sentence is too long"),
        (ImportError("Please install editdistance to use WER scorer"), "Please install editdistance to use WER scorer"),
        (AssertionError("Torch not compiled with CUDA enabled"), "torch finds no GPU: on a CPU, leave out --fp16"),
        (RuntimeError("No CUDA GPUs are available"), "torch finds no GPU: on a CPU, leave out --fp16"),
        (AssertionError("Must specify batch size either with --max-tokens"), "Must specify batch size either with"),
        (RuntimeError("\n-- Process 0 terminated:\n\nfairseq_diverse.support.errors.UserError: --a: b\n"), "--a: b"),
        (InductorError(ImportError("/a/b.so: file too short"), None), "--compile-layers: /a/b.so: file too short; "),
        (InductorError(InvalidCxxCompiler(), None), "--compile-layers: torch.compile cannot compile here"),
        (AssertionError("--path required for generation!"), "--path required for generation!"),
        (ValueError("--share-all-embeddings requires a joined dictionary"), "--share-all-embeddings requires a joined"),
        (AssertionError("shapes differ"), None),
        (Exception("--a goes with --b\nmore"), "--a goes with --b"),
        (FileNotFoundError("another"), None),
        (Exception(), None),
        (
            ValueError("--finetune-from-model can not be set together with either --reset-optimizer or reset_lr"),
            "--finetune-from-model can not be set together with either --reset-optimizer or reset_lr",
        ),
        (ValueError("--finetune-from-model and --restore-file (non-default value) can"), "--finetune-from-model, --r"),
        (ValueError("--finetune-from-model a.pt does not exist"), "--finetune-from-model a.pt does not exist"),
        (RuntimeError("Cannot resume training due to dataloader mismatch, please"), "the checkpoint is from within"),
        (OSError("file bpe.codes not found"), "bpe.codes: no such file"),
        (RuntimeError("INTERNAL: unk is not defined."), "--sentencepiece-model: damaged, or not a model of"),
        (KeyError("x"), None),
        (RuntimeError("Exception without meaning"), None),
    ],
    ids=str,
)
def test_a_user_error_is_one_line(capsys, monkeypatch, error, line):
    """Errors of bugs are shown as before."""
    shown: list = []
    monkeypatch.setattr(sys, "excepthook", lambda *parts: shown.append(parts))
    install_error_hook()
    sys.excepthook(type(error), error, None)
    printed = capsys.readouterr().err
    assert len(shown) == (line is None)
    assert line is None or (printed.startswith(f"error: {line}") and printed.count("\n") == 1)


def test_the_cause_of_a_failed_resumption_is_named(capsys, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", None)
    install_error_hook()
    try:
        try:
            raise RuntimeError("Error(s) in loading state_dict for Model:\n\tsize mismatch for a.weight")
        except RuntimeError:
            raise Exception("Cannot load model parameters from checkpoint a.pt")  # noqa: B904  as fairseq does
    except Exception as error:
        sys.excepthook(type(error), error, None)
    said = "error: Cannot load model parameters from checkpoint a.pt (size mismatch for a.weight)\n"
    assert capsys.readouterr().err == said


def test_a_sentence_beyond_the_learned_positions_is_one_line():
    from fairseq.modules import LearnedPositionalEmbedding

    from fairseq_diverse.models.bert import Positions

    register()
    positions = LearnedPositionalEmbedding(4 + 2, 3, padding_idx=1)  # for 4 subwords
    words = torch.tensor([[1, 1, 5, 5, 5, 5], [1, 1, 1, 1, 1, 5]])
    said = "a sentence has 6 subwords, but the model has learned positions for 4: leave"
    for these in (positions, Positions(4, 3, 1)):
        assert these(words).shape == (2, 6, 3)  # wider than the positions only by padding
        refused(said, these, torch.full((1, 6), 5))
    refused("has 5 subwords", positions, torch.full((1, 5), 5), incremental_state={})


def test_a_model_is_loaded_from_its_own_checkpoint_only(monkeypatch):
    """A probing checkpoint that names itself would be loaded in an endless loop."""
    from fairseq_diverse.models import loading

    asked: dict = {}
    monkeypatch.setattr(loading, "load_models", lambda paths, data, **settings: asked.update(settings) or ([], 0, 0))
    with pytest.raises(ValueError, match="unpack"):
        loading.load_model("checkpoint.pt", "data")
    without = {"checkpoint_activations": False, "offload_activations": False}
    assert asked == {"from_checkpoint": "", "checkpoint_data": "", **without}
