"""Palettes: how they are chosen, that a Core ML file has exactly those, and that verification tells when it has not."""

import itertools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Outcome, recipe_file
from quantised_coreml import LENGTHS, QUERY, WORDS, Made, decode, decompressed, flip, make_file
from store import Store
from test_backends import converting

from pipeline import formats, mil
from pipeline.checkpoint import palettes as stored_palettes
from pipeline.checkpoint.loading import load_checkpoint
from pipeline.checkpoint.palettes import Palette
from pipeline.checkpoint.parameters import model_structure
from pipeline.convert.stage import Target, make
from pipeline.data import calibration
from pipeline.errors import StudentError, ToolchainError
from pipeline.execution.worker import Worker
from pipeline.quantize import palettes
from pipeline.quantize.activations import of_tokens
from pipeline.schemes import SCHEMES
from pipeline.tasks import get
from pipeline.verify import quantised_checkpoint, structure
from pipeline.verify.quantised_weights import differing

BITS = {"palettize_6bit": 6, "palettize_4bit": 4}
ONE_FULL = ["palettize_6bit", pytest.param("palettize_4bit", marks=pytest.mark.full)]


# --- how they are chosen ----------------------------------------------------------------------------------------------


def error_of(values: np.ndarray, importance: np.ndarray, centres: np.ndarray) -> float:
    distances = np.abs(values[:, None] - centres.astype(np.float64)).min(1)
    return float((importance * distances**2).sum())


def least_error(values: np.ndarray, importance: np.ndarray, entries: int) -> float:
    """Return the error of the best of all ways to part sorted numbers into intervals, each with its mean."""
    order = np.argsort(values)
    values, importance = values[order], importance[order]

    def of_interval(start: int, end: int) -> float:
        part, mass = values[start:end], importance[start:end]
        return float((mass * (part - (part * mass).sum() / mass.sum()) ** 2).sum())

    cuts = itertools.combinations(range(1, len(values)), entries - 1)
    return min(sum(itertools.starmap(of_interval, itertools.pairwise((0, *cut, len(values))))) for cut in cuts)


def test_k_means_is_near_the_best_of_all_partitions(seed: int) -> None:
    generator = np.random.default_rng(seed)
    ratios = []
    for _ in range(20):
        values = generator.standard_normal(14).astype(np.float16).astype(np.float64)
        importance = generator.uniform(0.1, 2, 14)
        found = palettes.kmeans(values, importance, 4)
        ratios.append(error_of(values, importance, found) / least_error(values, importance, 4))
    assert min(ratios) < 1.001
    assert np.median(ratios) < 1.3


def test_k_means_finds_clusters_that_lie_apart_and_what_importance_moves(seed: int) -> None:
    generator = np.random.default_rng(seed)
    middles = np.array([-3.0, -1.0, 1.0, 3.0])
    values = (middles[:, None] + generator.uniform(-0.1, 0.1, (4, 200))).ravel()
    plain = palettes.kmeans(values, np.ones(800), 4)
    assert np.abs(plain - middles).max() < 0.02
    upper = np.where(values > np.repeat(middles, 200), 100.0, 1.0)
    moved = palettes.kmeans(values, upper, 4)
    assert (moved > plain + np.float16(0.02)).all()


def test_few_numbers_are_kept_as_they_are() -> None:
    values = np.array([[0.5, -0.25], [0.125, 0.5]])
    lut = palettes.centroids(values, np.ones((1, 1)), bits=4, groups=1)
    assert np.array_equal(Palette(palettes.nearest(values, lut), lut).dense(), values)
    assert np.array_equal(lut, np.sort(lut))


