"""What campaigns abuse: a small project in which everything is made, copied for each case, and looked at afterwards."""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import tomli_w
from conftest import environment, recipe_file, run_command_here, write_student
from store import Store, code_and_tools

from abuse.findings import BUILD
from pipeline import artifact
from pipeline.atomic import remove
from pipeline.errors import ArtifactError
from pipeline.ship.apps import ANDROID, IOS

TARGETS = {"litert": {"schemes": ["fp32", "int8_dynamic"]}}
NOTES = ("notes.txt", "build/notes.txt", "build/mine/.lock", f"apps/{ANDROID}/notes.txt", f"apps/{IOS}/mine/notes.txt")
"""Files of the user's in every folder that commands write to."""
_VOLATILE = {".used", ".locks", ".runs", "logs"}
"""What runs leave on purpose beside artifacts: locks, when something was used, logs."""
_MODELS = 100_000
"""Larger files than this are linked, not copied."""


def project(make_whole: bool = True) -> Path:
    """Return a project in which a recipe was run to its end and shipped; nothing changes it.

    Args:
        make_whole: measure and report as well; otherwise the verdicts are the last that is made.
    """

    def make(folder: Path) -> None:
        write_student(folder / "source", "bert", "embedding")
        student = {"source": "source", "random_weights": True}
        convert, short = {"sequence_lengths": [8, 16]}, {"rounds": 1, "block_ms": 0.0, "texts": 1, "text_passes": 1}
        recipe = recipe_file(folder, student=student, targets=TARGETS, convert=convert, benchmark=short)
        _write_training(folder)
        verb = "run" if make_whole else "verify"
        for arguments in ((verb, recipe), ("ship", recipe, "--into", "apps")):
            outcome = run_command_here(*arguments, "--build", "build", cwd=folder)
            assert outcome.rc == 0, outcome.stdout[-3000:] + outcome.stderr[-3000:]
        for note in NOTES:
            path = folder / note
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("mine\n", encoding="utf-8")

    # pytest's sample shares nothing with a campaign that may run meanwhile.
    own = artifact.sha256_file(Path(__file__))
    return Store(BUILD).get("project" if make_whole else "sample", make, f"{code_and_tools()} {own}")


def _write_training(folder: Path) -> None:
    """Write a recipe that trains a classifier for a second, and its rows."""
    rows = [f"{word} parcel number {n},{label}" for n in range(20) for word, label in (("good", 0), ("bad", 1))]
    for name in ("train", "dev"):
        (folder / f"{name}.csv").write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    train = {
        "train_file": "train.csv",
        "dev_file": "dev.csv",
        "steps": 6,
        "batch_size": 8,
        "learning_rate": 1e-3,
        "max_length": 32,
    }
    values = {"name": "taught", "task": "classification", "student": {"source": "source"}, "train": train}
    values |= {"targets": TARGETS, "convert": {"sequence_lengths": [8, 16]}, "verify": {"datasets": ["none"]}}
    (folder / "train.toml").write_text(tomli_w.dumps(values), encoding="utf-8")


def copy(source: Path, place: Path) -> Path:
    """Copy a project; large files are hard links, since nothing writes into a file that is there."""

    def put(origin: str, target: str) -> str:
        if os.stat(origin).st_size > _MODELS and os.stat(origin).st_dev == os.stat(place.parent).st_dev:
            os.link(origin, target)
        else:
            shutil.copy2(origin, target)
        return target

    place.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copytree(source, place, symlinks=True, copy_function=put))


@contextmanager
def case_folder(name: str) -> Iterator[Path]:
    """Lend an empty folder to one case."""
    folder = BUILD / "cases" / name
    remove(folder)
    (folder / "tmp").mkdir(parents=True)
    try:
        yield folder
    finally:
        remove(folder)


# --- the command -------------------------------------------------------------------------------------------------


