"""Operators: none that no file may have, and any other for any activation; and a file that is made once more."""

import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from ai_edge_litert import schema_py_generated as schema
from conftest import TinyLine
from damage import edited_bytes
from faults import line, run
from faults.line import BUILD
from faults.students import unusual
from faults.workers import WorkerPool
from warm import session

from pipeline import artifact, formats, mil
from pipeline.convert.stage import Target
from pipeline.formats import signature
from pipeline.formats.litert.container import kinds_of, read_model, write_model
from pipeline.formats.structure import Structure
from pipeline.student import golden, reference
from pipeline.verify import companions, structure
from pipeline.verify.record import GateResult
from pipeline.verify.weights import Expected

FILES = ("litert-fp32", "litert-int8_dynamic", "executorch-fp32")


@pytest.fixture(scope="module")
def worker_pool() -> Iterator[WorkerPool]:
    """Workers that convert and run, as in `make faults`; what was judged before by the same code is kept.

    Its students are nobody else's, so it need not wait until another run leaves build/faults.
    """
    worker_pool = WorkerPool(BUILD / "logs" / "operators", 1, session().start)
    with worker_pool.at_work():
        yield worker_pool


@dataclass(frozen=True)
class ReadBack:
    """A file of the tiny line, read back, and what is expected of it."""

    stored: Structure
    expected: Expected
    file: Path


def read(line: TinyLine, name: str) -> ReadBack:
    folder = line.folder / name / "model"
    claimed = signature.read(folder)
    known = reference.read(line.folder / f"reference-{claimed.max_length}")
    expected = Expected.read(line.folder / "student", known.checkpoint)
    file = folder / claimed.file
    return ReadBack(formats.get(claimed.backend).structure(file), expected, file)


def judged(stored: Structure, expected: Expected, name: str) -> dict[str, GateResult]:
    backend, _, scheme = name.partition("-")
    gates = structure.check(stored, expected, scheme, backend, functions=len(stored.uses)).gates
    return {gate.name: gate for gate in gates}


# --- what no file may have --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_a_conversion_has_no_operator_that_none_may_have(name: str, tiny_line: TinyLine) -> None:
    read_back = read(tiny_line, name)
    assert read_back.stored.denied == ()
    assert judged(read_back.stored, read_back.expected, name)["operators"].passed


LITERT = (
    ("WHILE", "control flow"),
    ("IF", "control flow"),
    ("RANDOM_UNIFORM", "randomness"),
    ("CUSTOM", "a custom operator"),
    ("STABLEHLO_COMPOSITE", "a custom operator"),
)


@pytest.mark.parametrize(("kind", "why"), LITERT)
def test_in_litert_it_is_named(kind: str, why: str, tiny_line: TinyLine, tmp_path: Path) -> None:
    read_back = read(tiny_line, "litert-fp32")
    model, contents = read_model(read_back.file)
    softmax = kinds_of(model).index(schema.BuiltinOperator.SOFTMAX)
    code: Any = model.operatorCodes[softmax]
    code.builtinCode = getattr(schema.BuiltinOperator, kind)
    code.deprecatedBuiltinCode = min(code.builtinCode, 127)
    write_model(model, contents, tmp_path / "model.tflite")
    gate = judged(formats.get("litert").structure(tmp_path / "model.tflite"), read_back.expected, "litert-fp32")[
        "operators"
    ]
    assert not gate.passed
    assert f"{kind}, which is {why}" in gate.detail


COREML = (
    ("cond", "control flow"),
    ("while_loop", "control flow"),
    ("random_normal", "randomness"),
    ("custom_layer", "a custom operator"),
)


@pytest.mark.parametrize(("kind", "why"), COREML)
def test_in_core_ml_it_is_named(kind: str, why: str, converted: Callable[..., Path], tmp_path: Path) -> None:
    package = Path(shutil.copytree(converted("coreml-fp32") / "model.mlpackage", tmp_path / "model.mlpackage"))
    model = package / "Data" / "com.apple.CoreML" / "model.mlmodel"
    model.chmod(0o644)
    spec = mil.read(package).spec
    for function in spec.mlProgram.functions.values():
        for block in function.block_specializations.values():
            for operation in block.operations:
                operation.type = kind if operation.type == "softmax" else operation.type
    model.write_bytes(spec.SerializeToString())
    assert set(formats.get("coreml").structure(package).denied) == {(kind, why)}


