"""Converted files, each loaded and run by its real runtime (Core ML off macOS: by the reference interpreter)."""

import contextlib
import hashlib
import importlib.metadata
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TinyLine, environment, recipe_file
from damage import edited_litert
from faults.students import LENGTHS as TINY_LENGTHS
from faults.students import few
from pieces import bundled_folder
from store import kept
from warm import session

from pipeline import artifact, formats, mil, tasks
from pipeline.architectures import ARCHITECTURES
from pipeline.artifact import Artifact, Spec
from pipeline.checkpoint import source as student
from pipeline.checkpoint.loading import example_inputs, export_graph, load_checkpoint
from pipeline.convert.model import Model
from pipeline.convert.stage import Target, make
from pipeline.errors import InputError, ToolchainError
from pipeline.execution.worker import Worker
from pipeline.formats import coreml, litert
from pipeline.formats.litert.deduplicate import share_constants
from pipeline.metrics import measures
from pipeline.recipe import loading as recipe
from pipeline.runtimes import require_version
from pipeline.schemes import SCHEMES
from pipeline.student import stage as student_stage
from pipeline.student.outputs import reference_outputs
from pipeline.text.encoding import Encoder, Row

LENGTHS = (8, 16)
TEXTS = ("A man is playing a guitar.", "Thanks!", "Crème brûlée — très bon, n'est-ce pas?", "今天天气很好")


@pytest.fixture(scope="module", autouse=True)
def converter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Toolchains live in a worker, as in the line: their warnings are not ours, and imports are paid once."""
    with converting(tmp_path_factory.mktemp("log")):
        yield


_converter: list[Worker] = []


@contextlib.contextmanager
def converting(folder: Path) -> Iterator[Worker]:
    """Lend the worker in which `student_artifact` and `convert` work, and tests of other modules quantise."""
    with session().one(folder / "convert.log") as worker:
        _converter.append(worker)
        yield worker
        _converter.clear()


def student_artifact(source: Path, task: str, place: Path, *, random_weights: bool = True) -> Artifact:
    """Lay a checkpoint out as the student stage does."""
    found = student.inspect_folder(source, origin=source.name, licence="Apache-2.0")
    params = {"task": task, "origin": found.origin, "licence": found.licence, "random_weights": random_weights}
    spec = Spec("student", student_stage.VERSION, params, {"source": found.digest}, {})
    return kept(place, spec, lambda out: _converter[0].call(student_stage.make, found.folder, task, False, out))


def convert(
    made: Artifact,
    target: Target,
    out: Path,
    *,
    lengths: tuple[int, ...] = LENGTHS,
    ios: int = 18,
    base: Path | None = None,
) -> Path:
    """Convert one target the way the line does, its base scheme first where it has one."""
    backend = formats.get(target.backend)
    if base is None and backend.BASE_SCHEME and target.scheme != backend.BASE_SCHEME:
        base = convert(made, Target(target.backend, backend.BASE_SCHEME), out, lengths=lengths, ios=ios)
    folder = out / str(target)
    if not folder.exists():
        folder.mkdir(parents=True)
        gates = SCHEMES[target.scheme].gates[tasks.get(made.manifest.params["task"]).output_kind]
        _converter[0].call(make, made, target, lengths, ios, base, None, gates, folder)
    return folder


TinyFile = Callable[..., tuple[Artifact, Path]]
"""Returns a laid out random student and its converted file for a target, which nobody may change."""


@pytest.fixture(scope="module")
def tiny_file(converted: Callable[..., Path]) -> TinyFile:
    def made(target: Target, architecture: str = "bert", task: str = "embedding") -> tuple[Artifact, Path]:
        folder = converted(str(target), few(architecture, task))
        return artifact.load(folder.parent / "student"), folder

    return made


def supported(*names: str) -> list[Target]:
    """Return the targets that are made of the student as it is; `test_quantize` and `test_palettes` have the others."""
    every = [Target(name, scheme) for name in names for scheme, row in SCHEMES.items() if not row.calibrated]
    return [one for one in every if SCHEMES[one.scheme].refusal(one.backend) is None]


def truth(made: Artifact, rows: list[Row]) -> np.ndarray:
    task = tasks.get(made.manifest.params["task"])
    return reference_outputs(load_checkpoint(made.path, task), task, rows).values


def check_against_truth(made: Artifact, target: Target, folder: Path) -> None:
    """Compare every text at every length that it fits with Hugging Face's own forward."""
    model = Model(folder)
    rows = [model.encoder.encode(text) for text in TEXTS]
    wanted = truth(made, rows)
    gates = SCHEMES[target.scheme].gates[model.signature.output_kind]
    assert gates.min_sqnr_db is not None
    for length in TINY_LENGTHS:
        fitting = [number for number, row in enumerate(rows) if len(row) <= length]
        found = np.stack([model.run(rows[number], length=length) for number in fitting])
        assert measures.all_finite(found)
        assert measures.sqnr_db(wanted[fitting], found) >= gates.min_sqnr_db
    all_pad = model.run_all_padding(TINY_LENGTHS[-1])
    assert measures.all_finite(all_pad)
    if model.signature.output_kind == "embedding":
        assert np.abs(all_pad).max() == 0.0
    model.close()


