"""What a mechanism declares is so; off, neutral and loaded from a checkpoint it is what it should be."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_diverse.attention.mechanism import Mechanism
from fairseq_diverse.attention.registry import MECHANISMS, attribute_name
from fairseq_diverse.checkpoints.loading import not_finite
from fairseq_diverse.host.programs import parser
from fairseq_diverse.testing.models import Flags, at, batch, build_model, examples, placed, settings_attributes
from fairseq_diverse.testing.properties.common import (
    PropertyFailed,
    architecture,
    defined_at,
    require,
    require_close,
    trained_model,
)


def declared(name: str) -> None:
    """Mechanisms, settings and parameters named in the class exist; its flags are not fairseq's."""
    mechanism = MECHANISMS[name]
    for attribute in ("refuses", "works_with", "gates"):
        for other in getattr(mechanism, attribute):
            require(other in MECHANISMS or other == "*", f"{attribute}: {other!r} is not a mechanism")
    known = settings_attributes()
    for flags in (*mechanism.examples, mechanism.neutral or {}):
        for flag in flags:
            require(
                flag in known,
                f"examples or neutral: {flag!r} is not a setting; write it with _, as in parsed arguments",
            )
    for flags in (*examples(name), *([mechanism.neutral] if mechanism.neutral else [])):
        on = name in placed(at(dict(flags), defined_at(name)[0])) and flags.get(attribute_name(name, "on")) == "{on}"
        require(on, f'examples or neutral: {flags} does not switch {name} on at "{{on}}", so that nothing is checked')
    model = build_model(at(examples(name)[0], defined_at(name)[0]))
    modules = [module for module in model.modules() if isinstance(module, Mechanism) and module.name == name]
    own = {key for module in modules for key, _ in module.named_parameters()}
    for zero in mechanism.neutral_zeros:
        require(zero in own, f"neutral_zeros: {zero!r} is not a parameter")
    required = ["DATA", "--arch", "diverse_transformer_tiny", "--optimizer", "adam", "--criterion", "cross_entropy"]
    parser("train", required)


def off_is_absent(flags: Flags) -> None:
    """With every mechanism off, the model has the keys and outputs of fairseq's ``transformer`` or ``roberta``."""
    switches = {attribute_name(name, MECHANISMS[name].Settings(on="").switch) for name in MECHANISMS}
    settings = {name: value for name, value in flags.items() if name not in switches}
    plain = flags.get("arch", "diverse_transformer").removeprefix("diverse_")
    theirs, ours = build_model({}, plain), build_model(settings)
    require(
        list(theirs.state_dict()) == list(ours.state_dict()), "with the mechanism off, the model has other parameters"
    )
    for mode in (True, False):
        expected, got = (model.train(mode)(**batch(parsed=False))[0] for model in (theirs, ours))
        require(torch.equal(expected, got), "with the mechanism off, the model has other outputs")


def neutral_is_the_baseline(name: str, place: str) -> None:
    """At its neutral setting the mechanism changes nothing."""
    mechanism = MECHANISMS[name]
    flags = examples(name)[0] if mechanism.neutral is None else dict(mechanism.neutral)
    flags = at(flags, place)
    baseline, model = build_model(architecture(flags)).eval(), build_model(flags).eval()
    model.load_state_dict(baseline.state_dict(), strict=False)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith(tuple(f".{mechanism.key}.{zero}" for zero in mechanism.neutral_zeros)):
                parameter.zero_()
        require_close(model(**batch())[0], baseline(**batch())[0], "outputs")


def shapes(flags: Flags) -> None:
    """Every stage returns what the docstring of ``Mechanism`` says."""
    model = trained_model(flags)
    for module in model.modules():
        if isinstance(module, Mechanism):
            for stage in module.stages() - {"project", "attention", "combine"}:
                setattr(module, stage, partial(_checked, stage, getattr(module, stage)))
    model(**batch())


