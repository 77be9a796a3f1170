"""What a runtime's own command-line program for Android is told, and what it says."""

from collections.abc import Callable
from dataclasses import dataclass

RUNS, WARMUP = 50, 5


@dataclass(frozen=True)
class Timings:
    """What a program said of one file at one length."""

    runs: int
    mean_ms: float
    p50_ms: float | None = None
    """None where the program gives no median."""
    min_ms: float | None = None
    max_ms: float | None = None
    load_ms: float | None = None


@dataclass(frozen=True)
class PhoneRunner:
    """A program that times a format's files on an Android phone without any app."""

    name: str
    inputs: str
    """What it gives a file to run."""
    any_length: bool
    """Whether it runs each function of a file; otherwise it runs the longest length alone."""
    log_tag: str | None
    """The tag under which it writes to the phone's log, where it may write its times to; None where it prints them."""
    command: Callable[[str, str, str, int], list[str]]
    """`(program, file, function, threads) -> command line`."""
    read: Callable[[str], Timings | None]
    """Returns the times in what it wrote; None where there are none."""
