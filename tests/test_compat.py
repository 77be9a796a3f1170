"""Older runtimes: the runner on a real runtime, what the judge makes of bad ones, environments, a recipe's floor."""

import ast
import json
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from conftest import REPOSITORY, Outcome, TinyLine, recipe_values, run_command_here

from pipeline import runtimes
from pipeline.compat import environments, trials
from pipeline.compat.environments import Environment
from pipeline.compat.record import Compat, Row, Verdict, read_compat
from pipeline.compat.stage import judge, try_file
from pipeline.errors import InputError, RecipeError
from pipeline.formats import signature
from pipeline.recipe import loading
from pipeline.recipe.schema import Recipe
from pipeline.runtimes import RUNTIMES, Runtime
from pipeline.student import golden

OWN = next(runtime for runtime in RUNTIMES if runtimes.is_installed(runtime))
OTHER = next(runtime for runtime in RUNTIMES if runtime.name == "litert-2.1.6")
HERE = Environment(OWN, Path(sys.executable), "")


@pytest.fixture
def model(tiny_line: TinyLine, tmp_path: Path) -> Path:
    """A copy of the tiny fp32 model folder."""
    return Path(shutil.copytree(tiny_line.folder / "litert-fp32" / "model", tmp_path / "model"))


def compat(line: TinyLine, *args: str, **extra: str) -> Outcome:
    return run_command_here("compat", line.recipe, "--build", line.build, *args, cwd=line.build, **extra)


def verdicts(document: dict[str, object]) -> dict[tuple[str, str], Verdict]:
    found = Compat.model_validate({key: value for key, value in document.items() if key != "exit"})
    return {(row.target, row.runtime): row.verdict for row in found.rows}


# --- the command ---------------------------------------------------------------------------------------------------


def test_own_runtime_judges_files_by_their_gates(tiny_line: TinyLine, tmp_path: Path) -> None:
    line = tiny_line.copy(tmp_path)
    outcome = compat(line, "--runtime", OWN.name, "--json")
    assert outcome.rc == 0, outcome.stderr
    found = verdicts(outcome.document)
    right, wrong = found["litert-fp32", OWN.name], found["litert-int8_dynamic", OWN.name]
    assert right.status == "right"
    assert right.worst_cosine is not None
    assert right.worst_cosine > 0.9999
    assert right.p50_ms is not None
    assert right.p50_ms > 0
    assert right.timed_length == 32
    # The bound of 500 dB is the tiny line's impossible one: the same numbers are fine otherwise.
    assert wrong.status == "wrong"
    assert "500" in wrong.reason
    assert wrong.worst_cosine is not None
    assert wrong.worst_cosine > 0.9
    assert read_compat(line.folder / "compat").rows
    [pte] = outcome.document["executorch"]
    manifest = json.loads((line.folder / "executorch-fp32/model/manifest.json").read_bytes())
    assert pte["made_with"] == manifest["tools"]["executorch"]
    assert pte["minimum_runtime"] == signature.read(line.folder / "executorch-fp32/model").minimum_runtime
    assert pte["policy"].startswith("https://github.com/pytorch/executorch/")


def test_again_keeps_what_was_found_until_a_file_changes(tiny_line: TinyLine, tmp_path: Path) -> None:
    line = tiny_line.copy(tmp_path)
    first = compat(line, "--runtime", OWN.name)
    again = compat(line, "--runtime", OWN.name)
    assert "right" in first.stdout
    assert "kept compat" in again.stderr
    assert first.stdout == again.stdout
    (line.folder / "litert-fp32/model/model.tflite").write_bytes(b"other")
    changed = compat(line, "--runtime", OWN.name)
    assert changed.rc == 2
    assert "was changed after it was made" in changed.stderr


def test_floor_that_is_not_kept_exits_1(tiny_line: TinyLine, tmp_path: Path) -> None:
    line = tiny_line.copy(tmp_path)
    values = tomllib.loads(line.recipe.read_text(encoding="utf-8"))
    values["targets"]["litert"]["minimum_runtime"] = OWN.name
    line.recipe.write_text(tomli_w.dumps(values), encoding="utf-8")
    every = compat(line, "--runtime", OWN.name, "--json")
    assert every.rc == every.document["exit"] == 1
    assert every.document["floor_kept"] is False
    # Another runtime is asked for: the floor is tried all the same.
    one = compat(line, "--runtime", "tflite-runtime-2.14.0", "--target", "litert:fp32", "--json")
    assert one.rc == 0
    assert one.document["floor_kept"] is True
    assert verdicts(one.document)["litert-fp32", OWN.name].status == "right"


