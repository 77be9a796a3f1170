"""Plots of quality: against size and latency, and by kind of text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from pipeline.report import tables_files, wording
from pipeline.report.headline import mean_ms
from pipeline.report.plots import INK, WIDTH, PlotStyle, caption, looks
from pipeline.report.record import Report, TargetReport, VariantReport

SMALLEST_DISTANCE = 1e-7
"""Least 1 - cosine that is drawn; smaller values are rounding of float32."""
_LARGEST_DB = 120.0


@dataclass(frozen=True)
class _Point:
    size_mb: float
    ms: float
    label: str
    look: PlotStyle
    failed: bool
    kept: bool
    """Whether the point may lie on the Pareto front: a file that passed, or the reference."""


def trade(report: Report, threads: int) -> tuple[Figure, bool] | None:
    """Draw size against mean time per text, each point with its number in the legend, which has its score.

    Returns:
        The figure, and whether it has a front, which takes two points; None if nothing was timed.
    """
    scores = {target.digest: target for _, target in report.files}
    look, clock = looks(report), report.best.clock if report.best else "wall"
    points = [
        _Point(
            one.file_bytes / 1e6,
            mean_ms(one, clock),
            f"{caption(one)}: {_quality(one, scores.get(one.digest or ''), report.score)}",
            look(one.runtime, one.scheme, one.reference, one.student),
            one.verdict == "failed",
            one.reference or one.verdict == "passed",
        )
        for one in report.with_threads(threads)
        if one.file_bytes is not None
    ]
    if not points:
        return None
    figure = Figure(figsize=(WIDTH, 3.2 + 0.21 * len(points)), layout="constrained")
    axes = figure.subplots()
    right, top = 1.12 * max(point.size_mb for point in points), 1.12 * max(point.ms for point in points)
    axes.set_xlim(0, right)
    axes.set_ylim(0, top)
    handles = [_point(axes, points, place, right, top) for place in range(len(points))]
    _number(axes, points, right, top)
    front = _front(axes, [point for point in points if point.kept])
    axes.set_xlabel("size of the file, MB")
    axes.set_ylabel(f"ms per text{', processor time' if clock == 'cpu' else ''}")
    figure.legend(handles=handles, loc="outside lower left", fontsize=10)
    return figure, front


def _quality(variant: VariantReport, target: TargetReport | None, kind: str) -> str:
    if variant.reference:
        return "the reference"
    measures = target.parity.measures if target else None
    return (wording.score(measures.mean_score, kind) if measures else None) or "not scored"


def _point(axes: Axes, points: Sequence[_Point], place: int, right: float, top: float) -> Line2D:
    """Draw a point, larger than those that lie on it later, and return the legend's entry."""
    point = points[place]
    covered = sum(
        abs(point.size_mb - other.size_mb) < 0.05 * right and abs(point.ms - other.ms) < 0.05 * top
        for other in points[place + 1 :]
    )
    shown: dict[str, Any] = {
        "color": point.look.colour, "marker": point.look.mark.marker, "linestyle": "none",
        "fillstyle": "none" if point.failed else "full",
    }  # fmt: skip
    axes.plot(point.size_mb, point.ms, zorder=3 + place, markersize=8 + 4 * covered, **shown)
    return Line2D([], [], label=f"{place + 1}  {point.label}", markersize=8, **shown)


def _number(axes: Axes, points: Sequence[_Point], right: float, top: float) -> None:
    """Write each point's number beside it; numbers of points that lie together stand above each other."""
    for column in _columns(points, 0.06 * right):
        ordered = sorted(column, key=lambda place: points[place].ms)
        heights = _spread([points[place].ms for place in ordered], 0.075 * top)
        edge = max(points[place].size_mb for place in ordered) + 0.035 * right
        for place, height in zip(ordered, heights, strict=True):
            axes.text(edge, height, f"{place + 1}", va="center", fontsize=10, color=INK)


