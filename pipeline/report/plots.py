"""Plots: latency and quality drawn as SVG that stands inside the page, without pyplot's global state.

Each runtime has one colour, and each scheme its row's marker, line and hatch, in every plot.
"""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from pipeline import formats
from pipeline.report import wording
from pipeline.report.record import PhoneReport, Report, VariantReport
from pipeline.schemes import SCHEMES, PlotMark

INK = "#1d2430"
FAINT = "#d5dae1"
REFERENCE = "#4d4d4d"
# Source: Okabe and Ito 2008, Color Universal Design; told apart with every common kind of colour blindness.
_PALETTE = ("#0072b2", "#009e73", "#d55e00", "#cc79a7", "#e69f00", "#56b4e9")
_PLAIN = SCHEMES["fp32"].mark
"""Mark of variants without a scheme of ours, such as peers."""

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
class PlotStyle:
    """How one variant is drawn."""

    colour: str
    mark: PlotMark


def looks(report: Report) -> Callable[[str, str, bool], PlotStyle]:
    """Return `(runtime, scheme, is the reference) -> look` for one report.

    Runtimes of PocketBERT's own formats keep their colour in every report; others take the next ones as they appear.
    """
    runtimes = [formats.get(name).TITLE for name in formats.NAMES]
    runtimes += [one.runtime for one in report.variants if not one.reference and one.runtime not in runtimes]
    colours = {name: _PALETTE[number % len(_PALETTE)] for number, name in enumerate(dict.fromkeys(runtimes))}

    def look(runtime: str, scheme: str, reference: bool) -> PlotStyle:
        mark = SCHEMES[scheme].mark if scheme in SCHEMES else _PLAIN
        return PlotStyle(REFERENCE if reference else colours[runtime], mark)

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


def distributions(report: Report, threads: int) -> Figure | None:
    """Draw the share of runs that took no longer than a time; None for records without quantiles."""
    variants = [one for one in report.with_threads(threads) if one.student is None and one.texts.quantiles]
    if not variants:
        return None
    longest, look = report.seq_lens[-1], looks(report)
    figure = Figure(figsize=(10.5, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for one in variants:
        style = look(one.runtime, one.scheme, one.reference)
        rows = [row.quantiles for row in one.lengths if row.seq_len == longest and row.quantiles]
        for axes, quantiles in ((left, rows[0] if rows else []), (right, one.texts.quantiles)):
            shares = [100 * place / max(1, len(quantiles) - 1) for place in range(len(quantiles))]
            axes.plot(
                quantiles, shares, color=style.colour, linestyle=style.mark.line, linewidth=1.9, label=caption(one)
            )
    for axes, title in ((left, f"A full row of {longest} tokens"), (right, "Real texts as they come")):
        axes.set_title(title)
        axes.set_xscale("log")
        axes.set_xlabel("ms, wall clock")
        _plain_log_x(axes)
    left.set_ylabel("% of runs that took no longer")
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, handlelength=3.4, fontsize=10)
    return figure


def _plain_log_x(axes: Axes) -> None:
    """Put ticks at 1, 2 and 5 times powers of ten, as far apart as their numbers need."""
    low, high = axes.get_xlim()
    steps = (1, 2, 5) if high < 100 * low else (1,)
    ticks = [step * 10.0**power for power in range(-6, 7) for step in steps]
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(low, high)


def sustained(report: Report, phone: PhoneReport) -> Figure | None:
    """Draw a phone's medians over the minutes of a sustained run, and its temperature; None without such a run."""
    variants = [one for one in phone.variants if one.sustained]
    if not variants:
        return None
    look = looks(report)
    warm = any(part.temperature_c is not None for one in variants if one.sustained for part in one.sustained.parts)
    figure = Figure(figsize=(10.5, 5.6 if warm else 4.2), layout="constrained")
    panels = figure.subplots(2 if warm else 1, 1, sharex=True, squeeze=False, height_ratios=[3, 1] if warm else [1])
    above, below = panels[0][0], panels[-1][0]
    for one in variants:
        assert one.sustained
        style = look(one.runtime, one.scheme, False)
        parts = [part for part in one.sustained.parts if part.p50_ms is not None]
        minutes = [(part.begins_s + part.seconds / 2) / 60 for part in parts]
        middle = [part.p50_ms or 0.0 for part in parts]
        above.plot(minutes, middle, color=style.colour, linestyle=style.mark.line, marker=style.mark.marker,
                   markersize=4, label=caption(one))  # fmt: skip
        high = [part.p90_ms or part.p50_ms or 0.0 for part in parts]
        above.fill_between(minutes, middle, high, color=style.colour, alpha=0.15, linewidth=0)
        if warm:
            told = [part for part in one.sustained.parts if part.temperature_c is not None]
            ends = [(part.begins_s + part.seconds) / 60 for part in told]
            degrees = [part.temperature_c or 0.0 for part in told]
            below.plot(ends, degrees, color=style.colour, linestyle=style.mark.line)
    above.set_ylim(bottom=0)
    above.set_ylabel("ms, p50 to p90")
    if warm:
        below.set_ylabel("°C")
    below.set_xlabel("minutes without a pause")
    figure.legend(*above.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=10)
    return figure


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
