"""Core ML programs of every architecture: ids go straight into gathers, and no floor is a subnormal number."""

import dataclasses
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mil_lint
import numpy as np
import pytest
import torch
from conftest import seed_of, write_student
from mil_programs import in_worker, write_weights
from test_mil_constants import block, edit

from pipeline import mil
from pipeline.architectures import ARCHITECTURES
from pipeline.architectures.architecture import Architecture
from pipeline.errors import InputError
from pipeline.formats import ConvertRequest, coreml
from pipeline.formats.signature import Signature
from pipeline.metrics import measures
from pipeline.mil.values import SMALLEST_NORMAL
from pipeline.text.encoding import Row

pytestmark = pytest.mark.toolchain

LENGTH = 16
REQUEST = ConvertRequest(
    student=Path(),
    task="embedding",
    scheme="fp16",
    lengths=(LENGTH,),
    minimum_ios=18,
    base=None,
    metadata={},
    labels=None,
)
COUNTED = Counter(not_equal=1, cast=1, cumsum=1, mul=1, add=1)
"""What RoBERTa does with ids: it counts the tokens before each one, behind the padding id."""
MOVED = Counter(sub=1, mul=1, add=1)
"""What comes behind it where padding has the first token's position, as in MPNet."""
CASES: list[tuple[str, str, str, int]] = [
    *((architecture, "embedding", "fp16", 18) for architecture in ARCHITECTURES),
    *((architecture, "classification", "int8_weight_only", 18) for architecture in ("bert", "roberta")),
    ("bert", "embedding", "fp32", 18),
    ("bert", "embedding", "int8_weight_only", 17),
    ("bert", "embedding", "int8_weight_only", 16),
    ("bert", "token_classification", "fp16", 18),
    ("bert", "question_answering", "fp16", 18),
]
Convert = Callable[[str, str, str, int], Path]


