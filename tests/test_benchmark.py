"""Latency records: what is null, what is kept, and a real run of two variants beside each other."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w
from conftest import Outcome, TinyLine

from pipeline import artifact
from pipeline.benchmark import stage as benchmark
from pipeline.benchmark.record import mean_of_medians, percentiles
from pipeline.benchmark.variants import of_student, of_target
from pipeline.recipe.schema import BenchmarkSection

TEXTS = ["A short one.", "Another text, which is a little longer than the first.", "Thanks!"]


@pytest.mark.parametrize(
    ("runs", "known"), [(3, set()), (4, {"p50"}), (20, {"p50", "p90"}), (200, {"p50", "p90", "p99"})]
)
def test_percentiles_are_null_where_samples_are_too_few(runs: int, known: set[str]) -> None:
    found = percentiles([float(number) for number in range(runs)])
    assert {name for name in ("p50", "p90", "p99") if getattr(found, name) is not None} == known
    assert found.n == runs


def test_one_slow_pass_does_not_count() -> None:
    assert mean_of_medians([1.0, 3.0, 1.0, 3.0, 500.0, 900.0], 3) == 2.0


def test_no_samples_is_null_not_zero() -> None:
    assert percentiles([]).mean is None


def test_variants_take_turns_in_processes_of_their_own(tiny_line: TinyLine, tmp_path: Path) -> None:
    student = artifact.load(tiny_line.folder / "student")
    model = artifact.load(tiny_line.folder / "litert-fp32" / "model")
    settings = BenchmarkSection(lengths=(8, 20), rounds=2, block_ms=1.0, texts=3, text_passes=2)
    told: list[str] = []
    records = benchmark.measure(
        [of_student(student, 32), of_target(model)],
        settings.lengths,
        TEXTS,
        1,
        settings,
        log=tmp_path / "log",
        tell=lambda what, fraction: told.append(what),
    )
    torch, litert = records
    assert (torch.model.id, litert.model.id) == ("pytorch-fp32", "litert-fp32")
    assert torch.run_id == litert.run_id
    assert litert.model.sha256 == model.digest
    assert litert.device.cpu_features == torch.device.cpu_features
    # 20 tokens run at 32 in a file of fixed lengths, at 20 in PyTorch.
    assert [timing.ran_at for timing in litert.timing.lengths] == [8, 32]
    assert [timing.ran_at for timing in torch.timing.lengths] == [8, 20]
    for record in records:
        texts = record.timing.texts
        assert len(texts.latencies_ms) == len(texts.cpu_ms or []) == len(texts.tokenise_ms) == 2 * len(TEXTS)
        assert texts.tokens == torch.timing.texts.tokens
        assert all(len(timing.latencies_ms) >= 4 and min(timing.latencies_ms) > 0 for timing in record.timing.lengths)
        assert record.timing.load_ms > 0
        assert record.backend.threads == 1
    assert any("length 20" in what for what in told)


def test_run_ends_in_a_report_even_when_a_gate_failed(
    tiny_line: TinyLine, tmp_path: Path, command_here: Callable[..., Outcome]
) -> None:
    line = tiny_line.copy(tmp_path)
    quick = {"benchmark": {"rounds": 1, "block_ms": 1.0, "texts": 2, "text_passes": 1, "lengths": [8, 32]}}
    line.recipe.write_text(line.recipe.read_text(encoding="utf-8") + "\n" + tomli_w.dumps(quick), encoding="utf-8")
    litert = ("--target", "litert:int8_dynamic")
    outcome = command_here("run", line.recipe, *litert, "--build", line.build, "--json")
    assert outcome.rc == 1
    made = {step["name"] for step in outcome.document["steps"] if step["made"]}
    assert made == {"benchmark", "report"}
    report = json.loads((line.folder / "report" / "report.json").read_text(encoding="utf-8"))
    assert report["schema_version"] == 2
    assert {one["target"] for one in report["variants"]} == {None, "litert-int8_dynamic"}
    assert (line.folder / "report" / "index.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    again = command_here("run", line.recipe, *litert, "--build", line.build, "--json")
    assert not any(step["made"] for step in again.document["steps"])
