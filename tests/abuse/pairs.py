"""Two commands at once on one project: both end right, or one says why not, and what is left is whole."""

import random
import time
from dataclasses import dataclass
from pathlib import Path

from abuse import scene
from abuse.findings import Finding, judged
from abuse.kills import WORKS, Work
from abuse.scene import Command

_PAIRS = (
    ("ship", "ship"), ("ship, for the first time", "ship, for the first time"), ("ship", "clean"), ("push", "push"),
    ("push", "clean"), ("convert", "convert"), ("convert", "clean"), ("run", "run"), ("run", "clean RECIPE"),
    ("student", "student"), ("train", "train"), ("train", "student"), ("init", "init"), ("clean", "clean"),
    ("verify", "ship"), ("compat", "clean"), ("verify", "convert"), ("clean RECIPE", "clean RECIPE"),
)  # fmt: skip
_LIMIT_SECONDS = 300.0
_TAKEN_AWAY = (
    "is missing",
    "not made",
    "has not been",
    "does not exist",
    "was removed",
    "is gone",
    "no finished",
    "No such file",
)
"""What a command may say when `clean` took from under it what it needed."""
_NOT_YET = "was not verified"
_THERE = ("exists", "--force")


@dataclass(frozen=True)
class _Ran:
    work: Work
    command: Command
    code: int


def together(project: Path, seed: int, number: int) -> Finding:
    """Run two commands with a short time between their beginnings."""
    draw = random.Random(f"{seed}-pair-{number}")
    names = _PAIRS[number % len(_PAIRS)]
    works = [next(work for work in WORKS if work.name == name) for name in names]
    gap = draw.choice((0.0, draw.uniform(0.0, 4.0)))
    with scene.case_folder(f"pair-{seed}-{number}") as case:
        folder = scene.copy(project, case / "project")
        for work in dict.fromkeys(works):
            work.prepare(folder)
        before = scene.tree(folder)
        first = Command.start(case, folder, *works[0].arguments, name="first")
        time.sleep(gap)
        second = Command.start(case, folder, *works[1].arguments, name="second")
        both = [_Ran(work, one, one.end(_LIMIT_SECONDS)) for work, one in zip(works, (first, second), strict=True)]
        problems = [problem for one in both for problem in _ended(one, names)]
        problems += [*scene.lost(before, scene.tree(folder)), *scene.half_made(folder)]
        for place, work in enumerate(works):
            again = Command.start(case, folder, *work.arguments, name=f"again-{place}")
            code = again.end(_LIMIT_SECONDS)
            if code != 0 and not (code == 2 and _excused(again.said, names)):
                problems.append(f"{work.name} run again: exit code {code}: {again.said.strip()[-300:]}")
        problems += scene.leftovers(folder, case)
        return judged(number, " + ".join(names), f"{gap:.2f} s apart", problems, max(one.code for one in both))


def _ended(one: _Ran, names: tuple[str, str]) -> list[str]:
    problems = [*scene.traceback(one.command.said), *one.command.left_processes()]
    if one.code != 0 and not (one.code == 2 and _excused(one.command.said, names)):
        problems.append(f"{one.work.name}: exit code {one.code}: {one.command.said.strip()[-300:]}")
    return problems


def _excused(said: str, names: tuple[str, str]) -> bool:
    """Return whether a refusal is right: `clean` took what was needed, or the file to write is there by now."""
    cleaned = any(name.startswith("clean") for name in names) and any(words in said for words in _TAKEN_AWAY)
    early = "verify" in names and _NOT_YET in said
    return cleaned or early or ("init" in names and any(words in said for words in _THERE))
