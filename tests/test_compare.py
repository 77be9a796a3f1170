"""`make compare` on tiny shapes: real files timed in turns, cells that are kept, and a page of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare, compare_cases, compare_page, compare_phones, compare_record
from benchmarks.support_cases import Case
from pipeline.convert.stage import Target
from pipeline.devices import host

_TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
_TASK = compare_cases.TASK
_CASES = (
    Case("BERT-base", "bert", _TASK, _TINY),
    Case("DistilBERT", "distilbert", _TASK, {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}),
)
_TARGET = Target("litert", "fp32")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two tiny shapes, one format, a few runs, and folders of the test's own; without public data."""
    monkeypatch.delenv("POCKETBERT_DATA", raising=False)
    settings = compare_record.SETTINGS.model_copy(update={"rounds": 3, "texts": 6, "text_passes": 2})
    given: dict[str, Any] = {
        "CASES": _CASES,
        "TIMED": (_TARGET,),
        "_FILE_LENGTHS": compare_cases.LENGTHS,
        "SIZED": (),
        "SETTINGS": settings,
        "BUILD": tmp_path / "build",
        "PAGE": tmp_path / "COMPARISON.md",
        "RESULTS": tmp_path / "results",
        "MINUTES": {"BERT-base": (1, 1), "DistilBERT": (1, 1)},
    }
    for module in (compare, compare_cases, compare_page, compare_phones, compare_record):
        for name, value in given.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    return tmp_path


@pytest.mark.full
def test_cells_are_made_once_and_shown(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(["--no-phones"]) == 0
    folder = compare_record.folder_of(host.describe())
    cells = {place.stem: compare_record.read(compare_record.Cell, place) for place in folder.glob("*.json")}
    base, student = cells["bert-base-litert-fp32"], cells["distilbert-litert-fp32"]
    assert base
    assert student
    assert (base.beside, base.against(384)) == (None, None)
    assert student.record
    assert student.beside
    # One run for both, so that what disturbs one disturbs the other.
    assert student.record.run_id == student.beside.run_id
    assert len(student.at(384).latencies_ms) == 9
    ratio = student.against(384)
    assert ratio
    assert ratio.low <= ratio.value <= ratio.high
    # The file is the model that was timed: random weights, so nothing but the graph is judged.
    assert student.worst_sqnr_db > 80
    page = (tiny / "COMPARISON.md").read_text(encoding="utf-8")
    assert "| DistilBERT |" in page
    assert "Weights are random" in page
    assert "1.118 s" in page
    before = {place: place.stat().st_mtime_ns for place in folder.glob("*.json")}
    assert compare.main(["--no-phones"]) == 0
    assert {place: place.stat().st_mtime_ns for place in folder.glob("*.json")} == before
    capsys.readouterr()
    assert compare.main(["--plan"]) == 0
    assert "DistilBERT: there" in capsys.readouterr().out


def test_a_cell_of_other_settings_is_stale(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = compare_cases.recipe_of(_CASES[0], None)
    key = compare_record.key_of(recipe, _TARGET)
    assert key == compare_record.key_of(recipe, replace(_TARGET))
    assert key != compare_record.key_of(recipe, Target("litert", "int8_dynamic"))
    monkeypatch.setattr(compare_record, "SETTINGS", compare_record.SETTINGS.model_copy(update={"rounds": 5}))
    assert key != compare_record.key_of(recipe, _TARGET)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--only", "BERT"], "--only BERT is no row of the table; there are: BERT-base, DistilBERT"),
        (["--checkpoint", "BERT-base"], "--checkpoint BERT-base is no MODEL=SOURCE"),
        (["--checkpoint", "GPT=x"], "--checkpoint GPT=x is no MODEL=SOURCE"),
    ],
)
def test_what_is_no_row_is_refused(given: list[str], said: str, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main([*given, "--plan"]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
