"""Operators of a file: the same in each function, none that no conversion has; and a file that is made once more."""

import shutil
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from conftest import TinyLine

from pipeline import artifact, backends
from pipeline.backends import signature
from pipeline.backends.structure import Structure
from pipeline.student import golden, reference
from pipeline.verify import companions, operators
from pipeline.verify.weights import Expected

FILES = ("litert-fp32", "litert-int8_dynamic", "executorch-fp32")


def read(line: TinyLine, name: str) -> tuple[Structure, Expected, str]:
    """Read a file of the tiny line back, and what is expected of it."""
    folder = line.folder / name / "model"
    claimed = signature.read(folder)
    truth = reference.read(line.folder / f"reference-{claimed.max_length}")
    expected = Expected.read(line.folder / "student", truth.checkpoint)
    return backends.get(claimed.backend).structure(folder / claimed.file), expected, claimed.backend


def judged(line: TinyLine, stored: Structure, expected: Expected, backend: str) -> tuple[bool, str]:
    kind = signature.read(line.folder / "litert-fp32" / "model").output_kind
    gate = operators.check(stored, expected, backend, line.folder / "student" / "config.json", kind)
    return gate.passed, gate.detail


@pytest.mark.parametrize("name", FILES)
def test_operators_of_a_conversion_are_known_and_alike_in_each_function(name: str, tiny_line: TinyLine) -> None:
    stored, expected, backend = read(tiny_line, name)
    assert len(stored.operators) == len(stored.uses) >= 1
    assert all(len(kinds) > 20 for kinds in stored.operators)
    passed, detail = judged(tiny_line, stored, expected, backend)
    assert passed, detail


@pytest.mark.parametrize(("name", "kind"), [("litert-fp32", "EQUAL"), ("executorch-fp32", "aten::eq")])
def test_an_operator_that_no_conversion_has_is_named(name: str, kind: str, tiny_line: TinyLine) -> None:
    stored, expected, backend = read(tiny_line, name)
    more = tuple((*kinds, kind) for kinds in stored.operators)
    passed, detail = judged(tiny_line, replace(stored, operators=more), expected, backend)
    assert not passed
    assert f"{len(more)} {kind}, which no conversion of bert has" in detail


def test_an_operator_that_one_function_alone_has_is_named(tiny_line: TinyLine) -> None:
    stored, expected, backend = read(tiny_line, "litert-int8_dynamic")
    first = stored.operators[0]
    more = replace(stored, operators=((*first, "ADD"), first))
    passed, detail = judged(tiny_line, more, expected, backend)
    assert not passed
    assert f"{first.count('ADD') + 1} and {first.count('ADD')} ADD in its functions" in detail


def test_an_order_that_one_function_alone_has_is_seen(tiny_line: TinyLine) -> None:
    stored, expected, backend = read(tiny_line, "litert-fp32")
    turned = replace(stored, operators=(stored.operators[0], stored.operators[0][::-1]))
    passed, detail = judged(tiny_line, turned, expected, backend)
    assert not passed
    assert "another order" in detail


@pytest.mark.parametrize("name", FILES)
def test_a_bound_that_no_conversion_has_is_named(name: str, tiny_line: TinyLine) -> None:
    stored, expected, backend = read(tiny_line, name)
    assert sorted(stored.limits)[:: len(stored.operators)] == [(pytest.approx(1e-12), inf), (1.0, inf)]
    for limit, said in (((1e-2, inf), "0.01 to inf"), ((-inf, 6.0), "-inf to 6"), ((1.0, 6.0), "1 to 6")):
        passed, detail = judged(tiny_line, replace(stored, limits=(*stored.limits, limit)), expected, backend)
        assert not passed
        assert f"a bound of {said}, which no embedding has" in detail


@pytest.mark.parametrize("backend", backends.NAMES)
def test_what_a_model_type_adds_is_its_own(backend: str, tiny_line: TinyLine, tmp_path: Path) -> None:
    _, expected, _ = read(tiny_line, "litert-fp32")
    kind = {"litert": "CUMSUM(INT32)", "coreml": "cumsum_int32", "executorch": "aten::cumsum:int64"}[backend]
    stored = Structure((), (), (), (), (), (), (), ((kind,),), ())
    for model_type, known in (("roberta", True), ("bert", False)):
        config = tmp_path / f"{model_type}.json"
        config.write_text(f'{{"model_type": "{model_type}"}}', encoding="utf-8")
        assert operators.check(stored, expected, backend, config, "embedding").passed == known


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
