"""Weights of four and eight bits in LiteRT files: exactly the checkpoint's, and verify tells when they are not."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from conftest import Outcome, recipe_file, write_student
from damage import Contents, edited_litert
from store import Store
from test_backends import converting, student_artifact

from pipeline import formats
from pipeline.architectures import ARCHITECTURES
from pipeline.artifact import Artifact, read_manifest
from pipeline.checkpoint import integers as stored_integers
from pipeline.checkpoint.integers import Integers
from pipeline.checkpoint.loading import load_checkpoint
from pipeline.checkpoint.parameters import model_structure
from pipeline.convert.stage import Target, make
from pipeline.data import calibration
from pipeline.errors import StudentError, ToolchainError
from pipeline.execution.worker import Worker
from pipeline.formats.litert import container, scales
from pipeline.quantize import checkpoint as quantised
from pipeline.quantize import stage as quantize
from pipeline.recipe.schema import QuantizeSection
from pipeline.schemes import SCHEMES
from pipeline.tasks import get
from pipeline.verify import quantised_checkpoint, structure
from pipeline.verify.quantised_weights import differing
from pipeline.verify.record import GateResult
from pipeline.verify.weights import Expected

SCHEME = "int4_dynamic"
TARGET = Target("litert", SCHEME)
WORDS = "embeddings.word_embeddings.weight"
QUERY = "encoder.layer.0.attention.self.query.weight"
KEY = "encoder.layer.0.attention.self.key.weight"
LENGTHS = (8, 16)


@dataclass(frozen=True)
class Made:
    """A student, its rounded checkpoint and the LiteRT file."""

    student: Artifact
    quantised: Path
    file: Path

    @property
    def integers(self) -> dict[str, Integers]:
        return stored_integers.read(self.quantised)

    def judged(self, file: Path | None = None) -> dict[str, GateResult]:
        """Return the gates that concern constants."""
        stored = formats.get("litert").structure(file or self.file)
        reference = Expected.read(
            self.student.path, model_structure(load_checkpoint(self.student.path, get("embedding")))
        )
        rewritten = Expected.read(self.quantised, quantised.structure(self.quantised))
        checked = structure.check(stored, rewritten, SCHEME, "litert", functions=len(LENGTHS))
        assert not differing(reference, rewritten, self.integers, SCHEMES[SCHEME])
        gates = [
            *checked.gates,
            quantised_checkpoint.check_stored(stored, checked.followed, self.integers, SCHEMES[SCHEME], "float32"),
        ]
        return {gate.name: gate for gate in gates}

    def failed(self, file: Path | None = None) -> dict[str, str | None]:
        """Return the failed gates' details."""
        return {name: gate.detail for name, gate in self.judged(file).items() if not gate.passed}


@pytest.fixture(scope="module")
def converter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with converting(tmp_path_factory.mktemp("log")) as worker:
        yield worker


def convert(converter: Worker, student: Artifact, quantised: Path, out: Path) -> Path:
    converter.call(make, student, TARGET, LENGTHS, None, None, quantised, SCHEMES[SCHEME].gates["embedding"], out)
    return out / formats.get("litert").FILE


@pytest.fixture(scope="module")
def made(run_store: Store, converter: Worker) -> Callable[..., Made]:
    """A factory of files by a name, a student, bits of tables and linears of eight bits."""

    def get_made(name: str, source: Path, *, table_bits: Literal[4, 8] = 8, eight: tuple[str, ...] = ()) -> Made:
        def make_all(folder: Path) -> None:
            student = student_artifact(source, "embedding", folder / "student")
            (folder / "quantised").mkdir()
            (folder / "model").mkdir()
            texts = calibration.default_texts(32, seed=0)
            section = QuantizeSection(calibration_texts=32, table_bits=table_bits)
            paths = tuple(name.removesuffix(".weight") for name in eight)
            quantize.make(student.path, "embedding", SCHEME, section, paths, texts, folder / "quantised")
            convert(converter, student, folder / "quantised", folder / "model")

        folder = run_store.get(f"litert-integers-{name}", make_all)
        student = Artifact(folder / "student", read_manifest(folder / "student"))
        return Made(student, folder / "quantised", folder / "model" / formats.get("litert").FILE)

    return get_made


@pytest.fixture
def four(made: Callable[..., Made], randomised: Callable[..., Path]) -> Made:
    """A file with linears of four bits and a table of eight."""
    return made("four", randomised())


@pytest.fixture
def mixed(made: Callable[..., Made], randomised: Callable[..., Path]) -> Made:
    """A file with a table of four bits, and a linear of eight among those of four."""
    return made("mixed", randomised(), table_bits=4, eight=(QUERY,))


# --- what a file has --------------------------------------------------------------------------------------------------


