"""Each family of tokenizer files against a plain implementation of its published algorithm."""

import csv
import functools
import json
import re
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from conftest import write_student
from pieces import bundled_folder
from tokenizer_references import (
    Family,
    albert_family,
    albert_text,
    bpe_family,
    data_file,
    project_texts,
    train_sentencepiece,
    wordpiece_family,
    xlm_roberta_family,
)
from tokenizers import Tokenizer

from pipeline.checkpoint import source as student
from pipeline.errors import StudentError
from pipeline.student import stage as student_stage
from pipeline.text import published
from pipeline.text.encoding import Encoder
from pipeline.text.tokenizers import check_size, find, load_tokenizer, without_special_tokens

BERT_VOCABULARY = ("vocab", "bert-base-uncased-vocab.txt")
ALBERT_MODEL = ("vocab", "albert-spiece.model")

NUMBERS = (
    "\ufe52 1,000 2,000 12,345 1,500 in 1999, 2010, and 2010,5 20,000, (3,000) 1,0 8,5% 64,000 1,299% of 1,270,000",
)


def symbols_model(folder: Path) -> Path:
    """Train a small model in ALBERT's manner: its symbols, its order of the first ids, pieces of digits with commas."""
    folder.mkdir(parents=True)
    return train_sentencepiece(
        folder / "small.model",
        [albert_text(text) for text in [*project_texts(), *NUMBERS] * 2],
        vocab_size=1500,
        **{"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]},
        user_defined_symbols=["(", ")", '"', "-", ".", "–", "£", "€"],
    )


def bundled_vocabulary() -> Path:
    return bundled_folder() / "vocab.txt"


FAMILIES: dict[str, Callable[[Path], Family]] = {
    "wordpiece": lambda folder: wordpiece_family(folder, bundled_vocabulary()),
    "wordpiece-cased": lambda folder: wordpiece_family(folder, bundled_vocabulary(), lower=False),
    "wordpiece-cased-stripped": lambda folder: wordpiece_family(folder, bundled_vocabulary(), lower=False, strip=True),
    "wordpiece-accents": lambda folder: wordpiece_family(folder, bundled_vocabulary(), strip=False),
    "wordpiece-whole-chinese": lambda folder: wordpiece_family(folder, bundled_vocabulary(), chinese=False),
    "wordpiece-real": lambda folder: wordpiece_family(folder, data_file(*BERT_VOCABULARY)),
    "albert": lambda folder: albert_family(folder, symbols_model(folder.parent / "trained")),
    "albert-real": lambda folder: albert_family(folder, data_file(*ALBERT_MODEL)),
    "albert-real-cased": lambda folder: albert_family(folder, data_file(*ALBERT_MODEL), lower=False, keep_accents=True),
    "xlm-roberta": xlm_roberta_family,
    "roberta": bpe_family,
}


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Family, Tokenizer]]:
    made: dict[str, tuple[Family, Tokenizer]] = {}

    def get(name: str) -> tuple[Family, Tokenizer]:
        if name not in made:
            found = FAMILIES[name](tmp_path_factory.mktemp(name) / "student")
            made[name] = found, load_tokenizer(found.folder)
        return made[name]

    return get


def plain_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def scores(tokenizer: Tokenizer) -> list[float]:
    model = json.loads(tokenizer.to_str())["model"]
    return [score for _, score in model["vocab"]] if model["type"] == "Unigram" else []


def untied(tokenizer: Tokenizer, reference: Family, texts: list[str]) -> list[str]:
    """Leave out the texts whose two cuts score alike to within single precision, in which sentencepiece adds up."""
    known, left = scores(tokenizer), []
    for text in texts:
        cuts = plain_ids(tokenizer, text), reference.ids(text)
        sums = [sum(known[index] for index in ids) if known else 0.0 for ids in cuts]
        if not known or abs(sums[0] - sums[1]) > 2e-7 * abs(sums[0]) * len(cuts[0]):
            left.append(text)
    return left


