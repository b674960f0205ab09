"""Pictures: the networks of examples/images, which no program of fairseq trains (Wang et al., 2021, section 4.1)."""

import functools
import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fairseq_diverse.experiments.flags import to_arguments
from fairseq_diverse.experiments.kinds.kind import Kind, Measured, State, Summary, register_kind
from fairseq_diverse.experiments.kinds.lines import Line, Measure
from fairseq_diverse.experiments.run import DataSet, Row, Run
from fairseq_diverse.support.files import read_json
from fairseq_diverse.support.pictures import STYLES, Figure, new_figure
from fairseq_diverse.support.tables import first_number
from fairseq_diverse.support.typed import refuse_unknown

ARCH = "resnet-"  # before the size, in a row's arch
KNOWN = {
    "imagenet": "ImageNet's pictures, by hand from https://image-net.org/download.php,",
    "cifar10_small": "pictures of CIFAR-10",
}
NAMES = {"none": "ResNet", "augmented": "AA-ResNet", "evolving": "EA-AA-ResNet"}  # by --attention
SIZES = {  # of examples.images.model; the layers that have attention
    **{"34": range(8, 34), "50": range(12, 49, 3), "101": range(12, 100, 3), "152": range(12, 151, 3)},
    "tiny": range(6, 14),
}
OF_RUN = ("task", "arch", "max-update")
NUMBER, WHOLE = r"[0-9.]+(?:e-?[0-9]+)?", "[0-9]+"
FLAGS = {  # of examples.images.train that a row may have, with their values
    **{"attention": "none|augmented|evolving", "amp": "True", "lr": NUMBER, "batch": WHOLE, "workers": WHOLE},
    **{"evolving-carry": NUMBER, "evolving-conv": NUMBER, "evolving-kernel": WHOLE, "save-every": WHOLE},
}
PAPERS = (16, 17, 18)  # layers of Wang et al. (2021), Table 7


class Seen(Measured):
    """Accuracies in percent: of the held-out pictures, and of `classify_maps` by layer."""

    top1: float
    top5: float
    maps: dict[str, float] = msgspec.field(default_factory=dict)


