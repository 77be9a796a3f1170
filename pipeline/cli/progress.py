"""Progress on standard error while a command works: steps under way, notes, and the error that ended it."""

import threading
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from pipeline.cli.texts import error_line, plain
from pipeline.execution.executor import Step
from pipeline.report import wording

_err = Console(stderr=True, highlight=False)
_LINE_EVERY_S = 30.0
"""Without a terminal: seconds after which a step under way prints a line, although it is still in the same tenth."""


class Progress:
    """Prints a line for each finished step, and draws bars for those under way where the terminal can show them.

    Steps run side by side in threads, so every method takes a lock.
    """

    def __init__(self, *, quiet: bool) -> None:
        """Show nothing if `quiet`."""
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
        self._quiet = quiet
        self._bars = Bars(*columns, console=_err, transient=True, disable=quiet or not _err.is_terminal)
        self._tasks: dict[str, TaskID] = {}
        self._lines: dict[str, tuple[int, float]] = {}
        """Without a terminal: for each step under way, the tenth and the time of its last printed line."""
        self._lock = threading.Lock()

    def started(self, step: str) -> None:
        """Show a step as under way."""
        with self._lock:
            self._tasks[step] = self._bars.add_task(escape(step), total=None)
            self._lines[step] = (0, time.monotonic())
            if not _err.is_terminal:
                self._print(f"  …    {step}")

    def advanced(self, step: str, what: str, fraction: float) -> None:
        """Show how far a step is; without a terminal, print a line at each tenth of the way and every 30 seconds."""
        with self._lock:
            if step in self._tasks:
                self._bars.update(
                    self._tasks[step], description=escape(f"{step}: {what}"), total=1.0, completed=fraction
                )
            if not _err.is_terminal:
                self._print_advance(step, what, fraction)

    def _print_advance(self, step: str, what: str, fraction: float) -> None:
        now, tenth = time.monotonic(), int(10 * fraction)
        last_tenth, last_time = self._lines.setdefault(step, (0, now))
        if tenth > last_tenth or now - last_time >= _LINE_EVERY_S:
            self._lines[step] = (tenth, now)
            self._print(f"  {100 * fraction:2.0f} %  {escape(step)}: {escape(what)}")

    def finished(self, step: Step) -> None:
        """Replace a step's bar by a line."""
        with self._lock:
            if step.name in self._tasks:
                self._bars.remove_task(self._tasks.pop(step.name))
            self._lines.pop(step.name, None)
            if step.artifact is None:
                return
            if step.made:
                why = f"  [dim]again: {escape(step.reason)}[/dim]" if step.reason not in ("", "new") else ""
                self._print(
                    f"  [green]made[/green] {escape(step.name)}  {step.seconds:.1f} s  {escape(_figures(step))}{why}"
                )
            else:
                self._print(f"  [dim]kept {escape(step.name)}: nothing changed[/dim]")

    def note(self, text: str) -> None:
        """Print a line that is worth reading."""
        with self._lock:
            self._print(f"  [yellow]note[/yellow] {escape(text)}")

    def _print(self, text: str) -> None:
        if not self._quiet:
            self._bars.console.print(text, soft_wrap=True)

    def __enter__(self) -> Self:
        """Start drawing."""
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop drawing."""
        self._bars.stop()


def _figures(step: Step) -> str:
    """Return the most important figures of a finished step."""
    metrics = step.artifact.manifest.metrics if step.artifact else {}
    parts = []
    if "file_bytes" in metrics:
        parts.append(f"{metrics['file_bytes'] / 1e6:.1f} MB")
    if isinstance(metrics.get("zeros"), str):
        parts.append(f"zeros: {metrics['zeros']}")
    if metrics.get("sparsity") is not None:
        parts.append(f"{metrics['sparsity']:.1%} zeros")
    if metrics.get("dev") is not None:
        before = "" if metrics.get("before") is None else f"{metrics['before']:.4f} to "
        where = metrics.get("dataset") or "held-out text"
        parts.append(f"{metrics['metric']} {before}{metrics['dev']:.4f} on {where}")
    if metrics.get("shares_space") is not None:
        few = "" if metrics["shares_space"] else ", too few to share a space"
        parts.append(f"{metrics['found_among_ten']:.1%} of texts are among the ten nearest across both models{few}")
    if "verdict" in metrics:
        parts.append(str(metrics["verdict"]))
    if metrics.get("mean_score") is not None and "score" in metrics:
        kind = metrics["score"]
        mean, worst = (wording.score(metrics[name], kind) for name in ("mean_score", "worst_score"))
        parts.append(f"{wording.score_name(kind)} {mean} on average, {worst} at worst")
    return ", ".join(parts)


def print_error(message: str) -> None:
    """Print an error as one line."""
    _err.print(f"[red]error:[/red] {escape(plain(error_line(message)))}", soft_wrap=True)
