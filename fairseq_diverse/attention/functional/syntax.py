"""Relations and biases from the trees of the source sentence (Zhang et al., 2021, section 4.1).

Trees are integers per subword: the index of its ``word``, and of that word the ``head`` (the root is its own head), the
span [``start``, ``end``) of its local phrase, in words, and the ``layer``. At padding, word and head are -1 and the
span is [0, 0).
"""

import torch
from torch import Tensor

from fairseq_diverse.attention.precision import at_least_float32, without_autocast


def dependency_relation(word: Tensor, head: Tensor) -> Tensor:
    """Which subwords a subword may see along dependencies: those of its word, its head and its dependents.

        related[i, j] = word_i = word_j  or  head_i = word_j  or  word_i = head_j

    Source: Zhang et al. (2021), Eq. 5; subwords of one word are related.

    Args:
        word, head: (B, T) integers, -1 at padding.

    Returns:
        (B, T, T) bool, symmetric, True on the diagonal of real tokens, False at padding.
    """
    i, j = word.unsqueeze(2), word.unsqueeze(1)
    related = (i == j) | (head.unsqueeze(2) == j) | (i == head.unsqueeze(1))
    return related & _both_real(word)


def phrase_relation(word: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Which subwords share a local phrase: those of one word, and those where one word is in the other's phrase.

        related[i, j] = word_i = word_j  or  start_i <= word_j < end_i  or  start_j <= word_i < end_j

    Source: Zhang et al. (2021), section 4.1, rules 1 and 2.

    Args:
        word: (B, T) integers, -1 at padding.
        start, end: (B, T) the local phrase of the subword's word, in words.

    Returns:
        (B, T, T) bool, symmetric, True on the diagonal of real tokens, False at padding.
    """
    i, j = word.unsqueeze(2), word.unsqueeze(1)
    inside = (start.unsqueeze(2) <= j) & (j < end.unsqueeze(2))
    return ((i == j) | inside | inside.transpose(1, 2)) & _both_real(word)


def phrase_distance(layer: Tensor, limit: int) -> Tensor:
    """How much deeper the key is in the constituency tree than the query.

        RP[i, j] = clip(layer_j - layer_i, -limit, limit)

    Source: Zhang et al. (2021), Eq. 7, whose clip(j - i) is read as the clipped RP.

    Args:
        layer: (B, T) number of phrases above the subword's word.
        limit: k of the paper, at least 0.

    Returns:
        (B, T, T) integers in [-limit, limit].
    """
    return (layer.unsqueeze(1) - layer.unsqueeze(2)).clamp(-limit, limit)


def phrase_bias(embedding: Tensor, weight: Tensor, bias: Tensor, out: Tensor, distance: Tensor) -> Tensor:
    """The penalty of a relative local-phrase position, shared over heads.

        P[i, j] = -| tanh(W_P w_RP[i, j] + b_P) . U_P |

    Source: Zhang et al. (2021), Eqs. 7-8. There are only 2 k + 1 values; they are computed once and looked up.

    Args:
        embedding: (2k+1, D), w of the paper, row RP + k.
        weight: (D, D), W_P.
        bias: (D,), b_P.
        out: (D,), U_P.
        distance: (B, T, T) integers in [-k, k].

    Returns:
        (B, T, T) at most 0, float32, or float64 for float64 embeddings.
    """
    embedding = at_least_float32(embedding)
    weight, bias, out = (x.type_as(embedding) for x in (weight, bias, out))
    with without_autocast(out):
        table = -(torch.tanh(embedding @ weight.t() + bias) @ out).abs()
    rows = table.expand(*distance.shape[:2], -1)  # one for each query: a GPU adds all gradients of a value one by one
    return rows.gather(-1, distance + len(table) // 2)


def _both_real(word: Tensor) -> Tensor:
    real = word >= 0
    return real.unsqueeze(2) & real.unsqueeze(1)
