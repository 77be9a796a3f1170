"""int4 in ExecuTorch: a file has exactly the checkpoint's codes and scales, and verification tells when it has not."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from conftest import Outcome, recipe_file, run_command_here, write_student
from store import Store
from test_backends import converting, student_artifact

from pipeline.artifact import Artifact
from pipeline.checkpoint import integers as stored
from pipeline.checkpoint.integers import Integers
from pipeline.checkpoint.loading import load_checkpoint
from pipeline.checkpoint.parameters import model_structure
from pipeline.convert.stage import Target, make
from pipeline.data import calibration
from pipeline.errors import ToolchainError
from pipeline.execution.worker import Worker
from pipeline.formats import executorch
from pipeline.formats.executorch import integers as inserted
from pipeline.formats.executorch.control import _Payload
from pipeline.quantize import checkpoint as quantised
from pipeline.quantize import stage as quantize
from pipeline.recipe.schema import QuantizeSection
from pipeline.schemes import SCHEMES
from pipeline.tasks import get
from pipeline.verify import quantised_checkpoint, structure
from pipeline.verify import stage as verify
from pipeline.verify.quantised_weights import differing
from pipeline.verify.record import GateResult
from pipeline.verify.weights import Expected

# executorch reads its own schemas so.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated. Use files:DeprecationWarning")

SCHEME = "int4_dynamic"
WORDS = "embeddings.word_embeddings.weight"
QUERY = "encoder.layer.0.attention.self.query.weight"
EIGHT = "encoder.layer.1.intermediate.dense"
FREE = {"gates": {SCHEME: {"min_mean_cosine": 0.5, "min_worst_cosine": -1.0, "min_sqnr_db": 0.0}}}


@dataclass(frozen=True)
class Made:
    """A student, its checkpoint of integers and the file."""

    student: Path
    quantised: Path
    file: Path
    task: str = "embedding"

    @property
    def integers(self) -> dict[str, Integers]:
        return stored.read(self.quantised)

    def judged(self, file: Path | None = None) -> dict[str, GateResult]:
        """Return the gates that concern constants."""
        structure_read = executorch.structure(file or self.file)
        reference = Expected.read(self.student, model_structure(load_checkpoint(self.student, get(self.task))))
        rewritten, row = quantised_checkpoint.read_weights(self.quantised), SCHEMES[SCHEME]
        checked = structure.check(structure_read, rewritten, SCHEME, "executorch", functions=1)
        assert not differing(reference, rewritten, self.integers, row)
        gates = [
            *checked.gates,
            quantised_checkpoint.check_stored(structure_read, checked.followed, self.integers, row, "float32"),
        ]
        return {gate.name: gate for gate in gates}

    def failed(self, file: Path | None = None) -> set[str]:
        return {name for name, gate in self.judged(file).items() if not gate.passed}


@pytest.fixture(scope="session")
def line(run_store: Store, randomised: Callable[..., Path]) -> Callable[[int], Path]:
    """Lines of a tiny classifier, verified by the command once a run, with tables of 8 or of 4 bits."""

    def get_made(table_bits: int) -> Path:
        def make_line(folder: Path) -> None:
            gates = {"gates": {SCHEME: {"min_sqnr_db": 0.0, "min_agreement": 0.0, "max_kl": 9.0}}}
            recipe = recipe_file(
                folder,
                task="classification",
                student={"source": str(randomised("bert", "classification")), "random_weights": True},
                targets={"executorch": {"schemes": [SCHEME]}},
                convert={"sequence_lengths": [8, 16]},
                quantize={"calibration_texts": 32, "table_bits": table_bits},
                verify=gates,
            )
            outcome = run_command_here("verify", recipe, "--build", folder / "build", "--json", cwd=folder)
            assert outcome.rc == 0, outcome.stdout[-3000:] + outcome.stderr[-3000:]

        return run_store.get(f"int4-line-{table_bits}", make_line) / "build" / "tiny"

    return get_made


@pytest.fixture(params=[4, pytest.param(8, marks=pytest.mark.full)], ids=["tables of 4 bits", "tables of 8 bits"])
def made(request: pytest.FixtureRequest, line: Callable[[int], Path]) -> Made:
    folder = line(request.param)
    model = folder / f"executorch-{SCHEME}" / "model" / executorch.FILE
    return Made(folder / "student", folder / f"quantised-{SCHEME}", model, "classification")


@pytest.fixture(scope="module")
def converter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with converting(tmp_path_factory.mktemp("log")) as worker:
        yield worker


def convert(converter: Worker, student: Artifact, quantised: Path, out: Path) -> Path:
    gates = SCHEMES[SCHEME].gates["embedding"]
    out.mkdir()
    converter.call(make, student, Target("executorch", SCHEME), (16,), None, None, quantised, gates, out)
    return out / executorch.FILE


# --- what a file has --------------------------------------------------------------------------------------------------


def pairs(packed: np.ndarray, *, lower_first: bool) -> np.ndarray:
    """Spell two codes of four bits out of each byte, by the format's own words and not the reader's."""
    halves = [(int(byte) & 15, int(byte) >> 4) for byte in packed.ravel()]
    ordered = halves if lower_first else [pair[::-1] for pair in halves]
    return np.array(ordered, np.int16).reshape(*packed.shape[:-1], -1) - 8


def linears_of(file: Path) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Return bits, codes and the bits of the scales of all matrices of XNNPACK, as executorch's own tools read them."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    program = deserialize_pte_binary(file.read_bytes())
    named = {key: program.named_data.buffers[row.buffer_index] for key, row in program.named_data.pte_data.items()}
    found = []
    for delegate in program.program.backend_delegate_data:
        graph = _Payload.read(delegate.data).graph
        keys = [row.get("named_key") for row in graph["constant_data"]]
        for value in graph["xvalues"]:
            plain, scaled = value["xvalue_union"].get("tensor_value", {}), value["xvalue_union"].get("quant_params", {})
            if not plain.get("constant_buffer_idx"):
                continue
            rows, columns = plain["dims"]
            raw = np.frombuffer(named[keys[plain["constant_buffer_idx"]]], np.uint8)
            scales = named[keys[scaled["scale_buffer_idx"]]]
            if plain["datatype"] == "xnn_datatype_qbint4":
                assert scaled["group_size"] == 32
                codes = pairs(raw.reshape(rows, columns // 2), lower_first=True)
                found.append((4, codes, np.frombuffer(scales, "<u2").astype("<u4") << 16))
            else:
                assert plain["datatype"] == "xnn_datatype_qcint8"
                found.append((8, raw.view(np.int8).reshape(rows, columns), np.frombuffer(scales, "<u4")))
    return found


def tables_of(file: Path) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Return the same of the quantised tables."""
    from executorch.exir._serialize._program import deserialize_pte_binary
    from executorch.exir.scalar_type import ScalarType

    program = deserialize_pte_binary(file.read_bytes()).program
    plan = next(one for one in program.execution_plan if one.name == "forward")
    found = []
    for instruction in plan.chains[0].instructions:
        call = instruction.instr_args
        operator = plan.operators[call.op_index].name if hasattr(call, "op_index") else ""
        if operator.startswith("quantized_decomposed::embedding_"):
            table, scales = (plan.values[number].val for number in call.args[:2])
            raw, bits = (program.constant_buffer[one.data_buffer_idx].storage for one in (table, scales))
            packed = np.frombuffer(raw, np.uint8, int(np.prod(table.sizes))).reshape(table.sizes)
            few = operator.endswith("4bit")
            codes = pairs(packed, lower_first=False) if few else packed.view(np.int8)
            assert not few or scales.scalar_type == ScalarType.HALF
            read = np.frombuffer(bits, "<f2" if few else "<f4", int(np.prod(scales.sizes)))
            found.append((4 if few else 8, codes, read.astype("<f4").view("<u4")))
    return found


