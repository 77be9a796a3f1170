"""`make faults`: plant everything, judge everything, print two numbers, write benchmarks/FAULTS.md."""

import argparse
import contextlib
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from store import only_run

from faults import catalogue, clean, line, run, table
from faults.fault import Fault
from faults.line import BUILD
from faults.outcome import Catch, judge_fault
from faults.run import Cell
from faults.students import Student
from faults.workers import WorkerPool
from pipeline import formats
from pipeline.convert.stage import Target

PARALLEL = 2
_TOLD_EVERY = 10
"""Jobs between two lines in a log."""
Cells = dict[tuple[str, str], Cell]
"""By student or fault, and target."""


def main() -> int:
    """Do what the command line asks for and return the exit code."""
    options = _options()
    groups = [options.group] if options.group else list(catalogue.GROUPS)
    faults = [fault for group in groups for fault in catalogue.GROUPS[group] if _wanted(fault, options.only)]
    if options.list:
        print("\n".join(f"{fault.name:38} {fault.level:11} {fault.what}" for fault in faults))
        return 0
    chosen = (options.format,) if options.format else formats.NAMES
    bench = Bench(chosen, Console(stderr=True))
    with only_run(BUILD, waiting=lambda: bench.console.print("another run works in build/faults; waiting")):
        partial_run = bool(options.only or options.format or options.clean_only)
        students = [] if options.only else [which for group in groups for which in clean.students(group)]
        bench.run([] if options.clean_only else faults, clean.exports(students, chosen))
    return bench.conclude(pages=[] if partial_run else groups)


def _wanted(fault: Fault, only: list[str] | None) -> bool:
    return only is None or any(part in fault.name for part in only)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument(
        "--only", metavar="NAME", action="append", help="faults whose name contains this, and their clean files"
    )
    parser.add_argument("--group", choices=catalogue.GROUPS, help="this group of faults alone")
    parser.add_argument("--format", choices=formats.NAMES, help="this format alone")
    parser.add_argument("--list", action="store_true", help="name the faults and stop")
    parser.add_argument("--clean-only", action="store_true", help="clean exports, no faults")
    return parser.parse_args()


