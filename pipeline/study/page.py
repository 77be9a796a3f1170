"""The front of a study: a plot in which each point leads to its recipe, a table, and the answer with its evidence."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline import atomic
from pipeline.study import recipes, selection
from pipeline.study.answering import quality_of
from pipeline.study.record import BESIDE, Record, TrialRecord, shown
from pipeline.study.space import label

FRONT, PAGE, BEST, RECIPES = "FRONT.md", "front.html", "best.toml", "recipes"
_TITLES = {
    "metric": "metric",
    "recall_at_10": "recall@10",
    "size_mb": "MB",
    "latency_ms": "ms",
    "memory_mb": "MB of memory",
    "macs_m": "million multiply-adds",
}
PUBLISHED = "Published by others, each on data, a split and a machine of its own; nothing here is compared with it."
_LEGEND = (
    "Filled: measured on the file. Hollow: the metric of the student in PyTorch, with estimated size and latency. "
    "Grey: trials that another one beats. Diamonds: other recipes. Bars: 95 % intervals of the loss against the recipe "
    "as it is. Each point leads to its recipe."
)


@dataclass(frozen=True)
class Row:
    """A trial of the front as it is shown."""

    number: int
    title: str
    cells: list[str]
    recipe: str


def write(folder: Path, record: Record) -> None:
    """Write the page, its table as Markdown, the recipes of the front, and the best one's.

    Args:
        folder: of the study.
        record: what it found.
    """
    trials = front(record)
    rows = [_row(folder, record, one) for one in trials]
    with atomic.writing(folder):
        _write(folder, record, rows)


def _write(folder: Path, record: Record, rows: Sequence[Row]) -> None:
    (folder / RECIPES).mkdir(exist_ok=True)
    for row in rows:
        atomic.write_text(folder / RECIPES / f"{row.number}.toml", row.recipe)
    best = next((one for one in record.trials if one.number == record.answer.trial), None)
    if best is not None:
        atomic.write_text(folder / BEST, recipes.stored(record, best, folder, folder))
    atomic.write_text(folder / FRONT, markdown(record, rows))
    atomic.write_text(folder / PAGE, _html(record, rows))


def front(record: Record) -> list[TrialRecord]:
    """Return the trials on the front, files first and then by quality.

    An estimate takes no file's place: a file is shown if no other file beats it.
    """
    files = [one for one in record.trials if one.step == "files"]
    among_all = selection.front(record.trials, record.study.objectives)
    found = selection.front(files, record.study.objectives) + [one for one in among_all if one.step != "files"]
    quality = quality_of(record.study)
    return sorted(found, key=lambda one: (one.step != "files", -one.measures.get(quality, 0.0)))


def lead(record: Record) -> list[str]:
    """Return what a study found, in sentences."""
    answer = record.answer
    best = next((one for one in record.trials if one.number == answer.trial), None)
    said = [
        f"{len(record.trials)} trials from {record.recipe_name} in {record.hours:.1f} hours on {record.machine}. "
        f"Chosen by {record.metric_name} on {record.judged_on}; reported on data that no choice has seen."
    ]
    if best is not None:
        how = "Best within the budget" if answer.fits else "Nearest to the budget"
        said.append(f"{how}: trial {best.number}. {' '.join(recipes.evidence(record, best))}")
    for name, (found, bound) in answer.beyond.items():
        said.append(f"{_TITLES.get(name, name)} is {found:.3g}, and {bound:.3g} was asked.")
    said += [f"{line[0].upper()}{line[1:]}." for line in answer.sentences]
    said.append(f"Of {record.asked} artifacts that the trials asked for, {record.asked - record.made} were shared.")
    errors = errors_of_estimates(record.trials)
    for name, (mean, most, count) in errors.items():
        off = f"{100 * mean:.1f} % on average over {count} files, {100 * most:.1f} % at most"
        said.append(f"Estimates of {_TITLES[name]} were off by {off}.")
    return said


def errors_of_estimates(trials: Sequence[TrialRecord]) -> dict[str, tuple[float, float, int]]:
    """Return the mean and the largest error of estimated sizes and latencies, as fractions, and how many were held."""
    found: dict[str, list[float]] = {}
    for one in shown(trials):
        for name, estimated in one.estimated.items() if one.measured else ():
            true = getattr(one.measured, name)
            if true:
                found.setdefault(name, []).append(abs(estimated / true - 1))
    return {name: (sum(errors) / len(errors), max(errors), len(errors)) for name, errors in found.items()}


def published_cells(record: Record) -> list[list[str]]:
    """Return the rows of the table of what others have published."""
    return [
        [one.name, f"{one.size_mb:g}" if one.size_mb else "", one.metric, one.latency or "", one.source]
        for one in record.study.published
    ]


def _row(folder: Path, record: Record, one: TrialRecord) -> Row:
    choice = ", ".join(f"{key} = {label(value)}" for key, value in one.choice.items())
    text = recipes.stored(record, one, folder, folder / RECIPES)
    return Row(one.number, f"Trial {one.number}: {choice}", _cells(record, one), text)


def _cells(record: Record, one: TrialRecord) -> list[str]:
    """Return the cells of a trial, or of a recipe beside the trials."""
    measures = [f"{one.measures[name]:.4g}" if name in one.measures else "" for name in record.study.measures]
    drop = f"{100 * one.drop[0]:.2f} ({100 * one.drop[1]:.2f} to {100 * one.drop[2]:.2f})" if one.drop else ""
    reported = ""
    if one.reported:
        # A file may have a metric of 0.
        reported = f"{one.reported.fp32 if one.reported.file is None else one.reported.file:.4f}"
    times = f"{one.measured.times_base:.2f}" if one.measured and one.measured.times_base else ""
    choice = ", ".join(f"{key} = {label(value)}" for key, value in one.choice.items())
    name = str(one.number) if one.number < BESIDE else str(one.choice["recipe"])
    state = one.verdict or one.step
    return [name, *measures, drop, reported, times, state, choice if one.number < BESIDE else ""]


def _head(record: Record) -> list[str]:
    titles = [_TITLES[name] for name in record.study.measures]
    return ["trial", *titles, "points lost", "reported", "× base", "state", "choice"]


def markdown(record: Record, rows: Sequence[Row]) -> str:
    """Return the front as a page of Markdown."""
    head = _head(record)
    lines = [f"# {record.study.name}", "", *[part for line in lead(record) for part in (line, "")]]
    base = [f"{record.base.measures.get(name, float('nan')):.4g}" for name in record.study.measures]
    reported = f"{record.base.reported.fp32:.4f}" if record.base.reported else ""
    lines += [f"| {' | '.join(head)} |", "|" + "---|" + "--:|" * (len(head) - 3) + "---|---|"]
    lines += [f"| {record.recipe_name} | {' | '.join(base)} | | {reported} | 1 | as it is | |"]
    lines += [_line([f"[{row.number}]({RECIPES}/{row.number}.toml)", *row.cells[1:]]) for row in rows]
    lines += [_line(_cells(record, one)) for one in record.beside]
    if record.study.published:
        lines += ["", PUBLISHED, "", "| student | MB | metric | latency | source |", "|---|--:|---|---|---|"]
        lines += [_line(published) for published in published_cells(record)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    """Return a line of a table; a value may hold what would end its cell, or the line."""
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"


def _html(record: Record, rows: Sequence[Row]) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, trim_blocks=True
    )
    return environment.get_template("front.html.j2").render(
        record=record,
        lead=lead(record),
        figures=figures(record),
        legend=_LEGEND,
        head=_head(record),
        rows=rows,
        beside=[_cells(record, one) for one in record.beside],
        published=published_cells(record),
        of_others=PUBLISHED,
    )


def figures(record: Record) -> list[str]:
    """Return plots of quality against each cost, as SVG."""
    quality = quality_of(record.study)
    costs = [name for name in record.study.measures if name not in ("metric", "recall_at_10")]
    return [_figure(record, quality, name) for name in costs]


def _figure(record: Record, quality: str, cost: str) -> str:
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    on_front = {one.number for one in front(record)}
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "pocketbert", "font.size": 11}):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        for one in shown(record.trials):
            here = one.number in on_front
            at, height = one.measures.get(cost), one.measures.get(quality)
            if at is None or height is None:
                continue
            if here and one.drop is not None and quality == "metric":
                base = height + one.drop[0]
                axes.vlines(at, base - one.drop[2], base - one.drop[1], color="#9aa4b1", linewidth=1)
            colour = "#0072b2" if here else "#c3cad3"
            filled = colour if one.step == "files" else "white"
            point = axes.scatter([at], [height], s=46, facecolors=filled, edgecolors=colour, zorder=3 if here else 2)
            if here:
                point.set_urls([f"#trial-{one.number}"])
                axes.annotate(str(one.number), (at, height), xytext=(5, 4), textcoords="offset points", fontsize=9)
        base_at, base_height = record.base.measures.get(cost), record.base.measures.get(quality)
        if base_at is not None and base_height is not None:
            axes.scatter([base_at], [base_height], marker="*", s=130, color="#d55e00", zorder=4)
            axes.annotate(record.recipe_name, (base_at, base_height), xytext=(6, -12), textcoords="offset points")
        for one in record.beside:
            at, height = one.measures.get(cost), one.measures.get(quality)
            if at is not None and height is not None:
                axes.scatter([at], [height], marker="D", s=40, color="#009e73", zorder=3)
                axes.annotate(
                    one.choice["recipe"], (at, height), xytext=(6, -10), textcoords="offset points", fontsize=9
                )
        axes.set_xlabel(_TITLES[cost])
        axes.set_ylabel(record.metric_name if quality == "metric" else _TITLES[quality])
        axes.set_xscale("log")
        axes.grid(visible=True, color="#e6e9ed")
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    # A point leads to a recipe of the same page.
    drawn = buffer.getvalue().replace(' target="_blank"', "")
    return drawn[re.search(r"<svg", drawn).start() :]  # type: ignore[union-attr]  # matplotlib writes one
