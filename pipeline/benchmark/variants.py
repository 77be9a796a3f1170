"""The timed variants: converted files, and the student in PyTorch. Peers are added in `benchmarks/`."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline import formats, heads, tasks
from pipeline.artifact import Artifact
from pipeline.benchmark.timed import Timed
from pipeline.convert.model import Model
from pipeline.formats import signature
from pipeline.text.encoding import Encoder, Row


@dataclass(frozen=True)
class Variant:
    """One column of the latency table. Its callables are handed to a worker, so they are module-level or partials."""

    id: str
    scheme: str
    runtime: str
    distribution: str | None
    """The Python distribution of the runtime; None where it comes with the system, as Core ML does."""
    delegate: str | None
    open_with_threads: Callable[[int], Timed]
    import_runtime: Callable[[], None]
    file: Path | None
    sha256: str | None
    bytes: int | None
    lengths: tuple[int, ...] | None
    ops_delegated: int | None
    ops_total: int | None


class TimedModel:
    """A converted file."""

    def __init__(self, folder: Path, threads: int) -> None:
        """Open it."""
        self._model = Model(folder, threads=threads)
        self.encoder = self._model.encoder
        self._names = tuple(tensor.name for tensor in self._model.signature.functions[0].inputs)
        self._pad = self._model.signature.pad_token_id

    def place(self, tokens: int) -> int:
        """Return the smallest length that fits."""
        return self._model.signature.choose(tokens)[1]

    def prepare(self, row: Row, length: int) -> dict[str, NDArray[np.int32]]:
        """Return padded arrays."""
        return row.padded(self._names, length, pad_token_id=self._pad)

    def execute(self, inputs: dict[str, NDArray[np.int32]], length: int) -> NDArray[np.float32]:
        """Run the function of that length."""
        function, _ = self._model.signature.choose(length)
        return self._model.run_padded(function, inputs)


class TimedCheckpoint:
    """The student in PyTorch eager fp32, unpadded: the baseline before PocketBERT."""

    def __init__(self, folder: Path, task: str, max_length: int, threads: int) -> None:
        """Load the checkpoint."""
        import torch

        from pipeline import architectures
        from pipeline.checkpoint.loading import load_checkpoint

        torch.set_num_threads(threads)
        loaded = tasks.get(task)
        self.model = load_checkpoint(folder, loaded)
        self._head = heads.of(loaded, self.model)
        self.encoder = Encoder.from_folder(folder, max_length)
        self._names = architectures.get(self.model.config.model_type).inputs

    def place(self, tokens: int) -> int:
        """PyTorch takes any length."""
        return tokens

    def prepare(self, row: Row, length: int) -> dict[str, NDArray[np.int32]]:
        """Return padded arrays."""
        return row.padded(self._names, length, pad_token_id=0)

    def execute(self, inputs: dict[str, NDArray[np.int32]], length: int) -> NDArray[np.float32]:
        """Run Hugging Face's forward and the task's output."""
        import torch

        with torch.inference_mode():
            tensors = {name: torch.from_numpy(array).long() for name, array in inputs.items()}
            outputs = self._head.outputs(self.model(**tensors), tensors["attention_mask"].float())
            arrays: list[NDArray[np.float32]] = [output.numpy()[0] for output in outputs]
        return arrays[0] if len(arrays) == 1 else np.stack(arrays, axis=-1)


def import_checkpoint(model_type: str) -> None:
    """Import torch and the model's module of transformers, so that imports are not timed as part of opening."""
    import torch  # noqa: F401
    import transformers.models.auto  # noqa: F401

    module = model_type.replace("-", "_")
    importlib.import_module(f"transformers.models.{module}.modeling_{module}")


def import_backend(name: str) -> None:
    """Import a format's runtime."""
    formats.get(name).import_runtime()


def of_target(model: Artifact, student: str = "") -> Variant:
    """Return the variant of a converted file.

    Args:
        model: its artifact.
        student: the recipe of a student that stands beside the one that all are compared with; else empty.
    """
    claimed = signature.read(model.path)
    found = model.manifest.metrics
    fixed = all(function.fixed for function in claimed.functions)
    backend = formats.get(claimed.backend)
    return Variant(
        id="-".join(filter(None, (student, claimed.backend, claimed.scheme))),
        scheme=claimed.scheme,
        runtime=backend.TITLE,
        distribution=backend.RUNTIME,
        delegate=backend.DELEGATE,
        open_with_threads=partial(TimedModel, model.path),
        import_runtime=partial(import_backend, claimed.backend),
        file=model.path / claimed.file,
        sha256=model.digest,
        bytes=found["file_bytes"],
        lengths=tuple(function.max_length for function in claimed.functions) if fixed else None,
        ops_delegated=found.get("ops_delegated"),
        ops_total=found.get("ops_total"),
    )


def of_student(made: Artifact, max_length: int) -> Variant:
    """Return the student in PyTorch eager fp32."""
    weights = made.path / "model.safetensors"
    return Variant(
        id="pytorch-fp32",
        scheme="fp32",
        runtime="PyTorch eager",
        distribution="torch",
        delegate=None,
        open_with_threads=partial(TimedCheckpoint, made.path, made.manifest.params["task"], max_length),
        import_runtime=partial(import_checkpoint, made.manifest.metrics["model_type"]),
        file=weights,
        sha256=made.digest,
        bytes=weights.stat().st_size,
        lengths=None,
        ops_delegated=None,
        ops_total=None,
    )
