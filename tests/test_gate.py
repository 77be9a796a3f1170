"""`pocketbert gate`: every way in which a recipe can get worse closes it, and silence does not open it."""

import json
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from conftest import REPOSITORY, Outcome, TinyLine, run_command_here
from store import Store
from test_report import counted_record

from docs import commands
from pipeline.benchmark.in_turns import InTurns, time_pair
from pipeline.benchmark.paired import Ratio
from pipeline.convert.stage import Target
from pipeline.convert.targets import finished_model
from pipeline.errors import ArtifactError, InputError, RecipeError
from pipeline.recipe import loading
from pipeline.recipe.schema import BenchmarkSection, RegressionSection
from pipeline.report import baseline as stored
from pipeline.report import gate
from pipeline.report.gate import Gate, Row, Untimed
from pipeline.report.record import Report, TargetReport
from pipeline.verify import emulated
from pipeline.verify.emulated import Counts

QUICK = {"rounds": 1, "block_ms": 1.0, "texts": 2, "text_passes": 1, "lengths": [8, 32]}
INT8 = "litert-int8_dynamic"
FP32 = "litert-fp32"
RECORDED = Counts(
    cpu="cortex-a76",
    page_size=16384,
    instructions={16: 20555952, 32: 42279360},
    spread=0.0009859933071423228,
)
"""Recorded: of what `pocketbert arm64 minilm` counted of litert-int8_dynamic with ai-edge-litert 2.3.0."""
ALLOWED = RegressionSection()
Pocketbert = Callable[..., Outcome]


pytestmark = pytest.mark.usefixtures("one_core")


@pytest.fixture(scope="module")
def gated(one_core: None, tiny_line: TinyLine, run_store: Store) -> TinyLine:
    """The tiny line without its impossible bound, taken to its report, once for all workers; tests copy it."""

    def make(folder: Path) -> None:
        line = tiny_line.copy(folder / "line")
        values = tomllib.loads(line.recipe.read_text(encoding="utf-8"))
        del values["verify"]
        line.recipe.write_text(tomli_w.dumps(values | {"benchmark": QUICK}), encoding="utf-8")
        outcome = run_command_here("run", line.recipe, "--build", line.build, "--json", cwd=line.recipe.parent)
        assert outcome.rc == 0, outcome.stdout[-3000:] + outcome.stderr[-3000:]

    folder = run_store.get("gated", make) / "line"
    return TinyLine(folder / tiny_line.recipe.name, folder / "build", tiny_line.outcome)


@pytest.fixture(scope="module")
def report(gated: TinyLine) -> Report:
    """The real report of a tiny line, of weights that count as trained, with instructions that were recorded."""
    found = stored.read(gated.folder / "report" / "report.json")
    trained = found.student.model_copy(update={"random_weights": False})
    counted = counted_record([RECORDED])
    return changed(found.model_copy(update={"student": trained}), INT8, emulated=counted)


def changed(report: Report, name: str, **update: Any) -> Report:
    """Return a report with something else in one target."""
    targets = [one.model_copy(update=update) if one.name == name else one for one in report.targets]
    return report.model_copy(update={"targets": targets})


def target_of(report: Report, name: str) -> TargetReport:
    return next(one for one in report.targets if one.name == name)


def with_parity(report: Report, name: str, **update: Any) -> Report:
    return changed(report, name, parity=target_of(report, name).parity.model_copy(update=update))


def with_measure(report: Report, name: str, **update: Any) -> Report:
    measures = target_of(report, name).parity.measures
    assert measures is not None
    return with_parity(report, name, measures=measures.model_copy(update=update))


def with_dataset(report: Report, name: str, **update: Any) -> Report:
    rows = target_of(report, name).parity.datasets
    assert rows
    return with_parity(report, name, datasets=[row.model_copy(update=update) for row in rows])


def with_counts(report: Report, **update: Any) -> Report:
    counts = counted_record([RECORDED.model_copy(update=update)])
    return changed(report, INT8, emulated=counts)


def compare(baseline: Report, now: Report, *, timings: gate.Timings | None = None, allow_missing: bool = False) -> Gate:
    return gate.compare(baseline, now, ALLOWED, timings=timings, allow_missing=allow_missing)


