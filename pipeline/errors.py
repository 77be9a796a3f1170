"""Every error that PocketBERT raises on purpose.

::

    PipelineError                 exit 2   told in one line; finished artifacts stay
    ├── RecipeError               exit 2   the recipe, or a flag beside it, cannot be carried out
    ├── StudentError              exit 2   the checkpoint is missing, unsafe, corrupt or of the wrong kind
    ├── ArtifactError             exit 2   something in build/ is missing, half-made or was changed
    ├── InputError                exit 2   a text, file or folder handed to a verb
    ├── GateFailed                exit 1   everything ran, and the result is not good enough
    └── ToolchainError            exit 3   a toolchain, runtime or device is absent or broke
        ├── UnknownOp             exit 3   the reference interpreter lacks an operation of a program
        └── WorkerDied            exit 3   a toolchain took its whole process down

A message says what was asked, what was found, what exists, and what to do.
"""

import os
from pathlib import Path

EXIT_DONE = 0
EXIT_GATE_FAILED = 1
EXIT_USAGE = 2
EXIT_TOOLCHAIN = 3
EXIT_WITH_LOSS = 4
"""Of `compatible` alone: stored vectors can be used, with a loss."""


class PipelineError(Exception):
    """Base of all errors that the command reports; `exit_code` is the command's exit code."""

    exit_code = EXIT_USAGE


class RecipeError(PipelineError):
    """The recipe, or a flag beside it, cannot be carried out."""


class StudentError(PipelineError):
    """The checkpoint is missing, unsafe, corrupt or of the wrong kind."""


class ArtifactError(PipelineError):
    """Something in the build folder is missing, half-made or was changed."""


class InputError(PipelineError):
    """A text, file or folder handed to a verb cannot be used."""


class GateFailed(PipelineError):
    """Everything ran, and the result is not good enough."""

    exit_code = EXIT_GATE_FAILED


class ToolchainError(PipelineError):
    """A toolchain, runtime or device is absent or broke."""

    exit_code = EXIT_TOOLCHAIN


class UnknownOp(ToolchainError):
    """The reference interpreter lacks an operation of a program, so the program cannot be judged."""


class WorkerDied(ToolchainError):
    """A toolchain took its whole process down (abort, out of memory, kill)."""


def no_file(path: Path) -> str:
    """Say why there is no file at a path: `does not exist`, or what is there instead."""
    # Those of os.path answer False for a name that no file system takes; those of Path raise.
    if os.path.isdir(path):
        return "is a folder, and a file belongs there"
    above = next((one for one in path.parents if os.path.isfile(one)), None)
    if above is not None:
        return f"does not exist: {above} is a file, not a folder"
    return "is no regular file" if os.path.exists(path) else "does not exist"


def no_folder(path: Path) -> str:
    """Say why there is no folder at a path, see `no_file`."""
    return "is a file, and a folder belongs there" if os.path.isfile(path) else no_file(path)
