"""T5 of transformers (``T5ForConditionalGeneration``): settings, names and order of parameters."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_diverse.models.t5 import EPSILON
from fairseq_diverse.models.transformers_config import check_fixed, whole_number
from fairseq_diverse.preparation.encoding import T5_MODEL as PIECES
from fairseq_diverse.preparation.subwords import SENTINELS, Subwords, t5_words
from fairseq_diverse.support.errors import UserError

SIDES, KEPT, OPTIONAL = ("source", "target"), PIECES, ()
TASK = {"_name": "translation", "data": None, "source_lang": None, "target_lang": None}
FIXED = {  # settings that only one value of fits
    **{"layer_norm_epsilon": EPSILON, "is_encoder_decoder": True},
    **{"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
}
OTHERS = {
    **{"encoder_layers": "num_layers", "decoder_layers": "num_decoder_layers", "head_width": "d_kv"},
    "position_bias_buckets": "relative_attention_num_buckets",
    "position_bias_distance": "relative_attention_max_distance",
}
PARTS = {  # of the names in a block
    r"layer\.0\.SelfAttention\.([qkv])\.weight": r"self_attn.\1_proj.weight",
    r"layer\.0\.SelfAttention\.o\.weight": "self_attn.out_proj.weight",
    r"layer\.0\.SelfAttention\.relative_attention_bias\.weight": "self_attn.position_bias.table",
    r"layer\.0\.layer_norm\.weight": "self_attn_layer_norm.weight",
    r"layer\.1\.EncDecAttention\.([qkv])\.weight": r"encoder_attn.\1_proj.weight",
    r"layer\.1\.EncDecAttention\.o\.weight": "encoder_attn.out_proj.weight",
    r"layer\.[12]\.DenseReluDense\.wi\.weight": "fc1.weight",
    r"layer\.[12]\.DenseReluDense\.wi_([01])\.weight": r"fc1.weight \1",
    r"layer\.[12]\.DenseReluDense\.wo\.weight": "fc2.weight",
}
# copies of the embeddings, and what old files have and no model reads
UNUSED = re.compile(r"(encoder|decoder)\.embed_tokens\.weight|.*EncDecAttention\.relative_attention_bias\.weight")


def words(folder: Path, config: Mapping[str, Any]) -> list[str]:
    """fairseq's four symbols, the pieces, words for unused rows, and the sentinels. Raises ``UserError``: no or a
    damaged model of pieces, or no row for <s>, which T5 does not have."""
    if not (folder / PIECES).is_file():
        raise UserError(f"{folder}: no {PIECES}, the model of its subwords")
    return t5_words(Subwords("t5", folder / PIECES).pieces, whole_number("vocab_size", config["vocab_size"]))


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """``arch`` and the flags. Raises ``UserError``: a setting that T5 of this package does not have."""
    check_fixed(config, FIXED)
    form = str(config.get("feed_forward_proj", "relu")), _is_scaled(config)
    versions = {("relu", True): "1.0", ("gated-gelu", False): "1.1"}
    if form not in versions:
        both = f"feed_forward_proj {form[0]} with tie_word_embeddings {form[1]}"
        raise UserError(f"config.json: {both}: neither T5 1.0 (relu, true) nor 1.1 (gated-gelu, false)")
    values = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, **config}
    values["num_decoder_layers"] = values.get("num_decoder_layers") or values["num_layers"]
    for name in ("d_model", "d_ff", "num_heads", *OTHERS.values()):
        whole_number(name, values[name])
    shape = {"embed_dim": values["d_model"], "ffn_embed_dim": values["d_ff"], "attention_heads": values["num_heads"]}
    return {
        "arch": "diverse_t5",
        "t5_version": versions[form],
        **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in shape.items()},
        **{ours: values[name] for ours, name in OTHERS.items()},
        "dropout": float(config.get("dropout_rate", 0.1)),
    }


def _is_scaled(config: Mapping[str, Any]) -> bool:
    """Whether outputs are scaled, as in T5 1.0. transformers 4 calls that tied embeddings, which 5 always writes."""
    return bool(config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True)))


def parameters(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], words: list[str]
) -> dict[str, Tensor]:
    """The parameters of ``diverse_t5``; rows of embeddings in the order of the dictionary ``words``. Raises
    ``UserError``: a parameter that T5 does not have, or embeddings of another size."""
    shared = tensors.get("shared.weight", torch.empty(0))
    tied = shared if config.get("tie_word_embeddings", True) else torch.empty(0)
    output = shared if _is_scaled(config) else tensors.get("lm_head.weight", tied)
    for name, weight in ("shared.weight", shared), ("lm_head.weight", output):
        if len(weight) != len(words):
            raise UserError(f"{name}: {len(weight)} rows, but config.json has {len(words)}")
    converted = {f"{side}.version": torch.tensor([3.0]) for side in ("encoder", "decoder")}
    for name, tensor in tensors.items():
        if not UNUSED.fullmatch(name) and name not in ("shared.weight", "lm_head.weight"):
            converted[_name(name)] = tensor
    for name in [name for name in converted if name.endswith(" 0")]:  # the gate, and what it is multiplied by
        converted[name[:-2]] = torch.cat([converted.pop(name), converted.pop(f"{name[:-1]}1")])
    order = rows(words)
    embeddings = shared[order]
    converted |= {f"{side}.embed_tokens.weight": embeddings for side in ("encoder", "decoder")}
    return converted | {"decoder.output_projection.weight": embeddings if output is shared else output[order]}


def rows(words: list[str]) -> list[int]:
    """T5's number of each symbol: <pad>, </s>, <unk>, the pieces, the sentinels from the last to the first, unused."""
    unused = sum(word.startswith("madeupword") for word in words)
    pieces = len(words) - 1 - unused - SENTINELS
    sentinels = range(pieces, pieces + SENTINELS)
    return [len(words) - 1, *range(pieces), *range(sentinels.stop, sentinels.stop + unused), *sentinels]


def _name(name: str) -> str:
    side, _, rest = name.partition(".")
    if rest == "final_layer_norm.weight":
        return f"{side}.layer_norm.weight"
    if match := re.fullmatch(r"block\.(\d+)\.(.+)", rest):
        last = "1" if side == "encoder" else "2"
        norms = {rf"layer\.{last}\.layer_norm\.weight": "final_layer_norm.weight"}
        norms |= {r"layer\.1\.layer_norm\.weight": "encoder_attn_layer_norm.weight"} if side == "decoder" else {}
        for pattern, ours in {**PARTS, **norms}.items():
            if re.fullmatch(pattern, match[2]):
                return f"{side}.layers.{match[1]}.{re.sub(pattern, ours, match[2])}"
    raise UserError(f"{name}: no parameter of T5")