def row_of(found: Gate, name: str, quantity: str) -> Row:
    return next(row for row in found.rows if row.target == name and row.quantity.startswith(quantity))


# --- nothing changed ---------------------------------------------------------------------------------------------


def test_a_report_is_no_worse_than_itself(report: Report) -> None:
    found = compare(report, report)
    assert found.passed
    assert {row.verdict for row in found.rows} == {"same", "not_judged"}
    assert {row.quantity.partition(",")[0] for row in found.rows if row.verdict == "not_judged"} == {"latency per text"}
    assert {row.target for row in found.rows} == {FP32, INT8, "executorch-fp32"}
    for quantity in ("verdict", "spearman", "mean cosine", "worst cosine", "SQNR of all rows", "size", "instructions"):
        assert row_of(found, INT8, quantity).verdict == "same"


# --- each kind of worsening --------------------------------------------------------------------------------------


def figure(report: Report, kind: str, loss: float) -> Report:
    """Return a report in which one figure of the int8 file is worse by so much, in the figure's own unit."""
    target = target_of(report, INT8)
    measures, (dataset, *_) = target.parity.measures, target.parity.datasets
    assert measures is not None
    if kind == "spearman":
        return with_dataset(report, INT8, found=dataset.found - loss)
    if kind == "mean cosine":
        return with_measure(report, INT8, mean_score=measures.mean_score - loss)
    if kind == "worst cosine":
        return with_measure(report, INT8, worst_score=measures.worst_score - loss)
    if kind == "SQNR of all rows":
        return with_measure(report, INT8, sqnr_db=measures.sqnr_db - loss)
    if kind == "size":
        return with_parity(report, INT8, file_bytes=target.parity.file_bytes * (1 + loss))
    assert kind == "instructions, cortex-a76, 32 tokens"
    return with_counts(report, instructions=RECORDED.instructions | {32: RECORDED.instructions[32] * (1 + loss)})


@pytest.mark.parametrize(
    ("kind", "allowed"),
    [
        ("spearman", ALLOWED.max_metric_drop),
        ("mean cosine", ALLOWED.max_cosine_drop),
        ("worst cosine", ALLOWED.max_cosine_drop),
        ("SQNR of all rows", ALLOWED.max_sqnr_drop_db),
        ("size", ALLOWED.max_size_growth),
        ("instructions, cortex-a76, 32 tokens", ALLOWED.max_instruction_growth),
    ],
)
def test_a_figure_is_worse_from_the_bound_on_and_better_as_far_beyond_it(
    report: Report, kind: str, allowed: float
) -> None:
    for loss, verdict in ((1.01, "worse"), (1.0, "same"), (0.5, "same"), (-0.5, "same"), (-1.01, "better")):
        found = compare(report, figure(report, kind, loss * allowed))
        row = row_of(found, INT8, kind)
        assert row.verdict == verdict, (loss, row)
        assert row.allowed == allowed
        assert abs(row.change or 0) == pytest.approx(abs(loss * allowed))
        assert found.passed == (verdict != "worse")
        assert found.counts["worse"] == (verdict == "worse")


def test_a_recipe_says_how_much_is_allowed(report: Report) -> None:
    now = figure(report, "size", 0.3)
    assert not compare(report, now).passed
    loose = RegressionSection(max_size_growth=0.5)
    assert gate.compare(report, now, loose, timings=None, allow_missing=False).passed
    strict = RegressionSection(max_size_growth=0)
    assert gate.compare(report, report, strict, timings=None, allow_missing=False).passed
    one_byte = with_parity(report, INT8, file_bytes=target_of(report, INT8).parity.file_bytes + 1)
    assert not gate.compare(report, one_byte, strict, timings=None, allow_missing=False).passed


@pytest.mark.parametrize("before", ["passed", "failed", "not_run"])
def test_a_file_that_failed_closes_the_gate_whatever_it_was_before(report: Report, before: str) -> None:
    now = with_parity(report, INT8, verdict="failed", reasons=["min_sqnr_db is low"])
    found = compare(with_parity(report, INT8, verdict=before), now, allow_missing=True)
    row = row_of(found, INT8, "verdict")
    assert (row.verdict, row.baseline, row.now) == ("worse", before, "failed")
    assert "min_sqnr_db is low" in str(row.reason)
    assert ("failed in the baseline as well" in str(row.reason)) == (before == "failed")
    assert not found.passed


