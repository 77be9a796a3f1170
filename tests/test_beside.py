"""Students beside a recipe's own: walked to their verdicts, timed in the same run, shown in the same report."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w
from conftest import Outcome, TinyLine, recipe_values

QUICK = {"rounds": 1, "block_ms": 1.0, "texts": 2, "text_passes": 1, "lengths": [8, 32]}
Pocketbert = Callable[..., Outcome]
pytestmark = pytest.mark.usefixtures("one_core")


def add(line: TinyLine, values: dict[str, object]) -> None:
    text = line.recipe.read_text(encoding="utf-8") + "\n" + tomli_w.dumps({"benchmark": QUICK, **values})
    line.recipe.write_text(text, encoding="utf-8")


def write_half(line: TinyLine, source: str, **overrides: object) -> None:
    """Write half.toml beside the line's recipe: every other layer of the same student."""
    values = {"name": "half", "student": {"source": source, "random_weights": True}, "start": {"kind": "layers"}}
    text = tomli_w.dumps(recipe_values(**(values | {"targets": {"litert": {"schemes": ["fp32"]}}} | overrides)))
    (line.recipe.parent / "half.toml").write_text(text, encoding="utf-8")


@pytest.fixture
def line(tiny_line: TinyLine, tiny_student: Callable[..., Path], tmp_path: Path) -> TinyLine:
    """The tiny line with half of its layers beside it."""
    copied = tiny_line.copy(tmp_path)
    write_half(copied, str(tiny_student("bert", "embedding")))
    add(copied, {"beside": {"half.toml": {"targets": ["litert:fp32"]}}})
    return copied


def test_both_students_are_in_one_report_and_their_times_in_one_run(line: TinyLine, command_here: Pocketbert) -> None:
    given = ("run", line.recipe, "--target", "litert:fp32", "--build", line.build, "--json")
    outcome = command_here(*given)
    assert outcome.rc == 0, outcome.stderr
    steps = [step["name"] for step in outcome.document["steps"]]
    assert "half: start" in steps
    assert "half: verify litert-fp32" in steps
    assert steps[-2:] == ["benchmark", "report"]
    assert outcome.document["verdicts"]["half/litert-fp32"] == "passed"
    report = json.loads((line.folder / "report" / "report.json").read_text(encoding="utf-8"))
    (near,) = report["beside"]
    (file,) = near["files"]
    assert near["student"]["parameters"] < report["student"]["parameters"]
    assert file["target"]["parity"]["file_bytes"] < file["own_bytes"]
    assert file["mean_ms"] > 0
    assert file["own_mean_ms"] > 0
    timed = {(one["student"], one["target"]): one["run_id"] for one in report["variants"] if one["threads"] == 1}
    assert timed["half", "litert-fp32"] == timed[None, "litert-fp32"]
    page = (line.folder / "report" / "index.html").read_text(encoding="utf-8")
    assert "2 files" in page
    assert "begun smaller" in page
    assert "LiteRT fp32, half" in page
    assert "### half: " in (line.folder / "report" / "RESULTS.md").read_text(encoding="utf-8")
    assert not any(path.is_symlink() for path in (line.folder / "report", *(line.folder / "report").iterdir()))
    android, _ = report["recommendations"]
    assert android["command"] == f"pocketbert ship {line.recipe.name} --target litert:fp32"
    assert (line.build / android["file"]).is_file()
    again = command_here(*given)
    assert not any(step["made"] for step in again.document["steps"])


def test_stages_before_the_benchmark_leave_the_neighbours_alone(line: TinyLine, command_here: Pocketbert) -> None:
    outcome = command_here("verify", line.recipe, "--build", line.build, "--json")
    assert not any(step["name"].startswith("half") for step in outcome.document["steps"])


def test_a_neighbour_of_which_no_target_was_asked_for_is_left_out(line: TinyLine, command_here: Pocketbert) -> None:
    plan = command_here("plan", line.recipe, "--target", "executorch:fp32", "--build", line.build, "--json")
    names = [step["name"] for step in plan.document["steps"]]
    assert "convert executorch-fp32" in names
    assert not any(name.startswith("half: ") for name in names)


@pytest.mark.parametrize(
    ("name", "overrides", "said"),
    [
        ("half.toml", {"task": "classification"}, "is for classification"),
        ("half.toml", {"name": "tiny"}, "is the recipe itself"),
        ("nowhere.toml", {}, "does not exist"),
        ("half.toml", {"targets": {"coreml": {"schemes": ["fp32"]}}}, "there are: coreml:fp32"),
    ],
)
def test_what_cannot_stand_beside_is_one_line(
    name: str,
    overrides: dict[str, object],
    said: str,
    tiny_line: TinyLine,
    tiny_student: Callable[..., Path],
    tmp_path: Path,
    command_here: Pocketbert,
) -> None:
    line = tiny_line.copy(tmp_path)
    write_half(line, str(tiny_student("bert", "embedding")), **overrides)
    add(line, {"beside": {name: {"targets": ["litert:fp32"]}}})
    outcome = command_here("plan", line.recipe, "--build", line.build)
    assert outcome.rc == 2
    assert said in outcome.stderr.replace("\n", " ")
    assert "Traceback" not in outcome.stderr
