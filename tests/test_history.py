"""`pocketbert history`: several real reports of one line, as a table and as a page."""

import json
from pathlib import Path

import pytest
from conftest import run_command_here
from test_report import Page, build, counted_record, read, usual

from pipeline.report import history
from pipeline.report.record import Report
from pipeline.verify.emulated import Counts


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report as the stage writes it."""
    return read(build(tmp_path_factory.mktemp("first"), usual()))


def test_two_reports_side_by_side(first: Report, tmp_path: Path) -> None:
    small = first.targets[1]
    counts = [Counts(cpu="cortex-a76", page_size=16384, instructions={16: 1_000_000, 128: 9_500_000}, spread=0.001)]
    grown = small.model_copy(
        update={
            "emulated": counted_record(counts),
            "conversion": small.conversion.model_copy(update={"file_bytes": 2 * small.conversion.file_bytes}),
        }
    )
    second = first.model_copy(update={"targets": [first.targets[0], grown, *first.targets[2:]]})
    places = [tmp_path / "old.json", tmp_path / "new.json"]
    for place, report in zip(places, (first, second), strict=True):
        place.write_text(report.model_dump_json())
    found = history.rows({"old": first, "new": second})
    assert len(found) == 2 * len(first.targets)
    before, after = (row for row in found if row.target == small.name)
    assert after.file_bytes == 2 * before.file_bytes
    assert (before.instructions, after.instructions) == (None, 9.5)
    page = tmp_path / "history.html"
    outcome = run_command_here("history", *map(str, places), "--out", str(page), "--json", cwd=tmp_path)
    assert outcome.rc == 0, outcome.stderr
    assert [row["label"] for row in outcome.document["rows"]][:: len(first.targets)] == ["old", "new"]
    shown = Page(page.read_text(encoding="utf-8"))
    assert shown.open == []
    assert "9.50" in shown.text


def test_what_is_no_history_is_refused(first: Report, tmp_path: Path) -> None:
    other = first.model_copy(update={"recipe": first.recipe | {"name": "another"}})
    names = {"a.json": first.model_dump_json(), "b.json": other.model_dump_json(), "c.json": json.dumps({"a": 1})}
    for name, text in names.items():
        (tmp_path / name).write_text(text)
    for given, said in (
        (["a.json", "b.json"], "the reports are of several recipes: another, tiny"),
        (["c.json"], "c.json is no readable report"),
        (["nowhere.json"], "nowhere.json"),
        (["a.json", "--label", "1", "--label", "2"], "--label names each report once: there are 1 reports"),
    ):
        outcome = run_command_here("history", *given, cwd=tmp_path)
        assert outcome.rc == 2
        assert said in " ".join(outcome.stderr.split())
