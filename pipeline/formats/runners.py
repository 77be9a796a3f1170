"""Command-line benchmark programs of runtimes for Android phones."""

from collections.abc import Callable
from dataclasses import dataclass

RUNS, WARMUP = 50, 5


@dataclass(frozen=True)
class Timings:
    """Times that a program reported for one file at one length."""

    runs: int
    mean_ms: float
    p50_ms: float | None = None
    """None if the program reports no median."""
    min_ms: float | None = None
    max_ms: float | None = None
    load_ms: float | None = None


@dataclass(frozen=True)
class PhoneRunner:
    """A program that times a format's files on an Android phone without any app."""

    name: str
    inputs: str
    """Kind of input that it gives a file."""
    any_length: bool
    """Whether it can run each function of a file; otherwise it runs the longest length only."""
    log_tag: str | None
    """Tag of its lines in the phone's log, if it reports times there; None if it prints them."""
    command: Callable[[str, str, str, int], list[str]]
    """`(program, file, function, threads) -> command line`."""
    read: Callable[[str], Timings | None]
    """Parses the times from its output; None if there are none."""
