"""Figures for the plotting commands."""

import io
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import atomic_write
from fairseq_diverse.support.installed import install
from fairseq_diverse.support.tables import readable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

FORMATS = (".png", ".pdf")
FORMATS_TEXT = " or ".join(FORMATS)
# Okabe and Ito's colours, for colour-blind readers; markers for print
STYLES = list(
    zip(
        ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
        ("o", "s", "^", "D", "v", "P", "X"),
        strict=True,
    )
)
SENTENCES = ":"  # line of a bar that is over test sentences, not over seeds
# the first installed one draws the characters that matplotlib's default font lacks
EAST_ASIAN_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Zen Hei"),
    *("PingFang SC", "Hiragino Sans GB", "Microsoft YaHei", "SimHei"),
)


def check_name(out: Path) -> None:
    """Check that the name has an ending from ``FORMATS``.

    Raises:
        UserError: it does not; names --out.
    """
    if out.suffix not in FORMATS:
        raise UserError(f"--out {out}: the name must end in {FORMATS_TEXT}")


def new_figure(width: float, height: float, dpi: float = 150) -> "Figure":
    """An empty figure, in inches.

    Raises:
        UserError: matplotlib is not installed.
    """
    try:
        from matplotlib import font_manager, rcParams
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(f"plots need matplotlib; install it: {install('plots')}") from error
    logging.getLogger(font_manager.__name__).setLevel(logging.ERROR)  # a font without a normal weight is fine
    installed = {font.name for font in font_manager.fontManager.ttflist}
    rcParams["font.family"] = ["sans-serif", *[name for name in EAST_ASIAN_FONTS if name in installed][:1]]
    rcParams["text.parse_math"] = False  # $ is a dollar sign
    return Figure((width, height), dpi=dpi, layout="constrained")


def legend_above(figure: "Figure") -> None:
    """One legend above all panels, with the labels of the first."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    fitting = int(figure.get_figwidth() / (0.6 + 0.09 * max(map(len, labels), default=0)))  # inches a name
    columns = max(1, min(4, len(labels), fitting))
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False)


def save_figure(figure: "Figure", out: Path) -> None:
    """Write it atomically, in the format of the name's ending; warn about characters that no font has."""
    with atomic_write(out, "wb") as file:
        _draw(figure, file, out.suffix[1:], str(out))


def as_svg(figure: "Figure") -> bytes:
    """The picture, without the date; warns as `save_figure`."""
    buffer = io.BytesIO()
    _draw(figure, buffer, "svg", "picture", metadata={"Date": None})
    return buffer.getvalue()


def set_names(place: Any, names: Sequence[str], **style: Any) -> None:
    """Name the ticks 0, 1, ... of an axis."""
    place.set_ticks(range(len(names)), list(map(readable, names)), **style)


def _draw(figure: "Figure", file: IO[bytes], form: str, name: str, **options: Any) -> None:
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_text("\n".join(map(readable, text.get_text().split("\n"))))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(file, format=form, **options)
    if any("missing from font" in str(warning.message) for warning in caught):
        from matplotlib import get_cachedir

        logger.warning(
            f"{name}: characters that no font has are drawn as boxes; for Chinese, Japanese and Korean install one of "
            f"{', '.join(EAST_ASIAN_FONTS)} (for example apt install fonts-noto-cjk) and delete {get_cachedir()}"
        )
