"""A multilingual vocabulary, trimmed to languages: XLM-R's tokenizer under a `bert` encoder, an eighth of its size."""

import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from apps.tokenizers import full_size
from pydantic import ValidationError
from test_vocabulary import KINDS, folder_of, hidden_of, make, source_of
from tokenizer_references import project_texts
from tokenizers import Tokenizer
from tokenizers.models import Unigram

from pipeline.checkpoint.files import read_json
from pipeline.compress import vocabulary
from pipeline.compress.vocabulary.stage import prompts_of
from pipeline.errors import RecipeError
from pipeline.recipe.compression import VocabularySection
from pipeline.text import tokenizers, writing

PIECES = 30_522
"""Rows of the random student's table."""
MIXED = (
    "Das Wetter ist heute schön, oder?",
    "Съешь ещё этих мягких французских булок.",
    "iPhone 15 за 99 € — très bien!",
    "Wait… 3 × 4 = 12 😀",
)
"""Latin and Cyrillic, digits and signs; none of the words is in a corpus of these tests."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random `bert` student with XLM-R's kind of tokenizer; its config has 0 for padding, as the published ones."""
    place = folder_of(KINDS["wordpiece"], tmp_path_factory.mktemp("multilingual") / "source")
    full_size.make(project_texts(), pieces=PIECES).save(str(place / "tokenizer.json"))
    return place


def tokens(folder: Path, text: str) -> list[str]:
    """Return a text's tokens, the unknown one by its name and not by what it stands for."""
    tokenizer = tokenizers.load_tokenizer(folder)
    return [str(tokenizer.id_to_token(number)) for number in tokenizer.encode(text).ids]


def test_any_text_in_the_scripts_of_the_languages_keeps_its_tokens(folder: Path, tmp_path: Path) -> None:
    metrics = make(folder, tmp_path / "out", (), languages=["de", "ru"])
    assert metrics["pieces"] < 0.9 * PIECES == 0.9 * metrics["pieces_before"]
    assert metrics["languages"] == ["de", "ru"]
    assert "texts_changed" not in metrics
    for text in MIXED:
        assert tokens(tmp_path / "out", text) == tokens(folder, text)
    assert "<unk>" in tokens(tmp_path / "out", "สวัสดี")
    assert "<unk>" not in tokens(folder, "สวัสดี")
    assert hidden_of(tmp_path / "out", MIXED[0]).equal(hidden_of(folder, MIXED[0]))
    config, trimmed = read_json(tmp_path / "out" / "config.json"), tokenizers.load_tokenizer(tmp_path / "out")
    assert (config["pad_token_id"], config["vocab_size"]) == (0, metrics["pieces"])
    ids = [trimmed.token_to_id(token) for token in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")]
    assert ids == [0, 1, 2, 3, metrics["pieces"] - 1]


def test_room_that_the_corpus_leaves_goes_to_the_languages_scripts(folder: Path, tmp_path: Path) -> None:
    corpus, size = (MIXED[1],), 1400
    make(folder, tmp_path / "any", corpus, size=size)
    make(folder, tmp_path / "out", corpus, size=size, languages=["uk"])
    kept, anything = (tokenizers.load_tokenizer(tmp_path / name).get_vocab() for name in ("out", "any"))
    assert len(kept) == len(anything) == size
    foreign = {token for token in kept if re.search("[\u0e00-\u0e7f\u4e00-\u9fff]", token)}
    assert not foreign
    assert any(re.search("[\u0e00-\u0e7f\u4e00-\u9fff]", token) for token in anything)
    assert tokens(tmp_path / "out", MIXED[1]) == tokens(folder, MIXED[1])
    every = {token for token in tokenizers.load_tokenizer(folder).get_vocab() if len(token) == 1}
    letters = writing.characters(every, ["uk"], shared=False) | {
        token for token in every if token.isascii() and token.isalpha()
    }
    assert letters <= kept.keys()
    # Words of other languages with these letters are spelled, and none becomes unknown.
    assert "<unk>" not in tokens(tmp_path / "out", "щось про iPhone")


def test_ids_are_the_old_ones_by_their_new_numbers(folder: Path, tmp_path: Path) -> None:
    """What the conformance kit compares in both cores: the reference's own ids of the trimmed tokenizer."""
    texts = tuple(text for text in project_texts() if text)
    metrics = make(folder, tmp_path / "out", texts, languages=["en", "de"])
    assert (metrics["tokens_kept"], metrics["texts_changed"], metrics["tokens_ratio"]) == (True, 0, 1)
    old, new = (Tokenizer.from_file(str(place / "tokenizer.json")) for place in (folder, tmp_path / "out"))
    ids = {old.token_to_id(token): number for token, number in new.get_vocab().items()}
    assert all([ids[number] for number in old.encode(text).ids] == new.encode(text).ids for text in texts)


def test_prompts_keep_their_tokens_though_no_text_has_them(folder: Path, tmp_path: Path) -> None:
    prompt, size = "Represent this zebra: ", 700
    corpus = MIXED[:1]
    make(folder, tmp_path / "out", corpus, (prompt,), size=size)
    make(folder, tmp_path / "without", corpus, size=size)
    assert tokens(tmp_path / "out", prompt + MIXED[0]) == tokens(folder, prompt + MIXED[0])
    assert tokens(tmp_path / "without", prompt) != tokens(folder, prompt)


def test_the_prompts_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    place = folder_of(KINDS["wordpiece"], tmp_path / "source")
    assert prompts_of(source_of(place), "embedding") == ()
    settings = {"prompts": {"query": "query: ", "nothing": ""}, "default_prompt_name": None}
    (place / "config_sentence_transformers.json").write_text(json.dumps(settings))
    assert prompts_of(source_of(place), "embedding") == ("query: ",)
    assert prompts_of(source_of(place), "classification") == ()


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (
            "wordpiece",
            {"languages": ["de", "xx", "english"]},
            "languages: english, xx is not known here; known are af, am",
        ),
        ("byte_bpe", {"languages": ["de"]}, "tokens of .* are bytes, whose script cannot be told"),
        ("wordpiece", {"languages": list(writing.LANGUAGES)}, None),
    ],
)
def test_languages_that_cannot_be_are_refused(
    kind: str, values: dict[str, Any], message: str | None, tmp_path: Path
) -> None:
    source = source_of(folder_of(KINDS[kind], tmp_path / "source"))
    section = VocabularySection.model_validate(values)
    if message is None:
        # BERT's [unused1] can be found in no text, so something is trimmed.
        vocabulary.check(section, source, ())
        return
    with pytest.raises(RecipeError, match=message):
        vocabulary.check(section, source, ())


