"""fairseq's ``MultiheadAttention`` with the stages of ``StagedBody``."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor, nn

from fairseq_diverse.attention.body import AttentionOutput, StagedBody, batched_product, build_mechanisms
from fairseq_diverse.attention.functional.masking import attend_somewhere
from fairseq_diverse.attention.mechanism import AttentionContext
from fairseq_diverse.attention.plan import Placed
from fairseq_diverse.attention.relations import Relations
from fairseq_diverse.attention.request import UNMEASURED, Measurement
from fairseq_diverse.attention.settings import AttentionShape
from fairseq_diverse.attention.warm_start import NotTrained, trained_only

logger = logging.getLogger(__name__)

IncrementalState = dict[str, dict[str, Tensor | None]]
NO_CARRY = dict[str, Tensor]()
MEMORY = "mechanisms"  # key in the incremental state for what mechanisms keep between steps


class Masks:
    """What padding and causality hide in the attentions of a component, made once for all its layers.

    Args:
        dtype: of ``added``.
        key_padding_mask: (B, S), True at padding.
        attn_mask: (T, S), 0 where a query may see a key, -inf elsewhere.
    """

    def __init__(self, dtype: torch.dtype, key_padding_mask: Tensor | None, attn_mask: Tensor | None = None) -> None:
        self.dtype = dtype
        self.cached: dict[str, Tensor | None] = {}
        self.padding = None if key_padding_mask is None else key_padding_mask.bool()[:, None, None]
        self.attn_mask = attn_mask

    @property
    def allowed(self) -> Tensor | None:
        """(B or 1, 1, T or 1, S) bool, True where a query may see a key; None = everywhere."""
        if "allowed" not in self.cached:
            allowed = None if self.attn_mask is None else (self.attn_mask == 0)[None, None]
            if self.padding is not None:
                allowed = ~self.padding if allowed is None else allowed & ~self.padding
            self.cached["allowed"] = None if allowed is None else attend_somewhere(allowed)
        return self.cached["allowed"]

    @property
    def added(self) -> Tensor | None:
        """Likewise, 0 where a query may see a key, -inf elsewhere."""
        if "added" not in self.cached:
            added = None if self.attn_mask is None else self.attn_mask[None, None]
            if self.padding is not None:
                padded = torch.zeros_like(self.padding, dtype=self.dtype).masked_fill_(self.padding, -torch.inf)
                added = padded if added is None else added + padded
            self.cached["added"] = added
        return self.cached["added"]


class StagedAttention(StagedBody, MultiheadAttention):
    """fairseq's ``MultiheadAttention`` with mechanisms.

    Without mechanisms and measurements, it computes what fairseq's forward does: same parameters, same results, bit for
    bit. Otherwise the stages of ``StagedBody.run_stages`` run between fairseq's projections.

    Args:
        placed: the mechanisms of this attention with their settings, from ``AttentionPlan.at``.
        shape: the attention without mechanisms, from ``AttentionPlan.shape``; by default fairseq's, an encoder's.
        Others as in fairseq.
    """

    batch_first = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        placed: Sequence[Placed] = (),
        shape: AttentionShape | None = None,
        **options: Any,
    ) -> None:
        before = shape or AttentionShape.of("encoder", 1, embed_dim, num_heads)
        fairseqs = AttentionShape.of(before.component, before.layer, embed_dim, num_heads)
        mechanisms, shape = build_mechanisms(placed, before)
        MultiheadAttention.__init__(self, embed_dim, 1 if embed_dim % num_heads else num_heads, **options)
        self.num_heads = num_heads
        self.dropout_module.module_name = "MultiheadAttention"  # the name that --retain-dropout-modules expects
        self.is_plain = not mechanisms and shape == fairseqs
        self.scaling, self.key_heads, self.out_gain = shape.scale, shape.key_heads, shape.out_gain
        noise = options.get("q_noise", 0.0), options.get("qn_block_size", 8)
        plain = before.projections(self.kdim, self.vdim)
        self.plain_sizes = {name: (out, width) for name, (width, out) in plain.items()}  # of the weights
        for name, widths in shape.projections(self.kdim, self.vdim).items():
            if widths != (getattr(self, name).in_features, getattr(self, name).out_features):
                setattr(self, name, quant_noise(nn.Linear(*widths, options.get("bias", True)), *noise))
        if shape != fairseqs:
            self.reset_parameters()
            self.scale_out_proj()
        self.add_mechanisms(mechanisms)

    def scale_out_proj(self) -> None:
        """Give new initial weights of the output projection the gain that a mechanism needs."""
        if self.out_gain != 1:
            self.out_proj.weight.data.mul_(self.out_gain)

    def forward(self, *args: Any, **kwargs: Any) -> AttentionOutput:
        return self.attend(*args, **kwargs)

    def attend(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        incremental_state: IncrementalState | None = None,
        attn_mask: Tensor | None = None,
        query_padding_mask: Tensor | None = None,
        measurement: Measurement = UNMEASURED,
        relations: Relations | None = None,
        carried: Mapping[str, Tensor] = NO_CARRY,
        masks: Masks | None = None,
    ) -> AttentionOutput:
        """One attention of the query over the keys.

        Args:
            query: (T, B, C).
            key, value: (S, B, C); None if they are in the cache.
            key_padding_mask: (B, S), True at padding.
            query_padding_mask: (B, T), True at padding; only disagreement terms and mechanisms use it.
            attn_mask: (T, S), 0 where a query may see a key, -inf elsewhere.
            measurement: what to return besides the output.
            relations: from the source trees, for mechanisms that need them.
            carried: the ``carry`` of the layer before.
            masks: of ``key_padding_mask`` and ``attn_mask``, where the caller has made them.
            Others as in fairseq.

        Raises:
            UserError: a term that compares maps, with a mechanism that has no map per head.
            ValueError: a mechanism keeps in ``memory`` what is not a tensor whose first dimension is the batch.
        """
        static_kv = self.encoder_decoder_attention
        fused_in_fairseq = incremental_state is None and not static_kv  # it cannot return the weights of each head
        terms, weights, inside = measurement
        if torch.compiler.is_compiling():  # each layer for itself, so that equal layers are compiled once
            masks = None
        plain = self.is_plain and not terms and not inside and not (weights and fused_in_fairseq)
        unusual = self.skip_embed_dim_check or query.device.type == "xla"
        if plain and fused_in_fairseq and not unusual:
            masks = masks or Masks(query.dtype, key_padding_mask, attn_mask)
            return AttentionOutput(self._fused(query, key, value, masks.added), carry=carried)
        if plain and (unusual or attn_mask is not None or self.beam_size > 1):
            arguments = key_padding_mask, incremental_state, weights, static_kv, attn_mask, False, weights
            value, maps = MultiheadAttention.forward(self, query, key, value, *arguments)
            return AttentionOutput(value, None if maps is None else maps.transpose(0, 1), carry=carried)

        q, k, v, key_padding_mask = self._project(query, key, value, key_padding_mask, incremental_state)
        if masks is None or (incremental_state is not None and not static_kv):  # with the padding of steps before
            masks = Masks(query.dtype, key_padding_mask, attn_mask)
        if plain:
            value, maps = self._unfused(q, k, v, masks.padding)
            return AttentionOutput(value, maps if weights else None, carry=carried)
        padding = key_padding_mask, query_padding_mask, masks.allowed
        more = relations, carried, self._recall(incremental_state)
        context = AttentionContext(query.transpose(0, 1), q, k, v, self.scaling, self._dropout, *padding, *more)
        output = self.answer(context, measurement)
        if context.memory:
            self._keep(incremental_state, context.memory, query.size(1))
        return output

    def _fused(self, query: Tensor, key: Any, value: Any, mask: Tensor | None) -> Tensor:
        """What torch's ``multi_head_attention_forward``, which fairseq calls, gives without weights, bit for bit."""
        inputs = (query, self.q_proj), (key, self.k_proj), (value, self.v_proj)
        q, k, v = (self.split_heads(F.linear(x, y.weight, y.bias), self.num_heads) for x, y in inputs)
        heads = F.scaled_dot_product_attention(q, k, v, None if mask is None else mask.type_as(q), self._dropout)
        heads = heads.permute(2, 0, 1, 3).reshape(-1, self.embed_dim)  # of two dimensions, as there: one kernel
        return F.linear(heads, self.out_proj.weight, self.out_proj.bias).view(*query.shape[:2], -1)

    def _unfused(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        """What fairseq computes in cross-attention and in decoding steps, bit for bit, and the map of each head."""
        logits = batched_product(q, k.transpose(-1, -2))
        logits = logits if padding is None else torch.where(padding, -torch.inf, logits)
        weights = logits.softmax(-1, dtype=torch.float32)
        dropped = F.dropout(weights.type_as(v), self._dropout) if self._dropout else weights.type_as(v)
        return self.combine_heads(batched_product(dropped, v).permute(2, 0, 1, 3).flatten(2)), weights

    def _keep(self, state: IncrementalState | None, memory: Mapping[str, Tensor], batch: int) -> None:
        """Keep for later decoding steps what mechanisms put into ``memory``."""
        for name, kept in memory.items():
            if not isinstance(kept, Tensor) or kept.shape[:1] != (batch,):
                actual = (*kept.shape,) if isinstance(kept, Tensor) else repr(kept)
                raise ValueError(f"memory {name!r} {actual}: keep a tensor whose first dimension is the batch, {batch}")
        self.set_incremental_state(state, MEMORY, memory)

    def _recall(self, state: IncrementalState | None) -> dict[str, Tensor] | None:
        """What mechanisms kept at earlier decoding steps; None in a full pass."""
        return None if state is None else dict(self.get_incremental_state(state, MEMORY) or {})

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> Any:
        """As in fairseq, which skips some caches of the source; what mechanisms keep is always reordered."""
        if memory := self._recall(incremental_state):
            moved = {key: value.index_select(0, new_order) for key, value in memory.items()}
            self.set_incremental_state(incremental_state, MEMORY, moved)
        return super().reorder_incremental_state(incremental_state, new_order)

    @property
    def _dropout(self) -> float:
        """Probability of dropping a weight in this mode (training or evaluation)."""
        return self.dropout_module.p if self.training or self.dropout_module.apply_during_inference else 0.0

    def _project(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None,
        incremental_state: IncrementalState | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """q (B, H, T, D), already scaled; k and v (B, ``key_heads``, S, D) and their padding (B, S), also cached ones.

        The cache has fairseq's key and format, so fairseq reorders it with the beams.
        """
        q = self.split_heads(self.q_proj(query) * self.scaling, self.num_heads)
        cache = self._get_input_buffer(incremental_state) if incremental_state is not None else {}
        cached, static_kv = "prev_key" in cache, self.encoder_decoder_attention
        if cached and static_kv:
            k, v = cache["prev_key"], cache["prev_value"]
        else:
            assert key is not None and value is not None
            k = self.split_heads(self.k_proj(key), self.key_heads)
            v = self.split_heads(self.v_proj(value), self.key_heads)
            if cached:
                k, v = torch.cat([cache["prev_key"], k], 2), torch.cat([cache["prev_value"], v], 2)
        assert k is not None and v is not None
        if incremental_state is not None:
            before, sizes = cache.get("prev_key_padding_mask"), (k.size(0), k.size(2))
            key_padding_mask = self._append_prev_key_padding_mask(key_padding_mask, before, *sizes, static_kv)
            cache = {"prev_key": k, "prev_value": v, "prev_key_padding_mask": key_padding_mask}
            self._set_input_buffer(incremental_state, cache)
        return q, k, v, key_padding_mask

    def _adaptive_prune_heads(self, reserve_head_index: list[tuple[int, int]]) -> None:
        super()._adaptive_prune_heads(reserve_head_index)
        self.key_heads = self.num_heads  # only without mechanisms

    @property
    def reshaped(self) -> list[str]:
        """The projections whose weights have another shape than without mechanisms."""
        projections = [(name, getattr(self, name), size) for name, size in self.plain_sizes.items()]
        return [name for name, projection, size in projections if projection and projection.weight.shape != size]

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Warm start: a mechanism that the checkpoint does not have keeps its initial values.

        Raises:
            NotTrained: there is one, but the model is loaded under ``only_trained``.
        """
        super().upgrade_state_dict_named(state_dict, name)
        initial = self.state_dict(prefix=f"{name}.")
        found = [(key, state_dict.get(f"{name}.{key}.weight")) for key in self.reshaped]
        plain = [key for key, weight in found if weight is not None and weight.shape == self.plain_sizes[key]]
        new = {key: value for key, value in initial.items() if key.removeprefix(f"{name}.").split(".")[0] in plain}
        for mechanism in dict.fromkeys(key for keys in self.stage_keys.values() for key in keys):
            entries = {key: value for key, value in initial.items() if key.startswith(f"{name}.{mechanism}.")}
            if not any(key in state_dict for key in entries):
                new |= entries
        drawn = [key for key, _ in self.named_parameters(prefix=name) if key in new]  # buffers are constants
        if drawn and trained_only():
            raise NotTrained(drawn[0])
        if new:
            state_dict.update(new)
            projection = (f"{name}.out_proj.weight", f"{name}.out_proj.bias") if self.out_proj is None else ()
            gone = ", ".join(key for key in projection if state_dict.pop(key, None) is not None) or "nothing"
            logger.warning(f"warm start: new in this model: {', '.join(new)}; dropped: {gone}")
