"""Trials: one run of a function on arrays from a file, with a summary of its outputs."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np

from pipeline.errors import InputError
from pipeline.mil.interpreter import Interpreter, Precision
from pipeline.mil.values import Array

SUFFIX = ".mlpackage"


@dataclass(frozen=True)
class OutputRow:
    """Summary of an output; the statistics cover its finite numbers, and are None if it has none."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    min: float | None
    max: float | None
    mean: float | None
    non_finite: int


@dataclass(frozen=True)
class NotFinite:
    """The first operation with an infinite or NaN output."""

    kind: str
    name: str
    infinite: int
    nan: int
    size: int


@dataclass
class Trial:
    """The outputs of one run, with a summary."""

    function: str
    precision: Precision
    outputs: dict[str, Any]
    """Outputs of `Interpreter.run`."""
    rows: tuple[OutputRow, ...]
    labels: dict[str, Any] = field(default_factory=dict)
    """Outputs of a classifier that are no numeric arrays."""
    not_finite: NotFinite | None = None
    values: int = 0
    """Number of values that the operations gave."""


def find(path: Path) -> Path:
    """Return the package at a path: the path itself, or the package in a model's or target's folder.

    Raises:
        InputError: there is none.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist; name a {SUFFIX}, or a model folder that holds one.")
    if path.suffix == SUFFIX:
        return path
    for folder in (path, path / "model"):
        inside = sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []
        if len(inside) > 1:
            raise InputError(
                f"{folder} holds {len(inside)} packages: {', '.join(row.name for row in inside)}; name one."
            )
        if inside:
            return inside[0]
    raise InputError(f"{path} is no {SUFFIX} and no folder that holds one.")


def run_package(path: Path, inputs: Path, function: str | None, name: str, flush_subnormals: bool) -> Trial:
    """Run a package on arrays from a file.

    Args:
        path: a package, or a folder that holds one, see `find`.
        inputs: the .npz file.
        function: the package's default one if None.
        name: a precision.
        flush_subnormals: see `Interpreter`.

    Raises:
        ArtifactError: the package is damaged.
        InputError: package, function, precision or inputs are not there, or do not fit.
    """
    chosen = precision(name)
    interpreter = Interpreter(find(path), function, precision=chosen, flush_subnormals=flush_subnormals)
    return run(interpreter, read_inputs(inputs), precision=chosen)


def precision(name: str) -> Precision:
    """Return a precision by name.

    Raises:
        InputError: there is none of that name.
    """
    for known in get_args(Precision):
        if name == known:
            return cast(Precision, name)
    raise InputError(f"precision {name} is not known; there are {' and '.join(get_args(Precision))}.")


def read_inputs(path: Path) -> dict[str, Array]:
    """Read the arrays of a `.npz` file.

    Raises:
        InputError: the file is missing, or no `.npz`.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, AttributeError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is no .npz of plain arrays; make one with numpy.savez.") from error


def run(interpreter: Interpreter, inputs: Mapping[str, Array], *, precision: Precision) -> Trial:
    """Run a function and summarise its outputs.

    Raises:
        InputError: the inputs do not fit.
        ToolchainError: an operation cannot be computed.
    """
    first: list[NotFinite] = []
    values = 0

    def watch(kind: str, name: str, value: Array) -> None:
        nonlocal values
        values += 1
        if not first and value.dtype.kind == "f" and not np.isfinite(value).all():
            first.append(NotFinite(kind, name, int(np.isinf(value).sum()), int(np.isnan(value).sum()), value.size))

    outputs = interpreter.run(inputs, watch=watch)
    numbers = {
        name: value for name, value in outputs.items() if isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
    }
    return Trial(
        function=interpreter.function,
        precision=precision,
        outputs=outputs,
        rows=tuple(_row(name, value) for name, value in numbers.items()),
        labels={
            name: value.item() if isinstance(value, np.ndarray) else value
            for name, value in outputs.items()
            if name not in numbers
        },
        not_finite=first[0] if first else None,
        values=values,
    )


def _row(name: str, value: Array) -> OutputRow:
    numbers = value[np.isfinite(value)].astype(np.float64)
    figures = (numbers.min(), numbers.max(), numbers.mean()) if numbers.size else (None, None, None)
    least, most, mean = (None if figure is None else float(figure) for figure in figures)
    return OutputRow(name, value.shape, str(value.dtype), least, most, mean, int(value.size - numbers.size))


def write_outputs(trial: Trial, path: Path) -> None:
    """Write outputs to a `.npz` file; of a dictionary, the numbers in order.

    Raises:
        InputError: the file cannot be written.
    """
    arrays = {
        name: np.array(list(value.values())) if isinstance(value, dict) else np.asarray(value)
        for name, value in trial.outputs.items()
    }
    try:
        with path.open("wb") as handle:
            np.savez(handle, allow_pickle=False, **arrays)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.") from error