def test_nothing_tried_exits_3_and_says_the_download(tiny_line: TinyLine, tmp_path: Path) -> None:
    line = tiny_line.copy(tmp_path)
    outcome = compat(line, "--runtime", OTHER.name)
    assert outcome.rc == 3
    assert f"{OTHER.name} not tried" in outcome.stdout
    assert f"--install downloads about {OTHER.download_mb} MB" in outcome.stdout
    assert not (line.build / environments.FOLDER).exists()


def test_pip_that_fails_is_a_reason_and_leaves_nothing_that_counts(tiny_line: TinyLine, tmp_path: Path) -> None:
    line = tiny_line.copy(tmp_path)
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "empty"), "PIP_CONFIG_FILE": "/dev/null"}
    outcome = compat(line, "--runtime", OTHER.name, "--install", "--json", **nowhere)
    assert outcome.rc == 3
    verdict = verdicts(outcome.document)["litert-fp32", OTHER.name]
    assert verdict.status == "not_tried"
    assert "No matching distribution" in verdict.reason
    assert not (line.build / environments.FOLDER / OTHER.name / environments.MARKER).exists()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--runtime", "litert-1.2"), "litert-1.2.0"),
        (("--target", "coreml"), "not in recipe"),
    ],
)
def test_bad_arguments_are_one_line(tiny_line: TinyLine, args: tuple[str, ...], says: str) -> None:
    outcome = compat(tiny_line, *args)
    assert outcome.rc == 2
    assert says in outcome.stderr
    assert len(outcome.stderr.strip().splitlines()) == 1


def test_no_finished_target_is_one_line(tiny_line: TinyLine, tmp_path: Path) -> None:
    outcome = run_command_here("compat", tiny_line.recipe, "--build", tmp_path, cwd=tmp_path)
    assert outcome.rc == 2
    assert "pocketbert convert" in outcome.stderr


# --- runtimes that refuse, die, hang or compute wrongly ------------------------------------------------------------


def declare(file: Path, name: str, version: int) -> None:
    """Write another version into a file's operator code, in place."""
    from ai_edge_litert import schema_py_generated as schema

    data = bytearray(file.read_bytes())
    model = schema.Model.GetRootAs(data, 0)
    number = [one.name for one in trials.operators_of(file)].index(name)
    table = model.OperatorCodes(number)._tab
    at = table.Pos + table.Offset(8)  # the vtable's slot of `version`, the third field
    data[at : at + 4] = version.to_bytes(4, "little")
    file.write_bytes(data)


def test_operator_codes_are_read_from_the_file(model: Path) -> None:
    found = {one.name: one.version for one in trials.operators_of(model / "model.tflite")}
    assert found["FULLY_CONNECTED"] >= 1
    assert {"EMBEDDING_LOOKUP", "SOFTMAX", "BATCH_MATMUL"} <= set(found)
    declare(model / "model.tflite", "FULLY_CONNECTED", 77)
    assert {one.name: one.version for one in trials.operators_of(model / "model.tflite")}["FULLY_CONNECTED"] == 77


def test_refusal_names_the_operation_and_what_the_runtime_knows(model: Path, tmp_path: Path) -> None:
    declare(model / "model.tflite", "FULLY_CONNECTED", 40)
    verdict = try_file(model, HERE, log=tmp_path / "log")
    assert verdict.status == "refused"
    [unknown] = verdict.too_new
    assert (unknown.name, unknown.version) == ("FULLY_CONNECTED", 40)
    # LiteRT knows version 12 (per-channel int8 weights under float activations) and not 40.
    assert 12 <= unknown.known < 40
    assert f"FULLY_CONNECTED version 40; it knows up to {unknown.known}" in verdict.reason


def test_refusal_without_an_unknown_operation_keeps_the_runtimes_words(model: Path, tmp_path: Path) -> None:
    from ai_edge_litert import schema_py_generated as schema

    file = model / "model.tflite"
    data = bytearray(file.read_bytes())
    table = schema.Model.GetRootAs(data, 0)._tab
    at = table.Pos + table.Offset(4)  # the schema's version, which runtimes compare with their own
    data[at : at + 4] = (9).to_bytes(4, "little")
    file.write_bytes(data)
    verdict = try_file(model, HERE, log=tmp_path / "log")
    assert verdict.status == "refused"
    assert not verdict.too_new
    assert "ValueError" in verdict.reason


def stand_in(folder: Path, body: str) -> tuple[Environment, Runtime]:
    """A runtime whose `Interpreter` does what `body` says when a file is opened."""
    (folder / "standin.py").write_text(
        f"import os, signal, time\nclass Interpreter:\n    def __init__(self, **_):\n        {body}\n", encoding="utf-8"
    )
    script = folder / "python"
    start = f"import runpy, sys; sys.path.insert(0, {str(folder)!r}); sys.argv = sys.argv[2:]; "
    start += "runpy.run_path(sys.argv[0], run_name='__main__')"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{start}" "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    runtime = Runtime("stand-in", "litert", "stand-in", "1.0", "standin", (), 0)
    return Environment(runtime, script, ""), runtime


