"""Write what `make faults` found: a record and one page of counts, and long tables in the build folder."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from faults import catalogue
from faults.fault import Fault
from faults.line import BUILD, REPOSITORY
from faults.outcome import Catch
from faults.run import Cell
from pipeline import formats
from pipeline.atomic import write_text

PAGE = REPOSITORY / "benchmarks" / "FAULTS.md"
RECORD = REPOSITORY / "benchmarks" / "results" / "faults.json"
_TITLES = {
    "core": "everywhere: checkpoints, graphs, files, what lies beside them, the runtime",
    "wiring": "right values in wrong places, int8",
    "operators": "operators that misbehave, hidden by the rounding of int8",
    "trained": "the same in the real MiniLM, int8",
    "claims": "what is said of a file",
    "settings": "none: students with unusual settings",
    "relative": "MPNet's relative positions",
    "vectors": "the contract of an embedding's vectors",
    "students": "single students and tasks",
    "quantised": "calibrated checkpoints and their files",
}
_HEAD = """# Planted faults

Written by `make faults`. Each fault is a small bug of a kind that converters and people really make, planted into a
checkpoint, an exported graph, a converted file, what lies beside it, or the code that runs it; verify judged the result
with its default gates against the clean student, first as `pocketbert run` does and, where that saw nothing, with
`--thorough`. Clean exports were verified thoroughly. Which gate fired first in which file, and by how much, the command
writes into `build/faults/<group>.md`.
"""
_MOST_NEAR = 12


def write(group: str, catches: Mapping[str, Mapping[str, Catch]], clean: Mapping[tuple[str, str], Cell]) -> None:
    """Write a group's long table into the build folder, its record, and the page of all records."""
    faults = catalogue.GROUPS[group]
    lines = [
        f"# Planted faults: {_TITLES[group]}",
        "",
        *(_every_fault(faults, catches) if faults else _students(clean)),
        "",
        *_margins(clean),
    ]
    write_text(BUILD / f"{group}.md", "\n".join(lines) + "\n")
    records = read()
    records[group] = {
        "faults": {fault.name: _by_format(catches[fault.name]) for fault in faults},
        "thorough": sum(catch.thorough for fault in faults for catch in catches[fault.name].values()),
        "clean_passed": sum(cell.verdict == "passed" for cell in clean.values()),
        "clean": sorted(f"{which} {target}" for which, target in clean),
        "nearest": _nearest(clean),
    }
    records = {name: records[name] for name in catalogue.GROUPS if name in records}
    write_text(RECORD, json.dumps(records, indent=1) + "\n")
    write_text(PAGE, "\n".join(page(records)) + "\n")


def read() -> dict[str, Any]:
    """Read the records of all groups that ran."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}


def _by_format(row: Mapping[str, Catch]) -> dict[str, list[int]]:
    """Count a fault's files, and those of them that were caught, by format."""
    found = {}
    for name in formats.NAMES:
        cells = [catch for target, catch in row.items() if target.partition("-")[0] == name and catch.applies]
        if cells:
            found[name] = [sum(catch.caught for catch in cells), len(cells)]
    return found


def page(records: Mapping[str, Any]) -> Iterable[str]:
    """Yield the lines of the page: each group, each place where faults are planted, and the nearest clean exports."""
    yield from _HEAD.splitlines()
    head = "| group | faults | caught | files | only by `--thorough` | clean exports | passed |"
    yield from ("", head, "|---|---|--:|--:|--:|--:|--:|")
    for group, record in records.items():
        rows = record["faults"].values()
        caught = sum(all(one == of for one, of in row.values()) for row in rows)
        files = sum(of for row in rows for _, of in row.values())
        # Groups that ran before this was counted were verified thoroughly at once.
        counts = (f"{caught} of {len(rows)}", files, record.get("thorough", "")) if rows else ("", "", "")
        passed = record["clean_passed"]
        yield _line(f"`{group}`", _TITLES[group], *counts, len(record["clean"]), passed)
    names = {name for record in records.values() for name in record["clean"]}
    yield from ("", f"Groups share clean exports: there are {len(names)}.")
    yield from ("", "## Files caught, by where the fault was planted", "")
    yield _line("planted in", "faults", *(formats.get(name).TITLE for name in formats.NAMES))
    yield "|---|--:|" + "--:|" * len(formats.NAMES)
    levels: dict[str, list[dict[str, list[int]]]] = {}
    for record in records.values():
        for name, row in record["faults"].items():
            levels.setdefault(catalogue.get(name).level, []).append(row)
    for level, rows in levels.items():
        sums = [[sum(row.get(name, (0, 0))[at] for row in rows) for at in (0, 1)] for name in formats.NAMES]
        yield _line(level, len(rows), *(f"{one} of {of}" if of else "n/a" for one, of in sums))
    yield from ("", "## Clean exports: the nearest to a bound", "")
    yield from ("| gate | scheme | format | found | bound | student |", "|---|---|---|--:|--:|---|")
    near = [row for record in records.values() for row in record["nearest"]]
    best: dict[str, list[Any]] = {}
    for row in near:
        if row[0] not in best or row[-1] < best[row[0]][-1]:
            best[row[0]] = row
    for gate, scheme, name, found, bound, student, _ in sorted(best.values(), key=lambda row: row[-1])[:_MOST_NEAR]:
        yield _line(gate, scheme, name, f"{found:.4g}", f"{bound:.4g}", student)


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _nearest(clean: Mapping[tuple[str, str], Cell]) -> list[list[Any]]:
    """Return for each gate the clean export that came nearest to its bound, as a fraction of the bound."""
    best: dict[str, list[Any]] = {}
    for (which, target), cell in clean.items():
        backend, _, scheme = target.partition("-")
        for gate in cell.gates:
            if not gate.bound or gate.found is None:
                continue
            name = gate.name.partition(":")[0] + ("" if "bad end" not in gate.name else " (interval)")
            distance = abs(gate.found - gate.bound) / abs(gate.bound)
            if name.startswith("min_") and gate.bound < 1:
                distance = abs(gate.found - gate.bound) / (1 - gate.bound)
            if name not in best or distance < best[name][-1]:
                best[name] = [name, scheme, backend, gate.found, gate.bound, which, distance]
    return list(best.values())


