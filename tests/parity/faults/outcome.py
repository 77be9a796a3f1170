"""Was it caught, and by what? Decided from the cells alone."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from faults.fault import Fault
from faults.run import Cell, Gate

STATIC = (
    "companions",
    "golden",
    "signature",
    "labels",
    "claims",
    "weights",
    "constants",
    "wiring",
    "arithmetic",
    "epsilon",
    "activation",
    "operators",
)
"""Gates that are judged without running the file."""
SAME_GRAPH = "fp32 export of the same graph"


@dataclass(frozen=True)
class Catch:
    """What is said of one faulty file."""

    caught: bool
    by: str
    """The gate, the error, why it does not apply, or what went unseen."""
    applies: bool = True
    """False where the file is the clean one, byte for byte, as the fault says."""
    thorough: bool = False
    """Whether the usual verification saw nothing, and a thorough one did."""


def judge_fault(fault: Fault, cells: Mapping[str, Cell], controls: Mapping[str, Cell]) -> dict[str, Catch]:
    """Return what became of each target of a fault.

    Args:
        fault: the fault.
        cells: its faulty files by target.
        controls: the clean files of the same student by target: a gate that fires on them catches nothing.
    """
    catches = {target: _judge_cell(fault, cell, controls.get(target)) for target, cell in cells.items()}
    if fault.alone or not fault.in_exported_graph:
        return catches
    for target, catch in catches.items():
        float_one = catches.get(f"{target.partition('-')[0]}-fp32")
        if not catch.caught and catch.applies and float_one is not None and float_one.caught:
            catches[target] = Catch(True, f"{SAME_GRAPH}: {float_one.by}")
    return catches


def _judge_cell(fault: Fault, cell: Cell, control: Cell | None) -> Catch:
    backend = cell.target.partition("-")[0]
    for reasons, fits in ((fault.same_file, cell.same_file), (fault.undone, cell.verdict == "passed")):
        if backend in reasons:
            said = reasons[backend] if fits else f"it should not apply, but does: {reasons[backend]}"
            return Catch(False, said, applies=not fits)
    if control is None or control.verdict != "passed":
        return Catch(False, "no control: the clean file did not pass")
    if cell.verdict == "not planted":
        return Catch(False, str(cell.stopped))
    if cell.stopped:
        expected = fault.stops is not None and re.search(fault.stops, cell.stopped)
        return Catch(bool(expected), cell.stopped if expected else f"unexpected: {cell.stopped}")
    if cell.verdict == "failed" and cell.fired:
        return Catch(True, _spell(cell), thorough=cell.thorough)
    return Catch(False, "the same file, byte for byte" if cell.same_file else f"verdict {cell.verdict}")


def _spell(cell: Cell) -> str:
    """Name the gates that fired: what the numbers gave away first, with value and bound, then what the bytes did."""
    fired = sorted(cell.fired, key=lambda gate: gate.name in STATIC)
    first, *others = [_one(gate) for gate in fired]
    names = list(dict.fromkeys(name for name in others if name in STATIC))
    more = len(others) - len(names)
    return ", ".join([first, *names]) + (f" (+{more})" if more else "")


def _one(gate: Gate) -> str:
    name = gate.name.partition(":")[0]
    if gate.name in STATIC or gate.found is None or gate.bound is None:
        return name
    return f"{name} {gate.found:.3g} {'<' if gate.found < gate.bound else '>'} {gate.bound:g}"
