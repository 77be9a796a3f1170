"""Templates filled: everything that reaches the page is escaped, and nothing absent is written as a Python value."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from pipeline.report import plots, plots_quality, plots_quantisation, wording
from pipeline.report.plots import SETTINGS, inline
from pipeline.report.record import Report, VariantReport
from pipeline.schemes import SCHEMES
from pipeline.verify.emulated import Counts
from pipeline.verify.wording import quantity

TEMPLATES = Path(__file__).parent / "templates"


def html(report: Report) -> str:
    """Return the report as a self-contained HTML page."""
    template = environment(autoescape=True).get_template("report.html.j2")
    return template.render(
        report=report,
        figures=_figures(report),
        datasets=_datasets(report),
        skipped=_skipped(report),
        counted=_counted(report),
        schemes={target.scheme: target.scheme_summary for target in report.targets},
        untried=_untried(report),
    )


def markdown(report: Report) -> str:
    """Return the tables that a README can take over."""
    template = environment(autoescape=False).get_template("RESULTS.md.j2")
    run_by = list(dict.fromkeys(target.parity.evaluator for target in report.targets if target.parity.evaluator))
    return template.render(
        report=report, datasets=_datasets(report), skipped=_skipped(report), counted=_counted(report), run_by=run_by
    )


def environment(*, autoescape: bool) -> Environment:
    """Return the template environment, with the functions that format and escape values."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=not autoescape,
        finalize=_for_html if autoescape else wording.for_markdown,
    )
    words = (
        *(wording.ms, wording.mb, wording.gib, wording.millions, wording.fixed, wording.short, wording.score),
        *(wording.score_name, wording.times, wording.points, wording.percent, wording.threads, wording.verdict),
        wording.of_head,
        wording.lengths,
        wording.in_millions,
        wording.toml_lines,
        wording.linear,
    )
    environment.filters.update({word.__name__: word for word in words})
    environment.filters["ran_at_rows"] = _ran_at_rows
    environment.filters["measured"] = _measured
    environment.filters["placements"] = _placements
    environment.filters["counted_lengths"] = _counted_lengths
    return environment


def _for_html(value: Any) -> Any:
    """Replace None by a gap, and characters that break or reorder the page by visible ones."""
    if isinstance(value, Markup):
        return value
    return wording.GAP if value is None else wording.visible(str(value))


def _figures(report: Report) -> dict[str, Markup]:
    """Draw everything that there is something to draw of."""
    drawn: dict[str, Markup] = {}

    def add(name: str, title: str, figure: Figure | None) -> None:
        if figure is not None:
            # Matplotlib's own escapes are kept; the title is ours and is escaped here.
            drawn[name] = Markup(inline(figure, name, str(escape(title))))

    with matplotlib.rc_context(SETTINGS):
        for threads in report.threads if report.seq_lens else ():
            add(f"bars-{threads}", f"Latency by variant, {wording.threads(threads)}", plots.bars(report, threads))
        if report.seq_lens:
            add("lines", "Latency by length", plots.lines(report))
            first = report.threads[0]
            add("distributions", "Distribution of latency", plots.distributions(report, first))
            add("trade", "Size against latency against quality", plots_quality.trade(report, first))
        add("kinds", "Quality by kind of text", plots_quality.kinds(report))
        title = "Linears that lose most by quantisation: their error without and with what it chose, and what they read"
        add("quantised", title, plots_quantisation.quantised(report))
        for phone in report.phones:
            add(f"sustained-{phone.device}", f"{phone.device} without a pause", plots.sustained(report, phone))
    return drawn


def _datasets(report: Report) -> list[tuple[str, str]]:
    """Return the labelled datasets that any target was scored on, each with its metric."""
    return list(dict.fromkeys((row.dataset, row.metric) for target in report.targets for row in target.parity.datasets))


def _skipped(report: Report) -> dict[str, str]:
    """Return the datasets that the recipe names and that were not at hand, with the reason."""
    return {name: reason for target in report.targets for name, reason in target.parity.datasets_skipped.items()}


def _untried(report: Report) -> list[tuple[str, str, str]]:
    """Return rows (file, units, known facts) for compute units on which no file of the scheme has passed yet."""
    found: dict[tuple[str, str], list[str]] = {}
    for target in report.targets:
        for unit, known in SCHEMES[target.scheme].support[target.parity.backend].untried_units.items():
            found.setdefault((f"{target.runtime} {target.scheme}", known), []).append(unit)
    return [(file, ", ".join(units), known) for (file, known), units in found.items()]


def _counted(report: Report) -> list[tuple[str, str, Counts]]:
    """Return rows (file, runtime, counts): the instruction counts of each file on each emulated processor."""
    files = [("", target) for target in report.targets]
    files += [(f", {near.recipe}", file.target) for near in report.beside for file in near.files]
    return [
        (f"{target.runtime} {target.scheme}{whose}", target.instructions.runtime, counts)
        for whose, target in files
        if target.instructions
        for counts in target.instructions.counts
    ]


def _counted_lengths(counted: Sequence[tuple[str, str, Counts]]) -> list[int]:
    """Return the lengths at which anything was counted, ascending."""
    return sorted({length for _, _, counts in counted for length in counts.instructions})


def _measured(gate: str, output_kind: str) -> str:
    """Return the quantity of a gate with its unit; an empty string for a gate without a number."""
    found = quantity(gate, output_kind)
    return ", ".join(filter(None, (found.name, found.unit))) if found else ""


def _placements(report: Report) -> list[dict[str, Any]]:
    """Return where each file's operations run: here, as the runtime told when it loaded the file, and on each phone."""
    delegates = {one.digest: one.delegate for one in report.variants}
    rows = [
        _placement(f"{one.runtime} {one.scheme}", "this machine", delegates.get(one.digest), one.parity.ops_delegated,
                   one.parity.ops_total, None)
        for one in report.targets
    ]  # fmt: skip
    for phone in report.phones:
        for one in phone.variants:
            name = ", ".join(filter(None, (one.label, one.compute_units)))
            counts = one.ops_delegated, one.ops_total, one.ops_by_unit
            rows.append(_placement(name, phone.device, one.delegate, *counts))
    return rows


def _placement(
    file: str, place: str, delegate: str | None, delegated: int | None, total: int | None, units: dict[str, int] | None
) -> dict[str, Any]:
    share = delegated / total if delegated is not None and total else None
    by_unit = {name: (units or {}).get(name) for name in ("Neural Engine", "GPU", "CPU")}
    return {
        "file": file,
        "place": place,
        "delegate": delegate,
        "delegated": delegated,
        "total": total,
        "share": share,
        "by_unit": by_unit,
    }


def _ran_at_rows(variants: list[VariantReport]) -> list[tuple[float, str]]:
    """Return each mean length at which texts ran, with the variants that it holds for."""
    found: dict[float, list[str]] = {}
    for one in variants:
        found.setdefault(one.texts.mean_ran_at, []).append(one.label)
    return [(length, ", ".join(labels)) for length, labels in sorted(found.items())]
