"""The attention body: fairseq's own while nothing is on, named stages otherwise."""

import logging
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor, nn

from fairseq_diverse.attention.functional.agreement import output_agreement, position_agreement, subspace_agreement
from fairseq_diverse.attention.functional.enlivening import redundant_heads
from fairseq_diverse.attention.functional.interacting import interacting_attention, interacting_weights
from fairseq_diverse.attention.functional.masking import additive_mask, masked_softmax, see_something
from fairseq_diverse.attention.mechanisms.evolving import EvolvingLogits
from fairseq_diverse.attention.mechanisms.mixing import TalkingHeads
from fairseq_diverse.attention.mechanisms.position import RelativePositions
from fairseq_diverse.attention.mechanisms.syntax import Enlivening, Relations
from fairseq_diverse.errors import UserError

logger = logging.getLogger(__name__)

IncrementalState = dict[str, dict[str, Tensor | None]]
ROWS = "evolving_rows"  # of the incremental state: {"rows": (B, H, k - 1, S)}


class AttentionOutput(NamedTuple):
    """What one attention gives its layer."""

    value: Tensor  # (T, B, C)
    weights: Tensor | None  # (H, B, T, S), or (B, T, S) averaged over heads; as the softmax gives them
    agreement: Tensor | None  # (K,) one figure a disagreement term
    redundant: Tensor | None = None  # (B, H) bool, where heads are enlivened
    carry: Tensor | None = None  # (B, H, T, S) evolved logits for the layer above


class Heads(NamedTuple):
    """What the heads give, before they are combined."""

    value: Tensor  # (B, H, T, D), or (B, H, T, H D) of interacting heads
    weights: Tensor | None = None  # (B, H, T, S)
    redundant: Tensor | None = None  # (B, H) bool
    carry: Tensor | None = None  # (B, H, T, S)


class Surroundings(NamedTuple):
    """What the stages of one attention need besides queries, keys and values; see ``StagedAttention.attend``."""

    key_padding_mask: Tensor | None
    query_padding_mask: Tensor | None
    relations: Relations | None
    previous: Tensor | None
    incremental_state: IncrementalState | None


