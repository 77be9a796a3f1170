"""Steps of a line: one artifact each, made, skipped or foretold. Nothing heavy is imported here."""

import importlib.metadata
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pipeline import artifact
from pipeline.artifact import Artifact, Order


class Progress(Protocol):
    """What the line tells while it works."""

    def started(self, step: str) -> None:
        """A step began."""

    def advanced(self, step: str, what: str, fraction: float) -> None:
        """A long step came so far."""

    def finished(self, step: "Step") -> None:
        """A step was made, or skipped because it was there."""

    def note(self, text: str) -> None:
        """Something worth a line."""


@dataclass
class Step:
    """One artifact of the line and what became of it."""

    name: str
    place: Path
    made: bool
    reason: str
    """Why it has to be made; empty if it was there."""
    seconds: float
    """Spent, or in a dry run estimated."""
    disk_bytes: int
    """Estimated, in a dry run."""
    artifact: Artifact | None = None


@dataclass
class Steps:
    """The steps of one walk over a recipe."""

    folder: Path
    """The recipe's folder in the build folder."""
    progress: Progress
    dry: bool
    """Whether nothing is made, only foretold."""
    done: list[Step] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set by Ctrl-C: nothing that ends after it counts as made, since its worker may have been killed."""
    prefix: str = ""
    """Stands before the steps' names, where two recipes are walked in one run."""
    threads: int | None = None
    """Of the student's workers, where others run beside them; None: one a core."""

    def log(self, name: str) -> Path:
        """Return where a worker's own words go."""
        return self.folder / "logs" / f"{name}.log"

    def telling(self, name: str) -> Callable[[str, float], None]:
        """Return what a worker tells how far a step came."""
        return partial(self.progress.advanced, f"{self.prefix}{name}")

    def take(
        self,
        name: str,
        place: Path,
        ready: Order | None,
        make: Callable[[Path], Mapping[str, Any]],
        *,
        seconds: float,
        disk: int,
    ) -> Artifact | None:
        """Make, skip or foretell one artifact.

        Args:
            name: what people read.
            place: where it goes.
            ready: the order, or None where an input is not made yet, which happens in a dry run only.
            make: fills the directory.
            seconds: estimate of the time.
            disk: estimate of the size in bytes.
        """
        name = f"{self.prefix}{name}"
        found, reason = artifact.lookup(ready) if ready else (None, "an input is new")
        if (found or self.dry) and any(step.place == place for step in self.done):
            # Two recipes of the walk begin with one, which is told once.
            return found
        if found or self.dry or ready is None:
            step = Step(name, place, found is None, reason, 0.0 if found else seconds, 0 if found else disk, found)
        else:
            if reason not in ("new", "changed inputs or settings"):
                self.progress.note(f"{name}: {reason}; made again")
            self.progress.started(name)
            started = time.perf_counter()
            result, made = artifact.build(ready, partial(self._unless_stopping, make))
            step = Step(name, place, made, reason, time.perf_counter() - started, 0, result)
        self.done.append(step)
        self.progress.finished(step)
        return step.artifact

    def _unless_stopping(self, make: Callable[[Path], Mapping[str, Any]], out: Path) -> Mapping[str, Any]:
        metrics = make(out)
        if self.stopping.is_set():
            raise KeyboardInterrupt
        return metrics


def order_of(
    place: Path,
    stage: str,
    version: int,
    params: Mapping[str, Any],
    inputs: Mapping[str, Artifact | None],
    tools: Mapping[str, str],
) -> Order | None:
    """Return an order, or None where an input is not there yet (in a dry run)."""
    digests = {name: value.digest for name, value in inputs.items() if value is not None}
    return Order(place, stage, version, params, digests, tools) if len(digests) == len(inputs) else None


def versions(*distributions: str) -> dict[str, str]:
    """Return the versions of distributions from their metadata; nothing is imported."""
    found = {}
    for name in distributions:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found
