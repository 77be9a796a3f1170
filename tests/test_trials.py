"""Tables of compression: rows become records and pages, go on after a kill, and bounds fire both ways."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trials_tiny
from conftest import REPOSITORY, environment
from test_sentences import MEAN, MODULES, modules, put
from warm import session

from benchmarks import (
    ablation_page,
    ablation_rows,
    compression_page,
    compression_rows,
    compression_speed,
    objectives,
    trials,
    trials_command,
    trials_record,
    trials_scores,
)
from benchmarks.pruned_speed_record import Row as SpeedRow
from benchmarks.pruned_speed_record import Speed
from benchmarks.trials import Bound, Row, Table, Trial
from benchmarks.trials_record import File, Metric, Record
from pipeline import artifact
from pipeline.benchmark.paired import Ratio
from pipeline.benchmark.record import BenchmarkRecord, ModelInfo
from pipeline.checkpoint import source
from pipeline.checkpoint.weights import WEIGHTS
from pipeline.compress.distil import stage as distil
from pipeline.devices import host
from pipeline.errors import InputError
from pipeline.metrics import scoring
from pipeline.metrics.outputs import RowOutputs
from pipeline.metrics.scoring import Labels
from pipeline.student import stage as student_stage
from pipeline.text.bundled import verification_texts

TABLES = {"compression": compression_rows.TABLE, "ablation": ablation_rows.TABLE, "objectives": objectives.TABLE}
EXAMPLES = 872


# --- a tiny table, whole ------------------------------------------------------------------------------------------


def command(table: Table, *given: str) -> list[str]:
    return [sys.executable, str(REPOSITORY / "tests" / "trials_tiny.py"), str(table.pages), table.student, *given]


def killed(arguments: Sequence[str], until: Callable[[], bool], log: Path) -> None:
    """Run a command and kill it with all its workers as soon as something is there."""
    with log.open("wb") as sink:
        process = subprocess.Popen(
            arguments, env=environment(), start_new_session=True, stdout=sink, stderr=subprocess.STDOUT
        )
    deadline = time.monotonic() + 240
    while not until():
        assert process.poll() is None, f"it ended before it could be killed: {log.read_text(encoding='utf-8')}"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, tiny_student: Callable[..., Path]) -> Table:
    """A table of which one row was carried out by its command."""
    root = tmp_path_factory.mktemp("table")
    texts = sorted({text.first.replace("\n", " ") for text in verification_texts()})
    trials_tiny.write_texts(root, texts)
    student = Path(shutil.copytree(tiny_student("bert", "embedding"), root / "student"))
    put(student, modules(*MODULES), {"1_Pooling/config.json": MEAN})
    table = trials_tiny.table(root, student)
    with pytest.MonkeyPatch.context() as patch, session().lent(patch):
        assert trials_command.main(table, trials_tiny.page, None, ["--only", "whole"]) == 0
    return table


def found(table: Table, name: str, seed: int = 0) -> Record:
    """Return a record that has to be there."""
    record, state = trials_record.read(table, Trial(table.row(name), seed))
    assert state == "there"
    assert record is not None
    return record


def metric_of(record: Record) -> Metric:
    assert record.metric is not None
    return record.metric


def cells(table: Table, name: str) -> str:
    return next(line for line in trials_tiny.page(table) if line.startswith(f"| `{name}` |"))


def test_a_row_ends_in_a_record(tiny: Table) -> None:
    record = found(tiny, "whole")
    assert [stage.name for stage in record.stages] == ["student", "reference"]
    assert record.compute_fraction == 1.0
    assert record.parameters == artifact.load(tiny.folder / "whole-0" / "student").manifest.metrics["parameters"]
    known = artifact.load(tiny.folder / "whole-0" / "reference-32").manifest.metrics["datasets"]["graded_pairs"]
    assert (metric_of(record).value, metric_of(record).rows) == (known["spearman"], known["rows"])
    assert metric_of(record).resampled().shape == (1000,)
    assert str(tiny.pages) not in trials_record.place(tiny, Trial(trials_tiny.WHOLE, 0)).read_text()


def test_a_row_is_judged_in_search_too(tiny: Table) -> None:
    record = found(tiny, "whole")
    queries = len((tiny.pages / "beir" / "queries.jsonl").read_text(encoding="utf-8").splitlines())
    first, tenth = record.retrieval
    assert [first.metric, tenth.metric] == ["recall_at_1", "recall_at_10"]
    assert first.rows == tenth.rows == queries
    assert 0 < first.value < tenth.value < 1
    assert first.resampled().mean() == pytest.approx(first.value, abs=0.01)
    assert f"| {100 * first.value:.2f} [" in cells(tiny, "whole")
    assert f"| {100 * tenth.value:.2f} [" in cells(tiny, "whole")


def test_the_page_has_the_row_and_says_what_was_not_run(tiny: Table) -> None:
    lines = (tiny.pages / "TINY.md").read_text(encoding="utf-8").splitlines()
    whole, pruned = cells(tiny, "whole"), cells(tiny, "pruned")
    assert whole in lines
    assert f" {100 * metric_of(found(tiny, 'whole')).value:.2f} [" in whole
    assert "not measured" in whole
    assert pruned.endswith(f"{'| not run ' * 6}| `whole` | ≤ 100 lost | not run |")
    assert "Of 5 trials 1 have a record" in " ".join(lines)
    assert "Not made yet: files." in lines


def test_what_has_a_record_is_not_made_again_and_the_page_computes_nothing(tiny: Table) -> None:
    page = tiny.pages / "TINY.md"
    before = page.read_text(encoding="utf-8")
    page.unlink()
    assert trials_command.main(tiny, trials_tiny.page, None, ["--page"]) == 0
    assert page.read_text(encoding="utf-8") == before
    moved = dataclasses.replace(tiny, build=tiny.build.parent / "elsewhere")
    assert trials_command.main(moved, trials_tiny.page, None, ["--only", "whole"]) == 0
    assert not moved.folder.exists()


def test_a_record_of_other_settings_is_stale(tiny: Table, capsys: pytest.CaptureFixture[str]) -> None:
    other = dataclasses.replace(tiny, lengths={"embedding": (16, 64)})
    assert trials_record.read(other, Trial(trials_tiny.WHOLE, 0)) == (None, "stale")
    assert "| stale |" in cells(other, "whole")
    assert trials_command.main(other, trials_tiny.page, None, ["--list", "--only", "whole"]) == 0
    assert "stale" in capsys.readouterr().out


def test_a_record_of_older_code_is_shown_and_marked(
    tiny: Table, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, value = cells(tiny, "whole"), metric_of(found(tiny, "whole")).value
    monkeypatch.setattr(student_stage, "VERSION", -1)
    old, state = trials_record.read(tiny, Trial(trials_tiny.WHOLE, 0))
    assert (state, old) == ("older", trials_record.of_row(tiny, trials_tiny.WHOLE)[0])
    assert "†" not in before
    assert re.search(rf"\| {100 * value:.2f} \[[^|]*\] † \|", cells(tiny, "whole"))
    assert "1 one of the same settings by older code, marked †" in " ".join(trials_tiny.page(tiny))
    assert trials_command.main(tiny, trials_tiny.page, None, ["--list", "--only", "whole"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "older code: student" in shown
    assert "about 0.0 hours" not in shown


def test_a_bundled_student_that_a_row_does_not_use_is_not_in_its_key(
    real: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(real.row("stsb-half"), 0)
    before = trials.key(real, trial), trials.settings(real, trial)
    for name, changes in (("minilm-8mb", False), ("all-MiniLM-L6-v2", True)):
        with monkeypatch.context() as patch:
            bundled = source.BUNDLED[name]
            other = {**bundled.files, WEIGHTS: "0" * 64}
            patch.setitem(source.BUNDLED, name, dataclasses.replace(bundled, files=other))
            after = trials.key(real, trial), trials.settings(real, trial)
        assert [one != was for one, was in zip(after, before, strict=True)] == [changes, changes]


def test_what_a_row_is_made_of_is_in_its_key(tiny: Table) -> None:
    pruned = dataclasses.replace(trials_tiny.PRUNED, sections={"prune": {"compute": 0.7}})
    other = dataclasses.replace(tiny, rows=(trials_tiny.WHOLE, pruned, trials_tiny.LEARNT))
    learnt = Trial(trials_tiny.LEARNT, 0)
    assert trials.key(tiny, learnt) != trials.key(other, learnt)
    assert trials.key(tiny, Trial(trials_tiny.WHOLE, 0)) == trials.key(other, Trial(trials_tiny.WHOLE, 0))


def test_one_run_works_at_a_time(tiny: Table, capsys: pytest.CaptureFixture[str]) -> None:
    with trials_command._alone(tiny):
        assert trials_command.main(tiny, trials_tiny.page, None, ["--only", "learnt"]) == 2
    assert "another run works" in " ".join(capsys.readouterr().out.split())


def test_a_trial_waits_for_what_it_is_made_of_and_for_nothing_else(tiny: Table) -> None:
    todo = tiny.trials()
    names = [trial.name for trial in trials_command._ready(tiny, todo, [])]
    assert names == ["whole-0", "pruned-0", "files-0"]
    learnt = [trial for trial in todo if trial.row.name == "learnt"]
    assert trials_command._ready(tiny, learnt, [Trial(trials_tiny.PRUNED, 0)]) == []
    assert trials_command._ready(tiny, learnt, []) == learnt


@pytest.mark.full
def test_trials_side_by_side_end_in_the_same_records(tiny: Table, tmp_path: Path) -> None:
    shutil.copytree(tiny.pages / "beir", tmp_path / "beir")
    table = trials_tiny.table(tmp_path, Path(tiny.student))
    assert (
        trials_command.main(table, trials_tiny.page, None, ["--only", "whole", "--only", "pruned", "--jobs", "2"]) == 0
    )
    whole = found(table, "whole")
    assert [stage.name for stage in whole.stages] == ["student", "reference"]
    assert metric_of(whole).value == pytest.approx(metric_of(found(tiny, "whole")).value, abs=1e-6)
    assert [stage.name for stage in found(table, "pruned").stages] == ["prune", "student", "reference"]


@pytest.mark.full
def test_a_run_that_was_killed_goes_on_with_what_is_missing(tiny: Table, tmp_path: Path) -> None:
    shutil.copytree(tiny.pages / "beir", tmp_path / "beir")
    table = trials_tiny.table(tmp_path, Path(tiny.student))
    only = ("--only", "whole", "--only", "pruned")
    first = trials_record.place(table, Trial(trials_tiny.WHOLE, 0))
    killed(command(table, *only), first.is_file, tmp_path / "log")
    before = first.read_bytes(), first.stat().st_mtime_ns
    done = subprocess.run(command(table, *only), env=environment(), capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (first.read_bytes(), first.stat().st_mtime_ns) == before
    pruned = found(table, "pruned")
    assert pruned.compute_fraction is not None
    assert 0 < pruned.compute_fraction <= 0.6
    assert [stage.name for stage in pruned.stages] == ["prune", "student", "reference"]
    lost = 100 * (metric_of(found(table, "whole")).value - metric_of(pruned).value)
    assert f"| {lost:+.2f} [" in cells(table, "pruned")
    assert cells(table, "pruned").endswith("| yes |")


@pytest.mark.full
def test_a_training_that_was_killed_goes_on_where_it_was(tiny: Table, tmp_path: Path) -> None:
    folder, only = tiny.folder / "learnt-0", ("--only", "learnt", "--seed", "0")
    scratch = tiny.folder / "store" / ".scratch"
    killed(command(tiny, *only), lambda: any(scratch.glob("*/*/step-*")), tmp_path / "log")
    assert subprocess.run(command(tiny, *only), env=environment(), stdout=subprocess.DEVNULL).returncode == 0
    assert distil.read_record(folder / "distilled").resumed_at
    assert not any(scratch.glob("*"))
    (learnt,) = [stage for stage in found(tiny, "learnt").stages if stage.name == "distil"]
    assert learnt.updates == trials_tiny.LEARNT.sections["distil"]["steps"]
    assert "seed 1 not run" in cells(tiny, "learnt")


@pytest.mark.full
def test_a_row_with_files_has_their_verdicts(tiny: Table) -> None:
    assert trials_command.main(tiny, trials_tiny.page, None, ["--only", "files"]) == 0
    (file,) = found(tiny, "files").files
    assert (file.backend, file.verdict) == ("executorch", "passed"), file.reasons
    assert f"| — / — / {file.file_bytes / 1e6:.1f} | all passed |" in cells(tiny, "files")


# --- a failure, and bad input -------------------------------------------------------------------------------------


def test_what_is_made_of_a_failed_row_is_not_tried(
    tiny: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = trials_tiny.PRUNED.sections["prune"]
    broken = dataclasses.replace(trials_tiny.PRUNED, sections={"prune": {**settings, "compute": 0.001}})
    rows = (trials_tiny.WHOLE, broken, trials_tiny.LEARNT)
    table = dataclasses.replace(tiny, rows=rows, build=tmp_path / "build", records=tmp_path, pages=tmp_path)
    expected = ["--seed", "0", "--only", "pruned", "--only", "learnt"]
    assert trials_command.main(table, lambda table: iter(["page"]), None, expected) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "leaves no head" in said
    assert "learnt-0 failed: it is made of pruned-0, which failed" in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--only", "prunde"], "row 'prunde' does not exist; there are: whole, pruned"),
        (["--only", "whole", "--seed", "7"], "these rows have seeds 0"),
        (["--only", "whole", "--jobs", "0"], "--jobs 0: at least one trial"),
    ],
)
def test_what_cannot_be_carried_out_is_refused(
    given: list[str], said: str, tiny: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trials_command.main(tiny, trials_tiny.page, None, given) == 2
    assert said in " ".join(capsys.readouterr().out.split())


def test_a_row_that_makes_nothing_cannot_be_a_source(tiny: Table) -> None:
    of_nothing = dataclasses.replace(trials_tiny.LEARNT, source="whole")
    with pytest.raises(InputError, match="makes nothing of its student"):
        trials.parsed(dataclasses.replace(tiny, rows=(trials_tiny.WHOLE, of_nothing)), Trial(of_nothing, 0))


# --- figures ------------------------------------------------------------------------------------------------------


def outputs(seed: int, *, right: float) -> tuple[Labels, RowOutputs]:
    """Return labels of two classes and logits of which about such a share is right."""
    gold = np.random.default_rng(0).integers(0, 2, EXAMPLES)
    draw = np.random.default_rng(seed)
    said = np.where(draw.random(EXAMPLES) < right, gold, 1 - gold)
    values = [np.eye(2, dtype=np.float32)[one][None] for one in said]
    return Labels("sst2", list(range(EXAMPLES)), None, [float(one) for one in gold], "accuracy", []), RowOutputs.of(
        values
    )


def record(table: Table, row: Row, seed: int, *, right: float) -> Record:
    labels, given = outputs(100 * len(row.name) + seed, right=right)
    metric = Metric(
        dataset="sst2",
        data_sha256="x",
        metric="accuracy",
        rows=EXAMPLES,
        chance=0.5,
        value=scoring.score("logits", labels, given),
        resamples=trials_record.packed(trials_record.resample("logits", labels, given)),
    )
    made = Record(
        table=table.name,
        row=row.name,
        seed=seed,
        key=trials.key(table, Trial(row, seed)),
        settings=trials.settings(table, Trial(row, seed)),
        parameters=10_600_000,
        compute_fraction=0.5,
        metric=metric,
        stages=[],
        files=[],
        tools={},
        machine="a machine",
    )
    trials_record.write(table, Trial(row, seed), made)
    return made


@pytest.fixture
def real(tmp_path: Path) -> Table:
    """The compression table without any record."""
    return dataclasses.replace(compression_rows.TABLE, records=tmp_path, pages=tmp_path, build=tmp_path / "build")


def test_resamples_give_the_interval_that_verification_gives(real: Table) -> None:
    whole, half = real.row("sst2"), real.row("sst2-half")
    mine, theirs = record(real, half, 0, right=0.85), record(real, whole, 0, right=0.9)
    labels, reference = outputs(100 * len(whole.name), right=0.9)
    _, given = outputs(100 * len(half.name), right=0.85)
    low, high = scoring.interval_of_drop("logits", labels, reference, given)
    figure = trials_scores.lost({0: mine}, {0: theirs})
    assert figure is not None
    np.testing.assert_allclose([figure.low, figure.high], [100 * low, 100 * high], atol=1e-4)
    drop = scoring.score("logits", labels, reference) - scoring.score("logits", labels, given)
    assert figure.mean == pytest.approx(100 * drop)


def test_a_mean_over_seeds_pairs_each_with_its_own(real: Table) -> None:
    whole, half = real.row("sst2"), real.row("sst2-half")
    theirs = {seed: record(real, whole, seed, right=0.9) for seed in whole.seeds}
    mine = {seed: record(real, half, seed, right=0.85) for seed in half.seeds}
    each = [trials_scores.lost({seed: mine[seed]}, {seed: theirs[seed]}) for seed in half.seeds]
    together = trials_scores.lost(mine, theirs)
    assert together is not None
    means = [one.mean for one in each if one]
    assert together.mean == pytest.approx(np.mean(means))
    assert [together.least, together.most] == pytest.approx([min(means), max(means)])
    widths = [one.high - one.low for one in each if one]
    assert together.high - together.low < min(widths)
    # Seeds of which the other side has none are no pair; that of a row of one seed goes with all.
    assert trials_scores.lost(mine, {7: theirs[0], 8: theirs[1]}) is None
    few, all_ = (trials_scores.lost(mine, {0: theirs[0]}, single=single) for single in (False, True))
    assert few is not None
    assert all_ is not None
    assert (few.seeds, all_.seeds) == (1, 3)


def test_a_bound_is_not_judged_by_a_seed_of_another_row(real: Table) -> None:
    whole, half = real.row("sst2"), real.row("sst2-half")
    record(real, whole, 0, right=0.9)
    for seed in half.seeds:
        record(real, half, seed, right=0.9)
    assert trials_scores.holds(real, half) == "not run"
    for seed in whole.seeds[1:]:
        record(real, whole, seed, right=0.9)
    assert trials_scores.holds(real, half) == "yes"


def test_records_of_other_data_are_no_pair(real: Table) -> None:
    mine, theirs = record(real, real.row("sst2-half"), 0, right=0.85), record(real, real.row("sst2"), 0, right=0.9)
    assert theirs.metric is not None
    moved = theirs.model_copy(update={"metric": theirs.metric.model_copy(update={"data_sha256": "y"})})
    assert trials_scores.lost({0: mine}, {0: moved}) is None


@pytest.mark.parametrize(
    ("row", "share", "verdict"),
    [("sst2", 0.93, "yes"), ("sst2", 0.85, "no"), ("sst2-half", 0.93, "yes"), ("sst2-half", 0.8, "no")],
)
def test_a_bound_holds_or_not(row: str, share: float, verdict: str, real: Table) -> None:
    expected, whole = real.row(row), real.row("sst2")
    for seed in whole.seeds:
        record(real, whole, seed, right=0.92)
    for seed in expected.seeds[:2]:
        record(real, expected, seed, right=share)
    if expected != whole:
        assert trials_scores.holds(real, expected) == "not run"
    record(real, expected, expected.seeds[2], right=share)
    assert trials_scores.holds(real, expected) == verdict
    line = next(line for line in compression_page.page(real) if line.startswith(f"| `{row}` |"))
    assert line.endswith(f"| {verdict} |")


def test_a_loss_of_exactly_the_bound_holds(real: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = dataclasses.replace(real.row("sst2-half"), bound=Bound(100 * (0.9 - 0.893), "most_lost"), seeds=(0,))
    figure = trials_scores.Figure(0.7, 0.1, 1.3, 0.7, 0.7, 1)
    monkeypatch.setattr(trials_scores, "figures", lambda table, row: (None, figure))
    assert trials_scores.holds(real, expected) == "yes"


def test_a_macro_score_needs_every_task(real: Table) -> None:
    teacher = {0: record(real, real.row("cola"), 0, right=0.9)}
    half = {0: record(real, real.row("cola-half"), 0, right=0.81)}
    whole = trials_scores.macro([(teacher, half), (teacher, half)])
    assert whole is not None
    kept = 100 * metric_of(half[0]).value / metric_of(teacher[0]).value
    assert whole.kept == pytest.approx(kept)
    assert whole.low < kept < whole.high
    assert trials_scores.macro([(teacher, half), (teacher, {})]) is None
    assert any("a task lacks a record" in line for line in compression_page.page(real))


# --- speed --------------------------------------------------------------------------------------------------------


def timed(unpruned: str, pruned: str, digests: dict[str, str]) -> Speed:
    """Return a run in which the pruned LiteRT file is 1.9 × faster, of promised 2."""
    ratio = Ratio(value=1.9, low=1.8, high=2.0)
    length = compression_speed.LENGTH
    names: dict[str, Any] = {"recipe": pruned, "backend": "litert", "scheme": "int8_dynamic", "seq_len": length}
    row = SpeedRow(**names, unpruned_ms=3.8, ms=2.0, wall=ratio, cpu=ratio, promised=2.0)
    models = [
        ModelInfo(
            id=f"{name}-litert-int8_dynamic", file=None, sha256=digest, bytes=1, scheme="int8_dynamic", lengths=None
        )
        for name, digest in digests.items()
    ]
    # What is not read is left out.
    device = host.describe()
    records = [BenchmarkRecord.model_construct(model=model, device=device) for model in models]
    return Speed.model_construct(unpruned=unpruned, rounds=40, rows=[row], records=records)


def test_a_ratio_counts_for_the_files_that_were_recorded(real: Table) -> None:
    for name in ("stsb", "stsb-half"):
        made = record(real, real.row(name), 0, right=0.9)
        file = File(
            backend="litert",
            scheme="int8_dynamic",
            verdict="passed",
            reasons=[],
            file_bytes=12_300_000,
            digest=name,
            value=0.8,
        )
        trials_record.write(real, Trial(real.row(name), 0), made.model_copy(update={"files": [file]}))
    digests = {"stsb-0": "stsb", "stsb-half-0": "stsb-half"}
    row = real.row("stsb-half")
    assert compression_speed.faster(real, row, [timed("stsb-0", "stsb-half-0", digests)]) == "1.90 of 2.00, reached / —"
    for changed in digests:
        speed = timed("stsb-0", "stsb-half-0", digests | {changed: "another file"})
        assert compression_speed.faster(real, row, [speed]) == "stale / —"
    assert compression_speed.faster(real, real.row("stsb-1.4"), [speed]) == "not measured"
    line = next(line for line in compression_page.page(real) if line.startswith("| `stsb-half` |"))
    assert "| 12.3 / — / — | all passed | not measured |" in line


# --- the real tables ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_every_trial_is_a_recipe_after_what_it_is_made_of(name: str, tmp_path: Path) -> None:
    table = dataclasses.replace(TABLES[name], build=tmp_path)
    order = [trial.name for trial in table.trials()]
    assert len(set(order)) == len(order)
    for at, trial in enumerate(table.trials()):
        parsed, file = trials.write(table, trial)
        assert parsed == trials.parsed(table, trial)
        assert tomllib.loads(file.read_text(encoding="utf-8"))["name"] == trial.name
        assert all(order.index(parent.name) < at for parent in table.parents(trial))
        if trial.row.against:
            other = table.row(trial.row.against)
            assert other.dataset == trial.row.dataset
            assert len(other.seeds) == 1 or set(trial.row.seeds) <= set(other.seeds)


def test_a_recipe_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    table = dataclasses.replace(ablation_rows.TABLE, build=tmp_path)
    text = trials.write(table, Trial(table.row("triple"), 2))[1].read_text(encoding="utf-8")
    values = tomllib.loads(text)
    assert values["student"]["source"] == "../head-0/headed"
    assert values["start"]["seed"] == values["distil"]["seed"] == 2
    assert str(tmp_path) not in text


def test_pages_without_records_say_not_run_in_every_row(real: Table, tmp_path: Path) -> None:
    ablation = dataclasses.replace(ablation_rows.TABLE, records=tmp_path)
    learnt = dataclasses.replace(objectives.TABLE, records=tmp_path)
    pages = {
        "compression": compression_page.page(real),
        "ablation": ablation_page.page(ablation),
        "objectives": objectives.page(learnt),
    }
    for name, lines in pages.items():
        table = TABLES[name]
        text = list(lines)
        assert sum(line.count("not run") for line in text) >= len(list(table.judged()))
        assert not any(line.endswith("| yes |") for line in text)


@pytest.mark.parametrize(
    ("low", "mean", "published", "said"),
    [
        (0.5, 1.0, -0.31, "as published"),
        (0.5, 1.0, 0.1, "**disagrees**"),
        (-1.5, -1.0, -0.31, "**disagrees**"),
        (-0.5, 1.0, -0.31, "undecided"),
    ],
)
def test_directions_are_compared_only_beyond_the_interval(low: float, mean: float, published: float, said: str) -> None:
    figure = trials_scores.Figure(mean, low, mean + (mean - low), mean, mean, 3)
    assert ablation_page.direction(figure, published) == said
    assert ablation_page.direction(None, published) == "not run"


def test_a_difference_is_shown_with_the_published_sign(tmp_path: Path) -> None:
    table = dataclasses.replace(ablation_rows.TABLE, records=tmp_path)
    for name, share in (("triple-sst2", 0.9), ("random-sst2", 0.7)):
        for seed in table.row(name).seeds:
            record(table, table.row(name), seed, right=share)
    line = next(line for line in ablation_page.page(table) if line.startswith("| `random-sst2` | random start"))
    assert "| -3.69 | as published |" in line
    assert " -1" in line or " -2" in line


def test_a_record_that_cannot_be_read_is_said(real: Table, capsys: pytest.CaptureFixture[str]) -> None:
    path = trials_record.place(real, Trial(real.row("sst2"), 0))
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"row": "sst2"}), encoding="utf-8")
    assert trials_command.main(real, compression_page.page, None, ["--page"]) == 2
    assert "delete it and run its row again" in " ".join(capsys.readouterr().out.split())
