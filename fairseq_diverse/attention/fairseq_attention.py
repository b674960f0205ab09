"""fairseq's ``MultiheadAttention`` with the stages of ``StagedBody``."""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from fairseq.modules import MultiheadAttention
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor, nn

from fairseq_diverse.attention.body import StagedBody, build_mechanisms, repeat_heads
from fairseq_diverse.attention.functional.masking import attend_somewhere, masked_softmax
from fairseq_diverse.attention.mechanism import AttentionContext, AttentionShape
from fairseq_diverse.attention.plan import Placed
from fairseq_diverse.attention.relations import Relations
from fairseq_diverse.attention.warm_start import NotTrained, trained_only

logger = logging.getLogger(__name__)

IncrementalState = dict[str, dict[str, Tensor | None]]
MEMORY = "mechanisms"  # key in the incremental state for what mechanisms keep between steps


class AttentionOutput(NamedTuple):
    """Result of one attention."""

    value: Tensor  # (T, B, C)
    weights: Tensor | None  # (H, B, T, S), or (B, T, S) averaged over heads; straight after the softmax
    agreement: Tensor | None  # (K,) one value per disagreement term
    redundant: Tensor | None = None  # (B, H) bool, only with --enliven
    carry: Tensor | None = None  # of a mechanism, for the next layer; (B, H, T, S) logits of evolving attention
    heads: Tensor | None = None  # (B, H, T, D) before they are combined; only with ``inside``
    plain_weights: Tensor | None = None  # (B, H, T, S) softmax(mask(q k / sqrt(D))); only with ``inside``
    loss: Tensor | None = None  # () the sum of the mechanisms' ``add_loss``