def _every_fault(faults: Sequence[Fault], catches: Mapping[str, Mapping[str, Catch]]) -> list[str]:
    titles = " | ".join(formats.get(name).TITLE for name in formats.NAMES)
    return [
        f"| fault | what is wrong | planted in | {titles} |",
        "|---|---|---|" + "---|" * len(formats.NAMES),
        *(_row(fault, catches[fault.name]) for fault in faults),
    ]


def _students(clean: Mapping[tuple[str, str], Cell]) -> list[str]:
    """List students with the formats and schemes whose files passed, and those that did not."""
    rows: dict[str, tuple[list[str], list[str]]] = {}
    for (which, target), cell in clean.items():
        rows.setdefault(which, ([], []))[cell.verdict != "passed"].append(target)
    return [
        "## Students",
        "",
        "| student | passed | failed |",
        "|---|--:|---|",
        *(f"| {which} | {len(good)} | {', '.join(bad) or 'none'} |" for which, (good, bad) in sorted(rows.items())),
    ]


def _row(fault: Fault, row: Mapping[str, Catch]) -> str:
    cells = [_cell(fault, name, row) for name in formats.NAMES]
    return f"| `{fault.name}` | {fault.what} | {fault.level} | " + " | ".join(cells) + " |"


def _cell(fault: Fault, name: str, row: Mapping[str, Catch]) -> str:
    parts = []
    for target, catch in row.items():
        backend, _, scheme = target.partition("-")
        if backend == name:
            said = (
                catch.by if catch.caught else f"n/a: {catch.by}" if not catch.applies else f"**NOT CAUGHT**: {catch.by}"
            )
            parts.append(f"{scheme}: {_short(said)}")
    left_out = [why for key, why in fault.not_for.items() if key.partition("-")[0] == name]
    parts += [f"n/a: {why}" for why in left_out]
    return "<br>".join(parts) or "n/a"


def _short(text: str) -> str:
    text = " ".join(text.split()).replace("|", "\\|").replace(f"{REPOSITORY}/", "")
    return text if len(text) <= 140 else text[:137] + "..."


def _margins(clean: Mapping[tuple[str, str], Cell]) -> list[str]:
    """Say how far the worst clean export stays from each bound."""
    worst: dict[tuple[str, str, str], tuple[float, float, str]] = {}
    for (which, target), cell in clean.items():
        backend, _, scheme = target.partition("-")
        for gate in cell.gates:
            if gate.bound is None or gate.found is None:
                continue
            key = (gate.name.partition(":")[0] + ("" if "bad end" not in gate.name else " (interval)"), scheme, backend)
            minimum = gate.name.startswith("min_")
            known = worst.get(key)
            if known is None or ((gate.found < known[0]) == minimum and gate.found != known[0]):
                worst[key] = (gate.found, gate.bound, which)
    rows = [
        f"| {gate} | {scheme} | {backend} | {found:.6g} | {bound:g} | {which} |"
        for (gate, scheme, backend), (found, bound, which) in sorted(worst.items())
    ]
    return [
        "## Clean exports: the worst that each gate let pass",
        "",
        "| gate | scheme | format | worst | bound | student |",
        "|---|---|---|---|---|---|",
        *rows,
    ]
