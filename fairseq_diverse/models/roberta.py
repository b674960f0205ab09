"""fairseq's RoBERTa, a masked language model and sentence classifier, with mechanisms in its attentions."""

import re
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from fairseq.models import register_model
from fairseq.models.roberta import RobertaEncoder, RobertaModel
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from torch import Tensor, nn

from fairseq_diverse.attention.mechanism import Mechanism
from fairseq_diverse.attention.plan import AttentionPlan
from fairseq_diverse.attention.registry import active
from fairseq_diverse.attention.request import Requests
from fairseq_diverse.models.attention import StagedAttention
from fairseq_diverse.models.diverse_transformer import DiverseEncoder, DiverseModel, components, resolve
from fairseq_diverse.support.errors import UserError


@contextmanager
def _mechanisms_keep_their_values(module: nn.Module) -> Iterator[None]:
    """Undo what the block does to the parameters of mechanisms."""
    parameters = [p for part in module.modules() if isinstance(part, Mechanism) for p in part.parameters()]
    before = [parameter.detach().clone() for parameter in parameters]
    yield
    with torch.no_grad():
        for parameter, value in zip(parameters, before, strict=True):
            parameter.copy_(value)


class DiverseRobertaEncoder(RobertaEncoder):
    """fairseq's encoder of RoBERTa around ``DiverseEncoder``."""

    layers_class = DiverseEncoder

    @property
    def plan(self) -> AttentionPlan:
        return self.sentence_encoder.plan

    @property
    def layers(self) -> nn.ModuleList:
        return self.sentence_encoder.layers

    def max_positions(self) -> int:
        return min(super().max_positions(), self.plan.longest("encoder"))

    def build_encoder(self, args: Namespace, dictionary: Any, embed_tokens: nn.Embedding) -> DiverseEncoder:
        encoder = self.layers_class(TransformerConfig.from_namespace(args), dictionary, embed_tokens)
        with _mechanisms_keep_their_values(encoder):
            return encoder.apply(init_bert_params)

    def forward(
        self, src_tokens: Tensor, features_only: bool = False, return_all_hiddens: bool = False, **more: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        """As in fairseq; ``more`` as for ``extract_features``."""
        masked = {"masked_tokens": more.pop("masked_tokens", None)}
        x, extra = self.extract_features(src_tokens, return_all_hiddens, **more)
        return (x if features_only else self.output_layer(x, **masked)), extra

    def extract_features(
        self,
        src_tokens: Tensor,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
        attention_request: Requests = None,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """(B, T) tokens -> (B, T, C) features; the second result also has ``agreement``, ``maps`` and ``inside``, as
        that of ``DiverseTransformerModel``."""
        request = resolve(attention_request, components(self.sentence_encoder.cfg))
        encoded = self.sentence_encoder(
            src_tokens, return_all_hiddens=return_all_hiddens, token_embeddings=token_embeddings, request=request
        )
        x, states = encoded["encoder_out"][0].transpose(0, 1), encoded["encoder_states"]
        return x, {"inner_states": states if return_all_hiddens else None, **encoded["extras"].results(request, x)}


@register_model("diverse_roberta")
class DiverseRobertaModel(DiverseModel, RobertaModel):
    """fairseq's ``roberta`` with mechanisms at any layer of its encoder; with all off, it is fairseq's model.

    As in fairseq, linear layers and embeddings start as BERT's, N(0, 0.02). The parameters of mechanisms start as in
    every other model.
    """

    sides = ("encoder",)
    encoder_class = DiverseRobertaEncoder

    def __init__(self, args: Namespace, encoder: DiverseRobertaEncoder) -> None:
        with _mechanisms_keep_their_values(encoder):
            super().__init__(args, encoder)
        for attention in self.modules():
            if isinstance(attention, StagedAttention):
                attention.scale_out_proj()

    @classmethod
    def add_args(cls, parser: Any) -> None:
        super().add_args(parser)
        texts = {"checkpoint": "recompute activations in the backward pass"}
        texts["offload"] = "like --checkpoint-activations, and store them on the CPU"
        for name, text in texts.items():
            parser.add_argument(f"--{name}-activations", action="store_true", help=text)
        text = "no learned positions; with a mechanism that has them, such as --rotary-on encoder"
        parser.add_argument("--no-token-positional-embeddings", action="store_true", help=text)

    @classmethod
    def prepare(cls, args: Namespace) -> AttentionPlan:
        plan = super().prepare(args)
        if plan.trees:
            raise UserError("--syntax, --enliven: the sentences of a language model have no trees")
        if placed := active(args):
            for flag, default in (("mha_heads_to_keep", -1), ("mha_reg_scale_factor", 0)):
                if getattr(args, flag, default) != default:
                    raise UserError(f"--{flag.replace('_', '-')}: prunes fairseq's own heads; leave out {placed[0]}")
        return plan

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> "DiverseRobertaModel":
        cls.prepare(args)
        args.checkpoint_activations = any(getattr(args, f"{x}_activations", False) for x in ("checkpoint", "offload"))
        if getattr(args, "max_positions", None) is None:
            args.max_positions = getattr(args, "tokens_per_sample", None) or task.max_positions()
        model = cls(args, cls.encoder_class(args, task.source_dictionary))
        model.finish(args)
        return model

    def forward(self, *args: Any, **named: Any) -> tuple[Tensor, dict[str, Any]]:
        """As in fairseq; the second result is that of ``DiverseRobertaEncoder``."""
        x, extra = super().forward(*args, **named)
        self.warn_of_ignored(extra["losses"])
        return x, extra

    def load_state_dict(self, state_dict: Any, strict: bool = True, model_cfg: Any = None, args: Any = None) -> Any:
        """As in fairseq, from its older names too, whose encoder is a decoder."""
        renamed = {re.sub("^decoder", "encoder", name): value for name, value in state_dict.items()}
        return super().load_state_dict(renamed, strict, model_cfg, args)
