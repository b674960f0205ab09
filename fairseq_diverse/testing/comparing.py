"""Models for the properties: with noise on the mechanisms' parameters; how results are compared, and how it fails."""

import inspect
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_diverse.attention import mechanisms
from fairseq_diverse.attention.body import AttentionOutput
from fairseq_diverse.attention.mechanism import Mechanism
from fairseq_diverse.attention.registry import MECHANISMS, attribute_name
from fairseq_diverse.attention.relations import Relations, relate
from fairseq_diverse.models.attention import StagedAttention
from fairseq_diverse.models.diverse_transformer import attentions_at
from fairseq_diverse.testing import models
from fairseq_diverse.testing.models import Flags, batch, build_model, dictionary, examples

EVERYWHERE = "encoder,cross,decoder"


class PropertyFailed(AssertionError):
    """A property does not hold; the message says what differs and by how much."""


def told(error: Exception) -> str:
    """An error as text, with its kind unless it is ``PropertyFailed``, and the user's line that raised it."""
    kind = "" if isinstance(error, PropertyFailed) else f"{type(error).__name__}: "
    stages = [inspect.unwrap(getattr(cls, stage)) for cls in MECHANISMS.values() for stage in cls.stages()]
    code = [stage.__code__ for stage in stages if hasattr(stage, "__code__")]
    folders = {Path(stage_code.co_filename).parent for stage_code in code} - {Path(mechanisms.__file__).parent}
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).parent in folders]
    where = f" ({lines[-1].filename}:{lines[-1].lineno})" if lines else ""
    return kind + (" ".join(str(error).split()) or "no message") + where


def require(holds: bool, problem: str) -> None:
    if not holds:
        raise PropertyFailed(problem)


def require_close(got: Tensor, expected: Tensor, what: str, error: float = 1e-5) -> None:
    """Raise unless the tensors are equal up to ``error``, absolute or relative."""
    require(got.shape == expected.shape, f"{what}: {tuple(got.shape)}, not {tuple(expected.shape)}")
    got, expected = got.detach().double(), expected.detach().double()
    require(bool(got.isfinite().all()), f"{what}: not finite")
    if not torch.allclose(got, expected, rtol=error, atol=error):
        raise PropertyFailed(f"{what}: differs by {(got - expected).abs().max():.2g}, allowed {error:g}")


def require_finite_gradients(module: torch.nn.Module, problem: str) -> None:
    require(all(p.grad is None or bool(p.grad.isfinite().all()) for p in module.parameters()), problem)


def attention_at(model: Any, component: str) -> StagedAttention:
    return attentions_at(model, component)[0]


def architecture(flags: Flags) -> Flags:
    return {name: value for name, value in flags.items() if name == "arch"}


def everywhere(flags: Flags) -> str:
    return "encoder" if flags.get("arch") in models.OF_ROBERTA else EVERYWHERE


def where_placed(flags: Flags) -> str:
    """A component on which ``flags`` put a mechanism."""
    names = [attribute_name(name, "on") for name in MECHANISMS]
    return next((flags[name].split(",")[0].split(":")[0] for name in names if flags.get(name)), "encoder")


def defined_at(name: str) -> tuple[str, ...]:
    """The places at which a mechanism can be checked: components, and ``ROBERTA``."""
    return tuple(dict.fromkeys(place for flags in examples(name) for place in models.places(flags)))


def trained_model(flags: Flags) -> Any:
    """A model with noise on the mechanisms' parameters, since their initial values may have no effect."""
    model = build_model(flags)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for module in model.modules():
            for parameter in module.parameters() if isinstance(module, Mechanism) else ():
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def short_sentences() -> tuple[Tensor, Relations]:
    """Padding (2, 5) and trees of two sentences, for one attention."""
    sample = batch((4, 3), (1, 1))
    return sample["src_tokens"] == dictionary().pad(), relate(sample["source_trees"], ("dependency", "constituency"))


def attending(flags: Flags) -> tuple[StagedAttention, Callable[..., AttentionOutput]]:
    """The first attention on which ``flags`` put a mechanism, and its call with two sentences of five words."""
    attention, (_, related) = attention_at(trained_model(flags), where_placed(flags)), short_sentences()
    return attention, lambda x, **options: attention.attend(x, x, x, relations=related, **options)


def decode(model: Any, component: str, x: Tensor) -> list[AttentionOutput]:
    """What the first two attentions of a component give in two steps of incremental decoding; nothing of an encoder."""
    outputs: list[AttentionOutput] = []
    state: dict = {}
    model.eval()
    for now in x.split(1)[:2] if component != "encoder" else ():
        carried: Mapping[str, Tensor] = {}
        for attention in attentions_at(model, component)[:2]:
            keys = x if component == "cross" else now
            outputs.append(attention.attend(now, keys, keys, incremental_state=state, carried=carried))
            carried = outputs[-1].carry
    model.train()
    return outputs
