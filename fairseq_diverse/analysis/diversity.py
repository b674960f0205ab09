"""How different the outputs of an attention's heads are, over all real positions of a split."""

import torch
from torch import Tensor

FIGURES = ("cosine", "constant share", "effective rank", "width")


def off_diagonal_cosine(heads: Tensor) -> Tensor:
    """Mean cosine similarity of two different heads.

        mean over t of  1 / (H (H - 1)) sum over i != j of cos(heads[t, i], heads[t, j])

    The agreement of Li et al. (2021), Eq. 7, without its pairs i = j, which are 1 whatever the heads do.

    Args:
        heads: (N, H, D) head outputs at N positions, H >= 2. The cosine of a zero vector with any other is 0.

    Returns:
        Scalar in [-1 / (H - 1), 1], 0 for orthogonal heads.
    """
    norms = heads.norm(dim=-1, keepdim=True)
    unit = torch.where(norms > 1e-8, heads / norms, 0)
    count = heads.size(1)
    different = unit.sum(1).square().sum(-1) - unit.square().sum((1, 2))  # all pairs less the pairs i = j
    return different.mean() / (count * (count - 1))


def constant_share(mean: Tensor, second: Tensor) -> Tensor:
    """Share of the heads' energy that does not depend on the position.

        sum over h of N |mean_h|^2 / sum over h, t of |heads[t, h]|^2,    mean_h = 1/N sum over t of heads[t, h]

    Args:
        mean: (C,) mean of the concatenated heads, C = H D.
        second: (C, C) mean over positions of their outer product.

    Returns:
        Scalar in [0, 1]: 1 where every head gives the same at every position; 0 where all heads are 0.
    """
    energy = second.trace()
    return mean.square().sum() / energy if energy > 0 else energy


def effective_rank(mean: Tensor, second: Tensor) -> Tensor:
    """The number of directions in which the concatenated heads vary.

        exp(-sum over k of p_k log p_k),    p_k = s_k / sum over k of s_k

    with s_k the singular values of the (N, C) matrix of the heads less their mean: the roots of N times the
    eigenvalues of their covariance. Source: Roy and Vetterli, "The effective rank" (EUSIPCO 2007). Arguments as of
    ``constant_share``.

    Returns:
        Scalar in [1, C]: C where the heads vary alike in all directions; 0 where they do not vary.
    """
    eigenvalues = torch.linalg.eigvalsh(second - torch.outer(mean, mean))
    values = eigenvalues.where(eigenvalues > 1e-14 * second.trace(), 0).sqrt()
    return torch.special.entr(values / values.sum()).sum().exp() if values.any() else values.sum()


class HeadDiversity:
    """The three figures of one attention, added up batch by batch in constant memory."""

    def __init__(self) -> None:
        self.positions = 0
        self.cosines = self.total = self.products = torch.zeros((), dtype=torch.float64)
        self.heads = 0

    def add(self, heads: Tensor, valid: Tensor) -> None:
        """Add a batch: (B, H, T, D) head outputs, (B, T) True at real positions."""
        real = heads.detach().transpose(1, 2)[valid].double().cpu()  # (N, H, D)
        self.positions += len(real)
        self.heads = real.size(1)
        self.cosines = self.cosines + (off_diagonal_cosine(real) * len(real) if self.heads > 1 else 0)
        flat = real.flatten(1)
        self.total = self.total + flat.sum(0)
        self.products = self.products + flat.T @ flat

    def figures(self) -> dict[str, float | None]:
        """The ``FIGURES`` of all batches. The cosine is None for one head; width is C, the largest possible rank."""
        mean, second = self.total / self.positions, self.products / self.positions
        cosine = float(self.cosines / self.positions) if self.heads > 1 else None
        figures = cosine, float(constant_share(mean, second)), float(effective_rank(mean, second)), len(mean)
        return dict(zip(FIGURES, figures, strict=True))
