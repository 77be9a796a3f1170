"""Trimmed vocabularies: text that was trimmed on keeps its tokens, and the model says of it what it said."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Outcome, recipe_file
from faults import students
from faults.students import Student
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from tokenizer_references import project_texts
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram, WordLevel, WordPiece

from pipeline import tasks
from pipeline.checkpoint import source as student
from pipeline.checkpoint.loading import load_checkpoint
from pipeline.checkpoint.source import Source
from pipeline.compress import vocabulary
from pipeline.compress.vocabulary.selection import CONFIG_IDS, Vocabulary
from pipeline.compress.vocabulary.trimming import TokenizerChanges, compare, count_tokens
from pipeline.data import datasets as data
from pipeline.errors import InputError, PipelineError, StudentError
from pipeline.recipe.compression import VocabularySection
from pipeline.text import tokenizers
from pipeline.text.bundled import everyday_sentences

EMBEDDING = tasks.get("embedding")
KINDS = {
    "wordpiece": Student("bert"),
    "distilbert": Student("distilbert"),
    "unigram": Student("xlm-roberta", pieces="unigram"),
    "byte_bpe": Student("roberta", pieces="byte_bpe"),
    "mobilebert": Student("mobilebert"),
}
CORPUS = tuple(everyday_sentences()[:60])
UNSEEN = tuple(everyday_sentences()[60:])


def folder_of(which: Student, place: Path) -> Path:
    place.mkdir(parents=True)
    students.source(which, place)
    return place


def source_of(folder: Path) -> Source:
    return student.inspect_folder(folder, origin=folder.name, licence=None)


def make(
    source: Path, out: Path, texts: tuple[str, ...] = CORPUS, prompts: tuple[str, ...] = (), **values: Any
) -> dict[str, Any]:
    out.mkdir(exist_ok=True)
    section = VocabularySection.model_validate({"corpus": ["corpus.txt"] if texts else None, **values})
    vocabulary.check(section, source_of(source), texts)
    metrics = vocabulary.make(source, "embedding", section, texts, prompts, out)
    if section.size is not None:
        tried = vocabulary.trial(section, source_of(source))
        assert tried.tensor_shapes() == source_of(out).tensor_shapes()
        assert tried.vocab_size == source_of(out).vocab_size
    return metrics


def spelled(folder: Path, text: str) -> list[str]:
    return tokenizers.load_tokenizer(folder).encode(text).tokens


def hidden_of(folder: Path, text: str) -> torch.Tensor:
    model = load_checkpoint(folder, EMBEDDING)
    ids = torch.tensor([tokenizers.load_tokenizer(folder).encode(text).ids[:60]])
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state


@pytest.mark.parametrize("kind", KINDS)
def test_text_that_was_trimmed_on_keeps_its_tokens_and_the_model_its_answer(kind: str, tmp_path: Path) -> None:
    source, out = folder_of(KINDS[kind], tmp_path / "source"), tmp_path / "out"
    metrics = make(source, out)
    assert metrics["pieces"] < 0.75 * metrics["pieces_before"]
    assert metrics["tokens_kept"] is True
    assert (metrics["texts_changed"], metrics["words_changed_fraction"], metrics["tokens_ratio"]) == (0, 0, 1)
    before, after = tokenizers.load_tokenizer(source), tokenizers.load_tokenizer(out)
    assert all(after.encode(text).tokens == before.encode(text).tokens for text in CORPUS)
    assert all(after.encode(text, text).tokens == before.encode(text, text).tokens for text in CORPUS[:5])
    assert torch.equal(hidden_of(out, CORPUS[3]), hidden_of(source, CORPUS[3]))
    tensors = load_file(out / "model.safetensors")
    assert next(tensor for name, tensor in tensors.items() if "word_embeddings" in name).shape[0] == metrics["pieces"]
    assert metrics["bytes_saved"] > 0


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "byte_bpe"])
def test_hard_text_keeps_its_tokens_too(kind: str, tmp_path: Path) -> None:
    """Scripts, unknown characters, spelled-out special tokens, words that are too long; the metrics agree."""
    source = folder_of(KINDS[kind], tmp_path / "source")
    texts = project_texts()
    metrics = make(source, tmp_path / "out", texts)
    assert metrics["texts_changed"] == 0
    assert metrics["unknown_fraction"] == metrics["unknown_fraction_before"]
    assert (metrics["unknown_fraction"] > 0) == (kind != "byte_bpe")
    assert all(spelled(tmp_path / "out", text) == spelled(source, text) for text in texts[:40])


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "byte_bpe"])
def test_special_tokens_stay_and_every_file_has_their_new_ids(kind: str, tmp_path: Path) -> None:
    source, out = folder_of(KINDS[kind], tmp_path / "source"), tmp_path / "out"
    listed = {token: int(row) for row, token in _special(source).items()}
    decoder = {str(number): {"content": token, "special": True} for token, number in listed.items()}
    (source / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    (source / "added_tokens.json").write_text(json.dumps(listed))
    make(source, out)
    config, tokenizer = json.loads((out / "config.json").read_text()), tokenizers.load_tokenizer(out)
    old = json.loads((source / "config.json").read_text())
    assert config["vocab_size"] == tokenizer.get_vocab_size()
    names = {number: token for token, number in listed.items()}
    for key in CONFIG_IDS:
        if isinstance(old.get(key), int):
            assert tokenizer.id_to_token(config[key]) == tokenizers.load_tokenizer(source).id_to_token(old[key])
    assert config["pad_token_id"] == old["pad_token_id"]  # RoBERTa counts positions from it on
    settings = json.loads((out / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    assert {row["content"]: int(number) for number, row in settings.items()} == json.loads(
        (out / "added_tokens.json").read_text()
    )
    assert all(tokenizer.token_to_id(token) is not None for token in names.values())
    assert set(_special(out).values()) == set(names.values())


def _special(folder: Path) -> dict[int, str]:
    rows = json.loads(tokenizers.load_tokenizer(folder).to_str())["added_tokens"]
    return {int(row["id"]): str(row["content"]) for row in rows}


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "byte_bpe"])
def test_new_words_are_spelled_from_characters(kind: str, tmp_path: Path) -> None:
    """All of these sentences' characters are in the corpus, and so no word is unknown."""
    source, out = folder_of(KINDS[kind], tmp_path / "source"), tmp_path / "out"
    make(source, out)
    letters = set("".join(CORPUS))
    known = [text for text in UNSEEN if set(text) <= letters]
    assert len(known) > 10
    trimmed = Vocabulary(tokenizers.load_tokenizer(out), out)
    assert all(trimmed.unknown not in trimmed.tokenizer.encode(text).ids for text in known)
    assert any(spelled(out, text) != spelled(source, text) for text in known)


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "byte_bpe"])
def test_below_what_the_corpus_needs_the_rarest_tokens_go(kind: str, tmp_path: Path) -> None:
    source = folder_of(KINDS[kind], tmp_path / "source")
    needed = make(source, tmp_path / "whole")["pieces"]
    out = tmp_path / "out"
    metrics = make(source, out, size=needed - 30)
    assert metrics["pieces"] == needed - 30
    assert metrics["tokens_kept"] is False
    changed = sum(spelled(out, text) != spelled(source, text) for text in CORPUS)
    assert metrics["texts_changed"] == changed > 0
    assert 0 < metrics["words_changed_fraction"] < 0.2
    assert metrics["tokens_ratio"] > 1
    assert metrics["unknown_fraction"] == metrics["unknown_fraction_before"]
    counts = count_tokens(Vocabulary(tokenizers.load_tokenizer(source), source), CORPUS)
    gone = set(counts) - set(tokenizers.load_tokenizer(out).get_vocab())
    assert max(counts[piece] for piece in gone) <= 2


