"""`make compatibility`: which files of a student may share an index, for every format and scheme, as a page.

Each file embeds the texts once, and every pair is compared by those vectors. What was embedded by the same file is
kept, so a stopped run goes on where it was. A student ends in a record, and the page is made of the records alone.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from benchmarks import records
from benchmarks.records import Strict
from pipeline import artifact
from pipeline.cli.progress import Progress
from pipeline.convert.stage import Target
from pipeline.convert.targets import choose_targets
from pipeline.planning import run as running
from pipeline.planning.request import Request
from pipeline.recipe import loading
from pipeline.search import compatibility, embedding
from pipeline.search.compatibility import Collection, Comparison, Side, Verdict
from pipeline.text.bundled import everyday_sentences

FOLDER = Path(__file__).parent
PAGE = FOLDER / "COMPATIBILITY.md"
RECORDS = records.RESULTS / "compatibility"
BUILD = Path("build") / "compatibility"
_FIRST = "minilm-all"
_RECIPES = (_FIRST, str(FOLDER / "compatibility" / "bge-small-all.toml"))
_COLLECTIONS = ("xquad_passages", "rte_premises")
"""A file that an interpreter runs takes minutes for the thousand texts of these, and an hour for STS-B's sentences."""
_MARKS = {"same_space": "", "usable_with_loss": " ~", "re_index": " ✗"}


class Pair(Strict):
    """An index of one file's vectors, asked by another file."""

    old: str
    new: str
    verdict: Verdict
    recall_kept: float
    """Share of the first file's own recall@10 that is left."""
    recall_at_1_gained: float
    worst_cosine: float
    """The lowest cosine between both files' vectors of one text."""


class StudentRecord(Strict):
    """All files of one student, each asked by each."""

    schema_version: Literal[1] = 1
    recipe: str
    origin: str
    files: list[str]
    queries: dict[str, int]
    """How many each collection has."""
    pairs: list[Pair]
    across: str | None
    """The verdict on the first student's index where this one asks; None of the first student itself."""


def main() -> int:
    """Make and record the students, and write the page."""
    parser = argparse.ArgumentParser(prog="make compatibility", description=__doc__)
    parser.add_argument("--recipe", action="append", help="these recipes, names or files, in place of the usual ones")
    parser.add_argument("--build", type=Path, default=BUILD, help="folder for artifacts")
    parser.add_argument("--page", action="store_true", help="write the page of the records at hand, make nothing")
    options = parser.parse_args()
    if not options.page:
        chosen = compatibility.collections(_COLLECTIONS, Path("recipe.toml"))
        with Progress(quiet=False) as progress:
            for name in options.recipe or _RECIPES:
                _record(name, options.build, chosen, progress)
                _write()
    _write()
    return 0


# --- a student's record ------------------------------------------------------------------------------------------


def _record(name: str, build: Path, chosen: Sequence[Collection], progress: Progress) -> None:
    """Convert a student for every target, embed the texts by each file, and record what each pair gives."""
    recipe, _ = loading.read_recipe(name)
    sides = _sides(name, choose_targets(recipe, []), build, chosen, progress)
    found = [_compared(old, new, chosen) for old in sides for new in sides]
    across = None
    if recipe.name != _FIRST:
        first, _ = loading.read_recipe(_FIRST)
        (old,) = _sides(_FIRST, choose_targets(first, [])[:1], build, chosen, progress)
        across = _compared(old, sides[0], chosen).said
    record = StudentRecord(
        recipe=recipe.name,
        origin=artifact.read_manifest(build / recipe.name / "student").params["origin"],
        files=[side.name for side in sides],
        queries={one.name: len(one.judged.queries) for one in chosen},
        pairs=[_pair(one) for one in found],
        across=across,
    )
    records.write(RECORDS / f"{recipe.name}.json", record)


def _sides(
    name: str, targets: Sequence[Target], build: Path, chosen: Sequence[Collection], progress: Progress
) -> list[Side]:
    """Return the vectors of a recipe's files."""
    recipe, file = loading.read_recipe(name)
    running.run(Request(recipe, file, "convert", list(targets)), build, progress)
    sides = []
    for target in targets:
        progress.note(f"{recipe.name} {target}: embedding")
        sides.append(_side(build / recipe.name / str(target) / "model", build / "vectors", chosen))
    return sides


