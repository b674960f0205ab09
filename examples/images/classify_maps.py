"""How well attention maps alone show what is in a picture (Wang et al., 2021, section 5.1, Table 7).

For every picture, the attention of the pixel in the middle in one layer is the only input of a small network that is
trained to predict the class. Its accuracy on the pictures held out measures the maps.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader

from examples.images.data import Pictures, normalize
from examples.images.model import SIZES, AugmentedConv, Maps
from examples.images.train import WORKERS, build, opened
from fairseq_diverse.support.errors import UserError, exit_with
from fairseq_diverse.support.files import atomic_write, sha256_of

CHANNELS = (32, 64, 64)


class MapsClassifier(nn.Sequential):
    """Three 3x3 convolutions with batch normalization, ReLU and pooling, and a linear layer.

    The paper does not say which network it takes. (B, H, rows, columns) -> (B, classes).
    """

    def __init__(self, heads: int, classes: int) -> None:
        layers: list[nn.Module] = []
        for before, out in zip((heads, *CHANNELS), CHANNELS, strict=False):
            layers += [nn.Conv2d(before, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2)]
        layers[-1] = nn.AdaptiveAvgPool2d(1)
        super().__init__(*layers, nn.Flatten(), nn.Linear(CHANNELS[-1], classes))


def middle(weights: Tensor) -> Tensor:
    """(B, H, T, T) weights -> (B, H, side, side), those of the pixel in the middle, each map by its largest weight."""
    side = round(weights.size(-1) ** 0.5)
    row = weights[:, :, side * (side // 2) + side // 2].float()
    return (row / row.amax(-1, keepdim=True)).unflatten(-1, (side, side))


@torch.no_grad()
def maps_of(
    model: nn.Module, pictures: Pictures, layers: Sequence[int], workers: int, device: Any
) -> dict[int, Tensor]:
    """(pictures, H, side, side) float16 on the CPU, by layer."""
    from tqdm import tqdm

    found: dict[int, list[Tensor]] = {layer: [] for layer in layers}
    batches = BatchSampler([(0, number) for number in range(len(pictures))], 64, drop_last=False)
    for inputs, _ in tqdm(DataLoader(pictures, batch_sampler=batches, num_workers=workers), desc="maps", disable=None):
        maps = Maps()
        model(normalize(inputs.to(device, memory_format=torch.channels_last)), maps)
        for layer in layers:
            found[layer].append(middle(maps[layer]).half().cpu())
    return {layer: torch.cat(parts) for layer, parts in found.items()}


def accuracy(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], classes: int, seed: int, device: Any) -> float:
    """Percent of the second set, after 10 epochs of Adam (1e-3) on the first; of maps and labels."""
    torch.manual_seed(seed)
    model = MapsClassifier(train[0].size(1), classes).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(10):
        model.train()
        for places in torch.randperm(len(train[0])).split(64):
            loss = F.cross_entropy(model(train[0][places].float().to(device)), train[1][places].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        pairs = zip(test[0].split(1000), test[1].split(1000), strict=True)
        hits = sum((model(maps.float().to(device)).argmax(1).cpu() == labels).sum().item() for maps, labels in pairs)
    return 100 * hits / len(test[0])


def saved_accuracies(path: Path, made_by: str) -> dict[str, Any]:
    """By layer; none where the file is not there."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or found.pop("made_by", None) != made_by:
        which = "damaged, or of another checkpoint, --data or --seed"
        raise UserError(f"--save {path}: {which}; delete it, or give another file")
    return found


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("examples.images.classify_maps", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder that the network was trained on")
    add("--checkpoint", type=Path, required=True, help="a trained network with attention")
    add("--layers", required=True, help="layers, separated by commas; the paper has 16,17,18 of size 34")
    add("--seed", type=int, default=1, help="of the small networks (1)")
    add("--workers", type=int, default=WORKERS, help="processes that read pictures (default: %(default)s)")
    add("--save", type=Path, help="JSON of the accuracies; layers that it has are not done again")
    args = parser.parse_args(words)
    layers = [*dict.fromkeys(int(layer) if layer.isdecimal() else 0 for layer in args.layers.split(","))]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with opened(args.checkpoint) as saved:
        if saved.get("settings", {"attention": "none"})["attention"] == "none":
            raise UserError(f"--checkpoint {args.checkpoint}: a plain ResNet, or of another program: it has no maps")
        model = build(saved["settings"], len(saved["classes"])).eval().to(device)
        model.load_state_dict(saved["model"])
    known = [module.layer for module in model.modules() if isinstance(module, AugmentedConv)]
    if not set(layers) <= set(known):
        raise UserError(f"--layers {args.layers}: there is attention in layers {', '.join(map(str, known))}")
    side = SIZES[saved["settings"]["size"]].image
    sets = [Pictures(args.data, side, training=training) for training in (True, False)]
    if any(pictures.classes != saved["classes"] for pictures in sets):
        raise UserError(f"--data {args.data}: other classes than those of {args.checkpoint}")
    digests = [sha256_of(args.checkpoint), *(pictures.digest() for pictures in sets)] if args.save else []
    made_by = ", ".join([*digests, f"seed {args.seed}"])
    done = saved_accuracies(args.save, made_by) if args.save else {}
    missing = [layer for layer in layers if str(layer) not in done]
    maps = [maps_of(model, pictures, missing, args.workers, device) if missing else {} for pictures in sets]
    labels = [torch.tensor([label for _, label in pictures.files]) for pictures in sets]
    for layer in missing:
        parts = [(of[layer], given) for of, given in zip(maps, labels, strict=True)]
        done[str(layer)] = accuracy(*parts, len(saved["classes"]), args.seed, device)
        if args.save:
            with atomic_write(args.save) as file:
                json.dump(done | {"made_by": made_by}, file)
    for layer in layers:
        print(f"layer {layer}: {done[str(layer)]:.2f}% of {len(sets[1]):,} pictures")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        exit_with(str(error))