@pytest.mark.numeric
def test_handing_errors_on_beats_rounding_to_the_nearest(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(32, 48, generator=generator)
    inputs = torch.randn(500, 12, generator=generator) @ torch.randn(12, 48, generator=generator)
    inputs += 0.1 * torch.randn(500, 48, generator=generator)
    for bits, groups in ((4, 2), (6, 1)):
        found = palettes.of_linear(weight, weight, (inputs.T @ inputs).double(), bits=bits, groups=groups)
        outputs, reference = (inputs @ one.T for one in (torch.from_numpy(found.weight.dense()), weight))
        measured = float(((outputs - reference) ** 2).sum() / (reference**2).sum())
        assert found.weight.lut.shape == (groups, 1 << bits)
        assert found.error is not None
        assert found.error_nearest is not None
        assert found.error == pytest.approx(measured, rel=1e-3)
        assert found.error < 0.5 * found.error_nearest


def test_a_large_number_that_calibration_hardly_reads_is_in_the_list(seed: int) -> None:
    """With 6 bits; it may be what another text reads."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(32, 48, generator=generator) / 10
    weight[7, 11] = 9.0
    inputs = torch.randn(500, 48, generator=generator)
    inputs[:, 11] /= 1000
    held = palettes.of_linear(weight, weight, (inputs.T @ inputs).double(), bits=6, groups=1).weight
    assert abs(held.dense()[7, 11] - 9.0) < 0.05


@pytest.mark.parametrize(
    ("rows", "most", "groups"), [(384, 16, 24), (30522, 16, 5087), (30522, None, 1), (8191, 16, 1), (40, 16, 4)]
)
def test_groups_are_of_equal_size(rows: int, most: int | None, groups: int) -> None:
    assert palettes._groups(rows, most) == groups


def test_a_batch_as_large_as_a_vector_is_no_batch_of_ids() -> None:
    """A classifier reads one vector a row; of as many numbers as rows have tokens, it was taken for ids once."""
    present = torch.ones(3, 8, dtype=torch.bool)
    present[0, 5:] = False
    vectors = torch.arange(24.0).reshape(3, 8)
    assert torch.equal(of_tokens(vectors, present), vectors)
    assert of_tokens(vectors.long(), present).shape == (21,)
    assert of_tokens(torch.zeros(3, 8, 8), present).shape == (21, 8)


def test_a_shared_layer_is_chosen_for_what_it_reads_in_all_its_calls(randomised: Callable[..., Path]) -> None:
    model = load_checkpoint(randomised("albert"), get("embedding"))
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    texts = calibration.default_texts(32, seed=0)
    batches = calibration.batches(
        randomised("albert"), ("input_ids", "attention_mask", "token_type_ids"), texts, max_length=32, pad=0
    )
    calls = [name for name, _ in model_structure(model)["calls"]]
    found = palettes.palettise(model, batches, bits=6, rows=None)
    (shared,) = [name for name in found if name.endswith("attention.query.weight")]
    assert calls.count(shared.removesuffix(".weight")) > 1
    for name, one in model.named_parameters():
        if name in found:
            assert np.array_equal(one.detach().numpy(), found[name].weight.dense())
        else:
            assert torch.equal(one, before[name])
    assert not [name for name in found if "position" in name]


# --- what a file has --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def converter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with converting(tmp_path_factory.mktemp("log")) as worker:
        yield worker


@pytest.fixture(scope="module")
def made(run_store: Store, randomised: Callable[..., Path], converter: Worker) -> Callable[[str], Made]:
    return lambda scheme: make_file(run_store, converter, randomised(), scheme, f"palettes-{scheme}")


@pytest.mark.parametrize("scheme", ONE_FULL)
def test_a_file_has_the_indices_and_the_lists_of_the_checkpoint(scheme: str, made: Callable[[str], Made]) -> None:
    one = made(scheme)
    package = mil.read(one.file)
    due = one.quantised_weights
    assert {WORDS, QUERY} <= due.keys()
    functions = decompressed(package, "lut")
    for sources in functions:
        found = [(decode(package, one.arguments["indices"]), decode(package, one.arguments["lut"])) for one in sources]
        assert len(found) == len(due)
        for palette in due.values():
            assert any(
                np.array_equal(indices, palette.indices) and np.array_equal(lut.reshape(palette.lut.shape), palette.lut)
                for indices, lut in found
            )
    assert len(functions) == len(LENGTHS)
    assert {one.key for one in functions[0]} == {one.key for one in functions[1]}


@pytest.mark.numeric
@pytest.mark.parametrize("scheme", ONE_FULL)
def test_a_clean_file_passes(scheme: str, made: Callable[[str], Made]) -> None:
    gates = made(scheme).judged()
    assert not {name: gate.detail for name, gate in gates.items() if not gate.passed}
    assert gates["stored"].detail == f"{len(made(scheme).quantised_weights)} weights are palette{BITS[scheme]}"
    written = stored_palettes.Record.model_validate_json((made(scheme).quantised / stored_palettes.RECORD).read_text())
    errors = [(one.error, one.error_nearest) for one in written.weights if one.error is not None]
    assert sum(error or 0 for error, _ in errors) < sum(nearest or 0 for _, nearest in errors)


def blob_of(package: mil.Package, palette: Palette, argument: str) -> tuple[str, int]:
    """Return the weight file and the offset of a palette's indices or list."""
    for source in decompressed(package, "lut")[0]:
        lut = decode(package, source.arguments["lut"]).reshape(-1)
        literal = source.arguments[argument]
        if np.array_equal(lut, palette.lut.reshape(-1)) and isinstance(literal, mil.package.Literal):
            assert literal.blob is not None
            return literal.blob
    raise AssertionError("no such palette")


@pytest.mark.parametrize("scheme", ONE_FULL)
@pytest.mark.parametrize(("argument", "name"), [("lut", QUERY), ("indices", QUERY), ("lut", WORDS), ("indices", WORDS)])
def test_a_damaged_palette_fails(
    scheme: str, argument: str, name: str, made: Callable[[str], Made], tmp_path: Path
) -> None:
    one = made(scheme)
    file = Path(shutil.copytree(one.file, tmp_path / one.file.name))
    # The last bit of a number of the list, or one bit of an index in the middle.
    at = 6 if argument == "lut" else one.quantised_weights[name].indices.size // 4
    flip(file, blob_of(mil.read(file), one.quantised_weights[name], argument), at)
    failed = {name for name, gate in one.judged(file).items() if not gate.passed}
    assert failed == {"weights"}


def test_a_checkpoint_without_palettes_is_refused(
    made: Callable[[str], Made], converter: Worker, tmp_path: Path
) -> None:
    one, target = made("palettize_6bit"), Target("coreml", "palettize_6bit")
    gates = SCHEMES[one.scheme].gates["embedding"]
    with pytest.raises(StudentError, match="not quantised for a scheme of palettes"):
        converter.call(make, one.student, target, (8,), 18, None, None, gates, tmp_path)


def test_a_palette_that_the_program_lacks_is_an_error(
    made: Callable[[str], Made], converter: Worker, tmp_path: Path
) -> None:
    one, target = made("palettize_6bit"), Target("coreml", "palettize_6bit")
    quantised = Path(shutil.copytree(one.quantised, tmp_path / "quantised"))
    indices = one.quantised_weights[QUERY].indices.copy()
    indices[2, 3] ^= 1
    stored_palettes.write(
        {**one.quantised_weights} | {QUERY: replace(one.quantised_weights[QUERY], indices=indices)}, quantised
    )
    gates = SCHEMES[one.scheme].gates["embedding"]
    with pytest.raises(ToolchainError, match=rf"has no constant that the palette of {QUERY} gives"):
        converter.call(make, one.student, target, (8,), 18, None, quantised, gates, tmp_path)


# --- the checkpoint beside the student --------------------------------------------------------------------------------


def exchanged(values: np.ndarray) -> np.ndarray:
    return values[np.r_[1, 0, 2 : len(values)]]


def zeroed(values: np.ndarray) -> np.ndarray:
    values = values.copy()
    values[2] = 0
    return values


def one_more_step(values: np.ndarray) -> np.ndarray:
    values = values.copy()
    values[500, 3] += 0.5 * (values.max() - values.min())
    return values


@pytest.mark.parametrize("scheme", ONE_FULL)
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda reference: {QUERY: exchanged(reference[QUERY])}, f"a row of {QUERY} is"),
        (lambda reference: {QUERY: zeroed(reference[QUERY])}, f"a row of {QUERY} is"),
        (lambda reference: {QUERY: -reference[QUERY]}, QUERY),
        (lambda reference: {WORDS: exchanged(reference[WORDS])}, "numbers are not the nearest"),
        (
            lambda reference: {WORDS: one_more_step(reference[WORDS])},
            f"of {WORDS}, 1 of 64000 numbers are not the nearest",
        ),
        (lambda reference: {QUERY: reference[QUERY].T.copy()}, f"{QUERY} is"),
        (
            lambda reference: {"embeddings.LayerNorm.weight": reference["embeddings.LayerNorm.weight"] * 1.001},
            "embeddings.LayerNorm.weight, with its scales undone, differs from the student's by",
        ),
    ],
)
def test_what_rounding_does_not_explain_fails(
    scheme: str,
    change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]],
    told: str,
    made: Callable[[str], Made],
) -> None:
    """The student changes, so that palettes and checkpoint still fit together."""
    one = made(scheme)
    reference, rewritten = one.expected
    tensors = dict(reference.tensors)
    other = replace(reference, tensors=tensors | change(tensors))
    assert not differing(reference, rewritten, one.quantised_weights, SCHEMES[scheme])
    (said,) = differing(other, rewritten, one.quantised_weights, SCHEMES[scheme])
    assert told in said


