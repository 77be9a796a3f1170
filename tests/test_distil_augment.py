"""Copies of rows with words replaced: by what, where, how often, kept, and refused where nothing can know by what."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from faults import students
from faults.students import Student

from pipeline import tasks
from pipeline.checkpoint import source as student
from pipeline.compress.distil import augmentation, outputs, stage
from pipeline.compress.distil.dataset import find_data
from pipeline.compress.distil.models import DistilJob
from pipeline.data.datasets import Labelled
from pipeline.errors import PipelineError, StudentError
from pipeline.recipe.distillation import AugmentSection, DistilSection
from pipeline.text import tokenizers

CPU = torch.device("cpu")
TEXT = "The bandmaster's 3 films, however quietly, unquestionably moved me!"
"""Texts with words of one token and of several, with a number and punctuation."""


@pytest.fixture(scope="module")
def speaker(tiny_student: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose masked-LM head was not trained, but favours a few words wherever it is asked."""
    source = tiny_student("bert", "embedding")
    place = tmp_path_factory.mktemp("speaker") / "model"
    config = transformers.AutoConfig.from_pretrained(source)
    torch.manual_seed(3)
    model = transformers.AutoModelForMaskedLM.from_config(config)
    tokenizer = tokenizers.load_tokenizer(source)
    with torch.no_grad():
        for word in ("films", "house", "river", "moved", "the", "me", "however", "quietly"):
            model.cls.predictions.bias[tokenizer.token_to_id(word)] = 6.0
    model.save_pretrained(place)
    shutil.copyfile(source / "tokenizer.json", place / "tokenizer.json")
    return place


def finder(folder: Path, **settings: Any) -> augmentation.CandidateFinder:
    return augmentation.CandidateFinder(folder, AugmentSection(**settings), max_length=48, device=CPU)


def words_of(text: str) -> list[str]:
    return [match.group() for match in augmentation.WORD.finditer(text)]


def test_single_pieces_get_what_the_head_finds_likely_and_others_their_neighbours(speaker: Path) -> None:
    found = finder(speaker, candidates=4)
    (candidates,) = found.find([TEXT])
    by_word = {TEXT[start:stop]: words for (start, stop), words in candidates.items()}
    assert (
        list(by_word)
        == words_of(TEXT)
        == [*("The", "bandmaster's", "films", "however", "quietly", "unquestionably", "moved", "me")]
    )
    tokenizer = tokenizers.load_tokenizer(speaker)
    several = {word for word in by_word if len(tokenizer.encode(word, add_special_tokens=False).ids) > 1}
    assert several == {"bandmaster's", "unquestionably"}
    model = transformers.AutoModelForMaskedLM.from_pretrained(speaker).eval()
    for word, proposed in by_word.items():
        if word in several:
            expected = nearest(model, tokenizer, word, list(found.words))
        else:
            expected = likely(model, tokenizer, word, list(found.words))
        assert proposed == [one for one in expected if one != word.lower()][:4], word


def likely(model: Any, tokenizer: Any, word: str, allowed: list[int]) -> list[str]:
    """Return the head's best whole words with one word of the text masked."""
    ids = tokenizer.encode(TEXT).ids
    ids[ids.index(tokenizer.token_to_id(word.lower()))] = tokenizer.token_to_id("[MASK]")
    at = ids.index(tokenizer.token_to_id("[MASK]"))
    logits = model(input_ids=torch.tensor([ids])).logits[0, at].detach().numpy()
    return [tokenizer.id_to_token(number) for number in sorted(allowed, key=lambda one: -logits[one])[:8]]


def nearest(model: Any, tokenizer: Any, word: str, allowed: list[int]) -> list[str]:
    """Return the whole words nearest to the mean of a word's pieces, by cosine."""
    table = model.get_input_embeddings().weight.detach().numpy().astype(np.float64)
    mean = table[tokenizer.encode(word, add_special_tokens=False).ids].mean(0)
    cosines = table[allowed] @ mean / np.linalg.norm(table[allowed], axis=1)
    return [tokenizer.id_to_token(allowed[number]) for number in np.argsort(-cosines)[:8]]


@pytest.mark.parametrize(("architecture", "pieces"), [("bert", "wordpiece"), ("xlm-roberta", "unigram")])
def test_replacements_are_whole_words(architecture: str, pieces: str, tmp_path: Path) -> None:
    students.source(Student(architecture, pieces=pieces), tmp_path)
    tokenizer = tokenizers.load_tokenizer(tmp_path)
    found = augmentation.single_token_words(tokenizer)
    assert len(found) > 20
    for text in list(found.values())[:200]:
        assert augmentation.WORD.fullmatch(text)
        assert len(tokenizer.encode(f"a {text}", add_special_tokens=False).ids) == (
            1 + len(tokenizer.encode("a", add_special_tokens=False).ids)
        )


KNOWN: dict[str, augmentation.Candidates] = {
    "a b, c!": {(0, 1): ["x", "y"], (5, 6): ["z"]},
    "d": {(0, 1): ["u", "v", "w"]},
}


def test_copies_keep_label_and_what_is_around_words(seed: int) -> None:
    row = Labelled("a b, c!", "d", label=1.0)
    section = AugmentSection(copies=50, probability=0.5)
    found = augmentation.copies_of(row, KNOWN, section, np.random.default_rng(seed))
    assert row not in found
    assert len(set(found)) == len(found) > 10
    assert {one.label for one in found} == {1.0}
    assert all(re.fullmatch(r"[axy] b, [cz]!", one.first) for one in found)
    assert {one.second for one in found} == {"d", "u", "v", "w"}
    assert found == augmentation.copies_of(row, KNOWN, section, np.random.default_rng(seed))
    assert found != augmentation.copies_of(row, KNOWN, section, np.random.default_rng(seed + 1))


