"""A two-dimensional map of the heads of several models."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fairseq_diverse.attention.functional.agreement import output_agreement
from fairseq_diverse.attention.request import AttentionRequest
from fairseq_diverse.models.diverse_transformer import DiverseTransformerModel
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.installed import install
from fairseq_diverse.support.pictures import STYLES, legend_above, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def mean_heads(model: DiverseTransformerModel, samples: Iterable[dict[str, Any]], padding: int) -> Tensor:
    """The mean output of every encoder head.

        mean over layers and real tokens t of  O_h[t],    O_h the head's output before the heads are combined

    Source: Li et al. (2021), section 4.1.2.3.

    Args:
        model: is set to evaluation mode.
        samples: batches of the task.
        padding: index of the padding symbol.

    Returns:
        (H, D).

    Raises:
        UserError: the data have no sentence, or the outputs of the layers differ in width.
    """
    model.eval()
    total, tokens = torch.zeros(()), 0
    for sample in samples:
        request = AttentionRequest(inside="encoder")
        with torch.no_grad():
            inside = model(**sample["net_input"], features_only=True, attention_request=request)[1]["inside"]
        outputs = [heads for heads, _ in inside.values()]  # (B, H, T, D)
        if len({output.size(-1) for output in outputs}) > 1:
            raise UserError("the heads of its layers have outputs of different widths: no mean over layers")
        real = sample["net_input"]["src_tokens"] != padding  # (B, T)
        heads = torch.stack(outputs).transpose(2, 3)[:, real]  # (layers, tokens, H, D)
        total = total + heads.double().mean(0).sum(0).cpu()
        tokens += int(real.sum())
    if not tokens:
        raise UserError("no sentences to look at")
    return (total / tokens).float()


def similarity(heads: Tensor) -> float:
    """Mean cosine similarity of all pairs of heads (H, D), each head with itself included; 1 if all are equal."""
    return float(output_agreement(heads[None, :, None], torch.ones(1, 1, dtype=torch.bool)))


def draw_head_map(heads: Mapping[str, Tensor], seed: int = 1) -> "Figure":
    """The heads of all models in one t-SNE, one colour per model (Li et al., 2021, Fig. 3).

    Args:
        heads: model -> (H, D), with equal D.

    Raises:
        UserError: matplotlib or scikit-learn is not installed, widths differ, or there are fewer than three heads.
    """
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise UserError(f"the map needs scikit-learn; install it: {install('plots')}") from error
    widths = {name: vectors.size(1) for name, vectors in heads.items()}
    if len(set(widths.values())) > 1:
        raise UserError(f"heads of different widths cannot be on one map: {widths}")
    points = torch.cat(list(heads.values())).numpy()
    if len(points) < 3:
        raise UserError(f"{len(points)} heads; a map needs at least 3")
    perplexity = min(30.0, (len(points) - 1) / 3)
    placed = iter(TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(points))
    figure = new_figure(4.6, 4.2)
    axis = figure.subplots()
    for number, (name, vectors) in enumerate(heads.items()):
        color, marker = STYLES[number % len(STYLES)]
        own = torch.tensor([next(placed).tolist() for _ in vectors])
        axis.scatter(own[:, 0], own[:, 1], color=color, marker=marker, label=name)
        for head, (x, y) in enumerate(own.tolist(), 1):
            axis.annotate(str(head), (x, y), xytext=(4, 3), textcoords="offset points", fontsize=7)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.set_xlabel("t-SNE; numbers: heads")
    legend_above(figure)
    return figure
