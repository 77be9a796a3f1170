"""A sample of `make faults`: planted faults of every level are caught, in all formats, and their clean files pass."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from faults import catalogue, clean, line, run, table
from faults.line import BUILD
from faults.outcome import judge_fault
from faults.workers import WorkerPool
from store import only_run
from warm import session

from pipeline import formats
from pipeline.convert.stage import Target

SAMPLE = (
    ("rare_row_corrupted", Target("litert", "int8_dynamic")),
    ("channel_scale_doubled", Target("litert", "int8_dynamic")),
    ("accents_kept", Target("coreml", "fp32")),
    ("byte_flipped", Target("coreml", "fp32")),
    ("padded_on_the_left", Target("litert", "int8_dynamic")),
    ("temperature_off_2", Target("litert", "int8_dynamic")),
    ("golden_a_little_looser", Target("litert", "int8_dynamic")),
)
FULL = (
    ("input_range_of_another", Target("litert", "int8_static")),
    ("samples_are_one_object", Target("litert", "int8_dynamic")),
    ("rounded_anew", Target("litert", "int4_dynamic")),
    ("layers_swapped", Target("coreml", "int8_weight_only")),
    ("epsilon_of_torch", Target("coreml", "fp32")),
    ("pooled_over_pads", Target("coreml", "fp32")),
    ("relative_positions_turned", Target("litert", "int8_dynamic")),
    ("relative_positions_one_off", Target("executorch", "int8_dynamic")),
    ("relative_positions_of_last_head", Target("coreml", "fp16")),
    ("relative_positions_left_out", Target("litert", "fp32")),
)


@pytest.fixture(scope="module")
def worker_pool() -> Iterator[WorkerPool]:
    """Workers that convert and run. What was judged before by the same code is kept, as in `make faults`."""
    worker_pool = WorkerPool(BUILD / "logs", 1, session().start)
    with only_run(BUILD, waiting=lambda: None), worker_pool.at_work():
        yield worker_pool


@pytest.mark.parametrize(
    ("name", "target"), [*SAMPLE, *(pytest.param(*cell, marks=pytest.mark.full) for cell in FULL)], ids=str
)
def test_a_planted_fault_is_caught_and_its_clean_file_passes(
    name: str, target: Target, worker_pool: WorkerPool
) -> None:
    fault = catalogue.get(name)
    if fault.student.pieces == "wordpiece" and fault.student.random_weights:
        fault = replace(fault, student=replace(fault.student, pieces="few"))
    with worker_pool.take() as workers:
        opened = line.open_line(fault.student, workers)
        control = run.clean_cell(opened, target, workers)
        assert control.verdict == "passed", control.fired or control.stopped
        cell = run.faulty_cell(fault, opened, target, workers)
    caught = judge_fault(fault, {str(target): cell}, {str(target): control})[str(target)]
    assert caught.caught, caught.by


def test_the_sample_and_what_is_full_have_every_level() -> None:
    assert {catalogue.get(name).level for name, _ in SAMPLE + FULL} == {fault.level for fault in catalogue.FAULTS}


def test_faults_have_names_of_their_own_and_say_what_is_wrong() -> None:
    names = [fault.name for fault in catalogue.FAULTS]
    assert len(set(names)) == len(names) >= 40
    assert all(fault.what for fault in catalogue.FAULTS)


def test_every_fault_is_planted_in_every_format_or_says_why_not() -> None:
    for fault in catalogue.FAULTS:
        said = {key.partition("-")[0] for key in fault.not_for}
        assert set(fault.cells) | said >= set(formats.NAMES), fault.name


@pytest.mark.parametrize("group", catalogue.GROUPS)
def test_the_record_lists_the_catalogue_and_nothing_went_unseen(group: str) -> None:
    if group not in table.read():
        pytest.skip(f"`make faults --group {group}` has not been run to its end yet")
    record = table.read()[group]
    assert list(record["faults"]) == [fault.name for fault in catalogue.GROUPS[group]]
    assert all(caught == files for row in record["faults"].values() for caught, files in row.values())
    too_coarse = clean.TOO_COARSE.intersection(record["clean"])
    assert record["clean_passed"] == len(record["clean"]) - len(too_coarse)
    assert len(record["clean"]) >= 5 * len(clean.students(group))


def test_the_page_is_that_of_the_records() -> None:
    assert table.PAGE.read_text(encoding="utf-8").splitlines() == list(table.page(table.read()))