def test_the_probability_is_that_of_each_word(seed: int) -> None:
    text = " ".join(["a"] * 2000)
    known: dict[str, augmentation.Candidates] = {text: {(2 * n, 2 * n + 1): ["x"] for n in range(2000)}}
    for probability in (0.0, 0.4, 1.0):
        section = AugmentSection(copies=1, probability=probability)
        found = augmentation.copies_of(Labelled(text, None), known, section, np.random.default_rng(seed))
        share = found[0].first.count("x") / 2000 if found else 0.0
        assert share == pytest.approx(probability, abs=0.04)


# --- in a distillation --------------------------------------------------------------------------------------------


@pytest.fixture
def lesson(tmp_path: Path, speaker: Path, tiny_student: Callable[..., Path]) -> Callable[..., DistilJob]:
    def make(augmented: dict[str, Any], **settings: Any) -> DistilJob:
        (tmp_path / "plain.txt").write_text(f"{TEXT}\nThe house by the river\n")
        values = {"losses": {"sentence_mse": 1.0}, "texts": ("plain.txt",), "max_length": 32, "steps": 2} | settings
        section = DistilSection.model_validate(values | {"augment": {"copies": 3} | augmented})
        pair = tiny_student("bert", "embedding"), speaker
        unpruned = student.inspect_folder(speaker, origin="speaker", licence=None)
        found = find_data(section, tasks.get("embedding"), unpruned, tmp_path / "recipe.toml")
        return stage.job(*pair, "embedding", section, found, tmp_path / "checkpoints")

    return make


def test_copies_are_learnt_on_counted_and_found_once(
    lesson: Callable[..., DistilJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    due = lesson({"single_pieces": "neighbours"})
    _, record = stage.distil(due)
    assert record.augmented_rows == 6
    assert record.rows == 8
    assert record.settings["augment"] == {
        "copies": 3,
        "probability": 0.4,
        "candidates": 15,
        "single_pieces": "neighbours",
    }
    (file,) = due.cache.glob("candidates-*/*.jsonl")
    assert len([json.loads(line) for line in file.read_text().splitlines()]) == 2

    def never(*given: Any, **named: Any) -> None:
        raise AssertionError("the model runs once")

    monkeypatch.setattr(augmentation, "CandidateFinder", never)
    _, again = stage.distil(due)
    assert again.curve == record.curve


class Stop(Exception):
    """Something that ends a run in its middle."""


@pytest.mark.parametrize("what", ["candidates", "teacher"])
def test_long_preparation_goes_on_behind_its_last_whole_part(
    what: str, lesson: Callable[..., DistilJob], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(augmentation, "_TEXTS_OF_SHARD", 1)
    monkeypatch.setattr(outputs, "_ROWS_OF_SHARD", 2)
    due = lesson({"single_pieces": "neighbours"})
    _, whole = stage.distil(replace(due, cache=tmp_path / "others"))
    module, name, shards = {
        "candidates": (augmentation, "_write_shard", "candidates-*/*.jsonl"),
        "teacher": (outputs, "_write_shard", "teacher-*/*.arrow"),
    }[what]
    write = getattr(module, name)
    written: list[Any] = []

    def once(*given: Any) -> None:
        if written:
            raise Stop
        written.append(write(*given))

    with monkeypatch.context() as patch:
        patch.setattr(module, name, once)
        with pytest.raises(Stop):
            stage.distil(due)
    (first,) = due.cache.glob(shards)
    made = first.stat().st_mtime_ns
    _, record = stage.distil(due)
    assert len(list(due.cache.glob(shards))) > 1
    assert first.stat().st_mtime_ns == made
    assert record.curve == whole.curve


def test_what_is_drawn_later_does_not_hang_on_whether_candidates_were_at_hand(speaker: Path) -> None:
    """What would be an error: a run that goes on after a kill has other projections than one that was not killed."""
    torch.manual_seed(5)
    without = torch.rand(3)
    torch.manual_seed(5)
    finder(speaker)
    assert torch.equal(torch.rand(3), without)


def test_another_model_or_another_number_of_candidates_is_another_result(lesson: Callable[..., DistilJob]) -> None:
    keys = {
        lesson({"single_pieces": "neighbours"}).key,
        lesson({"single_pieces": "neighbours", "candidates": 5}).key,
        lesson({}).key,
    }
    assert len(keys) == 3


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no head": ({"model": "enc"}, {}, r"model enc has no trained masked-LM head: it was saved as BertModel\. Name a"),
    "no such model": ({"model": "nowhere"}, {}, r"nowhere does not exist"),
    "blocks": ({}, {"head": "masked_lm", "losses": {"masked_lm": 1.0}}, "each pass masks other tokens"),
    "too long": ({}, {"max_length": 65}, r"beyond the limit of distil\.augment\.model model, 64"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_augmented_is_refused(
    case: str, lesson: Callable[..., DistilJob], tiny_student: Callable[..., Path], tmp_path: Path
) -> None:
    augmented, settings, message = REFUSED[case]
    shutil.copytree(tiny_student("bert", "embedding"), tmp_path / "enc")
    with pytest.raises(PipelineError, match=message) as caught:
        lesson(augmented, **settings)
    assert "\n" not in str(caught.value)


def test_a_head_that_was_never_trained_is_refused(tiny_student: Callable[..., Path], tmp_path: Path) -> None:
    source = tiny_student("bert", "embedding")
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(source)
    transformers.AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path)
    shutil.copyfile(source / "tokenizer.json", tmp_path / "tokenizer.json")
    with pytest.raises(StudentError, match=r"was never trained: its perplexity on the texts is \d+"):
        finder(tmp_path).find([TEXT])