def test_crash_is_a_result(model: Path, tmp_path: Path) -> None:
    environment, _ = stand_in(tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)")
    verdict = try_file(model, environment, log=tmp_path / "log")
    assert verdict.status == "crashed"
    assert "SIGSEGV while opening the file" in verdict.reason


def test_hang_ends(model: Path, tmp_path: Path) -> None:
    environment, _ = stand_in(tmp_path, "time.sleep(600)")
    verdict = try_file(model, environment, log=tmp_path / "log", timeout_s=2)
    assert verdict.status == "crashed"
    assert "not done after 2 s" in verdict.reason


def test_runtime_that_does_not_start_was_not_tried(model: Path, tmp_path: Path) -> None:
    broken = Environment(OWN, tmp_path / "no-python", "")
    verdict = try_file(model, broken, log=tmp_path / "log")
    assert verdict.status == "not_tried"
    absent = Environment(Runtime("absent", "litert", "absent", "1.0", "no_such_runtime", (), 0), HERE.python, "")
    verdict = try_file(model, absent, log=tmp_path / "log")
    assert verdict.status == "not_tried"
    assert "ModuleNotFoundError" in verdict.reason


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda value: value * 0, "every output is zero"),
        (lambda value: value * np.nan, "not finite"),
        (lambda value: np.roll(value, 1, axis=-1), "worst cosine"),
        (lambda value: value * np.float32(1.1), "SQNR"),
        (lambda value: value[:, :-1], "instead of"),
    ],
)
def test_wrong_numbers_are_called_wrong(model: Path, spoil: Callable[[np.ndarray], np.ndarray], says: str) -> None:
    rows = golden.read(model)
    calls = trials.calls_of(signature.read(model), rows)
    reference = [np.asarray(rows.rows[call.row].output, np.float32)[None] for call in calls]
    timings = (1.0, 3.0, 2.0)
    good = judge(trials.Trial("done", tuple((one,) for one in reference), timings), calls, rows, runtime="one")
    assert good.status == "right"
    assert good.p50_ms == 2.0
    bad = judge(trials.Trial("done", tuple((spoil(one),) for one in reference), timings), calls, rows, runtime="one")
    assert bad.status == "wrong"
    assert says in bad.reason


def test_one_bad_length_is_found(model: Path) -> None:
    rows = golden.read(model)
    calls = trials.calls_of(signature.read(model), rows)
    assert {call.function.max_length for call in calls} == {8, 32}
    outputs = [np.asarray(rows.rows[call.row].output, np.float32)[None] for call in calls]
    outputs = [-one if call.function.max_length == 8 else one for one, call in zip(outputs, calls, strict=True)]
    verdict = judge(trials.Trial("done", tuple((one,) for one in outputs), (1.0,)), calls, rows, runtime="one")
    assert verdict.status == "wrong"
    assert "at length 8" in verdict.reason


def test_runner_needs_numpy_alone_and_python_3_9() -> None:
    tree = ast.parse(trials.RUNNER.read_text(encoding="utf-8"), feature_version=(3, 9))
    names = {
        str(node.module if isinstance(node, ast.ImportFrom) else alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert names - set(sys.stdlib_module_names) == {"numpy"}


# --- environments --------------------------------------------------------------------------------------------------


def test_table_has_the_pinned_runtime_and_each_name_once() -> None:
    assert OWN.distribution == "ai-edge-litert"
    assert len({runtime.name for runtime in RUNTIMES}) == len(RUNTIMES)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [extra] = project["optional-dependencies"]["compat"]
    version = next(runtime.version for runtime in RUNTIMES if runtime.distribution == "tensorflow")
    assert extra == f"tensorflow=={version.rpartition('.')[0]}.*"


def made(place: Path, requirements: list[str]) -> None:
    (place / "bin").mkdir(parents=True)
    (place / environments.MARKER).write_text(json.dumps({"requirements": requirements}), encoding="utf-8")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda place: None, "no environment yet"),
        (lambda place: place.mkdir(), "half-made"),
        (lambda place: made(place, ["ai-edge-litert==0.0.1"]), "other requirements"),
        (lambda place: made(place, list(OTHER.requirements)), "damaged"),
    ],
)
def test_environment_that_is_not_whole_is_not_used(tmp_path: Path, spoil: Callable[[Path], None], says: str) -> None:
    spoil(tmp_path / OTHER.name)
    found = environments.prepare(OTHER, tmp_path, install=False, note=lambda text: None)
    assert found.python is None
    assert says in found.reason