@pytest.mark.parametrize("name", FAMILIES)
def test_ids_are_the_references(name, family):
    reference, tokenizer = family(name)
    texts = [*project_texts(), *NUMBERS]
    wrong = [text for text in texts if plain_ids(tokenizer, text) != reference.ids(text)]
    assert untied(tokenizer, reference, wrong) == []
    assert len(wrong) <= 3


@pytest.mark.parametrize("name", FAMILIES)
def test_frames_of_one_text_and_of_a_pair(name, family):
    reference, tokenizer = family(name)
    texts = project_texts()[:200]
    for first, second in zip(texts, reversed(texts), strict=True):
        a, b = plain_ids(tokenizer, first), plain_ids(tokenizer, second)
        single, both = tokenizer.encode(first), tokenizer.encode(first, second)
        assert (single.ids, set(single.type_ids)) == (reference.single(a), {0})
        assert (both.ids, both.type_ids) == reference.pair(a, b)


def longest_first(a: list[int], b: list[int], room: int) -> tuple[list[int], list[int]]:
    """Cut the longer one; of the odd token that is left, the longer text has it, and the second of two equal ones."""
    if len(a) + len(b) <= room:
        return a, b
    if len(a) > len(b):
        second, first = longest_first(b, a, room)
        return first, second
    keep = max(room // 2, room - len(b)) if len(a) > room // 2 else len(a)
    return a[:keep], b[: room - keep]


@pytest.mark.parametrize("name", ["wordpiece", "albert", "xlm-roberta", "roberta"])
@pytest.mark.parametrize("length", [8, 13, 32])
def test_truncation_cuts_the_longer_text_on_the_right(name, length, family):
    reference, tokenizer = family(name)
    encoder = Encoder(Tokenizer.from_str(tokenizer.to_str()), length)
    texts = project_texts()[:120]
    for first, second in zip(texts, reversed(texts), strict=True):
        a, b = plain_ids(tokenizer, first), plain_ids(tokenizer, second)
        assert list(encoder.encode(first).ids) == reference.single(a[: length - 2])
        added = len(reference.pair([], [])[0])
        row = encoder.encode(first, second)
        assert (list(row.ids), list(row.types)) == reference.pair(*longest_first(a, b, length - added))


# --- every character ------------------------------------------------------------------------------------------------


@functools.cache
def characters(step: int) -> list[str]:
    assigned = (chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF)
    return [c for place, c in enumerate(assigned) if place % step == 0 and unicodedata.category(c) not in ("Cn", "Co")]


@functools.cache
def composed() -> set[str]:
    return {"\u0344"} | {c for c in characters(1) if _newer_than_the_library(c)}


@pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", ["wordpiece", "wordpiece-cased", "albert", "albert-real", "roberta", "xlm-roberta"])
def test_every_character_in_a_word_and_alone(name, step, family):
    reference, tokenizer = family(name)
    # WordPiece: the category is another one than in Unicode 8. Others: the library's NFKD and NFKC are those of Unicode
    # 12, and U+0344 is two marks in one.
    newer = {"\u166d", "\u1734", "\U000111c9"} if "wordpiece" in name else composed()
    assert len(newer) < 90
    wrong = [
        text
        for character in characters(step)
        if character not in newer
        for text in (character, f"a{character}b")
        if plain_ids(tokenizer, text) != reference.ids(text)
    ]
    assert wrong == []


def _newer_than_the_library(character: str) -> bool:
    from tokenizers import normalizers

    return normalizers.NFKD().normalize_str(character) != unicodedata.normalize("NFKD", character)


# --- all the real text that is at hand ------------------------------------------------------------------------------


def real_texts() -> list[str]:
    """STS-B, XQuAD, WNUT 2017, War and Peace, WikiText-2."""
    texts: list[str] = []
    for split in ("train", "dev"):
        with data_file("stsb", f"{split}.csv").open(encoding="utf-8", newline="") as file:
            texts += [text for row in csv.reader(file) for text in row[:2]]
        sentences = data_file("wnut17", f"{split}.conll").read_text(encoding="utf-8").split("\n\n")
        texts += [" ".join(line.split("\t")[0] for line in sentence.splitlines()) for sentence in sentences]
    for article in json.loads(data_file("xquad", "dev.json").read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            texts += [paragraph["context"], *(question["question"] for question in paragraph["qas"])]
    for name in ("war-and-peace", "wikitext2-valid"):
        texts += data_file("lm", f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return list(dict.fromkeys(text for text in texts if text.strip()))


@pytest.mark.full
@pytest.mark.parametrize("name", ["wordpiece-real", "albert-real", "roberta", "xlm-roberta"])
def test_all_real_texts(name, family):
    reference, tokenizer = family(name)
    texts = real_texts()
    wrong = [text for text in texts if plain_ids(tokenizer, text) != reference.ids(text)]
    assert untied(tokenizer, reference, wrong) == []
    assert len(wrong) < len(texts) / 500


# --- what a folder may hold -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ((), "has no tokenizer"),
        (("vocab.json",), "vocab.json without merges.txt"),
        (("merges.txt",), "merges.txt without vocab.json"),
        (("vocab.txt", "spiece.model"), "several tokenizers"),
        (("tokenizer_config.json",), "has no tokenizer"),
    ],
)
def test_a_set_that_is_not_whole(files, words, tmp_path):
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(StudentError, match=words):
        find(tmp_path)


def put(name: str, content: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_text(content, encoding="utf-8")


BROKEN: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "no such special token": ("wordpiece", put("tokenizer_config.json", '{"sep_token": "<eos>"}'), "token '<eos>'"),
    "case in words": ("wordpiece", put("tokenizer_config.json", '{"do_lower_case": "yes"}'), "true or false"),
    "settings cut off": ("wordpiece", put("tokenizer_config.json", "{"), "cannot be read as JSON"),
    "cased and silent": (
        "wordpiece",
        lambda f: (
            put("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nParis")(f),
            put("tokenizer_config.json", "{}")(f),
        ),
        "has capital letters \\('Paris'\\)",
    ),
    "an added token elsewhere": (
        "wordpiece",
        put("tokenizer_config.json", '{"added_tokens_decoder": {"77777": {"content": "<new>"}}}'),
        "gets id 30522, not 77777",
    ),
    "no SentencePiece model": ("albert", put("spiece.model", "not a model"), "is not a SentencePiece model"),
    "merges of nothing": ("roberta", put("merges.txt", "#version: 0.2\nnot-a a-merge\n"), "does not load"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_tokenizer_is_refused_in_one_line(name, tmp_path, family):
    base, change, words = BROKEN[name]
    folder = Path(shutil.copytree(family(base)[0].folder, tmp_path / "student"))
    change(folder)
    with pytest.raises(StudentError, match=words) as caught:
        load_tokenizer(folder)
    assert "\n" not in str(caught.value)


def test_sentencepiece_bpe_is_refused(tmp_path):
    model = train_sentencepiece(tmp_path / "spiece.model", project_texts(), vocab_size=900, model_type="bpe")
    assert model.is_file()
    with pytest.raises(StudentError, match="not a unigram model"):
        load_tokenizer(tmp_path)


def test_files_that_contradict_each_other(tmp_path):
    shutil.copyfile(bundled_folder() / "tokenizer.json", tmp_path / "tokenizer.json")
    assert plain_ids(load_tokenizer(tmp_path), "Hello") == plain_ids(load_tokenizer(bundled_folder()), "hello")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    with pytest.raises(StudentError, match=r"do_lower_case is False, tokenizer\.json does the opposite"):
        load_tokenizer(tmp_path)


def test_vocab_txt_alone_gives_the_bundled_tokenizer(family):
    shipped, made = load_tokenizer(bundled_folder()), family("wordpiece")[1]
    texts = [text for text in project_texts() if text.isascii()]
    assert [shipped.encode(text).ids for text in texts] == [made.encode(text).ids for text in texts]


def test_an_added_token_is_found(tmp_path, family):
    folder = Path(shutil.copytree(family("wordpiece")[0].folder, tmp_path / "student"))
    (folder / "added_tokens.json").write_text('{"<new>": 30522}')
    tokenizer = load_tokenizer(folder)
    assert plain_ids(tokenizer, "a <new> token")[1] == 30522
    check_size(tokenizer, folder, vocab_size=30523)
    with pytest.raises(StudentError, match="'<new>' with id 30522 has no row"):
        check_size(tokenizer, folder, vocab_size=30522)


def test_the_real_albert_model_has_the_symbols_that_need_care():
    model = sentencepiece.SentencePieceProcessor(model_file=str(data_file(*ALBERT_MODEL)))
    assert model.encode('"a second-hand (piano)', out_type=str)[:6] == ["▁", '"', "a", "▁second", "-", "hand"]


@pytest.mark.toolchain
@pytest.mark.parametrize("name", ["wordpiece", "albert", "xlm-roberta", "roberta"])
def test_the_student_ships_tokenizer_json(name, tmp_path, family):
    """Whatever the files were, `tokenizer.json` comes out and gives the reference's ids; the others travel along."""
    reference, _ = family(name)
    folder = write_student(tmp_path / "student", "bert", "embedding", vocab_size=30522)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).unlink(missing_ok=True)
    shutil.copytree(reference.folder, folder, dirs_exist_ok=True)
    source = student.inspect_folder(folder, origin="test", licence=None)
    names = [file for file in find(folder) if file in source.files]
    assert tuple(names) == find(folder)
    (tmp_path / "out").mkdir()
    student_stage.make(folder, "embedding", False, tmp_path / "out")
    encoder = Encoder.from_folder(tmp_path / "out", 64)
    for text in ("a second-hand piano, 1,000 (ok)", "", "Café ΟΔΟΣ 👩\u200d👧"):
        assert list(encoder.encode(text).ids) == reference.single(reference.ids(text))
    assert all((tmp_path / "out" / file).is_file() for file in names)


# --- published vocabularies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wordpiece", "albert-real"])
def test_published_ids_are_those_of_the_reference_code(name, family):
    reference, tokenizer = family(name)
    known = json.loads(published.FILE.read_text(encoding="utf-8"))[published.vocabulary_digest(tokenizer)]
    assert len(known["rows"]) >= 20
    for row in known["rows"]:
        assert row["ids"] == reference.single(reference.ids(row["text"])), row["text"]
    assert published.check(tokenizer, reference.folder) == known["name"]
    bare = without_special_tokens(Tokenizer.from_str(tokenizer.to_str()))
    assert published.check(bare, reference.folder, special_tokens=False) == known["name"]
    with pytest.raises(StudentError, match="instead of"):
        published.check(bare, reference.folder)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wordpiece-cased", "has the vocabulary of bert-base-uncased and gives 'Thanks!'"),
        ("wordpiece-accents", "gives 'Crème brûlée"),
        ("wordpiece-whole-chinese", "instead of"),
        ("albert-real-cased", "has the vocabulary of albert-base-v2"),
    ],
)
def test_a_published_vocabulary_with_other_ids_is_refused(name, words, family):
    reference, tokenizer = family(name)
    with pytest.raises(StudentError, match=re.escape(words)):
        published.check(tokenizer, reference.folder)


@pytest.mark.toolchain
def test_the_student_stage_asks_for_published_ids_where_a_source_says_what_it_is(tmp_path, family):
    reference, _ = family("wordpiece-cased")
    folder = write_student(tmp_path / "student", "bert", "embedding", vocab_size=30522)
    (folder / "tokenizer.json").unlink()
    shutil.copytree(reference.folder, folder, dirs_exist_ok=True)
    for says_what_it_is in (False, True):
        out = tmp_path / str(says_what_it_is)
        out.mkdir()
        if says_what_it_is:
            with pytest.raises(StudentError, match="name the checkpoint by its folder"):
                student_stage.make(folder, "embedding", True, out)
        else:
            assert student_stage.make(folder, "embedding", False, out)["published_vocabulary"] is None


def test_an_unknown_vocabulary_has_no_published_ids(family):
    reference, tokenizer = family("roberta")
    assert published.check(tokenizer, reference.folder) is None
