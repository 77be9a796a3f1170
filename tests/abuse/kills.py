"""Commands that are killed at random moments: nothing is lost or half-made, and the next run ends right."""

import contextlib
import functools
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from abuse import scene
from abuse.findings import TOO_LATE, Finding, judged
from abuse.scene import Command
from abuse.watch import Watch
from pipeline.atomic import remove
from pipeline.ship.apps import ANDROID, IOS


@dataclass(frozen=True)
class Work:
    """A command that is killed."""

    name: str
    arguments: tuple[str, ...]
    prepare: Callable[[Path], None]
    """Takes away what the command is to make, so that it has something to do."""
    share: int
    """How many of a hundred kills it gets."""
    removes: bool = False
    """Whether it takes finished artifacts away on purpose."""
    measures: bool = False
    """Whether what it makes holds times, so that each run's artifacts have keys of their own."""


def _forget(*views: str) -> Callable[[Path], None]:
    """Return what removes artifacts and the views that show them."""

    def prepare(folder: Path) -> None:
        for view in views:
            path = folder / "build" / "tiny" / view
            if path.exists():
                remove(path.resolve())
                path.unlink()

    return prepare


def _unship(folder: Path) -> None:
    for root in (ANDROID, IOS):
        remove(folder / "apps" / root / "tiny")
        (folder / "apps" / root / "models.json").unlink(missing_ok=True)


def _nothing(folder: Path) -> None:
    pass


def _without_build(folder: Path) -> None:
    """Keep the user's files alone in the build folder, and the student that later steps would begin with."""
    remove(folder / "build" / "tiny")
    for path in (folder / "build" / "store").iterdir():
        remove(path)


_RECIPE = ("recipe.toml", "--build", "build")
_LITERT = ("--target", "litert:int8_dynamic")
WORKS = (
    Work("ship", ("ship", *_RECIPE, "--into", "apps"), _nothing, 16),
    Work("ship, for the first time", ("ship", *_RECIPE, "--into", "apps", "--target", "litert"), _unship, 16),
    Work("push", ("push", "recipe.toml", "me/tiny", "--build", "build"), _nothing, 14),
    Work("clean", ("clean", "--build", "build"), _nothing, 14, removes=True),
    Work("clean RECIPE", ("clean", "tiny", "--build", "build"), _nothing, 8, removes=True),
    Work("compat", ("compat", *_RECIPE, "--runtime", "litert-2.3.0"), _nothing, 10),
    Work("init", ("init", "source", "--pooling", "mean", "--output", "new.toml"), _nothing, 4),
    Work("student", ("student", *_RECIPE), _without_build, 4),
    Work("train", ("train", "train.toml", "--build", "build"), _nothing, 5),
    Work("convert", ("convert", *_RECIPE, *_LITERT), _forget("litert-int8_dynamic/model"), 3),
    Work("verify", ("verify", *_RECIPE, *_LITERT), _forget("litert-int8_dynamic/parity"), 3),
    Work("run", ("run", *_RECIPE, *_LITERT), _forget("litert-int8_dynamic/parity"), 3, measures=True),
)
_SIGNALS = (
    (signal.SIGKILL, True, 60), (signal.SIGKILL, False, 15), (signal.SIGINT, True, 15), (signal.SIGTERM, True, 10),
)  # fmt: skip
"""Signal, whether the whole group gets it, and how many of a hundred."""


@dataclass(frozen=True)
class Undisturbed:
    """What a command does when nobody stops it."""

    seconds: float
    changes: int
    """How many changes of files the kernel counted."""
    result: dict[str, str]
    differs: frozenset[str]
    """Files that differ from run to run: they hold times."""


_lock = threading.Lock()


def work_of(number: int) -> Work:
    """Return the command of a number: every hundred have all of them, well mixed."""
    turns = [work for work in WORKS for _ in range(work.share)]
    random.Random(7).shuffle(turns)
    return turns[number % len(turns)]


def undisturbed(work: Work, project: Path) -> Undisturbed:
    """Run a command twice without any harm."""
    with _lock:
        return _undisturbed(work, project)


@functools.cache
def _undisturbed(work: Work, project: Path) -> Undisturbed:
    results: list[dict[str, str]] = []
    seconds, changes = 0.0, 0
    for turn in (1, 2):
        with scene.case_folder(f"undisturbed-{work.name.replace(' ', '-')}-{turn}") as case:
            folder = scene.copy(project, case / "project")
            work.prepare(folder)
            with Watch(folder) as watch:
                command = Command.start(case, folder, *work.arguments)
                while command.process.poll() is None:
                    watch.wait(0.02)
                watch.wait(0.05)
                changes = watch.changes
            assert command.process.returncode == 0, command.said
            seconds = time.monotonic() - command.began
            results.append(scene.tree(folder))
    first, second = results
    differs = frozenset(path for path in first.keys() | second.keys() if first.get(path) != second.get(path))
    return Undisturbed(seconds, changes, second, differs)


