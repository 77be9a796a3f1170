"""Rows without holes: every length that a file takes and every id of its vocabulary occur, and nothing else does."""

from itertools import pairwise

import pytest

from pipeline.formats.signature import Function, Signature, Tensor
from pipeline.verify import probes
from pipeline.verify.probes import Probes, Vocabulary

PADDING = 3


def signature(*bounds: tuple[int, int]) -> Signature:
    """A file with functions for these shortest and longest lengths."""
    tensors = {name: Tensor(name=name, dtype="int32", shape=(1, None)) for name in ("input_ids", "attention_mask")}
    functions = tuple(
        Function(name=f"f{low}", min_length=low, max_length=high, inputs=tuple(tensors.values()), outputs=())
        for low, high in bounds
    )
    return Signature(
        backend="executorch",
        scheme="fp32",
        task="embedding",
        output_kind="embedding",
        file="model.pte",
        minimum_runtime="1.0",
        pad_token_id=PADDING,
        labels=None,
        functions=functions,
        parameters=1,
    )


def made(
    size: int, *bounds: tuple[int, int], thorough: bool = False, types: int = 2, padding: int | None = PADDING
) -> Probes:
    vocabulary = Vocabulary(size, types, padding, first=(1,), last=(2,))
    return probes.make(signature(*bounds), vocabulary, thorough=thorough)


FIXED, FREE = ((16, 16), (40, 40)), ((3, 40),)


@pytest.mark.parametrize("bounds", [FIXED, FREE])
def test_every_id_and_every_number_of_tokens_occur(bounds):
    found = made(500, *bounds)
    rows = [*found.of_lengths, *found.of_ids]
    assert {one for probe in rows for one in probe.row.ids} == set(range(500)) - {PADDING}
    assert found.ids == 499
    assert {len(probe.row) for probe in found.of_lengths} == set(range(1, 41))
    assert all(len(probe.row) <= probe.length <= 40 for probe in rows)


def test_ids_are_dealt_out_over_all_lengths_full_and_padded():
    found = made(5000, *FIXED).of_ids
    assert {(len(probe.row), probe.length) for probe in found} == {(16, 16), (15, 16), (40, 40), (39, 40)}
    assert {(len(probe.row), probe.length) for probe in made(5000, *FREE).of_ids} == {(40, 40), (39, 40)}


def test_padding_is_an_id_as_others_are_where_a_model_does_not_tell_it_apart():
    found = made(500, *FIXED, padding=None)
    assert {one for probe in (*found.of_lengths, *found.of_ids) for one in probe.row.ids} == set(range(500))


def test_rows_stand_at_and_just_below_every_fixed_length_and_nearly_empty_ones_too():
    found = {(len(probe.row), probe.length) for probe in made(500, *FIXED).of_lengths}
    assert found >= {(16, 16), (15, 16), (3, 16), (40, 40), (39, 40), (3, 40)}
    assert {length for _, length in found} == {16, 40}


def test_a_free_length_runs_every_row_at_its_own():
    assert {(len(probe.row), probe.length) for probe in made(500, *FREE).of_lengths} >= {
        *((count, max(count, 3)) for count in range(1, 41)),
        (3, 40),
    }


def test_rows_have_a_text_s_frame_and_segments_that_rise():
    for probe in made(500, *FREE, types=3).of_lengths:
        row = probe.row
        assert len(row) < 3 or (row.ids[0], row.ids[-1]) == (1, 2)
        assert set(row.types) <= {0, 1, 2}
        assert all(one <= other for one, other in pairwise(row.types))
    assert {kind for probe in made(500, *FREE, types=1).of_lengths for kind in probe.row.types} == {0}


def test_of_a_large_vocabulary_a_choice_with_both_ends_is_tried_and_all_of_it_on_demand():
    some, every = made(40_000, *FREE), made(40_000, *FREE, thorough=True)
    assert some.ids == 8_192 < every.ids == 39_999
    tried = {one for probe in (*some.of_lengths, *some.of_ids) for one in probe.row.ids}
    assert {0, 39_999} <= tried


def test_long_files_are_tried_at_every_length_only_on_demand():
    counts = {len(probe.row) for probe in made(500, (3, 512)).of_lengths}
    assert counts >= {*range(1, 129), 511, 512}
    assert len(counts) < 160
    assert {len(probe.row) for probe in made(500, (3, 512), thorough=True).of_lengths} == set(range(1, 513))


def test_the_same_file_gets_the_same_rows():
    assert made(500, *FIXED) == made(500, *FIXED)
