"""How far the gates of a recipe's files stand from their bounds, as computed by the kernels of several processors.

    PYTHONPATH=.:tests python -m benchmarks.processors [RECIPE]

makes and verifies a recipe from nothing under settings of `tests/processors.py`, and writes `PROCESSORS.md` with its
gates and, below them, the tests' least safe comparisons that `make test-margins` recorded. `make processors` does it.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import margins
import processors

from pipeline.devices import host

PAGE = Path(__file__).with_name("PROCESSORS.md")
SETTINGS = ("native", "avx2", "plainest")
"""avx512 computes as the machine does on which the page was made, and threads change no verdict."""
_TESTS = 60
"""Least safe comparisons of tests that the page shows."""


def main(given: Sequence[str] | None = None) -> int:
    """Do what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.processors", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("recipe", nargs="?", default="minilm")
    parser.add_argument("--build", type=Path, default=Path("build/processors"), help="has one folder a setting")
    parser.add_argument("--margins", type=Path, default=Path("build/margins"), help="what `make test-margins` wrote")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(given)
    runs: dict[str, dict[str, dict[str, list[float]]]] = {}
    for setting in SETTINGS:
        chosen = processors.SETTINGS[setting]
        # What another machine made there would count.
        build = options.build / f"{setting}-{processors.here(chosen)}"
        code = verify(options.recipe, build, chosen)
        if code not in (0, 1):
            return code
        runs[setting] = gates(build)
    tests = margins.read(sorted(options.margins.glob("*.json")))
    options.page.write_text("\n".join(page(options.recipe, runs, tests)) + "\n", encoding="utf-8")
    return 0


def verify(recipe: str, build: Path, variables: Mapping[str, str]) -> int:
    """Make and verify a recipe's files under the variables of a setting; return the command's exit code."""
    command = [sys.executable, "-m", "pipeline", "verify", recipe, "--build", str(build)]
    print(" ".join(command[1:]), flush=True)
    return subprocess.run(command, env=processors.environment(variables), check=False).returncode


def gates(build: Path) -> dict[str, dict[str, list[float]]]:
    """Return, by file and gate, what was found and its bound, in all verdicts that a build folder shows."""
    found: dict[str, dict[str, list[float]]] = {}
    for view in sorted(build.glob("*/*/parity")):
        name = "/".join(view.relative_to(build).parts[:-1])
        found[name] = {
            what.split(" ", 2)[2]: [one, bound] for what, one, bound in margins.gates_of(view / "parity.json")
        }
    return found


def page(recipe: str, runs: margins.Runs, tests: margins.Runs) -> Iterator[str]:
    """Yield the lines of the page."""
    machine = host.describe()
    yield "# Numbers on other processors\n"
    yield "`make processors` writes this page; [contributing.md](../docs/contributing.md) explains the settings."
    yield f"Made on {machine.model_id} with {', '.join(machine.cpu_features)}.\n"
    yield f"## Gates of `{recipe}`\n"
    yield "What a gate found / its bound, for files that were made and verified from nothing under each setting. The"
    yield "last column is the least distance to the bound over the spread. Gates that find the same everywhere are left"
    yield "out.\n"
    yield from margins.lines(margins.table(runs), list(runs))
    yield "\n## Tests\n"
    yield f"The {_TESTS} least safe comparisons of those that differ between the settings of `make test-margins`.\n"
    yield from margins.lines(margins.table(tests)[:_TESTS], list(tests))


if __name__ == "__main__":
    raise SystemExit(main())
