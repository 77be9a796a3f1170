"""A sample of `make mutations`: damaged files end no process but their own, and a flipped bit is seen or harmless."""

from collections.abc import Callable, Iterator
from functools import cache

import pytest
from faults.students import few
from mutations import judging, loading
from mutations.bench import CHECKED, JUDGED, UNCHECKED, Bench
from mutations.mutation import KINDS, flip, mutation
from mutations.subject import Subject
from warm import session

from pipeline import formats

SEED = 20
LOADED, FLIPPED = 16, 6


NAMES = [pytest.param(name, marks=pytest.mark.full if name == "executorch" else ()) for name in formats.NAMES]
"""ExecuTorch's file takes longest to make; `test_bounds` damages it too."""


@pytest.fixture(scope="module")
def bench() -> Iterator[tuple[Bench, Callable[[str], Subject]]]:
    """Workers, and a format's clean file, made when it is asked for."""
    bench = Bench(SEED, LOADED, lambda text: None)
    with bench.at_work(session().start) as pool:

        @cache
        def subject(name: str) -> Subject:
            return bench.subjects(pool, (name,), few())[0]

        yield bench, subject


@pytest.mark.parametrize("name", NAMES)
def test_damaged_files_are_refused_or_run(name: str, bench: tuple[Bench, Callable[[str], Subject]]) -> None:
    at_work, subject = bench
    results = [at_work.one(CHECKED, subject(name), number) for number in range(LOADED)]
    assert {result.kind for result in results} == set(KINDS)
    assert {result.outcome for result in results} <= {loading.REFUSED, loading.BY_RUNTIME, loading.RAN}
    assert loading.REFUSED in {result.outcome for result in results}


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_is_seen_or_harmless(name: str, bench: tuple[Bench, Callable[[str], Subject]]) -> None:
    at_work, subject = bench
    results = [at_work.one(JUDGED, subject(name), number) for number in range(FLIPPED)]
    assert judging.MISSED not in {result.outcome for result in results}, results
    assert {result.bit for result in results} <= set(range(8))


@pytest.mark.parametrize("name", NAMES)
def test_a_mutation_is_the_same_each_time(name: str, bench: tuple[Bench, Callable[[str], Subject]]) -> None:
    clean = bench[1](name)
    for draw in (mutation, flip):
        assert draw(clean, SEED, 3) == draw(clean, SEED, 3) != draw(clean, SEED + 1, 3)


def test_a_file_that_crashes_ends_its_fork_alone(bench: tuple[Bench, Callable[[str], Subject]]) -> None:
    """Without the check LiteRT follows an offset out of the file; what asked for it lives on."""
    at_work, subject = bench
    clean = subject("litert")
    outcomes = [at_work.one(UNCHECKED, clean, number).outcome for number in range(LOADED)]
    assert set(outcomes) <= set(loading.OUTCOMES)
    assert at_work.one(CHECKED, clean, 0).outcome in loading.OUTCOMES
