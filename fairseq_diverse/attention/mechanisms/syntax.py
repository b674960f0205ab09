"""Attention along the trees of the source (Zhang et al., 2021, section 4.1)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_diverse.attention.functional.syntax import phrase_bias, phrase_distance
from fairseq_diverse.attention.mechanism import AttentionContext, Mechanism
from fairseq_diverse.attention.registry import register_mechanism
from fairseq_diverse.attention.relations import Relations
from fairseq_diverse.attention.settings import AttentionShape, MechanismSettings, option, placement
from fairseq_diverse.support.errors import UserError


@register_mechanism("syntax")
class Syntax(Mechanism):
    """Dependency-enhanced attention: a subword sees its word, its head and its dependents. For ``phrase`` see
    ``PhraseAttention``.

    Source: Zhang et al. (2021), Eqs. 4-5. No parameters.
    """

    @dataclass(frozen=True)
    class Settings(MechanismSettings):
        kind: str = option(
            "none",
            "dependency: a word sees only itself, its head and its dependents; phrase: only its local phrase",
            choices=("none", "dependency", "phrase"),
        )
        on: str = placement("encoder:1", "placement of syntax-enhanced attention")
        limit: int = option(
            6, "relative phrase layers are clipped to this value, at least 0; --syntax phrase", flag="--phrase-limit"
        )

        @property
        def trees(self) -> tuple[str, ...]:
            return {"none": (), "dependency": ("dependency",), "phrase": ("constituency",)}[self.kind]

        @property
        def unused(self) -> tuple[str, ...]:
            return ("limit",) if self.kind == "dependency" else ()

        def check(self, where: AttentionShape) -> None:
            if self.limit < 0:
                raise UserError(f"--phrase-limit {self.limit}: must be at least 0")

    components = ("encoder",)
    examples = (
        {"syntax": "dependency", "syntax_on": "{on}"},
        {"syntax": "phrase", "syntax_on": "{on}", "phrase_limit": 2},
    )

    @classmethod
    def build(cls, settings: Settings, where: AttentionShape) -> Mechanism:
        return PhraseAttention(settings, where) if settings.kind == "phrase" else Syntax(settings, where)

    def penalty(self, relations: Relations) -> tuple[Tensor | None, Tensor]:
        """A term of the logits and the visible keys, each (B, 1, T, T)."""
        assert relations.dependency is not None
        return None, relations.dependency.unsqueeze(1)

    def visible(self, context: AttentionContext) -> Tensor:
        """(B, 1, T, T)"""
        assert context.relations is not None
        return self.penalty(context.relations)[1]


class PhraseAttention(Syntax):
    """Local-phrase-enhanced attention: a subword sees its local phrase, with a penalty by relative layer.

    Source: Zhang et al. (2021), Eqs. 6-8. (2k+1) D + D^2 + 2 D parameters: 5,056 at Base with k = 6. D is the width of
    a head's keys; where there are none (--synthesizer random or dense), that of its values.
    """

    def __init__(self, settings: Syntax.Settings, where: AttentionShape) -> None:
        super().__init__(settings, where)
        width, self.limit = where.key_width or where.head_width, settings.limit
        self.embedding = nn.Parameter(torch.empty(2 * self.limit + 1, width))
        self.hidden = nn.Linear(width, width)
        self.out = nn.Parameter(torch.empty(1, width))
        nn.init.normal_(self.embedding, std=width**-0.5)
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.zeros_(self.hidden.bias)
        nn.init.xavier_uniform_(self.out)  # never 0: |x| has no gradient there

    def penalty(self, relations: Relations) -> tuple[Tensor, Tensor]:
        """As ``Syntax.penalty``; the term is 0 outside the phrase, since later stages mix or convolve masked logits."""
        assert relations.phrase is not None and relations.layer is not None
        distance = phrase_distance(relations.layer, self.limit)
        bias = phrase_bias(self.embedding, self.hidden.weight, self.hidden.bias, self.out[0], distance)
        inside = relations.phrase
        return torch.where(inside, bias, 0).unsqueeze(1), inside.unsqueeze(1)

    def bias(self, context: AttentionContext) -> Tensor:
        """(B, 1, T, T)"""
        assert context.relations is not None
        return self.penalty(context.relations)[0]

    def visible(self, context: AttentionContext) -> Tensor:
        """(B, 1, T, T)"""
        assert context.relations is not None and context.relations.phrase is not None
        return context.relations.phrase.unsqueeze(1)
