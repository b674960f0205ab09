"""Statistics of the encoder's heads: confidence, syntactic attention, redundancy, importance."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fairseq_diverse.attention.functional.enlivening import head_confidence, redundant_heads, syntactic_attention
from fairseq_diverse.attention.functional.syntax import dependency_relation
from fairseq_diverse.attention.request import AttentionRequest
from fairseq_diverse.models.diverse_transformer import DiverseTransformerModel
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.pictures import new_figure
from fairseq_diverse.tasks.translation_with_syntax import place_trees

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = ("confidence", "syntactic attention", "redundant", "importance")


def inspect_heads(
    model: DiverseTransformerModel, samples: Iterable[dict[str, Any]], padding: int, gate: float | None, graphs: Any
) -> dict[str, Tensor]:
    """Four statistics of every encoder head, averaged over sentences.

    - confidence, syntactic attention, redundant: ``head_confidence``, ``syntactic_attention`` and ``redundant_heads``
      of the weights without mechanisms, softmax(mask(q k / sqrt(D))) (Zhang et al., 2021, Eqs. 3, 9, 10);
    - importance: | sum over positions of O_h . dL/dO_h |, where O_h is the head's output before the heads are combined
      and L the negative log-likelihood of the sentence (Michel et al., 2019); divided in each layer by its Euclidean
      norm over heads.

    Args:
        model: is set to evaluation mode.
        samples: batches of the task, with targets, and with trees if the model needs them.
        padding: index of the padding symbol.
        gate: constant gate, or None = the dynamic one.
        graphs: dependencies by sentence id, as in ``SyntaxDataset``; None = only confidence and importance.

    Returns:
        statistic -> (layers, H).
    """
    model.eval()
    sums: dict[str, Tensor] = {}
    count = 0
    for sample in samples:
        figures = _of_batch(model, sample, padding, gate, graphs)
        count += len(sample["id"])
        for name, values in figures.items():
            sums[name] = sums.get(name, torch.zeros(())) + values.sum(1).double().cpu()
    if not count:
        raise UserError("no sentences to look at")
    means = {name: total / count for name, total in sums.items()}
    means["importance"] = means["importance"] / means["importance"].norm(dim=1, keepdim=True).clamp(min=1e-30)
    return means


def _of_batch(
    model: DiverseTransformerModel, sample: dict[str, Any], padding: int, gate: float | None, graphs: Any
) -> dict[str, Tensor]:
    """statistic -> (layers, B, H)."""
    with torch.enable_grad():
        decoded, extra = model(**sample["net_input"], attention_request=AttentionRequest(inside=True))
        inside = list(extra["inside"].values())
        target = sample["target"]
        log_probabilities = model.get_normalized_probs((decoded, extra), log_probs=True)
        nll = -log_probabilities.gather(-1, target.unsqueeze(-1)).squeeze(-1)[target != padding].sum()
        gradients = torch.autograd.grad(nll, [heads for heads, _ in inside])
    valid = sample["net_input"]["src_tokens"] != padding
    relation = None
    if graphs is not None:
        word, head = place_trees(sample, graphs, padding).unbind(-1)[:2]
        relation = dependency_relation(word, head)
    rows: dict[str, list[Tensor]] = {}
    for (heads, weights), gradient in zip(inside, gradients, strict=True):
        rows.setdefault("confidence", []).append(head_confidence(weights, valid))
        if relation is not None:
            rows.setdefault("syntactic attention", []).append(syntactic_attention(weights, relation, valid))
            rows.setdefault("redundant", []).append(redundant_heads(weights, relation, valid, gate).float())
        rows.setdefault("importance", []).append((heads.detach() * gradient).sum((2, 3)).abs())
    return {name: torch.stack(layers) for name, layers in rows.items()}


def draw_figures(figures: dict[str, Tensor]) -> "Figure":
    """One panel per statistic: layers as rows, heads as columns, values in the cells.

    Raises:
        UserError: matplotlib is not installed.
    """
    layers, heads = next(iter(figures.values())).shape
    figure = new_figure(len(figures) * (0.45 * heads + 1.2), 0.4 * layers + 1.4)
    for panel, (name, values) in zip(
        figure.subplots(1, len(figures), squeeze=False).flat, figures.items(), strict=True
    ):
        panel.imshow(values.numpy(), vmin=0, vmax=1, aspect="auto")
        panel.set_title(name, fontsize=9)
        panel.set_xticks(range(heads), range(1, heads + 1), fontsize=7)
        panel.set_yticks(range(layers), range(1, layers + 1), fontsize=7)
        panel.set_xlabel("head", fontsize=7)
        panel.set_ylabel("encoder layer", fontsize=7)
        for layer in range(layers):
            for head in range(heads):
                value = float(values[layer, head])
                colour = "black" if value > 0.6 else "white"
                panel.text(head, layer, f"{value:.2f}", ha="center", va="center", fontsize=6, color=colour)
    return figure