def test_room_that_the_corpus_leaves_is_filled_with_words_that_can_occur(tmp_path: Path) -> None:
    source = folder_of(KINDS["wordpiece"], tmp_path / "source")
    metrics = make(source, tmp_path / "out", keep=0.5)
    assert metrics["pieces"] == 15261
    assert metrics["tokens_kept"] is True
    kept = tokenizers.load_tokenizer(tmp_path / "out").get_vocab()
    assert not any(piece.startswith("[unused") for piece in kept)
    common = ("house", "##ing", "government")
    assert all(piece in kept for piece in common)


def tokenizer_of(model: Any) -> Vocabulary:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Vocabulary(tokenizer, Path("made-up"))


def trimmed_to(model: Any, texts: list[str]) -> tuple[set[str], TokenizerChanges]:
    full = tokenizer_of(model)
    kept, _ = full.choose(count_tokens(full, texts), full.always_kept(set(), set()), None)
    tokenizer, ids = full.restrict(kept)
    return kept, compare(full, tokenizer, ids, texts)


def test_an_unknown_word_stays_unknown() -> None:
    """`abc☃` takes `ab` and is stuck; without `ab` it would be `a ##bc☃`."""
    vocabulary = {piece: number for number, piece in enumerate(("[UNK]", "a", "ab", "##bc☃", "x"))}
    kept, changes = trimmed_to(WordPiece(vocabulary, unk_token="[UNK]"), ["x abc☃", "a x"])
    assert kept == {"[UNK]", "a", "ab", "x"}
    assert changes.texts_changed == 0


