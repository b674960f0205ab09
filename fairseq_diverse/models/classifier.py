"""A sentence classifier: an encoder with mechanisms, pooling, feed-forward layers."""

import itertools
from argparse import Namespace
from typing import Any

import torch
from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig, TransformerModel
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from fairseq_diverse.attention.functional.masking import masked_softmax
from fairseq_diverse.attention.plan import AttentionPlan, Component
from fairseq_diverse.attention.registry import active
from fairseq_diverse.attention.request import Requests, ResolvedRequest
from fairseq_diverse.models.diverse_transformer import DiverseEncoder, DiverseModel, components, resolve
from fairseq_diverse.support.errors import UserError


class MeanPooling(nn.Module):
    """The mean of a sentence's vectors (Li et al., 2021, section 4.2.2)."""

    vectors = 1

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        """(B, T, C), (B, T) True at real tokens -> (B, C)"""
        weights = valid.unsqueeze(-1).type_as(x)
        return (x * weights).sum(1) / weights.sum(1).clamp(min=1)


class QueryPooling(nn.Module):
    """Attention of P trainable queries to a sentence's vectors (Li et al., 2021, section 4.3.2; Tran et al., 2018).

    pooled_p = sum over t of softmax(u_p . x_t / sqrt(C)) x_t
    """

    def __init__(self, width: int, vectors: int) -> None:
        super().__init__()
        self.vectors = vectors
        self.queries = nn.Parameter(torch.empty(vectors, width))
        nn.init.normal_(self.queries)

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        """(B, T, C), (B, T) True at real tokens -> (B, P C)"""
        logits = self.queries.type_as(x) @ x.transpose(1, 2) * x.size(-1) ** -0.5  # (B, P, T)
        return (masked_softmax(logits, valid.unsqueeze(1)).type_as(x) @ x).flatten(1)