# ExecuTorch takes a quarter of a minute a file: the real student below, the tiny line and test_matrix.py have one of
# each scheme.
@pytest.mark.numeric
@pytest.mark.parametrize(
    "target",
    [*supported("litert"), *(pytest.param(one, marks=pytest.mark.full) for one in supported("executorch"))],
    ids=str,
)
def test_file_is_the_same_model(target: Target, tiny_file: TinyFile) -> None:
    made, folder = tiny_file(target)
    check_against_truth(made, target, folder)


# `test_shapes` takes a classifier of ALBERT through LiteRT.
SAMPLE = [("distilbert", "classification", Target("litert", "int8_dynamic"))]
EVERY = [
    (architecture, task, target)
    for architecture in ("bert", "distilbert", "albert")
    for task in ("embedding", "classification")
    for target in supported("litert", "executorch")
]


CASES = [pytest.param(*case) for case in SAMPLE]
CASES += [pytest.param(*case, marks=pytest.mark.full) for case in EVERY if case not in SAMPLE]


@pytest.mark.numeric
@pytest.mark.parametrize(("architecture", "task", "target"), CASES, ids=str)
def test_architectures_and_tasks(architecture: str, task: str, target: Target, tiny_file: TinyFile) -> None:
    made, folder = tiny_file(target, architecture, task)
    check_against_truth(made, target, folder)


# `test_structure` sees that ALBERT's shared layers stand once in such a file.
@pytest.mark.parametrize(
    "architecture", ["bert", *(pytest.param(name, marks=pytest.mark.full) for name in ("distilbert", "albert"))]
)
def test_core_ml_serves_several_lengths_with_one_copy_of_the_weights(
    architecture: str, tiny_file: TinyFile, tmp_path: Path
) -> None:
    target = Target("coreml", "int8_weight_only")
    made, both = tiny_file(target, architecture)
    one = convert(made, target, tmp_path, lengths=TINY_LENGTHS[-1:])
    functions = coreml.inspect(both / coreml.FILE)
    assert [function.name for function in functions] == ["seq_16", "seq_32"]
    assert [function.inputs[0].shape for function in functions] == [(1, 16), (1, 32)]
    names = [tensor.name for tensor in functions[0].inputs]
    assert names == list(ARCHITECTURES[architecture].inputs)
    assert {tensor.dtype for function in functions for tensor in function.inputs} == {"int32"}
    assert [(tensor.name, tensor.dtype) for tensor in functions[0].outputs] == [("sentence_embedding", "float32")]
    weights = [sum(part.stat().st_size for part in folder.rglob("weight.bin")) for folder in (one, both)]
    assert weights[1] <= 1.02 * weights[0]
    check_against_truth(made, target, both)


def test_core_ml_below_ios_18_holds_the_longest_length_and_says_so(
    tiny_student: Callable[..., Path], tmp_path: Path
) -> None:
    """Its 64 tokens are all positions that the student has: a slice of all of them once did not convert."""
    made = student_artifact(tiny_student("distilbert", "classification"), "classification", tmp_path / "student")
    out = tmp_path / "model"
    out.mkdir()
    gates = SCHEMES["fp16"].gates["logits"]
    found = _converter[0].call(make, made, Target("coreml", "fp16"), (8, 64), 15, None, None, gates, out)
    (function,) = coreml.inspect(out / coreml.FILE)
    assert function.max_length == 64
    assert found["lengths_left_out"] == [8]
    assert "iOS 18" in found["lengths_left_out_reason"]
    spec = mil.read(out / coreml.FILE).spec
    description = spec.description
    assert spec.specificationVersion == 6
    assert description.metadata.license == "Apache-2.0"
    assert description.metadata.userDefined["classes"] == "negative,neutral,positive"
    assert not [key for key in description.metadata.userDefined if key.endswith("conversion_date")]
    assert function.outputs[0].dtype == "float32"
    assert (out / "labels.txt").read_text().split() == ["negative", "neutral", "positive"]


