"""Windows over a long passage and offsets, against a plain implementation and against the text itself."""

import functools
import itertools
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from pieces import bundled_folder
from test_tokenization import symbols_model
from tokenizer_references import (
    TRAPS,
    Family,
    albert_family,
    bpe_family,
    project_texts,
    wordpiece_family,
    xlm_roberta_family,
)

from pipeline.errors import InputError
from pipeline.text.encoding import Encoder, Window
from pipeline.text.tokenizers import load_tokenizer

FAMILIES: dict[str, Callable[[Path], Family]] = {
    "wordpiece": lambda folder: wordpiece_family(folder, bundled_folder() / "vocab.txt"),
    "albert": lambda folder: albert_family(folder, symbols_model(folder.parent / "trained")),
    "xlm-roberta": xlm_roberta_family,
    "roberta": bpe_family,
}

QUESTION = "Where did the crème brûlée come from?"
PASSAGE = " ".join(
    text for text in [*project_texts()[:60], *TRAPS] if not any(mark in text for mark in ("[MASK]", "<mask>", "\uff1c"))
)


@pytest.fixture(scope="module", params=FAMILIES)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Family, Callable[[int], Encoder]]:
    family = FAMILIES[request.param](tmp_path_factory.mktemp(request.param) / "student")
    return family, functools.cache(lambda length: Encoder(load_tokenizer(family.folder), length))


def plain_windows(
    family: Family, question: str, passage: str, length: int, stride: int
) -> list[tuple[list, list, slice]]:
    """run_squad's loop: take what fits, go on behind it less the stride, stop when the end is in."""
    first, second = family.ids(question), family.ids(passage)
    room = length - len(family.pair(first, [])[0])
    windows, start = [], 0
    while True:
        end = min(start + room, len(second))
        windows.append((*family.pair(first, second[start:end]), slice(start, end)))
        if end == len(second):
            return windows
        start += room - stride


@pytest.mark.parametrize(("length", "stride"), [(64, 0), (64, 16), (48, 20), (384, 128), (4096, 128)])
def test_windows_are_run_squads(length, stride, made):
    family, encoder = made
    expected = plain_windows(family, QUESTION, PASSAGE, length, stride)
    found = encoder(length).windows(QUESTION, PASSAGE, stride=stride)
    assert [(list(window.row.ids), list(window.row.types)) for window in found] == [row[:2] for row in expected]
    whole = whole_offsets(encoder)
    # The last token of a window does not know the next one, so an accent behind it may be taken in there alone.
    for window, (_, _, part) in zip(found, expected, strict=True):
        assert [start for start, _ in passage_offsets(window)] == [start for start, _ in whole[part]]
        assert passage_offsets(window)[:-1] == whole[part][:-1]


@functools.cache
def whole_offsets(encoder: Callable[[int], Encoder]) -> list[tuple[int, int]]:
    """Return the offsets of the passage in one window that holds it all."""
    return passage_offsets(encoder(100_000).windows(QUESTION, PASSAGE, stride=0)[0])


def passage_offsets(window: Window) -> list[tuple[int, int]]:
    return [span for span in window.offsets if span is not None]


def test_offsets_are_none_outside_the_passage(made):
    family, encoder = made
    window = encoder(64).windows(QUESTION, "One short passage.", stride=8)[0]
    inside = [index for index, span in enumerate(window.offsets) if span is not None]
    frame = len(family.pair(family.ids(QUESTION), [])[0]) - 1
    assert inside == list(range(frame, frame + len(family.ids("One short passage."))))


