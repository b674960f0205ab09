"""Parameters and FLOPs of a model, counted while it runs."""

import math
from argparse import Namespace
from collections import Counter
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fairseq_diverse.attention.kernels import cpu
from fairseq_diverse.attention.registry import fill_defaults
from fairseq_diverse.attention.request import AttentionRequest
from fairseq_diverse.data.trees import EVERYTHING_RELATED
from fairseq_diverse.models.diverse_transformer import DiverseTransformerModel
from fairseq_diverse.support.errors import UserError

EMBEDDINGS = {"embed_tokens", "embed_positions", "output_projection", "adaptive_softmax"}
PRODUCTS = ("mul", "mul_", "div", "div_", "pow", "pow_", "addcmul")


def measure_size(args: Namespace, vocabulary: int, source_length: int, target_length: int) -> dict[str, Any]:
    """Parameters and FLOPs of the model that ``args`` describe, by side and in total, and those of its mechanisms.

    Args:
        args: ``arch`` and the model flags that were given, without defaults.
        vocabulary: symbols on each side, including fairseq's four.
        source_length, target_length: tokens, including the end-of-sentence symbol.

    Raises:
        UserError: an unknown architecture, flags that do not fit the model, or a number out of range.
    """
    architectures = [name for name, kind in ARCH_MODEL_REGISTRY.items() if kind is DiverseTransformerModel]
    if args.arch not in architectures:
        raise UserError(f"--arch {args.arch}: unknown; known are {', '.join(architectures)}")
    if vocabulary < 5:
        raise UserError(f"--vocabulary {vocabulary}: at least 5: fairseq's four symbols and a word")
    args = Namespace(**vars(args))
    ARCH_CONFIG_REGISTRY[args.arch](args)
    off = Namespace()
    fill_defaults(off)
    off = Namespace(**{**vars(args), **vars(off)})

    model = build_model(args, vocabulary)
    lengths = {"source": source_length, "target": target_length}
    for (side, length), limit in zip(lengths.items(), model.max_positions(), strict=True):
        if not 1 <= length <= limit:
            raise UserError(f"--{side}-length {length}: from 1 to {limit} (--max-{side}-positions)")
    parameters, flops = count_parameters(model), count_flops(model, source_length, target_length)
    embeddings = parameters.pop("embeddings")
    own, work = sum(parameters.values()), sum(flops.values())
    added, added_work = 0, 0
    if off != args:
        plain = build_model(off, vocabulary)
        added = own + embeddings - sum(count_parameters(plain).values())
        added_work = work - sum(count_flops(plain, source_length, target_length).values())
    return {
        "arch": args.arch,
        "interacting": {
            name: part.heads
            for name, part in model.encoder.plan.components.items()
            if model.encoder.plan.anywhere("interacting", name)
        },
        "widths": {"encoder": args.encoder_embed_dim, "decoder": args.decoder_embed_dim},
        "vocabulary": vocabulary,
        "source_length": source_length,
        "target_length": target_length,
        "parameters": {**parameters, "without_embeddings": own, "added": added, "total": own + embeddings},
        "flops": {**flops, "total": work, "added": added_work},
    }


def build_model(args: Namespace, vocabulary: int) -> DiverseTransformerModel:
    """The model for complete arguments, with ``vocabulary`` symbols on each side.

    Raises:
        UserError: flags that do not fit the model.
    """
    dictionary = Dictionary()
    dictionary.pad_to_multiple_(vocabulary)
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    try:
        return DiverseTransformerModel.build_model(args, task).eval()
    except UserError:
        raise
    except (AssertionError, ValueError, RuntimeError, ArithmeticError) as error:  # fairseq's ways to refuse flags
        raise UserError(f"--arch {args.arch}: no model has these flags: {error or type(error).__name__}") from error


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Number of parameters of ``encoder``, ``decoder``, and ``embeddings`` (with the softmax layer).

    A shared parameter counts once.
    """
    counts = Counter(encoder=0, decoder=0, embeddings=0)
    for name, parameter in model.named_parameters():
        path = name.split(".")
        counts["embeddings" if EMBEDDINGS & set(path) else path[0]] += parameter.numel()
    return dict(counts)


def count_flops(model: nn.Module, source_length: int, target_length: int) -> dict[str, int]:
    """FLOPs of ``encoder`` and ``decoder`` for one sentence pair, without the embeddings and the softmax layer.

    Counted while the model runs without fused attention (every attention computes its maps), since torch counts 0 for
    its fused kernel on a CPU. A multiply-add is 2 FLOPs. Counted are

    - matrix products and convolutions;
    - layer normalization, one per element;
    - elementwise products, quotients and powers, one per element, including the scaling of queries and embeddings, and
      those of mechanisms; two for a x + (1 - a) y in a mechanism.

    Sums, means, softmax, exponentials, logarithms and ReLU are not counted. With this rule the plain transformer has
    the FLOPs of Wang et al. (2021), Table 5.

    Args:
        source_length, target_length: tokens, including the end-of-sentence symbol.
    """
    elementwise = {getattr(torch.ops.aten, name): _elementwise for name in PRODUCTS}
    counter = FlopCounterMode(
        display=False,
        custom_mapping={
            torch.ops.aten.native_layer_norm: _layer_norm,
            torch.ops.aten.lerp: lambda *_, out_shape, **__: 4 * math.prod(out_shape),
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _fused_attention,
            **elementwise,
        },
    )
    source, target = torch.full((1, source_length), 4), torch.full((1, target_length), 4)
    related = torch.tensor(EVERYTHING_RELATED).repeat(1, source_length, 1)  # ignored if no trees are needed
    with cpu.disabled(), counter, torch.no_grad():  # torch cannot count the work of our kernels
        model(
            source,
            torch.tensor([source_length]),
            target,
            features_only=True,
            source_trees=related,
            attention_request=AttentionRequest(weights=_with_own_maps(model), alignment=False),
        )
    flops = counter.get_flop_counts()
    name = type(model).__name__
    return {side: sum(flops[f"{name}.{side}"].values()) for side in ("encoder", "decoder")}


def _with_own_maps(model: Any) -> str:
    """The placement of the attentions with one map per head."""
    own = {"encoder": [layer.self_attn for layer in model.encoder.layers]}
    own |= {"decoder": [layer.self_attn for layer in model.decoder.layers]}
    own |= {"cross": [layer.encoder_attn for layer in model.decoder.layers]}
    layers = {
        component: [str(n) for n, attention in enumerate(of, 1) if attention is not None and attention.has_maps]
        for component, of in own.items()
    }
    return ",".join(f"{component}:{'+'.join(numbers)}" for component, numbers in layers.items() if numbers)


def _fused_attention(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], *_: Any, **__: Any) -> int:
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _layer_norm(shape: tuple[int, ...], *_: Any, **__: Any) -> int:
    return 2 * math.prod(shape)


def _elementwise(*_: Any, out_shape: tuple[int, ...], **__: Any) -> int:
    return 2 * math.prod(out_shape)
