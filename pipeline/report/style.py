"""One colour per runtime and one marker, line and hatch per scheme, the same in every plot."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeline import backends
from pipeline.report.data import Report, VariantReport
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
