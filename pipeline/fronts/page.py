"""Pages of a front: HTML in which each point leads to its recipe, a table as Markdown, and the recipes as files."""

from collections.abc import Sequence
from pathlib import Path

from pipeline import atomic
from pipeline.fronts import front as fronts
from pipeline.fronts import plots, recipes
from pipeline.fronts.front import LEGEND, PUBLISHED, PUBLISHED_HEAD, TITLES, Front
from pipeline.fronts.record import Record

FRONT, PAGE, BEST, RECIPES = "FRONT.md", "front.html", "best.toml", "recipes"
_SIZE = (8.0, 4.5)


def write(folder: Path, record: Record) -> None:
    """Write the page, its table as Markdown, the recipes of the front, and the best one's.

    Args:
        folder: of the study.
        record: what it found.
    """
    front = fronts.of(record, folder, folder / RECIPES)
    best = next((one for one in record.trials if one.number == record.answer.trial), None)
    with atomic.writing(folder):
        (folder / RECIPES).mkdir(exist_ok=True)
        for row in front.rows:
            atomic.write_text(folder / RECIPES / f"{row.number}.toml", row.recipe)
        if best is not None:
            atomic.write_text(folder / BEST, recipes.stored(record, best, folder, folder))
        atomic.write_text(folder / FRONT, markdown(front))
        atomic.write_text(folder / PAGE, html(front))


def markdown(front: Front, recipes_at: str = RECIPES) -> str:
    """Return the front as a page of Markdown.

    Args:
        front: of a study.
        recipes_at: the folder of its recipes, from the page.
    """
    lines = [f"# {front.study}", "", *[part for line in front.lead for part in (line, "")]]
    lines += [_line(front.head), "|" + "---|" + "--:|" * (len(front.head) - 3) + "---|---|", _line(front.base)]
    lines += [_line([f"[{row.number}]({recipes_at}/{row.number}.toml)", *row.cells[1:]]) for row in front.rows]
    lines += [_line(cells) for cells in front.beside]
    if front.published:
        lines += ["", PUBLISHED, "", _line(PUBLISHED_HEAD), "|---|--:|---|---|---|"]
        lines += [_line(cells) for cells in front.published]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    """Return a line of a table; a value may hold what would end its cell, or the line."""
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"


def html(front: Front) -> str:
    """Return the front as a self-contained page."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, trim_blocks=True
    )
    return environment.get_template("front.html.j2").render(
        front=front,
        figures=figures(front),
        anchors={row.number: plots.anchor(front, row.number) for row in front.rows},
        legend=LEGEND,
        of_others=PUBLISHED,
        published_head=PUBLISHED_HEAD,
    )


def figures(front: Front) -> list[str]:
    """Return plots of quality against each cost, as SVG."""
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "pocketbert", "font.size": 11}):
        return [
            plots.inline(plots.figure(front, cost, _SIZE), cost, f"Quality against {TITLES[cost]}")
            for cost in front.costs
        ]
