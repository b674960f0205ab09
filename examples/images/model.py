"""Attention-augmented ResNets (Bello et al., 2019) with evolving attention between their maps (Wang et al., 2021)."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_diverse import attention as core

Maps = dict[int, Tensor]  # (B, H, T, T) weights by layer
Carry = Mapping[str, Tensor]  # by mechanism, what an attention hands to the next one


class Size(NamedTuple):
    """Sizes of a network; shares are of the channels of an augmented convolution."""

    blocks: tuple[int, ...]  # of each stage
    width: int = 64  # of the first stage, doubled in each further one
    bottleneck: bool = True
    image: int = 224  # rows and columns of a picture
    heads: int = 8
    key_share: float = 0.2
    value_share: float = 0.1
    least_keys: int = 20  # channels of a head
    largest_map: int = 14  # rows; larger ones are pooled before attention


SIZES = {
    "tiny": Size((2, 2, 2), 16, False, 32, 4, 0.5, 0.25, 4, 8),
    "34": Size((3, 4, 6, 3), bottleneck=False, key_share=0.25, value_share=0.125, least_keys=4),
    "50": Size((3, 4, 6, 3)),
    "101": Size((3, 4, 23, 3)),
    "152": Size((3, 8, 36, 3)),
}


@core.register_mechanism("pixel-offsets")
class PixelOffsets(core.Mechanism):
    """One vector for each distance in rows and one for each distance in columns, shared over heads.

        bias[i, j] = q_i . e^H_{h(j) - h(i)} + q_i . e^W_{w(j) - w(i)}

    Source: Wang et al. (2021), Eqs. 2-3: without 1/sqrt(Dk), which Bello et al. (2019) have here, too. The pixels are
    the rows of a square map, one after the other. 2 (2 side - 1) Dk parameters.
    """

    @dataclass(frozen=True)
    class Settings(core.MechanismSettings):
        on: str = core.placement("", "placement of relative rows and columns; empty = off")
        side: int = core.option(1, "rows and columns of the map, at least 1")

    components = ("encoder",)

    def __init__(self, settings: Settings, where: core.AttentionShape) -> None:
        super().__init__(settings, where)
        self.side = settings.side  # below: of rows, of columns
        self.vectors = nn.Parameter(torch.randn(2, 2 * self.side - 1, where.key_width) * where.key_width**-0.5)

    def bias(self, context: core.AttentionContext) -> Tensor:
        """(B, H, T, T), T the pixels"""
        q = (context.q / context.scale).unflatten(2, (self.side, self.side))  # (B, H, rows, columns, Dk)
        places = torch.arange(self.side, device=q.device)
        index = places - places[:, None] + self.side - 1  # (from, to)
        of_rows, of_columns = self.vectors.type_as(q)[:, index]  # (from, to, Dk)
        by_row = torch.einsum("bhrcd,rkd->bhrck", q, of_rows).unsqueeze(-1)
        by_column = torch.einsum("bhrcd,ckd->bhrck", q, of_columns).unsqueeze(-2)
        return (by_row + by_column).flatten(4).flatten(2, 3)


class AugmentedConv(nn.Module):
    """A 3x3 convolution some of whose channels come from attention over all pixels.

        concat(Conv(x), W_O attention(x)),    x pooled before attention, its output upsampled, where the map is large

    Source: Bello et al. (2019), section 3.2.

    Args:
        inputs, out: channels of the input and the output.
        rows: of the output, which is square.
        mechanisms: of the attention besides relative positions, see ``StandaloneAttention``.
        layer: number of the convolution in the network; the stem is 1.
    """

    def __init__(self, inputs: int, out: int, stride: int, rows: int, size: Size, mechanisms: Any, layer: int) -> None:
        super().__init__()
        keys = max(-(-int(size.key_share * out) // size.heads), size.least_keys)  # of a head
        values = int(size.value_share * out) // size.heads * size.heads  # of all heads
        pooled = rows > size.largest_map
        self.layer, pools = layer, (stride == 2) + pooled
        self.pool = nn.Sequential(*(nn.AvgPool2d(3, 2, 1, count_include_pad=False) for _ in range(pools)))
        self.conv = nn.Conv2d(inputs, out - values, 3, stride, 1, bias=False)
        mechanisms = {"qk-head-dim": {"kind": keys}, "pixel-offsets": {"side": rows >> pooled}, **mechanisms}
        widths = dict.fromkeys(("qdim", "kdim", "vdim"), inputs)
        self.attention = core.StandaloneAttention(values, size.heads, mechanisms=mechanisms, layer=layer, **widths)

    def forward(self, x: Tensor, carry: Carry, maps: Maps | None) -> tuple[Tensor, Carry]:
        """(B, channels, R', C') and the carry of the attention before -> (B, out, R, C) and carry."""
        convolved, seen = self.conv(x), self.pool(x)
        pixels = seen.flatten(2).transpose(1, 2)  # (B, T, channels)
        previous = {name: one for name, one in carry.items() if one.size(-1) == pixels.size(1)}  # of this resolution
        attended = self.attention.attend(pixels, pixels, pixels, need_weights=maps is not None, previous=previous)
        if maps is not None:
            maps[self.layer] = attended.weights
        added = attended.value.transpose(1, 2).unflatten(2, seen.shape[2:])
        if added.shape[2:] != convolved.shape[2:]:
            added = F.interpolate(added, convolved.shape[2:], mode="bilinear")
        return torch.cat([convolved, added.type_as(convolved)], 1), attended.carry


class Block(nn.Module):
    """Convolutions, each with batch normalization, and a shortcut around them (He et al., 2016); as ``AugmentedConv``.

    Args:
        inputs, width: channels of the input and of the convolutions; a bottleneck's output has four times the width.
        mechanisms: of the attention of its 3x3 convolutions; None for plain convolutions.
        layer: number of its first convolution in the network.
    """

    def __init__(self, inputs: int, width: int, step: int, rows: int, size: Size, mechanisms: Any, layer: int) -> None:
        super().__init__()
        widths = [inputs, width, width, 4 * width] if size.bottleneck else [inputs, width, width]
        self.out, self.layers, self.shortcut = widths[-1], nn.ModuleList(), nn.Sequential()
        for number, (before, out) in enumerate(pairwise(widths)):
            kernel, stride = 3 if number == 1 or not size.bottleneck else 1, step if number == size.bottleneck else 1
            convolution: nn.Module = nn.Conv2d(before, out, kernel, stride, kernel // 2, bias=False)
            if kernel == 3 and mechanisms is not None:
                convolution = AugmentedConv(before, out, stride, rows, size, mechanisms, layer + number)
            self.layers.append(nn.ModuleList([convolution, nn.BatchNorm2d(out)]))
        if (inputs, step) != (self.out, 1):
            self.shortcut.extend([nn.Conv2d(inputs, self.out, 1, step, bias=False), nn.BatchNorm2d(self.out)])

    def forward(self, x: Tensor, carry: Carry, maps: Maps | None) -> tuple[Tensor, Carry]:
        """Without attention, the carry passes through."""
        inner = x
        for number, (convolution, norm) in enumerate(self.layers):
            inner = inner.relu() if number else inner
            if isinstance(convolution, AugmentedConv):
                inner, carry = convolution(inner, carry, maps)
            else:
                inner = convolution(inner)
            inner = norm(inner)
        return (inner + self.shortcut(x)).relu(), carry


class ResNet(nn.Module):
    """A residual network; every 3x3 convolution after the first stage is augmented with attention.

    Args:
        size: of ``SIZES``.
        classes: number of classes.
        attention: none (a plain ResNet), augmented, or evolving: the logits of an attention get those of the one before
            with the same resolution, across stages, too, and a convolution.
        evolving: settings of the mechanism ``evolving``.
    """

    def __init__(self, size: str, classes: int, attention: str = "evolving", **evolving: Any) -> None:
        super().__init__()
        sizes = SIZES[size]
        mechanisms = {"none": None, "augmented": {}, "evolving": {"evolving": evolving}}[attention]
        kernel, stride, pool = (3, 1, []) if sizes.image <= 32 else (7, 2, [nn.MaxPool2d(3, 2, 1)])
        first = nn.Conv2d(3, sizes.width, kernel, stride, kernel // 2, bias=False)
        self.stem = nn.Sequential(first, nn.BatchNorm2d(sizes.width), nn.ReLU(), *pool)
        rows, channels, layer = sizes.image // (4 if pool else 1), sizes.width, 2
        self.stages = nn.ModuleList(nn.ModuleList() for _ in sizes.blocks)
        for stage, count in enumerate(sizes.blocks):
            for number in range(count):
                stride = 2 if stage and not number else 1
                rows //= stride
                block = Block(channels, sizes.width << stage, stride, rows, sizes, mechanisms if stage else None, layer)
                self.stages[stage].append(block)
                channels, layer = block.out, layer + len(block.layers)
        self.classifier = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and module.bias is None:  # that of evolving attention has one
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, pictures: Tensor, maps: Maps | None = None) -> Tensor:
        """Scores (B, classes) of pictures (B, 3, rows, columns).

        Args:
            maps: gets the weights of each attention. Layers are counted as in the name ResNet-34; the stem is layer 1.
        """
        x, carry = self.stem(pictures), {}
        for block in chain(*self.stages):
            x, carry = block(x, carry, maps)
        return self.classifier(x.mean((2, 3)))
