"""The command of a table: show its rows, carry out what is missing, write the page. One run works at a time."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from filelock import FileLock, Timeout
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from benchmarks import trials, trials_record, trials_run, trials_scores
from benchmarks.trials import Table, Trial
from benchmarks.trials_record import Record
from pipeline.atomic import write_aside
from pipeline.cli.progress import Progress
from pipeline.errors import EXIT_DONE, EXIT_GATE_FAILED, InputError, PipelineError
from pipeline.execution.local import share_of_cores

_out = Console(highlight=False)
_INTERRUPTED = 130
_SHOWN = {
    "there": "[green]there[/green]",
    "older": "[yellow]older code[/yellow]",
    "stale": "[yellow]stale[/yellow]",
    "not run": "[dim]not run[/dim]",
}


def main(table: Table, page: Callable[[Table], Iterator[str]], said: str | None, given: Sequence[str] | None) -> int:
    """Do what the command line asks for.

    Args:
        table: the rows.
        page: yields the lines of the table's page, from records alone.
        said: what `--help` begins with.
        given: the arguments; the process's own where None.

    Returns:
        The exit code: 0 done, 1 a trial failed, 2 usage, 130 interrupted.
    """
    options = _parser(table, said).parse_args(given)
    try:
        expected = _wanted(table, options.only, options.seed)
        if options.jobs < 1:
            raise InputError(f"--jobs {options.jobs}: at least one trial is under way at a time.")
        if options.list:
            show(table, expected)
            return EXIT_DONE
        if options.recipes:
            for trial in expected:
                _out.print(str(trials.write(table, trial)[1]), soft_wrap=True)
            return EXIT_DONE
        failed = {} if options.page else work(table, expected, page, options.jobs)
        _write(table, page)
    except PipelineError as error:
        _out.print(f"[red]error:[/red] {escape(str(error))}", soft_wrap=True)
        return error.exit_code
    except KeyboardInterrupt:
        _out.print("stopped; the same command goes on from here")
        return _INTERRUPTED
    for name, reason in failed.items():
        _out.print(f"[red]{escape(name)} failed:[/red] {escape(reason)}", soft_wrap=True)
    return EXIT_GATE_FAILED if failed else EXIT_DONE


def _parser(table: Table, said: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"make {table.name}", description=said)
    parser.add_argument("--only", action="append", metavar="ROW", help="this row; may be repeated")
    parser.add_argument("--seed", action="append", type=int, help="this seed; may be repeated")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="so many trials side by side, each with its share of the cores: two on two cores take 0.6 × the time",
    )
    alone = parser.add_mutually_exclusive_group()
    alone.add_argument("--list", action="store_true", help="show rows, what there is of them, and how long they take")
    alone.add_argument("--page", action="store_true", help="write the page of the records at hand, compute nothing")
    alone.add_argument("--recipes", action="store_true", help="write each row's recipe for the ordinary command")
    return parser


def _wanted(table: Table, names: Sequence[str] | None, seeds: Sequence[int] | None) -> list[Trial]:
    rows = {table.row(name).name for name in names} if names else {row.name for row in table.rows}
    found = [trial for trial in table.trials() if trial.row.name in rows and (not seeds or trial.seed in seeds)]
    if not found:
        have = sorted({seed for row in table.rows if row.name in rows for seed in row.seeds})
        raise InputError(
            f"--seed {', '.join(map(str, seeds or ()))}: these rows have seeds {', '.join(map(str, have))}."
        )
    return found


def show(table: Table, expected: Sequence[Trial]) -> None:
    """Print trials in the order of work, what there is of each, and the estimate."""
    grid = Grid("trial", "what", "made of", "record", "~min", "bound", box=None, pad_edge=False)
    left = 0.0
    for trial in expected:
        record, state = trials_record.read(table, trial)
        left += 0.0 if state == "there" else trial.row.minutes
        of = ", ".join(parent.name for parent in table.parents(trial))
        bound = f"{trial.row.bound}: {trials_scores.holds(table, trial.row)}" if trial.row.bound else ""
        made = {stage.name: stage.version for stage in record.stages} if record and state == "older" else {}
        newer = trials.newer(made)
        said = _SHOWN[state] + (f": {', '.join(newer)}" if newer else "")
        grid.add_row(trial.name, escape(trial.row.said), of, said, f"{trial.row.minutes:g}", bound)
    _out.print(grid)
    _out.print(f"about {left / 60:.1f} hours of work left on two idle cores, estimated", soft_wrap=True)


def work(
    table: Table, expected: Sequence[Trial], page: Callable[[Table], Iterator[str]], jobs: int = 1
) -> dict[str, str]:
    """Carry out what has no record of this code and these settings, each after what it is made of.

    The page is written after each, so that a run may be stopped at any moment.

    Args:
        table: the rows.
        expected: the trials.
        page: yields the lines of the table's page.
        jobs: so many trials are under way at a time.

    Returns:
        What failed, with the reason; the others are carried out all the same.
    """
    todo = [trial for trial in expected if trials_record.read(table, trial)[1] != "there"]
    show(table, todo)
    failed: dict[str, str] = {}
    running: dict[Future[Record], Trial] = {}
    # Small matrices are the faster with a core each: two cores do 1.7 times as much for two trials as for one.
    threads = None if jobs == 1 else share_of_cores(jobs)
    with _alone(table), Progress(quiet=False) as progress, ThreadPoolExecutor(jobs) as pool:
        while todo or running:
            for trial in _ready(table, todo, list(running.values())):
                lost = [parent.name for parent in table.parents(trial) if parent.name in failed]
                if lost:
                    failed[trial.name] = f"it is made of {lost[0]}, which failed"
                elif len(running) < jobs:
                    running[pool.submit(trials_run.run, table, trial, progress, threads)] = trial
                else:
                    continue
                todo.remove(trial)
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                trial = running.pop(future)
                try:
                    future.result()
                except PipelineError as error:
                    failed[trial.name] = str(error)
                    progress.note(f"{trial.name} failed: {error}")
                _write(table, page)
    return failed


def _ready(table: Table, todo: Sequence[Trial], running: Sequence[Trial]) -> list[Trial]:
    """Return the trials that wait for no other one."""
    open_ones = {trial.name for trial in (*todo, *running)}
    return [trial for trial in todo if not any(parent.name in open_ones for parent in table.parents(trial))]


@contextmanager
def _alone(table: Table) -> Iterator[None]:
    """Hold the lock of all tables: two runs beside each other, each with all cores, take more than twice as long."""
    table.build.mkdir(parents=True, exist_ok=True)
    lock = FileLock(table.build / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise InputError(f"another run works in {table.build}; it goes on by itself, so wait for its end.") from error
    try:
        yield
    finally:
        lock.release()


def _write(table: Table, page: Callable[[Table], Iterator[str]]) -> None:
    with write_aside(table.pages / f"{table.name.upper()}.md") as aside:
        aside.write_text("\n".join(page(table)) + "\n", encoding="utf-8")