def _front(axes: Axes, points: Sequence[_Point]) -> bool:
    """Draw the Pareto front: every other point is no smaller and no faster than some point on it."""
    best, edge = math.inf, list[tuple[float, float]]()
    for point in sorted(points, key=lambda point: (point.size_mb, point.ms)):
        if point.ms < best:
            best = point.ms
            edge.append((point.size_mb, point.ms))
    if len(edge) > 1:
        axes.plot(*zip(*edge, strict=True), color=INK, linestyle=(0, (4, 3)), linewidth=1.0, zorder=2)
    return len(edge) > 1


def _columns(points: Sequence[_Point], width: float) -> list[list[int]]:
    """Group the places of points by size, so that markers and numbers of different groups do not overlap."""
    columns: list[list[int]] = []
    for place in sorted(range(len(points)), key=lambda place: points[place].size_mb):
        if columns and points[place].size_mb - points[columns[-1][0]].size_mb < width:
            columns[-1].append(place)
        else:
            columns.append([place])
    return columns


def _spread(values: list[float], gap: float) -> list[float]:
    """Return label heights, ascending, at least `gap` apart, near the given ones and above the axis."""
    heights: list[float] = []
    for value in values:
        heights.append(max(value, heights[-1] + gap) if heights else max(value, gap / 2))
    shift = min((sum(heights) - sum(values)) / len(values), heights[0] - gap / 2)
    return [height - max(shift, 0.0) for height in heights]


def kinds(report: Report) -> Figure | None:
    """Draw each target's mean and worst score by kind of text; None if nothing was scored."""
    files = [(student, target) for student, target in report.files if target.parity.groups]
    names = sorted({kind for _, target in files for kind in target.parity.groups})
    if not names:
        return None
    figure = Figure(
        figsize=(WIDTH, 0.7 + 0.21 * len(files) + len(names) * (0.08 + 0.042 * len(files))), layout="constrained"
    )
    axes = figure.subplots()
    look = looks(report)
    for number, (student, target) in enumerate(files):
        offset = 0.8 * ((number + 0.5) / len(files) - 0.5)
        style = look(target.runtime, target.scheme, False, student)
        _kind_row(axes, target, names, offset, style, report.score)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.grid(axis="y", visible=False)
    for place in range(len(names) - 1):
        axes.axhline(place + 0.5, color="#e7eaee", linewidth=0.8, zorder=0)
    _kind_axis(axes, report.score)
    handles = [
        _handle(student, target, look(target.runtime, target.scheme, False, student)) for student, target in files
    ]
    figure.legend(handles=handles, loc="outside lower left", fontsize=10)
    return figure


def _kind_row(
    axes: Axes, target: TargetReport, names: Sequence[str], offset: float, look: PlotStyle, kind: str
) -> None:
    for place, name in enumerate(names):
        group = target.parity.groups.get(name)
        if group is None:
            continue
        mean, worst = (_distance(value, kind) for value in (group.mean_score, group.worst_score))
        height = place + offset
        axes.plot([mean, worst], [height, height], color=look.colour, linewidth=1.1)
        axes.plot(mean, height, marker=look.mark.marker, color=look.colour, markersize=5.5)
        axes.plot(worst, height, marker=look.mark.marker, color=look.colour, markersize=5.5, fillstyle="none")


def clipped(value: float, kind: str) -> bool:
    """Return whether a score is drawn at the edge: nearer to 1, or higher, than anything that matters."""
    return 1 - value < SMALLEST_DISTANCE if kind == "cosine" else value > _LARGEST_DB


def _distance(value: float, kind: str) -> float:
    """Return the value to plot: 1 - cosine, for a logarithmic axis, or the SQNR itself."""
    return max(1 - value, SMALLEST_DISTANCE) if kind == "cosine" else min(value, _LARGEST_DB)


def _kind_axis(axes: Axes, kind: str) -> None:
    if kind == "cosine":
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        ticks = [10.0**power for power in range(-9, 2)]
        axes.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: wording.power(value)))
        axes.set_xlabel("1 − cosine to PyTorch")
    else:
        axes.set_xlabel("SQNR in dB")


def _handle(student: str | None, target: TargetReport, look: PlotStyle) -> Line2D:
    label = tables_files.label(student, target) + (" (failed)" if target.parity.verdict == "failed" else "")
    return Line2D([], [], color=look.colour, marker=look.mark.marker, linestyle="none", label=label)
