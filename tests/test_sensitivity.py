"""`pocketbert sensitivity` and `pocketbert ranges`: policies that are chosen, read and refused, and what is shown."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Outcome, recipe_file

from pipeline.checkpoint import integers, ranges
from pipeline.errors import InputError
from pipeline.quantize import policy, sensitivity
from pipeline.quantize.sensitivity import Sensitivity, Trial


def trial(linear: str, error: float, saved: int) -> Trial:
    return Trial(linear=linear, bytes_saved=saved, multiply_adds=100, error=error, sqnr_db=20.0, sqnr_lost_db=1.0)


def test_what_costs_most_per_byte_gets_eight_bits_as_far_as_it_is_allowed() -> None:
    trials = [
        trial("dear", 0.1, 1000),
        trial("cheap", 0.001, 1000),
        trial("small", 0.05, 100),
        trial("none", -1e-9, 10),
    ]
    assert sensitivity.choose(trials, 1100) == ("small", "dear")
    assert sensitivity.choose(trials, 1099) == ("small",)
    # What does not fit any more leaves room for what does.
    assert sensitivity.choose(trials, 500) == ("small",)
    assert sensitivity.choose(trials, 1e9) == ("small", "dear", "cheap")
    assert sensitivity.choose(trials, 0) == ()


def test_a_policy_that_was_written_is_read_again(tmp_path: Path) -> None:
    found = Sensitivity(key="k", target="litert-int4_dynamic", length=64, rows=64, eight_bits=("a.b", "c.d"))
    (tmp_path / "policy.toml").write_text(sensitivity.policy_text(found))
    assert policy.read(tmp_path / "policy.toml").eight_bits == ("a.b", "c.d")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read: No such file"),
        ("eight_bits = 3\n", "is no policy"),
        ("eight_bits = [\n", "is no policy"),
        ("other = []\n", "is no policy"),
    ],
)
def test_a_policy_that_is_none_is_refused(content: str | None, says: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "policy.toml").write_text(content)
    with pytest.raises(InputError, match=says):
        policy.read(tmp_path / "policy.toml")


def test_a_policy_for_another_student_is_refused() -> None:
    policy.check(["a"], frozenset("ab"))
    with pytest.raises(InputError, match=r"gives 8 bits to x \(and 1 more\), which is no linear of this student"):
        policy.check(["a", "x", "y"], frozenset("abc"))


def test_ranges_that_are_not_there_are_told(command_here: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = command_here("ranges", recipe_file(tmp_path))
    assert outcome.rc == 2
    assert "has no checkpoint that was quantised" in outcome.stderr


def test_ranges_come_worst_first_and_of_the_checkpoint_that_was_trained(
    command_here: Callable[..., Outcome], tmp_path: Path
) -> None:
    """What is trained behind its calibration is looked at where the recipe says so, and only there."""
    trained = ranges.Training(
        texts=9, held_out=1, steps=2, seconds=1.0, resumed_at=(), distance_before=0.5, distance=0.25, first_loss=1.0,
        final_loss=0.5,
    )  # fmt: skip
    weights = [
        integers.Rounded(name=f"{name}.weight", bits=4, block=32, error_nearest=before, error=error)
        for name, before, error in (("words", None, None), ("good", 0.02, 0.01), ("bad", 0.4, 0.3))
    ]
    for place, training in (("quantised", None), ("trained", trained)):
        folder = tmp_path / "build" / "tiny" / f"{place}-int4_dynamic"
        folder.mkdir(parents=True)
        record = integers.Record(scheme="int4_dynamic", texts=8, weights=tuple(weights), training=training)
        (folder / integers.RECORD).write_text(record.model_dump_json())
    cases: list[tuple[dict[str, Any], bool]] = [({}, False), ({"training": {}}, True)]
    for quantize, said in cases:
        shown = command_here("ranges", recipe_file(tmp_path, quantize=quantize)).stdout
        assert [line.split()[0] for line in shown.splitlines() if " 4 " in line] == ["bad", "good", "words"]
        assert ("5.00e-01 → 2.50e-01" in shown) == said
        words = next(line for line in shown.splitlines() if "words" in line)
        assert words.split()[-2:] == ["–", "–"]


@pytest.mark.full
def test_a_study_is_written_shown_and_named_by_a_recipe(
    randomised: Callable[..., Path], command_here: Callable[..., Outcome], tmp_path: Path
) -> None:
    """The command, a second time from what it kept, the ranges, and the checkpoint that the policy leads to."""
    free = {"min_mean_cosine": 0.0, "min_worst_cosine": -1.0, "min_sqnr_db": 0.0, "max_bytes_per_parameter": 9.0}
    given = {
        "student": {"source": str(randomised("bert", "embedding")), "random_weights": True},
        "targets": {"litert": {"schemes": ["int4_dynamic"]}},
        "convert": {"sequence_lengths": [8, 16]},
        "verify": {"datasets": ["none"], "gates": {"int4_dynamic": free}},
    }
    recipe = recipe_file(tmp_path, quantize={"calibration_texts": 64}, **given)
    asked = ("sensitivity", recipe, "--target", "litert:int4_dynamic", "--length", "16", "--extra", "0.05", "--json")
    outcome = command_here(*asked)
    assert outcome.rc == 0, outcome.stderr
    found = outcome.document
    assert len(found["trials"]) == 12
    assert found["eight_bits"]
    assert [row["name"] for row in found["compared"]] == ["all at 4 bits", "policy", "all at 8 bits"]
    four, mixed, eight = found["compared"]
    assert four["file_bytes"] < mixed["file_bytes"] <= 1.05 * four["file_bytes"]
    assert four["sqnr_db"] < mixed["sqnr_db"] <= eight["sqnr_db"]
    written = tomllib.loads((tmp_path / "policy.toml").read_text())
    assert written["eight_bits"] == found["eight_bits"]
    again = command_here(*asked)
    assert again.document["trials"] == found["trials"]
    shown = command_here("ranges", recipe, "--json")
    assert len(shown.document["schemes"]["int4_dynamic"]["weights"]) == 13
    with_policy = {"calibration_texts": 64, "policy": "policy.toml"}
    outcome = command_here("verify", recipe_file(tmp_path, quantize=with_policy, **given), "--json")
    assert set(outcome.document["verdicts"].values()) == {"passed"}, outcome.stdout
    held = integers.Record.model_validate_json(
        (tmp_path / "build" / "tiny" / "quantised-int4_dynamic" / integers.RECORD).read_text()
    )
    mixed_bits = {one.name.removesuffix(".weight"): one.bits for one in held.weights if one.error is not None}
    assert sorted(name for name, bits in mixed_bits.items() if bits == 8) == sorted(found["eight_bits"])
    assert json.loads(shown.stdout)