def test_a_file_that_passes_now_is_better(report: Report) -> None:
    for before in ("failed", "not_run"):
        found = compare(with_parity(report, INT8, verdict=before), report)
        assert row_of(found, INT8, "verdict").verdict == "better"
        assert found.passed


def test_a_target_that_is_gone_closes_the_gate_and_a_new_one_is_listed(report: Report) -> None:
    fewer = report.model_copy(update={"targets": [one for one in report.targets if one.name != INT8]})
    gone = compare(report, fewer, allow_missing=True)
    assert not gone.passed
    assert "the recipe has no such target any more" in str(row_of(gone, INT8, "verdict").reason)
    came = compare(fewer, report)
    assert came.passed
    assert row_of(came, INT8, "verdict").verdict == "new"
    failed = compare(fewer, with_parity(report, INT8, verdict="failed", reasons=["low"]))
    assert not failed.passed


def test_what_is_no_number_is_worse() -> None:
    assert gate._judge(float("nan"), 0.5) == "worse"


# --- what cannot be compared -------------------------------------------------------------------------------------


def other_texts(report: Report, name: str) -> Report:
    assert name in report.texts
    return report.model_copy(update={"texts": report.texts | {name: "0" * 64}})


@pytest.mark.parametrize(
    ("change", "quantity", "says"),
    [
        (
            lambda r: with_parity(r, INT8, datasets=[], datasets_skipped={"graded_pairs": "it is away"}),
            "spearman",
            "away",
        ),
        (lambda r: with_parity(r, INT8, datasets=[]), "spearman", "scored in the baseline and not now"),
        (lambda r: with_dataset(r, INT8, rows=3), "spearman", "3 now"),
        (lambda r: with_dataset(r, INT8, metric="pearson"), "spearman", "the metric is pearson now"),
        (lambda r: other_texts(r, "graded_pairs"), "spearman", "the texts are others"),
        (lambda r: other_texts(r, "verification"), "mean cosine", "the texts are others"),
        (lambda r: with_measure(r, INT8, rows=3), "worst cosine", "verification rows in the baseline, 3 now"),
        (lambda r: with_parity(r, INT8, measures=None), "SQNR", "measured in the baseline and not now"),
        (lambda r: with_parity(r, INT8, verdict="not_run", reasons=["no runtime"]), "verdict", "no runtime"),
        (lambda r: changed(r, INT8, emulated=None), "instructions", "`pocketbert arm64 tiny` counts them"),
        (lambda r: with_counts(r, cpu="cortex-a710"), "instructions", "not counted of this file"),
        (lambda r: with_counts(r, instructions={16: 20555952}), "instructions, cortex-a76, 32", "not counted"),
        (lambda r: with_counts(r, page_size=4096), "instructions", "of 4 KB now"),
    ],
)
def test_what_cannot_be_compared_closes_the_gate_unless_that_is_allowed(
    report: Report, change: Callable[[Report], Report], quantity: str, says: str
) -> None:
    found = compare(report, change(report))
    row = row_of(found, INT8, quantity)
    assert row.verdict == "missing"
    assert says in str(row.reason)
    assert not found.passed
    assert found.counts["worse"] == 0
    assert compare(report, change(report), allow_missing=True).passed


def test_a_report_that_does_not_tell_its_texts_is_compared_and_that_is_noted(report: Report) -> None:
    found = compare(report.model_copy(update={"texts": {}}), report)
    assert found.passed
    assert any("does not tell which texts" in note for note in found.notes)
    assert not any("does not tell which texts" in note for note in compare(report, report).notes)


def test_what_is_new_is_listed(report: Report) -> None:
    without = changed(with_parity(report, INT8, datasets=[]), INT8, emulated=None)
    without = with_parity(without, INT8, datasets=[])
    found = compare(without, report)
    assert found.passed
    assert row_of(found, INT8, "spearman").verdict == "new"
    assert row_of(found, INT8, "instructions").verdict == "new"


