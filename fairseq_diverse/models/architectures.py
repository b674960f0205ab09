"""Named architectures: every system in every size."""

import logging
from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial

from fairseq.models import register_model_architecture
from fairseq.models.roberta.model import roberta_base_architecture, roberta_large_architecture
from fairseq.models.transformer import transformer_legacy

from fairseq_diverse.attention.registry import fill_defaults, place_by_default, without_effect
from fairseq_diverse.models import bert, classifier, diverse_transformer, rationales, roberta, systems, t5  # noqa: F401  (registers the models)

logger = logging.getLogger(__name__)


def _default(args: Namespace, values: Mapping[str, object]) -> None:
    for name, value in values.items():
        setattr(args, name, getattr(args, name, value))


def lite_architecture(args: Namespace) -> None:
    """All widths 160, 4 heads, alpha 0.1 for evolving attention (Wang et al., 2021, section 4.3)."""
    sizes = {"embed_dim": 160, "ffn_embed_dim": 160, "attention_heads": 4}
    _default(args, {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sizes.items()})
    _default(args, {"evolving_carry": 0.1})
    transformer_legacy.base_architecture(args)


def logic_architecture(args: Namespace) -> None:
    """Two layers of width 256, two pooling queries, a three-layer classifier (Li et al., 2021, section 4.3.2).

    The paper does not give the number of heads and the feed-forward width.
    """
    sizes = {"layers": 2, "embed_dim": 256, "ffn_embed_dim": 1024, "attention_heads": 8}
    _default(args, {f"encoder_{name}": value for name, value in sizes.items()})
    _default(args, {"dropout": 0.2, "pooling": "queries", "classifier_layers": 3})
    classifier_architecture(args)


def classifier_architecture(args: Namespace) -> None:
    """A Base encoder, mean pooling, and a two-layer classifier (Li et al., 2021, section 4.2.2)."""
    _default(args, {"pooling": "mean", "pooling_queries": 2, "classifier_layers": 2})
    transformer_legacy.base_architecture(args)


def roberta_tiny_architecture(args: Namespace) -> None:
    """Two layers of width 64, for tests; as fairseq's ``transformer_tiny``."""
    sizes = {"layers": 2, "embed_dim": 64, "ffn_embed_dim": 64, "attention_heads": 2}
    _default(args, {f"encoder_{name}": value for name, value in sizes.items()})
    roberta_base_architecture(args)


# layers, width, heads, width of the feed-forward networks of T5's versions, by the size's name
T5_SHAPES = {
    "1.0": {"": (12, 768, 12, 3072), "_small": (6, 512, 8, 2048), "_large": (24, 1024, 16, 4096)},
    "1.1": {"": (12, 768, 12, 2048), "_small": (8, 512, 6, 1024), "_large": (24, 1024, 16, 2816)},
}


def t5_architecture(size: str, args: Namespace) -> None:
    """A size of T5 (Raffel et al., 2020, section 3.1.2, and the authors' code); tiny is for tests."""
    _default(args, {"t5_version": "1.0", "position_bias_on": "encoder,decoder", "dropout": 0.1})
    if tiny := size == "_tiny":
        layers, width, heads, inner = 2, 64, 2, 64
    else:
        layers, width, heads, inner = T5_SHAPES.get(args.t5_version, T5_SHAPES["1.0"])[size]
    shape = {"layers": layers, "embed_dim": width, "attention_heads": heads, "ffn_embed_dim": inner}
    _default(args, {f"encoder_{name}": value for name, value in shape.items()})
    _default(args, {f"decoder_{name}": getattr(args, f"encoder_{name}") for name in shape})
    _default(args, {"head_width": 0 if tiny or width == 64 * heads else 64})
    _default(args, {"attention_dropout": args.dropout, "activation_dropout": args.dropout})
    _default(args, {"activation_fn": "gelu_accurate" if args.t5_version == "1.1" else "relu"})
    transformer_legacy.base_architecture(args)


def _register(name: str, flags: dict[str, object], size: Callable[[Namespace], None], model: str) -> None:
    """Register an architecture; where the encoder is the only component, mechanisms are placed there by default."""

    @register_model_architecture(model, name)
    def architecture(args: Namespace) -> None:
        names, default = {*vars(args)}, Namespace()
        for namespace in (args, default):
            _default(namespace, flags)
            if model not in ("diverse_transformer", "diverse_t5"):
                place_by_default(namespace, "encoder")
            size(namespace)
            fill_defaults(namespace)
        if not names >= vars(default).keys():  # fairseq calls it again when it builds the model
            for line in without_effect(args, default):
                logger.warning(line)


base, tiny = transformer_legacy.base_architecture, transformer_legacy.tiny_architecture
iwslt, big = transformer_legacy.transformer_iwslt_de_en, transformer_legacy.transformer_vaswani_wmt_en_de_big
ROBERTAS = (roberta_base_architecture, roberta_large_architecture, roberta_tiny_architecture)

for system, flags in systems.SYSTEMS.items():
    for suffix, size in zip(systems.SIZES, (base, tiny, lite_architecture, iwslt, big), strict=True):
        _register(system + suffix, flags, size, "diverse_transformer")

for suffix, flags in {"": {}, "_aggregation": systems.SYSTEMS["li2021_aggregation"]}.items():
    _register(f"li2021_logic{suffix}", flags, logic_architecture, "diverse_classifier")
    _register(f"li2021_probing{suffix}", flags, classifier_architecture, "diverse_classifier")

for system, flags in (systems.ROBERTA_SYSTEMS | systems.BERT_SYSTEMS).items():
    is_bert, reader = system in systems.BERT_SYSTEMS, f"{system.removesuffix('_roberta')}_rationales"
    for suffix, size in zip(systems.ROBERTA_SIZES, ROBERTAS, strict=True):
        _register(system + suffix, flags, size, "diverse_bert" if is_bert else "diverse_roberta")
        words = "diverse_bert_rationales" if is_bert else "diverse_rationales"
        _register(reader + suffix, {**flags, "trained_layers": 2}, size, words)

for system, flags in systems.T5_SYSTEMS.items():
    for suffix in systems.T5_SIZES:
        _register(system + suffix, flags, partial(t5_architecture, suffix), "diverse_t5")