class Bench:
    """One run of the command."""

    def __init__(self, formats: tuple[str, ...], console: Console) -> None:
        self.formats = formats
        self.console = console
        self.clean: Cells = {}
        self.faulty: Cells = {}
        self.faults: list[Fault] = []
        self.seconds = 0.0

    def run(self, faults: list[Fault], exports: Iterable[tuple[Student, Target]]) -> None:
        """Judge clean files first: they are the controls, and what file faults start from."""
        started = time.monotonic()
        self.faults = faults
        exports = {*exports, *((fault.student, target) for fault in faults for target in self._targets(fault))}
        with self.at_work() as worker_pool, self._progress() as progress:
            self._lines(worker_pool, {which for which, _ in exports} | _strangers(faults))
            self._clean(worker_pool, exports, progress)
            planted = [
                partial(self._fault_jobs, worker_pool, fault, [t for t in self._targets(fault) if t.backend == name])
                for fault in faults
                for name in self.formats
            ]
            self._each(progress, "planted faults", planted)
        self.seconds = time.monotonic() - started

    @contextlib.contextmanager
    def at_work(self) -> Iterator[WorkerPool]:
        """Make the pool; its workers are ended with the context."""
        worker_pool = WorkerPool(BUILD / "logs", PARALLEL)
        with worker_pool.at_work():
            yield worker_pool

    def export(self, worker_pool: WorkerPool, students: Iterable[Student]) -> None:
        """Judge the clean files of some students, in workers that live on."""
        exports = set(clean.exports(students, self.formats))
        with self._progress() as progress:
            self._lines(worker_pool, {which for which, _ in exports})
            self._clean(worker_pool, exports, progress)

    def _clean(self, worker_pool: WorkerPool, exports: set[tuple[Student, Target]], progress: Progress) -> None:
        by_backend: dict[tuple[Student, str], list[Target]] = {}
        for which, target in sorted(exports, key=lambda export: (str(export[0]), line.rank(export[1]))):
            by_backend.setdefault((which, target.backend), []).append(target)
        jobs = [partial(self._clean_jobs, worker_pool, which, targets) for (which, _), targets in by_backend.items()]
        self._each(progress, "clean exports", jobs)

    def _targets(self, fault: Fault) -> list[Target]:
        cells = [Target(name, scheme) for name, schemes in fault.cells.items() for scheme in schemes]
        return [target for target in cells if target.backend in self.formats and str(target) not in fault.not_for]

    def _lines(self, worker_pool: WorkerPool, students: set[Student]) -> None:
        with worker_pool.take() as workers:
            self.lines = {which: line.open_line(which, workers) for which in sorted(students, key=str)}

    def _clean_jobs(self, worker_pool: WorkerPool, which: Student, targets: list[Target]) -> None:
        with worker_pool.take() as workers:
            for target in targets:
                self.clean[str(which), str(target)] = run.clean_cell(self.lines[which], target, workers)

    def _fault_jobs(self, worker_pool: WorkerPool, fault: Fault, targets: list[Target]) -> None:
        with worker_pool.take() as workers:
            for target in targets:
                self.faulty[fault.name, str(target)] = run.faulty_cell(
                    fault, self.lines[fault.student], target, workers
                )

    def _progress(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        return Progress(*columns, console=self.console)

    def _each(self, progress: Progress, title: str, jobs: list[partial[None]]) -> None:
        bar = progress.add_task(title, total=len(jobs))
        with ThreadPoolExecutor(PARALLEL) as pool:
            waiting = [pool.submit(job) for job in jobs]
            try:
                for done, future in enumerate(as_completed(waiting), 1):
                    future.result()
                    progress.advance(bar)
                    if not self.console.is_terminal and (done % _TOLD_EVERY == 0 or done == len(jobs)):
                        # A bar that nobody sees is drawn at its end alone.
                        self.console.print(f"{title}: {done} of {len(jobs)}")
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _clean_of(self, group: str) -> Cells:
        names = {str(which) for which in clean.students(group)}
        names |= {str(fault.student) for fault in catalogue.GROUPS[group]}
        return {key: cell for key, cell in self.clean.items() if key[0] in names}

    def catches(self) -> dict[str, dict[str, Catch]]:
        """Return what became of each fault's targets."""
        found = {}
        for fault in self.faults:
            cells = {target: cell for (name, target), cell in self.faulty.items() if name == fault.name}
            controls = {target: cell for (name, target), cell in self.clean.items() if name == str(fault.student)}
            found[fault.name] = judge_fault(fault, cells, controls)
        return found

    def conclude(self, *, pages: Iterable[str]) -> int:
        """Print the two numbers and what was missed, write the pages of these groups; return the exit code."""
        catches = self.catches()
        judged = {name: {t: c for t, c in row.items() if c.applies} for name, row in catches.items()}
        missed = {name: {t: c.by for t, c in row.items() if not c.caught} for name, row in judged.items()}
        missed = {name: row for name, row in missed.items() if row}
        failed = {key: cell for key, cell in self.clean.items() if cell.verdict != "passed"}
        alarms = {key: cell for key, cell in failed.items() if " ".join(key) not in clean.TOO_COARSE}
        for name, row in missed.items():
            for target, why in row.items():
                self.console.print(f"not caught: {name} in {target}: {why}", markup=False)
        for (which, target), cell in alarms.items():
            why = cell.stopped or "; ".join(gate.detail or gate.name for gate in cell.fired) or cell.verdict
            self.console.print(f"false alarm: {which} {target}: {why}", markup=False)
        for group in pages:
            table.write(group, catches, self._clean_of(group))
        if self.faults:
            cells = sum(len(row) for row in judged.values())
            print(f"planted faults: {len(catches) - len(missed)} of {len(catches)} caught ({cells} target cells)")
        passed = len(self.clean) - len(failed)
        print(f"clean exports: {passed} of {len(self.clean)} passed ({len(alarms)} false alarms)")
        self.console.print(f"{self.seconds / 60:.1f} minutes")
        return 1 if missed or alarms else 0


def _strangers(faults: list[Fault]) -> set[Student]:
    """Return the students whose files are put in the place of another's."""
    return {run.stranger_of(fault.student) for fault in faults if fault.level == "file"}


if __name__ == "__main__":
    sys.exit(main())
