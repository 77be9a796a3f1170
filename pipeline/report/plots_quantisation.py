"""Plot of quantisation errors: the linears of each checkpoint that lose most, and the histograms of their inputs."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from pipeline.checkpoint.ranges import Activation
from pipeline.quantize.costs import LinearCost
from pipeline.report import wording
from pipeline.report.plots import INK, REFERENCE
from pipeline.report.record import QuantisedReport, Report
from pipeline.schemes import SCHEMES

SMALLEST_ERROR = 1e-9
"""Smaller errors are drawn here, since a logarithm has no zero."""
_COVERED = "#b9d7ee"
_ROW_HEIGHT = 0.8


def quantised(report: Report) -> Figure | None:
    """Draw errors before and after, and input distributions, one row per checkpoint; None if there is none."""
    rows = [one for one in report.quantised if one.worst]
    if not rows:
        return None
    columns = 2 if any(_has_inputs(one) for one in rows) else 1
    heights = [len(one.worst) + 1.6 for one in rows]
    figure = Figure(figsize=(10.5, 0.7 + 0.36 * sum(heights)), layout="constrained")
    grid = figure.add_gridspec(len(rows), columns, height_ratios=heights)
    first: Axes | None = None
    for number, one in enumerate(rows):
        axes = figure.add_subplot(grid[number, 0], sharex=first)
        first = first or axes
        _errors(axes, one)
        if number < len(rows) - 1:
            axes.tick_params(axis="x", labelbottom=False)
        else:
            axes.set_xlabel("squared error of the outputs, relative to them")
        if columns == 2 and _has_inputs(one):
            _inputs(figure.add_subplot(grid[number, 1]), one)
    if first is not None:
        _powers_of_ten(first)
    return figure


def _has_inputs(one: QuantisedReport) -> bool:
    return any(cost.largest_channel is not None for cost in one.worst)


def _errors(axes: Axes, one: QuantisedReport) -> None:
    marker = SCHEMES[one.scheme].mark.marker
    axes.set_xscale("log")
    for place, cost in enumerate(one.worst):
        after = max(cost.error, SMALLEST_ERROR)
        if cost.error_before is not None:
            before = max(cost.error_before, SMALLEST_ERROR)
            axes.plot([before, after], [place, place], color=REFERENCE, linewidth=1.1)
            axes.plot(before, place, marker=marker, color=INK, markersize=7, fillstyle="none", linestyle="none")
        axes.plot(after, place, marker=marker, color=INK, markersize=7, linestyle="none")
    axes.set_yticks(range(len(one.worst)), [wording.linear(cost.label) for cost in one.worst])
    axes.set_ylim(len(one.worst) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.set_title(f"{one.scheme}: worst of {one.linears} linears" + (", before training" if one.training else ""))


def _powers_of_ten(axes: Axes) -> None:
    """Let the shared axis end at whole powers of ten, with a tick at each."""
    low, high = axes.get_xlim()
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    axes.set_xlim(10.0 ** powers[0], 10.0 ** powers[-1])
    axes.xaxis.set_major_locator(FixedLocator([10.0**power for power in powers]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: wording.power(value)))


def _inputs(axes: Axes, one: QuantisedReport) -> None:
    ranges = [(place, cost.input) for place, cost in enumerate(one.worst) if cost.input is not None]
    if ranges:
        for place, read in ranges:
            _histogram(axes, place, read)
        axes.set_xlim(0, 1.62)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.set_title("Its input; shaded: the range of int8")
    else:
        _channels(axes, one.worst, SCHEMES[one.scheme].mark.hatch)
    axes.set_yticks([])
    axes.set_ylim(len(one.worst) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)


def _histogram(axes: Axes, place: int, read: Activation) -> None:
    """Draw how often values occur, logarithmically, over the width of all that occurred, and the range that is kept."""
    width = (read.highest - read.lowest) or 1.0
    begins, ends = ((min(max(edge, read.lowest), read.highest) - read.lowest) / width for edge in (read.low, read.high))
    floor = place + _ROW_HEIGHT / 2
    axes.fill_between([begins, ends], floor - _ROW_HEIGHT, floor, color=_COVERED, linewidth=0)
    heights = [math.log1p(count) for count in read.counts]
    top = max(heights, default=0.0) or 1.0
    bins = len(heights)
    edges = [number / bins for number in range(bins + 1)]
    tops = [floor - 0.94 * _ROW_HEIGHT * height / top for height in heights]
    axes.stairs(tops, edges, baseline=floor, fill=True, color=REFERENCE, linewidth=0)
    text = f"{read.low:.3g} … {read.high:.3g}\nof {read.lowest:.3g} … {read.highest:.3g}"
    axes.text(1.03, place, text.replace("-", "−"), va="center", fontsize=9, linespacing=1.0)


def _channels(axes: Axes, worst: Sequence[LinearCost], hatch: str) -> None:
    largest = [cost.largest_channel or 0.0 for cost in worst]
    axes.barh(range(len(worst)), largest, height=0.62, color=REFERENCE, hatch=hatch, edgecolor="white", linewidth=0)
    for place, value in enumerate(largest):
        axes.annotate(f"{value:.1f}×", (value, place), (4, 0), textcoords="offset points", va="center", fontsize=10)
    axes.set_xlim(0, 1.16 * max(largest) or 1)
    axes.set_title("Its largest channel over the median")
