"""The attention for any PyTorch model, without fairseq."""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_diverse.attention.body import AttentionOutput, StagedBody, build_mechanisms
from fairseq_diverse.attention.functional.masking import attend_somewhere
from fairseq_diverse.attention.mechanism import AttentionContext
from fairseq_diverse.attention.placements import COMPONENTS
from fairseq_diverse.attention.plan import AttentionPlan, Component
from fairseq_diverse.attention.registry import MECHANISMS, attribute_name, read_settings
from fairseq_diverse.attention.relations import relate
from fairseq_diverse.attention.request import MEASURED, Measurement, check_terms
from fairseq_diverse.support.errors import UserError

HIDDEN = -1e4  # what is added to the logits of hidden keys: -inf, the least number of a type, or such a number


class StandaloneAttention(StagedBody, nn.Module):
    """Multi-head attention with mechanisms, called like ``torch.nn.MultiheadAttention`` with ``batch_first=True``.

    Example: ``StandaloneAttention(512, 8, mechanisms={"evolving": {"conv": "0.2"}, "routing": {"kind": "em"}})``.
    Parameters have the names and the initial distribution of fairseq's attention: a ``state_dict`` fits both.

    Args:
        embed_dim: C.
        num_heads: H, a divisor of C.
        dropout: probability of dropping an attention weight in training.
        bias: whether the projections have a bias.
        kdim, vdim, qdim: widths of the inputs of keys, values and queries (default: C).
        mechanisms: name -> settings. A setting is named as its flag without the prefix; leave out ``on``.
        component: encoder (no causal mask), decoder (the caller masks the future) or cross.
        layer: number of the layer, from 1 at the bottom, for mechanisms that depend on it.

    Raises:
        UserError: (a ValueError) an unknown mechanism or setting, or a setting that does not fit this attention.
    """

    # torch's transformer layers ask for these: they must not compute plain attention by themselves
    batch_first, in_proj_bias, _qkv_same_embed_dim = True, None, False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        *,
        qdim: int | None = None,
        mechanisms: Mapping[str, Mapping[str, Any]] | None = None,
        component: str = "encoder",
        layer: int = 1,
    ) -> None:
        nn.Module.__init__(self)
        if component not in COMPONENTS or layer < 1:
            where = f"component {component!r}, layer {layer}"
            raise UserError(f"{where}: {', '.join(COMPONENTS)} are known, layers are numbered from 1")
        if num_heads < 1 or embed_dim % num_heads:
            raise UserError(f"num_heads {num_heads}: must divide embed_dim {embed_dim}")
        plan = AttentionPlan(_flags(mechanisms or {}, component), {component: Component(layer, embed_dim, num_heads)})
        before = replace(plan.shape(component, layer), query_width=qdim or embed_dim)
        built, shape = build_mechanisms(plan.at(component, layer), before)
        self.embed_dim, self.num_heads, self.dropout, self.trees = embed_dim, num_heads, dropout, plan.trees
        self.scale, self.key_heads = shape.scale, shape.key_heads
        widths = shape.projections(kdim or embed_dim, vdim or embed_dim)
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            setattr(self, name, nn.Linear(*widths[name], bias))
        same_width = {kdim, vdim, qdim} <= {None, embed_dim}
        for projection in (self.k_proj, self.v_proj, self.q_proj):
            nn.init.xavier_uniform_(projection.weight, gain=2**-0.5 if same_width else 1.0)
        nn.init.xavier_uniform_(self.out_proj.weight)
        self.out_proj.weight.data.mul_(shape.out_gain)
        if bias:
            nn.init.zeros_(self.out_proj.bias)
        self.add_mechanisms(built)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As ``torch.nn.MultiheadAttention`` with ``batch_first=True``.

        Raises:
            UserError: as ``attend``; or ``is_causal`` without ``attn_mask`` (it only describes that mask).
        """
        if is_causal and attn_mask is None:
            raise UserError("is_causal=True only says that attn_mask is causal; give attn_mask, too")
        output = self.attend(query, key, value, key_padding_mask, need_weights, attn_mask)
        weights = output.weights
        return output.value, weights.mean(1) if weights is not None and average_attn_weights else weights

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        *,
        query_padding_mask: Tensor | None = None,
        terms: tuple[str, ...] = (),
        trees: Tensor | None = None,
        previous: Mapping[str, Tensor] | None = None,
    ) -> AttentionOutput:
        """As ``forward``, with additional inputs and results for mechanisms.

        Args:
            query: (B, T, qdim).
            key, value: (B, S, kdim), (B, S, vdim).
            key_padding_mask: (B, S), True at padding, or numbers, as in ``attn_mask``.
            query_padding_mask: (B, T), likewise; for ``terms`` and for mechanisms that combine several queries.
                Default: ``key_padding_mask`` if query and key are the same tensor, else no padding.
            attn_mask: (T, S), (B, T, S) or (B H, T, S); True where a query may not see a key, or numbers to add to the
                logits. -inf and numbers of at most -10,000 count as True.
            terms: disagreement terms to measure: subspace, position, output, centred-subspace, centred-output.
            trees: (B, T, 5) integers, see ``relate``; for mechanisms that need trees.
            previous: the ``carry`` that the layer below returned for the same sentences; it has the tensors of each
                mechanism. Its mechanisms have the settings of this layer.

        Raises:
            UserError: missing trees, an unknown term, a tensor or mask of a wrong shape, a mask of integers, different
                numbers of keys and values, fewer keys than queries where a mechanism counts positions from the last, or
                no ``previous`` where what a mechanism adds is that of the first layer.
            ValueError: ``terms`` of an attention with one head.
        """
        self._check(query, key, value, terms, trees, previous)
        batch, queries, keys = *query.shape[:2], key.size(1)
        shapes = [(size, queries, keys) for size in (batch, batch * self.num_heads)]
        _check_shape("attn_mask", attn_mask, (queries, keys), *shapes)
        _check_shape("trees", trees, (batch, keys, 5))
        padding, bias = _split_padding("key_padding_mask", key_padding_mask, (batch, keys))
        padded_queries, _ = _split_padding("query_padding_mask", query_padding_mask, (batch, queries))
        hidden, added = _split("attn_mask", attn_mask)
        allowed = None if padding is None else ~padding[:, None, None]
        bias = None if bias is None else bias[:, None, None]
        if hidden is not None:
            visible = ~_by_head(hidden, batch, self.num_heads)
            allowed = visible if allowed is None else visible & allowed
        if added is not None:
            added = _by_head(added, batch, self.num_heads)
            bias = added if bias is None else added + bias
        q = self.split_heads(self.q_proj(query), self.num_heads) * self.scale
        k, v = (self.split_heads(x, self.key_heads) for x in (self.k_proj(key), self.v_proj(value)))
        padded_queries = padding if padded_queries is None and query is key else padded_queries
        masks = padding, padded_queries, None if allowed is None else attend_somewhere(allowed)
        relations = relate(trees, self.trees) if trees is not None else None
        options = self.scale, self.dropout if self.training else 0.0
        context = AttentionContext(query, q, k, v, *options, *masks, relations, previous or {}, mask_bias=bias)
        return self.answer(context, Measurement(terms, need_weights))

    def _check(
        self, query: Tensor, key: Tensor, value: Tensor, terms: tuple[str, ...], trees: Tensor | None, previous: Any
    ) -> None:
        """Raise ``UserError`` for what ``attend`` does not take, besides masks."""
        for name, x in (("query", query), ("key", key), ("value", value)):
            if x.dim() != 3:
                raise UserError(f"{name} {(*x.shape,)}: must have three dimensions, sentences, positions and width")
        if key.shape[:2] != value.shape[:2]:
            sizes = f"key {(*key.shape[:2],)}, value {(*value.shape[:2],)}"
            raise UserError(f"{sizes}: give as many sentences and positions of both")
        if self.trees and trees is None:
            raise UserError(f"this attention needs {' and '.join(self.trees)} trees; call attend(..., trees=...)")
        for mechanism in self.mechanisms:
            if mechanism.from_last and key.size(1) < query.size(1):
                sizes = f"{query.size(1)} queries, {key.size(1)} keys"
                raise UserError(f"{sizes}: {mechanism.name} takes queries as the last of the keys; give as many keys")
            if mechanism.of_first and not [*mechanism.parameters()] and mechanism.name not in (previous or {}):
                todo = "give the carry of the layer below as previous, or layer=1 for a table of its own"
                raise UserError(f"{mechanism.name}: only the first layer has its parameters; {todo}")
        check_terms(terms, MEASURED)


def _flags(mechanisms: Mapping[str, Mapping[str, Any]], place: str) -> Namespace:
    """The settings of mechanisms at a place, as parsed arguments."""
    args = Namespace()
    if not isinstance(mechanisms, Mapping):
        raise UserError(f"mechanisms {mechanisms!r}: give a dictionary, name -> settings")
    for name, settings in mechanisms.items():
        if name not in MECHANISMS:
            raise UserError(f"mechanisms: {name!r} is not one of {', '.join(MECHANISMS)}")
        if not isinstance(settings, Mapping):
            raise UserError(f"mechanisms: {name} {settings!r}: give a dictionary of its settings")
        if "on" in settings:
            raise UserError(f"mechanisms: {name} has 'on'; leave it out, component and layer are its place")
        for field, value in {**settings, "on": place}.items():
            if field not in MECHANISMS[name].Settings.__dataclass_fields__:
                raise UserError(f"mechanisms: {name} has no setting {field!r}")
            setattr(args, attribute_name(name, field), value)
        if not (parsed := read_settings(args, name)).active and parsed.switch not in settings:
            raise UserError(f"mechanisms: {name} is off without {parsed.switch!r}; give one, or leave {name} out")
    return args


def _check_shape(name: str, mask: Tensor | None, *shapes: tuple[int, ...]) -> None:
    """Raise ``UserError`` unless a mask has one of the shapes, or 1 in place of some sizes."""
    if mask is None:
        return
    for shape in shapes:
        if mask.dim() == len(shape) and all(x == y or x == 1 for x, y in zip(mask.shape, shape, strict=True)):
            return
    raise UserError(f"{name} {(*mask.shape,)}: must be {' or '.join(map(str, shapes))}")


def _split(name: str, mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """A mask as booleans, True where keys are hidden, and the numbers to add elsewhere; None where there are none."""
    if mask is None or mask.dtype == torch.bool:
        return mask, None
    if not mask.is_floating_point():
        raise UserError(f"{name}: {mask.dtype}; give booleans, True where keys are hidden, or floats to add to logits")
    hidden = mask <= HIDDEN
    return hidden, mask.masked_fill(hidden, 0)


def _split_padding(name: str, mask: Tensor | None, shape: tuple[int, int]) -> tuple[Tensor | None, Tensor | None]:
    """As ``_split``, of a mask for every sentence, or one for all."""
    _check_shape(name, mask, shape)
    return _split(name, None if mask is None else mask.expand(shape))


def _by_head(mask: Tensor, batch: int, heads: int) -> Tensor:
    """A mask (T, S), (B, T, S) or (B H, T, S), as (B or 1, H or 1, T, S)."""
    if mask.dim() == 2:
        return mask[None, None]
    return mask.unsqueeze(1) if mask.size(0) in (1, batch) else mask.unflatten(0, (batch, heads))
