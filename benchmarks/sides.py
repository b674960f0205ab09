"""The measured models and functions, their batches and samplers."""

import contextlib
import io
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from fairseq import options
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.optim.adam import Adam
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

import fairseq_diverse
from benchmarks import naive
from benchmarks.harness import Sample, kept_for_backward, peak_of_cuda, timed
from fairseq_diverse.attention.functional import agreement, routing
from fairseq_diverse.attention.relations import EVERYTHING_RELATED
from fairseq_diverse.criterions.with_disagreement import (
    LabelSmoothedCrossEntropyWithDisagreement,
    LabelSmoothedCrossEntropyWithDisagreementConfig,
)
from fairseq_diverse.experiments.flags import to_arguments
from fairseq_diverse.experiments.run import Row
from fairseq_diverse.models.attention import StagedAttention
from fairseq_diverse.models.diverse_transformer import DiverseTransformerModel
from fairseq_diverse.testing.models import dictionary

fairseq_diverse.register()


def _widths(layers: int, width: int, ffn: int, heads: int) -> dict[str, Any]:
    names = {"layers": layers, "embed_dim": width, "ffn_embed_dim": ffn, "attention_heads": heads}
    return {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in names.items()}


@dataclass(frozen=True)
class Size:
    """A model's size, and the sizes of its batches."""

    layers: int
    width: int
    ffn: int
    heads: int
    words: int  # in the joint vocabulary
    tokens: int = 1024  # per training batch on each side, including padding
    length: int = 32  # of the longest sentence
    sentences: int = 8  # per batch to translate, beam 5
    steps: int = 24  # decoder steps, the same for every hypothesis
    lines: int = 1000  # of the text to parse


SIZES = {
    "quick": Size(2, 32, 32, 4, 50, tokens=40, length=8, sentences=2, steps=3, lines=20),
    "small": Size(3, 128, 256, 4, 4_000),
    "base": Size(6, 512, 2048, 8, 32_000),
    "lite": Size(6, 160, 160, 4, 32_000),
}

EVERYWHERE = "encoder,decoder,cross"


@dataclass(frozen=True)
class Side:
    """A model and the criterion that trains it.

    Args:
        flags: of the architecture, in addition to the size.
        terms: disagreement terms on every component; empty for plain label-smoothed cross-entropy.
        naive: replacement of each routed aggregation: em, simple or torch (see ``naive.Aggregation``); torch also
            replaces interacting heads (see ``naive.products_of_pairs``).
        args: of a table's row, in place of all of these and of the size's widths.
    """

    arch: str = "diverse_transformer"
    flags: dict[str, Any] = field(default_factory=dict)
    terms: str = ""
    naive: str = ""
    args: Namespace | None = None


def _routed(place: str, kind: str, naive: str = "") -> Side:
    return Side(flags={"routing": kind, "routing_on": place}, naive=naive)


def _heads(count: int, naive: str = "", **flags: Any) -> Side:
    return Side(flags={"encoder_attention_heads": count, "decoder_attention_heads": count, **flags}, naive=naive)


HEADS = (2, 4, 8, 16, 32)
OF_HEADS: dict[str, dict[str, Any]] = {  # Li and Luo, 2022
    "fixed": {"qk_head_dim": 16},
    "talking": {"talking": "both"},
    "concat": {"interacting": "concat"},
    "sum": {"interacting": "sum"},
}
PLACES = {"encoder:1": "encoder:1", "encoder:1-2": "encoder:1-2", "encoder": "encoder", "everywhere": EVERYWHERE}