def test_metrics_of_random_weights_are_not_judged(report: Report) -> None:
    random = report.model_copy(update={"student": report.student.model_copy(update={"random_weights": True})})
    found = compare(random, figure(random, "spearman", 0.5))
    assert row_of(found, INT8, "spearman").verdict == "not_judged"
    assert found.passed
    # Weights that were trained and are declared random now are another matter.
    assert not compare(report, figure(random, "spearman", 0.5)).passed


def test_a_row_is_held_to_the_length_at_which_the_file_runs_it(report: Report) -> None:
    """A file that lost its short function pads short rows; one that lost its long function takes no long row."""
    counted = {8: 1_000_000, 16: 2_000_000, 32: 4_000_000}
    before = with_counts(report, instructions=counted)
    longer = changed(with_counts(report, instructions={32: 4_000_000}), INT8, lengths=[(32, 32)])
    row = row_of(compare(before, longer), INT8, "instructions, cortex-a76, 8 tokens")
    assert (row.verdict, row.now, row.change) == ("worse", 4_000_000, 3.0)
    assert row.reason == "such a row runs at 32 tokens now"
    shorter = changed(with_counts(report, instructions={8: 1_000_000, 16: 2_000_000}), INT8, lengths=[(8, 8), (16, 16)])
    row = row_of(compare(before, shorter), INT8, "instructions, cortex-a76, 32 tokens")
    assert (row.verdict, row.reason) == ("missing", "the file takes no row of so many tokens any more")


def test_noise_of_single_precision_is_no_loss(report: Report) -> None:
    exact = with_measure(report, FP32, sqnr_db=999.0)
    assert row_of(compare(exact, with_measure(report, FP32, sqnr_db=119.7)), FP32, "SQNR").verdict == "same"
    assert row_of(compare(exact, with_measure(report, FP32, sqnr_db=87.0)), FP32, "SQNR").verdict == "worse"


def test_other_weights_and_another_runtime_are_said(report: Report) -> None:
    other = report.model_copy(update={"student": report.student.model_copy(update={"digest": "0" * 64})})
    found = compare(report, with_parity(other, INT8, evaluator="LiteRT 9"))
    assert any("the student is not the baseline's" in note for note in found.notes)
    assert "by LiteRT 9 now" in str(row_of(found, INT8, "mean cosine").reason)
    assert found.passed


# --- latency -----------------------------------------------------------------------------------------------------


def in_turns(low: float, high: float) -> list[InTurns]:
    return [InTurns(seq_len=32, before_ms=2.0, now_ms=2.2, growth=Ratio(value=(low + high) / 2, low=low, high=high))]


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.101, 1.3, "worse"),
        (1.05, 1.2, "not_judged"),
        (0.5, 1.2, "not_judged"),
        (1.02, 1.08, "same"),
        (0.95, 1.05, "same"),
        (0.85, 0.95, "same"),
        (0.7, 0.9, "better"),
    ],
)
def test_latency_is_worse_only_where_the_whole_interval_is(
    report: Report, low: float, high: float, verdict: str
) -> None:
    now = changed(report, INT8, digest="0" * 64)
    found = compare(report, now, timings={INT8: in_turns(low, high)})
    row = row_of(found, INT8, "latency, 32 tokens")
    assert row.verdict == verdict
    assert row.interval == pytest.approx((low - 1, high - 1))
    assert found.passed == (verdict != "worse")
    if verdict == "not_judged":
        assert "`benchmark.rounds`" in str(row.reason)
    assert row_of(found, FP32, "latency").reason == "the file is the same, byte for byte"


def test_files_that_were_not_timed_say_why(report: Report) -> None:
    now = changed(report, INT8, digest="0" * 64)
    found = compare(report, now, timings={INT8: Untimed("no Mac", missing=False)})
    assert (row_of(found, INT8, "latency").verdict, found.passed) == ("not_judged", True)
    found = compare(report, now, timings={INT8: Untimed("not in the folder", missing=True)})
    assert (row_of(found, INT8, "latency").verdict, found.passed) == ("missing", False)