def test_litert_names_the_longest_length_as_the_ecosystem_does(tiny_file: TinyFile) -> None:
    _, folder = tiny_file(Target("litert", "fp32"))
    functions = litert.inspect(folder / litert.FILE)
    assert [function.name for function in functions] == ["seq_16", "serving_default"]
    assert {tensor.name for tensor in functions[1].inputs} == {"input_ids", "attention_mask", "token_type_ids"}
    assert {tensor.dtype for tensor in functions[1].inputs} == {"int32"}


def test_sharing_constants_changes_no_number(tiny_file: TinyFile, tmp_path: Path) -> None:
    """The same weights through the plain converter and quantizer, and through ours: equal bits, a smaller file."""
    _, folder = tiny_file(Target("litert", "int8_dynamic"))
    plain = tmp_path / "plain.tflite"
    again = tmp_path / "again.tflite"
    share_constants(folder / litert.FILE, plain, unique_names=True)
    share_constants(plain, again)
    assert plain.stat().st_size > again.stat().st_size
    assert abs(again.stat().st_size - (folder / litert.FILE).stat().st_size) < 256
    model = Model(folder)
    other = litert.load(plain, model.signature, threads=1)
    for text in TEXTS:
        row = model.encoder.encode(text)
        function, length = model.signature.choose(len(row))
        names = tuple(tensor.name for tensor in function.inputs)
        inputs = row.padded(names, length, pad_token_id=0)
        # The longer file's signatures keep their own names, so only the function's name is looked up in it.
        (found,) = other.run(function, inputs).values()
        assert np.array_equal(found[0], model.run_padded(function, inputs))


def test_litert_refuses_arrays_of_another_kind(tiny_file: TinyFile) -> None:
    """The runtime itself takes float bits for ids, and short arrays, without a word."""
    model = Model(tiny_file(Target("litert", "fp32"))[1])
    function, length = model.signature.choose(3)
    good = Row((101, 592, 102), (0, 0, 0)).padded(
        ("input_ids", "attention_mask", "token_type_ids"), length, pad_token_id=0
    )
    with pytest.raises(InputError, match="float32"):
        model.run_padded(function, good | {"input_ids": good["input_ids"].astype(np.float32)})
    with pytest.raises(InputError, match="input_ids is int32"):
        model.run_padded(function, good | {"input_ids": good["input_ids"][:, :4]})


def test_runtime_below_the_floor_is_refused() -> None:
    installed = importlib.metadata.version("ai-edge-litert")
    require_version("ai-edge-litert", litert.MINIMUM_RUNTIME)
    with pytest.raises(ToolchainError, match=f"{installed} is too old"):
        require_version("ai-edge-litert", "99.0.0")
    with pytest.raises(ToolchainError, match="not installed"):
        require_version("no-such-runtime", "1.0")


def test_example_inputs_are_distinct_objects() -> None:
    """torch.export merges samples that are one object, and the graph then reads the mask as ids."""
    samples = example_inputs(("input_ids", "attention_mask", "token_type_ids"), 8)
    assert len({id(sample) for sample in samples}) == 3
    assert len({sample.data_ptr() for sample in samples}) == 3


def test_exported_graph_agrees_with_hugging_faces_own_mask(tiny_student: Callable[..., Path], seed: int) -> None:
    """The wrapper's mask, pooling and norm against the model's own forward on the same padded rows."""
    import torch

    folder = tiny_student("bert", "embedding")
    task = tasks.get("embedding")
    graph = export_graph(folder, task)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(104, 1000, (1, 10), generator=generator, dtype=torch.int32)
    mask = torch.ones(1, 16, dtype=torch.int32)
    mask[:, 10:] = 0
    padded = torch.cat([ids, torch.zeros(1, 6, dtype=torch.int32)], dim=1)
    with torch.no_grad():
        found = graph(padded, mask, torch.zeros_like(padded))[0].numpy()
    row = Row(tuple(ids[0].tolist()), (0,) * 10)
    wanted = reference_outputs(load_checkpoint(folder, task), task, [row]).values[0]
    np.testing.assert_allclose(found, wanted, atol=1e-6)