def test_palettes_have_to_be_the_checkpoints_and_of_the_bits_that_are_promised(made: Callable[[str], Made]) -> None:
    one = made("palettize_6bit")
    reference, rewritten = one.expected
    six, four = SCHEMES["palettize_6bit"], SCHEMES["palettize_4bit"]
    assert "has 6 bits; palettize_4bit means 4" in differing(reference, rewritten, one.quantised_weights, four)[0]
    indices = one.quantised_weights[QUERY].indices.copy()
    indices[2, 3] ^= 1
    wrong = {**one.quantised_weights} | {QUERY: replace(one.quantised_weights[QUERY], indices=indices)}
    assert differing(reference, rewritten, wrong, six) == [f"{QUERY} is not what its palette gives"]
    assert differing(reference, reference, {}, six) == ["no weight has few bits"]
    fewer = {name: value for name, value in rewritten.tensors.items() if name != QUERY}
    assert f"{QUERY} is not there" in differing(
        reference, replace(rewritten, tensors=fewer), one.quantised_weights, six
    )


def test_a_weight_that_is_stored_otherwise_is_told(made: Callable[[str], Made]) -> None:
    """Half precision has the same numbers, so `weights` passes, and a palette without promise is no rounding."""
    one = made("palettize_6bit")
    row, (_, rewritten) = SCHEMES[one.scheme], one.expected
    stored = formats.get("coreml").structure(one.file)
    half = replace(
        stored,
        constants=tuple(
            replace(constant, stored="float16") if "query" in constant.name else constant
            for constant in stored.constants
        ),
    )
    checked = structure.check(half, rewritten, one.scheme, "coreml", functions=len(LENGTHS))
    assert checked.gates[0].passed
    gate = quantised_checkpoint.check_stored(half, checked.followed, one.quantised_weights, row, "float16")
    assert f"{QUERY} is stored as float16, not palette6" in gate.detail
    fp16 = structure.check(stored, rewritten, "fp16", "coreml", functions=len(LENGTHS))
    assert not fp16.gates[0].passed