def test_merges_on_the_way_to_a_token_stay() -> None:
    """`abcd` is made of `ab` and `cd`, which no text has; `bc`, of a later merge, is not needed."""
    names = ("a", "b", "c", "d", "ab", "cd", "bc", "abcd")
    merges = [("a", "b"), ("c", "d"), ("b", "c"), ("ab", "cd")]
    kept, changes = trimmed_to(BPE({piece: number for number, piece in enumerate(names)}, merges), ["abcd a"])
    assert kept == {"a", "b", "c", "d", "ab", "cd", "abcd"}
    assert changes.texts_changed == 0


def test_the_lowest_score_stays_since_the_unknown_costs_by_it() -> None:
    """`ab` as a piece is at -12; `a` and an unknown `b` come to 11 and ten less than the lowest score."""
    rows = [("<unk>", 0.0), ("a", 11.0), ("ab", -12.0), ("rare", -40.0)]
    kept, changes = trimmed_to(Unigram(rows, 0, False), ["ab a"])
    assert kept == {"<unk>", "a", "ab", "rare"}
    assert changes.texts_changed == 0
    full = tokenizer_of(Unigram(rows, 0, False))
    tokenizer, ids = full.restrict({"<unk>", "a", "ab"})
    assert compare(full, tokenizer, ids, ["ab a"]).texts_changed == 1


def test_a_change_in_the_corpus_is_seen() -> None:
    """What would be an error: a merge is gone that the text needs."""
    names = {piece: number for number, piece in enumerate(("a", "b", "c", "ab", "abc"))}
    full = tokenizer_of(BPE(names, [("a", "b"), ("ab", "c")]))
    tokenizer, ids = full.restrict({"a", "b", "c", "abc"})
    changes = compare(full, tokenizer, ids, ["c c", "abc a abc"])
    assert (changes.texts, changes.texts_changed, changes.example) == (2, 1, "abc a abc")
    assert (changes.words, changes.words_changed) == (5, 2)
    assert (changes.tokens_before, changes.tokens) == (5, 9)


def test_a_compressed_checkpoint_with_a_table_in_two_factors_is_trimmed(tmp_path: Path) -> None:
    from pipeline.compress import factorise
    from pipeline.recipe.compression import FactoriseSection

    source, thin, out = folder_of(KINDS["wordpiece"], tmp_path / "source"), tmp_path / "thin", tmp_path / "out"
    thin.mkdir()
    section = FactoriseSection.model_validate({"embedding": 16})
    factorise.make(source, "embedding", section, CORPUS, thin)
    make(thin, out)
    table = load_checkpoint(out, EMBEDDING).get_input_embeddings()[0]
    assert table.num_embeddings == json.loads((out / "config.json").read_text())["vocab_size"]
    assert torch.equal(hidden_of(out, CORPUS[5]), hidden_of(thin, CORPUS[5]))