def test_environment_with_another_release_in_it_is_not_used(tmp_path: Path) -> None:
    place = tmp_path / OTHER.name
    made(place, list(OTHER.requirements))
    # The project's own interpreter, which has the pinned release.
    environments.python_of(place).symlink_to(sys.executable)
    (place / "pyvenv.cfg").write_text(Path(sys.prefix, "pyvenv.cfg").read_text(encoding="utf-8"), encoding="utf-8")
    library = Path("lib", f"python{sys.version_info.major}.{sys.version_info.minor}")
    (place / library).mkdir(parents=True)
    (place / library / "site-packages").symlink_to(Path(sys.prefix) / library / "site-packages")
    found = environments.prepare(OTHER, tmp_path, install=False, note=lambda text: None)
    assert found.python is None
    assert f"holds ai-edge-litert {OWN.version}" in found.reason


def test_python_without_wheels_is_a_reason(tmp_path: Path) -> None:
    future = Runtime("future", "litert", "ai-edge-litert", "9.0", "ai_edge_litert.interpreter", ("2.99",), 1)
    found = environments.prepare(future, tmp_path, install=True, note=lambda text: None)
    assert found.python is None
    assert "wheels for Python 2.99 alone" in found.reason
    assert list(tmp_path.iterdir()) == []


def test_unknown_runtime_says_what_exists() -> None:
    with pytest.raises(InputError, match=r"there are: tflite-runtime-2\.14\.0"):
        runtimes.choose(["onnxruntime"])
    assert runtimes.choose([]) == RUNTIMES


# --- the recipe's floor --------------------------------------------------------------------------------------------


def with_floor(backend: str, floor: str, *schemes: str) -> Recipe:
    targets = {backend: {"schemes": list(schemes), "minimum_runtime": floor}}
    return loading.checked(recipe_values(targets=targets), Path("my.toml"))


def test_floor_is_taken_where_the_schemes_are_right() -> None:
    assert with_floor("litert", "tflite-runtime-2.14.0", "fp32", "fp16").targets["litert"].minimum_runtime
    assert with_floor("litert", "tflite-runtime-2.14.0", "int8_static_per_tensor").targets["litert"].minimum_runtime
    assert with_floor("litert", "litert-1.2.0", "fp32", "int8_dynamic").targets["litert"].minimum_runtime


@pytest.mark.parametrize(
    ("backend", "floor", "schemes", "says"),
    [
        ("litert", "tflite-runtime-2.14.0", ("fp32", "int8_dynamic"), "int8_dynamic is not computed right by tflite"),
        (
            "litert",
            "tflite-runtime-2.14.0",
            ("fp32", "int8_dynamic"),
            "that are (fp32, fp16, int8_weight_only, int8_static_per_tensor), or ask for one of: litert-1.2.0",
        ),
        ("litert", "litert-1.0.1", ("int8_dynamic",), "or ask for one of: litert-1.2.0"),
        ("litert", "litert-9", ("fp32",), "there are: tflite-runtime-2.14.0"),
        ("executorch", "litert-1.2.0", ("fp32",), "older runtimes are not tried for executorch"),
    ],
)
def test_floor_that_cannot_be_kept_is_refused(backend: str, floor: str, schemes: tuple[str, ...], says: str) -> None:
    with pytest.raises(RecipeError, match=f"my.toml: targets.{backend}.minimum_runtime") as caught:
        with_floor(backend, floor, *schemes)
    assert says in str(caught.value)


def test_floor_that_was_not_tried_is_not_kept() -> None:
    row = Row(target="litert-fp32", runtime="litert-1.2.0", verdict=Verdict(status="not_tried", reason="offline"))
    found = Compat(
        recipe="tiny",
        minimum_runtime="litert-1.2.0",
        floor_kept=False,
        rows=[row],
        files=[],
        executorch=[],
        unfinished=[],
    )
    assert found.below_floor == [row]
    assert not found.tried


# --- the real ones -------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the oldest runtimes have wheels for Python 3.11 alone")
def test_real_runtimes_from_the_package_index(tiny_line: TinyLine, tmp_path: Path) -> None:
    line = tiny_line.copy(tmp_path)
    small = [runtime.name for runtime in RUNTIMES if runtime.download_mb < 100]
    args = [part for name in small for part in ("--runtime", name)]
    outcome = compat(line, *args, "--install", "--json")
    assert outcome.rc == 0, outcome.stderr
    found = verdicts(outcome.document)
    assert {found["litert-fp32", name].status for name in small} == {"right"}
    int8 = {name: found["litert-int8_dynamic", name].worst_cosine or 0.0 for name in small}
    assert all(int8[name] > 0.9 for name in small if name not in ("tflite-runtime-2.14.0", "litert-1.0.1"))
    # The defect that the recipe's floor is there for: no error, and other numbers.
    wrong = found["litert-int8_dynamic", "tflite-runtime-2.14.0"]
    assert wrong.status == "wrong"
    assert wrong.worst_cosine is None or wrong.worst_cosine < 0.5