def test_times_of_two_runs_are_shown_and_not_judged(report: Report) -> None:
    slow = [
        one.model_copy(update={"texts": one.texts.model_copy(update={"mean_ms": one.texts.mean_ms * 50})})
        for one in report.variants
    ]
    found = compare(report, changed(report.model_copy(update={"variants": slow}), INT8, digest="0" * 64))
    row = row_of(found, INT8, "latency per text, 1 thread")
    assert row.now == pytest.approx(50 * float(row.baseline or 0))
    assert row.verdict == "not_judged"
    assert "--baseline-models has both files timed in turns" in str(row.reason)
    assert found.passed


def test_two_real_files_are_timed_in_turns(gated: TinyLine, tmp_path: Path) -> None:
    """Which of two tiny files is faster is not asserted; that both ran at all lengths, as often, is."""
    fp32, int8 = (finished_model(gated.folder, Target("litert", scheme)) for scheme in ("fp32", "int8_dynamic"))
    settings = BenchmarkSection(lengths=(8, 20, 64), rounds=1)
    found = time_pair(fp32, int8, settings, log=tmp_path / "log", tell=lambda what, fraction: None)
    # 64 tokens are beyond what the files take, 32 is the longest.
    assert [one.seq_len for one in found] == [8, 20, 32]
    for one in found:
        assert one.before_ms > 0
        assert one.now_ms > 0
        assert 0 < one.growth.low <= one.growth.value <= one.growth.high


# --- the baseline ------------------------------------------------------------------------------------------------


def put(value: Any, *keys: str | int) -> Callable[[Path], str]:
    """Return what reads a report and gives its text with one value replaced or added."""

    def change(file: Path) -> str:
        document = json.loads(file.read_text(encoding="utf-8"))
        inner = document
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        return json.dumps(document)

    return change


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "baseline.json does not exist; name a report.json"),
        ("folder", "baseline.json has no report.json, nor has a folder report in it"),
        ("", "is no readable report"),
        ("not JSON", "is no readable report"),
        ("[1, 2]", "is no readable report"),
        ('{"schema_version": 1}', "is no readable report"),
        (lambda file: file.read_text(encoding="utf-8")[:5000], "is no readable report"),
        (put(3, "schema_version"), "of schema 3, and this version reads 2; it is newer"),
        (put(1, "schema_version"), "of schema 1, and this version reads 2; make it"),
        (put("much", "targets"), "targets: Input should be a valid"),
        (put(1, "surprise"), "surprise: Extra inputs are not permitted"),
        (put([], "targets"), "holds no target"),
        (put("other", "recipe", "name"), "is of recipe other, and tiny is asked for"),
        (put("regression", "student", "task"), "is of task regression, and embedding"),
        (put("me/other", "student", "origin"), "is of student me/other"),
    ],
)
def test_a_baseline_that_cannot_be_one_is_refused_in_a_sentence(
    gated: TinyLine, tmp_path: Path, command_here: Pocketbert, content: Any, says: str
) -> None:
    file = tmp_path / "baseline.json"
    if content == "folder":
        file.mkdir()
    elif content is not None:
        text = content if isinstance(content, str) else content(gated.folder / "report" / "report.json")
        file.write_text(text, encoding="utf-8")
    outcome = command_here("gate", gated.recipe, "--build", gated.build, "--baseline", file)
    assert outcome.rc == 2, outcome.stdout + outcome.stderr
    said = " ".join(outcome.stderr.split())
    assert says in said
    assert "Traceback" not in said


def test_another_commit_of_the_same_student_is_the_same_student(report: Report) -> None:
    at = [report.student.model_copy(update={"origin": f"me/model@{digit * 40}"}) for digit in "ab"]
    stored.check_student(report.model_copy(update={"student": at[0]}), Path("report.json"), at[1])
    other = at[0].model_copy(update={"origin": "me/models"})
    with pytest.raises(InputError, match="is of student me/model, and the recipe has me/models now"):
        stored.check_student(report.model_copy(update={"student": at[0]}), Path("report.json"), other)


