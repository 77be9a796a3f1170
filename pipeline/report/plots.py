"""Plots: latency drawn as SVG that stands inside the page, without pyplot's global state.

Each runtime has one colour, and each scheme its row's marker, line and hatch, in every plot.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from pipeline import formats
from pipeline.report import wording
from pipeline.report.headline import mean_ms
from pipeline.report.record import PhoneReport, Report, VariantReport
from pipeline.schemes import SCHEMES, PlotMark

WIDTH = 5.4
"""Inches, so that text of 11 points can be read on a page of 400 pixels; wider pages set two figures side by side."""
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


def looks(report: Report) -> Callable[[str, str, bool, str | None], PlotStyle]:
    """Return `(runtime, scheme, is the reference, student) -> look` for one report.

    Runtimes of PocketBERT's own formats keep their colour in every report; others take the next ones as they appear.
    Files of a student beside the report's own have it paler.
    """
    runtimes = [formats.get(name).TITLE for name in formats.NAMES]
    runtimes += [one.runtime for one in report.variants if not one.reference and one.runtime not in runtimes]
    colours = {name: _PALETTE[number % len(_PALETTE)] for number, name in enumerate(dict.fromkeys(runtimes))}
    paler = {near.recipe: 0.5 + 0.2 * number for number, near in enumerate(report.beside[:3])}

    def look(runtime: str, scheme: str, reference: bool, student: str | None) -> PlotStyle:
        mark = SCHEMES[scheme].mark if scheme in SCHEMES else _PLAIN
        colour = REFERENCE if reference else colours[runtime]
        return PlotStyle(_mixed(colour, paler.get(student, 0.9)) if student else colour, mark)

    return look


def _mixed(colour: str, white: float) -> str:
    parts = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * white):02x}" for part in parts)


def caption(variant: VariantReport) -> str:
    """Return a variant's name for a plot; a file that failed is named as such."""
    return f"{variant.label} (failed)" if variant.verdict == "failed" else variant.label


def bars(report: Report, threads: int) -> Figure:
    """Draw each variant's mean time over real texts, with its name above the bar: names are longer than a phone is."""
    variants = report.with_threads(threads)
    busy = report.best is not None and report.best.clock == "cpu"
    values = [mean_ms(one, "cpu" if busy else "wall") for one in variants]
    figure = Figure(figsize=(WIDTH, 0.7 + 0.5 * len(variants)), layout="constrained")
    axes, look = figure.subplots(), looks(report)
    for place, (one, value) in enumerate(zip(variants, values, strict=True)):
        style = look(one.runtime, one.scheme, one.reference, one.student)
        axes.barh(place, value, height=0.42, color=style.colour, hatch=style.mark.hatch, edgecolor="white", linewidth=0)
        axes.annotate(f"{wording.ms(value)}", (value, place), (4, 0), textcoords="offset points", va="center")
        axes.annotate(caption(one), (0, place - 0.24), (1, 1), textcoords="offset points", va="bottom", fontsize=10)
    axes.set_xlim(0, 1.16 * max(values) or 1)
    axes.set_ylim(len(variants) - 0.6, -0.75)
    axes.set_yticks([])
    axes.set_xlabel(f"mean ms per real text, {wording.threads(threads)}{', processor time' if busy else ''}")
    axes.grid(axis="y", visible=False)
    return figure


def sustained(report: Report, phone: PhoneReport) -> Figure | None:
    """Draw a phone's medians over the minutes of a sustained run, and its temperature; None without such a run."""
    variants = [one for one in phone.variants if one.sustained]
    if not variants:
        return None
    look = looks(report)
    warm = any(part.temperature_c is not None for one in variants if one.sustained for part in one.sustained.parts)
    figure = Figure(figsize=(WIDTH, 4.6 if warm else 3.4), layout="constrained")
    panels = figure.subplots(2 if warm else 1, 1, sharex=True, squeeze=False, height_ratios=[3, 1] if warm else [1])
    above, below = panels[0][0], panels[-1][0]
    for one in variants:
        assert one.sustained
        style = look(one.runtime, one.scheme, False, one.student)
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
    figure.legend(*above.get_legend_handles_labels(), loc="outside lower center", fontsize=10)
    return figure