@pytest.mark.parametrize("architecture", ["bert", "distilbert", "roberta", "mobilebert"])
def test_a_masked_lm_head_keeps_its_answer_for_the_tokens_that_stay(architecture: str, tmp_path: Path) -> None:
    import transformers

    source, out = folder_of(Student(architecture), tmp_path / "source"), tmp_path / "out"
    config = transformers.AutoConfig.from_pretrained(source)
    torch.manual_seed(1)
    transformers.AutoModelForMaskedLM.from_config(config).save_pretrained(source)
    make(source, out)
    before, after = (tokenizers.load_tokenizer(folder) for folder in (source, out))
    logits = []
    for folder, tokenizer in ((source, before), (out, after)):
        model, info = transformers.AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
        assert not info["missing_keys"]
        ids = torch.tensor([tokenizer.encode(CORPUS[0]).ids])
        with torch.no_grad():
            logits.append(model.eval()(input_ids=ids).logits[0])
    kept = [before.token_to_id(str(after.id_to_token(number))) for number in range(after.get_vocab_size())]
    torch.testing.assert_close(logits[1], logits[0][:, kept], rtol=1e-5, atol=1e-5)


def test_a_tensor_of_the_vocabulary_s_size_that_is_not_known_is_refused(tmp_path: Path) -> None:
    source = folder_of(KINDS["wordpiece"], tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    tensors["a.head.of.one.s.own"] = torch.zeros(3, tokenizers.load_tokenizer(source).get_vocab_size())
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StudentError, match=r"a\.head\.of\.one\.s\.own is .* without that head"):
        make(source, tmp_path / "out")


