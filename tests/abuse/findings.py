"""What became of each case of a campaign, kept on disk as it comes, so that a stopped campaign goes on."""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from store import code_and_tools

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "build" / "abuse"
HELD, VIOLATED, NOT_RUN, TOO_LATE = "held", "violated", "not run", "too late"
"""TOO_LATE: a command that had ended before it was killed, or before a disk was full; another one is drawn for it."""
PARALLEL = 2
_TOLD_EVERY = 20


@dataclass(frozen=True)
class Finding:
    """What became of one case."""

    number: int
    group: str
    """The row of the page in which it is counted: a command, or a kind of input."""
    what: str
    """What was done, in a line."""
    outcome: str
    said: list[str] = field(default_factory=list)
    """What was violated, or why it was not run."""
    code: int | None = None
    """Exit code of the command that was abused."""
    seconds: float = 0.0


def judged(number: int, group: str, what: str, problems: list[str], code: int | None = None) -> Finding:
    """Return the finding of a case that was run."""
    return Finding(number, group, what, VIOLATED if problems else HELD, problems, code)


class Kept:
    """The findings of one campaign and seed."""

    def __init__(self, name: str, seed: int) -> None:
        """Read what an earlier run of the same code kept; what another code kept does not count."""
        self._file = BUILD / f"{name}-{seed}.jsonl"
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self.findings: dict[int, Finding] = {}
        lines = self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []
        if not lines or lines[0] != code_and_tools():
            self._file.write_text(code_and_tools() + "\n", encoding="utf-8")
            return
        # A run that was killed may have left half a line.
        for row in lines[1:]:
            if row.endswith("}"):
                finding = Finding(**json.loads(row))
                self.findings[finding.number] = finding

    def add(self, finding: Finding) -> None:
        """Keep one more."""
        with self._lock, self._file.open("a", encoding="utf-8") as sink:
            self.findings[finding.number] = finding
            sink.write(json.dumps(asdict(finding)) + "\n")

    @property
    def minutes(self) -> float:
        """Return how long the cases took, as if one had followed the other, over how many ran at once."""
        return sum(finding.seconds for finding in self.findings.values()) / 60 / PARALLEL

    @property
    def counted(self) -> int:
        """Return how many say something."""
        return sum(finding.outcome != TOO_LATE for finding in self.findings.values())


def _timed(one: Callable[[int], Finding], number: int) -> Finding:
    began = time.monotonic()
    return replace(one(number), seconds=time.monotonic() - began)


def carry_out(
    kept: Kept, one: Callable[[int], Finding], wanted: int, deadline: float, tell: Callable[[str], None]
) -> None:
    """Do cases, several beside each other, until so many count or the time is over.

    Args:
        kept: where findings go; what is there is not done again.
        one: does the case of a number.
        wanted: how many have to count.
        deadline: on the clock of `time.monotonic`; what runs then is finished.
        tell: hears how far it is, and each violation.
    """
    running: dict[Future[Finding], int] = {}
    number, done = 0, 0
    with ThreadPoolExecutor(PARALLEL) as pool:
        while True:
            while len(running) < PARALLEL and time.monotonic() < deadline and kept.counted + len(running) < wanted:
                while number in kept.findings:
                    number += 1
                running[pool.submit(_timed, one, number)] = number
                number += 1
            if not running:
                return
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                del running[future]
                finding = future.result()
                kept.add(finding)
                done += 1
                if finding.outcome == VIOLATED:
                    tell(f"violated: {finding.group} {finding.number}, {finding.what}: {'; '.join(finding.said)}")
                if done % _TOLD_EVERY == 0:
                    tell(f"{kept.counted} of {wanted} done")
