"""How much the heads of an attention agree (Li et al., 2021, section 3.1)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_diverse.attention.kernels import gpu
from fairseq_diverse.attention.precision import at_least_float32

SMALLEST_NORM = 1e-8
OF_MAPS = ("position", "difference")  # terms that compare weights
CENTRED = "centred-"  # prefix of a term whose vectors lose each head's mean first


def _mean_over(values: Tensor, valid: Tensor) -> Tensor:
    """Sum of ``values`` (B, T) where ``valid``, divided by the number of valid positions (0 if there is none)."""
    return torch.where(valid, values, 0).sum() / valid.sum().clamp(min=1)


def _centred(vectors: Tensor, valid: Tensor) -> Tensor:
    """Less each head's mean over the valid positions."""
    vectors = at_least_float32(vectors)
    real = torch.where(valid[:, None, :, None], vectors, 0)
    return vectors - real.sum((0, 2), keepdim=True) / valid.sum().clamp(min=1)


def _mean_cosine(vectors: Tensor, valid: Tensor, centre: bool) -> Tensor:
    if vectors.size(1) < 2:
        raise ValueError(f"agreement is defined for at least 2 heads, not {vectors.size(1)}")
    vectors = _centred(vectors, valid) if centre else at_least_float32(vectors)
    squared = vectors.square().sum(-1, keepdim=True)  # (B, H, T, 1)
    nonzero = squared > SMALLEST_NORM**2
    scale = torch.where(nonzero, squared, 1).rsqrt()  # selected before the root: no gradient at 0
    mean_unit = torch.where(nonzero, vectors * scale, 0).mean(1)  # (B, T, D)
    return _mean_over(mean_unit.square().sum(-1), valid)


def subspace_agreement(values: Tensor, valid: Tensor, centre: bool = False) -> Tensor:
    """Mean pairwise cosine similarity of the projected values.

        mean over valid (b, s) of  1/H^2 sum_{i,j} cos(values[b,i,s], values[b,j,s])

    Source: Li et al. (2021), Eq. 5; the paper maximises the negative. Padded positions are left out. Computed in O(H)
    as the squared norm of the mean unit vector; a vector of norm <= 1e-8 has the unit vector 0 and no gradient.

    Args:
        values: (B, H, S, D) projected values.
        valid: (B, S) bool, True at real keys.
        centre: as in ``output_agreement``.

    Returns:
        Scalar in [0, 1], float32 or float64; 1 when all heads agree.

    Raises:
        ValueError: if H < 2.
    """
    return _mean_cosine(values, valid, centre)


def position_agreement(weights: Tensor, valid: Tensor) -> Tensor:
    """Mean pairwise overlap of the attended positions.

        mean over valid (b, t) of  1/H^2 sum_{i,j} sum_s | weights[b,i,t,s] * weights[b,j,t,s] |

    Source: Li et al. (2021), Eq. 6; the paper maximises the negative. Padded queries are left out. Computed in O(H)
    as the squared norm over keys of the mean map.

    Args:
        weights: (B, H, T, S) softmax output, before weight mixing and dropout; the absolute values of maps that may be
            negative, such as those of differential attention.
        valid: (B, T) bool, True at real queries.

    Returns:
        Scalar, float32 or float64; in [0, 1] for softmax maps, 1 when all heads attend to one and the same position.

    Raises:
        ValueError: if H < 2.
    """
    if weights.size(1) < 2:
        raise ValueError(f"agreement is defined for at least 2 heads, not {weights.size(1)}")
    weights = at_least_float32(weights)
    return _mean_over(weights.mean(1).square().sum(-1), valid)


def difference_agreement(weights: Tensor, valid: Tensor) -> Tensor:
    """The negative mean pairwise squared difference of the attended positions.

        - mean over valid (b, t) of  1/H^2 sum_{i,j} sum_s (weights[b,i,t,s] - weights[b,j,t,s])^2

    Source: Li et al. (2021), footnote 3, which found it worse than Eq. 6; the paper maximises the negative. Padded
    queries are left out. Computed in O(H), from the distances to the mean map.

    Args:
        weights, valid: as of ``position_agreement``.

    Returns:
        Scalar, float32 or float64; in [-2, 0] for softmax maps, 0 when all heads have the same map.

    Raises:
        ValueError: if H < 2.
    """
    if weights.size(1) < 2:
        raise ValueError(f"agreement is defined for at least 2 heads, not {weights.size(1)}")
    weights = at_least_float32(weights)
    return -2 * _mean_over((weights - weights.mean(1, keepdim=True)).square().sum(-1).mean(1), valid)


def output_agreement(heads: Tensor, valid: Tensor, centre: bool = False) -> Tensor:
    """Mean pairwise cosine similarity of the head outputs.

        mean over valid (b, t) of  1/H^2 sum_{i,j} cos(heads[b,i,t], heads[b,j,t])

    Source: Li et al. (2021), Eq. 7; the paper maximises the negative. Padded positions are left out. Computed in O(H)
    as the squared norm of the mean unit vector; a vector of norm <= 1e-8 has the unit vector 0 and no gradient.

    Args:
        heads: (B, H, T, D) per-head outputs, before aggregation.
        valid: (B, T) bool, True at real queries.
        centre: subtract from each head its mean over the batch's real positions first, so that a constant offset of a
            head changes nothing. Not in the paper.

    Returns:
        Scalar in [0, 1], float32 or float64; 1 when all heads agree.

    Raises:
        ValueError: if H < 2.
    """
    return _mean_cosine(heads, valid, centre)


def agreement(
    terms: Sequence[str],
    values: Tensor,
    heads: Tensor,
    weights: Tensor | None,
    valid_keys: Tensor,
    valid_queries: Tensor,
) -> Tensor:
    """Agreement by several terms: ``subspace_agreement``, ``position_agreement``, ``output_agreement`` and
    ``difference_agreement``.

    On a GPU the first three are measured together in Triton kernels, which take float16, bfloat16 and float32.

    Args:
        terms: subspace, position, output, difference; centred-subspace, centred-output with ``centre``.
        values: (B, H, S, D) projected values.
        heads: (B, H, T, D) per-head outputs, before aggregation.
        weights: (B, H, T, S) softmax output, needed by position and difference.
        valid_keys, valid_queries: (B, S) and (B, T) bool, True at real tokens.

    Returns:
        (K,) a value in [0, 1] for each term, of difference in [-2, 0], in the order given.

    Raises:
        ValueError: if H < 2.
    """
    inputs = {"subspace": (values, valid_keys), "output": (heads, valid_queries)}
    if weights is not None:
        inputs |= dict.fromkeys(OF_MAPS, (weights, valid_queries))
    names = [term.removeprefix(CENTRED) for term in terms]
    in_kernel = "difference" not in names and len({*names}) == len(names)
    if in_kernel and values.size(1) >= 2 and gpu.available(*(inputs[name][0] for name in names)):
        from fairseq_diverse.attention.kernels.agreement_triton import Agreement

        chosen = zip(terms, names, strict=True)
        measured = {name: inputs[name][0] if term == name else _centred(*inputs[name]) for term, name in chosen}
        order = ("subspace", "output", "position")
        places = [names.index(name) if name in names else -1 for name in order]
        return Agreement.apply(*(measured.get(name) for name in order), valid_keys, valid_queries, places)
    functions = {"position": position_agreement, "difference": difference_agreement}
    return torch.stack(
        [
            functions[name](*inputs[name]) if name in functions else _mean_cosine(*inputs[name], centre=term != name)
            for term, name in zip(terms, names, strict=True)
        ]
    )