SIDES: dict[str, Side] = {
    "fairseq": Side("transformer"),
    "off": Side(),
    "off again": Side(),
    **{f"disagreement {term}": Side(terms=term) for term in ("output", "position", "subspace")},
    "disagreement all": Side(terms="subspace,position,output"),
    **{f"{kind} routing {name}": _routed(place, kind) for kind in ("em", "simple") for name, place in PLACES.items()},
    **{
        f"naive {kind} routing {name}": _routed(place, kind, kind)
        for kind in ("em", "simple")
        for name, place in PLACES.items()
    },
    **{f"torch routing {name}": _routed(place, "em", "torch") for name, place in PLACES.items()},
    "both of Li 2021": Side("li2021_aggregation", terms="output"),
    "talking": Side(flags={"talking": "both"}),
    "dependency encoder:1": Side(flags={"syntax": "dependency"}),
    "phrase encoder:1": Side(flags={"syntax": "phrase"}),
    "phrase, enlivened encoder:1": Side(flags={"syntax": "phrase", "enliven": "enliven"}),
    "pruning encoder:1": Side(flags={"enliven": "prune"}),
    "relative encoder": Side(flags={"relative_on": "encoder"}),
    "localness encoder": Side(flags={"localness_on": "encoder"}),
    "differential everywhere": Side(flags={"differential_on": EVERYWHERE}),
    **{f"gated {kind} everywhere": Side(flags={"gated": kind}) for kind in ("head", "element")},
    "evolving encoder": Side("wang2021_evolving", {"evolving_on": "encoder"}),
    "evolving everywhere": Side("wang2021_evolving"),
    **{f"{count} heads": _heads(count) for count in HEADS},
    **{f"{kind} {count} heads": _heads(count, **flags) for kind, flags in OF_HEADS.items() for count in HEADS},
    **{
        f"torch {kind} {count} heads": _heads(count, "torch", interacting=kind)
        for kind in ("concat", "sum")
        for count in HEADS
    },
}
DROPOUT = "attention dropout"
SIDES |= {
    f"{name}, {DROPOUT}": replace(side, flags={**side.flags, "attention_dropout": 0.1}) for name, side in SIDES.items()
}


