"""T5 (Raffel et al., 2020), with mechanisms in its attentions."""

from argparse import Namespace
from typing import Any

import torch.nn.functional as F
from fairseq.models import register_model
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from fairseq_diverse.attention.mechanism import Mechanism
from fairseq_diverse.attention.plan import AttentionPlan
from fairseq_diverse.models.attention import StagedAttention
from fairseq_diverse.models.diverse_transformer import DiverseDecoder, DiverseEncoder, DiverseTransformerModel
from fairseq_diverse.support.errors import UserError

EPSILON = 1e-6
VERSIONS = ("1.0", "1.1")
OWN = {  # what T5 is
    **dict.fromkeys(("encoder_normalize_before", "decoder_normalize_before", "no_scale_embedding"), True),
    **dict.fromkeys(("no_token_positional_embeddings", "share_all_embeddings"), True),
    "scaled_attention": False,
}
NOT_IN_T5 = (
    *("adaptive_input", "adaptive_softmax_cutoff", "layernorm_embedding", "merge_src_tgt_embed", "quant_noise_pq"),
    *("encoder_learned_pos", "decoder_learned_pos", "encoder_embed_path", "decoder_embed_path"),
    "no_decoder_final_norm",
)


class Embedding(nn.Embedding):
    """The embedding of a side: padding has a learned vector, too. The decoder reads padding in place of ``start``."""

    def __init__(self, symbols: int, width: int, padding: int, start: int | None = None) -> None:
        super().__init__(symbols, width, padding)
        nn.init.normal_(self.weight)
        self.start = start

    def forward(self, tokens: Tensor) -> Tensor:
        assert self.padding_idx is not None
        if self.start is not None:
            tokens = tokens.masked_fill(tokens == self.start, self.padding_idx)
        return F.embedding(tokens, self.weight)


class LastNorm(nn.RMSNorm):
    """The norm at the end of a stack, with dropout."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__(width, EPSILON)
        self.dropout_module = FairseqDropout(dropout, module_name="T5")

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout_module(super().forward(x))


def make_t5(layer: nn.Module) -> nn.Module:
    """RMSNorm in place of layer norm, no biases, and T5's initial values; mechanisms stay as they are. Matrices start
    as N(0, 1 / input width), that of the queries as N(0, 1 / (input width Dk))."""
    for name, part in layer.named_children():
        if isinstance(part, nn.LayerNorm):
            setattr(layer, name, nn.RMSNorm(part.normalized_shape, EPSILON))
        elif isinstance(part, nn.Linear):
            part.register_parameter("bias", None)
            nn.init.normal_(part.weight, std=part.in_features**-0.5)
        elif not isinstance(part, Mechanism):
            make_t5(part)
    if isinstance(layer, StagedAttention):
        layer.q_proj.weight.data.mul_(max(1, layer.q_proj.out_features // layer.num_heads) ** -0.5)
        layer.scale_out_proj()
    return layer


class T5Encoder(DiverseEncoder):
    def __init__(self, cfg: Any, *args: Any) -> None:
        super().__init__(cfg, *args)
        self.layer_norm = LastNorm(cfg.encoder.embed_dim, cfg.dropout)

    def new_layer(self, *args: Any) -> nn.Module:
        return make_t5(super().new_layer(*args))


class T5Decoder(DiverseDecoder):
    def __init__(self, cfg: Any, dictionary: Any, embed_tokens: nn.Embedding, no_encoder_attn: bool = False) -> None:
        self.tied = cfg.t5_version == "1.0"
        embedding = Embedding(len(dictionary), cfg.decoder.embed_dim, dictionary.pad(), dictionary.eos())
        embedding.weight = embed_tokens.weight
        cfg.share_decoder_input_output_embed = self.tied
        super().__init__(cfg, dictionary, embedding, no_encoder_attn)
        self.layer_norm = LastNorm(cfg.decoder.embed_dim, cfg.dropout)
        if not self.tied:
            nn.init.normal_(self.output_projection.weight)

    def new_layer(self, *args: Any) -> nn.Module:
        return make_t5(super().new_layer(*args))

    def output_layer(self, features: Tensor) -> Tensor:
        """As in fairseq; version 1.0 multiplies by 1 / sqrt(d) before."""
        return super().output_layer(features * features.size(-1) ** -0.5 if self.tied else features)


@register_model("diverse_t5")
class DiverseT5Model(DiverseTransformerModel):
    """T5 with mechanisms at any attention and layer.

    Pre-norm with RMSNorm, x / sqrt(mean x^2 + 1e-6) g, also at the end of both stacks; no biases; logits Q K^T without
    1 / sqrt(d), plus the mechanism position-bias; no positions in the embeddings, which both sides share and which are
    not scaled; the decoder starts with padding, which it reads in place of fairseq's </s>. Version 1.0 has ReLU and the
    logits W h d^-1/2 with the embeddings W, version 1.1 a gated GELU and its own W without the factor.

    Source: Raffel et al. (2020), section 2.1, and the authors' code; Shazeer (2020) for version 1.1.
    """

    encoder_class, decoder_class = T5Encoder, T5Decoder

    @classmethod
    def add_args(cls, parser: Any) -> None:
        super().add_args(parser)
        parser.add_argument("--t5-version", choices=VERSIONS, help="1.0: ReLU, tied output; 1.1: gated GELU, untied")
        parser.add_argument("--head-width", type=int, metavar="N", help="width of a head (default: width / heads)")

    @classmethod
    def prepare(cls, args: Namespace) -> AttentionPlan:
        if unsupported := [name for name in NOT_IN_T5 if getattr(args, name, False)]:
            raise UserError(f"--{unsupported[0].replace('_', '-')}: diverse_t5 has none; leave it out")
        if (version := getattr(args, "t5_version", None)) not in VERSIONS:
            raise UserError(f"--t5-version {version}: allowed are {' and '.join(VERSIONS)}")
        if version == "1.0" and getattr(args, "gated_feed_forward", False):
            raise UserError("--gated-feed-forward: T5 1.0 has no gates; use --t5-version 1.1")
        if (width := getattr(args, "head_width", 0)) < 0:
            raise UserError(f"--head-width {width}: at least 1, or 0 for width / heads")
        for name in ("decoder_embed_dim", "decoder_input_dim", "decoder_output_dim"):
            if (value := getattr(args, name)) != args.encoder_embed_dim:
                flag = f"--{name.replace('_', '-')} {value}"
                raise UserError(f"{flag}: T5 has one width, --encoder-embed-dim {args.encoder_embed_dim}")
        vars(args).update(OWN, gated_feed_forward=version == "1.1")
        return super().prepare(args)

    @classmethod
    def build_embedding(cls, cfg: Any, dictionary: Any, embed_dim: int, path: Any = None) -> nn.Embedding:
        return Embedding(len(dictionary), embed_dim, dictionary.pad())