@pytest.mark.parametrize(
    ("passage", "answer"),
    [
        ("She ordered the crème brûlée there.", "crème brûlée"),
        ("She ordered the cre\u0300me bru\u0302le\u0301e there.", "cre\u0300me bru\u0302le\u0301e"),
        ("The family 👩\u200d👩\u200d👧 met Zoë in İzmir 🇫🇷 today.", "Zoë"),
        ("In İstanbul, ΟΔΟΣ is a word; Ångström\u00a0too.", "ΟΔΟΣ"),
        ("\ufeff \t A\u200bcafe\u0301\n(second-hand, 1,000 £5).", "second-hand, 1,000 £5"),
        ("Er kam nach Zu\u0308rich.", "Zu\u0308rich"),
    ],
)
def test_an_answer_is_cut_out_of_the_passage_as_it_was_given(passage, answer, made):
    """The tokens that touch an answer span it exactly: no accent lost at its end, no space before it."""
    _, encoder = made
    for sequence in ("second", "first"):
        if sequence == "second":
            spans = passage_offsets(encoder(128).windows("Where?", passage, stride=0)[0])
        else:
            spans = encoder(128).encode_with_offsets(passage)[1][1:-1]
        at = passage.index(answer)
        touching = [span for span in spans if span[0] < at + len(answer) and span[1] > at]
        assert passage[touching[0][0] : touching[-1][1]] == answer


def test_offsets_of_real_texts_cover_every_letter_once_and_in_order(made):
    _, encoder = made
    for text in (text for text in project_texts() if text.isascii() and text.isprintable() and "[" not in text):
        row, spans = encoder(4096).encode_with_offsets(text)
        assert row == encoder(4096).encode(text)
        assert len(spans) == len(row)
        assert spans[0] == spans[-1] == (0, 0)
        covered = [index for start, end in spans for index in range(start, end)]
        assert covered == sorted(set(covered))
        letters = {index for index, character in enumerate(text) if not character.isspace()}
        assert set(covered) == letters - {index for index in letters - set(covered) if text[index] in "`'"}


def test_offsets_of_traps_lie_inside_the_text_and_never_go_back(made):
    _, encoder = made
    for first in TRAPS:
        for text in (first, first + "\ud800 end"):
            row, spans = encoder(4096).encode_with_offsets(text)
            assert row == encoder(4096).encode(text)
            inside = spans[1:-1]
            assert all(0 <= start <= end <= len(text) for start, end in inside)
            assert all(before[0] <= after[0] for before, after in itertools.pairwise(inside))
            assert not any(text[start].isspace() or text[end - 1].isspace() for start, end in inside if start < end)


def test_an_empty_passage_gives_one_window(made):
    family, encoder = made
    (window,) = encoder(64).windows(QUESTION, "", stride=8)
    assert list(window.row.ids) == family.pair(family.ids(QUESTION), [])[0]
    assert passage_offsets(window) == []


def test_a_question_without_room_for_a_passage(made):
    family, encoder = made
    frame = len(family.pair(family.ids(QUESTION), [])[0])
    with pytest.raises(
        InputError, match=f"the question has {len(family.ids(QUESTION))} tokens; a row of {frame} has no room"
    ):
        encoder(frame).windows(QUESTION, PASSAGE, stride=0)
    assert len(encoder(frame + 1).windows(QUESTION, "One short passage.", stride=0)) == len(
        family.ids("One short passage.")
    )
    for stride in (4, -1):
        with pytest.raises(InputError, match="takes 4 tokens of a passage, so it has to be 0 to 3"):
            encoder(frame + 4).windows(QUESTION, PASSAGE, stride=stride)


def test_windows_leave_the_encoder_as_it_was(made):
    _, encoder = made
    before = encoder(32).encode(PASSAGE, PASSAGE)
    encoder(32).windows("Where?", PASSAGE, stride=4)
    with pytest.raises(InputError):
        encoder(32).windows(PASSAGE, PASSAGE, stride=4)
    assert encoder(32).encode(PASSAGE, PASSAGE) == before
    assert len(before) == 32


def test_the_traps_hold_what_they_are_meant_to():
    assert any(unicodedata.combining(character) for character in PASSAGE)
    assert "\u200d" in PASSAGE
