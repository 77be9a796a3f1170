"""A sample of `make mutations`: damaged files end no process but their own, and a flipped bit is seen or harmless."""

from collections.abc import Callable, Iterator
from functools import cache

import pytest
from faults.students import few
from mutations import judging, loading
from mutations.bench import JUDGED, LOADED, Bench
from mutations.mutation import KINDS, flip, mutation
from mutations.subject import Subject
from warm import session

from pipeline import formats

SEED = 20
FILES, FLIPPED = 16, 3


NAMES = [pytest.param(name, marks=pytest.mark.full if name == "executorch" else ()) for name in formats.NAMES]
"""ExecuTorch's file takes longest to make."""


@pytest.fixture(scope="module")
def bench() -> Iterator[tuple[Bench, Callable[[str], Subject]]]:
    """Workers, and a format's clean file, made when it is asked for."""
    bench = Bench(SEED, FILES, lambda text: None)
    with bench.at_work(session().start) as pool:

        @cache
        def subject(name: str) -> Subject:
            return bench.subjects(pool, (name,), few())[0]

        yield bench, subject


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_file_ends_no_process_but_its_own(name: str, bench: tuple[Bench, Callable[[str], Subject]]) -> None:
    at_work, subject = bench
    results = [at_work.one(LOADED, subject(name), number) for number in range(FILES)]
    assert {result.kind for result in results} == set(KINDS)
    assert {result.outcome for result in results} <= set(loading.OUTCOMES)
    # Neither readers nor runtimes take everything.
    assert {result.outcome for result in results} & {loading.REFUSED, loading.BY_RUNTIME}


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
