"""What training and distillation outside the line share: `accelerate launch` starts them, one process or many."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from accelerate import PartialState

from pipeline import artifact
from pipeline.errors import InputError, PipelineError


def answered(work: Callable[[], None]) -> int:
    """Carry work out and return the exit code; what is wrong is one line."""
    try:
        work()
    except PipelineError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    return 0


def checkpoints(out: Path) -> Path:
    """Return the folder for what a run that was stopped goes on from, beside a result that is not there yet.

    Raises:
        InputError: the result's folder exists.
    """
    if out.exists():
        raise InputError(f"{out} exists; name a folder that is not there yet, or remove it.")
    return _checkpoints(out)


def keep(out: Path, write: Callable[[Path], object], said: Callable[[], str]) -> None:
    """Let the first process write a result aside, put it in its place, remove its checkpoints and say what it is.

    Args:
        out: the result's folder.
        write: fills it.
        said: called by the first process alone, which is the one that has measured.
    """
    if not PartialState().is_main_process:
        return
    aside = out.with_name(f"{out.name}.new")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    write(aside)
    artifact.open_modes(aside)
    aside.rename(out)
    shutil.rmtree(_checkpoints(out), ignore_errors=True)
    print(f"{out}: {said()}")


def _checkpoints(out: Path) -> Path:
    return out.with_name(f"{out.name}.checkpoints")


def told(what: str, fraction: float) -> None:
    """Print how far a run is, once for all processes."""
    if PartialState().is_main_process:
        print(f"{fraction:6.1%}  {what}", flush=True)
