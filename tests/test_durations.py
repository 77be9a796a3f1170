"""What tests cost, by file: kept, and the dearest ones in `docs/contributing.md`."""

import json
from pathlib import Path

import durations
import pytest

RUN = {
    "wall": 9.0,
    "cpu": 12.5,
    "cores": 2,
    "yardstick": 2.5,
    "tests": {
        "tests/test_one.py::test_b[x::y]": {"wall": 1.0, "cpu": 4.0},
        "tests/test_two.py::test_c": {"wall": 6.0, "cpu": 6.5},
        "tests/test_one.py::test_a": {"wall": 1.0, "cpu": 2.0},
    },
}


def test_seconds_are_kept_by_file_and_the_dearest_stand_first(tmp_path: Path) -> None:
    run, kept, page = tmp_path / "run.json", tmp_path / "kept.json", tmp_path / "page.md"
    run.write_text(json.dumps(RUN))
    page.write_text(f"before\n{durations.BEGIN}\nold\n{durations.END}\nafter\n")
    assert durations.main([str(run)], kept=kept, page=page) == 0
    assert json.loads(kept.read_text())["files"] == {
        "tests/test_one.py": {"cpu": 6.0, "tests": 2},
        "tests/test_two.py": {"cpu": 6.5, "tests": 1},
    }
    text = page.read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert rows == [
        "| all | 12 | 5 | 3 |",
        "| `tests/test_two.py` | 6 | 3 | 1 |",
        "| `tests/test_one.py` | 6 | 2 | 2 |",
    ]
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert durations.with_table(text, json.loads(kept.read_text())) == text


def test_a_page_without_marks_is_told() -> None:
    with pytest.raises(ValueError, match="the page needs the lines"):
        durations.with_table("no marks", {})


def test_the_page_has_the_marks_and_what_is_kept() -> None:
    text = durations.PAGE.read_text(encoding="utf-8")
    if durations.KEPT.exists():
        assert durations.with_table(text, json.loads(durations.KEPT.read_text(encoding="utf-8"))) == text
    assert durations.BEGIN in text
    assert durations.END in text
