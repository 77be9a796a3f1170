"""`--margins FILE`: how far every number that a test compares stands from its bound, by test.

A run under one setting of the numerical libraries writes one file; `python -m margins FILE FILE …` puts files side
by side. Recorded are the passing `assert`s that compare numbers (pytest hands over the values), `approx`, the functions
`allclose` and `assert_close`, and the gates of each verdict that a test leaves in its folder or computes itself.
"""

import ast
import json
import math
import operator
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_ARITHMETIC: Mapping[type[ast.operator | ast.unaryop], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_TIMES = re.compile(r"_ms\b|monotonic|mtime|growth")
"""In the source of a comparison of times: they differ from run to run, and no arithmetic decides them."""
_APPROX = re.compile(r"^(?P<found>\S+) == (?P<wanted>\S+) ± (?P<tolerance>\S+)$")


class Margins:
    """Plugin that collects comparisons by test, and writes them at the end of the run."""

    def __init__(self, config: pytest.Config) -> None:
        """Collect from now on; pytest calls `pytest_assertion_pass` only when it is told to before it rewrites."""
        self._config, self._file = config, config.getoption("margins")
        self._found: dict[str, dict[str, list[float]]] = defaultdict(dict)
        """By test and comparison: what was found and its bound."""
        self._test = ""
        self._repeats: Counter[tuple[str, str]] = Counter()
        self._watch_functions()

    # --- what is recorded -------------------------------------------------------------------------------------------

    def record(self, what: str, found: float, bound: float) -> None:
        """Keep one comparison of the test that runs."""
        if _TIMES.search(what) or not (math.isfinite(found) and math.isfinite(bound)):
            return
        number = self._repeats[self._test, what]
        self._repeats[self._test, what] += 1
        self._found[self._test][f"{what} #{number}" if number else what] = [found, bound]

    def pytest_assertion_pass(self, item: pytest.Item, lineno: int, orig: str, expl: str) -> None:
        """Record an `assert` that compares numbers."""
        for found, bound in comparisons(expl):
            self.record(f"{item.path.name}:{lineno} {_words(orig)}", found, bound)

    def _watch_functions(self) -> None:
        import numpy as np
        import torch

        functions = (
            (np, "allclose"),
            (np.testing, "assert_allclose"),
            (torch, "allclose"),
            (torch.testing, "assert_close"),
        )
        for module, name in functions:
            setattr(module, name, self._watched(getattr(module, name), name))

        from pipeline.verify import gates

        for name in ("_at_least", "_at_most"):
            setattr(gates, name, self._judged(getattr(gates, name)))

    def _watched(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Record the largest difference in units of its tolerance; the bound is 1."""
        import numpy as np

        usual = {"assert_allclose": (1e-7, 0.0), "assert_close": (1.3e-6, 1e-5)}.get(name, (1e-5, 1e-8))

        def watched(left: Any, right: Any, *args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1)
            if "tests" in Path(caller.f_code.co_filename).parts:
                relative = kwargs.get("rtol", args[0] if args else usual[0])
                absolute = kwargs.get("atol", args[1] if len(args) > 1 else usual[1])
                one, other = (np.asarray(_plain(side), dtype=np.float64) for side in (left, right))
                with np.errstate(all="ignore"):
                    parts = np.abs(one - other) / np.maximum(absolute + relative * np.abs(other), 1e-300)
                where = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno} {name}"
                self.record(where, float(parts.max(initial=0.0)), 1.0)
            return function(left, right, *args, **kwargs)

        return watched

    def _judged(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def judged(signature: Any, name: str, bound: float, found: float, why: str) -> Any:
            self.record(f"gate {signature.backend}-{signature.scheme} {name}", float(found), float(bound))
            return function(signature, name, bound, found, why)

        return judged

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Record the gates of verdicts that the test's commands wrote."""
        folder = getattr(item, "funcargs", {}).get("tmp_path")
        for file in sorted(folder.rglob("parity.json")) if folder else ():
            if file.is_file():
                for what, found, bound in gates_of(file):
                    self.record(what, found, bound)

    # --- the run ----------------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Remember which test runs."""
        self._test = item.nodeid
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Send what was collected with the last report of a test, the comparison that failed it included."""
        report = yield
        if call.excinfo and call.excinfo.errisinstance(AssertionError):
            last = call.excinfo.traceback[-1]
            source = _words(str(last.statement)).removeprefix("assert ")
            where = f"{Path(last.path).name}:{last.lineno + 1} {source}"
            for found, bound in comparisons(str(call.excinfo.value)):
                self.record(where, found, bound)
        if call.when == "teardown":
            report.user_properties.append(("margins", self._found.pop(item.nodeid, {})))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect in the process that was started."""
        if report.when == "teardown" and not hasattr(self._config, "workerinput"):
            said: dict[str, Any] = dict(report.user_properties)
            self._found[report.nodeid] = said.get("margins", {})

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        if not hasattr(self._config, "workerinput"):
            kept = {test: found for test, found in sorted(self._found.items()) if found}
            Path(self._file).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def gates_of(file: Path) -> Iterator[tuple[str, float, float]]:
    """Yield the gates of a `parity.json` that compare a number with a bound: name, what was found, bound."""
    try:
        parity = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        # A test damaged it.
        return
    for gate in parity["gates"]:
        if gate["bound"] is not None and gate["found"] is not None:
            yield f"gate {parity['backend']}-{parity['scheme']} {gate['name']}", gate["found"], gate["bound"]


def comparisons(explanation: str) -> Iterator[tuple[float, float]]:
    """Yield the numbers that an `assert` compared, as pytest explains it: `0.25 < (0.5 * 0.75)`."""
    line = next(iter(explanation.splitlines()), "").removeprefix("assert ").strip()
    if approximate := _APPROX.match(line):
        found, wanted, tolerance = (_number(text) for text in approximate.groups())
        if found is not None and wanted is not None and tolerance is not None:
            yield abs(found - wanted), tolerance
        return
    try:
        parsed = ast.parse(line, mode="eval").body
    except SyntaxError:
        return
    if not isinstance(parsed, ast.Compare):
        return
    left: ast.expr = parsed.left
    for op, right in zip(parsed.ops, parsed.comparators, strict=True):
        one, other = _value(left), _value(right)
        left = right
        if isinstance(op, _ORDER) and one is not None and other is not None:
            yield one, other


def _words(source: str) -> str:
    return " ".join(source.split())


def _number(text: str) -> float | None:
    try:
        return _value(ast.parse(text, mode="eval").body)
    except SyntaxError:
        return None


def _value(node: ast.expr) -> float | None:
    """Return the number that an expression of literals is, with NumPy's and torch's own way to print one, or None."""
    if isinstance(node, ast.Constant):
        return float(node.value) if isinstance(node.value, int | float) else None
    if isinstance(node, ast.Call):
        return _value(node.args[0]) if len(node.args) == 1 and not node.keywords else None
    if isinstance(node, ast.UnaryOp) and type(node.op) in _ARITHMETIC:
        inner = _value(node.operand)
        return None if inner is None else float(_ARITHMETIC[type(node.op)](inner))
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _value(node.left), _value(node.right)
        return None if left is None or right is None else float(_ARITHMETIC[type(node.op)](left, right))
    return None


def _plain(value: Any) -> Any:
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


# --- files side by side -----------------------------------------------------------------------------------------------

Runs = Mapping[str, Mapping[str, Mapping[str, list[float]]]]
"""By setting, test and comparison: what was found and its bound."""


@dataclass(frozen=True)
class Row:
    """A comparison whose number differs between settings."""

    test: str
    what: str
    found: Mapping[str, tuple[float, float]]
    """What was found and its bound, by setting."""

    @property
    def safety(self) -> float:
        """The least distance to the bound over the spread of distances; 0 where the verdict turns over.

        Another seed is another student, whose distance is compared with no other's.
        """
        every = [bound - found for found, bound in self.found.values()]
        if min(every) < 0 < max(every):
            return 0.0
        distances = [bound - found for name, (found, bound) in self.found.items() if not name.startswith("seed")]
        spread = max(distances, default=0.0) - min(distances, default=0.0)
        return min(map(abs, distances)) / spread if spread else math.inf


def table(runs: Runs) -> list[Row]:
    """Return the comparisons that come out differently in some run, the least safe first.

    The least safe stands for the others of one comparison in a loop, of a parametrised test, and of one gate.
    """
    sorted_runs = {name: {test: _in_order(found) for test, found in run.items()} for name, run in runs.items()}
    least: dict[tuple[str, str], Row] = {}
    for test in sorted({test for run in runs.values() for test in run}):
        for what in sorted({what for run in sorted_runs.values() for what in run.get(test, {})}):
            pairs = {name: run[test][what] for name, run in sorted_runs.items() if what in run.get(test, {})}
            row = Row(test, what, pairs)
            if row.safety < math.inf:
                name = what.partition(" #")[0]
                key = ("" if name.startswith("gate ") else test.partition("[")[0], name)
                if key not in least or row.safety < least[key].safety:
                    least[key] = row
    return sorted(least.values(), key=lambda row: row.safety)


def _in_order(found: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float]]:
    """Number the comparisons of one kind by their bounds: a test may judge its files in any order."""
    kinds: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for what, (number, bound) in found.items():
        kinds[what.partition(" #")[0]].append((bound, number))
    return {
        f"{kind} #{place}": (number, bound)
        for kind, pairs in kinds.items()
        for place, (bound, number) in enumerate(sorted(pairs))
    }


def lines(rows: Sequence[Row], settings: Sequence[str]) -> Iterator[str]:
    """Yield rows as a Markdown table: what was found / its bound for each setting."""
    yield f"| test | comparison | {' | '.join(settings)} | distance / spread |"
    yield f"|---|---|{'--:|' * (len(settings) + 1)}"
    for row in rows:
        cells = (" / ".join(f"{one:.4g}" for one in row.found[name]) if name in row.found else "—" for name in settings)
        test, what = (
            text.replace("|", "\\|") for text in (row.test.removeprefix("tests/"), row.what.partition(" #")[0])
        )
        yield f"| `{test}` | `{what}` | {' | '.join(cells)} | {row.safety:.2g} |"


def read(files: Sequence[Path]) -> Runs:
    """Read what runs wrote; a file's name is its setting's."""
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def main() -> None:
    """Print the least safe comparisons of some files side by side."""
    runs = read([Path(file) for file in sys.argv[1:]])
    print("\n".join(lines(table(runs)[:40], list(runs))))


if __name__ == "__main__":
    main()
