"""Measured speed-ups beside promised ones: pairing and intervals, what is refused, and a real run of tiny students."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from conftest import recipe_values
from faults import students
from faults.students import few

from benchmarks import pruned_speed, pruned_speed_record
from pipeline.benchmark import paired
from pipeline.errors import ArtifactError


def test_a_machine_that_drifts_hurts_both_alike(seed: int) -> None:
    """Times that double in the middle of a run, and one stalled run in ten, leave the paired ratio where it is."""
    draw = np.random.default_rng(seed)
    drift = np.repeat([1.0, 2.0], 20)[:, None]
    both = [scale * drift * draw.normal(1, 0.02, (40, 5)) for scale in (3.0, 2.0)]
    both[1][::2, 0] *= 10
    found = paired.ratio(list(both[0].ravel()), list(both[1].ravel()), rounds=40)
    assert found.low < 1.5 < found.high
    assert found.high - found.low < 0.05


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(1.7, 1.9, "reached"), (1.5, 1.7, "undecided"), (1.2, 1.5, "missed")]
)
def test_the_bound_is_on_the_whole_interval(low: float, high: float, verdict: str) -> None:
    ratio = paired.Ratio(value=(low + high) / 2, low=low, high=high)
    names: dict[str, Any] = {"recipe": "half", "backend": "litert", "scheme": "fp32", "seq_len": 32}
    row = pruned_speed_record.Row(**names, unpruned_ms=2.0, ms=1.0, wall=ratio, cpu=ratio, promised=2.0)
    assert row.verdict == verdict
    assert row.share == pytest.approx(ratio.value / 2)


def write(place: Path, source: Path, name: str, **values: object) -> str:
    given = recipe_values(
        name=name,
        student={"source": str(source), "random_weights": True},
        convert={"sequence_lengths": [16, 32]},
        **({"targets": {"litert": {"schemes": ["fp32"]}, "executorch": {"schemes": ["fp32"]}}} | values),
    )
    path = place / f"{name}.toml"
    path.write_text(tomli_w.dumps(given), encoding="utf-8")
    return str(path)


REFUSED: dict[str, tuple[list[str], dict[str, Any], str]] = {
    "one round": (["--rounds", "1"], {}, "--rounds 1 gives no interval"),
    "too long": (["--length", "64"], {}, "--length 64 is beyond what a recipe's files take, 32 tokens"),
    "the same recipe": ([], {"name": "whole"}, "two of the recipes have one name"),
    "nothing in common": ([], {"targets": {"coreml": {"schemes": ["fp16"]}}}, "have no target of litert or executorch"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compared_is_refused(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, values, said = REFUSED[case]
    half: dict[str, Any] = {"name": "half", "prune": {"compute": 0.5}} | values
    (tmp_path / "other").mkdir()
    pair = [
        write(tmp_path, tmp_path, "whole"),
        write(tmp_path / "other", tmp_path, **half),
    ]
    assert pruned_speed.main([*pair, *given, "--build", str(tmp_path / "build")]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "build").exists()


def test_a_record_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text("{}")
    with pytest.raises(ArtifactError, match="is no record of pruned speed"):
        pruned_speed_record.read(tmp_path / "record.json")


@pytest.mark.full
def test_tiny_students_are_timed_in_both_runtimes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = students.source(few("bert", "embedding"), tmp_path / "source")
    prune = {"compute": 0.5, "max_length": 32, "calibration_texts": 16}
    pair = [write(tmp_path, source, "whole"), write(tmp_path, source, "half", prune=prune)]
    quick = ["--length", "16", "--length", "32", "--rounds", "3", "--runs", "2"]
    places = ["--build", str(tmp_path / "build"), "--results", str(tmp_path / "results")]
    assert pruned_speed.main([*pair, *quick, *places]) == 0
    (record,) = (tmp_path / "results").glob("*.json")
    found = pruned_speed_record.read(record)
    assert [(one.backend, one.seq_len) for one in found.rows] == [
        (backend, length) for backend in ("litert", "executorch") for length in (16, 32)
    ]
    assert all(1.9 < one.promised < 3 and one.wall.low <= one.wall.value <= one.wall.high for one in found.rows)
    assert {one.run_id for one in found.records} == {found.records[0].run_id}
    assert "× promised" in capsys.readouterr().out
    assert record.with_suffix(".md").read_text(encoding="utf-8").count("| half |") == 4
