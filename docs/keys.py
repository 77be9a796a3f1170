"""The keys of a recipe in `docs/recipes.md`, generated from the models of a recipe.

`python -m docs.keys` writes them, and `python -m docs.keys --check` fails if the page is older than the models.
"""

import argparse
import dataclasses
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.recipe import reference

PAGE = Path(__file__).with_name("recipes.md")
BEGIN = "<!-- keys: begin. "
END = "<!-- keys: end -->"


def main(given: Sequence[str] | None = None, page: Path = PAGE) -> int:
    """Write the page, or compare it with the models; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m docs.keys", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if the page is stale")
    options = parser.parse_args(given)
    before = page.read_text(encoding="utf-8")
    after = with_keys(before)
    if options.check and after != before:
        print(f"{page} is older than the models of a recipe; `make docs` writes it.", file=sys.stderr)
        return 1
    if after != before:
        page.write_text(after, encoding="utf-8")
    return 0


def with_keys(text: str) -> str:
    """Return a page with the generated lines between its two marks.

    Raises:
        ValueError: the page lacks a mark.
    """
    head, begin, rest = text.partition(BEGIN)
    comment, end_of_comment, _ = rest.partition("\n")
    _, end, tail = rest.partition(END)
    if not (begin and end_of_comment and end):
        raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r}, between which the keys are written")
    return "\n".join((f"{head}{begin}{comment}", "", *lines(), "", f"{END}{tail}"))


def lines() -> Iterator[str]:
    """Yield a heading and a table for each section of a recipe."""
    for number, (name, meaning, keys) in enumerate(map(dataclasses.astuple, reference.sections().values())):
        if number:
            yield ""
        yield from (f"### `[{name}]`" if name != reference.TOP else "### Above all sections", "", _cell(meaning), "")
        yield from ("| key | values | default | meaning |", "|---|---|---|---|")
        for key, values, default, said in keys:
            yield f"| `{key}` | {_values(values)} | {_default(default)} | {_cell(said)} |"


def _values(text: str) -> str:
    """Return the kinds of values that a key takes; a section is a link to its own table."""
    section = re.fullmatch(r"section \[(.+)\]", text)
    if not section:
        return _cell(text)
    return f"[section `[{section[1]}]`](#{re.sub(r'[^a-z_]', '', section[1].lower())})"


def _default(value: str | None) -> str:
    """Return a default as the table shows it: keys without one have to be given, empty ones are left out."""
    if value is None:
        return "**required**"
    return f"`{_cell(value)}`" if value else ""


def _cell(text: str) -> str:
    """Return a text that does not end the cell of a table, or begin a tag."""
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(main())
