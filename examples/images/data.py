"""Pictures in folders: DIR/train/CLASS/NAME.jpg and DIR/val/CLASS/NAME.jpg, as of ImageNet."""

import hashlib
import math
import random
from pathlib import Path

import torch
from PIL import Image, ImageOps
from torch.utils.data import BatchSampler, Dataset

from fairseq_diverse.attention import UserError

ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".webp"}
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's colours, in [0, 1]


class Pictures(Dataset):
    """The pictures of ``data/train`` or those held out, ``data/val`` or ``data/test``; one folder a class, in the order
    of the names.

    Args:
        side: rows and columns of a result.
        seed: of the random crops and mirrors of training, which depend on nothing else but epoch and picture; None for
            the pictures held out and the crop in the middle.
        training: the pictures of ``data/train``, even without a seed.

    Raises:
        UserError: no classes, a class without pictures; when read: a damaged picture.
    """

    def __init__(self, data: Path, side: int, seed: int | None = None, training: bool = False) -> None:
        self.side, self.seed = side, seed
        held_out = "test" if (data / "test").is_dir() and not (data / "val").is_dir() else "val"
        folder = data / ("train" if training or seed is not None else held_out)
        self.classes = sorted(path.name for path in folder.glob("*") if path.is_dir())
        if len(self.classes) < 2:
            raise UserError(f"--data: {folder}/CLASS: {len(self.classes)} such folders; at least 2 are needed")
        self.files: list[tuple[Path, int]] = []
        for label, name in enumerate(self.classes):
            found = sorted(path for path in (folder / name).iterdir() if path.suffix.lower() in ENDINGS)
            if not found:
                raise UserError(f"--data: {folder / name}: no pictures ({', '.join(sorted(ENDINGS))})")
            self.files += [(path, label) for path in found]

    def __len__(self) -> int:
        return len(self.files)

    def digest(self) -> str:
        """Of all classes, names and sizes, and of a thousand pictures."""
        digest, every = hashlib.sha256(), max(1, len(self.files) // 1000)
        for number, (path, _) in enumerate(self.files):
            digest.update(f"{path.parent.name}/{path.name} {path.stat().st_size}\n".encode(errors="surrogateescape"))
            digest.update(b"" if number % every else path.read_bytes())
        return digest.hexdigest()

    def __getitem__(self, place: tuple[int, int]) -> tuple[torch.Tensor, int]:
        """(epoch, number) -> (3, side, side) uint8 and the class."""
        path, label = self.files[place[1]]
        try:
            with Image.open(path) as file:
                picture = file.convert("RGB")
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise UserError(f"--data: {path}: cannot be read as a picture ({error})") from None
        if self.seed is None:
            picture = centre_crop(picture, self.side)
        else:
            picture = random_crop(picture, self.side, random.Random(f"{self.seed} {place}"))
        pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
        return pixels.view(self.side, self.side, 3).permute(2, 0, 1), label


def centre_crop(picture: Image.Image, side: int) -> Image.Image:
    """The square in the middle, 224/256 of the shorter side; of small pictures (32 pixels) the whole side."""
    crop = min(picture.size) * (224 / 256 if side > 32 else 1)
    left, top = ((length - crop) / 2 for length in picture.size)
    return picture.resize((side, side), Image.Resampling.BILINEAR, (left, top, left + crop, top + crop))


def random_crop(picture: Image.Image, side: int, draws: random.Random) -> Image.Image:
    """A rectangle of 8 to 100% of the area with sides from 3/4 to 4/3, as a square (Szegedy et al., 2015); of small
    pictures a shift by up to 4 pixels (He et al., 2016). Half of them are mirrored."""
    picture = ImageOps.mirror(picture) if draws.random() < 0.5 else picture
    if side <= 32:
        x, y = draws.randrange(9), draws.randrange(9)
        return ImageOps.expand(centre_crop(picture, side), 4).crop((x, y, x + side, y + side))
    for _ in range(10):
        area, ratio = picture.width * picture.height * draws.uniform(0.08, 1), (4 / 3) ** draws.uniform(-1, 1)
        width, height = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if width <= picture.width and height <= picture.height:
            left, top = draws.uniform(0, picture.width - width), draws.uniform(0, picture.height - height)
            return picture.resize((side, side), Image.Resampling.BILINEAR, (left, top, left + width, top + height))
    return centre_crop(picture, side)


def training_batches(count: int, epoch: int, seed: int, batch: int, rank: int, world: int, first: int) -> list:
    """The batches of process ``rank`` of ``world`` from update ``first`` of an epoch on: (epoch, number) of pictures.

    The pictures that remain when every process has full batches are left out of this epoch.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1_000_003 * seed + epoch)).tolist()
    batches = list(BatchSampler([(epoch, number) for number in order], batch, drop_last=True))
    return batches[first * world + rank : count // (batch * world) * world : world]


def normalize(pictures: torch.Tensor) -> torch.Tensor:
    """uint8 (B, 3, rows, columns) -> float32, less the mean colour, by its deviation."""
    mean, deviation = (torch.tensor(x, device=pictures.device).view(3, 1, 1) for x in (MEAN, DEVIATION))
    return (pictures.float() / 255 - mean) / deviation
