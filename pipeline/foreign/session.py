"""The worker's side of a file: it is opened and called in a process that may die of it."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline import formats
from pipeline.errors import InputError
from pipeline.foreign.binding import Binding, Reading
from pipeline.formats import onnx
from pipeline.formats.coreml import foreign as coreml
from pipeline.formats.executorch import foreign as executorch
from pipeline.formats.litert import foreign as litert
from pipeline.formats.ports import Array, Entry, OpenFile
from pipeline.formats.structure import Structure
from pipeline.text.encoding import Row

_OPEN: Mapping[str, Callable[[Path], OpenFile]] = {
    litert.SUFFIX: litert.OpenLiteRT,
    coreml.SUFFIX: coreml.OpenCoreML,
    executorch.SUFFIX: executorch.OpenExecuTorch,
    onnx.SUFFIX: onnx.OpenONNX,
}
SUFFIXES = tuple(_OPEN)
"""Suffixes of the files that can be judged."""
_TRIED = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 384, 512)
"""Lengths that are tried where a file does not tell its bounds."""


@dataclass(frozen=True)
class Description:
    """What a runtime tells of a file."""

    runtime: str
    stands_in: str | None
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Caller:
    """How a file is called; everything but the rows."""

    binding: Binding
    pad_token_id: int
    first_position: int


_opened: OpenFile | None = None
"""In a worker process: the open file."""


def backend_of(file: Path) -> str | None:
    """Return the format of a file among PocketBERT's own, or None."""
    return next((name for name in formats.NAMES if Path(formats.get(name).FILE).suffix == file.suffix), None)


def reader_of(file: Path) -> Callable[[Path], Structure]:
    """Return what reads a file's constants back."""
    backend = backend_of(file)
    return onnx.structure if backend is None else formats.get(backend).structure


def open_file(file: Path) -> Description:
    """Open a file in this process.

    Raises:
        ArtifactError: it is damaged.
        ToolchainError: its runtime refuses it, or is not installed.
    """
    global _opened
    # A file that asks for all of the memory ends this process, not the one that asked for it.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    _opened = _OPEN[file.suffix](file)
    return Description(_opened.runtime, _opened.stands_in, _opened.entries)


def close_file() -> None:
    """Let the file go: its runtime is another's in a process that is used again."""
    global _opened
    _opened = None


def outputs_of(caller: Caller, row: Row, length: int) -> list[Array]:
    """Return every output for one row.

    Raises:
        InputError: the runtime refuses it.
    """
    assert _opened is not None
    arrays = caller.binding.arrays(row, length, pad_token_id=caller.pad_token_id, first_position=caller.first_position)
    return _opened.run(caller.binding.entry, arrays)


def run_rows(caller: Caller, reading: Reading, rows: Sequence[Row], lengths: Sequence[int]) -> list[Array]:
    """Return what is read of each row, `(items, width)`, run at its length."""
    return [reading.row(outputs_of(caller, row, length), len(row)) for row, length in zip(rows, lengths, strict=True)]


def working_lengths(caller: Caller, token: int, longest: int) -> list[int]:
    """Return the lengths that a file takes, ascending: its one, all that it lists, or the ends of what it takes.

    Args:
        caller: how it is called.
        token: an id that every table has.
        longest: tokens of the checkpoint's longest row.

    Raises:
        InputError: it takes none that was tried.
    """
    ports = caller.binding.entry.inputs
    fixed = sorted({size for port in ports if port.shape and (size := port.shape[-1]) is not None})
    if len(fixed) > 1:
        raise InputError(f"the file's inputs have different lengths: {'; '.join(map(str, ports))}.")
    if fixed:
        return fixed
    if sizes := next((port.sizes for port in ports if port.sizes), ()):
        return list(sizes)
    top = min([longest, *(port.most for port in ports if port.most)])
    bottom = max([1, *(port.least for port in ports if port.least)])
    tried = [bottom, *(length for length in _TRIED if bottom < length < top), top]
    least = next((length for length in tried if _takes(caller, token, length)), None)
    if least is None:
        raise InputError(f"the file runs at none of {', '.join(map(str, tried))} tokens, so it cannot be judged.")
    most = next(length for length in reversed(tried) if length == least or _takes(caller, token, length))
    return [least, most]


def _takes(caller: Caller, token: int, length: int) -> bool:
    try:
        outputs_of(caller, Row((token,) * length, (0,) * length), length)
    except InputError:
        return False
    return True
