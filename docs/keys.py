"""Parts of the pages that are generated from the code: a recipe's keys, the architectures, the bounds of schemes.

`python -m docs.keys` writes them, and `python -m docs.keys --check` fails if a page is older than the code.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from pipeline.architectures import ARCHITECTURES
from pipeline.fronts.spec import Study
from pipeline.recipe import reference
from pipeline.recipe.schema import Recipe
from pipeline.schemes import SCHEMES

DOCS = Path(__file__).parent
_WORTH_A_LINK = 3
"""Number of keys with the same values, default and meaning from which on a section links to another one's table."""


def main(given: Sequence[str] | None = None, folder: Path = DOCS) -> int:
    """Write the pages, or compare them with the code; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m docs.keys", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if the page is stale")
    options = parser.parse_args(given)
    stale = 0
    for name, (part, lines) in PAGES.items():
        page = folder / name
        before = page.read_text(encoding="utf-8")
        after = with_part(before, part, lines())
        if after == before:
            continue
        if options.check:
            print(f"{page} is older than the code; `make docs` writes it.", file=sys.stderr)
            stale = 1
        else:
            page.write_text(after, encoding="utf-8")
    return stale


def with_part(text: str, part: str, lines: Iterable[str]) -> str:
    """Return a page with generated lines between the two marks of a part.

    Raises:
        ValueError: the page lacks a mark.
    """
    first, last = f"<!-- {part}: begin. ", f"<!-- {part}: end -->"
    head, begin, rest = text.partition(first)
    comment, end_of_comment, _ = rest.partition("\n")
    _, end, tail = rest.partition(last)
    if not (begin and end_of_comment and end):
        raise ValueError(f"the page needs the lines {first!r} and {last!r}, between which the {part} are written")
    return "\n".join((f"{head}{begin}{comment}", "", *lines, "", f"{last}{tail}"))


def architecture_lines() -> Iterator[str]:
    """Yield a table of the architectures."""
    yield from ("| architecture (`model_type`) | students | what cannot be made smaller |", "|---|---|---|")
    for name, row in ARCHITECTURES.items():
        yield f"| `{name}` | {_cell(row.students)} | {_cell(row.kept_whole)} |"


def bound_lines() -> Iterator[str]:
    """Yield a table of the bounds by which files of each scheme are judged."""
    yield "| scheme | mean cosine | worst cosine | SQNR, dB | same label | task metric drop | bytes per parameter |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for name, scheme in SCHEMES.items():
        vectors, labels = scheme.gates["embedding"], scheme.gates["logits"]
        bounds = (
            vectors.min_mean_cosine,
            vectors.min_worst_cosine,
            vectors.min_sqnr_db,
            labels.min_agreement,
            vectors.max_task_drop,
            vectors.max_bytes_per_parameter,
        )
        yield f"| `{name}` | {' | '.join('–' if bound is None else f'{bound:g}' for bound in bounds)} |"


def key_lines(of: type[BaseModel] = Recipe) -> Iterator[str]:
    """Yield a heading and a table for each section of a file; keys that sections share stand in one of them."""
    sections = list(reference.sections(of).values())
    homes = _homes(sections)
    for number, section in enumerate(sections):
        if number:
            yield ""
        title = f"### `[{section.name}]`" if section.name != reference.TOP else "### Above all sections"
        yield from (title, "", _cell(section.meaning), "")
        home, shared = homes.get(section.name, ("", frozenset()))
        own = [key for key in section.keys if key.name not in shared]
        if own:
            yield from ("| key | values | default | meaning |", "|---|---|---|---|")
        for key in own:
            yield f"| `{key.name}` | {_values(key.accepts)} | {_default(key.default)} | {_cell(key.meaning)} |"
        if shared:
            names = ", ".join(f"`{key.name}`" for key in section.keys if key.name in shared)
            yield from (*([""] if own else []), f"As in {_link(home)}: {names}.")


def _homes(sections: Sequence[reference.SectionKeys]) -> dict[str, tuple[str, frozenset[str]]]:
    """Return, for each section that repeats keys of another, that other section and the names of these keys.

    The least nested section is the home. A home lists its keys itself, so no reader is sent on twice.
    """
    listed: dict[str, set[reference.Key]] = {}
    homes = {}
    for section in sorted(sections, key=lambda one: one.name.count(".")):
        keys = set(section.keys)
        home = max(listed, key=lambda name: len(keys & listed[name]), default="")
        shared = keys & listed.get(home, set())
        if len(shared) >= _WORTH_A_LINK:
            homes[section.name] = (home, frozenset(key.name for key in shared))
            keys -= shared
        listed[section.name] = keys
    return homes


def _values(text: str) -> str:
    """Return the kinds of values that a key takes; a section is a link to its own table."""
    section = re.fullmatch(r"section \[(.+)\]", text)
    if not section:
        return _cell(text)
    return f"section {_link(section[1])}"


def _link(section: str) -> str:
    """Return a link to the table of a section."""
    return f"[`[{section}]`](#{re.sub(r'[^a-z_]', '', section.lower())})"


def _default(value: str | None) -> str:
    """Return a default as the table shows it: keys without one have to be given, empty ones are left out."""
    if value is None:
        return "**required**"
    return f"`{_cell(value)}`" if value else ""


def _cell(text: str) -> str:
    """Return a text that does not end the cell of a table, or begin a tag."""
    return text.replace("|", "\\|").replace("<", "&lt;")


PAGES: dict[str, tuple[str, Callable[[], Iterable[str]]]] = {
    "recipes.md": ("keys", key_lines),
    "studies.md": ("keys", partial(key_lines, Study)),
    "students.md": ("architectures", architecture_lines),
    "verification.md": ("bounds", bound_lines),
}
"""By page: the name of its generated part, and what makes the lines."""


if __name__ == "__main__":
    sys.exit(main())
