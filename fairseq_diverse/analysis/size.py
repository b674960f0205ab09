"""Parameters and FLOPs of a model, counted while it runs."""

import math
from argparse import Namespace
from collections import Counter
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fairseq_diverse.attention.kernels import cpu
from fairseq_diverse.attention.registry import fill_defaults
from fairseq_diverse.attention.relations import EVERYTHING_RELATED
from fairseq_diverse.attention.request import AttentionRequest
from fairseq_diverse.host import programs
from fairseq_diverse.host.data import numbered_words
from fairseq_diverse.models.bert import DiverseBertModel
from fairseq_diverse.models.diverse_transformer import DiverseTransformerModel, attentions_at
from fairseq_diverse.models.roberta import DiverseRobertaModel
from fairseq_diverse.models.systems import unknown
from fairseq_diverse.models.t5 import DiverseT5Model
from fairseq_diverse.support.errors import UserError

EMBEDDINGS = {"embed_tokens", "embed_positions", "embed_segments", "output_projection", "adaptive_softmax"}
PRODUCTS = ("mul", "mul_", "div", "div_", "pow", "pow_", "addcmul")


def measure_size(
    args: Namespace, vocabulary: int | tuple[int, int], source_length: int, target_length: int | None = None
) -> dict[str, Any]:
    """Parameters and FLOPs of the model that ``args`` describe, by side and in total, and those of its mechanisms.

    For a language model the parameters also have ``classifier``: the total with BERT's pooler instead of the head that
    predicts words, as the literature counts BERT and RoBERTa.

    Args:
        args: ``arch`` and the model flags that were given, without defaults.
        vocabulary: size of each vocabulary, including fairseq's four symbols; a pair if source and target differ.
        source_length, target_length: tokens, including the end-of-sentence symbol; a language model reads one sentence.

    Raises:
        UserError: an unknown architecture, flags that do not fit the model, or a number out of range.
    """
    kinds = (DiverseTransformerModel, DiverseRobertaModel, DiverseBertModel, DiverseT5Model)
    architectures = [name for name, kind in programs.architectures().items() if kind in kinds]
    if args.arch not in architectures:
        raise UserError(unknown(args.arch, architectures))
    symbols = vocabulary if isinstance(vocabulary, tuple) else (vocabulary, vocabulary)
    if min(symbols) < 5:
        raise UserError(f"--vocabulary {min(symbols)}: at least 5: fairseq's four symbols and a word")
    args = Namespace(**vars(args))
    programs.fill_architecture(args)
    fill_defaults(defaults := Namespace())
    off = Namespace(**{**vars(args), **vars(defaults)})
    model = build_model(args, symbols)
    translates = isinstance(model, DiverseTransformerModel)
    lengths = {"source": source_length}
    if translates:
        lengths["target"] = 30 if target_length is None else target_length
    elif target_length is not None:
        raise UserError(f"--target-length {target_length}: {args.arch} reads one sentence; leave the flag out")
    limits = model.max_positions() if translates else [model.max_positions()]
    for (side, length), limit in zip(lengths.items(), limits, strict=True):
        if not 1 <= length <= limit:
            flag = f"--max-{side}-positions" if translates else "--max-positions"
            raise UserError(f"--{side}-length {length}: from 1 to {limit} ({flag})")
    parameters, flops = count_parameters(model), count_flops(model, *lengths.values())
    outside = {name: parameters.pop(name) for name in ("embeddings", "lm_head") if name in parameters}
    inside, work, total = sum(parameters.values()), sum(flops.values()), sum([*parameters.values(), *outside.values()])
    added, added_work = 0, 0
    if off != args:
        plain = build_model(off, symbols)
        added = total - sum(count_parameters(plain).values())
        added_work = work - sum(count_flops(plain, *lengths.values()).values())
    figures = {**parameters, "without_embeddings": inside, "added": added, "total": total}
    if not translates:
        model.register_classification_head("any", num_classes=1)
        pooler = sum(parameter.numel() for parameter in model.classification_heads["any"].dense.parameters())
        figures["classifier"] = total - outside["lm_head"] + pooler
    plan, sizes = model.encoder.plan, model.encoder.plan.components
    return {
        "arch": args.arch,
        "interacting": {name: part.heads for name, part in sizes.items() if plan.anywhere("interacting", name)},
        "widths": {side: getattr(args, f"{side}_embed_dim") for side in flops},
        "vocabulary": symbols[0] if symbols[0] == symbols[1] else list(symbols),
        **{f"{side}_length": length for side, length in lengths.items()},
        "parameters": figures,
        "flops": {**flops, "total": work, "added": added_work},
    }


