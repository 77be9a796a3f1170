"""Integers in Core ML files: exactly the codes and scales that were chosen, in as many bits, and told if not."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Outcome, recipe_file
from damage import edit_coreml
from faults import students
from faults.settings import SETTINGS, Setting
from quantised_coreml import (
    EIGHT,
    LENGTHS,
    QUERY,
    WORDS,
    Made,
    Quantise,
    decode,
    decompressed,
    flip,
    make_file,
    operations,
    quantise,
    with_some_of_eight_bits,
    with_tables_of_four_bits,
)
from store import Store
from test_backends import converting

from pipeline import formats, mil
from pipeline.checkpoint import integers as stored_integers
from pipeline.checkpoint.integers import Integers
from pipeline.convert.stage import Target, make
from pipeline.errors import ArtifactError, StudentError, ToolchainError
from pipeline.execution.worker import Worker
from pipeline.mil.constants import Expression
from pipeline.mil.package import Literal
from pipeline.schemes import SCHEMES
from pipeline.verify import quantised_checkpoint, structure

SCHEME = "int4_weight_only"
KEY, OUTPUT = EIGHT
WIDE = "hidden of 312"
_INT4_RECORD, _UINT4_RECORD = 8, 11


KINDS: Mapping[str, Quantise] = {
    "": quantise,
    "tables of 4 bits": with_tables_of_four_bits,
    "mixed": with_some_of_eight_bits,
    WIDE: quantise,
}
SOME_FULL = [pytest.param(kind, marks=() if kind == "" else pytest.mark.full) for kind in KINDS]


@pytest.fixture(scope="module")
def converter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with converting(tmp_path_factory.mktemp("log")) as worker:
        yield worker


@pytest.fixture(scope="module")
def wide(run_store: Store) -> Path:
    """Return a student whose columns no block of 32 divides, as TinyBERT's are."""
    config = {"hidden_size": 312, "num_attention_heads": 12, "intermediate_size": 1200}
    SETTINGS[WIDE] = Setting(config=config)
    try:
        return run_store.get("wide", lambda folder: students.source(students.few(setting=WIDE), folder))
    finally:
        del SETTINGS[WIDE]


@pytest.fixture(scope="module")
def made(run_store: Store, randomised: Callable[..., Path], wide: Path, converter: Worker) -> Callable[[str], Made]:
    def get_made(kind: str) -> Made:
        source = wide if kind == WIDE else randomised()
        return make_file(run_store, converter, source, SCHEME, f"integers-coreml-{kind}", KINDS[kind])

    return get_made


def place(one: Expression, argument: str) -> tuple[str, int]:
    """Return the weight file and the offset of a part of a weight."""
    literal = one.arguments[argument]
    assert isinstance(literal, Literal)
    assert literal.blob is not None
    return literal.blob


def holds(package: mil.Package, one: Expression, due: Integers) -> bool:
    """Return whether a constant has the codes and the scales of a weight, in as many bits, and nothing else."""
    codes, scales = (decode(package, one.arguments[name]) for name in ("data", "scale"))
    declared = one.arguments["data"]
    assert isinstance(declared, Literal)
    assert declared.type is not None
    return (
        one.arguments.keys() == {"data", "scale"}
        and declared.type.dtype.name == f"int{due.bits}"
        and package.blob(place(one, "data")[0]).record(place(one, "data")[1]).bytes == due.codes.size * due.bits // 8
        and np.array_equal(codes, due.codes)
        and scales.dtype == np.float16
        and np.array_equal(scales, due.scales)
    )


def of_weight(package: mil.Package, due: Integers) -> Expression:
    (found,) = [one for one in decompressed(package, "blockwise")[0] if holds(package, one, due)]
    return found