def of_row(row: Row) -> Side:
    """The model and the criterion of a table's row.

    Raises:
        ValueError: names the row, and a flag or a value that fairseq's parser or the model does not take.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            args = options.parse_args_and_arch(options.get_training_parser(), ["data", *to_arguments(row.train)])
    except SystemExit:
        raise ValueError(f"row {row.name}: {said.getvalue().splitlines()[-1].partition(': error: ')[2]}") from None
    side = Side(args.arch, args=args)
    try:
        build_model(side, SIZES["quick"])
    except ValueError as error:
        raise ValueError(f"row {row.name}: {error}") from None
    return side


def arguments(side: Side, size: Size) -> Namespace:
    """The parsed arguments of a model."""
    if side.args is not None:
        return side.args
    widths = _widths(size.layers, size.width, size.ffn, size.heads)
    criterion = "label_smoothed_cross_entropy"
    args = Namespace(arch=side.arch, criterion=criterion, share_all_embeddings=True, **{**widths, **side.flags})
    ARCH_CONFIG_REGISTRY[side.arch](args)
    return args


def build_model(side: Side, size: Size, device: str = "cpu") -> Any:
    """A model; every side has the same seed."""
    torch.manual_seed(1)
    args = arguments(side, size)
    words = dictionary(size.words)
    task: Any = SimpleNamespace(source_dictionary=words, target_dictionary=words)
    model = ARCH_MODEL_REGISTRY[side.arch].build_model(args, task)
    if side.naive:
        for attention in [module for module in model.modules() if isinstance(module, StagedAttention)]:
            if attention.mechanism("routing"):
                attention.aggregate = naive.Aggregation(size.width, size.heads, side.naive)
            if pairs := attention.mechanism("interacting"):
                pairs.attention = partial(naive.products_of_pairs, pairs.combine_pairs)
    return model.to(device)


def batch(size: Size, sentences: int, device: str, model: Any = None) -> dict[str, Any]:
    """A synthetic sample in the format of fairseq's collater, with sentences of at least 3/4 ``size.length``, and with
    trees if the model reads them."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(size.length * 3 // 4, size.length + 1, (sentences,), generator=generator)
    lengths[0] = size.length
    words = torch.randint(4, size.words, (2, sentences, size.length), generator=generator)
    real = torch.arange(size.length) < lengths.unsqueeze(1)
    source = torch.where(real, words[0], 1).flip(1)  # fairseq pads the source on the left; 1 is <pad>, 2 </s>
    target = torch.where(real, words[1], 1)
    source[:, -1] = 2
    target.scatter_(1, lengths.unsqueeze(1) - 1, 2)
    previous = torch.cat([torch.full_like(target[:, :1], 2), target[:, :-1]], 1).where(real, 1)
    inputs = {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": previous}
    if isinstance(model, DiverseTransformerModel) and model.encoder.plan.trees:
        inputs["source_trees"] = torch.tensor(EVERYTHING_RELATED).repeat(sentences, size.length, 1)
    return {
        "net_input": {name: tensor.to(device) for name, tensor in inputs.items()},
        "target": target.to(device),
        "ntokens": int(lengths.sum()),
        "nsentences": sentences,
    }


def build_criterion(terms: str, words: Dictionary, on: str = EVERYWHERE) -> Any:
    """Label-smoothed cross-entropy, with these disagreement terms."""
    settings = LabelSmoothedCrossEntropyWithDisagreementConfig(
        sentence_avg=False, label_smoothing=0.1, disagreement=terms, disagreement_on=on
    )
    kind = LabelSmoothedCrossEntropyWithDisagreement if terms else LabelSmoothedCrossEntropyCriterion
    return kind.build_criterion(settings, SimpleNamespace(target_dictionary=words)).train()


def likelihood(side: Side, size: Size, model: Any, device: str) -> Callable[[], Tensor]:
    """The objective of one training step, per token."""
    if side.args is not None:
        task = SimpleNamespace(target_dictionary=model.encoder.dictionary)
        criterion = CRITERION_REGISTRY[side.args.criterion].build_criterion(side.args, task).train()
    else:
        criterion = build_criterion(side.terms, model.encoder.dictionary)
    sample = batch(size, size.tokens // size.length, device, model)
    model.train()

    def objective() -> Tensor:
        loss, sample_size, _ = criterion(model, sample)
        return loss / sample_size

    return objective


def _step(name: str, size: Size, device: str) -> Callable[[], None]:
    model = build_model(SIDES[name], size, device)
    objective = likelihood(SIDES[name], size, model, device)
    optimizer = Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98))

    def step() -> None:
        optimizer.zero_grad()
        objective().backward()
        optimizer.step()

    return step


def training(name: str, size: Size, device: str) -> Sample:
    """Seconds of forward, backward and optimizer step."""
    return timed(_step(name, size, device), device)


def memory(name: str, size: Size, device: str) -> Sample:
    """On CUDA, peak bytes of a training step, including parameters and optimizer; on a CPU, bytes kept for backward."""

    def sample() -> float:
        if device == "cuda":
            return peak_of_cuda(lambda: _step(name, size, device))
        model = build_model(SIDES[name], size, device)
        return kept_for_backward(likelihood(SIDES[name], size, model, device), model)

    return sample


def search(model: Any, size: Size, device: str) -> Callable[[], list[list[dict[str, Any]]]]:
    """fairseq's beam search for one batch, beam 5; all hypotheses have the same length."""
    model.make_generation_fast_(beamable_mm_beam_size=5, need_attn=False)  # as in fairseq-generate
    # </s> is forbidden before the last step and forced there
    generator = SequenceGenerator(
        [model], model.decoder.dictionary, beam_size=5, min_len=size.steps, max_len_a=0, max_len_b=size.steps
    )
    sample = batch(size, size.sentences, device, model)
    return lambda: generator.generate([model], sample)


def generation(name: str, size: Size, device: str) -> Sample:
    """Seconds of ``search``."""
    return timed(search(build_model(SIDES[name], size, device), size, device), device)