def build_model(args: Namespace, symbols: tuple[int, int]) -> Any:
    """The model for complete arguments, with so many symbols of source and target. Raises ``UserError``: flags that do
    not fit the model."""
    try:
        return programs.build_model(args, *map(numbered_words, symbols)).eval()
    except UserError:
        raise
    except (AssertionError, ValueError, RuntimeError, ArithmeticError) as error:  # fairseq's ways to refuse flags
        raise UserError(f"--arch {args.arch}: no model has these flags: {error or type(error).__name__}") from error


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Number of parameters of ``encoder``, ``decoder`` and ``embeddings`` (with the softmax layer).

    For a language model: of ``encoder``, ``embeddings`` and ``lm_head``. A shared parameter counts once.
    """
    counts = Counter(dict.fromkeys([*_sides(model), "embeddings"], 0))
    for name, parameter in model.named_parameters():
        path = name.split(".")
        part = "embeddings" if EMBEDDINGS & set(path) else "lm_head" if "lm_head" in path else path[0]
        counts[part] += parameter.numel()
    return dict(counts)


def _sides(model: nn.Module) -> list[str]:
    return [side for side in ("encoder", "decoder") if hasattr(model, side)]


def count_flops(model: nn.Module, source_length: int, target_length: int = 0) -> dict[str, int]:
    """FLOPs of ``encoder`` and ``decoder`` for one sentence pair, without the embeddings and the softmax layer.

    For a language model: of ``encoder`` for one sentence. The model runs without fused attention (every attention
    computes its maps), because torch counts 0 for its fused kernel on a CPU. A multiply-add is 2 FLOPs. Counted are

    - matrix products and convolutions;
    - layer normalization, one per element;
    - elementwise products, quotients and powers, one per element, including the scaling of queries and embeddings, and
      those of mechanisms; two for a x + (1 - a) y in a mechanism.

    Sums, means, softmax, exponentials, logarithms and ReLU are not counted. With this rule the plain transformer has
    the FLOPs of Wang et al. (2021), Table 5. Lengths are in tokens, including the end-of-sentence symbol.
    """
    products = [getattr(torch.ops.aten, name) for name in PRODUCTS]
    counted: dict[Any, Any] = {
        torch.ops.aten.native_layer_norm: lambda shape, *_, **__: 2 * math.prod(shape),
        torch.ops.aten.lerp: lambda *_, out_shape, **__: 4 * math.prod(out_shape),
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _fused_attention,
        **dict.fromkeys(products, lambda *_, out_shape, **__: 2 * math.prod(out_shape)),
    }
    counter = FlopCounterMode(display=False, custom_mapping=counted)
    with cpu.disabled(), counter, torch.no_grad():  # torch cannot count the work of our kernels
        sample = {"src_tokens": torch.full((1, source_length), 4), "src_lengths": torch.tensor([source_length])}
        sample["prev_output_tokens"] = torch.full((1, target_length), 4)  # ignored by a language model
        sample["source_trees"] = torch.tensor(EVERYTHING_RELATED).repeat(1, source_length, 1)  # mostly ignored
        request = AttentionRequest(weights=_with_own_maps(model), alignment=False)
        model(**sample, features_only=True, attention_request=request)
    flops = counter.get_flop_counts()
    name = type(model).__name__
    return {side: sum(flops[f"{name}.{side}"].values()) for side in _sides(model)}


def _with_own_maps(model: Any) -> str:
    """The placement of the attentions with one map per head."""
    placed = []
    for component in ("encoder", "decoder", "cross") if hasattr(model, "decoder") else ("encoder",):
        attentions = enumerate(attentions_at(model, component), 1)
        if numbers := [str(number) for number, attention in attentions if attention is not None and attention.has_maps]:
            placed.append(f"{component}:{'+'.join(numbers)}")
    return ",".join(placed)


def _fused_attention(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], *_: Any, **__: Any) -> int:
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