class StagedAttention(MultiheadAttention):
    """fairseq's ``MultiheadAttention`` opened into stages.

    With no stage on and nothing asked for, fairseq's forward runs: same parameters, same numbers, bit for bit.
    Otherwise the stages of ``attend`` run, on torch's fused kernel where no one needs the map of weights.

    Args:
        syntax: from the relations of the source, a bias of the logits (or None) and what may be seen; None for none.
        relative: relative positions; None for none.
        localness: a bias of the logits from queries and real keys; None for none.
        enlivening: what redundant heads get of the three before; None gives all of it to all heads.
        talking: mixes the maps of the heads; None for none.
        evolving: residual connection and convolution of the logits; None for none.
        interacting: concat or sum, how the outputs of pairs of heads are combined; None for heads on their own.
        aggregate: module that combines the heads (T, B, C) -> (T, B, C) in place of the output projection, which the
            attention then does not have; None keeps the projection.
        key_width: of each head's queries and keys; None for that of its values, width / heads.
        Others as fairseq's.
    """

    MECHANISMS = ("syntax", "relative", "localness", "enlivening", "talking", "evolving", "interacting", "aggregate")

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        syntax: nn.Module | None = None,
        relative: RelativePositions | None = None,
        localness: nn.Module | None = None,
        enlivening: Enlivening | None = None,
        talking: TalkingHeads | None = None,
        evolving: EvolvingLogits | None = None,
        interacting: str | None = None,
        aggregate: nn.Module | None = None,
        key_width: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(embed_dim, num_heads, **options)
        self.dropout_module.module_name = "MultiheadAttention"  # as --retain-dropout-modules knows it
        self.syntax, self.relative, self.localness = syntax, relative, localness
        self.enlivening, self.talking, self.evolving = enlivening, talking, evolving
        self.interacting, self.aggregate = interacting, aggregate
        self.is_plain = key_width is None and all(getattr(self, mechanism) is None for mechanism in self.MECHANISMS)
        noise = options.get("q_noise", 0.0), options.get("qn_block_size", 8)
        if key_width is not None:
            self.scaling = key_width**-0.5
            self.q_proj = quant_noise(nn.Linear(embed_dim, num_heads * key_width), *noise)
            self.k_proj = quant_noise(nn.Linear(self.kdim, num_heads * key_width), *noise)
        if interacting == "concat":
            self.out_proj = quant_noise(nn.Linear(num_heads * embed_dim, embed_dim), *noise)
        if key_width is not None or interacting == "concat":
            self.reset_parameters()
        if interacting == "concat":
            self.out_proj.weight.data.mul_(num_heads)  # see _pairs
        if aggregate is not None:
            self.out_proj = None

    def forward(self, *args, **kwargs) -> tuple[Tensor, Tensor | None]:  # type: ignore[no-untyped-def]
        """As fairseq's ``MultiheadAttention.forward``."""
        output = self.attend(*args, **kwargs)
        return output.value, output.weights

    def attend(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        incremental_state: IncrementalState | None = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
        need_head_weights: bool = False,
        query_padding_mask: Tensor | None = None,
        terms: tuple[str, ...] = (),
        relations: Relations | None = None,
        previous: Tensor | None = None,
    ) -> AttentionOutput:
        """One attention of the query over the keys.

        Args:
            query: (T, B, C).
            key, value: (S, B, C); None where the cache holds them.
            key_padding_mask: (B, S), True at padding.
            query_padding_mask: (B, T), True at padding; only ``terms`` and evolving attention use it.
            attn_mask: (T, S), 0 where a query may see a key, -inf elsewhere.
            need_weights, need_head_weights: return the weights averaged over heads, or of each head.
            terms: disagreement terms to measure: subspace, position, output.
            relations: of the source's trees; needed by syntax and enlivening.
            previous: (B, H, T, S) what the layer below gave as ``carry``; None for none.
            Others as fairseq's.

        Raises:
            UserError: the position term of heads that interact.
        """
        need_weights = need_weights or need_head_weights
        fused_in_fairseq = (
            incremental_state is None and not static_kv
        )  # there it cannot return the weights of each head
        if self.is_plain and not terms and not (need_head_weights and fused_in_fairseq):
            plain, plain_weights = super().forward(
                query,
                key,
                value,
                key_padding_mask=key_padding_mask,
                incremental_state=incremental_state,
                need_weights=need_weights,
                static_kv=static_kv,
                attn_mask=attn_mask,
                need_head_weights=need_head_weights,
            )
            return AttentionOutput(plain, plain_weights, None)

        q, k, v, key_padding_mask = self._project(query, key, value, key_padding_mask, incremental_state, static_kv)
        allowed = self._allowed(key_padding_mask, attn_mask)
        if self.interacting is not None:
            if "position" in terms:
                raise UserError("--disagreement position: heads that interact (--interacting) have no map of their own")
            heads = self._pairs(q, k, v, allowed, need_weights)
        else:
            around = Surroundings(key_padding_mask, query_padding_mask, relations, previous, incremental_state)
            heads = self._heads(q, k, v, allowed, around, need_weights or "position" in terms)
        agreement = None
        if terms:
            agreement = _measure(terms, v, heads, _valid(query_padding_mask, q), _valid(key_padding_mask, k))
        concatenated = heads.value.permute(2, 0, 1, 3).flatten(2)  # (T, B, C)
        combined = self.out_proj(concatenated) if self.aggregate is None else self.aggregate(concatenated)
        shown = None
        if need_weights and heads.weights is not None:
            shown = heads.weights.transpose(0, 1) if need_head_weights else heads.weights.mean(1)
        return AttentionOutput(combined, shown, agreement, heads.redundant, heads.carry)

    def _heads(
        self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, around: Surroundings, explicit: bool
    ) -> Heads:
        """What every head gives on its own.

        There is no map where torch's fused kernel can do the work and no ``explicit`` one is asked for.
        """
        bias, seen = self._bias(q, k, around)
        explicit = explicit or not (self.relative is self.talking is self.evolving is None)
        logits = q @ k.transpose(-1, -2) if explicit or self.enlivening is not None else None  # (B, H, T, S)
        redundant = gated = None
        if self.enlivening is not None:
            assert logits is not None and around.relations is not None and around.relations.dependency is not None
            with torch.no_grad():
                plain_weights = masked_softmax(logits, allowed)
                valid = _valid(around.key_padding_mask, k)
                redundant = redundant_heads(plain_weights, around.relations.dependency, valid, self.enlivening.gate)
            gated = redundant[..., None, None]  # (B, H, 1, 1)
            bias = None if bias is None else torch.where(gated, bias, 0)
            seen = None if seen is None else seen | ~gated
        if not explicit:
            mask = self._seen(seen, allowed)
            mask = mask if bias is None else additive_mask(bias, mask).type_as(q)
            value = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self._dropout, scale=1.0)
            return Heads(self._pruned(value, gated), redundant=redundant)
        assert logits is not None
        if bias is not None:
            logits = logits + bias
        if self.talking is not None:
            logits = self.talking.mix_logits(logits)
        carry = None
        if self.evolving is not None:
            logits = self._evolve(logits, allowed, around)
            carry = logits if self.evolving.carries else None
        weights = masked_softmax(logits, self._seen(seen, allowed))
        mixed = weights if self.talking is None else self.talking.mix_weights(weights)
        dropped = self.dropout_module(mixed.type_as(v))
        value = dropped @ v  # (B, H, T, D)
        if self.relative is not None:
            gain = self.relative.gain(dropped)
            value = value + (gain if gated is None else torch.where(gated, gain, 0))
        return Heads(self._pruned(value, gated), weights, redundant, carry)

    @staticmethod
    def _seen(seen: Tensor | None, allowed: Tensor | None) -> Tensor | None:
        """What may be seen by hard masks, padding and causality together."""
        if seen is None:
            return allowed
        return see_something(seen if allowed is None else seen & allowed)

    def _pruned(self, value: Tensor, gated: Tensor | None) -> Tensor:
        """Head outputs without those of redundant heads, where these are pruned."""
        if gated is None or self.enlivening is None or not self.enlivening.prune:
            return value
        return value.masked_fill(gated, 0)

    def _evolve(self, logits: Tensor, allowed: Tensor | None, around: Surroundings) -> Tensor:
        """(B, H, T, S) -> (B, H, T, S); decoding keeps the last rows under a key of their own."""
        assert self.evolving is not None
        cells, padding = allowed, around.query_padding_mask
        if padding is not None:
            real = ~padding.bool()[:, None, :, None]
            cells = real if cells is None else cells & real
        state, above = around.incremental_state, None
        if state is not None and self.evolving.has_history:
            above = (self.get_incremental_state(state, ROWS) or {}).get("rows")
            self.set_incremental_state(state, ROWS, {"rows": self.evolving.next_above(logits, cells, above)})
        return self.evolving(logits, around.previous, cells, above)

    def reorder_incremental_state(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> IncrementalState | None:
        """As fairseq's, which leaves some caches of the source as they are; the rows of the target always move."""
        rows = self.get_incremental_state(incremental_state, ROWS)
        if rows is not None:
            self.set_incremental_state(incremental_state, ROWS, {"rows": rows["rows"].index_select(0, new_order)})
        return super().reorder_incremental_state(incremental_state, new_order)

    def _pairs(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, need_weights: bool) -> Heads:
        """What heads that interact give: outputs (B, H, T, H D) or (B, H, T, D), and their maps if asked for.

        W_o of Eq. 12 is kept as H W_o, and what it multiplies is divided by H: the same function, with the same initial
        values. O_1j, ..., O_Hj are nearly equal at first, so that the H blocks of W_o that read them move together, and
        Adam, which changes every entry as much whatever its gradient, would move the output H times too far.
        """
        assert self.interacting is not None
        if self.interacting == "concat":
            v = v / self.num_heads
        value = interacting_attention(q, k, v, allowed, self.interacting, self._dropout, scale=1.0)
        weights = interacting_weights(q, k, allowed, scale=1.0) if need_weights else None
        return Heads(value.unflatten(-1, (self.num_heads, -1)).transpose(1, 2), weights)

    @property
    def _dropout(self) -> float:
        """Probability of dropping a weight now."""
        dropping = self.training or self.dropout_module.apply_during_inference
        return self.dropout_module.p if dropping else 0.0

    def _project(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None,
        incremental_state: IncrementalState | None,
        static_kv: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """q (B, H, T, D), already scaled, k and v (B, H, S, D), and the padding of the keys (B, S), past the cache.

        The cache has fairseq's key and format, so that fairseq's reordering of beams works on it.
        """

        def split(x: Tensor) -> Tensor:
            return x.view(x.size(0), x.size(1), self.num_heads, -1).permute(1, 2, 0, 3)

        q = split(self.q_proj(query) * self.scaling)
        cache = self._get_input_buffer(incremental_state) if incremental_state is not None else {}
        cached = "prev_key" in cache
        if cached and static_kv:
            k, v = cache["prev_key"], cache["prev_value"]
        else:
            assert key is not None and value is not None
            k, v = split(self.k_proj(key)), split(self.v_proj(value))
            if cached:
                k, v = torch.cat([cache["prev_key"], k], 2), torch.cat([cache["prev_value"], v], 2)
        assert k is not None and v is not None
        if incremental_state is not None:
            key_padding_mask = self._append_prev_key_padding_mask(
                key_padding_mask, cache.get("prev_key_padding_mask"), k.size(0), k.size(2), static_kv
            )
            self._set_input_buffer(
                incremental_state, {"prev_key": k, "prev_value": v, "prev_key_padding_mask": key_padding_mask}
            )
        return q, k, v, key_padding_mask

    def _bias(self, q: Tensor, k: Tensor, around: Surroundings) -> tuple[Tensor | None, Tensor | None]:
        """The finite addend of the logits and what syntax lets be seen, for (B, H, T, S); None for none."""
        biases, seen = [], None
        if self.syntax is not None:
            penalty, seen = self.syntax(around.relations)
            biases += [] if penalty is None else [penalty]
        if self.relative is not None:
            biases.append(self.relative(q, k.size(2)))
        if self.localness is not None:
            biases.append(self.localness(q / self.scaling, _valid(around.key_padding_mask, k)))
        return (sum(biases[1:], biases[0]) if biases else None), seen

    @staticmethod
    def _allowed(key_padding_mask: Tensor | None, attn_mask: Tensor | None) -> Tensor | None:
        """(B or 1, 1, T or 1, S), True where a query may see a key; None where it may see all."""
        allowed = None
        if attn_mask is not None:
            allowed = (attn_mask == 0)[None, None]
        if key_padding_mask is not None:
            real = ~key_padding_mask.bool()[:, None, None]
            allowed = real if allowed is None else allowed & real
        return None if allowed is None else see_something(allowed)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Warm start: a checkpoint without a mechanism of this attention leaves it at its initial values."""
        super().upgrade_state_dict_named(state_dict, name)
        own = self.state_dict(prefix=f"{name}.")
        plain = {"q_proj": self.embed_dim, "k_proj": self.kdim, "out_proj": self.embed_dim}  # input widths
        reshaped = [
            projection
            for projection, width in plain.items()
            if (weight := own.get(f"{name}.{projection}.weight")) is not None
            and weight.shape != state_dict.get(f"{name}.{projection}.weight", weight).shape == (self.embed_dim, width)
        ]
        new = {key: value for key, value in own.items() if key.removeprefix(f"{name}.").split(".")[0] in reshaped}
        for mechanism in self.MECHANISMS:
            prefix = f"{name}.{mechanism}."
            its = {key: value for key, value in own.items() if key.startswith(prefix)}
            if not any(key in state_dict for key in its):
                new |= its
        if new:
            state_dict.update(new)
            projection = (f"{name}.out_proj.weight", f"{name}.out_proj.bias") if self.aggregate is not None else ()
            dropped = [key for key in projection if state_dict.pop(key, None) is not None]
            logger.warning(
                f"warm start: new in this model: {', '.join(new)}; dropped: {', '.join(dropped) or 'nothing'}"
            )


def _valid(padding_mask: Tensor | None, like: Tensor) -> Tensor:
    """(B, T), True at real tokens."""
    if padding_mask is None:
        return torch.ones(like.size(0), like.size(2), dtype=torch.bool, device=like.device)
    return ~padding_mask.bool()


def _measure(terms: tuple[str, ...], v: Tensor, heads: Heads, valid_query: Tensor, valid_key: Tensor) -> Tensor:
    """(K,) the agreement of the heads by each term, in the order given."""
    figures = []
    for term in terms:
        if term == "subspace":
            figures.append(subspace_agreement(v, valid_key))
        elif term == "position":
            assert heads.weights is not None
            figures.append(position_agreement(heads.weights, valid_query))
        else:
            figures.append(output_agreement(heads.value, valid_query))
    return torch.stack(figures)
