"""What a converted file may hold, made from the checkpoint's own numbers."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.parameters import content_digest
from pipeline.errors import StudentError

Array = NDArray[np.float32]

_SUM_ERROR = 1e-6
"""Of a dot product in float32, against the sum of its absolute terms."""


@dataclass(frozen=True)
class Form:
    """A tensor of the checkpoint as a file may hold it: as it is, or with what comes before it multiplied in."""

    tensor: str
    """The checkpoint's name."""
    how: str
    """Empty, or what was multiplied or added in."""
    plain: Array
    factor: Array | None = None
    """Along the last axis."""
    error: Array | None = None
    """Rounding of a sum, absolute, beside that of the file."""
    parts: tuple[str, ...] = ()
    """Checkpoint names of what was multiplied or added in."""
    prefix: bool = False
    """Whether the first rows alone will do."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole tensor."""
        return self.plain.shape

    @property
    def label(self) -> str:
        """Name for messages."""
        return f"{self.tensor} {self.how}".rstrip()

    @cached_property
    def values(self) -> Array:
        """The numbers, made when they are first needed."""
        return self.plain if self.factor is None else self.plain * self.factor

    def at(self, index: tuple[NDArray[np.int64], ...]) -> Array:
        """Return some of the numbers without making all of them."""
        return self.plain[index] if self.factor is None else self.plain[index] * self.factor[index[-1]]


@dataclass(frozen=True)
class Expected:
    """A checkpoint, as far as a file can be compared with it."""

    tensors: Mapping[str, Array]
    positions: frozenset[str]
    """Tables of which a file may hold the first rows only."""
    feeds: Mapping[str, tuple[str, ...]]
    """For a linear, the modules whose output it reads."""
    epsilons: tuple[float, ...]
    activations: tuple[str, ...]

    @classmethod
    def read(cls, student: Path, facts: Mapping[str, Any]) -> "Expected":
        """Read the tensors of a student by what `checkpoint.parameters` says that they contain, whatever their names.

        Raises:
            StudentError: the checkpoint is not the one of the facts.
        """
        by_digest = {content_digest(values): values for values in _tensors(student / "model.safetensors")}
        tensors = {}
        for name, row in facts["parameters"].items():
            if row["sha256"] not in by_digest:
                raise StudentError(f"{student} holds no tensor with the content of {name}; verify from the start.")
            tensors[name] = by_digest[row["sha256"]].reshape(row["shape"])
        feeds = {name: tuple(makers) for name, makers in facts["feeds"].items()}
        epsilons, activations = tuple(facts["epsilons"]), tuple(facts["activations"])
        return cls(tensors, frozenset(facts["positions"]), feeds, epsilons, activations)

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        """Every form of every tensor, the plain ones first."""
        plain = [Form(name, "", values, prefix=name in self.positions) for name, values in self.tensors.items()]
        return (*plain, *self._folded())

    def _folded(self) -> Iterator[Form]:
        """Yield linears with the layer norm before them multiplied in: W·g and b + W·β.

        litert-torch 0.10 does this wherever a norm or a bias is followed by a linear.
        """
        for linear, makers in self.feeds.items():
            weight = self.tensors.get(f"{linear}.weight")
            for maker in makers if weight is not None else ():
                assert weight is not None
                scale, shift = self.tensors.get(f"{maker}.weight"), self.tensors.get(f"{maker}.bias")
                if scale is not None and scale.shape == weight.shape[1:]:
                    how, parts = f"times {maker}.weight", (f"{maker}.weight",)
                    yield Form(f"{linear}.weight", how, weight, factor=scale, parts=parts)
                if shift is not None:
                    yield self._shifted(linear, maker, weight, shift)

    def _shifted(self, linear: str, maker: str, weight: Array, shift: Array) -> Form:
        bias = self.tensors.get(f"{linear}.bias", np.zeros(len(weight), np.float32))
        total = weight.astype(np.float64) @ shift
        error = _SUM_ERROR * (np.abs(weight) @ np.abs(shift) + np.abs(bias))
        how, parts = f"plus its weight times {maker}.bias", (f"{maker}.bias",)
        # Made in float64 and rounded once.
        values = (bias + total).astype(np.float32)
        return Form(f"{linear}.bias", how, values, error=error.astype(np.float32), parts=parts)


def _tensors(file: Path) -> Iterator[Array]:
    """Yield the floating-point tensors of a safetensors file as float32; NumPy has no bfloat16, so it is read here.

    Source: https://github.com/huggingface/safetensors#format.
    """
    data = np.memmap(file, np.uint8, "r")
    size = int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8 : 8 + size].tobytes())
    for name, row in header.items():
        if name == "__metadata__" or row["dtype"] not in ("F64", "F32", "F16", "BF16"):
            continue
        first, last = (8 + size + offset for offset in row["data_offsets"])
        raw = data[first:last]
        if row["dtype"] == "BF16":
            values = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = raw.view(f"<f{int(row['dtype'][1:]) // 8}").astype(np.float32, copy=False)
        yield np.asarray(values.reshape(row["shape"]))
