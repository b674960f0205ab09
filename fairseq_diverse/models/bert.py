"""BERT (Devlin et al., 2019): RoBERTa with segments, with mechanisms in its attentions."""

import logging
from argparse import Namespace
from typing import Any

from fairseq.models import register_model
from fairseq.models.roberta.model import RobertaClassificationHead
from fairseq.modules import LearnedPositionalEmbedding
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from fairseq.utils import make_positions
from torch import Tensor, nn

from fairseq_diverse.attention.warm_start import NotTrained, trained_only
from fairseq_diverse.models.diverse_transformer import DiverseEncoder
from fairseq_diverse.models.roberta import DiverseRobertaEncoder, DiverseRobertaModel
from fairseq_diverse.support.errors import UserError

logger = logging.getLogger(__name__)

EPSILON = 1e-12  # of every layer norm
NORMS = ("layernorm_embedding", "layer_norm", "self_attn_layer_norm", "final_layer_norm")


def segments(tokens: Tensor, separator: int) -> Tensor:
    """(B, T) tokens -> (B, T): 0 up to the first separator and at it, 1 behind it."""
    ends = tokens == separator
    return (ends.cumsum(1) - ends.long()).clamp(max=1)


class Positions(LearnedPositionalEmbedding):
    """A row for each position, from 0, where fairseq's has rows for the numbers up to that of padding, too."""

    def __init__(self, rows: int, width: int, pad: int) -> None:
        super().__init__(rows, width, padding_idx=None)
        self.pad = pad

    def forward(self, tokens: Tensor, *_: Any) -> Tensor:
        """(B, T) -> (B, T, C); padding has that of position 0."""
        return super().forward(tokens, positions=(make_positions(tokens, self.pad) - self.pad - 1).clamp(min=0))


class BertLayers(DiverseEncoder):
    """The layers, and the embeddings of word, segment and position:

        x = Dropout(LayerNorm(word + segment + position))

    Source: Devlin et al. (2019), section 3, and Fig. 2. The sentences of a pair are told apart by [SEP], the
    dictionary's </s>; see ``segments``.
    """

    embed_positions: nn.Module | None

    def __init__(self, cfg: Any, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self.separator, width = dictionary.eos(), embed_tokens.embedding_dim
        if self.embed_positions is not None:
            self.embed_positions = Positions(cfg.max_source_positions, width, self.padding_idx)
        self.embed_segments = nn.Embedding(2, width)

    def forward_embedding(self, src_tokens: Tensor, token_embedding: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As in fairseq; the second result has the segments in it."""
        words = self.embed_tokens(src_tokens) if token_embedding is None else token_embedding
        return super().forward_embedding(src_tokens, words + self.embed_segments(segments(src_tokens, self.separator)))


class DiverseBertEncoder(DiverseRobertaEncoder):
    """``DiverseRobertaEncoder`` with the embeddings and layer norms of BERT."""

    layers_class = BertLayers

    def __init__(self, args: Namespace, dictionary: Any) -> None:
        super().__init__(args, dictionary)
        for name, module in self.named_modules():
            if name.rpartition(".")[2] in NORMS and "_attn." not in name:
                module.eps = EPSILON


class BertHead(nn.Module):
    """y = W Dropout(p) + b of the pooled state p = tanh(W_p h + b_p), h the state of [CLS].

    Source: Devlin et al. (2019), section 4.1, and the authors' code; fairseq's head of RoBERTa, whose parameters it
    has, also drops out h.
    """

    def __init__(self, head: RobertaClassificationHead) -> None:
        super().__init__()
        self.dense, self.activation_fn = head.dense, head.activation_fn
        self.dropout, self.out_proj = head.dropout, head.out_proj
        self.apply(init_bert_params)

    def pooled(self, features: Tensor) -> Tensor:
        """(B, T, C) -> (B, C)."""
        return self.activation_fn(self.dense(features[:, 0]))

    def forward(self, features: Tensor, **_: Any) -> Tensor:
        """(B, T, C) -> (B, classes)."""
        return self.out_proj(self.dropout(self.pooled(features)))


@register_model("diverse_bert")
class DiverseBertModel(DiverseRobertaModel):
    """BERT with mechanisms at any layer; its input is [CLS] x [SEP], or of a pair [CLS] x [SEP] y [SEP].

    Differences from ``DiverseRobertaModel``: embeddings of two segments, as many positions as the model reads, layer
    norms with eps 1e-12, the pooler's input without dropout.
    """

    encoder_class = DiverseBertEncoder

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> "DiverseBertModel":
        if getattr(getattr(task, "cfg", None), "separator_token", None) is not None:
            two = "which has two </s> between sentences"
            raise UserError(f"--separator-token: of RoBERTa, {two}; leave it out for BERT")
        return super().build_model(args, task)

    def register_classification_head(self, name: str, *sizes: Any, **more: Any) -> None:
        super().register_classification_head(name, *sizes, **more)
        self.classification_heads[name] = BertHead(self.classification_heads[name])

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """As in fairseq. New heads get the ``pooler`` of a converted checkpoint; layers that predict words, which it
        may lack, keep their initial values. Raises ``NotTrained``: it lacks them, but the model is loaded under
        ``only_trained``."""
        pooler = {part: state_dict.pop(f"pooler.{part}", None) for part in ("weight", "bias")}
        super().upgrade_state_dict_named(state_dict, name)
        for key in self.classification_heads if pooler["weight"] is not None else ():
            state_dict.update({f"classification_heads.{key}.dense.{part}": value for part, value in pooler.items()})
        new = self.encoder.lm_head.state_dict(prefix=(head := "encoder.lm_head."))
        if not any(key in state_dict for key in new):
            new[f"{head}weight"] = state_dict["encoder.sentence_encoder.embed_tokens.weight"]
            if trained_only():
                raise NotTrained(f"{head}bias")
            logger.warning(f"warm start: new in this model: {', '.join(key for key in new if key != f'{head}weight')}")
            state_dict.update(new)