@pytest.mark.parametrize("kind", SOME_FULL)
def test_a_file_has_the_codes_and_the_scales_of_the_checkpoint(kind: str, made: Callable[[str], Made]) -> None:
    one = made(kind)
    package = mil.read(one.file)
    assert {WORDS, QUERY, KEY, OUTPUT} <= one.quantised_weights.keys()
    functions = decompressed(package, "constexpr")
    assert len(functions) == len(LENGTHS)
    assert {constant.key for constant in functions[0]} == {constant.key for constant in functions[1]}
    assert len(functions[0]) == len(one.quantised_weights)
    for due in one.quantised_weights.values():
        assert of_weight(package, due)


@pytest.mark.parametrize("kind", SOME_FULL)
def test_a_clean_file_passes(kind: str, made: Callable[[str], Made]) -> None:
    one = made(kind)
    gates = one.judged()
    assert not {name: gate.detail for name, gate in gates.items() if not gate.passed}
    bits = [held.bits for held in one.quantised_weights.values()]
    due = [f"{bits.count(few)} weights are int{few}" for few in (4, 8) if few in bits]
    assert gates["stored"].detail == " and ".join(due)
    few = {"": {WORDS: 8, QUERY: 4}, "tables of 4 bits": {WORDS: 4, QUERY: 4}, "mixed": {QUERY: 4, KEY: 8, OUTPUT: 8}}
    assert {name: one.quantised_weights[name].bits for name in few.get(kind, {})} == few.get(kind, {})
    assert kind != WIDE or set(bits) == {8}


@pytest.mark.full
def test_a_file_is_smaller_by_the_bits(made: Callable[[str], Made]) -> None:
    sizes = {}
    for kind in ("", "tables of 4 bits"):
        one = made(kind)
        sizes[kind] = sum(path.stat().st_size for path in one.file.rglob("*") if path.is_file())
    table = made("").quantised_weights[WORDS].codes
    # A scale of two bytes for each 32 columns, where there was one a row.
    saved = table.size // 2 - 2 * len(table) * (table.shape[1] // 32 - 1)
    assert abs(sizes[""] - sizes["tables of 4 bits"] - saved) < 4096


@pytest.mark.parametrize(
    "kind", ["", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("tables of 4 bits", "mixed"))]
)
@pytest.mark.parametrize("argument", ["data", "scale"])
@pytest.mark.parametrize("name", [QUERY, WORDS, KEY])
def test_damage_fails(kind: str, argument: str, name: str, made: Callable[[str], Made], tmp_path: Path) -> None:
    """One bit of a code, or the last one of a scale."""
    one = made(kind)
    file = Path(shutil.copytree(one.file, tmp_path / one.file.name))
    due = one.quantised_weights[name]
    at = due.codes.size * due.bits // 16 if argument == "data" else 6
    flip(file, place(of_weight(mil.read(file), due), argument), at)
    failed = {name for name, gate in one.judged(file).items() if not gate.passed}
    assert failed == {"weights"}


def test_codes_that_are_declared_otherwise_are_refused(made: Callable[[str], Made], tmp_path: Path) -> None:
    """As unsigned numbers, the codes below zero would be 16 more; the record of the weight says what they are."""
    one = made("")
    file = Path(shutil.copytree(one.file, tmp_path / one.file.name))
    name, offset = place(of_weight(mil.read(file), one.quantised_weights[QUERY]), "data")
    weights = file / "Data" / "com.apple.CoreML" / name
    data = bytearray(weights.read_bytes())
    assert data[offset + 4] == _INT4_RECORD
    data[offset + 4] = _UINT4_RECORD
    weights.write_bytes(data)
    with pytest.raises(ArtifactError, match="is uint4, and the program says int4"):
        formats.get("coreml").structure(file)


def test_scales_that_do_not_divide_the_columns_are_refused(made: Callable[[str], Made], tmp_path: Path) -> None:
    one = made("")
    file = Path(shutil.copytree(one.file, tmp_path / one.file.name))
    due = one.quantised_weights[QUERY]
    offset = place(of_weight(mil.read(file), due), "scale")[1]

    def in_one_column(spec: Any) -> None:
        for operation in operations(spec, "constexpr_blockwise_shift_scale"):
            value = operation.inputs["scale"].arguments[0].value
            if value.blobFileValue.offset == offset:
                for dimension, size in zip(value.type.tensorType.dimensions, (due.scales.size, 1), strict=True):
                    dimension.constant.size = size

    edit_coreml(file, in_one_column)
    with pytest.raises(ArtifactError, match="cannot be decoded"):
        formats.get("coreml").structure(file)


