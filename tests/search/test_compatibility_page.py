"""COMPATIBILITY.md: a record a student, and a page of nothing else."""

from pathlib import Path

import pytest

from benchmarks import compatibility
from benchmarks.compatibility import Pair, StudentRecord

FILES = ["litert-fp32", "litert-int4_dynamic"]
KEPT = {(0, 0): 1.0, (0, 1): 0.987, (1, 0): 0.9, (1, 1): 1.0}


def record(recipe: str, across: str | None) -> StudentRecord:
    """Return a record of two files, of which the second one asks the first one's index with a loss."""
    pairs = [
        Pair(
            old=FILES[old],
            new=FILES[new],
            verdict="same_space" if kept == 1 else "usable_with_loss" if kept > 0.95 else "re_index",
            recall_kept=kept,
            recall_at_1_gained=kept - 1,
            worst_cosine=kept,
        )
        for (old, new), kept in KEPT.items()
    ]
    return StudentRecord(
        recipe=recipe,
        origin=f"the student of {recipe}",
        files=FILES,
        queries={"a": 629, "b": 143},
        pairs=pairs,
        across=across,
    )


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compatibility, "RECORDS", tmp_path)
    return tmp_path


def put(records: Path, *students: StudentRecord) -> str:
    """Write records, and return the page."""
    for one in students:
        (records / f"{one.recipe}.json").write_text(one.model_dump_json(), encoding="utf-8")
    return "\n".join(compatibility._page())


def test_each_pair_stands_in_the_row_of_the_file_that_made_the_index(records: Path) -> None:
    page = put(records, record("minilm-all", None))
    assert "| 1 `litert-fp32` | 100.0 | 98.7 ~ |" in page
    assert "| 2 `litert-int4_dynamic` | 90.0 ✗ | 100.0 |" in page
    assert "772 queries: a (629), b (143); 2 of the 18 files of recipe `minilm-all`." in page
    said = " ".join(page.split())
    assert "2 of 4 pairs may be mixed in one index. The largest loss: `litert-int4_dynamic` asked by" in said
    assert "At recall@1 the largest change is -10.0 points, `litert-int4_dynamic` asked by `litert-fp32`." in said
    assert "Two students" not in page


def test_the_first_student_comes_first_and_another_one_says_what_its_index_is_worth(records: Path) -> None:
    page = put(records, record("another", "another space: index anew"), record("minilm-all", None))
    assert page.index("## the student of minilm-all") < page.index("## the student of another")
    last = page.splitlines()[-1]
    assert last == "An index by the student of minilm-all, asked by the student of another: another space: index anew."
