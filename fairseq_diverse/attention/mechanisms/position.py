"""Relative positions (Shaw et al., 2018) and localness (Yang et al., 2018)."""

import torch
from torch import Tensor, nn

from fairseq_diverse.attention.functional.position import localness_bias, relative_logits, relative_values


class RelativePositions(nn.Module):
    """A vector for each relative position, added to the keys and another to the values; shared over heads.

    Source: Shaw et al. (2018), Eqs. 3-4. (2k+1) (Dk + D) parameters: 4,224 at Base with k = 16.

    Args:
        key_width: Dk, of each head's queries and keys.
        head_width: D, of its values.
        limit: k, at least 1; positions farther away count as k.
    """

    def __init__(self, key_width: int, head_width: int, limit: int) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.empty(2 * limit + 1, key_width))
        self.values = nn.Parameter(torch.empty(2 * limit + 1, head_width))
        nn.init.xavier_uniform_(self.keys)
        nn.init.xavier_uniform_(self.values)

    def forward(self, q: Tensor, keys: int) -> Tensor:
        """(B, H, T, Dk) scaled queries, S -> (B, H, T, S) addends of the logits."""
        return relative_logits(q, self.keys, keys)

    def gain(self, weights: Tensor) -> Tensor:
        """(B, H, T, S) -> (B, H, T, D) addends of the head outputs."""
        return relative_values(weights, self.values)


class Localness(nn.Module):
    """A Gaussian window around a position that each query predicts; shared over heads.

    Source: Yang et al. (2018), section 3. D^2 + 2 D parameters.

    Args:
        head_width: D.
    """

    def __init__(self, head_width: int) -> None:
        super().__init__()
        self.hidden = nn.Parameter(torch.empty(head_width, head_width))
        self.centre = nn.Parameter(torch.empty(1, head_width))
        self.window = nn.Parameter(torch.empty(1, head_width))
        for parameter in self.parameters():
            nn.init.xavier_uniform_(parameter)

    def forward(self, q: Tensor, valid: Tensor) -> Tensor:
        """(B, H, T, D) unscaled queries, (B, T) -> (B, H, T, T) addends of the logits."""
        return localness_bias(q, self.hidden, self.centre[0], self.window[0], valid)