def check_bit_for_bit(file: Path, expected: Mapping[str, Integers]) -> None:
    found = {"table": tables_of(file), "linear": linears_of(file)}
    assert len(found["table"]) + len(found["linear"]) == len(expected)
    for name, one in expected.items():
        kind = "table" if "embeddings." in name else "linear"
        bits = one.scales.astype("<f4").view("<u4").ravel()
        assert any(
            few == one.bits and np.array_equal(codes, one.codes) and np.array_equal(scales, bits)
            for few, codes, scales in found[kind]
        ), name


def test_a_clean_file_passes_every_gate(made: Made) -> None:
    assert verify.read_parity(made.file.parents[1] / "parity").verdict == "passed"
    assert not made.failed()
    structure_read = executorch.structure(made.file)
    assert structure_read.arithmetic.count("float") == 1, "the head, of fewer numbers than become integers"
    assert structure_read.arithmetic.count("dynamic_int8") == sum(one.bits == 4 for one in made.integers.values()) - (
        made.integers[f"bert.{WORDS}"].bits == 4
    )


def test_a_file_has_the_codes_and_the_scales_of_the_checkpoint(made: Made) -> None:
    assert {f"bert.{WORDS}", f"bert.{QUERY}"} <= made.integers.keys()
    check_bit_for_bit(made.file, made.integers)