@pytest.fixture(scope="module")
def convert(tiny_student: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Convert:
    """Converted tiny students; each is made once."""
    place = tmp_path_factory.mktemp("clean")

    def make(architecture: str, task: str, scheme: str, ios: int) -> Path:
        folder = place / f"{architecture}-{task}-{scheme}-{ios}"
        if not folder.exists():
            folder.mkdir()
            student = tiny_student(architecture, task)
            request = dataclasses.replace(REQUEST, student=student, task=task, scheme=scheme, minimum_ios=ios)
            in_worker(coreml.convert, request, folder)
        return folder / coreml.FILE

    return make


@pytest.fixture
def own(convert: Convert, tmp_path: Path) -> Path:
    """A copy of BERT in half precision, whose floors are those of before: 2^-24 and 1."""
    shutil.copytree(convert("bert", "embedding", "fp16", 18), tmp_path / coreml.FILE)
    edit(tmp_path / coreml.FILE, _lower_floor)
    return tmp_path / coreml.FILE


def _lower_floor(model: Any) -> None:
    """Write the smallest half where the smallest normal one stands."""
    found = 0
    for operation in block(model).operations:
        literal = operation.attributes["val"].immediateValue.tensor.bytes if operation.type == "const" else None
        if literal and literal.values == np.float16(SMALLEST_NORMAL).tobytes():
            literal.values = np.float16(2.0**-24).tobytes()
            found += 1
    assert found == 1


def rows(name: str) -> list[dict[str, np.ndarray]]:
    """A full row, short ones of two segments, and one of padding alone, which comes last."""
    generator = np.random.default_rng(seed_of(name))
    names = ("input_ids", "attention_mask", "token_type_ids")
    made = []
    for tokens in (LENGTH, 3, 11, 0):
        ids = tuple(int(one) for one in generator.integers(104, 1000, tokens))
        types = tuple(int(place > tokens // 2) for place in range(tokens))
        made.append(Row(ids, types).padded(names, LENGTH, pad_token_id=0))
    return made


def outputs(interpreter: mil.Interpreter, name: str) -> list[np.ndarray]:
    ports = {port.name for port in interpreter.inputs}
    given = ({key: array for key, array in row.items() if key in ports} for row in rows(name))
    return [np.concatenate([value.ravel() for value in interpreter.run(row).values()]) for row in given]


def positions(architecture: Architecture) -> Counter[str]:
    """Return the operators that compute an architecture's positions from ids."""
    if architecture.graph_inputs is None:
        return Counter()
    ids, padding = torch.tensor([[5, 6, 7, 1]]), 1
    made = architecture.graph_inputs(ids, torch.tensor([[1, 1, 1, 0]]), padding)["position_ids"][0]
    return COUNTED + MOVED if made[-1] == made[0] else COUNTED


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_a_program_is_clean(case: tuple[str, str, str, int], convert: Convert) -> None:
    package = mil.read(convert(*case))
    (program,) = (package.program(name) for name in package.functions)
    assert mil_lint.integers_before_gathers(program) == positions(ARCHITECTURES[case[0]])
    assert mil_lint.subnormal_floors(package, program) == []
    assert mil_lint.unbounded_clips(package, program) == []
    assert mil_lint.done_twice(program) == []
    assert mil_lint.too_wide(program) == []


def test_the_table_of_words_alone_is_too_wide(tmp_path: Path) -> None:
    student = write_student(tmp_path / "student", "bert", "embedding", vocab_size=30522)
    request = dataclasses.replace(REQUEST, student=student, task="embedding", scheme="fp32", minimum_ios=18)
    in_worker(coreml.convert, request, tmp_path)
    package = mil.read(tmp_path / coreml.FILE)
    (program,) = (package.program(name) for name in package.functions)
    assert mil_lint.too_wide(program) == ["gather"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_nothing_hangs_on_a_subnormal_number(case: tuple[str, str, str, int], convert: Convert) -> None:
    """Not even on the epsilon of a layer normalisation, which is subnormal in half precision."""
    package = convert(*case)
    found = outputs(mil.Interpreter(package, flush_subnormals=True), str(case))
    assert all(np.isfinite(row).all() for row in found)
    if case[1] == "embedding":
        assert np.abs(found[-1]).max() == 0.0
        kept = outputs(mil.Interpreter(package), str(case))
        for one, other in zip(found[:-1], kept[:-1], strict=True):
            # Some squares of tiny MobileBERT's small values are flushed, which changes its length alone.
            assert measures.cosine(one[None], other[None])[0] > 0.9999


def test_the_lint_finds_what_coremltools_adds(tmp_path: Path) -> None:
    in_worker(write_weights, tmp_path / "x.mlpackage", "fp16", 18)
    found = mil_lint.integers_before_gathers(mil.read(tmp_path / "x.mlpackage").program(None))
    assert {"greater_equal", "add", "select"} <= set(found)


# --- a floor that is flushed -----------------------------------------------------------------------------------------


def test_a_subnormal_floor_is_found_and_gives_nan_where_it_is_flushed(own: Path) -> None:
    package = mil.read(own)
    assert len(mil_lint.subnormal_floors(package, package.program(None))) == 1
    kept = outputs(mil.Interpreter(own), "floor")
    flushed = outputs(mil.Interpreter(own, flush_subnormals=True), "floor")
    assert np.abs(kept[-1]).max() == 0.0
    assert np.isnan(flushed[-1]).all()
    # Real text never comes near the floor: only the row of padding shows it.
    assert all(np.isfinite(row).all() for row in flushed[:-1])


def test_verification_opens_a_file_that_flushes(own: Path, convert: Convert) -> None:
    evaluator = coreml.evaluators()[0]
    assert evaluator.load_flushed is not None
    for file, finite in ((convert("bert", "embedding", "fp16", 18), True), (own, False)):
        (function,) = coreml.inspect(file)
        read_back = Signature.model_construct(functions=(function,))
        session = evaluator.load_flushed(file, read_back)
        (found,) = session.run(function, rows("pad")[-1]).values()
        session.close()
        assert bool(np.isfinite(found).all()) is finite


# --- ids ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("input_ids", -1, "input_ids span -1 to .*; the table has 1000 rows"),
        ("input_ids", 1000, "input_ids span .* to 1000; the table has 1000 rows"),
        ("token_type_ids", 2, "token_type_ids span 0 to 2; the table has 2 rows"),
    ],
)
def test_ids_outside_of_their_table_are_refused(name: str, value: int, message: str, convert: Convert) -> None:
    """The program itself takes a negative id as one from the end, or reads what lies elsewhere."""
    file = convert("bert", "embedding", "fp16", 18)
    (function,) = coreml.inspect(file)
    session = coreml.load_interpreter(file, Signature.model_construct(functions=(function,)))
    (row, *_) = rows("ids")
    session.run(function, row)
    row[name][0, 3] = value
    with pytest.raises(InputError, match=message):
        session.run(function, row)
