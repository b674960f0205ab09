"""A two-dimensional map of the heads of several models."""

from collections.abc import Iterable, Mapping
from itertools import permutations
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from fairseq_diverse.attention.functional.agreement import output_agreement
from fairseq_diverse.attention.request import AttentionRequest
from fairseq_diverse.models.diverse_transformer import DiverseTransformerModel
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.installed import install, needed
from fairseq_diverse.support.pictures import STYLES, Figure, legend_above, new_figure

MOST_NUMBERS = 8  # heads of a model up to which every cosine is printed in its cell


def mean_heads(model: DiverseTransformerModel, samples: Iterable[dict[str, Any]], padding: int) -> Tensor:
    """The mean output (H, D) of every encoder head, over batches of a task; sets the model to evaluation mode.

        mean over layers and real tokens t of  O_h[t],    O_h the head's output before the heads are combined

    Source: Li et al. (2021), section 4.1.2.3.

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


def cosines(heads: Tensor) -> Tensor:
    """Cosine similarity of every two different heads (H, D): (H, H), NaN on the diagonal."""
    return cosine_similarity(heads[:, None], heads[None], dim=-1).fill_diagonal_(torch.nan)


def mean_cosine(heads: Tensor) -> float:
    """Mean cosine similarity of two different heads (H, D); NaN of one head."""
    return float(cosines(heads).nanmean())


def draw_head_map(heads: Mapping[str, Tensor], seed: int = 1) -> Figure:
    """Draw the heads of all models in one t-SNE (Li et al., 2021, Fig. 3), and each model's matrix of cosines.

    Read similarities from the matrices: where a few points lie in a t-SNE depends on its seed. The diagonal, each head
    with itself, is left out. All matrices share one colour scale, from -m to m, m the largest absolute cosine. The
    heads of each model are (H, D), with equal D.

    Raises:
        UserError: matplotlib or scikit-learn is not installed, widths differ, or there are fewer than three heads.
    """
    manifold = needed("sklearn.manifold", f"the map needs scikit-learn; install it: {install('plots')}")
    widths = {name: vectors.size(1) for name, vectors in heads.items()}
    if len(set(widths.values())) > 1:
        raise UserError(f"heads of different widths cannot be on one map: {widths}")
    points = torch.cat(list(heads.values())).numpy()
    if len(points) < 3:
        raise UserError(f"{len(points)} heads; a map needs at least 3")
    perplexity = min(30.0, (len(points) - 1) / 3)
    placed = iter(manifold.TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(points))
    matrices = {name: cosines(vectors) for name, vectors in heads.items()}
    most, columns = max(map(len, heads.values())), min(len(heads), 2 if len(heads) < 5 else 3)
    rows, side = -(-len(heads) // columns), max(1.8, 0.26 * most)
    figure = new_figure(4.6 + columns * (side + 0.3) + 0.8, max(4.2, rows * (side + 0.8)))
    grid = figure.add_gridspec(rows, columns + 1, width_ratios=[4.2, *[side] * columns])
    axis = figure.add_subplot(grid[:, 0])
    for number, (name, vectors) in enumerate(heads.items()):
        color, marker = STYLES[number % len(STYLES)]
        positions = torch.tensor([next(placed).tolist() for _ in vectors])
        axis.scatter(positions[:, 0], positions[:, 1], color=color, marker=marker, label=name)
        for head, (x, y) in enumerate(positions.tolist(), 1):
            axis.annotate(str(head), (x, y), xytext=(4, 3), textcoords="offset points", fontsize="x-small")
    axis.set(box_aspect=1, xticks=[], yticks=[])
    axis.set(xlabel="first dimension of t-SNE; numbers: heads", ylabel="second dimension of t-SNE")
    limit = max(float(matrix.nan_to_num(0).abs().max()) for matrix in matrices.values()) or 1.0
    places = []
    for number, (name, matrix) in enumerate(matrices.items()):
        place = figure.add_subplot(grid[number // columns, 1 + number % columns])
        image = place.imshow(matrix.numpy(), "RdBu_r", vmin=-limit, vmax=limit)
        place.set_facecolor("0.85")  # of the diagonal
        mean = f": mean cosine {mean_cosine(heads[name]):z.2f}" if len(matrix) > 1 else ""
        place.set_title(f"{name}{mean}", fontsize="small")
        numbers = [str(head + 1) for head in range(len(matrix))]
        for edge in (place.xaxis, place.yaxis):
            edge.set_ticks(range(len(matrix)), numbers, fontsize="x-small")
            edge.set_label_text("head", fontsize="x-small")
        for i, j in permutations(range(len(matrix) if most <= MOST_NUMBERS else 0), 2):
            value = float(matrix[i, j])
            colour = "white" if abs(value) > 0.6 * limit else "black"
            place.text(j, i, f"{value:z.2f}", ha="center", va="center", fontsize="xx-small", color=colour)
        places.append(place)
    figure.colorbar(image, ax=places, label="cosine similarity of two heads", shrink=0.8, aspect=25)
    legend_above(figure)
    return figure