@pytest.mark.full
def test_linears_of_both_bits_in_one_file(randomised: Callable[..., Path], converter: Worker, tmp_path: Path) -> None:
    student = student_artifact(randomised(), "embedding", tmp_path / "student")
    quantised = tmp_path / "quantised"
    quantised.mkdir()
    round_mixed(student.path, quantised)
    one = Made(student.path, quantised, convert(converter, student, quantised, tmp_path / "model"))
    assert one.integers[f"{EIGHT}.weight"].bits == 8
    assert one.integers[QUERY].bits == 4
    assert not one.failed(), one.judged()
    check_bit_for_bit(one.file, one.integers)


def round_mixed(student: Path, out: Path) -> None:
    """Do what the stage does, with one linear in eight bits."""
    from pipeline.compress.common import calibration_batches
    from pipeline.quantize.integers import round_weights

    model = load_checkpoint(student, get("embedding"))
    batches = calibration_batches(model, student, calibration.default_texts(32, seed=0), 128)
    found = round_weights(model, batches, block=32, table_bits=8, eight=[EIGHT])
    quantize._write_weights(model, out)
    stored.write({name: one.weight for name, one in found.items()}, out)
    quantised.write_structure(model, out)
    shutil.copyfile(student / "config.json", out / "config.json")


@pytest.mark.full
def test_widths_that_no_block_divides(converter: Worker, tmp_path: Path) -> None:
    """TinyBERT has 312 and 1200: linears have eight bits and a scale per row, a table of four bits one per row."""
    source = write_student(tmp_path / "source", "bert", "embedding", hidden_size=312, intermediate_size=1200)
    student = student_artifact(source, "embedding", tmp_path / "student")
    (tmp_path / "quantised").mkdir()
    section, texts = QuantizeSection(calibration_texts=32, table_bits=4), calibration.default_texts(32, seed=0)
    converter.call(quantize.make, student.path, "embedding", SCHEME, section, (), texts, tmp_path / "quantised")
    file = convert(converter, student, tmp_path / "quantised", tmp_path / "model")
    one = Made(student.path, tmp_path / "quantised", file)
    assert {integers.bits for name, integers in one.integers.items() if "layer." in name} == {8}
    assert (one.integers[WORDS].bits, one.integers[WORDS].block) == (4, 312)
    assert not one.failed(), one.judged()
    check_bit_for_bit(file, one.integers)