@register_kind
class Images(Kind):
    """Rows with ``task: images``; flags are those of examples.images.train, ``arch: resnet-SIZE``."""

    name = "images"
    views = frozenset({"verdict"})
    tasks = ("images",)
    fairseq = False
    Measured = Seen
    published = ("top1", "top5", *(f"map-{layer}" for layer in PAPERS))
    opening = "accuracy on the held-out pictures after the last epoch, in percent; ±: standard deviation over seeds"
    items = "pictures"

    def own_flags(self, row: Row) -> dict[str, set[str]]:
        """``train`` has no flag of fairseq's."""
        return {}

    def find_data(self, name: str, folders: Sequence[Path]) -> DataSet | None:
        for folder in folders:
            if (folder / "train").is_dir() and any((folder / split).is_dir() for split in ("val", "test")):
                modified = tuple(path.stat().st_mtime_ns for path in sorted(folder.glob("*/*")))
                return DataSet(folder.name, folder, "", "", _digest(folder, modified))
        if name not in KNOWN:
            return None
        place = f"train/CLASS/*.jpg and val/CLASS/*.jpg of {folders[0]}"
        how = f"put {KNOWN[name]} into {place}, or give their folder as --data"
        return DataSet(name, folders[0], "", "", None, preparation=how)

    def check_data(self, row: Row, data: DataSet, first: DataSet | None) -> None:
        where = f"row {row.name}"
        refuse_unknown(row.named_in_generate, ("map-layers",), f"{where}: generate")
        if row.average:
            raise ValueError(f"{where}: average: networks for pictures leave one checkpoint, so there is no average")
        arch = str(row.train["arch"])
        if (size := arch.removeprefix(ARCH)) not in SIZES or not arch.startswith(ARCH):
            raise ValueError(f"{where}: arch: {arch}; known: {', '.join(f'{ARCH}{size}' for size in SIZES)}")
        if layers := row.generate.get("map-layers"):
            if not re.fullmatch("[0-9]+(,[0-9]+)*", str(layers)):
                raise ValueError(f"{where}: map-layers: {layers}: numbers of layers expected, joined by commas")
            if row.train.get("attention") == "none":
                raise ValueError(f"{where}: map-layers: without attention there are no maps; set map-layers: null")
            numbers = SIZES[size]
            if unknown := [layer for layer in str(layers).split(",") if int(layer) not in numbers]:
                known = f"{numbers[0]} to {numbers[-1]}" + ", every third" * (numbers.step == 3)
                raise ValueError(f"{where}: map-layers: {','.join(unknown)}: {arch} has attention in layers {known}")
        flags = {flag: value for flag, value in row.train.items() if flag not in OF_RUN}
        if "attention" not in flags:
            raise ValueError(f"{where}: attention: {FLAGS['attention'].replace('|', ' or ')} expected")
        refuse_unknown([*flags, *row.off], FLAGS, where)
        for flag, value in flags.items():
            if not re.fullmatch(FLAGS[flag], str(value)):
                named = {NUMBER: "a number", WHOLE: "a whole number"}
                expected = named.get(FLAGS[flag]) or FLAGS[flag].replace("|", " or ")
                raise ValueError(f"{where}: {flag}: {value}: {expected} expected")

    def steps(self, run: Run, state: State) -> dict[str, list[str]]:
        row, seed = run.row, str(run.seed)
        settings = {"max-update": str(row.max_update), "data": str(run.data.path), "out": str(run.checkpoints)}
        settings |= {"size": str(row.train["arch"]).removeprefix(ARCH), "seed": seed}
        flags = settings | {flag: value for flag, value in row.train.items() if flag in FLAGS}
        steps = {"train": ["-m", "examples.images.run", *to_arguments(flags)]}
        if layers := run.row.generate.get("map-layers"):
            files = ["--checkpoint", str(run.checkpoint), "--data", str(run.data.path)]
            more = ["--layers", str(layers), "--seed", seed, "--save", str(run.directory / "maps.json")]
            more += to_arguments({flag: value for flag, value in run.row.train.items() if flag == "workers"})
            steps["maps"] = ["-m", "examples.images.classify_maps", *files, *more]
        return steps

    def settings(self, row: Row) -> dict[str, Any]:
        return super().settings(row) | {"generate": row.generate}

    def summarize(self, run: Run, state: State) -> Summary:
        last = (read_json(run.directory / "images.json") or {})["epochs"][-1]
        maps = read_json(run.directory / "maps.json") or {}
        maps.pop("made_by", None)
        return {key: last[key] for key in ("top1", "top5")} | {"maps": maps}

    def outcome(self, row: Row, summary: Summary) -> str:
        maps = (f", maps of layer {layer} {figure:.2f}" for layer, figure in summary["maps"].items())
        return f"top-1 {summary['top1']:.2f}, top-5 {summary['top5']:.2f}{''.join(maps)}"

    def loss(self, summary: Summary) -> float | None:
        return -float(summary["top1"])

    def measures(self, rows: Sequence[Row]) -> Sequence[Measure]:
        def of(layer: str) -> Measure:
            figure: Callable[[Summary], float | None] = lambda run: run["maps"].get(layer)  # noqa: E731
            return Measure(f"map-{layer}", f"maps of layer {layer}", figure)

        return (
            Measure("top1", "top-1", lambda run: run["top1"], decides=True),
            Measure("top5", "top-5", lambda run: run["top5"], compared=False),
            *map(of, dict.fromkeys(x for row in rows for x in str(row.generate.get("map-layers", "")).split(",") if x)),
        )

    def notes(self, lines: Sequence[Any]) -> list[str]:
        """Of grids, on what their points may have been chosen."""
        points = any(line.row.family != line.name for line in lines)
        return ["`report --best` chooses points of grids by the pictures shown here"] * points

    def pictures(self, lines: Sequence[Line]) -> dict[str, Figure]:
        """Accuracy against parameters, with the published figures as hollow markers (Wang et al., 2021, Fig. 1)."""
        figure = new_figure(5, 3.6)
        axis = figure.subplots()
        for number, kind in enumerate(dict.fromkeys(str(line.row.train.get("attention")) for line in lines)):
            color, marker = STYLES[number % len(STYLES)]
            rows = [line for line in lines if str(line.row.train.get("attention")) == kind]
            done = [(line.facts["parameters"] / 1e6, line.scores["top1"].mean) for line in rows if line.seeds]
            of_paper = [line.row.comparable for line in rows]
            shown = [(str(figures.get("parameters", "")), figures.get("top1")) for figures in of_paper]
            published = [(total / 1e6, top) for count, top in shown if top and (total := first_number(count))]
            name = NAMES.get(kind, kind)
            for points, label, fill in ((done, name, "full"), (published, f"{name}, published", "none")):
                if points:
                    x, y = zip(*points, strict=True)
                    axis.plot(x, y, color=color, marker=marker, linestyle="none", label=label, fillstyle=fill)
        if not axis.lines:
            return {}
        axis.set_xlabel("parameters, millions")
        axis.set_ylabel("top-1 accuracy, %")
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize="small")
        return {"Accuracy by number of parameters": figure}


@functools.cache
def _digest(folder: Path, modified: tuple[int, ...]) -> str:
    """Of the pictures in a folder, whose folders were ``modified`` at these times."""
    try:
        from examples.images.data import Pictures
    except ImportError as error:
        needed = "pictures need Pillow and a clone of the repository, not a wheel"
        raise ValueError(f"{folder}: {needed} ({error})") from None
    digests = [Pictures(folder, 32, training=training).digest() for training in (True, False)]
    return hashlib.sha256("".join(digests).encode()).hexdigest()
