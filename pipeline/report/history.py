"""History: the figures of a recipe over several reports, oldest first, such as one for each commit.

Sizes, scores, metrics and instructions are comparable from report to report. Times are not: each report's were measured
on their own, so they are drawn apart, and `pocketbert gate` judges them only where files are timed in turns.
"""

from collections.abc import Mapping, Sequence

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict

from pipeline.errors import InputError
from pipeline.fronts.plots import inline
from pipeline.report.plots import SETTINGS
from pipeline.report.record import Report, TargetReport


class Row(BaseModel):
    """One target in one report."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    label: str
    """The report's label."""
    target: str
    verdict: str
    digest: str
    file_bytes: int
    mean_score: float | None
    worst_score: float | None
    metrics: dict[str, float]
    """Task metrics by dataset."""
    instructions: float | None
    """Millions for the longest row that was counted, on the first processor that was."""
    mean_ms: float | None
    """Over real texts, at the lowest thread count."""


def rows(reports: Mapping[str, Report]) -> list[Row]:
    """Return a row for each target of each report.

    Args:
        reports: by label, oldest first.

    Raises:
        InputError: they are of several recipes.
    """
    names = {report.recipe["name"] for report in reports.values()}
    if len(names) > 1:
        raise InputError(f"the reports are of several recipes: {', '.join(sorted(names))}. A history is of one.")
    return [_row(label, report, target) for label, report in reports.items() for target in report.targets]


def _row(label: str, report: Report, target: TargetReport) -> Row:
    measures, timed = target.parity.measures, [one for one in report.variants if one.digest == target.digest]
    counts = target.emulated.counts if target.emulated else []
    fastest = min(timed, key=lambda one: one.threads, default=None)
    return Row(
        label=label,
        target=target.name,
        verdict=target.parity.verdict,
        digest=target.digest,
        file_bytes=target.conversion.file_bytes,
        mean_score=measures.mean_score if measures else None,
        worst_score=measures.worst_score if measures else None,
        metrics={row.dataset: row.found for row in target.parity.datasets},
        instructions=counts[0].instructions[max(counts[0].instructions)] / 1e6 if counts else None,
        mean_ms=fastest.texts.mean_ms if fastest else None,
    )


def draw(found: Sequence[Row]) -> Figure:
    """Draw each quantity over the reports, a line for each target."""
    labels = list(dict.fromkeys(row.label for row in found))
    datasets = list(dict.fromkeys(name for row in found for name in row.metrics))
    series: dict[str, list[float | None]] = {
        "size, MB": [row.file_bytes / 1e6 for row in found],
        "mean score": [row.mean_score for row in found],
        **{name: [row.metrics.get(name) for row in found] for name in datasets},
        "instructions, millions": [row.instructions for row in found],
        "mean ms per text (not comparable between runs)": [row.mean_ms for row in found],
    }
    kept = {name: values for name, values in series.items() if any(value is not None for value in values)}
    figure = Figure(figsize=(10.5, 2.3 * len(kept)), layout="constrained")
    panels = figure.subplots(len(kept), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, values) in zip(panels, kept.items(), strict=True):
        for target in dict.fromkeys(row.target for row in found):
            pairs = [
                (labels.index(row.label), value)
                for row, value in zip(found, values, strict=True)
                if row.target == target and value is not None
            ]
            axes.plot([place for place, _ in pairs], [value for _, value in pairs], marker="o", label=target)
        axes.set_title(name)
        axes.margins(y=0.2)
    panels[-1].set_xticks(range(len(labels)), labels, rotation=20, ha="right")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=10)
    return figure


def page(recipe: str, found: Sequence[Row]) -> str:
    """Return a self-contained page with the curves and the table."""
    # Drawing and templates are imported by what needs them.
    from pipeline.report.page import environment

    with matplotlib.rc_context(SETTINGS):
        figure = Markup(inline(draw(found), "history", "History"))
    datasets = list(dict.fromkeys(name for row in found for name in row.metrics))
    template = environment(autoescape=True).get_template("history.html.j2")
    return template.render(recipe=recipe, rows=found, datasets=datasets, figure=figure)
