"""Plots of a front: quality against each cost, each point with a link to its recipe."""

import io
import re
from typing import TYPE_CHECKING

from pipeline.fronts.front import TITLES, Front, Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FRONT, _BEATEN, _BARS, _BASE, _BESIDE = "#0072b2", "#c3cad3", "#9aa4b1", "#d55e00", "#009e73"


def anchor(front: Front, number: int) -> str:
    """Return the id of the place of a page that has a trial's recipe."""
    return f"{front.study}-trial-{number}"


def figure(front: Front, cost: str, size: tuple[float, float]) -> "Figure":
    """Draw quality against a cost.

    Args:
        front: what to draw.
        cost: one of its `costs`.
        size: width and height, in inches.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    drawn = Figure(figsize=size, layout="constrained")
    axes = drawn.add_subplot()
    for point in front.points:
        if cost in point.measures and front.quality in point.measures:
            _draw(axes, front, point, point.measures[cost], point.measures[front.quality])
    axes.set_xlabel(TITLES[cost])
    axes.set_ylabel(front.quality_title)
    axes.set_xscale("log")
    # Powers of ten would need mathematical text, which a page does not have, and a front spans one or two of them.
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, color="#e6e9ed")
    return drawn


def _draw(axes: "Axes", front: Front, point: Point, at: float, height: float) -> None:
    if point.kind == "base":
        axes.scatter([at], [height], marker="*", s=130, color=_BASE, zorder=4)
        _name(axes, point, (at, height), (6, -12))
    elif point.kind == "beside":
        axes.scatter([at], [height], marker="D", s=40, color=_BESIDE, zorder=3)
        _name(axes, point, (at, height), (6, -10))
    else:
        if point.interval and front.quality == "metric":
            axes.vlines(at, *point.interval, color=_BARS, linewidth=1)
        on_front = point.row is not None
        colour = _FRONT if on_front else _BEATEN
        drawn = axes.scatter([at], [height], s=46, edgecolors=colour, zorder=3 if on_front else 2)
        drawn.set_facecolor(colour if point.measured else "white")
        if point.row is not None:
            drawn.set_urls([f"#{anchor(front, point.row)}"])
            _name(axes, point, (at, height), (5, 4))


def _name(axes: "Axes", point: Point, at: tuple[float, float], offset: tuple[int, int]) -> None:
    axes.annotate(point.name, at, xytext=offset, textcoords="offset points", fontsize=9)


def inline(figure: "Figure", prefix: str, title: str) -> str:
    """Return a figure as an `<svg>` element.

    Args:
        figure: what to draw.
        prefix: goes before every id, since a page holds several figures.
        title: what the figure shows, for those who cannot see it; escaped.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.StringIO()
    FigureCanvasSVG(figure)
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    # Of shapes that are used again; a link leads to a place of the page outside the figure.
    text = re.sub(r'(<use\b[^>]*?href="#)', rf"\1{prefix}-", text)
    text = re.sub(r"url\(#", f"url(#{prefix}-", text).replace(' target="_blank"', "")
    # The page's style decides the size; the view box keeps the proportions.
    text = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", text)
    text = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{title}"', 1).strip()