def test_indices_and_lists_that_do_not_fit_are_refused(made: Callable[[str], Made], tmp_path: Path) -> None:
    one = made("palettize_6bit")
    palette = one.quantised_weights[QUERY]
    for wrong in (
        replace(palette, lut=palette.lut[:, :5]),
        replace(palette, lut=palette.lut.astype(np.float32)),
        replace(palette, indices=palette.indices + np.uint8(64)),
        replace(palette, indices=palette.indices[:, :0]),
    ):
        stored_palettes.write({QUERY: wrong}, tmp_path)
        with pytest.raises(StudentError, match="do not fit together"):
            stored_palettes.read(tmp_path)


# --- recipes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", BITS)
def test_other_formats_answer_with_a_reason(scheme: str, command_here: Callable[..., Outcome], tmp_path: Path) -> None:
    for backend in ("litert", "executorch"):
        outcome = command_here("plan", recipe_file(tmp_path, targets={backend: {"schemes": [scheme]}}))
        assert outcome.rc != 0
        assert "has no weights that are indices into a palette; Core ML has" in outcome.stderr


def test_four_bits_need_ios_18(command_here: Callable[..., Outcome], tmp_path: Path) -> None:
    targets = {"coreml": {"schemes": ["palettize_4bit"], "minimum_ios": 17}}
    outcome = command_here("plan", recipe_file(tmp_path, targets=targets))
    assert "hold palette4 weights from iOS 18 on, and minimum_ios is 17" in outcome.stderr


@pytest.mark.full
@pytest.mark.parametrize("architecture", ["bert", "albert", "distilbert", "mobilebert", "roberta"])
def test_palettes_go_through_the_command(
    architecture: str, randomised: Callable[..., Path], command_here: Callable[..., Outcome], tmp_path: Path
) -> None:
    path = recipe_file(
        tmp_path,
        student={"source": str(randomised(architecture)), "random_weights": True},
        convert={"sequence_lengths": [16, 32]},
        targets={"coreml": {"schemes": list(BITS)}},
        quantize={"calibration_texts": 64},
    )
    outcome = command_here("verify", path, "--json")
    assert set(outcome.document["verdicts"].values()) == {"passed"}, outcome.stdout
