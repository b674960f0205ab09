"""Classifier of documents over the words of an encoder: BERT+LSTM of ERASER (DeYoung et al., 2020), with mechanisms."""

from argparse import Namespace
from typing import Any

import torch
from fairseq.models import register_model
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fairseq_diverse.attention.functional.masking import masked_softmax
from fairseq_diverse.attention.mechanism import Mechanism
from fairseq_diverse.attention.request import Requests
from fairseq_diverse.attention.warm_start import trained_only
from fairseq_diverse.models.attention import StagedAttention
from fairseq_diverse.models.bert import DiverseBertModel
from fairseq_diverse.models.roberta import DiverseRobertaModel
from fairseq_diverse.support.errors import UserError

HIDDEN, DROPOUT = 128, 0.2


class WordReader(nn.Module):
    """A bidirectional LSTM over words, additive attention with one learned query, and a classifier.

        h = BiLSTM(x),  a_t = softmax over t of v . tanh(W h_t + q),  logits = W_2 dropout(ReLU(W_1 sum_t a_t h_t))

    Source: the model BERT+LSTM of ERASER's baselines (DeYoung et al., 2020, section 5), 128 + 128 channels.
    """

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, HIDDEN, batch_first=True, bidirectional=True)
        self.project = nn.Linear(2 * HIDDEN, 2 * HIDDEN, bias=False)
        self.query = nn.Parameter(torch.zeros(2 * HIDDEN))
        self.score = nn.Linear(2 * HIDDEN, 1, bias=False)
        layers = nn.Linear(2 * HIDDEN, HIDDEN), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(HIDDEN, classes)
        self.classifier = nn.Sequential(*layers)

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        """(B, W, C), (B, W) True at words, which come first, at least one -> (B, classes)"""
        packed = pack_padded_sequence(x, valid.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        h, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.size(1))  # (B, W, 2 HIDDEN)
        logits = self.score(torch.tanh(self.project(h) + self.query)).squeeze(-1)  # (B, W)
        weights = masked_softmax(logits, valid).type_as(h)
        return self.classifier((weights.unsqueeze(1) @ h).squeeze(1))


@register_model("diverse_rationales")
class DiverseRationalesModel(DiverseRobertaModel):
    """The encoder of ``diverse_roberta`` and a `WordReader`; a word's state is that of its first subword.

    Of the encoder, the top ``--trained-layers`` layers are trained, and in all layers the parameters of mechanisms and
    the projections that mechanisms change; all of it with as many layers as it has. The pooler, which ERASER's baseline
    trains, too, gives nothing to words: it is left out.
    """

    reads_words = True

    @classmethod
    def add_args(cls, parser: Any) -> None:
        super().add_args(parser)
        parser.add_argument(
            "--trained-layers", type=int, help="top layers of the encoder that are trained (default: 2)"
        )

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> "DiverseRationalesModel":
        if not hasattr(task, "classes"):
            raise UserError("--arch: this classifier needs --task rationales")
        if args.trained_layers < 0:
            raise UserError(f"--trained-layers {args.trained_layers}: must be at least 0")
        model = super().build_model(args, task)
        model.reader = WordReader(args.encoder_embed_dim, task.classes)
        encoder = model.encoder.sentence_encoder
        if args.trained_layers < len(encoder.layers):
            trained = [encoder.layers[-number] for number in range(1, args.trained_layers + 1)]
            trained += [part for part in model.encoder.modules() if isinstance(part, Mechanism)]
            attentions = [part for part in model.encoder.modules() if isinstance(part, StagedAttention)]
            trained += [getattr(attention, name) for attention in attentions for name in attention.reshaped]
            model.encoder.requires_grad_(False)
            for part in trained:
                part.requires_grad_(True)
        model.encoder.lm_head.requires_grad_(False)  # it is not used; its weight may be that of the embeddings
        if args.trained_layers >= len(encoder.layers):
            encoder.embed_tokens.requires_grad_(True)
        return model

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor, starts: Tensor, attention_request: Requests = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """(B, T) subwords, (B, W) places of words, -1 behind the last -> (B, classes) logits, and ``agreement``."""
        x, extra = self.encoder.extract_features(src_tokens, attention_request=attention_request)
        self.warn_of_ignored(extra["losses"])
        words = x.gather(1, starts.clamp(min=0).unsqueeze(-1).expand(-1, -1, x.size(-1)))
        return self.reader(words, starts >= 0), extra

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """As in fairseq; in training, a checkpoint without a reader is that of a language model."""
        super().upgrade_state_dict_named(state_dict, name)
        if not trained_only():
            for key, value in self.reader.state_dict().items():
                state_dict.setdefault(f"{name}.reader.{key}" if name else f"reader.{key}", value)


@register_model("diverse_bert_rationales")
class DiverseBertRationalesModel(DiverseRationalesModel, DiverseBertModel):
    """The same with the encoder of ``diverse_bert``: the query is its first segment, the document the second."""

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> "DiverseBertRationalesModel":
        model = super().build_model(args, task)
        if not task.cfg.one_separator:
            raise UserError("--one-separator: is missing; BERT has one [SEP] between query and document")
        return model
