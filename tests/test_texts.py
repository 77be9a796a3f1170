"""The shipped texts stay varied, unique, balanced and safe to edit."""

import json
import unicodedata
from collections import Counter
from pathlib import Path

import pytest

TEXTS = Path(__file__).parent.parent / "pipeline" / "text" / "texts"

ENGLISH_WORDS = {"short": (3, 15), "medium": (16, 40), "long": (60, 110), "truncated": (130, 400)}
KINDS = {
    *ENGLISH_WORDS,
    *("word", "script", "accent", "punctuation", "code", "emoji", "unicode", "case", "number"),
}
SCRIPTS = {
    *("LATIN", "GREEK", "CYRILLIC", "ARABIC", "HEBREW", "DEVANAGARI", "THAI", "CJK"),
    *("HIRAGANA", "KATAKANA", "HANGUL", "GEORGIAN"),
}
FILES = {
    "sentences": (240, ["id", "kind", "text"]),
    "pairs": (60, ["id", "first", "second"]),
    "graded_pairs": (120, ["id", "first", "second", "score"]),
    "sentiment": (80, ["id", "text", "label"]),
    "calibration": (150, ["id", "kind", "text"]),
}


def raw(name: str) -> str:
    return (TEXTS / f"{name}.jsonl").read_bytes().decode("utf-8")


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in raw(name).rstrip("\n").split("\n")]


def word_count(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize("name", FILES)
def test_rows_are_enough_and_well_formed(name):
    minimum, keys = FILES[name]
    found = rows(name)
    assert len(found) >= minimum
    assert all(list(row) == keys for row in found)
    texts = [row[key] for row in found for key in ("text", "first", "second") if key in row]
    assert all(isinstance(text, str) and text.strip() for text in texts)


@pytest.mark.parametrize("name", FILES)
def test_ids_are_sorted_and_texts_unique(name):
    found = rows(name)
    ids = [row["id"] for row in found]
    assert ids == sorted(set(ids))
    texts = [row["text"] if "text" in row else (row["first"], row["second"]) for row in found]
    assert [text for text, count in Counter(texts).items() if count > 1] == []


@pytest.mark.parametrize("name", FILES)
def test_invisible_characters_are_escaped(name):
    """An editor that normalises or strips them would silently change the inputs."""
    text = raw(name).replace("\n", "")
    invisible = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Co", "Zl", "Zp")}
    spaces = {c for c in text if unicodedata.category(c) == "Zs" and c != " "}
    combining = {c for c in text if "\u0300" <= c <= "\u036f"}
    assert invisible | spaces | combining == set()


def test_sentence_kinds_are_known_and_all_used():
    assert {row["kind"] for row in rows("sentences")} == KINDS


def test_texts_for_calibration_are_of_every_kind_but_english_and_verification_has_none_of_them():
    found = rows("calibration")
    assert {row["kind"] for row in found} == KINDS - ENGLISH_WORDS.keys()
    scripts = {unicodedata.name(letter, "?").split()[0] for row in found for letter in row["text"]}
    assert scripts >= SCRIPTS
    seen = {row[key] for name in FILES if name != "calibration" for row in rows(name) for key in row if key != "id"}
    assert not [row["text"] for row in found if row["text"] in seen]


def test_most_sentences_are_everyday_english():
    found = rows("sentences")
    english = [row for row in found if row["kind"] in ENGLISH_WORDS]
    assert len(english) >= 0.6 * len(found)
    for row in english:
        low, high = ENGLISH_WORDS[row["kind"]]
        assert low <= word_count(row["text"]) <= high, row["id"]


def test_enough_sentences_are_truncated_at_128_tokens():
    """A word is at least one token, so more than 128 words is more than 128 tokens."""
    assert sum(word_count(row["text"]) > 128 for row in rows("sentences")) >= 6


def test_enough_pairs_are_truncated_at_128_tokens():
    found = rows("pairs")
    assert sum(word_count(row["first"] + " " + row["second"]) > 128 for row in found) >= 6


def test_scripts_are_present():
    letters = {c for row in rows("sentences") for c in row["text"] if c.isalpha()}
    scripts = {unicodedata.name(c, "UNNAMED").split()[0] for c in letters}
    assert SCRIPTS - scripts == set()


def test_composed_and_decomposed_accents_are_present():
    texts = {row["text"] for row in rows("sentences")}
    decomposed = {text for text in texts if text != unicodedata.normalize("NFC", text)}
    assert any(unicodedata.normalize("NFC", text) in texts for text in decomposed)


def test_scores_are_half_steps_spread_over_the_range():
    scores = [row["score"] for row in rows("graded_pairs")]
    assert all(0 <= score <= 5 and (2 * score).is_integer() for score in scores)
    per_bin = Counter(int(score) for score in scores)
    assert all(per_bin[whole] >= 12 for whole in range(6)), per_bin


def test_sentiment_labels_are_balanced():
    labels = Counter(row["label"] for row in rows("sentiment"))
    assert set(labels) == {0, 1}
    assert labels[0] == labels[1]