def layer(name: str, size: Size, device: str) -> Sample:
    """Seconds of forward and backward of the first encoder layer."""
    first = build_model(SIDES[name], size, device).encoder.layers[0].train()
    padding = batch(size, size.tokens // size.length, device)["net_input"]["src_tokens"].eq(1)
    x = torch.randn(size.length, len(padding), size.width, device=device, requires_grad=True)

    def action() -> None:
        out = first(x, encoder_padding_mask=padding)
        torch.autograd.grad(
            (out if torch.is_tensor(out) else out[0]).sum(), [x, *first.parameters()], allow_unused=True
        )

    return timed(action, device)


def talking_attention(name: str, size: Size) -> tuple[Any, Callable[[Tensor, Tensor], Tensor]]:
    """A self-attention with talking heads, ours or that of ``x-transformers``, and a function that calls it with
    (B, T, d) and the mask of real tokens (B, T)."""
    if name == "x-transformers":
        from x_transformers.x_transformers import Attention

        talking = {"pre_talking_heads": True, "post_talking_heads": True}
        theirs: Any = Attention(size.width, heads=size.heads, dim_head=size.width // size.heads, **talking)
        return theirs, lambda x, valid: theirs(x, mask=valid)
    ours = build_model(SIDES[name], size).encoder.layers[0].self_attn

    def attend(x: Tensor, valid: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        return ours.attend(x, x, x, key_padding_mask=~valid).value.transpose(0, 1)

    return ours, attend


def attention(name: str, size: Size, device: str) -> Sample:
    """Seconds of forward and backward of one self-attention with talking heads."""
    module, attend = talking_attention(name, size)
    module.train().to(device)
    valid = batch(size, size.tokens // size.length, device)["net_input"]["src_tokens"].ne(1)
    x = torch.randn(*valid.shape, size.width, device=device, requires_grad=True)
    return timed(lambda: torch.autograd.grad(attend(x, valid).sum(), [x, *module.parameters()]), device)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "output_agreement": agreement.output_agreement,
    "naive output_agreement": naive.cosine_agreement,
    "position_agreement": agreement.position_agreement,
    "naive position_agreement": naive.position_agreement,
    "em_routing": routing.em_routing,
    "naive em_routing": naive.em_routing,
    "simple_routing": lambda votes, *betas: routing.simple_routing(votes),
    "naive simple_routing": lambda votes, *betas: naive.simple_routing(votes),
    "the votes": lambda votes, *betas: votes.square(),  # saves only its argument
}


def _arguments(name: str, size: Size, device: str) -> list[Tensor]:
    """Head outputs or maps and the mask of real tokens; votes and betas for the routings."""
    torch.manual_seed(1)
    sentences, channels = size.tokens // size.length, size.width // size.heads
    if name.endswith("agreement"):
        valid = batch(size, sentences, device)["target"].ne(1)
        last = size.length if "position" in name else channels
        x = torch.randn(sentences, size.heads, size.length, last, device=device)
        return [(x.softmax(-1) if "position" in name else x).requires_grad_(), valid]
    shapes: list[tuple[int, ...]] = [(size.length, sentences, size.heads, size.width, 1), (size.width,), (size.width,)]
    return [torch.randn(shape, device=device).requires_grad_() for shape in shapes]


def function(name: str, size: Size, device: str) -> Sample:
    """Seconds of forward and backward of one function."""
    arguments = _arguments(name, size, device)
    wanted = [x for x in arguments if x.requires_grad]
    return timed(lambda: torch.autograd.grad(FUNCTIONS[name](*arguments).sum(), wanted, allow_unused=True), device)


def function_memory(name: str, size: Size, device: str) -> Sample:
    """Bytes that one function keeps for its backward pass."""
    arguments = _arguments(name, size, device)
    return lambda: kept_for_backward(lambda: FUNCTIONS[name](*arguments))
