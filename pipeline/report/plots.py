"""Plots of latency: bars by variant, lines by length. Figures are plain objects, without pyplot's global state."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from pipeline.report import wording
from pipeline.report.data import Report, VariantReport
from pipeline.report.style import INK, caption, looks


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