def test_packing_is_undone(seed: int) -> None:
    codes = np.random.default_rng(seed).integers(-8, 8, (6, 64)).astype(np.int8)
    low, high = (int(code) % 16 for code in codes[0, :2])
    steps = np.ones((6, 2), "<f2")
    packed = scales.packed(codes)
    assert packed[0] == low + 16 * high
    assert np.array_equal(scales.by_blocks(memoryview(packed), memoryview(steps.tobytes()), codes.shape), codes)


def constants(file: Path) -> Iterator[tuple[Any, ...]]:
    """Yield codes, scales and bits of each graph's quantised constants."""
    from ai_edge_litert import schema_py_generated as schema

    model, contents = container.read_model(file)
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            content = np.frombuffer(contents[tensor.buffer], np.uint8)
            if tensor.type == schema.TensorType.INT4:
                blocks = tensor.quantization.details
                of_blocks = graph.tensors[blocks.scales]
                steps = np.frombuffer(contents[of_blocks.buffer], np.float16).reshape(of_blocks.shape)
                pairs = np.stack([content % 16, content // 16], 1).reshape(tensor.shape).astype(int)
                assert blocks.blockSize * steps.shape[1] == tensor.shape[1]
                yield graph, (pairs + 8) % 16 - 8, steps, 4
            elif tensor.type == schema.TensorType.INT8:
                steps = tensor.quantization.scale.reshape(-1, 1)
                yield graph, content.view(np.int8).reshape(tensor.shape), steps, 8


@pytest.mark.parametrize("name", ["four", "mixed"])
def test_a_file_has_the_codes_and_the_scales_of_the_checkpoint(name: str, request: pytest.FixtureRequest) -> None:
    one: Made = request.getfixturevalue(name)
    expected = one.integers
    found = list(constants(one.file))
    assert {WORDS, QUERY, KEY} <= expected.keys()
    assert len(found) == len(LENGTHS) * len(expected)
    for graph in {id(graph): graph for graph, *_ in found}.values():
        here = [rest for owner, *rest in found if owner is graph]
        for integer in expected.values():
            assert any(
                bits == integer.bits and np.array_equal(codes, integer.codes) and np.array_equal(steps, integer.scales)
                for codes, steps, bits in here
            )


def test_a_clean_file_passes(four: Made) -> None:
    assert not four.failed()
    gates = four.judged()
    assert gates["stored"].detail == f"{len(four.integers) - 1} weights are int4 and 1 weights are int8"
    assert gates["weights"].found == 0


def test_bits_may_be_mixed(mixed: Made) -> None:
    assert not mixed.failed()
    assert {name: one.bits for name, one in mixed.integers.items() if name in (WORDS, QUERY, KEY)} == {
        WORDS: 4,
        QUERY: 8,
        KEY: 4,
    }


def test_what_several_lengths_have_is_stored_once(four: Made) -> None:
    model, _ = container.read_model(four.file)
    by_blocks = {
        (tensor.buffer, graph.tensors[blocks.scales].buffer)
        for graph in model.subgraphs
        for tensor in graph.tensors
        if (blocks := container.blocks_of(tensor)) is not None
    }
    assert len(by_blocks) == len(four.integers) - 1


def tiny_bert(folder: Path) -> Path:
    """Write a student of TinyBERT's sizes, whose columns no block of 32 divides."""
    sizes = {"hidden_size": 312, "num_attention_heads": 12, "intermediate_size": 1200, "num_hidden_layers": 1}
    row = ARCHITECTURES["bert"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ARCHITECTURES, "bert", replace(row, tiny_config=dict(row.tiny_config) | sizes))
        return write_student(folder, "bert", "embedding")


@pytest.mark.full
def test_columns_that_no_block_divides_have_eight_bits(made: Callable[..., Made], tmp_path: Path) -> None:
    one = made("312", tiny_bert(tmp_path), table_bits=4)
    found = {name: (integer.bits, integer.scales.shape[1]) for name, integer in one.integers.items()}
    assert found.pop(WORDS) == (4, 1)
    assert set(found.values()) == {(8, 1)}
    assert not one.failed()


# --- what a file must not have ----------------------------------------------------------------------------------------


INT4 = 17
"""INT4 in `TensorType`."""


def int4(model: Any) -> Any:
    """Return the first tensor of four bits, whose scales are in blocks."""
    return next(one for one in container.tensors_of(model) if one.type == INT4)


def scales_of(model: Any) -> Any:
    """Return the tensor with the scales of that tensor."""
    return model.subgraphs[0].tensors[int4(model).quantization.details.scales]


def flipped(tensor: Callable[[Any], Any], at: int, bit: int) -> Callable[[Any, Contents], None]:
    """Return a change of one bit in a tensor's content."""

    def change(model: Any, contents: Contents) -> None:
        number = tensor(model).buffer
        content = bytearray(contents[number])
        content[at] ^= bit
        contents[number] = memoryview(bytes(content))

    return change


@pytest.mark.parametrize(
    "change",
    [
        flipped(int4, 100, 0x10),
        flipped(int4, 100, 0x08),
        # The last bit of a number of bfloat16, and one that it does not have.
        flipped(scales_of, 6, 0x08),
        flipped(scales_of, 6, 0x01),
    ],
    ids=["high code", "low code", "scale", "fine scale"],
)
def test_a_damaged_code_or_scale_fails(change: Callable[[Any, Contents], None], four: Made, tmp_path: Path) -> None:
    file = edited_litert(four.file, change, tmp_path / "damaged.tflite")
    assert set(four.failed(file)) == {"weights"}


def test_scales_of_another_weight_fail(four: Made, tmp_path: Path) -> None:
    def exchanged(model: Any, contents: Contents) -> None:
        for graph in model.subgraphs:
            own = next(one for one in graph.tensors if one.type == INT4)
            shape = list(graph.tensors[own.quantization.details.scales].shape)
            others = (one.quantization.details.scales for one in graph.tensors if one.type == INT4)
            own.quantization.details.scales = next(
                one
                for one in others
                if one != own.quantization.details.scales and list(graph.tensors[one].shape) == shape
            )

    file = edited_litert(four.file, exchanged, tmp_path / "damaged.tflite")
    assert "weights" in four.failed(file)


# --- conversion -------------------------------------------------------------------------------------------------------


def test_a_checkpoint_without_integers_is_refused(four: Made, converter: Worker, tmp_path: Path) -> None:
    with pytest.raises(StudentError, match="was not quantised for a scheme of integers"):
        convert(converter, four.student, four.student.path, tmp_path)


def test_codes_of_another_weight_are_refused(four: Made, converter: Worker, tmp_path: Path) -> None:
    quantised = Path(shutil.copytree(four.quantised, tmp_path / "quantised"))
    codes = four.integers[QUERY].codes.copy()
    codes[2, 3] += 1 if codes[2, 3] < 0 else -1
    stored_integers.write(four.integers | {QUERY: replace(four.integers[QUERY], codes=codes)}, quantised)
    with pytest.raises(StudentError, match=f"no table of BertModel has what the codes of {QUERY} give"):
        convert(converter, four.student, quantised, tmp_path)


def test_a_weight_that_the_converter_lost_is_named(four: Made, mixed: Made, tmp_path: Path) -> None:
    from pipeline.formats.litert import integers as of_files

    with pytest.raises(ToolchainError, match=r"made an int8 constant .* of its own"):
        of_files.put_in(four.file, tmp_path / "out.tflite", four.integers)
    one = {name: integer for name, integer in mixed.integers.items() if name == KEY}
    model, contents = container.read_model(mixed.file)
    eight = next(tensor for graph in model.subgraphs for tensor in graph.tensors if tensor.type == 9)
    for tensor in container.tensors_of(model):
        if tensor.buffer == eight.buffer:
            tensor.quantization.scale = np.ones(1, np.float32)
    container.write_model(model, contents, tmp_path / "in.tflite")
    with pytest.raises(ToolchainError, match=f"changed the codes of {KEY}"):
        of_files.put_in(tmp_path / "in.tflite", tmp_path / "out.tflite", one)


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(name, marks=pytest.mark.full)
        for name in ("bert", "albert", "distilbert", "mobilebert", "roberta", "tinybert")
    ],
)
def test_int4_goes_through_the_command(
    architecture: str, randomised: Callable[..., Path], command_here: Callable[..., Outcome], tmp_path: Path
) -> None:
    source = tiny_bert(tmp_path / "student") if architecture == "tinybert" else randomised(architecture)
    path = recipe_file(
        tmp_path,
        student={"source": str(source), "random_weights": True},
        convert={"sequence_lengths": [16, 32]},
        targets={"litert": {"schemes": [SCHEME]}},
        quantize={"calibration_texts": 64, "table_bits": 8 if architecture == "bert" else 4},
        # Of random weights, few bits leave less than of trained ones.
        verify={
            "gates": {
                SCHEME: {
                    "min_mean_cosine": 0.9,
                    "min_worst_cosine": 0.5,
                    "min_sqnr_db": 5.0,
                    "max_bytes_per_parameter": 1.2,
                }
            }
        },
    )
    outcome = command_here("verify", path, "--json")
    assert outcome.rc == 0, outcome.stdout + outcome.stderr
    assert set(outcome.document["verdicts"].values()) == {"passed"}