@dataclass
class Command:
    """A command as a process group of its own, with its output in files and its temporary files in a folder."""

    process: subprocess.Popen[bytes]
    folder: Path
    began: float

    @classmethod
    def start(cls, folder: Path, where: Path, *arguments: str, name: str = "first") -> "Command":
        """Start it.

        Args:
            folder: of the case.
            where: the folder in which it runs.
            arguments: of `pocketbert`.
            name: of the files with its output.
        """
        variables = environment(TMPDIR=str(folder / "tmp"), OMP_NUM_THREADS="1")
        with (folder / f"{name}.out").open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "pipeline", *arguments],
                cwd=where,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        command = cls(process, folder / f"{name}.out", time.monotonic())
        return command

    def end(self, seconds: float = 300.0) -> int:
        """Wait for its end, and end it where it takes too long."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return -99

    @property
    def said(self) -> str:
        """Return what it printed."""
        return self.folder.read_text(encoding="utf-8", errors="replace")

    def left_processes(self, *, patience_seconds: float = 30.0) -> list[str]:
        """Return what still runs of its group after some seconds, and end that."""
        deadline = time.monotonic() + patience_seconds
        while members := list(_members(self.process.pid)):
            if time.monotonic() > deadline:
                names = [f"process {one.pid} still runs" for one in members]
                for one in members:
                    with contextlib.suppress(psutil.Error):
                        one.kill()
                return names
            time.sleep(0.05)
        return []


def _members(group: int) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                yield process


# --- looking at it -----------------------------------------------------------------------------------------------


def tree(folder: Path) -> dict[str, str]:
    """Return what lies in a project: hashes of files and targets of links, by path, without what runs leave."""
    found: dict[str, str] = {}
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _VOLATILE]
        for name in (*files, *folders):
            path = Path(where, name)
            key = path.relative_to(folder).as_posix()
            if path.is_symlink():
                found[key] = f"link to {os.readlink(path)}"
            elif path.is_file():
                found[key] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def users_files(found: dict[str, str]) -> dict[str, str]:
    """Return what is the user's of a tree."""
    ours = ("build/", "apps/")
    return {path: digest for path, digest in found.items() if path in NOTES or not path.startswith(ours)}


def lost(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Say which of the user's files were changed or are gone."""
    wanted, found = users_files(before), users_files(now)
    return [f"the user's {path} {'was changed' if path in found else 'is gone'}" for path in wanted
            if found.get(path) != wanted[path]]  # fmt: skip


def half_made(folder: Path) -> list[str]:
    """Say which finished artifacts and shipped models of a project are not whole."""
    problems = []
    store = folder / "build" / "store"
    for path in store.iterdir() if store.is_dir() else ():
        if len(path.name) == 64 and path.is_dir():
            try:
                artifact.load(path)
            except ArtifactError as error:
                problems.append(str(error))
    for said in (folder / "apps").rglob("shipped.json"):
        if not any(part.startswith(".") for part in said.relative_to(folder).parts):
            problems += _unlike_said(said)
    return problems


def _unlike_said(said: Path) -> list[str]:
    from pipeline.ship.placing import ShippedModel

    try:
        shipped = ShippedModel.model_validate_json(said.read_bytes())
        wrong = [one.path for one in shipped.files if artifact.sha256_file(said.parent / one.path) != one.sha256]
    except (OSError, ValueError) as error:
        return [f"{said}: {type(error).__name__}"]
    return [f"{said.parent / path} is not what {said.name} says" for path in wrong]


def leftovers(folder: Path, case: Path) -> list[str]:
    """Say what commands left behind: hidden names of ours, temporary files, notes of processes that have ended."""
    problems = []
    for path in folder.rglob(".*"):
        if path.name.endswith((".new", ".old", ".link")):
            problems.append(f"{path.relative_to(folder)} was left")
    problems += temporary(case)
    for name in (".runs", ".scratch"):
        inside = folder / "build" / "store" / name
        problems += [f"{path.relative_to(folder)} was left" for path in (inside.iterdir() if inside.is_dir() else ())]
    return problems


def temporary(case: Path) -> list[str]:
    """Say which temporary files a command left; torch keeps a cache there that every program of the user shares."""
    left = [path.name for path in (case / "tmp").iterdir() if not path.name.startswith("torchinductor_")]
    return [f"temporary {name} was left" for name in left]


def traceback(said: str) -> list[str]:
    """Say that Python's own words came out, if our code was on the way."""
    return ["a traceback"] if "Traceback (most recent call last)" in said and "/pipeline/" in said else []