def kill(project: Path, seed: int, number: int) -> Finding:
    """Kill one command at one moment, look at what is left, and let it run again."""
    work = work_of(number)
    usual = undisturbed(work, project)
    draw = random.Random(f"{seed}-kill-{number}")
    how, whole_group, _ = draw.choices(_SIGNALS, [row[2] for row in _SIGNALS])[0]
    # Half of them by the clock; the other half as soon as so many files were changed, which is where harm is done.
    after_changes = draw.randrange(1, usual.changes + 1) if draw.random() < 0.5 and usual.changes else None
    after_seconds = draw.uniform(0.0, usual.seconds)
    with scene.case_folder(f"kill-{seed}-{number}") as case:
        folder = scene.copy(project, case / "project")
        work.prepare(folder)
        before = scene.tree(folder)
        with Watch(folder) as watch:
            command = Command.start(case, folder, *work.arguments)
            when = _wait(command, watch, after_changes, after_seconds)
            what = f"{how.name} {'to the group' if whole_group else 'to the command alone'} {when}"
            if command.process.poll() is not None:
                return Finding(number, work.name, what, TOO_LATE)
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if whole_group else os.kill)(command.process.pid, how)
        code = command.end(60)
        problems = [*_after(work, folder, before, command, how), *_again(work, folder, case, usual)]
        if problems:
            _keep(case, f"kill-{seed}-{number}")
        return judged(number, work.name, what, problems, code)


def _wait(command: Command, watch: Watch, after_changes: int | None, after_seconds: float) -> str:
    """Wait for the moment; say which it is."""
    if after_changes is None:
        while command.process.poll() is None and (left := command.began + after_seconds - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))
        return f"after {after_seconds:.2f} s"
    while command.process.poll() is None and watch.changes < after_changes:
        watch.wait(0.02)
    return f"after change {after_changes} of a file"


def _after(work: Work, folder: Path, before: dict[str, str], command: Command, how: signal.Signals) -> list[str]:
    """Say what is wrong right after the kill."""
    now = scene.tree(folder)
    # A view may be gone, or an artifact on its way out: such a folder is no artifact any more, and counts as none.
    problems = [*command.left_processes(), *scene.traceback(command.said), *scene.lost(before, now)]
    code = command.process.returncode
    allowed = {-how, 0, 128 + how} | ({130, 1} if how == signal.SIGINT else set())
    if code not in allowed:
        problems.append(f"exit code {code} after {how.name}: {command.said.strip()[-200:]}")
    if not work.removes:
        problems += scene.half_made(folder)
        finished = [path for path in before if path.startswith("build/store/") and "/." not in path]
        problems += [f"the finished {path} was changed or is gone" for path in finished
                     if now.get(path) != before[path]][:3]  # fmt: skip
    return problems


def _again(work: Work, folder: Path, case: Path, usual: Undisturbed) -> list[str]:
    """Say what is wrong after the command was run once more."""
    command = Command.start(case, folder, *work.arguments, name="again")
    code = command.end()
    problems = [*scene.traceback(command.said), *command.left_processes()]
    done = (work.removes and _says_nothing_is_there(command.said)) or _says_it_is_written(work, command.said)
    if code != 0 and not done:
        return [*problems, f"run again: exit code {code}: {command.said.strip()[-300:]}"]
    result = scene.tree(folder)
    paths = (result.keys() | usual.result.keys()) - usual.differs
    if work.measures:
        paths = {path for path in paths if not path.startswith("build/store/")}
    for path in sorted(paths):
        if result.get(path) != usual.result.get(path):
            wrong = "is missing" if path not in result else "is too many" if path not in usual.result else "differs"
            problems.append(f"run again: {path} {wrong}")
    problems = [*problems[:5], *(["and so on"] if len(problems) > 5 else [])]
    return [*problems, *scene.half_made(folder), *scene.leftovers(folder, case)]


def _says_nothing_is_there(said: str) -> bool:
    """Return whether `clean RECIPE` says that what the killed one was to remove is gone."""
    return "does not exist; there are: none" in said


def _says_it_is_written(work: Work, said: str) -> bool:
    """Return whether `init` says that the killed one had written the recipe, which is compared as any result is."""
    return work.name == "init" and "exists already" in said


def _keep(case: Path, name: str) -> None:
    """Keep what both runs printed, for whoever looks into a violation."""
    place = case.parent.parent / "violated" / name
    remove(place)
    place.mkdir(parents=True)
    for file in case.glob("*.out"):
        shutil.copy(file, place)