class TestRealStudent:
    """all-MiniLM-L6-v2 at one length: sizes and quality as promised."""

    @pytest.fixture(scope="class")
    @staticmethod
    def made(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
        place = tmp_path_factory.mktemp("real") / "student"
        return student_artifact(bundled_folder(), "embedding", place, random_weights=False)

    @pytest.mark.numeric
    @pytest.mark.parametrize(
        ("target", "bytes_per_parameter", "worst_cosine"),
        [
            (Target("litert", "int8_dynamic"), 1.12, 0.98),
            pytest.param(Target("executorch", "int8_dynamic"), 1.06, 0.98, marks=pytest.mark.full),
            # .9945; .9928 with positions in int8, which would have one scale for all.
            (Target("coreml", "int8_weight_only"), 1.06, 0.994),
        ],
        ids=str,
    )
    def test_int8(
        self, target: Target, bytes_per_parameter: float, worst_cosine: float, made: Artifact, tmp_path: Path
    ) -> None:
        folder = convert(made, target, tmp_path, lengths=(32,))
        file = folder / formats.get(target.backend).FILE
        size = sum(part.stat().st_size for part in [file, *file.rglob("*")] if part.is_file())
        parameters = made.manifest.metrics["parameters"]
        assert size <= bytes_per_parameter * parameters
        assert size <= 24e6
        model = Model(folder)
        rows = [model.encoder.encode(text) for text in TEXTS]
        found = np.stack([model.run(row) for row in rows])
        assert measures.cosine(truth(made, rows), found).min() >= worst_cosine


@pytest.mark.parametrize("name", student.BUNDLED)
def test_bundled_students_are_the_pinned_ones(name: str, tmp_path: Path) -> None:
    row, found = student.BUNDLED[name], student.at(f"bundled:{name}", tmp_path / "recipe.toml")
    with (found.folder / "model.safetensors").open("rb") as handle:
        assert hashlib.file_digest(handle, "sha256").hexdigest() == row.weights_sha256
    assert (found.origin, found.licence) == (row.origin, "Apache-2.0")
    assert row.files.items() <= found.files.items()


def test_golden_rows_travel_with_the_file_and_hold(tiny_file: TinyFile) -> None:
    from pipeline.student import golden

    _, folder = tiny_file(Target("litert", "int8_dynamic"))
    rows = golden.read(folder)
    assert rows.min_cosine == SCHEMES["int8_dynamic"].gates["embedding"].min_worst_cosine
    assert rows.min_cosine is not None
    model = Model(folder)
    encoder = Encoder.from_folder(folder, rows.max_length)
    taken = 0
    for row in rows.rows:
        encoded = encoder.encode(row.first, row.second)
        assert list(encoded.ids) == row.input_ids
        if len(encoded) <= model.signature.max_length:
            assert measures.cosine(np.array(row.output), model.run(encoded)) >= rows.min_cosine
            taken += 1
    assert taken >= 5


@pytest.mark.parametrize("target", ["litert-int8_dynamic", "executorch-fp32"])
def test_a_users_program_prints_what_it_prints_itself(target: str, tiny_line: TinyLine, tmp_path: Path) -> None:
    """Neither runtime has a setting for its log, from a dozen lines at the first file to two at the very end.

    Nor does opening a file import what makes one, which takes longer than all the rest.
    """
    program = (
        "import sys, pipeline\n"
        f"print(len(pipeline.load({str(tiny_line.folder / target / 'model')!r}).predict(['a'])))\n"
        "print(sorted({'executorch.exir', 'litert_torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment(), capture_output=True, encoding="utf-8"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n[]\n", "")


def test_threads_of_executorch_do_not_change_under_an_open_file(tiny_line: TinyLine, tmp_path: Path) -> None:
    """Another count destroys the process's one pool, and open files crash or hang: the child process may do so."""
    program = f"""
import pipeline
from pipeline.errors import InputError
folder = {str(tiny_line.folder / "executorch-fp32" / "model")!r}
text = "some words that fill a row " * 9
with pipeline.load(folder, threads=1) as one, pipeline.load(folder, threads=1) as same:
    first = one.predict([text])[0].vector
    try:
        other = pipeline.load(folder, threads=2)
    except InputError as error:
        print(error)
    else:
        other.predict([text])
    assert (one.predict([text])[0].vector == first).all() and (same.predict([text])[0].vector == first).all()
with pipeline.load(folder, threads=2) as other:
    print(len(other.predict([text])))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        encoding="utf-8",
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    refused, predicted = done.stdout.splitlines()
    assert "cannot be opened with 2 threads" in refused
    assert "2 of its files are open with 1" in refused
    assert predicted == "1"


def test_a_file_that_does_not_open_still_shows_what_the_runtime_said(
    tiny_file: TinyFile, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, folder = tiny_file(Target("litert", "fp32"))

    def later(model: Any, contents: object) -> None:
        model.operatorCodes[0].version = 99

    file = edited_litert(folder / litert.FILE, later, tmp_path / "damaged.tflite")
    with pytest.raises(ToolchainError, match="LiteRT cannot open"):
        litert.load(file, Model(folder).signature, threads=1)
    assert "ERROR" in capfd.readouterr().err


def test_recipe_of_a_folder_with_random_weights_reads(tiny_student: Callable[..., Path], tmp_path: Path) -> None:
    file = recipe_file(tmp_path, student={"source": str(tiny_student("bert", "embedding")), "random_weights": True})
    parsed, path = recipe.read_recipe(str(file))
    assert student.find(parsed, path).architecture.model_type == "bert"
