"""SCHEMES.md: records of files count by their recipe and their code, and the page is made of nothing else."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks import schemes, schemes_record
from pipeline.convert.stage import Target
from pipeline.errors import ArtifactError

TARGET = Target("litert", "int4_dynamic")


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the records, which the page is made of."""
    place = Path(shutil.copytree(schemes_record.RECORDS, tmp_path / "records"))
    monkeypatch.setattr(schemes_record, "RECORDS", place)
    return place


def changed(records: Path, **facts: object) -> None:
    """Change facts of the record of the calibrated student in `TARGET`."""
    file = records / f"schemes-{TARGET}.json"
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | facts), encoding="utf-8")


def row() -> str | None:
    """Return the row of the calibrated student in `TARGET`."""
    lines = list(schemes._page())
    inside = lines[lines.index("## LiteRT") : lines.index("## ExecuTorch")]
    found = [line for line in inside if line.startswith("| `int4_dynamic`") and "| calibrated |" in line]
    return found[0] if found else None


def test_a_record_of_this_code_has_no_mark_and_one_of_older_code_has(records: Path) -> None:
    changed(records, code=schemes_record.code("litert"))
    assert schemes_record.read("schemes", TARGET)[1] == "there"
    assert "†" not in str(row())
    changed(records, code=schemes_record.code("litert") | {"verify": -1})
    assert schemes_record.read("schemes", TARGET)[1] == "older"
    assert str(row()).startswith("| `int4_dynamic` † | calibrated |")


def test_a_record_of_another_recipe_does_not_count(records: Path) -> None:
    before = " ".join(schemes._page())
    changed(records, recipe="another")
    assert schemes_record.read("schemes", TARGET) == (None, "stale")
    assert row() is None
    assert before != " ".join(schemes._page())


def test_recipes_and_policies_decide_what_was_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: schemes_record.asked(name) for name in ("mixed", "small", "trained")}
    folder = Path(shutil.copytree(schemes_record.RECIPES, tmp_path / "recipes"))
    monkeypatch.setattr(schemes_record, "RECIPES", folder)
    assert {name: schemes_record.asked(name) for name in before} == before
    for name, old, new in (
        ("policy.toml", "encoder.layer.5", "encoder.layer.4"),
        ("small.toml", "table_bits = 4", "table_bits = 8"),
        ("trained.toml", '["int8_static", "int4_dynamic"]', '["int8_static"]'),
    ):
        file = folder / name
        assert old in file.read_text(encoding="utf-8")
        file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    after = {name: schemes_record.asked(name) for name in before}
    assert [name for name in before if after[name] != before[name]] == ["mixed", "small"]


def test_a_time_is_that_of_the_recorded_file_alone(records: Path) -> None:
    found, _ = schemes_record.read("schemes", TARGET)
    base, _ = schemes_record.read("schemes", Target("litert", "int8_dynamic"))
    assert found is not None
    assert base is not None
    times = schemes_record.Times(machine="a machine", milliseconds={str(found.model): 30.0, str(base.model): 20.0})
    (records / "times.json").write_text(times.model_dump_json(), encoding="utf-8")
    assert "| 30.00 | 1.50 |" in str(row())
    changed(records, model="another file")
    assert "| – | – | 100% |" in str(row())


def test_a_record_that_cannot_be_read_is_said(records: Path) -> None:
    (records / f"schemes-{TARGET}.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ArtifactError, match="delete it and run its row again"):
        schemes_record.read("schemes", TARGET)
