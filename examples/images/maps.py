"""Draw the attention of the pixel in the middle in three layers, as Figure 4 of Wang et al. (2021)."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw

from examples.images.data import Pictures, normalize
from examples.images.model import SIZES, AugmentedConv, Maps
from examples.images.train import build, opened
from fairseq_diverse.support.errors import UserError, exit_with
from fairseq_diverse.support.files import atomic_write

CELL, STEP, TOP = 112, 120, 24  # pixels


@torch.no_grad()
def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("examples.images.maps", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder with val/CLASS/*.jpg (or test/)")
    add("--checkpoint", type=Path, nargs="+", required=True, help="a column for each layer of each")
    add("--layers", type=int, nargs="+", help="by default the first three of the third stage: 16 17 18 of size 34")
    add("--pictures", type=int, default=3, help="how many, one a row, evenly spaced in the folder (3)")
    add("--out", type=Path, required=True, help="a .png; it shows of each layer the head with the largest weights")
    args = parser.parse_args(words)
    if args.pictures < 1:
        raise UserError(f"--pictures {args.pictures}: must be above 0")
    columns: list[tuple[str, torch.Tensor]] = []  # title, pixels (pictures, rows, columns, 3)
    for path in args.checkpoint:
        maps = Maps()
        with opened(path) as saved:
            if saved.get("settings", {"attention": "none"})["attention"] == "none":
                raise UserError(f"--checkpoint {path}: a plain ResNet, or of another program: no attention to draw")
            model = build(saved["settings"], len(saved["classes"])).eval()
            model.load_state_dict(saved["model"])
        found = Pictures(args.data, SIZES[saved["settings"]["size"]].image)
        chosen = torch.stack([found[0, len(found) * i // args.pictures][0] for i in range(args.pictures)])
        model(normalize(chosen), maps)
        for layer in args.layers or [m.layer for m in model.stages[2].modules() if isinstance(m, AugmentedConv)][:3]:
            if layer not in maps:
                raise UserError(f"--layers {layer}: {path} has attention in layers {', '.join(map(str, maps))}")
            side = round(maps[layer].size(-1) ** 0.5)
            middle = maps[layer][:, :, side * (side // 2) + side // 2]  # (B, H, T)
            best = middle[:, middle.amax(-1).mean(0).argmax()]  # (B, T)
            grey = (255 * best / best.amax(-1, keepdim=True)).byte().view(-1, side, side, 1).expand(-1, -1, -1, 3)
            columns = columns or [("picture", chosen.permute(0, 2, 3, 1))]
            columns.append((f"{saved['settings']['attention']} {layer}", grey))
    sheet = Image.new("RGB", (STEP * len(columns), TOP + STEP * args.pictures), "white")
    for column, (title, drawn) in enumerate(columns):
        ImageDraw.Draw(sheet).text((column * STEP, 4), title, fill="black")
        for row, pixels in enumerate(drawn):
            picture = Image.frombytes("RGB", pixels.shape[:2], bytes(pixels.flatten().tolist()))
            sheet.paste(picture.resize((CELL, CELL), Image.Resampling.BICUBIC), (column * STEP, TOP + row * STEP))
    with atomic_write(args.out, "wb") as file:
        sheet.save(file, "PNG")
    print(args.out)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        exit_with(str(error))