EXECUTORCH = (("acme::embedding", "a custom operator"), ("aten::rand", "randomness"))


@pytest.mark.parametrize(("kind", "why"), EXECUTORCH)
def test_in_executorch_it_is_named(kind: str, why: str, tiny_line: TinyLine, tmp_path: Path) -> None:
    read_back = read(tiny_line, "executorch-fp32")

    clean = b"aten::embedding\0"
    old, new = (struct.pack("<I", len(name)) + name.ljust(len(clean), b"\0") for name in (clean[:-1], kind.encode()))
    file = edited_bytes(read_back.file, old, new, tmp_path / "model.pte")
    gate = judged(formats.get("executorch").structure(file), read_back.expected, "executorch-fp32")
    assert not gate["operators"].passed
    assert f"{kind}, which is {why}" in gate["operators"].detail


# --- activations that nobody listed -----------------------------------------------------------------------------------

FULL: dict[bool, list[pytest.MarkDecorator]] = {True: [pytest.mark.full], False: []}
FORMULAS = ("mish", *(pytest.param(name, marks=FULL[True]) for name in ("quick_gelu", "relu2")))


@pytest.mark.parametrize("backend", [pytest.param(name, marks=FULL[name != "coreml"]) for name in formats.NAMES])
@pytest.mark.parametrize("setting", FORMULAS)
def test_a_clean_conversion_of_an_activation_that_nobody_listed_passes(
    setting: str, backend: str, worker_pool: WorkerPool
) -> None:
    student = replace(unusual(setting), pieces="few")
    with worker_pool.take() as workers:
        cell = run.clean_cell(line.open_line(student, workers), Target(backend, "fp32"), workers)
    assert cell.verdict == "passed", cell.fired or cell.stopped
    assert {"operators", "activation"} <= {gate.name for gate in cell.gates}


# --- made once more ---------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_what_its_conversion_gives_is_named(tiny_line: TinyLine, tmp_path: Path) -> None:
    model = tiny_line.folder / "litert-fp32" / "model"
    again = tmp_path / "again"
    shutil.copytree(model, again)
    assert companions.reproduced(model, again).passed
    file = again / "model.tflite"
    file.chmod(0o644)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    gate = companions.reproduced(model, again)
    assert not gate.passed
    assert "model.tflite is not what the same conversion gives once more" in gate.detail


def test_golden_rows_of_a_student_that_another_processor_made_again_are_reproduced(
    tiny_line: TinyLine, tmp_path: Path
) -> None:
    model, again = tiny_line.folder / "litert-fp32" / "model", tmp_path / "again"
    shutil.copytree(model, again)
    file = again / golden.GOLDEN
    file.chmod(0o644)
    rows = golden.read(model)
    first, *others = rows.rows
    for moved, passes in ((1e-6, True), (0.5, False)):
        row = first.model_copy(update={"output": [value + moved for value in first.output]})
        file.write_text(rows.model_copy(update={"rows": [row, *others]}).model_dump_json(), encoding="utf-8")
        assert companions.reproduced(model, again).passed == passes
    file.write_text(rows.model_copy(update={"min_cosine": -1.0}).model_dump_json(), encoding="utf-8")
    assert "golden.json is not what the same conversion gives" in companions.reproduced(model, again).detail


def test_operations_that_stand_in_no_file_are_those_of_the_second_conversion(
    tiny_line: TinyLine, tmp_path: Path
) -> None:
    model = tiny_line.folder / "executorch-fp32" / "model"
    again = tmp_path / "again"
    shutil.copytree(model, again)
    assert companions.reproduced(model, again).passed
    manifest = artifact.read_manifest(again)
    edited = manifest.model_copy(update={"metrics": manifest.metrics | {"ops_delegated": 1}})
    (again / artifact.MANIFEST).unlink()
    (again / artifact.MANIFEST).write_text(edited.model_dump_json(), encoding="utf-8")
    assert "the manifest's ops_delegated is not what" in companions.reproduced(model, again).detail
