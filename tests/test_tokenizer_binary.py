"""`tokenizer.bin` holds the same tokenizer, is made for large vocabularies alone, and is judged beside the file."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from apps.tokenizers import full_size
from pieces import bundled_folder
from tokenizer_references import project_texts
from tokenizers import Tokenizer
from tokenizers.models import BPE, Unigram, WordPiece

from pipeline.errors import ArtifactError
from pipeline.text import binary
from pipeline.verify import companions

PIECES = 12_000


@pytest.fixture(scope="module")
def large() -> Tokenizer:
    """A tokenizer of XLM-R's kind, a twentieth of its size."""
    return full_size.make(project_texts(), pieces=PIECES)


def test_the_full_size_tokenizer_has_xlm_r_s_ids_and_form(large: Tokenizer) -> None:
    assert full_size.PIECES == 250_037
    assert large.get_vocab_size() == len(large.get_vocab()) == PIECES
    ids = [large.token_to_id(token) for token in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")]
    assert ids == [0, 1, 2, 3, PIECES - 1]
    row = large.encode("Two  words", "and ﬁve")
    assert [number for number in row.ids if number in ids] == [0, 2, 2, 2]
    assert set(row.type_ids) == {0}
    scores = [score for _, score in json.loads(large.to_str())["model"]["vocab"][4:-1]]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores[5000:])) == len(scores[5000:])


def rebuilt(held: binary.Binary) -> Tokenizer:
    """Return the tokenizer that a `tokenizer.bin` holds, with nothing from anywhere else."""
    ordered = sorted(held.ids, key=held.ids.__getitem__)
    vocabulary: Any = [[token, held.scores[held.ids[token]]] for token in ordered] if held.scores else held.ids
    return Tokenizer.from_str(json.dumps(held.rest | {"model": held.rest["model"] | {"vocab": vocabulary}}))


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_what_is_read_back_is_the_tokenizer(kind: str, large: Tokenizer) -> None:
    document = json.loads((bundled_folder() / "tokenizer.json").read_bytes() if kind == "wordpiece" else large.to_str())
    held = binary.read(binary.pack(document))
    vocabulary = document["model"].pop("vocab")
    assert held.rest == document
    if kind == "unigram":
        assert held.ids == {token: number for number, (token, _) in enumerate(vocabulary)}
        assert list(held.scores) == [score for _, score in vocabulary]
    else:
        assert (held.ids, held.scores) == (vocabulary, ())
    whole = Tokenizer.from_str(json.dumps(document | {"model": document["model"] | {"vocab": vocabulary}}))
    assert all(rebuilt(held).encode(text).ids == whole.encode(text).ids for text in project_texts()[:20])


def test_children_stand_together_and_go_up() -> None:
    """What both cores search: by hand, of four words."""
    vocabulary = {"b": 0, "ab": 1, "a\U0001f600": 2, "abc": 3}
    content = binary.pack({"model": {"type": "WordPiece", "unk_token": "b", "vocab": vocabulary}})
    _, _, rest, nodes, scores, _, _ = struct.unpack_from("<8s6I", content)
    numbers = struct.unpack_from(f"<{2 * nodes + 1}I{nodes}i", content, 32 + rest)
    assert (nodes, scores, rest % 8) == (6, 0, 0)
    assert numbers[:nodes] == (0, ord("a"), ord("b"), ord("b"), 0x1F600, ord("c"))
    assert numbers[nodes : 2 * nodes + 1] == (1, 3, 5, 5, 6, 6, 6)
    assert numbers[2 * nodes + 1 :] == (-1, -1, 0, 1, 2, 3)


def test_of_a_token_that_is_listed_twice_the_last_id_counts() -> None:
    tokenizer = Tokenizer(Unigram([("<unk>", 0.0), ("a", -1.0), ("a", -2.0)], 0, False))
    assert binary.read(binary.pack(json.loads(tokenizer.to_str()))).ids["a"] == tokenizer.token_to_id("a") == 2


def test_a_small_vocabulary_and_one_of_merges_have_none(large: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert binary.FROM_TOKENS == 100_000
    assert binary.of(large.to_str().encode()) is None
    monkeypatch.setattr(binary, "FROM_TOKENS", PIECES)
    assert binary.of(large.to_str().encode()) is not None
    monkeypatch.setattr(binary, "FROM_TOKENS", 1)
    assert binary.of(Tokenizer(BPE({"a": 0, "b": 1}, [])).to_str().encode()) is None
    assert binary.of(Tokenizer(WordPiece({"a": 0}, unk_token="a")).to_str().encode()) is not None


def _set(place: int, number: int) -> Callable[[bytearray], None]:
    return lambda content: struct.pack_into("<I", content, place % len(content), number)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda content: content.clear(), "does not begin with b'PBTOKENS'"),
        (lambda content: content.pop(), "which is not what its head says"),
        (_set(8, 2), "is of version 2; this release reads version 1"),
        (_set(16, 2**32 - 1), "which is not what its head says"),
        (_set(-44, 6), "children overlap"),
        (_set(-28, 9), "a node comes before its parent"),
        (_set(-40, 0), "a node comes before its parent"),
    ],
)
def test_a_broken_file_is_refused(spoil: Callable[[bytearray], None], message: str) -> None:
    vocabulary = {"b": 0, "ab": 1, "a\U0001f600": 2, "abc": 3}
    content = bytearray(binary.pack({"model": {"type": "WordPiece", "unk_token": "b", "vocab": vocabulary}}))
    spoil(content)
    with pytest.raises(ArtifactError, match=message):
        binary.read(bytes(content))


def test_convert_writes_it_and_verify_compares_it(
    large: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binary, "FROM_TOKENS", PIECES)
    student, model = tmp_path / "student", tmp_path / "model"
    for folder in (student, model):
        folder.mkdir()
        (folder / "tokenizer.json").write_text(large.to_str(), encoding="utf-8")
    assert companions._changed_companions(model, student) == "tokenizer.bin is not what tokenizer.json gives"
    assert binary.write(model)
    assert companions._changed_companions(model, student) is None
    content = bytearray((model / binary.BINARY).read_bytes())
    content[-1] ^= 1
    (model / binary.BINARY).write_bytes(content)
    assert companions._changed_companions(model, student) == "tokenizer.bin is not what tokenizer.json gives"


def test_one_beside_a_small_vocabulary_is_refused(large: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(large.to_str(), encoding="utf-8")
    assert not binary.write(tmp_path)
    assert companions._changed_companions(tmp_path, tmp_path) is None
    (tmp_path / binary.BINARY).write_bytes(binary.pack(json.loads(large.to_str())))
    assert companions._changed_companions(tmp_path, tmp_path) == "tokenizer.bin is not what tokenizer.json gives"
