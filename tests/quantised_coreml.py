"""Core ML files with palettes or integers from the checkpoint, and what verification says of their constants."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from store import Store
from test_backends import student_artifact

from pipeline import formats, mil
from pipeline.artifact import Artifact, read_manifest
from pipeline.checkpoint import integers
from pipeline.checkpoint.loading import load_checkpoint
from pipeline.checkpoint.parameters import model_structure
from pipeline.compress.common import calibration_batches
from pipeline.convert.stage import Target, make
from pipeline.data import calibration
from pipeline.execution.worker import Worker
from pipeline.formats.coreml import quantised as converted
from pipeline.mil.constants import Expression, Source, constants
from pipeline.mil.constants import decode as decode_any
from pipeline.quantize import checkpoint as quantised
from pipeline.quantize import stage as quantize
from pipeline.quantize.integers import round_weights
from pipeline.recipe.schema import QuantizeSection
from pipeline.schemes import SCHEMES
from pipeline.tasks import get
from pipeline.verify import quantised_checkpoint, structure
from pipeline.verify.quantised_weights import differing
from pipeline.verify.record import GateResult
from pipeline.verify.weights import Expected

LENGTHS = (8, 16)
WORDS = "embeddings.word_embeddings.weight"
QUERY = "encoder.layer.0.attention.self.query.weight"
EIGHT = ("encoder.layer.0.attention.self.key.weight", "encoder.layer.1.output.dense.weight")
"""Those of 8 bits where a checkpoint has both."""


@dataclass(frozen=True)
class Made:
    """A student, the checkpoint of a scheme and the Core ML file."""

    scheme: str
    student: Artifact
    quantised: Path
    file: Path

    @property
    def quantised_weights(self) -> Mapping[str, Any]:
        return converted.read(self.quantised, SCHEMES[self.scheme])

    @property
    def expected(self) -> tuple[Expected, Expected]:
        model = load_checkpoint(self.student.path, get("embedding"))
        reference = Expected.read(self.student.path, model_structure(model))
        return reference, Expected.read(self.quantised, quantised.structure(self.quantised))

    def judged(self, file: Path | None = None) -> dict[str, GateResult]:
        """Return the gates that concern constants."""
        stored = formats.get("coreml").structure(file or self.file)
        reference, rewritten = self.expected
        row = SCHEMES[self.scheme]
        checked = structure.check(stored, rewritten, self.scheme, "coreml", functions=len(LENGTHS))
        assert not differing(reference, rewritten, self.quantised_weights, row)
        gates = [
            *checked.gates,
            quantised_checkpoint.check_stored(stored, checked.followed, self.quantised_weights, row, "float16"),
        ]
        return {gate.name: gate for gate in gates}


Quantise = Callable[[Path, str, Path], object]
"""Writes the checkpoint of a student for a scheme into a folder."""


def quantise(student: Path, scheme: str, out: Path, *, table_bits: Literal[4, 8] = 8) -> None:
    """Do as the stage does, on a few texts."""
    section = QuantizeSection(calibration_texts=32, table_bits=table_bits)
    quantize.make(student, "embedding", scheme, section, (), calibration.default_texts(32, seed=0), out)


def with_tables_of_four_bits(student: Path, scheme: str, out: Path) -> None:
    quantise(student, scheme, out, table_bits=4)


def with_some_of_eight_bits(student: Path, scheme: str, out: Path) -> None:
    """Do as the stage does, with 8 bits for two linears."""
    model = load_checkpoint(student, get("embedding"))
    batches = calibration_batches(model, student, calibration.default_texts(32, seed=0), 64)
    eight = [name.removesuffix(".weight") for name in EIGHT]
    found = round_weights(model, batches, block=32, table_bits=8, eight=eight)
    shutil.copyfile(student / "config.json", out / "config.json")
    quantize._write_weights(model, out)
    integers.write({name: one.weight for name, one in found.items()}, out)
    quantised.write_structure(model, out)


def make_file(store: Store, worker: Worker, source: Path, scheme: str, name: str, rounds: Quantise = quantise) -> Made:
    """Return a student's file for a scheme, which is made once a run for each name."""
    folder = store.get(name, partial(_make, worker, source, scheme, rounds))
    student = Artifact(folder / "student", read_manifest(folder / "student"))
    return Made(scheme, student, folder / "quantised", folder / "model" / formats.get("coreml").FILE)


def _make(worker: Worker, source: Path, scheme: str, rounds: Quantise, folder: Path) -> None:
    student = student_artifact(source, "embedding", folder / "student")
    for name in ("quantised", "model"):
        (folder / name).mkdir()
    quantised = folder / "quantised"
    # Here: a worker does not know the modules of tests.
    rounds(student.path, scheme, quantised)
    gates = SCHEMES[scheme].gates["embedding"]
    worker.call(make, student, Target("coreml", scheme), LENGTHS, 18, None, quantised, gates, folder / "model")


def decompressed(package: mil.Package, part: str) -> list[list[Expression]]:
    """Return for each function the constants that are made by operations with a part of a name."""
    found = []
    for function in package.functions:
        sources = constants(package.program(function)).values()
        found.append([one for one in sources if isinstance(one, Expression) and part in one.operation.kind])
    return found


def decode(package: mil.Package, source: Source) -> np.ndarray:
    return np.asarray(decode_any(package, source, rounded=False))


def flip(file: Path, blob: tuple[str, int], byte: int) -> None:
    """Flip the last bit of a byte of a weight, which lies in a weight file at an offset."""
    name, offset = blob
    start = mil.read(file).blob(name).record(offset).start
    weights = file / "Data" / "com.apple.CoreML" / name
    data = bytearray(weights.read_bytes())
    data[start + byte] ^= 1
    weights.write_bytes(data)


def operations(spec: Any, kind: str) -> list[Any]:
    """Return the operations of a kind of each function, as the protobuf has them."""
    functions = spec.mlProgram.functions.values()
    blocks = [block for function in functions for block in function.block_specializations.values()]
    return [operation for block in blocks for operation in block.operations if operation.type == kind]
