"""Figures for the plotting commands."""

import argparse
import io
import logging
import shutil
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import atomic_write
from fairseq_diverse.support.installed import install
from fairseq_diverse.support.tables import latex, readable

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:  # a second of matplotlib, which only drawing needs
    Figure = Any

logger = logging.getLogger(__name__)

FORMATS = (".png", ".pdf", ".svg", ".pgf")
FORMATS_TEXT = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
LOWER = 0.7  # times the height of a picture, on paper
WIDTHS = {"column": 3.03, "text": 6.30}  # inches, as ACL's style has them
# What is set unless the user's matplotlibrc sets it: TrueType fonts, since venues refuse Type 3; LaTeX's own fonts
SETTINGS = {"pdf.fonttype": 42, "ps.fonttype": 42, "pgf.rcfonts": False}
ON_PAPER = {
    **{"font.size": 9.0, "figure.dpi": 300.0, "lines.linewidth": 1.0, "lines.markersize": 4.0, "axes.linewidth": 0.6},
    **{f"{name}.labelsize": "small" for name in ("axes", "xtick", "ytick")},
    **{"axes.titlesize": "small", "legend.fontsize": "small"},
}
# Okabe and Ito's colours, for colour-blind readers; markers for print
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = [(COLOURS[n % 7], "os^DvPX"[(n + n // 7) % 7]) for n in range(49)]  # no pair twice
TEX = ("lualatex", "xelatex", "pdflatex")  # for PGF
SENTENCES = ":"  # line of a bar that is over test sentences, not over seeds
# the first installed one draws the characters that matplotlib's default font lacks
EAST_ASIAN_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Zen Hei"),
    *("PingFang SC", "Hiragino Sans GB", "Microsoft YaHei", "SimHei"),
)


class _Paper(NamedTuple):
    """Where pictures are for: the width in inches (None: as each picture needs), and whether they have titles."""

    width: float | None = None
    titles: bool = True


NO_PAPER = _Paper()
PAPER = ContextVar("PAPER", default=NO_PAPER)


def add_picture_arguments(parser: argparse.ArgumentParser, out: str, required: bool = False) -> None:
    """--out, and what pictures in a paper need."""
    add = parser.add_argument
    add("--out", type=Path, required=required, metavar="FILE", help=f"{out}, {FORMATS_TEXT}")
    inches = " or ".join(f"{name} ({width:.2f} inches)" for name, width in WIDTHS.items())
    add("--width", choices=WIDTHS, help=f"as wide as a {inches} of a paper, with letters of 5 to 9 points")
    add("--no-title", action="store_true", help="a picture without its title, for a paper that has captions")


@contextmanager
def for_paper(args: argparse.Namespace) -> Iterator[None]:
    """Draw pictures as the arguments of `add_picture_arguments` say, if the command has them. Raises UserError: the
    name of --out does not have an ending from ``FORMATS``; --width or --no-title without it."""
    if args.out is None and (args.width or args.no_title):
        raise UserError(f"--{'width' if args.width else 'no-title'}: needs --out FILE")
    if args.out is not None and args.out.suffix not in FORMATS:
        raise UserError(f"--out {args.out}: the name must end in {FORMATS_TEXT}")
    token = PAPER.set(_Paper(WIDTHS.get(args.width), not args.no_title))
    try:
        yield
    finally:
        PAPER.reset(token)


def _plotting() -> Any:
    """Matplotlib with our settings where the user's matplotlibrc has its defaults."""
    try:
        import matplotlib
        import matplotlib.figure
        from matplotlib import font_manager
    except ImportError as error:
        raise UserError(f"plots need matplotlib; install it: {install('plots')}") from error
    logging.getLogger(font_manager.__name__).setLevel(logging.ERROR)  # a font without a normal weight is fine
    installed = {font.name for font in font_manager.fontManager.ttflist}
    users: dict[Any, Any] = dict(matplotlib.rcParamsOrig)
    defaults: dict[Any, Any] = dict(matplotlib.rcParamsDefault)
    ours = {**SETTINGS, **(ON_PAPER if PAPER.get().width else {key: defaults[key] for key in ON_PAPER})}
    settings: dict[Any, Any] = {key: x if users[key] == defaults[key] else users[key] for key, x in ours.items()}
    fonts = [*users["font.family"], *[name for name in EAST_ASIAN_FONTS if name in installed][:1]]
    settings |= {"font.family": fonts, "text.parse_math": False}  # $ is a dollar sign
    matplotlib.rcParams.update(settings)
    return matplotlib


def new_figure(width: float, height: float, dpi: float | None = None) -> Figure:
    """An empty figure, in inches; on paper of its width. Raises UserError: matplotlib is not installed."""
    matplotlib, paper = _plotting(), PAPER.get().width
    size = (paper, height * LOWER) if paper else (width, height)
    return matplotlib.figure.Figure(size, dpi=None if paper else dpi or 150, layout="constrained")


def panels(count: int, width: float, height: float, **shared: Any) -> tuple[Figure, list[Any]]:
    """A figure with panels in a row; on paper below each other where a panel would be narrower than 2 inches."""
    rows = -(-count // fitting(count, 2.0))
    columns = -(-count // rows)
    figure = new_figure(width, height * rows)
    grid = figure.subplots(rows, columns, **shared, squeeze=False)
    for number in range(count, rows * columns):
        grid.flat[number].remove()
        grid[rows - 2, number % columns].tick_params(labelbottom=True)
    return figure, list(grid.flat[:count])


def fitting(count: int, inches: float) -> int:
    """How many of ``count`` things of so many inches are side by side on paper: all where it has no width."""
    width = PAPER.get().width
    return max(1, min(count, int(width / (inches * _scale())))) if width else count


def _scale() -> float:
    """The size of letters, relative to matplotlib's 10 points."""
    from matplotlib import rcParams

    return float(rcParams["font.size"]) / 10


def set_title(figure: Figure, text: str) -> None:
    """Above all panels, in lines that fit."""
    if PAPER.get().titles:
        figure.suptitle(in_lines(text, 0.8 * figure.get_figwidth()), fontsize="medium")


def set_note(figure: Figure, text: str) -> None:
    """Below all panels, in lines that fit."""
    figure.supxlabel(in_lines(text, figure.get_figwidth()), fontsize="small")


def in_lines(text: str, inches: float) -> str:
    """A text in small letters, in lines of so many inches."""
    return "\n".join(textwrap.fill(line, int(inches / (0.068 * _scale()))) for line in text.split("\n"))


def legend_above(figure: Figure) -> None:
    """One legend above all panels, with the labels of the first."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    inches = (0.6 + 0.09 * max(map(len, labels), default=0)) * _scale()  # a name
    columns = max(1, min(4, len(labels), int(figure.get_figwidth() / inches)))
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False)


def save_figure(figure: Figure, out: Path) -> None:
    """Write it atomically, in the format of the name's ending; warn about characters that no font has. Raises
    UserError: PGF without LaTeX."""
    with atomic_write(out, "wb") as file:
        _draw(figure, file, out.suffix[1:], str(out))


def as_svg(figure: Figure) -> bytes:
    """The picture, without the date; warns as `save_figure`."""
    buffer = io.BytesIO()
    _draw(figure, buffer, "svg", "picture", metadata={"Date": None})
    return buffer.getvalue()


def set_names(place: Any, names: Sequence[str], **style: Any) -> None:
    """Name the ticks 0, 1, ... of an axis."""
    place.set_ticks(range(len(names)), list(map(readable, names)), **style)


def _draw(figure: Figure, file: IO[bytes], form: str, name: str, **options: Any) -> None:
    from matplotlib import get_cachedir, rcParams
    from matplotlib.text import Text
    from matplotlib.ticker import FixedLocator

    shown = readable
    if form == "pgf":
        systems = [name for name in (rcParams["pgf.texsystem"], *TEX) if shutil.which(name)]
        if not systems:
            raise UserError(f"--out {name}: letters are measured by LaTeX, which is not installed; or write a .pdf")
        rcParams["pgf.texsystem"] = systems[0]
    if form == "pgf" or rcParams["text.usetex"]:
        shown = latex
        for side in (side for axes in figure.axes for side in (axes.xaxis, axes.yaxis)):
            if isinstance(side.get_major_locator(), FixedLocator):  # names
                side.set_ticklabels([latex(label.get_text()) for label in side.get_ticklabels()])
    for text in figure.findobj(Text):
        text.set_text("\n".join(map(shown, text.get_text().split("\n"))))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(file, format=form, **options)
    if any("missing from font" in str(warning.message) for warning in caught):
        fonts = f"{', '.join(EAST_ASIAN_FONTS)} (for example apt install fonts-noto-cjk) and delete {get_cachedir()}"
        todo = f"for Chinese, Japanese and Korean install one of {fonts}"
        logger.warning(f"{name}: characters that no font has are drawn as boxes; {todo}")