class StagedAttention(StagedBody, MultiheadAttention):
    """fairseq's ``MultiheadAttention`` with mechanisms.

    Without mechanisms and measurements, fairseq's forward runs: same parameters, same results, bit for bit. Otherwise
    the stages of ``StagedBody.run_stages`` run between fairseq's projections.

    Args:
        placed: the mechanisms of this attention with their settings, from ``AttentionPlan.at``.
        component: encoder, decoder or cross.
        layer: from 1 at the bottom.
        Others as in fairseq.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        placed: Sequence[Placed] = (),
        component: str = "encoder",
        layer: int = 1,
        **options: Any,
    ) -> None:
        before = AttentionShape.of(component, layer, embed_dim, num_heads)
        mechanisms, shape = build_mechanisms(placed, before)
        MultiheadAttention.__init__(self, embed_dim, num_heads, **options)
        self.dropout_module.module_name = "MultiheadAttention"  # the name that --retain-dropout-modules expects
        self.is_plain = not mechanisms and shape == before
        noise = options.get("q_noise", 0.0), options.get("qn_block_size", 8)
        if shape.key_width != before.key_width:
            self.scaling = shape.scale
            self.q_proj = quant_noise(nn.Linear(embed_dim, num_heads * shape.key_width), *noise)
        self.key_heads = shape.key_heads
        if (shape.key_width, shape.key_heads) != (before.key_width, before.key_heads):
            self.k_proj = quant_noise(nn.Linear(self.kdim, self.key_heads * shape.key_width), *noise)
        if (shape.head_width, shape.key_heads) != (before.head_width, before.key_heads):
            self.v_proj = quant_noise(nn.Linear(self.vdim, self.key_heads * shape.head_width), *noise)
        if shape.out_width != before.out_width:
            self.out_proj = quant_noise(nn.Linear(shape.out_width, embed_dim), *noise)
        self.out_gain = shape.out_gain
        if shape != before:
            self.reset_parameters()
            self.scale_out_proj()
        self.add_mechanisms(mechanisms)

    def scale_out_proj(self) -> None:
        """Give new initial weights of the output projection the gain that a mechanism needs."""
        if self.out_gain != 1:
            self.out_proj.weight.data.mul_(self.out_gain)

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
        inside: bool = False,
    ) -> AttentionOutput:
        """One attention of the query over the keys.

        Args:
            query: (T, B, C).
            key, value: (S, B, C); None if they are in the cache.
            key_padding_mask: (B, S), True at padding.
            query_padding_mask: (B, T), True at padding; only ``terms`` and mechanisms use it.
            attn_mask: (T, S), 0 where a query may see a key, -inf elsewhere.
            need_weights, need_head_weights: return the weights averaged over heads, or of each head.
            terms: disagreement terms to measure: subspace, position, output, centred-subspace, centred-output.
            relations: from the source trees, for mechanisms that need them.
            previous: the ``carry`` of the layer before, or None.
            inside: return the head outputs, and the weights without any mechanism.
            Others as in fairseq.

        Raises:
            UserError: the position term with a mechanism that has no map per head.
            ValueError: a mechanism keeps in ``memory`` what is not a tensor whose first dimension is the batch.
        """
        need_weights = need_weights or need_head_weights
        fused_in_fairseq = incremental_state is None and not static_kv  # it cannot return the weights of each head
        if self.is_plain and not terms and not inside and not (need_head_weights and fused_in_fairseq):
            plain, plain_weights = MultiheadAttention.forward(
                self,
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
        context = AttentionContext(
            query.transpose(0, 1),
            q,
            repeat_heads(k, self.num_heads),
            repeat_heads(v, self.num_heads),
            self.scaling,
            self._dropout,
            key_padding_mask,
            query_padding_mask,
            _allowed(key_padding_mask, attn_mask),
            relations,
            previous,
            self._recall(incremental_state),
        )
        output = self.run_stages(context, need_weights, terms)
        if context.memory:
            for name, kept in context.memory.items():
                if not isinstance(kept, Tensor) or kept.shape[:1] != (query.size(1),):
                    found = (*kept.shape,) if isinstance(kept, Tensor) else repr(kept)
                    wanted = f"keep a tensor whose first dimension is the batch, {query.size(1)}"
                    raise ValueError(f"memory {name!r} {found}: {wanted}")
            self.set_incremental_state(incremental_state, MEMORY, context.memory)
        value = self.combine_heads(output.heads.permute(2, 0, 1, 3).flatten(2))  # (T, B, C)
        shown = None
        if need_weights and output.weights is not None:
            shown = output.weights.transpose(0, 1) if need_head_weights else output.weights.mean(1)
        heads = plain_weights = None
        if inside:
            k = repeat_heads(k.detach(), self.num_heads)
            heads, plain_weights = output.heads, masked_softmax(q.detach() @ k.transpose(-1, -2), context.allowed)
        from_stages = context.selected, context.carry, heads, plain_weights, context.loss
        return AttentionOutput(value, shown, output.agreement, *from_stages)

    def _recall(self, state: IncrementalState | None) -> dict[str, Tensor] | None:
        """What mechanisms kept at earlier decoding steps; None in a full pass."""
        return None if state is None else dict(self.get_incremental_state(state, MEMORY) or {})

    def reorder_incremental_state(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> IncrementalState | None:
        """As in fairseq, which skips some caches of the source; what mechanisms keep is always reordered."""
        if memory := self._recall(incremental_state):
            moved = {key: value.index_select(0, new_order) for key, value in memory.items()}
            self.set_incremental_state(incremental_state, MEMORY, moved)
        return super().reorder_incremental_state(incremental_state, new_order)

    @property
    def _dropout(self) -> float:
        """Probability of dropping a weight in this mode (training or evaluation)."""
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
        """q (B, H, T, D), already scaled; k and v (B, ``key_heads``, S, D) and their padding (B, S), also cached ones.

        The cache has fairseq's key and format, so fairseq reorders it with the beams.
        """

        def split(x: Tensor, heads: int) -> Tensor:
            return x.view(x.size(0), x.size(1), heads, x.size(2) // heads).permute(1, 2, 0, 3)

        q = split(self.q_proj(query) * self.scaling, self.num_heads)
        cache = self._get_input_buffer(incremental_state) if incremental_state is not None else {}
        cached = "prev_key" in cache
        if cached and static_kv:
            k, v = cache["prev_key"], cache["prev_value"]
        else:
            assert key is not None and value is not None
            k, v = split(self.k_proj(key), self.key_heads), split(self.v_proj(value), self.key_heads)
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

    def _adaptive_prune_heads(self, reserve_head_index: list[tuple[int, int]]) -> None:
        super()._adaptive_prune_heads(reserve_head_index)
        self.key_heads = self.num_heads  # only without mechanisms

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Warm start: a mechanism that the checkpoint does not have keeps its initial values.

        Raises:
            NotTrained: there is one, but the model is loaded under ``only_trained``.
        """
        super().upgrade_state_dict_named(state_dict, name)
        own = self.state_dict(prefix=f"{name}.")
        # input widths
        plain = {"q_proj": self.embed_dim, "k_proj": self.kdim, "v_proj": self.vdim, "out_proj": self.embed_dim}
        reshaped = [
            projection
            for projection, width in plain.items()
            if (weight := own.get(f"{name}.{projection}.weight")) is not None
            and weight.shape != state_dict.get(f"{name}.{projection}.weight", weight).shape == (self.embed_dim, width)
        ]
        new = {key: value for key, value in own.items() if key.removeprefix(f"{name}.").split(".")[0] in reshaped}
        for mechanism in dict.fromkeys(key for keys in self.stage_keys.values() for key in keys):
            its = {key: value for key, value in own.items() if key.startswith(f"{name}.{mechanism}.")}
            if not any(key in state_dict for key in its):
                new |= its
        drawn = [key for key, _ in self.named_parameters(prefix=name) if key in new]  # buffers are constants
        if drawn and trained_only():
            raise NotTrained(drawn[0])
        if new:
            state_dict.update(new)
            projection = (f"{name}.out_proj.weight", f"{name}.out_proj.bias") if self.out_proj is None else ()
            dropped = [key for key in projection if state_dict.pop(key, None) is not None]
            logger.warning(
                f"warm start: new in this model: {', '.join(new)}; dropped: {', '.join(dropped) or 'nothing'}"
            )


def _allowed(key_padding_mask: Tensor | None, attn_mask: Tensor | None) -> Tensor | None:
    """(B or 1, 1, T or 1, S), True where a query may see a key; None if every query may see every key."""
    allowed = None
    if attn_mask is not None:
        allowed = (attn_mask == 0)[None, None]
    if key_padding_mask is not None:
        real = ~key_padding_mask.bool()[:, None, None]
        allowed = real if allowed is None else allowed & real
    return None if allowed is None else attend_somewhere(allowed)
