"""A quantised checkpoint has to be the one that the recipe asks for, of this student, with nothing left out."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from faults import quantised_faults as faults
from faults.calibrated import Checkpoint
from store import Store

from pipeline import tasks
from pipeline.checkpoint import integers, ranges
from pipeline.checkpoint.loading import load_checkpoint
from pipeline.checkpoint.parameters import model_structure
from pipeline.checkpoint.weights import CODES, WEIGHTS
from pipeline.data.calibration import default_texts
from pipeline.errors import StudentError
from pipeline.quantize import checkpoint as quantised
from pipeline.quantize import stage as quantize
from pipeline.quantize.stage import QuantiseRequest
from pipeline.recipe.schema import QuantizeSection
from pipeline.schemes import SCHEMES
from pipeline.text.encoding import Encoder
from pipeline.verify import quantised_checkpoint
from pipeline.verify import ranges as ranges_gate
from pipeline.verify.quantised_weights import differing, holding_their_own
from pipeline.verify.record import GateResult
from pipeline.verify.weights import Expected

_LAYER = "bert.encoder.layer.1"
_OUTPUT = f"{_LAYER}.attention.output.dense"
QUERY = "bert.encoder.layer.0.attention.self.query"
WORDS = "bert.embeddings.word_embeddings.weight"
TASK = "classification"
Change = Callable[[Checkpoint], None]


@pytest.fixture
def copied(randomised: Callable[..., Path], run_store: Store, tmp_path: Path) -> Callable[[str], Checkpoint]:
    """A factory of copies of a quantised checkpoint, by its scheme."""

    def make(scheme: str) -> Checkpoint:
        student = randomised("bert", TASK)

        def quantise(folder: Path) -> None:
            section = QuantizeSection(calibration_texts=32)
            quantize.make(student, TASK, scheme, section, (), default_texts(32, seed=0), folder)

        kept = run_store.get(f"calibrated-{scheme}", quantise)
        found = Checkpoint(tmp_path / "copy", student, TASK, scheme, kept, kept)
        found.folder.mkdir()
        found.take(kept)
        return found

    return make


def judged(one: Checkpoint, expected: QuantiseRequest) -> GateResult:
    """Return the gate of a checkpoint."""
    scheme = SCHEMES[one.scheme]
    student = Expected.read(one.student, model_structure(load_checkpoint(one.student, tasks.get(TASK))))
    rewritten, weights = quantised_checkpoint.read(one.folder, scheme, half=False)
    return quantised_checkpoint.check(one.folder, one.student, student, rewritten, weights, scheme, expected)


@pytest.mark.parametrize("scheme", ["int4_dynamic", "int8_static", "palettize_4bit"])
def test_a_clean_checkpoint_passes(scheme: str, copied: Callable[[str], Checkpoint]) -> None:
    gate = judged(copied(scheme), QuantiseRequest())
    assert gate.passed, gate.detail
    assert f"calibrated for {scheme}" in gate.detail


def _structure(**fields: object) -> Change:
    def edit(one: Checkpoint) -> None:
        file = one.folder / quantised.STRUCTURE
        file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | fields), encoding="utf-8")

    return edit


def _record(file: str, **fields: object) -> Change:
    def edit(one: Checkpoint) -> None:
        path = one.folder / file
        path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | fields), encoding="utf-8")

    return edit


def _said_otherwise(one: Checkpoint) -> None:
    path = one.folder / integers.RECORD
    document = json.loads(path.read_text("utf-8"))
    document["weights"][1]["bits"] = 8
    path.write_text(json.dumps(document), encoding="utf-8")


def _dropped(one: Checkpoint) -> None:
    one.put(f"{QUERY}.weight", None)
    one.restructure()


def _in_eight_bits(one: Checkpoint) -> None:
    from pipeline.quantize.integers import nearest_by_row

    one.put(f"{QUERY}.weight", nearest_by_row(one.of_student(f"{QUERY}.weight")))
    one.restructure()


def _head_too(one: Checkpoint) -> None:
    one.put_linears(lambda linears: [*linears, linears[0].model_copy(update={"path": "classifier"})])


def _calls_turned(one: Checkpoint) -> None:
    calls = quantised.structure(one.folder)["calls"]
    _structure(calls=[*calls[:-2], calls[-1], calls[-2]])(one)


TRAINING = ranges.Training(
    texts=9, held_out=1, steps=1, seconds=1, resumed_at=(), distance_before=1, distance=1, first_loss=1, final_loss=1
).model_dump(mode="json")


@pytest.mark.parametrize(
    ("scheme", "change", "said"),
    [
        ("int4_dynamic", faults._config(layer_norm_eps=1e-5), "its config.json is not the student's"),
        ("int4_dynamic", _structure(epsilons=[1e-5] * 5), "it has other epsilons than the student"),
        ("int4_dynamic", _structure(activations=["relu"] * 3), "it has other activations than the student"),
        ("int8_static", _calls_turned, "its modules run in another order"),
        ("int4_dynamic", _record(integers.RECORD, scheme="int4_weight_only"), "it was made for int4_weight_only"),
        ("int8_static", _record(ranges.FILE, scheme="int8_dynamic"), "it was made for int8_dynamic"),
        ("int8_static", _record(ranges.FILE, training=TRAINING), "it was trained"),
        ("int4_dynamic", _said_otherwise, f"{integers.RECORD} says something else of"),
        ("int4_dynamic", _dropped, f"{QUERY}.weight was left in floats"),
        ("int4_dynamic", _in_eight_bits, f"{QUERY}.weight has 8 bits in blocks of 64, and 4 in blocks of 32 are due"),
        ("int8_static", faults._linear(QUERY, faults._without_ranges), f"{QUERY} has no ranges"),
        ("int8_static", faults.no_ranges, "and 10 more"),
        ("int8_static", _head_too, "classifier has ranges and is no linear of the encoder"),
    ],
)
def test_what_the_recipe_does_not_ask_for_fails(
    scheme: str, change: Change, said: str, copied: Callable[[str], Checkpoint]
) -> None:
    one = copied(scheme)
    change(one)
    gate = judged(one, QuantiseRequest())
    assert not gate.passed
    assert said in gate.detail


@pytest.mark.parametrize(
    "expected", [QuantiseRequest(trained=True), QuantiseRequest(eight_bits=(QUERY,)), QuantiseRequest(table_bits=4)]
)
def test_what_the_recipe_asks_for_has_to_be_there(
    expected: QuantiseRequest, copied: Callable[[str], Checkpoint]
) -> None:
    assert not judged(copied("int4_dynamic"), expected).passed


@pytest.mark.parametrize(
    ("scheme", "file"), [("int4_dynamic", integers.RECORD), ("int8_static", ranges.FILE)], ids=["int4", "static"]
)
def test_a_checkpoint_that_only_says_that_it_was_trained_fails(
    scheme: str, file: str, copied: Callable[[str], Checkpoint]
) -> None:
    one = copied(scheme)
    _record(file, training=TRAINING)(one)
    gate = judged(one, QuantiseRequest(trained=True))
    assert not gate.passed
    assert "it says that it was trained, and its norms and biases are the student's" in gate.detail


def test_what_a_policy_gives_eight_bits_passes(copied: Callable[[str], Checkpoint]) -> None:
    one = copied("int4_dynamic")
    _in_eight_bits(one)
    gate = judged(one, QuantiseRequest(eight_bits=(QUERY,)))
    assert gate.passed, gate.detail


@pytest.mark.parametrize("name", [f"{QUERY}.weight", WORDS])
def test_a_scale_that_no_rounding_tries_fails(name: str, copied: Callable[[str], Checkpoint]) -> None:
    """Twice too large, a block is no farther off than its row may be."""
    one = copied("int4_dynamic")
    faults._weight(faults._scales(faults._doubled), name)(one)
    one.restructure()
    gate = judged(one, QuantiseRequest())
    assert not gate.passed
    assert "1 of" in gate.detail
    assert "scales are none that rounding the student's tries" in gate.detail


def test_a_weight_that_is_no_number_fails(copied: Callable[[str], Checkpoint]) -> None:
    one = copied("int8_static")
    student = Expected.read(one.student, model_structure(load_checkpoint(one.student, tasks.get(TASK))))
    rewritten = quantised_checkpoint.read_weights(one.folder)
    name = next(name for name in rewritten.tensors if name.startswith(QUERY) and name.endswith("linear.weight"))
    values = rewritten.tensors[name].copy()
    values[3, 5] = np.nan
    broken = replace(rewritten, tensors={**rewritten.tensors, name: values})
    for trained in (False, True):
        assert not differing(student, rewritten, None, SCHEMES["int8_static"], trained=trained)
        assert differing(student, broken, None, SCHEMES["int8_static"], trained=trained)


@pytest.mark.parametrize(("scheme", "trained"), [("int8_static", False), ("int8_static", True), ("int4_dynamic", True)])
def test_two_tensors_that_are_exchanged_fail(scheme: str, trained: bool, copied: Callable[[str], Checkpoint]) -> None:
    """Whatever training may do to a weight, zeros are nearer to the student's than another one of its linears."""
    one = copied(scheme)
    student = Expected.read(one.student, model_structure(load_checkpoint(one.student, tasks.get(TASK))))
    rewritten, weights = quantised_checkpoint.read(one.folder, SCHEMES[scheme], half=False)
    query, key = (
        next(
            name
            for name in rewritten.tensors
            if name.startswith(path) and name.endswith("weight") and "gain" not in name
        )
        for path in (QUERY, QUERY.replace("query", "key"))
    )
    assert not differing(student, rewritten, weights, SCHEMES[scheme], trained=trained)
    others = {query: rewritten.tensors[key], key: rewritten.tensors[query]}
    tensors = {**rewritten.tensors, **others}
    turned = weights and {**weights, query: weights[key], key: weights[query]}
    said = differing(student, replace(rewritten, tensors=tensors), turned, SCHEMES[scheme], trained=trained)
    assert len(said) == 2
    assert f"{QUERY}.weight" in said[0]


