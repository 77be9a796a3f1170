"""Bad inputs: each is refused in one line with exit code 2, fast, and nothing is written outside the build folder."""

import os
import random
import shutil
from pathlib import Path

from abuse import bad, bad_arguments, bad_checkpoints, bad_data, bad_recipes, scene
from abuse.bad import Bad
from abuse.findings import Finding, judged
from abuse.forked import Forks
from abuse.scene import Command

LIMIT_SECONDS = 20.0
_OWN_PROCESS_EVERY = 40
"""Every so many inputs are given to a process of their own as well."""


def cases(project: Path, seed: int) -> list[Bad]:
    """Return all bad inputs of a seed, well mixed."""
    model = project.resolve() / "build" / "tiny" / "litert-fp32" / "model"
    found = [
        *bad_recipes.files(),
        *bad_recipes.keys(seed, each=1),
        *bad_arguments.cases(),
        *bad_data.cases(model),
        *bad_checkpoints.cases(seed, each=3),
    ]
    random.Random(seed).shuffle(found)
    return found


def give(project: Path, found: list[Bad], forks: Forks, number: int) -> Finding:
    """Give the command one bad input."""
    one = found[number]
    with scene.case_folder(f"input-{number}") as case:
        folder = case / "project"
        folder.mkdir()
        shutil.copytree(project / "source", folder / "source", copy_function=os.link)
        given = one.write(folder)
        before = _names(folder)
        ended = forks.run(given, folder, temporary=case / "tmp", seconds=LIMIT_SECONDS, **one.variables)
        problems = bad.problems(one, ended.code, ended.said, ended.seconds, limit_seconds=LIMIT_SECONDS)
        if number % _OWN_PROCESS_EVERY == 0 and not one.variables and not problems:
            command = Command.start(case, folder, *given)
            code = command.end(60)
            problems += bad.problems(one, code, command.said, 0.0, limit_seconds=LIMIT_SECONDS)
        written = sorted(name for name in _names(folder) - before if name not in ("recipe.toml",))
        if ended.code == 2:
            problems += [f"{name} was written" for name in written]
        problems += scene.temporary(case)
        return judged(number, one.group, one.name, problems, ended.code)


def _names(folder: Path) -> set[str]:
    """Return what lies in a folder, the build folder apart."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")
            if path.relative_to(folder).parts[0] != "build"}  # fmt: skip
