"""Templates filled: everything that reaches the page is escaped, and nothing absent is written as a Python value."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from pipeline.fronts import plots as front_plots
from pipeline.fronts.front import LEGEND, PUBLISHED, TITLES, Front
from pipeline.fronts.plots import inline
from pipeline.report import (
    plots,
    plots_quality,
    plots_quantisation,
    tables_files,
    tables_front,
    tables_search,
    tables_times,
    wording,
)
from pipeline.report.plots import SETTINGS
from pipeline.report.record import Report
from pipeline.report.table import Cell, Table
from pipeline.schemes import SCHEMES

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class DrawnFigure:
    """A figure and its caption, which tells of what is drawn alone."""

    svg: Markup
    caption: str


@dataclass(frozen=True)
class ShownFront:
    """The front of a study as it is shown."""

    front: Front
    figures: list[DrawnFigure]
    students: Table
    published: Table

    @property
    def recipes(self) -> list[tuple[str, str, str]]:
        """Each recipe as (id, title, TOML)."""
        return [(front_plots.anchor(self.front, row.number), row.title, row.recipe) for row in self.front.rows]


def html(report: Report) -> str:
    """Return the report as a self-contained HTML page."""
    template = environment(autoescape=True).get_template("report.html.j2")
    return template.render(
        report=report,
        figures=_figures(report),
        files=tables_files.files(report),
        tally=_tally(report),
        notes=_notes(report),
        details=tables_files.details(report),
        phones=[(one, tables_times.phone(one), tables_times.sustained(one)) for one in report.phones],
        folded=_folded(report),
        fronts=_fronts(report),
        legend=LEGEND,
        of_others=PUBLISHED,
        quantised=tables_files.quantised(report),
        conversions=tables_files.conversions(report),
        runs=tables_times.runs(report),
    )


def markdown(report: Report) -> str:
    """Return the tables that a README can take over."""
    template = environment(autoescape=False).get_template("RESULTS.md.j2")
    return template.render(
        report=report,
        files=tables_files.files(report),
        tally=_tally(report),
        notes=_notes(report),
        texts=tables_times.texts(report),
        full_rows=tables_times.full_rows(report),
        search=tables_search.search(report),
        phones=[(one, tables_times.phone(one), tables_times.sustained(one)) for one in report.phones],
        emulated=tables_times.emulated(report),
        instructions=tables_times.instructions(report),
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
        finalize=_for_html if autoescape else _for_markdown,
    )
    words = (
        *(wording.ms, wording.mb, wording.gib, wording.millions, wording.fixed, wording.short, wording.score),
        *(wording.score_name, wording.times, wording.points, wording.percent, wording.threads, wording.verdict),
        *(wording.of_head, wording.toml_lines),
    )
    environment.filters.update({word.__name__: word for word in words})
    environment.filters["tables"] = _markdown_tables
    return environment


def _for_html(value: Any) -> Any:
    """Replace None by a gap, and characters that break or reorder the page by visible ones."""
    if isinstance(value, Markup):
        return value
    return wording.GAP if value is None else wording.visible(str(value))


def _for_markdown(value: Any) -> Any:
    return value if isinstance(value, Markup) else wording.for_markdown(value)


def _markdown_tables(table: Table, heading: str) -> Markup:
    """Return a table in Markdown for each part of a table; second lines of cells stand in brackets."""
    heads = [wording.for_markdown(", ".join(filter(None, (one.title, one.unit)))) for one in table.columns]
    lines = []
    for part in table.parts:
        lines += [f"{heading} {wording.for_markdown(part.title)}", ""] if part.title else []
        lines += [_line(heads), "|" + "|".join("--:" if one.number else "---" for one in table.columns) + "|"]
        for row in part.rows:
            lines.append(_line([_markdown_cell(cell) for cell in row.cells]))
        lines.append("")
    return Markup("\n" + "\n".join(lines).rstrip("\n") + "\n")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_cell(cell: Cell) -> str:
    small = f" ({wording.for_markdown(cell.small)})" if cell.text is not None and cell.small else ""
    return wording.for_markdown(cell.text) + small


# --- figures ---------------------------------------------------------------------------------------------------------


def _figures(report: Report) -> dict[str, DrawnFigure]:
    """Draw everything that there is something to draw of."""
    drawn: dict[str, DrawnFigure] = {}

    def add(name: str, title: str, figure: Figure | None, caption: str) -> None:
        if figure is not None:
            # Matplotlib's own escapes are kept; the title is ours and is escaped here.
            drawn[name] = DrawnFigure(Markup(inline(figure, name, str(escape(title)))), caption)

    with matplotlib.rc_context(SETTINGS):
        first = report.threads[0] if report.threads else 1
        if report.variants:
            add("bars", "Latency by file", plots.bars(report, first), "Latency: real texts, tokenisation excluded.")
            found = plots_quality.trade(report, first)
            if found:
                figure, front = found
                add("trade", "Size against latency against quality", figure, _of_trade(report, front))
        add("kinds", "Quality by kind of text", plots_quality.kinds(report), _of_kinds(report))
        title = "Linears that lose most by quantisation: their error without and with what it chose, and what they read"
        add("quantised", title, plots_quantisation.quantised(report), _of_quantised(report))
        for phone in report.phones:
            title = f"{phone.device} without a pause"
            add(f"sustained-{phone.device}", title, plots.sustained(report, phone), f"{title}: p50, and up to p90.")
    return drawn


def _fronts(report: Report) -> list[ShownFront]:
    """Draw the fronts of studies."""
    found = []
    with matplotlib.rc_context(SETTINGS):
        for front in report.fronts:
            figures = []
            for cost in front.costs:
                title = f"{front.quality_title} against {TITLES[cost]}"
                drawn = front_plots.figure(front, cost, (plots.WIDTH, 4.0))
                figures.append(DrawnFigure(Markup(inline(drawn, f"{front.study}-{cost}", str(escape(title)))), title))
            found.append(ShownFront(front, figures, tables_front.students(front), tables_front.published(front)))
    return found


def _of_trade(report: Report, front: bool) -> str:
    said = [f"Size, time and mean {wording.score_name(report.score)}; lower left is better."]
    if front:
        said.append("Dashed: no other file that passed is both smaller and faster.")
    if any(one.verdict == "failed" for one in report.variants):
        said.append("Hollow: failed.")
    return " ".join(said)


def _of_kinds(report: Report) -> str:
    cosine = report.score == "cosine"
    said = f"Quality by kind of text; further {'left' if cosine else 'right'} is better. Filled: mean; hollow: worst."
    scores = [group.mean_score for _, target in report.files for group in target.parity.groups.values()]
    if any(plots_quality.clipped(score, report.score) for score in scores):
        said += f" What is {'nearer to 1' if cosine else 'higher'} is drawn at the edge."
    return said


def _of_quantised(report: Report) -> str:
    said = "Hollow: the error without what quantising chose; filled: with it."
    if any(cost.input for one in report.quantised for cost in one.worst):
        said += " Beside static int8, how often each value occurs, and shaded what int8 covers."
    if any(cost.largest_channel is not None and cost.input is None for one in report.quantised for cost in one.worst):
        said += " Beside dynamic int8, the largest channel over the median."
    return said


# --- what is said of the files ---------------------------------------------------------------------------------------


def _tally(report: Report) -> list[tuple[str, str]]:
    """Return how many files have each verdict, as (verdict, words); together they are the rows of the files' table."""
    counted = Counter(
        (target.parity.verdict, tables_files.simulated(target) and target.parity.verdict == "passed")
        for _, target in report.files
    )
    return [
        (verdict, f"{counted[verdict, simulated]} {wording.verdict(verdict)}{', simulated' if simulated else ''}")
        for verdict in ("passed", "failed", "not_run")
        for simulated in (False, True)
        if counted[verdict, simulated]
    ]