def _checked(stage: str, method: Callable[..., Any], *given: Any) -> Any:
    """The result of a stage. Raises ``PropertyFailed``: it is no tensor, or its shape or type is not the stage's."""
    result, context = method(*given), given[-1]
    sizes = (*context.q.shape[:3], context.k.size(2))  # B, H, T, S
    if stage == "qkv":
        found = [tuple(getattr(x, "shape", ())) for x in result] if isinstance(result, tuple) else []
        fine = len(found) == 3 and found[0][:3] == sizes[:3] and {x[:3] for x in found[1:]} == {(*sizes[:2], sizes[3])}
        require(fine and found[0][3] == found[1][3], f"qkv returns {found}, not q, k, v of (B, H, T or S, width)")
        return result
    require(isinstance(result, Tensor), f"{stage} returns {type(result).__name__}, not a tensor")
    shape = tuple(result.shape)
    if stage in ("bias", "visible"):
        broadcast = len(shape) <= 4 and all(x in (1, y) for x, y in zip(shape[::-1], sizes[::-1], strict=False))
        require(broadcast, f"{stage} returns {shape}, which is not broadcast to (B, H, T, S) {sizes}")
    else:
        heads = (*sizes[:3], context.v.size(3))
        expected = sizes[:2] if stage == "select" else heads if stage == "output_bias" else tuple(given[0].shape)
        require(shape == expected, f"{stage} returns {shape}, not {expected}")
    booleans = stage in ("visible", "select")
    wanted = "torch.bool" if booleans else "numbers"
    require((result.dtype == torch.bool) == booleans, f"{stage} returns {result.dtype}, not {wanted}")
    finite = stage != "bias" or bool(result.isfinite().all())
    require(finite, "bias returns numbers that are not finite; the stage visible masks keys")
    return result


def has_an_effect(flags: Flags, without: Flags | None = None) -> None:
    """Outputs are not those of the same parameters without mechanisms, or with those of ``without``, in training or
    evaluation, of short or long sentences; or it adds a loss term."""
    plain = build_model(architecture(flags) if without is None else without).double()
    model = trained_model(flags).double()
    own, others = model.state_dict(), plain.state_dict()
    if any(key not in own or own[key].shape != value.shape for key, value in others.items()):
        return  # projections of other widths
    plain.load_state_dict({key: own[key] for key in others})
    for sample in (batch(), batch((62, 4), (61, 6))):
        for training in (True, False):
            torch.manual_seed(1)
            output, extra = model.train(training)(**sample)
            torch.manual_seed(1)
            expected = plain.train(training)(**sample)[0]
            same = torch.allclose(output, expected, rtol=0, atol=3e-7)  # fairseq's own softmax is in float32
            if extra["losses"] or not same:
                return
    raise PropertyFailed("the outputs are those without it; does each stage return what it changes?")


WIDTHS = {"share_all_embeddings": False, "decoder_embed_dim": 48, "decoder_output_dim": 48}


def warm_start(flags: Flags) -> None:
    """A model with the mechanism loads a plain model's parameters; new parameters keep their initial values."""
    both = ((architecture(flags), 1), (flags, 2))
    plain, model = (build_model({**WIDTHS, **more}, seed=seed).state_dict() for more, seed in both)
    started = build_model({**WIDTHS, **flags}, seed=2)
    started.load_state_dict(dict(plain))
    for key, value in started.state_dict().items():
        its = plain[key] if key in plain and plain[key].shape == value.shape else model[key]
        require(torch.equal(value, its), f"{key}: neither the plain model's nor its initial value")


RELOAD = """
import sys, torch
import fairseq_diverse
from fairseq_diverse.host.programs import import_user_dir
fairseq_diverse.register()
if sys.argv[1]:
    import_user_dir(sys.argv[1])
from fairseq_diverse.testing.models import batch, build_model
for flags, state, expected in torch.load(sys.argv[2], weights_only=True):
    model = build_model(flags, seed=9)
    model.load_state_dict(state)
    with torch.no_grad():
        print(float((model.eval()(**batch())[0] - expected).abs().max()))
"""


def reload(cases: list[Flags], user_dir: str | None = None) -> list[float]:
    """The largest difference between outputs before and after a new process reloads the model, one number per case."""
    models = [trained_model(flags).eval() for flags in cases]
    for key, value in (found for model in models if (found := not_finite(model.state_dict()))):
        raise PropertyFailed(
            f"{key}: {value:.3g} in a checkpoint would be taken for damage; keep a constant out of it by "
            "register_buffer(..., persistent=False)"
        )
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        file = Path(folder, "models.pt")
        kept = zip(cases, models, strict=True)
        torch.save([(flags, model.state_dict(), model(**batch())[0]) for flags, model in kept], file)
        command = [sys.executable, "-c", RELOAD, user_dir or "", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PropertyFailed(f"cannot be loaded: {done.stderr.strip().splitlines()[-1]}")
    return [float(line) for line in done.stdout.split()]