@pytest.mark.parametrize("scheme", ["int8_static", "int4_dynamic"])
def test_the_weights_of_another_student_fail(scheme: str, copied: Callable[[str], Checkpoint]) -> None:
    one = copied(scheme)
    student = Expected.read(one.student, model_structure(load_checkpoint(one.student, tasks.get(TASK))))
    rewritten, weights = quantised_checkpoint.read(one.folder, SCHEMES[scheme], half=False)
    generator = np.random.default_rng(3)
    drawn = {
        name: (values if values.ndim < 2 else generator.permuted(values)).astype(np.float32)
        for name, values in student.tensors.items()
    }
    matrices = sum(values.ndim == 2 for values in drawn.values())
    said = differing(replace(student, tensors=drawn), rewritten, weights, SCHEMES[scheme], trained=True)
    assert len(said) >= matrices - 1


def test_a_row_that_an_outlier_s_error_moved_is_still_the_student_s_and_no_other_is(seed: int) -> None:
    student = np.random.default_rng(seed).normal(size=(200, 64)).astype(np.float32)
    found = student.copy()
    size = np.linalg.norm(student[0])
    # As palettes of 6 bits did to two rows of bge-small: every number by as much, by more than the row's size together.
    found[0] += 1.5 * size / 8
    found[1], found[2], found[3], found[4] = student[5], -student[2], 3 * student[3], 0
    assert np.linalg.norm(found[0] - student[0]) > size
    held = [holding_their_own(found, student, np.array([row])) for row in range(5)]
    assert held == [1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("scheme", "file"),
    [
        ("int4_dynamic", CODES),
        ("int4_dynamic", WEIGHTS),
        ("int8_static", ranges.FILE),
        ("int8_static", quantised.STRUCTURE),
    ],
)
@pytest.mark.parametrize("half", [True, False])
def test_a_checkpoint_that_is_half_written_is_told(
    scheme: str, file: str, half: bool, copied: Callable[[str], Checkpoint]
) -> None:
    """Ends in the middle, or has one of its files missing."""
    one = copied(scheme)
    content = (one.folder / file).read_bytes()
    (one.folder / file).unlink()
    if half:
        (one.folder / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(StudentError, match=r"cannot be read|no record of |holds no tensor|was not quantised"):
        judged(one, QuantiseRequest())


@pytest.mark.parametrize(
    ("change", "passes"),
    [
        (faults._linear(_OUTPUT, faults._times(1.2)), True),
        (faults._linear(_OUTPUT, faults._times(8.0)), False),
        (faults._linear(_OUTPUT, faults._times(0.1)), False),
        (faults._linear(_OUTPUT, faults._input_of(f"{_LAYER}.output.dense")), False),
    ],
)
def test_a_range_has_to_fit_what_its_linear_reads(
    change: Change, passes: bool, copied: Callable[[str], Checkpoint]
) -> None:
    one = copied("int8_static")
    change(one)
    encoder = Encoder.from_folder(one.student, 32)
    rows = [encoder.encode(text) for text in ("A dog runs.", "Two cats sleep on the old sofa.", "Prices fell by 3 %.")]
    gate = ranges_gate.check(one.folder, TASK, rows, outputs=True)
    assert gate.passed == passes, gate.detail
    assert passes or f"{_OUTPUT} reads is" in gate.detail
