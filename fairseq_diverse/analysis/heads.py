"""Statistics of the encoder's heads, and how different the heads of every attention are."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_diverse.analysis.diversity import HeadDiversity
from fairseq_diverse.analysis.roles import FREQUENT, neighbour_hits, rare_hits
from fairseq_diverse.attention.functional.enlivening import head_confidence, redundant_heads, syntactic_attention
from fairseq_diverse.attention.functional.syntax import dependency_relation
from fairseq_diverse.attention.relations import place_trees
from fairseq_diverse.attention.request import AttentionRequest
from fairseq_diverse.models.diverse_transformer import DiverseTransformerModel, layer_counts
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.pictures import Figure, panels

FIGURES = ("confidence", "syntactic attention", "redundant", "importance", "previous", "next", "rarest")
Share = tuple[Tensor, Tensor | int]  # (layers, H) sums, and of how many
Layers = list[tuple[Tensor, Tensor, Tensor, Tensor]]  # head outputs, weights they are judged by and use, gradients


class HeadFigures(NamedTuple):
    """The result of ``inspect_heads``."""

    heads: dict[str, Tensor]  # figure -> (layers, H), of the encoder
    attentions: dict[tuple[str, int], dict[str, float | None]]  # (component, layer) -> figures of ``HeadDiversity``
    without_tree: int  # sentences that the two syntactic statistics leave out


def inspect_heads(
    model: DiverseTransformerModel,
    samples: Iterable[dict[str, Any]],
    dictionary: Any,
    gate: float | None,
    graphs: Any,
    frequent: int = FREQUENT,
) -> HeadFigures:
    """Statistics of every encoder head, and of the heads of every attention together.

    For each encoder head, averaged over sentences:

    - confidence, syntactic attention, redundant: ``head_confidence``, ``syntactic_attention`` and ``redundant_heads``
      of the weights without mechanisms, softmax(mask(q k / sqrt(D))), as enlivening uses them (Zhang et al., 2021,
      Eqs. 3, 9, 10); q and k are rotated or normalized, where the model does that. For differential attention, which
      has no such weights: of its maps. The last two are averaged over sentences with a usable tree;
    - importance: | sum over positions of O_h . dL/dO_h |, where O_h is the head's output before the heads are combined
      and L the negative log-likelihood of the sentence (Michel et al., 2019); divided in each layer by its Euclidean
      norm over heads.

    For each encoder head, as a share of the real queries:

    - previous, next (``neighbour_hits``) and rarest (``rare_hits``) of the model's maps, with its mechanisms. For
      interacting heads, which have no map each: of the weights without mechanisms.

    For each attention: ``HeadDiversity`` of the head outputs before they are combined.

    Args:
        model: the model; it is set to evaluation mode.
        samples: batches of the task, with targets, and with trees if the model needs them.
        dictionary: source dictionary; its counts define which words are rare.
        gate: constant gate; None = the dynamic gate.
        graphs: dependencies by sentence id, as in ``SyntaxDataset``. If None, or if no sentence has a usable tree, the
            two syntactic statistics are left out.
        frequent: how many of the most frequent words count as not rare; if there are no others, ``rarest`` is left out.

    Raises:
        UserError: there are no samples.
    """
    model.eval()
    counts = torch.tensor(dictionary.count)
    words = counts[dictionary.nspecial :].sort(descending=True).values
    limit = int(words[frequent - 1]) if len(words) >= frequent else 0
    totals: dict[str, Share] = {}
    diversity: dict[tuple[str, int], HeadDiversity] = {}
    for sample in samples:
        inside, maps, gradients = _trace(model, sample, dictionary.pad())
        for place, (heads, _) in inside.items():
            tokens = sample["net_input"]["src_tokens" if place[0] == "encoder" else "prev_output_tokens"]
            diversity.setdefault(place, HeadDiversity()).add(heads, tokens != dictionary.pad())
        encoder = _encoder_layers(model, inside, maps, gradients)
        for name, (sums, count) in _batch_figures(encoder, sample, dictionary, gate, graphs, (counts, limit)):
            before = totals.get(name, (torch.zeros(()), 0))
            totals[name] = before[0] + sums.double().cpu(), before[1] + int(count)
    if not totals:
        raise UserError("no sentences to look at")
    means = {name: totals[name][0] / totals[name][1] for name in FIGURES if name in totals and totals[name][1]}
    means["importance"] = means["importance"] / means["importance"].norm(dim=1, keepdim=True).clamp(min=1e-30)
    order = [(component, layer + 1) for component, count in layer_counts(model.cfg).items() for layer in range(count)]
    without_tree = int(totals["confidence"][1] - totals["redundant"][1]) if "redundant" in totals else 0
    return HeadFigures(means, {place: diversity[place].figures() for place in order}, without_tree)


def _trace(model: DiverseTransformerModel, sample: dict[str, Any], padding: int) -> tuple[dict, dict, list[Tensor]]:
    """The inside of every attention; of the encoder the maps, and for each layer the gradient of the NLL by the head
    outputs."""
    on = ",".join(component for component, count in layer_counts(model.cfg).items() if count)
    with torch.enable_grad():
        request = AttentionRequest(inside=on, weights="encoder")
        decoded, extra = model(**sample["net_input"], attention_request=request)
        inside = extra["inside"]
        real = sample["target"] != padding
        outputs, targets = [decoded[real]], [sample["target"][real]]
        if model.decoder.adaptive_softmax is not None:  # its log-probabilities are written in place: no gradient
            outputs, targets = model.decoder.adaptive_softmax(outputs[0], targets[0])
        parts = [(logits, labels) for logits, labels in zip(outputs, targets, strict=True) if labels is not None]
        nll = torch.stack([F.cross_entropy(logits, labels, reduction="sum") for logits, labels in parts]).sum()
        encoder_heads = [heads for (component, _), (heads, _) in inside.items() if component == "encoder"]
        gradients = torch.autograd.grad(nll, encoder_heads, allow_unused=True, materialize_grads=True)
        return inside, extra["maps"], list(gradients)


def _encoder_layers(model: DiverseTransformerModel, inside: dict, maps: dict, gradients: list[Tensor]) -> Layers:
    layers = []
    for number, (layer, gradient) in enumerate(zip(model.encoder.layers, gradients, strict=True), 1):
        heads, judged = inside["encoder", number]
        attention = layer.self_attn
        used = maps["encoder", number].detach().transpose(0, 1) if attention.has_maps else judged
        layers.append((heads, used if attention.stage("attention") else judged, used, gradient))
    return layers


def _batch_figures(
    encoder: Layers, sample: dict[str, Any], dictionary: Any, gate: float | None, graphs: Any, rare: tuple[Tensor, int]
) -> Iterator[tuple[str, Share]]:
    tokens = sample["net_input"]["src_tokens"]
    valid = tokens != dictionary.pad()
    relation = None
    if graphs is not None:
        word, head = place_trees(sample, graphs, dictionary.pad()).unbind(-1)[:2]
        relation, parsed = dependency_relation(word, head), (word > 0).any(1)  # see EVERYTHING_RELATED
    figures: list[dict[str, Share]] = []
    for heads, judged, used, gradient in encoder:
        means = {"confidence": head_confidence(judged, valid)}  # (B, H)
        if relation is not None:
            means["syntactic attention"] = syntactic_attention(judged, relation, valid)[parsed]
            means["redundant"] = redundant_heads(judged, relation, valid, gate)[parsed].float()
        means["importance"] = (heads.detach() * gradient).sum((2, 3)).abs()
        shares: dict[str, Share] = {name: (values.sum(0), len(values)) for name, values in means.items()}
        shares["previous"], shares["next"] = (neighbour_hits(used, valid, offset) for offset in (-1, 1))
        frequency, limit = rare[0].to(tokens.device)[tokens], rare[1]
        shares["rarest"] = rare_hits(used, valid, frequency, valid & (tokens != dictionary.eos()), limit)
        figures.append(shares)
    for name, (_, count) in figures[0].items():
        yield name, (torch.stack([shares[name][0] for shares in figures]), count)


def draw_figures(figures: dict[str, Tensor]) -> Figure:
    """One panel per statistic: layers as rows, heads as columns, values in the cells."""
    layers, heads = next(iter(figures.values())).shape
    figure, axes = panels(len(figures), len(figures) * (0.45 * heads + 1.2), 0.4 * layers + 1.4)
    for panel, (name, values) in zip(axes, figures.items(), strict=True):
        panel.imshow(values.numpy(), vmin=0, vmax=1, aspect="auto")
        panel.set_title(name, fontsize="small")
        for side, count, text in ((panel.xaxis, heads, "head"), (panel.yaxis, layers, "encoder layer")):
            side.set_ticks(range(count), range(1, count + 1), fontsize="x-small")
            side.set_label_text(text, fontsize="x-small")
        for (layer, head), value in np.ndenumerate(values.numpy()):
            colour = "black" if value > 0.6 else "white"
            panel.text(head, layer, f"{value:.2f}", ha="center", va="center", fontsize="xx-small", color=colour)
    return figure
