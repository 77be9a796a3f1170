"""A sample of `make mutations`: damaged files end no process but their own, and a flipped bit is seen or harmless."""

from collections.abc import Iterator

import pytest
from mutations import judging, loading
from mutations.bench import CHECKED, JUDGED, UNCHECKED, Bench
from mutations.mutation import KINDS, flip, mutation
from mutations.subject import Subject

from pipeline import backends

SEED = 20
LOADED, FLIPPED = 16, 6


@pytest.fixture(scope="module")
def bench() -> Iterator[tuple[Bench, dict[str, Subject]]]:
    """Workers, and the clean files by format."""
    bench = Bench(SEED, LOADED, lambda text: None)
    with bench.at_work() as pool:
        yield bench, {subject.name: subject for subject in bench.subjects(pool, backends.NAMES)}


@pytest.mark.parametrize("name", backends.NAMES)
def test_damaged_files_are_refused_or_run(name: str, bench: tuple[Bench, dict[str, Subject]]) -> None:
    at_work, subjects = bench
    results = [at_work.one(CHECKED, subjects[name], number) for number in range(LOADED)]
    assert {result.kind for result in results} == set(KINDS)
    assert {result.outcome for result in results} <= {loading.REFUSED, loading.BY_RUNTIME, loading.RAN}
    assert loading.REFUSED in {result.outcome for result in results}


@pytest.mark.parametrize("name", backends.NAMES)
def test_a_flipped_bit_is_seen_or_harmless(name: str, bench: tuple[Bench, dict[str, Subject]]) -> None:
    at_work, subjects = bench
    results = [at_work.one(JUDGED, subjects[name], number) for number in range(FLIPPED)]
    assert judging.MISSED not in {result.outcome for result in results}, results
    assert {result.bit for result in results} <= set(range(8))


def test_a_mutation_is_the_same_each_time(bench: tuple[Bench, dict[str, Subject]]) -> None:
    for subject in bench[1].values():
        for draw in (mutation, flip):
            assert draw(subject, SEED, 3) == draw(subject, SEED, 3) != draw(subject, SEED + 1, 3)


def test_a_file_that_crashes_ends_its_fork_alone(bench: tuple[Bench, dict[str, Subject]]) -> None:
    """Without the check LiteRT follows an offset out of the file; what asked for it lives on."""
    at_work, subjects = bench
    subject = subjects["litert"]
    outcomes = [at_work.one(UNCHECKED, subject, number).outcome for number in range(LOADED)]
    assert set(outcomes) <= set(loading.OUTCOMES)
    assert at_work.one(CHECKED, subject, 0).outcome in loading.OUTCOMES
