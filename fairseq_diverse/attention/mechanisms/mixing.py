"""Talking heads (Shazeer et al., 2020)."""

import torch
from torch import Tensor, nn

from fairseq_diverse.attention.functional.mixing import mix_heads


class TalkingHeads(nn.Module):
    """Mixes the heads' logits before the softmax, their weights after it, or both; at first the identity.

    Source: Li and Luo (2022), Eqs. 7-8. H^2 parameters for each of the two: 128 at Base for both.

    Args:
        heads: H.
        kind: logits, weights or both.
    """

    def __init__(self, heads: int, kind: str) -> None:
        super().__init__()
        self.before = nn.Parameter(torch.eye(heads)) if kind != "weights" else None
        self.after = nn.Parameter(torch.eye(heads)) if kind != "logits" else None

    def mix_logits(self, logits: Tensor) -> Tensor:
        """(B, H, T, S) -> (B, H, T, S)"""
        return logits if self.before is None else mix_heads(logits, self.before)

    def mix_weights(self, weights: Tensor) -> Tensor:
        """(B, H, T, S) -> (B, H, T, S)"""
        return weights if self.after is None else mix_heads(weights, self.after)
