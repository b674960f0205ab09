"""Synthesizer (Tay et al., 2020)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_diverse.attention.functional.synthesizer import at_positions, dense_logits, random_logits
from fairseq_diverse.attention.mechanism import AttentionContext, Mechanism
from fairseq_diverse.attention.registry import register_mechanism
from fairseq_diverse.attention.settings import AttentionShape, MechanismSettings, option, placement
from fairseq_diverse.support.errors import UserError

READ_QUERIES = ("qk-head-dim", "rotary", "qk-norm", "relative", "localness")


@register_mechanism("synthesizer")
class Synthesizer(Mechanism):
    """Logits that are learned (random) or computed from the query alone (dense), alone or mixed with the usual ones.

    Source: Tay et al. (2020), section 3; see ``random_logits`` and ``dense_logits``. With N positions, random has H N^2
    parameters (2,097,152 at Base), dense C^2 + C + (C + H) N (528,896); alone, there are no projections of queries and
    keys (2 (C^2 + C) fewer). Mixed: the two are weighted by the softmax of two learned numbers, which start with 0;
    biases such as T5's are added to the average, as in the authors' code. R starts with N(0, 1), W_1 and W_2 with
    Xavier's values (uniform).
    """

    @dataclass(frozen=True)
    class Settings(MechanismSettings):
        kind: str = option(
            "none",
            "logits that are learned or computed from the query alone; alone or mixed with the usual ones",
            choices=("none", "random", "dense", "random-mixed", "dense-mixed"),
        )
        on: str = placement("encoder,decoder", "placement of synthesized logits")
        positions: int = option(512, "the longest sentence, in tokens")

        @property
        def longest(self) -> int:
            return self.positions

        def check(self, where: AttentionShape) -> None:
            if self.positions < 1:
                raise UserError(f"--synthesizer-positions {self.positions}: must be at least 1")

    components = ("encoder", "decoder")
    refuses = dict.fromkeys(("differential", "interacting"), "they compute their own logits")
    examples = tuple(
        {"synthesizer": kind, "synthesizer_on": "{on}"} for kind in ("random-mixed", "dense-mixed", "random", "dense")
    )

    @classmethod
    def project(cls, settings: Settings, where: AttentionShape) -> AttentionShape:
        return where if settings.kind.endswith("mixed") else replace(where, key_width=0)

    @classmethod
    def check_together(cls, settings: Settings, others: Mapping[str, Any], place: str) -> None:
        if not settings.kind.endswith("mixed") and (reading := [name for name in READ_QUERIES if name in others]):
            raise UserError(
                f"--synthesizer {settings.kind}: {place} also has {reading[0]}, but there are no queries and keys; "
                f"use {settings.kind}-mixed, or place them apart"
            )

    def __init__(self, settings: Settings, where: AttentionShape) -> None:
        super().__init__(settings, where)
        self.positions, heads, width = settings.positions, where.heads, where.head_width
        self.table = self.outer = self.shares = None
        if settings.kind.startswith("random"):
            self.table = nn.Parameter(torch.randn(heads, self.positions, self.positions))
        else:
            self.inner = nn.Linear(where.query_width, heads * width)
            self.outer = nn.Parameter(torch.empty(heads, self.positions, width))
            self.outer_bias = nn.Parameter(torch.zeros(heads, self.positions))
            nn.init.xavier_uniform_(self.inner.weight)
            nn.init.zeros_(self.inner.bias)
            for head in self.outer:
                nn.init.xavier_uniform_(head)
        if settings.kind.endswith("mixed"):
            self.shares = nn.Parameter(torch.zeros(2))

    def logits(self, logits: Tensor, context: AttentionContext) -> Tensor:
        """(B, H, T, S) -> (B, H, T, S)

        Raises:
            UserError: a sentence is longer than --synthesizer-positions.
        """
        queries, keys = logits.shape[2:]
        if keys > self.positions:
            raise UserError(f"--synthesizer-positions {self.positions}: a sentence has {keys} tokens; set it higher")
        positions = None if context.key_padding is None else (context.valid_keys.cumsum(-1) - 1).clamp(min=0)
        if self.table is not None:
            synthesized = random_logits(self.table[:, :keys, :keys], positions, queries, keys)
        else:
            assert self.outer is not None
            outer = self.outer[:, :keys], self.outer_bias[:, :keys]  # no key has a later position
            dense = dense_logits(context.query, self.inner.weight, self.inner.bias, *outer)
            synthesized = at_positions(dense, positions, keys)
        if self.shares is None:
            return logits + synthesized  # there are no queries and keys: biases of other mechanisms, or 0
        if context.bias is not None:
            synthesized = synthesized + context.bias  # as the usual logits have it
        usual, learned = self.shares.softmax(0)
        return usual * logits + learned * synthesized
