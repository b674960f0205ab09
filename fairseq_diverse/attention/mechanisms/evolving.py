"""Evolving attention (Wang et al., 2021)."""

from torch import Tensor, nn

from fairseq_diverse.attention.functional.evolving import below, evolve_logits, readable


class EvolvingLogits(nn.Module):
    """What happens to the logits of one attention before they are masked.

    Source: Wang et al. (2021), sections 3.3 and 3.5. H^2 k^2 + H parameters, none with ``conv_ratio`` 0: 584 at Base
    with k = 3. They start as those of ``torch.nn.Conv2d``.

    Args:
        heads: H.
        component: encoder, decoder or cross.
        carry_ratio: alpha, the share of the logits below; 0 unless the component is encoder.
        conv_ratio: beta, the share of the convolution.
        kernel: k, odd.
    """

    def __init__(self, heads: int, component: str, carry_ratio: float, conv_ratio: float, kernel: int) -> None:
        super().__init__()
        self.component, self.carry_ratio, self.conv_ratio, self.kernel = component, carry_ratio, conv_ratio, kernel
        self.carries = carry_ratio > 0
        self.conv = nn.Conv2d(heads, heads, kernel) if conv_ratio > 0 else None

    @property
    def has_history(self) -> bool:
        """Whether decoding needs the rows of earlier steps."""
        return self.conv is not None and self.component != "encoder" and self.kernel > 1

    def forward(self, logits: Tensor, previous: Tensor | None, cells: Tensor | None, above: Tensor | None) -> Tensor:
        """(B, H, T, S) -> (B, H, T, S), as ``evolve_logits``."""
        weight, bias = (None, None) if self.conv is None else (self.conv.weight, self.conv.bias)
        previous = previous if self.carries else None
        return evolve_logits(
            logits, previous, weight, bias, self.component, self.carry_ratio, self.conv_ratio, cells, above
        )

    def next_above(self, logits: Tensor, cells: Tensor | None, above: Tensor | None) -> Tensor:
        """(B, H, k - 1, S) the last rows, which the next steps of decoding read."""
        rows = readable(logits, cells)
        if above is None:
            above = rows.new_zeros(*rows.shape[:2], self.kernel - 1, 0)
        return below(above, rows)[:, :, -(self.kernel - 1) :]
