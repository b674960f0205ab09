"""BERT of transformers (``BertModel`` and the models around it): settings, names and order of parameters."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_diverse.models.bert import EPSILON
from fairseq_diverse.models.transformers_config import check_fixed, whole_number
from fairseq_diverse.preparation.wordpiece import SPECIAL, VOCABULARY, read_vocabulary, symbols
from fairseq_diverse.support.errors import UserError

SIDES, KEPT, TASK = ("source",), VOCABULARY, {"_name": "masked_lm", "data": None}
FIXED = {  # settings that only one value of fits, which is that of Devlin et al. (2019)
    **{"layer_norm_eps": EPSILON, "type_vocab_size": 2, "position_embedding_type": "absolute"},
    **{"is_decoder": False, "add_cross_attention": False, "tie_word_embeddings": True},
}
SIZES = {
    **{"encoder_layers": "num_hidden_layers", "encoder_attention_heads": "num_attention_heads"},
    **{"encoder_embed_dim": "hidden_size", "encoder_ffn_embed_dim": "intermediate_size"},
    "max_positions": "max_position_embeddings",
}
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_accurate", "relu": "relu"}
LAYERS = "encoder.sentence_encoder."
EMBEDDINGS, PREDICTED = f"{LAYERS}embed_tokens.weight", "encoder.lm_head.bias"  # with a row for each symbol
OPTIONAL = ("encoder.lm_head.", "pooler.")
NAMES = {
    r"embeddings\.word_embeddings": f"{LAYERS}embed_tokens",
    r"embeddings\.position_embeddings": f"{LAYERS}embed_positions",
    r"embeddings\.token_type_embeddings": f"{LAYERS}embed_segments",
    r"embeddings\.LayerNorm": f"{LAYERS}layernorm_embedding",
    r"encoder\.layer\.(\d+)\.attention\.self\.([qkv])(?:uery|ey|alue)": rf"{LAYERS}layers.\1.self_attn.\2_proj",
    r"encoder\.layer\.(\d+)\.attention\.output\.dense": rf"{LAYERS}layers.\1.self_attn.out_proj",
    r"encoder\.layer\.(\d+)\.attention\.output\.LayerNorm": rf"{LAYERS}layers.\1.self_attn_layer_norm",
    r"encoder\.layer\.(\d+)\.intermediate\.dense": rf"{LAYERS}layers.\1.fc1",
    r"encoder\.layer\.(\d+)\.output\.dense": rf"{LAYERS}layers.\1.fc2",
    r"encoder\.layer\.(\d+)\.output\.LayerNorm": rf"{LAYERS}layers.\1.final_layer_norm",
    r"pooler\.dense": "pooler",
    r"cls\.predictions\.transform\.dense": "encoder.lm_head.dense",
    r"cls\.predictions\.transform\.LayerNorm": "encoder.lm_head.layer_norm",
    r"cls\.predictions": "encoder.lm_head",
}
OLD = {"gamma": "weight", "beta": "bias"}  # of layer norms, in the published files
# what is computed, is the embeddings again, or belongs to the task of another head
UNUSED = re.compile(
    r"embeddings\.(position|token_type)_ids|cls\.predictions\.decoder\..*|cls\.seq_relationship\..*|"
    r"classifier\..*|qa_outputs\..*"
)


def words(folder: Path, config: Mapping[str, Any]) -> list[str]:
    """The symbols of the dictionary, see ``symbols``. Raises ``ValueError``: as ``read_vocabulary``, or there are more
    subwords than rows of embeddings."""
    subwords = read_vocabulary(folder / VOCABULARY)
    if len(subwords) > config["vocab_size"]:
        raise UserError(f"{folder / VOCABULARY}: {len(subwords):,} subwords, config.json has {config['vocab_size']:,}")
    return symbols(subwords)


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """``arch`` and the flags. Raises ``UserError``: a setting that BERT of this package does not have."""
    check_fixed(config, FIXED)
    if (activation := config.get("hidden_act", "gelu")) not in ACTIVATIONS:
        raise UserError(f"config.json: hidden_act {activation}: not supported, only {', '.join(ACTIVATIONS)}")
    for name in ("vocab_size", *SIZES.values()):
        whole_number(name, config[name])
    dropout, last = config.get("hidden_dropout_prob", 0.1), config.get("classifier_dropout")
    return {
        "arch": "diverse_bert",
        **{ours: config[name] for ours, name in SIZES.items()},
        "activation_fn": ACTIVATIONS[activation],
        "dropout": float(dropout),
        "attention_dropout": float(config.get("attention_probs_dropout_prob", 0.1)),
        "pooler_dropout": float(dropout if last is None else last),
    }


def parameters(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], words: list[str]
) -> dict[str, Tensor]:
    """The parameters of ``diverse_bert`` by name, with rows of embeddings in the order of the dictionary ``words``, and
    ``pooler``, which new heads get. Rows behind the vocabulary are left out. Raises ``UserError``: a parameter that
    BERT does not have, or embeddings or a pooler of another size."""
    numbers = {SPECIAL.get(word, word): number for number, word in enumerate(read_vocabulary(folder / VOCABULARY))}
    rows = torch.tensor([numbers[word] for word in words])
    converted = {f"{LAYERS}version": torch.tensor([3.0])}
    for name, tensor in tensors.items():
        name = name.removeprefix("bert.")
        if not UNUSED.fullmatch(name):
            converted[_name(name)] = tensor
    vocabulary, width = config["vocab_size"], config["hidden_size"]
    sizes = {EMBEDDINGS: (vocabulary, width), PREDICTED: (vocabulary,)}
    sizes |= {"pooler.weight": (width, width), "pooler.bias": (width,)}
    for name, size in sizes.items():
        if name in converted and converted[name].shape != size:
            raise UserError(f"{folder}: {name} is {(*converted[name].shape,)}, but config.json has {size}")
        if name in (EMBEDDINGS, PREDICTED) and name in converted:
            converted[name] = converted[name][rows]
    if ("pooler.weight" in converted) != ("pooler.bias" in converted):
        raise UserError(f"{folder}: pooler: needs weight and bias, has one of them")
    if PREDICTED in converted and EMBEDDINGS in converted:
        converted["encoder.lm_head.weight"] = converted[EMBEDDINGS]
    return converted


def _name(name: str) -> str:
    module, _, part = name.rpartition(".")
    for pattern, ours in NAMES.items():
        if re.fullmatch(pattern, module):
            return f"{re.sub(pattern, ours, module)}.{OLD.get(part, part)}"
    raise UserError(f"{name}: no parameter of BERT")