def test_the_baseline_s_files_are_those_of_its_report(gated: TinyLine, report: Report, tmp_path: Path) -> None:
    file = Path("report.json")
    assert set(stored.open_models(gated.folder, report, file)) == {FP32, INT8, "executorch-fp32"}
    with pytest.raises(InputError, match=r"--baseline-models .*gone does not exist; name a folder with TARGET/model"):
        stored.open_models(tmp_path / "gone", report, file)
    with pytest.raises(InputError, match=f"holds none of {FP32}, {INT8}"):
        stored.open_models(tmp_path, report, file)
    shutil.copytree(gated.folder / FP32 / "model", tmp_path / INT8 / "model")
    with pytest.raises(InputError, match=r"model has the digest .* report\.json is of .*: another file"):
        stored.open_models(tmp_path, report, file)
    swapped = tmp_path / "swapped"
    shutil.copytree(gated.folder / FP32 / "model", swapped / FP32 / "model")
    tokenizer = swapped / FP32 / "model" / "tokenizer.json"
    tokenizer.chmod(0o644)
    tokenizer.write_text(tokenizer.read_text(encoding="utf-8") + " ", encoding="utf-8")
    with pytest.raises(ArtifactError, match="was changed after it was made"):
        stored.open_models(swapped, report, file)


def test_a_cosine_is_bounded_only_where_there_is_one(tmp_path: Path) -> None:
    values = {
        "name": "tiny",
        "task": "classification",
        "student": {"source": "bundled:all-MiniLM-L6-v2"},
        "targets": {"litert": {"schemes": ["fp32"]}},
    }
    assert loading.checked(values | {"regression": {"max_sqnr_drop_db": 3}}, tmp_path).regression.max_sqnr_drop_db == 3
    with pytest.raises(
        RecipeError, match=r"regression\.max_cosine_drop: task classification gives logits, which has no"
    ):
        loading.checked(values | {"regression": {"max_cosine_drop": 0.1}}, tmp_path)


# --- the command -------------------------------------------------------------------------------------------------


@pytest.fixture
def line(gated: TinyLine, tmp_path: Path) -> TinyLine:
    return gated.copy(tmp_path / "line")


def test_the_command_opens_for_what_is_the_same_and_closes_for_what_is_worse(
    line: TinyLine, tmp_path: Path, command_here: Pocketbert
) -> None:
    own = line.folder / "report" / "report.json"
    given = ("gate", line.recipe, "--build", line.build)
    outcome = command_here(*given, "--baseline", own, "--baseline-models", line.folder)
    assert outcome.rc == 0, outcome.stdout + outcome.stderr
    assert "WORSE" not in outcome.stdout
    assert "-0.0" not in outcome.stdout.replace("-0.01", "").replace("-0.005", "")
    assert f"tiny against {own}:" in outcome.stdout
    smaller = tmp_path / "smaller.json"
    smaller.write_text(put(1000, "targets", 1, "parity", "file_bytes")(own), encoding="utf-8")
    outcome = command_here(*given, "--baseline", smaller)
    assert outcome.rc == 1
    assert outcome.stdout.count("WORSE") == 1
    outcome = command_here(*given, "--baseline", smaller, "--json")
    assert outcome.rc == 1
    assert outcome.document["exit"] == 1
    assert not outcome.document["passed"]
    (row,) = [row for row in outcome.document["rows"] if row["verdict"] == "worse"]
    assert (row["target"], row["quantity"], row["baseline"]) == (INT8, "size", 1000)
    Gate.model_validate({key: value for key, value in outcome.document.items() if key not in ("exit", "baseline")})