@register_model("diverse_classifier")
class DiverseClassifier(DiverseModel):
    """``DiverseEncoder``, a pooling of its last layer, and a feed-forward classifier.

    The task gives the number of sequences per example (``sequences``, K), the number of classes (``classes``), and
    optionally a trained model (``pretrained``), whose encoder is frozen and runs without dropout. The settings of that
    model are stored in the arguments (``pretrained``), so the classifier's checkpoint is complete. With a frozen
    encoder and no trainable queries, the pooled vector of a sentence (P C numbers) is cached: each sentence is encoded
    once, whatever the number of epochs.
    """

    classifies, sides = True, ("encoder",)

    def __init__(
        self, encoder: DiverseEncoder, pooling: nn.Module, classifier: nn.Module, sequences: int, frozen: bool
    ) -> None:
        super().__init__()
        self.encoder, self.pooling, self.classifier = encoder, pooling, classifier
        self.sequences, self.frozen = sequences, frozen
        self.pooled: dict[tuple[int, ...], Tensor] = {}  # cache, by the words of the sentence
        for parameter in encoder.parameters() if frozen else ():
            parameter.requires_grad_(False)

    @classmethod
    def add_args(cls, parser: Any) -> None:
        TransformerModel.add_args(parser)
        super().add_args(parser)
        parser.add_argument("--pooling", choices=("mean", "queries"), help="pooling of token vectors (default: mean)")
        parser.add_argument("--pooling-queries", type=int, help="learned queries of --pooling queries (default: 2)")
        parser.add_argument("--classifier-layers", type=int, help="linear layers of the classifier (default: 2)")

    @classmethod
    def prepare(cls, args: Namespace) -> AttentionPlan:
        """As ``DiverseModel.prepare``; the plan is that of an encoder that is trained here."""
        for flag in ("pooling_queries", "classifier_layers"):
            if getattr(args, flag) < 1:
                raise UserError(f"--{flag.replace('_', '-')} {getattr(args, flag)}: must be at least 1")
        if layers_kept := getattr(args, "encoder_layers_to_keep", None):
            args.encoder_layers = len(str(layers_kept).split(","))
        plan = super().prepare(args)
        _refuse_trees(plan)
        return plan

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> "DiverseClassifier":
        if not hasattr(task, "sequences"):  # not a classification task
            raise UserError("--arch: a classifier needs --task logical_inference or sentence_probing")
        cls.prepare(args)
        kept = getattr(args, "pretrained", None)
        pretrained = task.pretrained() if kept is None else None
        if getattr(args, "encoder_layers_to_keep", None) and (kept is not None or pretrained is not None):
            raise UserError("--encoder-layers-to-keep: the encoder is probed as it was trained; leave the flag out")
        if pretrained is not None:
            if placed := active(args):
                raise UserError(f"--from-checkpoint: the encoder is probed as it was trained; leave out {placed[0]}")
            kept = args.pretrained = _flags(pretrained.cfg)
            encoder = pretrained.encoder
        else:
            shape = args if kept is None else Namespace(**kept)
            cfg, dictionary = TransformerConfig.from_namespace(shape), task.source_dictionary
            path = cfg.encoder.embed_path if kept is None else None
            embedding = TransformerModel.build_embedding(cfg, dictionary, cfg.encoder.embed_dim, path)
            encoder = DiverseEncoder(cfg, dictionary, embedding)
        _refuse_trees(encoder.plan)
        width = encoder.cfg.encoder.embed_dim
        pooling = MeanPooling() if args.pooling == "mean" else QueryPooling(width, args.pooling_queries)
        sizes = [width * pooling.vectors * task.sequences, *[width] * (args.classifier_layers - 1), task.classes]
        layers: list[nn.Module] = []
        for size in itertools.pairwise(sizes):
            layers += [FairseqDropout(args.dropout, module_name="DiverseClassifier"), nn.Linear(*size), nn.ReLU()]
        model = cls(encoder, pooling, nn.Sequential(*layers[:-1]), task.sequences, kept is not None)
        model.finish(args)
        return model

    def train(self, mode: bool = True) -> "DiverseClassifier":
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> "DiverseClassifier":
        self.pooled.clear()
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.pooled.clear()
        super()._load_from_state_dict(*args, **kwargs)

    def max_positions(self) -> int:
        return self.encoder.max_positions()

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor, attention_request: Requests = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """(K B, T) tokens -> (B, classes) logits, and ``agreement`` (terms,) over all tokens.

        The first sequences of all examples are one batch for the encoder, then the second ones, and so on; each batch
        is padded only to its own longest sequence.
        """
        sizes = components(self.encoder.cfg)
        request = resolve(attention_request, sizes | dict.fromkeys(("decoder", "cross"), Component(0, 0, 0)))
        fixed = self.frozen and not [*self.pooling.parameters()]
        pool = self._pool_cached if fixed and attention_request is None else self._pool
        features, agreement = [], []
        for tokens, lengths in zip(src_tokens.chunk(self.sequences), src_lengths.chunk(self.sequences), strict=True):
            pooled, agreed = pool(tokens, lengths, request)
            features.append(pooled)
            agreement.append(lengths.sum() / src_lengths.sum() * agreed)  # which is a mean over tokens
        return self.classifier(torch.cat(features, -1)), {"agreement": torch.stack(agreement).sum(0)}

    def _pool_cached(self, tokens: Tensor, lengths: Tensor, request: ResolvedRequest) -> tuple[Tensor, Tensor]:
        """As ``_pool``, but only sentences that are not in the cache are encoded."""
        pad = self.encoder.padding_idx
        sentences = [tuple(word for word in row if word != pad) for row in tokens.tolist()]
        if new := {sentence: i for i, sentence in enumerate(sentences) if sentence not in self.pooled}:
            rows = [*new.values()]
            self.pooled |= zip(new, self._pool(tokens[rows], lengths[rows], request)[0], strict=True)
        return torch.stack([self.pooled[sentence] for sentence in sentences]), tokens.new_zeros(0, dtype=torch.float)

    def _pool(self, tokens: Tensor, lengths: Tensor, request: ResolvedRequest) -> tuple[Tensor, Tensor]:
        """(B, T) tokens -> (B, P C) pooled vectors, and the (terms) agreement."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            encoded = self.encoder(tokens[:, : int(lengths.max())], src_lengths=lengths, request=request)
        self.warn_of_ignored(encoded["extras"].losses)
        x = encoded["encoder_out"][0].transpose(0, 1)  # (B, T, C)
        return self.pooling(x, ~encoded["encoder_padding_mask"][0]), encoded["extras"].results(request, x)["agreement"]


def _refuse_trees(plan: AttentionPlan) -> None:
    if plan.trees:
        raise UserError("--syntax, --enliven: the sentences of this task have no trees")


def _flags(cfg: TransformerConfig) -> dict[str, Any]:
    sides = {f"{side}_{name}": x for side in ("encoder", "decoder") for name, x in vars(getattr(cfg, side)).items()}
    return {name: x for name, x in {**vars(cfg), **sides}.items() if x is None or isinstance(x, str | int | float)}
