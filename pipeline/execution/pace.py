"""The pace of this machine: what nodes took beside their estimates, by which later estimates are corrected.

The record is a small file of the user's, `pocketbert/pace.json` in the folder of states. Without it, or where it cannot
be read or written, estimates stay as they are.
"""

import contextlib
import json
import math
import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import TypeAlias

from pipeline import atomic
from pipeline.execution.node import Node
from pipeline.trust.origin import state_folder

FILE = "pace.json"
_KEPT = 5
"""How many ratios of a kind are kept, the newest; the median of them forgives a run on a busy machine."""
_MOST = 50.0
"""Largest correction; what is beyond it was no work of its kind."""
_LARGEST_BYTES = 1 << 20
_SIZE_BYTES, _SIZE_STEP = 1e6, 4
"""A class of sizes reaches over a factor of four."""

_SIZE = re.compile(r"[0-9]{1,3}")
"""A class of sizes, at the end of a key."""

_Ratios: TypeAlias = dict[str, list[float]]


class Pace:
    """Ratios of measured to estimated seconds, by stage, kind of work and class of sizes."""

    def __init__(self, file: Path | None = None) -> None:
        """Read the record.

        Args:
            file: where it is; None for the user's.
        """
        self._file = file
        if file is None:
            with contextlib.suppress(RuntimeError):
                self._file = state_folder() / FILE
        self._ratios = self._read().get(self.machine(), {})

    @staticmethod
    def machine() -> str:
        """Return this machine's name, since several may share the user's folder."""
        return platform.node() or "localhost"

    def seconds(self, node: Node) -> float:
        """Return the seconds that a node will take, estimated: by its own kind of work, or else by the nearest one."""
        return node.estimate.seconds * self._ratio(node)

    def _ratio(self, node: Node) -> float:
        """Return the ratio of a node's kind and size, of its kind in the nearest size, or of its stage; else 1."""
        size = _size_class(node)
        of_kind = {int(key.rpartition("/")[2]): found for key, found in self._ratios.items() if _is_of(key, node)}
        if of_kind:
            nearest = min(of_kind, key=lambda one: (abs(one - size), one))
            return median(of_kind[nearest])
        of_stage = [median(found) for key, found in self._ratios.items() if key.partition("/")[0] == node.stage]
        return median(of_stage) if of_stage else 1.0

    def record(self, took: Iterable[tuple[Node, float]]) -> None:
        """Add what nodes took, in seconds; where the file cannot be written, it is forgotten."""
        rows = [(node, seconds) for node, seconds in took if node.estimate.seconds > 0]
        if not rows or self._file is None:
            return
        whole = self._read()
        ratios = whole.setdefault(self.machine(), {})
        for node, seconds in rows:
            ratio = min(max(seconds / node.estimate.seconds, 1 / _MOST), _MOST)
            key = f"{_kind(node)}/{_size_class(node)}"
            ratios[key] = [*ratios.get(key, []), round(ratio, 4)][-_KEPT:]
        self._ratios = ratios
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            atomic.write_text(self._file, json.dumps(whole, indent=1) + "\n")

    def _read(self) -> dict[str, _Ratios]:
        """Return the ratios of every machine that shares the file; what is damaged counts for nothing."""
        try:
            # Nor from a pipe, which nobody may ever write to.
            if self._file is None or not self._file.is_file() or self._file.stat().st_size > _LARGEST_BYTES:
                return {}
            found = json.loads(self._file.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        machines = found.items() if isinstance(found, dict) else ()
        return {name: _sound(ratios) for name, ratios in machines}


def _sound(ratios: object) -> _Ratios:
    """Return the entries of a machine that are what `record` writes."""
    found: _Ratios = {}
    for key, values in ratios.items() if isinstance(ratios, Mapping) else ():
        numbers = values if isinstance(values, list) else []
        fit = [one for one in numbers if isinstance(one, float | int) and 1 / _MOST <= one <= _MOST]
        if fit and _SIZE.fullmatch(key.rpartition("/")[2]):
            found[key] = fit[-_KEPT:]
    return found


def _kind(node: Node) -> str:
    return f"{node.stage}/{node.estimate.kind}"


def _is_of(key: str, node: Node) -> bool:
    return key.rpartition("/")[0] == _kind(node)


def _size_class(node: Node) -> int:
    return max(0, round(math.log(max(node.estimate.size_bytes, 1) / _SIZE_BYTES, _SIZE_STEP)))