@pytest.mark.full
@pytest.mark.parametrize("table_bits", [8, 4])
@pytest.mark.parametrize("architecture", ["albert", "distilbert", "mobilebert", "roberta"])
def test_every_architecture(
    architecture: str,
    table_bits: int,
    randomised: Callable[..., Path],
    command_here: Callable[..., Outcome],
    tmp_path: Path,
) -> None:
    recipe = recipe_file(
        tmp_path,
        student={"source": str(randomised(architecture)), "random_weights": True},
        targets={"executorch": {"schemes": [SCHEME]}},
        convert={"sequence_lengths": [8, 16]},
        quantize={"calibration_texts": 32, "table_bits": table_bits},
        verify=FREE,
    )
    outcome = command_here("verify", recipe, "--json")
    assert outcome.rc == 0, outcome.stdout + outcome.stderr
    assert set(outcome.document["verdicts"].values()) == {"passed"}


# --- damage -----------------------------------------------------------------------------------------------------------


def packed(one: Integers, *, table: bool) -> bytes:
    """Return the codes as the file has them."""
    if one.bits == 8:
        return one.codes.tobytes()
    shifted = (one.codes.astype(np.int16) + 8).astype(np.uint8)
    even, odd = shifted[:, ::2], shifted[:, 1::2]
    return (even << 4 | odd if table else odd << 4 | even).tobytes()


def scale_bytes(one: Integers, *, table: bool) -> bytes:
    """Return the scales as the file has them."""
    if table or one.bits == 8:
        return one.scales.astype("<f2" if one.bits == 4 else "<f4").tobytes()
    return (one.scales.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()


@pytest.mark.parametrize("name", [f"bert.{QUERY}", f"bert.{WORDS}"])
@pytest.mark.parametrize("part", ["code", "scale"])
def test_one_bit_that_is_another_fails(part: str, name: str, made: Made, tmp_path: Path) -> None:
    """The lowest bit of a code in the middle, or the last of a scale; by nothing else than the weights."""
    one, table = made.integers[name], name.endswith(WORDS)
    content = (packed if part == "code" else scale_bytes)(one, table=table)
    data = bytearray(made.file.read_bytes())
    assert data.count(content) == 1
    width = 1 if part == "code" else len(content) // one.scales.size
    data[data.find(content) + len(content) // width // 2 * width] ^= 1
    file = tmp_path / executorch.FILE
    file.write_bytes(data)
    assert made.failed(file) == {"weights"}


# --- what cannot be converted -----------------------------------------------------------------------------------------


def test_a_code_that_the_file_lacks_is_an_error(made: Made) -> None:
    for name in (f"bert.{QUERY}", f"bert.{WORDS}"):
        one = made.integers[name]
        codes = one.codes.copy()
        codes[1, 5] ^= 1
        with pytest.raises(ToolchainError, match=rf"does not hold the codes of {name} .* in {one.bits} bits"):
            inserted.check(made.file, {name: replace(one, codes=codes)})
        with pytest.raises(ToolchainError, match=f"does not hold the codes of {name}"):
            inserted.check(made.file, {name: replace(one, bits=12 - one.bits)})


def integers(columns: int, *, bits: int, block: int) -> Integers:
    return Integers(np.ones((4, columns), np.int8), np.ones((4, columns // block), np.float32), bits)


@pytest.mark.parametrize(
    ("one", "table", "message"),
    [
        (integers(64, bits=4, block=16), False, "blocks of 16 columns; XNNPACK has blocks of 32"),
        (integers(64, bits=8, block=32), False, "8 bits and blocks of 32 columns"),
        (integers(33, bits=4, block=33), True, "33 columns, two to a byte"),
    ],
)
def test_what_no_kernel_takes_is_refused(one: Integers, table: bool, message: str) -> None:
    import torch

    first = torch.nn.Embedding(4, 33) if table else torch.nn.Linear(64, 4)
    module = torch.nn.ModuleDict({"first": first})
    with pytest.raises(ToolchainError, match=r"no table whose weight is first\.weight"):
        inserted.insert(module, {"first.weight": one})
    with torch.no_grad():
        first.weight.copy_(torch.from_numpy(one.dense()))
    with pytest.raises(ToolchainError, match=f"no kernel for first.weight: it has {message}"):
        inserted.insert(module, {"first.weight": one})