def test_a_vocabulary_that_the_languages_need_whole_is_refused(tmp_path: Path) -> None:
    source = folder_of(KINDS["wordpiece"], tmp_path / "source")
    scored = [("<unk>", 0.0), ("a", -1.0), ("▁à", -2.0), ("▁é", -3.0)]
    Tokenizer(Unigram(scored, 0, False)).save(str(source / "tokenizer.json"))
    with pytest.raises(RecipeError, match="every token of source can be written in fr, de"):
        vocabulary.check(VocabularySection(languages=("fr", "de")), source_of(source), ())
    vocabulary.check(VocabularySection(languages=("ru",)), source_of(source), ())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "neither a corpus nor languages"),
        ({"languages": ["en"], "size": 40000}, "size and keep need a corpus"),
        ({"languages": ["en"], "keep": 0.5}, "size and keep need a corpus"),
        ({"languages": []}, "at least 1 item"),
    ],
)
def test_a_section_that_says_too_little_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        VocabularySection.model_validate(values)


def test_every_script_that_is_named_has_letters() -> None:
    every = [chr(code) for code in range(0x20000) if unicodedata.category(chr(code))[0] in "LMN"]
    for script, codes in writing.SCRIPTS.items():
        found = writing.characters(every, [codes.split()[0]], shared=False)
        assert len(found) > 40, script
        assert any(script.upper() in unicodedata.name(one, "") for one in found) or script == "Han"
    assert writing.characters("aäяあ漢한1,😀\u0301", ["ja"], shared=False) == {"あ", "漢"}
    assert writing.characters("aäя1,😀\u0301▁", ["de"], shared=True) == set("aä1,😀\u0301▁")
    assert len(writing.LANGUAGES) > 90
