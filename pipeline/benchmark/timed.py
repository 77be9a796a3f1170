"""The worker's side of the benchmark: a process with one open variant, which times blocks on request of the stage."""

import gc
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.text.encoding import Encoder, Row


class Timed(Protocol):
    """The protocol of a timed variant: an encoder, and the execution of a row at a length."""

    encoder: Encoder

    def place(self, tokens: int) -> int:
        """Return the sequence length at which a row of `tokens` tokens runs."""

    def prepare(self, row: Row, length: int) -> dict[str, NDArray[np.int32]]:
        """Return the input arrays of a row, padded to a length."""

    def execute(self, inputs: dict[str, NDArray[np.int32]], length: int) -> NDArray[np.float32]:
        """Run padded arrays and return the output."""


@dataclass(frozen=True)
class LoadTimes:
    """The measurements of opening a variant."""

    load_ms: float
    first_inference_ms: float
    baseline_bytes: int | None


_state: dict[str, Any] = {}
"""The open variant of this worker process, and its rows by length."""


def prepare(import_runtime: Callable[[], None]) -> None:
    """Import the runtime, which is not part of opening a file."""
    import_runtime()


def open_variant(open_it: Callable[[], Timed], text: str) -> LoadTimes:
    """Open the variant and run it once, timing both."""
    _reset_peak()
    baseline = _resident_bytes()
    started = time.perf_counter()
    variant = open_it()
    load_ms = (time.perf_counter() - started) * 1e3
    _state["variant"] = variant
    row = variant.encoder.encode(text)
    length = variant.place(len(row))
    inputs = variant.prepare(row, length)
    started = time.perf_counter()
    variant.execute(inputs, length)
    return LoadTimes(load_ms, (time.perf_counter() - started) * 1e3, baseline)


def time_length(seq_len: int, text: str, budget_ms: float, at_least: int) -> tuple[int, list[float], list[float]]:
    """Run one full row of `seq_len` tokens for about `budget_ms`.

    Returns:
        The length at which it ran, wall times and processor times in ms.
    """
    variant: Timed = _state["variant"]
    row = variant.encoder.encode(" ".join([text] * seq_len))
    row = Row(row.ids[:seq_len], row.types[:seq_len])
    length = variant.place(seq_len)
    inputs = variant.prepare(row, length)
    variant.execute(inputs, length)
    wall: list[float] = []
    cpu: list[float] = []
    while len(wall) < at_least or sum(wall) < budget_ms:
        _time_once(variant, inputs, length, wall, cpu)
    return length, wall, cpu


def time_texts(
    texts: Sequence[str | tuple[str, str]],
) -> tuple[list[int], list[int], list[float], list[float], list[float]]:
    """Run each text or pair once, as it comes.

    Returns:
        Tokens, lengths, wall and processor times of inference, and wall times of tokenisation, per text.
    """
    variant: Timed = _state["variant"]
    tokens: list[int] = []
    ran_at: list[int] = []
    wall: list[float] = []
    cpu: list[float] = []
    tokenise: list[float] = []
    for text in texts:
        started = time.perf_counter()
        row = variant.encoder.encode(*((text,) if isinstance(text, str) else text))
        length = variant.place(len(row))
        inputs = variant.prepare(row, length)
        tokenise.append((time.perf_counter() - started) * 1e3)
        _time_once(variant, inputs, length, wall, cpu)
        tokens.append(len(row))
        ran_at.append(length)
    return tokens, ran_at, wall, cpu, tokenise


def outputs(texts: Sequence[str]) -> list[NDArray[np.float32]]:
    """Return the outputs of some texts without padding, for telling how good a file is; not timed.

    Each is `(width,)`, or `(tokens, width)` where each token has one.
    """
    variant: Timed = _state["variant"]
    found = []
    for text in texts:
        row = variant.encoder.encode(text)
        length = variant.place(len(row))
        output = np.asarray(variant.execute(variant.prepare(row, length), length), np.float32)
        found.append(output[: len(row)] if output.ndim == 2 and len(output) == length else output.reshape(-1))
    return found


def close_variant() -> int | None:
    """Close the variant and return the memory in bytes that stays resident."""
    _state.clear()
    gc.collect()
    return _resident_bytes()


def peak_bytes() -> int | None:
    """Return the highest resident memory since the variant was opened."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _status_bytes("VmHWM")


def _time_once(
    variant: Timed, inputs: dict[str, NDArray[np.int32]], length: int, wall: list[float], cpu: list[float]
) -> None:
    cpu_before = time.process_time()
    before = time.perf_counter()
    variant.execute(inputs, length)
    after = time.perf_counter()
    cpu.append((time.process_time() - cpu_before) * 1e3)
    wall.append((after - before) * 1e3)


def _reset_peak() -> None:
    """Reset the kernel's peak memory counter to the memory that is resident now."""
    path = Path("/proc/self/clear_refs")
    if path.exists() and os.access(path, os.W_OK):
        path.write_text("5")


def _resident_bytes() -> int | None:
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _status_bytes("VmRSS")


def _status_bytes(key: str) -> int | None:
    path = Path("/proc/self/status")
    if not path.is_file():
        return None
    for line in path.read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return None
