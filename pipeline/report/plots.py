"""Plots: latency and quality drawn as SVG that stands inside the page, without pyplot's global state.

Each runtime has one colour, and each scheme its row's marker, line and hatch, in every plot.
"""

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from pipeline import backends
from pipeline.report import wording
from pipeline.report.record import Report, TargetReport, VariantReport
from pipeline.schemes import SCHEMES, Mark

INK = "#1d2430"
FAINT = "#d5dae1"
REFERENCE = "#4d4d4d"
# Source: Okabe and Ito 2008, Color Universal Design; told apart with every common kind of colour blindness.
_PALETTE = ("#0072b2", "#009e73", "#d55e00", "#cc79a7", "#e69f00", "#56b4e9")
_PLAIN = SCHEMES["fp32"].mark
"""For what has no scheme of ours."""

SETTINGS: dict[Any, Any] = {
    # Text stays text, which can be selected and searched. Layout uses the DejaVu Sans that comes with matplotlib; it is
    # wider than what a browser may put in its place, so no label outgrows its room.
    "svg.fonttype": "none",
    "svg.hashsalt": "pocketbert",
    "font.family": ["DejaVu Sans"],
    "font.size": 11,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": "#7a8494",
    "axes.labelcolor": INK,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.color": "white",
    "hatch.linewidth": 0.9,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
}


@dataclass(frozen=True)
class Look:
    """How one variant is drawn."""

    colour: str
    mark: Mark


def looks(report: Report) -> Callable[[str, str, bool], Look]:
    """Return `(runtime, scheme, is the reference) -> look` for one report.

    Runtimes of PocketBERT's own backends keep their colour in every report; others take the next ones as they appear.
    """
    runtimes = [backends.get(name).TITLE for name in backends.NAMES]
    runtimes += [one.runtime for one in report.variants if not one.reference and one.runtime not in runtimes]
    colours = {name: _PALETTE[number % len(_PALETTE)] for number, name in enumerate(dict.fromkeys(runtimes))}

    def look(runtime: str, scheme: str, reference: bool) -> Look:
        mark = SCHEMES[scheme].mark if scheme in SCHEMES else _PLAIN
        return Look(REFERENCE if reference else colours[runtime], mark)

    return look


def caption(variant: VariantReport) -> str:
    """Return a variant's name for a plot; a file that failed is named as such."""
    return f"{variant.label} (failed)" if variant.verdict == "failed" else variant.label


