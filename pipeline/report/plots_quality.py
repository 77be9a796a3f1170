"""Plots of quality: against size and latency, and by kind of text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from pipeline.report import wording
from pipeline.report.plots import INK, PlotStyle, caption, looks
from pipeline.report.record import Report, TargetReport, VariantReport

SMALLEST_DISTANCE = 1e-7
"""Least 1 - cosine that is drawn; smaller values are rounding of float32."""


@dataclass(frozen=True)
class _Point:
    size_mb: float
    ms: float
    text: str
    look: PlotStyle
    failed: bool
    kept: bool
    """Whether the point may lie on the Pareto front: a file that passed, or the reference."""


def trade(report: Report, threads: int) -> Figure | None:
    """Draw size against mean time per text, each point with its score; None if nothing was timed."""
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
            one.reference or one.verdict == "passed",
        )
        for one in report.with_threads(threads)
        if one.file_bytes is not None
    ]
    if not points:
        return None
    figure = Figure(figsize=(10.5, 5.4), layout="constrained")
    axes = figure.subplots()
    _points(axes, points)
    _front(axes, [point for point in points if point.kept])
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


def _front(axes: Axes, points: Sequence[_Point]) -> None:
    """Draw the Pareto front: every other point is no smaller and no faster than some point on it."""
    best, edge = math.inf, list[tuple[float, float]]()
    for point in sorted(points, key=lambda point: (point.size_mb, point.ms)):
        if point.ms < best:
            best = point.ms
            edge.append((point.size_mb, point.ms))
    if len(edge) > 1:
        axes.plot(*zip(*edge, strict=True), color=INK, linestyle=(0, (4, 3)), linewidth=1.0, zorder=2)


def _columns(points: list[_Point], width: float) -> list[list[_Point]]:
    """Group points, which ascend in size, so that labels of different groups do not overlap."""
    columns: list[list[_Point]] = []
    for point in points:
        if columns and point.size_mb - columns[-1][0].size_mb < width:
            columns[-1].append(point)
        else:
            columns.append([point])
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


def _distance(value: float, kind: str) -> float:
    """Return the value to plot: 1 - cosine, for a logarithmic axis, or the SQNR itself, at most 120 dB."""
    return max(1 - value, SMALLEST_DISTANCE) if kind == "cosine" else min(value, 120.0)


def _kind_axis(axes: Axes, kind: str) -> None:
    if kind == "cosine":
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        ticks = [10.0**power for power in range(-9, 2)]
        axes.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: wording.power(value)))
        axes.set_xlabel("1 − cosine to PyTorch; further left is better. Filled: mean. Hollow: worst text")
    else:
        axes.set_xlabel("SQNR in dB; further right is better. Filled: mean. Hollow: worst text")


def _handle(target: TargetReport, look: PlotStyle) -> Line2D:
    label = f"{target.runtime} {target.scheme}" + (" (failed)" if target.parity.verdict == "failed" else "")
    return Line2D([], [], color=look.colour, marker=look.mark.marker, linestyle="none", label=label)