def _side(model: Path, kept: Path, chosen: Sequence[Collection]) -> Side:
    """Return the vectors of a file, embedded now or before."""
    texts = everyday_sentences()
    every = [texts, *((one.judged.queries, one.judged.documents) for one in chosen)]
    place = kept / f"{artifact.digest_of([artifact.load(model).digest, every])}.npz"
    if not place.exists():
        with embedding.opened(model) as opened:
            side = compatibility.of_model(opened, texts, chosen)
        kept.mkdir(parents=True, exist_ok=True)
        arrays = {"texts": side.texts, "space": np.array(side.space), "truncated": np.array(side.truncated)}
        for name, (queries, documents) in side.searched.items():
            arrays |= {f"{name} queries": queries, f"{name} documents": documents}
        np.savez(place.with_suffix(".part.npz"), **arrays)  # type: ignore[arg-type]
        place.with_suffix(".part.npz").replace(place)
    with np.load(place) as stored:
        searched = {one.name: (stored[f"{one.name} queries"], stored[f"{one.name} documents"]) for one in chosen}
        name, space, cut = model.parent.name, str(stored["space"]), int(stored["truncated"])
        return Side(name, space, stored["texts"].shape[1], stored["texts"], searched, truncated=cut)


def _compared(old: Side, new: Side, chosen: Sequence[Collection]) -> Comparison:
    return compatibility.compare(old, new, everyday_sentences(), chosen)


def _pair(found: Comparison) -> Pair:
    weights = [row.queries for row in found.searched]
    gained = np.average([row.across_at_1 - row.old_at_1 for row in found.searched], weights=weights)
    return Pair(
        old=found.old,
        new=found.new,
        verdict=found.verdict,
        recall_kept=found.recall_kept,
        recall_at_1_gained=float(gained),
        worst_cosine=found.worst_cosine or 0.0,
    )


# --- the page ----------------------------------------------------------------------------------------------------


def _write() -> None:
    PAGE.write_text("\n".join(_page()) + "\n", encoding="utf-8")
    print(f"wrote {PAGE.relative_to(FOLDER.parent)}")


def _page() -> Iterator[str]:
    """Yield the page's lines."""
    found = [records.read(StudentRecord, file) for file in sorted(RECORDS.glob("*.json"))]
    students = sorted((one for one in found if one), key=lambda one: one.recipe != _FIRST)
    yield from ("# Which files may share an index", "")
    yield "Generated by `make compatibility` from `benchmarks/results/compatibility/`; nothing here is written by hand."
    yield "`pocketbert compatible OLD NEW` says the same of two files of your own."
    yield ""
    yield "A row is the file that made the index, a column the file that asks it. Each number is the share of recall@10"
    yield "that is left of the row's own, in %, with vectors in single precision; ~ is usable with loss, ✗ is another"
    yield "space."
    recipes = [loading.read_recipe(name)[0] for name in _RECIPES]
    targets = {recipe.name: len(choose_targets(recipe, [])) for recipe in recipes}
    for record in students:
        yield from _matrix(record, targets.get(record.recipe, 0))
    others = [record for record in students if record.across]
    if others:
        yield from ("", "## Two students in one index", "")
        for record in others:
            yield f"An index by {students[0].origin}, asked by {record.origin}: {record.across}."


def _matrix(record: StudentRecord, asked: int) -> Iterator[str]:
    found = {(pair.old, pair.new): pair for pair in record.pairs}
    said = ", ".join(f"{name} ({count:,})" for name, count in record.queries.items())
    files = f"{len(record.files)} of the {asked} files of recipe `{record.recipe}`" if asked else "its files"
    yield from ("", f"## {record.origin}", "", f"{sum(record.queries.values()):,} queries: {said}; {files}.", "")
    yield f"| index by | {' | '.join(str(number) for number in range(1, len(record.files) + 1))} |"
    yield f"|---|{'--:|' * len(record.files)}"
    for number, old in enumerate(record.files, 1):
        row = [found[old, new] for new in record.files]
        cells = [f"{100 * pair.recall_kept:.1f}{_MARKS[pair.verdict]}" for pair in row]
        yield f"| {number} `{old}` | {' | '.join(cells)} |"
    worst = min(record.pairs, key=lambda one: one.recall_kept)
    least = min(record.pairs, key=lambda one: one.worst_cosine)
    first = min(record.pairs, key=lambda one: one.recall_at_1_gained)
    mixed = sum(one.verdict == "same_space" for one in record.pairs)
    yield ""
    yield f"{mixed} of {len(record.pairs)} pairs may be mixed in one index. The largest loss: `{worst.old}` asked by"
    yield f"`{worst.new}` keeps {100 * worst.recall_kept:.1f} %. The lowest cosine of one text:"
    yield f"{least.worst_cosine:.3f}, `{least.old}` and `{least.new}`."
    yield f"At recall@1 the largest change is {100 * first.recall_at_1_gained:+.1f} points, `{first.old}` asked by"
    yield f"`{first.new}`."


if __name__ == "__main__":
    raise SystemExit(main())