def bars(report: Report, threads: int) -> Figure:
    """Draw each variant's time at the longest length and over real texts."""
    variants = report.with_threads(threads)
    figure = Figure(figsize=(10.5, 1.3 + 0.42 * len(variants)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    longest = report.seq_lens[-1]
    rows = [next((row for row in one.lengths if row.seq_len == longest), None) for one in variants]
    middles = [row.wall.p50 if row else None for row in rows]
    highs = [row.wall.p90 if row else None for row in rows]
    _bars(left, report, variants, middles, highs)
    left.set_title(f"A full row of {longest} tokens: p50, line to p90")
    _bars(right, report, variants, [one.texts.mean_ms for one in variants], [None] * len(variants))
    right.set_title("Real texts as they come: mean per text")
    left.set_yticks(range(len(variants)), [caption(one) for one in variants])
    left.invert_yaxis()
    return figure


def _bars(
    axes: Axes,
    report: Report,
    variants: Sequence[VariantReport],
    values: Sequence[float | None],
    highs: Sequence[float | None],
) -> None:
    look = looks(report)
    for place, (one, value, high) in enumerate(zip(variants, values, highs, strict=True)):
        style = look(one.runtime, one.scheme, one.reference)
        if value is None:
            _beside(axes, 0, place, "too few runs")
            continue
        axes.barh(place, value, height=0.68, color=style.colour, hatch=style.mark.hatch, edgecolor="white", linewidth=0)
        if high is not None:
            axes.plot([value, high], [place, place], color=INK, linewidth=1.4, solid_capstyle="butt")
        _beside(axes, max(value, high or 0), place, f"{wording.ms(value)}")
    longest = max((high or value or 0 for value, high in zip(values, highs, strict=True)), default=0)
    axes.set_xlim(0, 1.16 * longest or 1)
    axes.set_xlabel("ms, wall clock")
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def _beside(axes: Axes, value: float, place: float, text: str) -> None:
    axes.annotate(text, (value, place), (4, 0), textcoords="offset points", va="center", fontsize=10)


def lines(report: Report) -> Figure:
    """Draw the median against the length, a panel per thread count, both axes logarithmic."""
    counts = report.threads
    figure = Figure(figsize=(10.5, 5.2), layout="constrained")
    panels = figure.subplots(1, len(counts), sharey=True, squeeze=False)[0]
    for axes, threads in zip(panels, counts, strict=True):
        _lines(axes, report, report.with_threads(threads))
        axes.set_title(wording.threads(threads))
    _plain_log(panels[0])
    panels[0].set_ylabel("ms, wall clock, p50")
    handles, labels = panels[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=3, handlelength=3.4, fontsize=10)
    return figure


def _lines(axes: Axes, report: Report, variants: Sequence[VariantReport]) -> None:
    """Draw the report's own student alone: its runtimes' colours and lines would stand for two students else."""
    look = looks(report)
    variants = [one for one in variants if one.student is None]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for one in variants:
        found = [(row.seq_len, row.wall.p50) for row in one.lengths if row.wall.p50 is not None]
        style = look(one.runtime, one.scheme, one.reference)
        axes.plot(
            [length for length, _ in found],
            [value for _, value in found],
            color=style.colour,
            linestyle=style.mark.line,
            marker=style.mark.marker,
            markersize=6.5,
            linewidth=1.9,
            label=caption(one),
        )
    axes.xaxis.set_major_locator(FixedLocator(report.seq_lens))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.set_xlabel("tokens in the row")


def _plain_log(axes: Axes) -> None:
    """Put ticks at 1, 2 and 5 times powers of ten, written as plain numbers."""
    low, high = axes.get_ylim()
    ticks = [step * 10.0**power for power in range(-6, 7) for step in (1, 2, 5)]
    axes.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylim(low, high)


SMALLEST_DISTANCE = 1e-7
"""1 - cosine below this is rounding of float32 and is drawn here."""


@dataclass(frozen=True)
class _Point:
    size_mb: float
    ms: float
    text: str
    look: Look
    failed: bool


def trade(report: Report, threads: int) -> Figure | None:
    """Draw size against mean time per text, each point with its score; None where nothing was timed."""
    scores = {target.digest: target for target in report.targets}
    scores |= {file.target.digest: file.target for near in report.beside for file in near.files}
    look = looks(report)
    points = [
        _Point(
            one.file_bytes / 1e6,
            one.texts.mean_ms,
            f"{caption(one)}: {_quality(one, scores.get(one.digest or ''), report.score)}",
            look(one.runtime, one.scheme, one.reference),
            one.verdict == "failed",
        )
        for one in report.with_threads(threads)
        if one.file_bytes is not None
    ]
    if not points:
        return None
    figure = Figure(figsize=(10.5, 5.4), layout="constrained")
    axes = figure.subplots()
    _points(axes, points)
    axes.set_xlabel("size of the file, MB")
    axes.set_ylabel(f"mean ms per real text, {wording.threads(threads)}")
    axes.set_title(
        f"Lower left is better. Beside each name: mean {wording.score_name(report.score)} to its own student in PyTorch"
    )
    return figure


def _quality(variant: VariantReport, target: TargetReport | None, kind: str) -> str:
    if variant.reference:
        return "the reference"
    measures = target.parity.measures if target else None
    return (wording.score(measures.mean_score, kind) if measures else None) or "not scored"


def _points(axes: Axes, points: Sequence[_Point]) -> None:
    right = 1.45 * max(point.size_mb for point in points)
    top = 1.12 * max(point.ms for point in points)
    axes.set_xlim(0, right)
    axes.set_ylim(0, top)
    for column in _columns(sorted(points, key=lambda point: point.size_mb), 0.2 * right):
        column.sort(key=lambda point: point.ms)
        heights = _spread([point.ms for point in column], 0.055 * top)
        edge = max(point.size_mb for point in column) + 0.025 * right
        for point, height in zip(column, heights, strict=True):
            axes.plot(
                point.size_mb,
                point.ms,
                marker=point.look.mark.marker,
                markersize=10,
                color=point.look.colour,
                fillstyle="none" if point.failed else "full",
                markeredgewidth=1.8,
                linestyle="none",
            )
            axes.plot([point.size_mb, edge], [point.ms, height], color="#9aa3b0", linewidth=0.7, zorder=1)
            axes.text(edge + 0.004 * right, height, point.text, va="center", fontsize=9.5, color=INK)


def _columns(points: list[_Point], width: float) -> list[list[_Point]]:
    """Group points, ascending in size, whose labels would stand in each other's way."""
    columns: list[list[_Point]] = []
    for point in points:
        if columns and point.size_mb - columns[-1][0].size_mb < width:
            columns[-1].append(point)
        else:
            columns.append([point])
    return columns


def _spread(values: list[float], gap: float) -> list[float]:
    """Move ascending label heights apart to at least `gap`, as little as may be and not below the axis."""
    heights: list[float] = []
    for value in values:
        heights.append(max(value, heights[-1] + gap) if heights else max(value, gap / 2))
    shift = min((sum(heights) - sum(values)) / len(values), heights[0] - gap / 2)
    return [height - max(shift, 0.0) for height in heights]


def kinds(report: Report) -> Figure | None:
    """Draw each target's mean and worst score by kind of text; None where nothing was scored."""
    targets = [target for target in report.targets if target.parity.groups]
    names = sorted({kind for target in targets for kind in target.parity.groups})
    if not names:
        return None
    figure = Figure(figsize=(10.5, 1.6 + len(names) * (0.16 + 0.08 * len(targets))), layout="constrained")
    axes = figure.subplots()
    look = looks(report)
    for number, target in enumerate(targets):
        offset = 0.8 * ((number + 0.5) / len(targets) - 0.5)
        _kind_row(axes, target, names, offset, look(target.runtime, target.scheme, False), report.score)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.grid(axis="y", visible=False)
    for place in range(len(names) - 1):
        axes.axhline(place + 0.5, color="#e7eaee", linewidth=0.8, zorder=0)
    _kind_axis(axes, report.score)
    handles = [_handle(target, look(target.runtime, target.scheme, False)) for target in targets]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=10)
    return figure


def _kind_row(axes: Axes, target: TargetReport, names: Sequence[str], offset: float, look: Look, kind: str) -> None:
    for place, name in enumerate(names):
        group = target.parity.groups.get(name)
        if group is None:
            continue
        mean, worst = (_distance(value, kind) for value in (group.mean_score, group.worst_score))
        height = place + offset
        axes.plot([mean, worst], [height, height], color=look.colour, linewidth=1.1)
        axes.plot(mean, height, marker=look.mark.marker, color=look.colour, markersize=5.5)
        axes.plot(worst, height, marker=look.mark.marker, color=look.colour, markersize=5.5, fillstyle="none")


def _distance(value: float, kind: str) -> float:
    """Return what is drawn: 1 - cosine, which has a useful logarithm, or the SQNR itself."""
    return max(1 - value, SMALLEST_DISTANCE) if kind == "cosine" else min(value, 120.0)


def _kind_axis(axes: Axes, kind: str) -> None:
    if kind == "cosine":
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        ticks = [10.0**power for power in range(-9, 2)]
        axes.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))
        axes.set_xlabel("1 − cosine to PyTorch; further left is better. Filled: mean. Hollow: worst text")
    else:
        axes.set_xlabel("SQNR in dB; further right is better. Filled: mean. Hollow: worst text")


def _power(value: float) -> str:
    """Return a power of ten as people write it."""
    power = round(math.log10(value))
    return f"{value:g}" if power > -4 else "10" + str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _handle(target: TargetReport, look: Look) -> Line2D:
    label = f"{target.runtime} {target.scheme}" + (" (failed)" if target.parity.verdict == "failed" else "")
    return Line2D([], [], color=look.colour, marker=look.mark.marker, linestyle="none", label=label)


def inline(figure: Figure, prefix: str, title: str) -> str:
    """Return a figure as an `<svg>` element.

    Args:
        figure: what to draw.
        prefix: goes before every id, since a page holds several figures.
        title: what the figure shows, for those who cannot see it.
    """
    buffer = io.StringIO()
    FigureCanvasSVG(figure)
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'href="#', f'href="#{prefix}-', text)
    text = re.sub(r"url\(#", f"url(#{prefix}-", text)
    # The page's style decides the size; the view box keeps the proportions.
    text = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", text)
    text = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{title}"', 1).strip()