def test_a_corpus_is_files_and_data_sets_each_text_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "more.txt").write_text("One line.\n\n  \nAnother one.\nOne line.\n", encoding="utf-8")
    (tmp_path / "rte").mkdir()
    row = "index\tsentence1\tsentence2\tlabel\n0\tA cat sat.\tOne line.\tentailment\n"
    (tmp_path / "rte" / "train.tsv").write_text(row)
    monkeypatch.setenv(data.DATA_VARIABLE, str(tmp_path))
    section = VocabularySection.model_validate({"corpus": ["more.txt", "rte"]})
    texts = vocabulary.read_corpus(section, tmp_path / "recipe.toml")
    assert texts == ["One line.", "Another one.", "A cat sat."]
    digests = vocabulary.digests(section, tmp_path / "recipe.toml")
    assert digests["rte"] == data.DATASETS["rte"].digest("train") is not None
    assert len(digests["more.txt"] or "") == 64


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.txt", None, "absent.txt does not exist"),
        ("empty.txt", b"\n \n", "holds no text"),
        ("latin.txt", "café".encode("latin-1"), "is not UTF-8"),
        ("graded_pairs", None, "vocabulary.corpus: graded_pairs has no training texts; students are judged by all"),
        (
            "books",
            None,
            "'books' is no .txt file and no dataset; plain text: wikitext2, war-and-peace, own-text",
        ),
    ],
)
def test_a_corpus_that_cannot_be_read_is_refused(
    name: str, content: bytes | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    section = VocabularySection.model_validate({"corpus": [name]})
    with pytest.raises(InputError, match=message):
        vocabulary.read_corpus(section, tmp_path / "recipe.toml")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": 40000}, "has 30522 tokens, so nothing would be trimmed"),
        ({"size": 60}, "of languages alone are 63"),
    ],
)
def test_a_size_that_cannot_be_is_refused(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = source_of(folder_of(KINDS["wordpiece"], tmp_path / "source"))
    section = VocabularySection.model_validate({"corpus": ["sentiment"], **values})
    with pytest.raises(PipelineError, match=message):
        vocabulary.check(section, source, CORPUS)


@pytest.mark.parametrize("values", [{"size": 9000, "keep": 0.5}, {"keep": 1.0}, {"size": 0}, {"corpus": []}])
def test_a_section_that_makes_no_sense_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        VocabularySection.model_validate({"corpus": ["sentiment"], **values})


def test_an_added_token_that_only_the_settings_name_may_leave(tmp_path: Path) -> None:
    source = folder_of(KINDS["wordpiece"], tmp_path / "source")
    ids = tokenizers.load_tokenizer(source).get_vocab()
    rare = next(piece for piece in sorted(ids) if piece.isalpha() and piece not in " ".join(CORPUS).lower())
    settings = {"added_tokens_decoder": {str(ids["[MASK]"]): {"content": "[MASK]"}, str(ids[rare]): {"content": rare}}}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    (source / "added_tokens.json").write_text(json.dumps({rare: ids[rare], "[MASK]": ids["[MASK]"]}))
    make(source, tmp_path / "out")
    mask = tokenizers.load_tokenizer(tmp_path / "out").token_to_id("[MASK]")
    kept = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    assert kept == {str(mask): {"content": "[MASK]"}}
    assert json.loads((tmp_path / "out" / "added_tokens.json").read_text()) == {"[MASK]": mask}


def test_an_unknown_token_without_an_id_is_refused() -> None:
    with pytest.raises(StudentError, match=r"has no id for '\[NOPE\]', its unknown token"):
        tokenizer_of(WordPiece({"a": 0, "[UNK]": 1}, unk_token="[NOPE]"))


def test_a_table_without_its_size_is_refused(tmp_path: Path) -> None:
    source = folder_of(KINDS["wordpiece"], tmp_path / "source")
    path = source / "config.json"
    config = json.loads(path.read_text())
    del config["vocab_size"]
    path.write_text(json.dumps(config))
    section = VocabularySection.model_validate({"corpus": ["corpus.txt"]})
    with pytest.raises(StudentError, match="has no whole number 'vocab_size'"):
        vocabulary.check(section, source_of(source), CORPUS)


def test_letters_and_accents_that_stand_together_are_one_character() -> None:
    tokenizer = Tokenizer(WordPiece({"[UNK]": 0, "é": 1, "##é": 2, "e": 3}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.NFC()
    assert "é" in Vocabulary(tokenizer, Path("here")).alphabet(["cafe\u0301", "plain"])


def test_a_tokenizer_of_another_kind_is_refused() -> None:
    with pytest.raises(StudentError, match="of kind WordLevel; the vocabulary of WordPiece, Unigram, BPE"):
        tokenizer_of(WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))


def test_an_id_without_a_piece_is_refused(tmp_path: Path) -> None:
    source = folder_of(KINDS["wordpiece"], tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"eos_token_id": 40000}))
    with pytest.raises(StudentError, match="needs the token with id 40000"):
        make(source, tmp_path / "out")


@pytest.mark.numeric
def test_a_trimmed_student_goes_through_the_command(command_here: Callable[..., Outcome], tmp_path: Path) -> None:
    make(folder_of(KINDS["byte_bpe"], tmp_path / "plain"), tmp_path / "source")
    recipe = recipe_file(
        tmp_path,
        student={"source": "source", "random_weights": True},
        verify={"datasets": ["none"]},
        convert={"sequence_lengths": [16]},
        targets={"litert": {"schemes": ["fp32"]}},
    )
    outcome = command_here("verify", recipe, "--json")
    assert outcome.document["verdicts"] == {"litert-fp32": "passed"}, outcome.stdout


@pytest.mark.full
def test_public_training_text_keeps_its_tokens(tmp_path: Path) -> None:
    """The bundled student on SST-2's and STS-B's training texts; `make` itself compares every text."""
    if not os.environ.get(data.DATA_VARIABLE):
        pytest.skip(f"{data.DATA_VARIABLE} is not set")
    section = VocabularySection.model_validate({"corpus": ["sst2", "stsb"]})
    texts = vocabulary.read_corpus(section, tmp_path / "recipe.toml")
    metrics = vocabulary.make(students.source(students.BUNDLED, tmp_path), "embedding", section, texts, (), tmp_path)
    assert metrics["tokens_kept"]
    assert metrics["texts_changed"] == 0
    assert metrics["pieces"] < 0.6 * metrics["pieces_before"]