def test_counted_instructions_reach_the_report_and_close_the_gate(line: TinyLine, command_here: Pocketbert) -> None:
    model = finished_model(line.folder, Target("litert", "int8_dynamic"))
    given = ("gate", line.recipe, "--build", line.build, "--baseline", line.recipe.parent / "baseline.json")
    own = line.folder / "report" / "report.json"

    def count(instructions: dict[int, int], digest: str = model.digest) -> None:
        record = counted_record([RECORDED.model_copy(update={"instructions": instructions})], digest)
        (line.folder / INT8 / emulated.RECORD).write_text(record.model_dump_json(), encoding="utf-8")

    count({8: 1_000_000, 32: 2_000_000})
    outcome = command_here("report", line.recipe, "--build", line.build, "--json")
    assert [step["name"] for step in outcome.document["steps"] if step["made"]] == ["report"]
    first = stored.read(own)
    assert [one.instructions is None for one in first.targets] == [True, False, True]
    for name in ("index.html", "RESULTS.md"):
        text = (own.parent / name).read_text(encoding="utf-8")
        assert "Instructions per inference, counted on emulated processors; not a latency" in text
        assert "2.00" in text
    shutil.copy(own, line.recipe.parent / "baseline.json")
    assert command_here(*given).rc == 0
    # The record alone changed: the report is made again, and the gate closes.
    count({8: 1_000_000, 32: 2_100_000})
    outcome = command_here(*given, "--json")
    assert outcome.rc == 1
    (row,) = [row for row in outcome.document["rows"] if row["verdict"] == "worse"]
    assert row["quantity"] == "instructions, cortex-a76, 32 tokens"
    assert row["change"] == pytest.approx(0.05)
    # What was counted of another file says nothing of this one.
    count({8: 1_000_000, 32: 2_000_000}, digest="0" * 64)
    outcome = command_here(*given)
    assert outcome.rc == 1
    assert "so the gate is closed" in outcome.stdout
    assert "Instructions per inference" not in (own.parent / "index.html").read_text(encoding="utf-8")
    assert command_here(*given, "--allow-missing").rc == 0
    (line.folder / INT8 / emulated.RECORD).write_text('{"schema_version": 1', encoding="utf-8")
    outcome = command_here(*given)
    assert outcome.rc == 1
    assert "emulated.json cannot be read" in " ".join(outcome.stdout.split())


@pytest.mark.full
def test_another_file_is_timed_in_turns_with_the_baseline_s(
    gated: TinyLine, line: TinyLine, command_here: Pocketbert
) -> None:
    """A file of other lengths is another file; the two targets that the recipe loses close the gate."""
    values = tomllib.loads(line.recipe.read_text(encoding="utf-8"))
    values |= {"targets": {"litert": {"schemes": ["fp32"]}}, "convert": {"sequence_lengths": [16, 32]}}
    # So wide that no machine's speed decides this test.
    values |= {"regression": {"max_latency_growth": 1000}}
    line.recipe.write_text(tomli_w.dumps(values), encoding="utf-8")
    given = ("gate", line.recipe, "--build", line.build, "--json")
    outcome = command_here(
        *given, "--baseline", gated.folder / "report" / "report.json", "--baseline-models", gated.folder
    )
    assert outcome.rc == 1, outcome.stdout + outcome.stderr
    rows = outcome.document["rows"]
    assert {row["target"] for row in rows if row["verdict"] == "worse"} == {INT8, "executorch-fp32"}
    timed = [row for row in rows if row["quantity"].startswith("latency")]
    assert [row["quantity"] for row in timed] == ["latency, 8 tokens", "latency, 32 tokens"]
    for row in timed:
        assert row["verdict"] == "same"
        low, high = row["interval"]
        assert low <= row["change"] <= high
        assert row["allowed"] == 1000


# --- the example -------------------------------------------------------------------------------------------------


def test_the_example_workflow_is_yaml_and_its_commands_exist() -> None:
    import yaml  # type: ignore[import-untyped]  # comes with transformers

    found = yaml.safe_load((REPOSITORY / "docs" / "examples" / "gate.yml").read_text(encoding="utf-8"))
    steps = [step for job in found["jobs"].values() for step in job["steps"]]
    assert all(("uses" in step) != ("run" in step) for step in steps)
    lines = [line for step in steps for line in step.get("run", "").splitlines()]
    forms = [form for line in lines for form in commands.forms(line)]
    known = [form for row in commands.read() for form in row.forms()]
    ours = [form for form in forms if form.program.startswith(("make", "pocketbert", "python"))]
    assert {"make setup", "pocketbert run", "pocketbert gate"} == {form.program for form in ours}
    assert {"--baseline", "--baseline-models"} in [form.options for form in ours]
    assert not [str(form) for form in ours if not any(one.covers(form) for one in known)]
