"""The body of an attention: the order of the stages, from projected queries, keys and values to head outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fairseq_diverse.attention.functional.agreement import OF_MAPS, agreement
from fairseq_diverse.attention.functional.masking import additive_mask, attend_somewhere, masked_logits, masked_softmax
from fairseq_diverse.attention.mechanism import STAGES, AttentionContext, Mechanism
from fairseq_diverse.attention.plan import Placed
from fairseq_diverse.attention.request import Measurement
from fairseq_diverse.attention.settings import AttentionShape
from fairseq_diverse.support.errors import UserError

# stages that a mechanism with stage "attention" skips
SKIPPED = ("select", "bias", "logits", "normalize", "weights", "output_bias", "attention")
# head outputs (B, H, T, D), or wider if a mechanism widens them, the map (B, H, T, S), and the agreement (K,)
StagesOutput = tuple[Tensor, Tensor | None, Tensor | None]
MAPS = ("bias", "logits", "normalize", "weights", "output_bias")  # stages that keep maps for gradients
OF_ONE = ("select", "normalize", "combine")  # stages that only one mechanism of an attention can have


class AttentionOutput(NamedTuple):
    """Result of one attention."""

    value: Any  # a tensor, shaped as the query; None in what a layer returns, which has its own output
    weights: Tensor | None = None  # (B, H, T, S) straight after the softmax
    agreement: Tensor | None = None  # (K,) one value per disagreement term
    redundant: Tensor | None = None  # (B, H) bool, only with --enliven
    heads: Tensor | None = None  # (B, H, T, D) before they are combined; only with ``inside``
    plain_weights: Tensor | None = None  # (B, H, T, S) softmax(mask(q k)); only with ``inside``
    loss: Tensor | None = None  # () the sum of the mechanisms' ``add_loss``
    carry: Mapping[str, Tensor] = {}  # by mechanism, for the next layer; such as evolving attention's (B, H, T, S)


def build_mechanisms(placed: Sequence[Placed], shape: AttentionShape) -> tuple[list[Mechanism], AttentionShape]:
    """The modules of one attention's mechanisms, and the shape of the attention with them.

    Raises:
        UserError: one mechanism replaces the whole attention and would skip a stage of another one, two have a stage of
            ``OF_ONE``, ``project`` changes what it cannot, or the heads of keys and values do not divide the heads.
    """
    place = f"{shape.component}:{shape.layer}"
    for mechanism, settings in placed:
        if "project" in mechanism.stages():
            before, shape = shape, mechanism.project(settings, shape)  # type: ignore[attr-defined]
            for field in ("component", "layer", "width", "heads", "query_width"):
                if getattr(before, field) != getattr(shape, field):
                    raise UserError(f"mechanism {mechanism.name!r}: project cannot change {field}")
            if shape.key_heads < 1 or shape.heads % shape.key_heads:
                heads = f"{shape.key_heads} heads of keys and values do not divide {shape.heads} heads"
                raise UserError(f"{place} has {mechanism.name}: {heads}")
    built = [module for mechanism, settings in placed if (module := mechanism.build(settings, shape)) is not None]
    for stage in OF_ONE:
        if len(names := [module.name for module in built if stage in module.stages()]) > 1:
            raise UserError(f"{place} has {' and '.join(names)}: only one can have the stage {stage}; place them apart")
    for replacing in (module for module in built if "attention" in module.stages()):
        for other in built:
            skipped = [stage for stage in SKIPPED if stage in other.stages()] if other is not replacing else []
            if skipped:
                raise UserError(
                    f"{place} has {replacing.name} and {other.name}: {replacing.name} skips the stage {skipped[0]} of "
                    f"{other.name}; place them apart"
                )
    return built, shape


class StagedBody:
    """The stages of an attention; a mixin for a module with the projections."""

    recomputes_maps = False  # whether the backward pass computes maps again, instead of keeping them
    batch_first: bool  # whether the input is (B, T, C), not (T, B, C)
    num_heads: int
    q_proj: Any
    k_proj: Any
    v_proj: Any
    out_proj: Any
    children: Any  # of the module
    _modules: Any

    def add_mechanisms(self, mechanisms: Sequence[Mechanism]) -> None:
        """Add the mechanisms as submodules, under their keys.

        Raises:
            UserError: the attention already has an attribute of that name, or a mechanism hides its stage, name or key.
        """
        for mechanism in mechanisms:
            attributes = {*vars(mechanism), *mechanism._parameters, *mechanism._buffers, *mechanism._modules}
            if hidden := attributes & {"name", "key", *mechanism.stages()}:
                raise UserError(
                    f"mechanism {mechanism.name!r}: self.{min(hidden)} hides the {min(hidden)} of its class; call it "
                    "otherwise"
                )
            if hasattr(self, mechanism.key):
                raise UserError(f"mechanism {mechanism.name!r}: its key {mechanism.key!r} is taken by the attention")
            setattr(self, mechanism.key, mechanism)
        self.stage_keys = {stage: tuple(m.key for m in mechanisms if stage in m.stages()) for stage in STAGES}
        self.gated_mechanisms = frozenset(name for m in mechanisms for name in m.gates)
        self.needs_map = any(self.stage_keys[stage] for stage in ("logits", "normalize", "weights", "output_bias"))
        if self.stage_keys["combine"]:
            self.out_proj = None

    def mechanism(self, name: str) -> Any:
        """The module of a mechanism; None if it is off."""
        return next((mechanism for mechanism in self.mechanisms if mechanism.name == name), None)

    @property
    def mechanisms(self) -> list[Mechanism]:
        """The modules of all mechanisms."""
        return [module for module in self.children() if isinstance(module, Mechanism)]

    @property
    def has_maps(self) -> bool:
        """Whether there is one map per head."""
        return all(mechanism.has_maps for mechanism in self.stage("attention"))

    def stage(self, name: str) -> Sequence[Any]:
        """The mechanisms with this stage, in order."""
        keys = self.stage_keys[name]
        return [self._modules[key] for key in keys] if keys else keys

    def split_heads(self, x: Tensor, heads: int) -> Tensor:
        """(T, B, ``heads`` D), or (B, T, ``heads`` D) with ``batch_first``, -> (B, ``heads``, T, D)."""
        x = x.view(x.size(0), x.size(1), heads, x.size(-1) // heads)
        return x.transpose(1, 2) if self.batch_first else x.permute(1, 2, 0, 3)

    def answer(self, context: AttentionContext, measurement: Measurement) -> AttentionOutput:
        """Everything after the projections of queries, keys and values."""
        context.k, context.v = (_repeat_heads(x, self.num_heads) for x in (context.k, context.v))
        keeps = measurement.weights or measurement.compares_maps or any(self.stage_keys[stage] for stage in MAPS)
        recomputed = self.recomputes_maps and context.memory is None  # which stages change
        if recomputed and keeps and torch.is_grad_enabled():
            before, contexts = replace(context), [context]  # stages change the context

            def stages() -> StagesOutput:
                return self.run_stages(contexts.pop() if contexts else replace(before), measurement)

            heads, weights, figures = checkpoint(stages, use_reentrant=False)
        else:
            heads, weights, figures = self.run_stages(context, measurement)
        order = (0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)
        value = self.combine_heads(heads.permute(order).flatten(2))
        weights, inside = weights if measurement.weights else None, heads if measurement.inside else None
        return AttentionOutput(
            value, weights, figures, context.selected, inside, context.plain_weights, context.loss, context.carries
        )

    def run_stages(self, context: AttentionContext, measurement: Measurement) -> StagesOutput:
        """Everything between the projections.

        The map of weights is computed only if a stage or the caller needs it; otherwise torch's fused kernel runs.
        """
        for mechanism in self.stage("qkv"):
            context.q, context.k, context.v = mechanism.qkv(context.of(mechanism))
        q, k, v = context.q, context.k, context.v
        if measurement.inside:
            context.plain_weights = masked_softmax(q.detach() @ k.detach().transpose(-1, -2), context.allowed)
        replacing, terms = self.stage("attention"), measurement.terms
        need_weights = measurement.weights or measurement.compares_maps
        explicit = need_weights or self.needs_map

        bias_of: dict[bool, Any] = {True: None, False: context.mask_bias}  # by: is the mechanism gated?
        for mechanism in self.stage("bias"):
            gated, term = mechanism.name in self.gated_mechanisms, mechanism.bias(context.of(mechanism))
            bias_of[gated] = term if bias_of[gated] is None else bias_of[gated] + term
        needed = not replacing and (explicit or self.stage_keys["select"])
        logits = batched_product(q, k.transpose(-1, -2)) if needed else None
        for mechanism in self.stage("select"):
            context.selected = mechanism.select(logits, context.of(mechanism))  # (B, H)
        bias = None if bias_of[True] is None else _where_selected(bias_of[True], 0, context)
        if bias_of[False] is not None:
            bias = bias_of[False] if bias is None else bias + bias_of[False]  # broadcast to (B, H, T, S)
        context.visible = context.allowed
        for mechanism in self.stage("visible"):
            visible = mechanism.visible(context.of(mechanism))
            visible = _where_selected(visible, True, context) if mechanism.name in self.gated_mechanisms else visible
            context.visible = attend_somewhere(visible if context.visible is None else visible & context.visible)

        weights = None
        if replacing:
            if measurement.compares_maps and not replacing[0].has_maps:
                map_term = next(term for term in terms if term in OF_MAPS)
                raise UserError(
                    f"--disagreement {map_term}: {replacing[0].name} has no map per head; leave the term out"
                )
            if context.mask_bias is not None:
                problem = f"attn_mask: {replacing[0].name} adds no numbers to its logits; give a boolean mask"
                if torch.compiler.is_compiling():  # also while it is exported
                    torch._assert_async(~context.mask_bias.any(), problem)
                elif bool(context.mask_bias.any()):
                    raise UserError(problem)
            heads, weights = replacing[0].attention(context.of(replacing[0]), need_weights)
        elif not explicit:
            mask = context.visible if bias is None else additive_mask(bias, context.visible, q.dtype)
            mask = mask[None] if mask is not None and mask.dim() == 1 else mask  # the kernel wants (T, S)
            heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=context.dropout, scale=1.0)
        else:
            assert logits is not None
            context.bias, logits = bias, logits if bias is None else logits + bias
            for mechanism in self.stage("logits"):
                logits = mechanism.logits(logits, context.of(mechanism))
            if normalizing := self.stage("normalize"):
                weights = normalizing[0].normalize(masked_logits(logits, context.visible), context.of(normalizing[0]))
            else:
                weights = masked_softmax(logits, context.visible)
            mixed = weights
            for mechanism in self.stage("weights"):
                mixed = mechanism.weights(mixed, context.of(mechanism))
            dropped = F.dropout(mixed.type_as(v), context.dropout) if context.dropout else mixed.type_as(v)
            heads = batched_product(dropped, v)  # (B, H, T, D)
            for mechanism in self.stage("output_bias"):
                term = mechanism.output_bias(dropped, context.of(mechanism))
                heads = heads + (_where_selected(term, 0, context) if mechanism.name in self.gated_mechanisms else term)

        for mechanism in self.stage("heads"):
            heads = mechanism.heads(heads, context.of(mechanism))
        figures = None
        if terms:
            signed = replacing or self.stage_keys["normalize"]  # a softmax is never negative
            maps = weights.abs() if signed and weights is not None and measurement.compares_maps else weights
            figures = agreement(terms, context.v, heads, maps, context.valid_keys, context.valid_queries)
        for mechanism in self.stage("gate"):
            heads = mechanism.gate(heads, context.of(mechanism))
        return heads, weights, figures

    def combine_heads(self, heads: Tensor) -> Tensor:
        """(..., H D) concatenated heads -> (..., C)."""
        if combining := self.stage("combine"):
            return combining[0].combine(heads)
        return self.out_proj(heads.contiguous())  # else torch would add the bias in a launch of its own


def _repeat_heads(x: Tensor, heads: int) -> Tensor:
    """(B, h, S, D) -> (B, ``heads``, S, D): each of the h heads serves heads / h heads that follow each other."""
    return x if x.size(1) == heads else x.repeat_interleave(heads // x.size(1), 1)


def batched_product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of (B, H, ..., ...), for which torch would expand both."""
    product = torch.bmm(a.flatten(0, 1), b.flatten(0, 1))
    return product.view(*a.shape[:2], *product.shape[1:])


def _where_selected(term: Tensor, otherwise: Any, context: AttentionContext) -> Tensor:
    """``term`` at selected heads, ``otherwise`` at the others."""
    return term if context.selected is None else torch.where(context.selected[..., None, None], term, otherwise)
