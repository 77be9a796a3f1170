"""`benchmarks/MUTATIONS.md`: counts by format and kind, and every miss."""

from collections.abc import Mapping
from dataclasses import dataclass

from faults import line

from mutations import judging, loading
from mutations.bench import Result, summary
from mutations.mutation import KINDS
from mutations.subject import SCHEMES, Subject
from pipeline import formats

PAGE = line.REPOSITORY / "benchmarks" / "MUTATIONS.md"
_HEAD = """\
# Damaged files

Written by `make mutations` (seed {seed}, {count:,} files a format and campaign, {minutes:.0f} minutes). The files are
of a random student, two layers of 64, as people ship them: int8, two lengths. Half of the places are drawn from the
whole file, half from what is no weight: tables, operations, metadata.

## Loaded and run

Each file was opened and each of its functions run once, in a process of its own, as `pipeline.load` opens a folder of
unknown origin. `crashed`: that process was ended by a signal. The one that asked for it lived on each time.
"""
_KINDS = """
How many crashed or timed out, by kind of damage:
"""
_FLIPS = """
## One bit flipped

Each file has one bit flipped and was judged by `verify` with its default gates. `harmless`: it passed, and every output
over all texts, padded and unpadded, and all that is read back, constants included, equals the clean file's.
`missed`: it passed, and something differs. The others were caught, or do not load.
"""


@dataclass(frozen=True)
class Found:
    """All results of one format."""

    subject: Subject
    loaded: list[Result]
    isolated: list[Result]
    judged: list[Result]


def write(found: Mapping[str, Found], *, seed: int, count: int, minutes: float) -> None:
    """Write the page."""
    names = {name: f"{formats.get(name).TITLE} {SCHEMES[name]}" for name in found}
    lines = [
        *_HEAD.format(seed=seed, count=count, minutes=minutes).splitlines(),
        "",
        *_header("format", figures=loading.OUTCOMES),
        *(_row(names[name], *summary(row.loaded, loading.OUTCOMES).values()) for name, row in found.items()),
        *_KINDS.splitlines(),
        "",
        *_header("format", figures=tuple(KINDS)),
        *(_row(names[name], *(_ended(row.loaded, kind) for kind in KINDS)) for name, row in found.items()),
        "",
        *_isolated(found, names),
        *_FLIPS.splitlines(),
        "",
        *_header("format", "drawn from", figures=judging.OUTCOMES),
        *(
            _row(
                names[name],
                said,
                *summary([r for r in row.judged if r.everywhere == everywhere], judging.OUTCOMES).values(),
            )
            for name, row in found.items()
            for said, everywhere in (("the whole file", True), ("what is no weight", False))
        ),
        "",
        *_missed(found, names),
    ]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _header(*names: str, figures: tuple[str, ...]) -> list[str]:
    return [_row(*names, *figures), "|" + "---|" * len(names) + "--:|" * len(figures)]


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _ended(results: list[Result], kind: str) -> int:
    return sum(r.kind == kind and r.outcome in (loading.CRASHED, loading.HUNG) for r in results)


def _isolated(found: Mapping[str, Found], names: Mapping[str, str]) -> list[str]:
    lines = [
        "`pipeline.load(folder, isolated=True)` opened some of them too, all that crashed or timed out among them.",
        "",
    ]
    lines += _header("format", figures=loading.OUTCOMES)
    for name, row in found.items():
        lines.append(_row(names[name], *summary(row.isolated, loading.OUTCOMES).values()))
    return lines


def _missed(found: Mapping[str, Found], names: Mapping[str, str]) -> list[str]:
    rows = [
        _row(names[name], r.path, r.at, r.bit, r.said)
        for name, row in found.items()
        for r in row.judged
        if r.outcome == judging.MISSED
    ]
    header = ["| format | file | byte | bit | what differs |", "|---|---|--:|--:|---|"]
    return [*header, *rows] if rows else ["None was missed."]
