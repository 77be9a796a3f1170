"""Helpers of training and distillation under `accelerate launch`, in one process or many."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from accelerate import PartialState

from pipeline.atomic import open_modes, write_aside
from pipeline.errors import InputError, PipelineError


def exit_code_of(work: Callable[[], None]) -> int:
    """Run `work` and return the exit code; print an expected error as one line."""
    try:
        work()
    except PipelineError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    return 0


def checkpoints_beside(out: Path) -> Path:
    """Return the folder for checkpoints of a run, beside the folder of its result.

    Raises:
        InputError: the folder of the result exists.
    """
    if out.exists():
        raise InputError(f"{out} exists. Give a folder that does not exist yet, or remove this one.")
    return _checkpoints(out)


def publish(out: Path, write: Callable[[Path], object], summary: Callable[[], str]) -> None:
    """Let the first process write the result, put it in its place, remove the checkpoints and print a summary.

    Args:
        out: the folder of the result.
        write: fills a folder beside it, which is then renamed.
        summary: called in the first process alone, the one that measures.
    """
    if not PartialState().is_main_process:
        return
    with write_aside(out) as aside:
        aside.mkdir()
        write(aside)
        open_modes(aside)
    shutil.rmtree(_checkpoints(out), ignore_errors=True)
    print(f"{out}: {summary()}")


def _checkpoints(out: Path) -> Path:
    return out.with_name(f"{out.name}.checkpoints")


def print_progress(message: str, fraction: float) -> None:
    """Print how far a run is, once for all processes."""
    if PartialState().is_main_process:
        print(f"{fraction:6.1%}  {message}", flush=True)