def _notes(report: Report) -> list[str]:
    """Return what has to be known of the files' table, and is true of this report."""
    stood_in = dict.fromkeys(
        f"Simulated by {target.parity.evaluator}: {target.parity.evaluator_stands_in}"
        for _, target in report.files
        if target.parity.evaluator_stands_in
    )
    said = list(stood_in)
    if report.counts.get("not_run"):
        said.append("Not run: converted, but nothing here could run it, so nothing is known of its accuracy.")
    timed = {one.digest for one in report.variants}
    untimed = [tables_files.label(student, one) for student, one in report.files if one.digest not in timed]
    if timed and untimed:
        said.append(f"Not timed here: {'; '.join(untimed)}.")
    for file, units, known in _untried(report):
        said.append(f"{file} on {units}: no such file has passed there yet. {known}")
    for student, target in report.files:
        left_out, why = target.conversion.lengths_left_out, target.conversion.lengths_left_out_reason
        if left_out:
            lengths = ", ".join(map(str, left_out))
            said.append(
                f"{tables_files.label(student, target)} has no length {lengths}: {why or 'no reason was recorded'}."
            )
        for head, one in target.parity.heads.items():
            said.append(f"{tables_files.label(student, target)}, head {head}: {wording.of_head(one)}.")
    skipped = {name: why for target in report.targets for name, why in target.parity.datasets_skipped.items()}
    said += [f"Dataset {name} was left out: {why}" for name, why in skipped.items()]
    said += [
        f"{variant.label}, {wording.threads(variant.threads)}: {'; '.join(variant.errors)}"
        for variant in report.variants
        if variant.errors
    ]
    return said


def _untried(report: Report) -> list[tuple[str, str, str]]:
    """Return rows (file, units, known facts) for compute units on which no file of the scheme has passed yet."""
    found: dict[tuple[str, str], list[str]] = {}
    for target in report.targets:
        for unit, known in SCHEMES[target.scheme].support[target.parity.backend].untried_units.items():
            found.setdefault((f"{target.runtime} {target.scheme}", known), []).append(unit)
    return [(file, ", ".join(units), known) for (file, known), units in found.items()]


def _folded(report: Report) -> list[tuple[str, str, str, Table]]:
    """Return (id, title, note, table) of each table that is folded; those without rows are left out."""
    counted = "Instructions per inference, counted on emulated processors; not a latency. Full rows, one core."
    played = "The file in its runtime's build for ARM64, on processors that an emulator plays; no phone."
    texts = [one.texts for one in report.variants[:1]]
    of_texts = "".join(f"{one.texts} texts of {wording.fixed(one.mean_tokens, 1)} tokens on average." for one in texts)
    found = [
        ("latency", "Latency over real texts", of_texts, tables_times.texts(report)),
        ("lengths", "Latency at fixed lengths", "", tables_times.full_rows(report)),
        ("kinds-table", "Scores by kind of text", "", tables_files.kinds(report)),
        ("metrics", "Task metrics", "", tables_files.metrics(report)),
        ("search", "Search", tables_search.NOTE, tables_search.search(report)),
        ("placement", "Where operations run", "", tables_times.placement(report)),
        ("arm64", "ARM64 processors, emulated", played, tables_times.emulated(report)),
        ("instructions", "Instructions", counted, tables_times.instructions(report)),
    ]
    return [one for one in found if one[3]]