def test_a_checkpoint_without_integers_is_refused(
    made: Callable[[str], Made], converter: Worker, tmp_path: Path
) -> None:
    one = made("")
    gates = SCHEMES[SCHEME].gates["embedding"]
    with pytest.raises(StudentError, match="not quantised for a scheme of integers"):
        converter.call(make, one.student, Target("coreml", SCHEME), (8,), 18, None, None, gates, tmp_path)


@pytest.mark.parametrize("name", [QUERY, WORDS])
def test_integers_that_the_program_lacks_are_an_error(
    name: str, made: Callable[[str], Made], converter: Worker, tmp_path: Path
) -> None:
    """A code of eight bits that is one off differs in half precision too."""
    one = made("")
    quantised = Path(shutil.copytree(one.quantised, tmp_path / "quantised"))
    codes = one.quantised_weights[name].codes.copy()
    codes[2, 3] ^= 1
    stored_integers.write({**one.quantised_weights, name: replace(one.quantised_weights[name], codes=codes)}, quantised)
    gates = SCHEMES[SCHEME].gates["embedding"]
    with pytest.raises(ToolchainError, match=rf"has no constant that the integers of {name} give"):
        converter.call(make, one.student, Target("coreml", SCHEME), (8,), 18, None, quantised, gates, tmp_path / "out")


def test_a_weight_that_is_stored_otherwise_is_told(made: Callable[[str], Made]) -> None:
    """A code of four bits fits into eight, with the same numbers, so `weights` passes."""
    one = made("mixed")
    row, (_, rewritten) = SCHEMES[SCHEME], one.expected
    stored = formats.get("coreml").structure(one.file)
    wider = replace(
        stored,
        constants=tuple(
            replace(constant, stored="int8") if "query" in constant.name else constant for constant in stored.constants
        ),
    )
    checked = structure.check(wider, rewritten, SCHEME, "coreml", functions=len(LENGTHS))
    assert checked.gates[0].passed
    gate = quantised_checkpoint.check_stored(wider, checked.followed, one.quantised_weights, row, "float16")
    assert f"{QUERY} is stored as int8, not int4" in gate.detail
    for other in ("fp16", "int8_weight_only"):
        assert not structure.check(stored, rewritten, other, "coreml", functions=len(LENGTHS)).gates[0].passed


def test_blocks_need_ios_18(command_here: Callable[..., Outcome], tmp_path: Path) -> None:
    targets = {"coreml": {"schemes": [SCHEME], "minimum_ios": 17}}
    outcome = command_here("plan", recipe_file(tmp_path, targets=targets))
    assert "hold int4 weights from iOS 18 on, and minimum_ios is 17" in outcome.stderr


@pytest.mark.full
@pytest.mark.parametrize("table_bits", [4, 8])
@pytest.mark.parametrize("architecture", ["bert", "albert", "distilbert", "mobilebert", "roberta"])
def test_integers_go_through_the_command(
    architecture: str,
    table_bits: int,
    randomised: Callable[..., Path],
    command_here: Callable[..., Outcome],
    tmp_path: Path,
) -> None:
    path = recipe_file(
        tmp_path,
        student={"source": str(randomised(architecture)), "random_weights": True},
        convert={"sequence_lengths": [16, 32]},
        targets={"coreml": {"schemes": [SCHEME]}},
        quantize={"calibration_texts": 64, "table_bits": table_bits},
    )
    outcome = command_here("verify", path, "--json")
    assert set(outcome.document["verdicts"].values()) == {"passed"}, outcome.stdout
