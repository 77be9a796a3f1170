"""Checks one after the other, and lanes of them at once: a compiler leaves a core idle that another can take."""

import os
import subprocess
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from apps import toolchains

Checks = Mapping[str, Callable[[], str]]
"""What is checked and says what it counted, by name."""


def run(checks: Checks) -> list[str]:
    """Run checks in their order, print what each has counted, and return the names of those that failed.

    What the machine lacks is said in one line, with how to get it; where CI is set, that is a failure.
    """
    return [name for name, check in checks.items() if not _passes(name, check)]


def beside(*lanes: Checks) -> list[str]:
    """Run lanes at once, and return the names of all checks that failed."""
    with ThreadPoolExecutor(len(lanes)) as pool:
        return [name for failed in pool.map(run, lanes) for name in failed]


def _passes(name: str, check: Callable[[], str]) -> bool:
    began = time.monotonic()
    try:
        print(f"{name}: {check()} ({time.monotonic() - began:.0f} s)", flush=True)
    except toolchains.Lacking as error:
        print(f"{name}: not checked: {error}", flush=True)
        return not os.environ.get("CI")
    except subprocess.CalledProcessError as error:
        print(f"{name}: failed with exit code {error.returncode}", flush=True)
        return False
    except (AssertionError, KeyError, OSError, ValueError) as error:
        # `python -m` rewrites no asserts: without its line, one that has no message says nothing.
        place = traceback.extract_tb(error.__traceback__)[-1]
        print(f"{name}: {type(error).__name__}: {error}\n  {place.name}: {place.line}", flush=True)
        return False
    return True
