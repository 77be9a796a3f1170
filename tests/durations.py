"""Wall and CPU seconds of every test, child processes included: printed in sum, kept by test in build/.

`make test-durations` keeps them of all tests, and then, by `python -m durations`, those of each file of tests in
`tests/durations.json` and the dearest files in `docs/contributing.md`. A file's sum is a rule of thumb: what several
files share is counted where it was made.
"""

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
import yardstick

REPOSITORY = Path(__file__).resolve().parents[1]
FILE = REPOSITORY / "build" / "test-durations.json"
KEPT = Path(__file__).with_suffix(".json")
PAGE = REPOSITORY / "docs" / "contributing.md"
BEGIN, END = "<!-- durations: begin. `make test-durations` writes this -->", "<!-- durations: end -->"
_DEAREST = 10
_WORTH_A_LOOK_S = 0.3
"""Looking for children takes some milliseconds: after a shorter test their seconds are counted with the next longer."""


class Durations:
    """Plugin that measures in each pytest process, and keeps and prints in the one that was started."""

    def __init__(self, config: pytest.Config) -> None:
        """Begin to count."""
        self._config = config
        self._is_worker = hasattr(config, "workerinput")
        self._started = time.perf_counter()
        self._cpu = _cpu_seconds()
        self._first_cpu = self._cpu
        self._tests: dict[str, dict[str, float]] = {}
        self._of_workers = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Remember when a test began."""
        self._test_started = time.perf_counter()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Write the seconds of set-up, call and teardown into the last report, which travels to the first process."""
        report = yield
        if call.when == "teardown":
            wall = time.perf_counter() - self._test_started
            before = self._cpu
            if wall > _WORTH_A_LOOK_S:
                self._cpu = _cpu_seconds()
            report.user_properties.append(("seconds", {"wall": round(wall, 3), "cpu": round(self._cpu - before, 2)}))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect."""
        if report.when == "teardown":
            self._tests[report.nodeid] = cast(dict[str, float], dict(report.user_properties)["seconds"])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Tell the first process what this one used."""
        if self._is_worker:
            self._config.workeroutput["cpu"] = _cpu_seconds() - self._first_cpu  # type: ignore[attr-defined]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add what a worker used."""
        self._of_workers += getattr(node, "workeroutput", {}).get("cpu", 0.0)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Keep the seconds by test, slowest first, where all of a run's tests are new or more than before."""
        wall, cpu = time.perf_counter() - self._started, self._of_workers or _cpu_seconds() - self._first_cpu
        terminalreporter.write_line(f"{wall:.0f} s wall, {cpu:.0f} s CPU")
        if self._config.getoption("keep_durations"):
            FILE.parent.mkdir(exist_ok=True)
            ordered = dict(sorted(self._tests.items(), key=lambda one: -one[1]["cpu"]))
            document: dict[str, Any] = {"wall": round(wall, 1), "cpu": round(cpu, 1), "cores": os.cpu_count()}
            document |= {"yardstick": yardstick.seconds(), "tests": ordered}
            FILE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            terminalreporter.write_line(f"seconds of {len(ordered)} tests: {FILE}")


def main(given: Sequence[str] | None = None, *, kept: Path = KEPT, page: Path = PAGE) -> int:
    """Keep the seconds of a run by file of tests, and write the dearest files into the page; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m durations", description=__doc__)
    parser.add_argument("run", type=Path, nargs="?", default=FILE, help="what pytest --keep-durations wrote")
    run = json.loads(parser.parse_args(given).run.read_text(encoding="utf-8"))
    by_file: defaultdict[str, list[float]] = defaultdict(list)
    for test, spent in run.pop("tests").items():
        by_file[test.partition("::")[0]].append(spent["cpu"])
    files = {name: {"cpu": round(sum(spent), 1), "tests": len(spent)} for name, spent in sorted(by_file.items())}
    kept.write_text(json.dumps(run | {"files": files}, indent=1) + "\n", encoding="utf-8")
    text = page.read_text(encoding="utf-8")
    page.write_text(with_table(text, json.loads(kept.read_text(encoding="utf-8"))), encoding="utf-8")
    return 0


def with_table(text: str, kept: dict[str, Any]) -> str:
    """Return a page with the dearest files of tests between its two marks.

    Raises:
        ValueError: the page lacks a mark.
    """
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r}, between which the table is written")
    yard = kept["yardstick"]
    dearest = sorted(kept["files"].items(), key=lambda item: -item[1]["cpu"])[:_DEAREST]
    rows = [("all", kept["cpu"], sum(row["tests"] for row in kept["files"].values()))]
    rows += [(f"`{name}`", row["cpu"], row["tests"]) for name, row in dearest]
    lines = [f"| {name} | {cpu:.0f} | {cpu / yard:.0f} | {tests:,} |" for name, cpu, tests in rows]
    table = ["| file | CPU s | yardsticks | tests |", "|---|---|---|---|", *lines]
    return "\n".join((head + BEGIN, "", *table, "", END + tail))


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children, those that have ended and those that run."""
    used = sum(os.times()[:4])
    for child in psutil.Process().children(recursive=True):
        try:
            used += sum(child.cpu_times()[:4])
        except psutil.Error:
            continue
    return used


if __name__ == "__main__":
    sys.exit(main())
