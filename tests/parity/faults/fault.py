"""A planted fault: what is wrong, where it is planted, and in which files it has to be caught."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from faults.students import Student

Level = Literal["checkpoint", "graph", "samples", "quantised", "rounding", "file", "companions", "manifest", "runtime"]
Cells = Mapping[str, tuple[str, ...]]
"""Schemes by format."""

EVERYWHERE: Cells = {
    "litert": ("fp32", "int8_dynamic"),
    # Its int8 files compute in half precision, so they stand for fp16 too.
    "coreml": ("fp32", "int8_weight_only"),
    "executorch": ("fp32", "int8_dynamic"),
}
FLOAT: Cells = {name: ("fp32",) for name in EVERYWHERE}
INT8: Cells = {name: schemes[-1:] for name, schemes in EVERYWHERE.items()}


@dataclass(frozen=True)
class Fault:
    """One bug. `plant` is what its level's file says there."""

    name: str
    what: str
    """One line for people: what went wrong, as it happens in real life."""
    level: Level
    plant: Callable[..., Any]
    student: Student = field(default_factory=Student)
    cells: Cells = field(default_factory=lambda: EVERYWHERE)
    not_for: Mapping[str, str] = field(default_factory=dict)
    """Why it does not apply, by format that `cells` leaves out, or by `format-scheme`."""
    same_file: Mapping[str, str] = field(default_factory=dict)
    """Why the file comes out byte for byte equal, by format; the run checks that it does."""
    undone: Mapping[str, str] = field(default_factory=dict)
    """How a toolchain mends it, by format; the run checks that the file passes."""
    alone: bool = False
    """Whether each file has to be caught itself: what people ship has no fp32 export of the same graph beside it."""
    stops: str | None = None
    """Pattern of the error with which convert, load or the runtime may refuse it. Another error is not a catch."""

    @property
    def in_exported_graph(self) -> bool:
        """Whether it is planted before the toolchain, whose file all schemes of a format then share."""
        return self.level in ("checkpoint", "graph", "samples")
