"""`pocketbert compatible`: verdicts by vectors that are known, and by real files and a stored index."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Outcome, TinyLine
from indexes import about, contract, embeddings
from numpy.typing import NDArray

from pipeline.data.retrieval import Judged
from pipeline.search import about as abouts
from pipeline.search import compatibility
from pipeline.search.compatibility import Collection, Comparison, Side
from pipeline.search.embedding import Embedder
from pipeline.search.flat import FlatIndex, Passage
from pipeline.text.bundled import calibration_texts
from pipeline.text.prompts import NO_PROMPTS
from pipeline.vectors.storage import STORAGES, StorageName

TEXTS = [f"text {number}" for number in range(60)]
WIDTH = 32
Command = Callable[..., Outcome]


def known(count: int = 60) -> Collection:
    texts = tuple(f"document {number}" for number in range(count))
    queries = tuple(f"query {number}" for number in range(count))
    return Collection("known", Judged(queries, texts, tuple({n: 1} for n in range(count)), (None,) * count))


def vectors(seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    found = np.random.default_rng(seed).normal(size=(60, WIDTH)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def side(name: str, change: Callable[[Any], Any] = lambda one: one, space: str | None = "a") -> Side:
    """A model whose queries lie near the document that answers them."""
    documents = vectors(1)
    queries = documents + 0.3 * vectors(2)
    texts = change(vectors(3))
    return Side(name, space, texts.shape[1], texts, {"known": (change(queries), change(documents))})


def compared(change: Callable[[Any], Any], space: str | None = "a") -> Comparison:
    return compatibility.compare(side("old"), side("new", change, space), TEXTS, [known()])


def turned(by: float) -> Callable[[Any], Any]:
    """Return a rotation of all vectors by an angle in each plane of two dimensions."""
    plane = np.array([[np.cos(by), -np.sin(by)], [np.sin(by), np.cos(by)]])
    return lambda one: (one.reshape(len(one), -1, 2) @ plane).reshape(len(one), -1).astype(np.float32)


def test_rounded_vectors_are_of_the_same_space() -> None:
    found = compared(lambda one: np.rint(one * 60) / 60)
    assert (found.verdict, found.said) == ("same_space", "one space: stored vectors may stay")
    assert found.recall_kept >= 0.99
    assert "ids of their spaces differ" in compared(lambda one: one, "b").said


def test_a_space_that_is_turned_a_little_is_usable_with_loss() -> None:
    found = compared(turned(0.5))
    assert found.verdict == "usable_with_loss"
    assert found.mean_cosine == pytest.approx(np.cos(0.5), abs=1e-5)
    assert f"{found.recall_kept:.1%} of recall@10" in found.said
    assert found.searched[0].new == found.searched[0].old


@pytest.mark.parametrize("change", [turned(np.pi / 2), lambda one: -one, lambda one: one[:, ::-1]])
def test_another_space_has_to_be_indexed_again(change: Callable[[Any], Any]) -> None:
    found = compared(change)
    assert found.verdict == "re_index"
    assert found.searched[0].across < 0.6
    assert found.searched[0].high < 0


def test_another_width_has_no_cosines() -> None:
    found = compared(lambda one: one[:, :16])
    assert (found.verdict, found.mean_cosine, found.searched) == ("re_index", None, [])
    assert "vectors of 32 numbers are stored, and new gives 16" in found.said


def test_files_of_one_student_share_an_index(tiny_line: TinyLine, command_here: Command) -> None:
    old, new = tiny_line.folder / "litert-fp32", tiny_line.folder / "executorch-fp32"
    found = command_here("compatible", old, new, "--json")
    assert found.rc == 0, found.stdout + found.stderr
    document = found.document
    assert document["verdict"] == "same_space"
    assert document["old_space"] == document["new_space"]
    assert [row["collection"] for row in document["searched"]] == ["graded_pairs"]
    assert document["mean_cosine"] > 0.9999
    told = command_here("compatible", old, old)
    assert "one space: stored vectors may stay" in told.stdout


def test_a_file_of_another_tool_is_asked_by_its_checkpoint(tiny_line: TinyLine, command_here: Command) -> None:
    # The same file, as another tool would have made it: without a folder that says how to call it.
    file = next((tiny_line.folder / "executorch-fp32" / "model").glob("*.pte"))
    source = tiny_line.recipe.parent / "source"
    options = ("--old-against", source, "--pooling", "mean", "--json")
    found = command_here("compatible", file, tiny_line.folder / "litert-fp32", *options)
    assert found.rc == 0, found.stdout + found.stderr
    assert found.document["old_space"] is None
    assert found.document["mean_cosine"] > 0.9999
    unnamed = command_here("compatible", file, tiny_line.folder / "litert-fp32", "--old-against", source)
    assert unnamed.rc == 2
    assert "pooling" in unnamed.stderr


@pytest.mark.parametrize("engine", ["flat", "sqlite"])
def test_a_stored_index_is_asked_by_its_own_passages(
    engine: str, tiny_line: TinyLine, converted: Callable[..., Path], tmp_path: Path, command_here: Command
) -> None:
    texts = list(dict.fromkeys(text for text in calibration_texts() if text.strip()))[:60]
    notes = tmp_path / "notes.jsonl"
    notes.write_text("".join(json.dumps({"id": str(n), "text": one}) + "\n" for n, one in enumerate(texts)), "utf-8")
    model = tiny_line.folder / "litert-fp32"
    made = command_here("index", notes, "--model", model, "--engine", engine, "--out", "index")
    assert made.rc == 0, made.stderr
    same = command_here("compatible", "index", tiny_line.folder / "executorch-fp32", "--json")
    assert same.rc == 0, same.stdout + same.stderr
    assert same.document["searched"][0]["collection"] == compatibility.ITSELF
    assert same.document["searched"][0]["across_at_1"] > 0.9
    another = command_here("compatible", "index", converted("litert-fp32"), "--json")
    assert another.rc == 1, another.stdout + another.stderr
    assert another.document["verdict"] == "re_index"


def asked_by(rows: NDArray[np.float32], texts: Sequence[str]) -> Embedder:
    """Return a model that gives each text its row."""

    def embed(asked: Sequence[str], prompt: str | None, told: object = None, /) -> tuple[NDArray[np.float32], int]:
        return np.stack([rows[texts.index(one)] for one in asked]), 0

    return Embedder("new", "litert-fp32", contract(), NO_PROMPTS, embed)


@pytest.mark.parametrize("storage", STORAGES)
def test_the_model_that_made_an_index_may_ask_it(storage: StorageName, tmp_path: Path) -> None:
    what = about(storage)
    # Half of the passages have one text, such as a greeting.
    texts = ["kind regards" if number % 2 else f"note {number}" for number in range(60)]
    rows = embeddings(2, 60)
    rows[1::2] = rows[1]
    with FlatIndex.create(tmp_path / "index", what) as index:
        index.add([Passage(str(number), text) for number, text in enumerate(texts)], rows)
        assert compatibility.compare_with_index(index, asked_by(rows, texts)).verdict == "same_space"
        near = rows + np.float32(0.01) * embeddings(3, 60)
        assert compatibility.compare_with_index(index, asked_by(near, texts)).verdict == "same_space"
        other = compatibility.compare_with_index(index, asked_by(embeddings(9, 60), texts))
        assert other.verdict == "re_index"
        assert other.mean_cosine == pytest.approx(0, abs=0.2)


@pytest.mark.parametrize("width", [32, 16])
def test_a_model_that_compares_by_the_dot_product_may_ask_its_own_index(width: int, tmp_path: Path) -> None:
    model = contract(unit=False, similarity="dot")
    what = abouts.of(model, "int8", width=width, prompts=(None, None), made_by="litert-fp32")
    # To a short vector nearly all long ones are nearer than itself.
    rows = embeddings(2, 60, unit=False) * np.linspace(0.1, 1, 60, dtype=np.float32)[:, None]
    texts = [f"note {number}" for number in range(60)]
    with FlatIndex.create(tmp_path / "index", what) as index:
        index.add([Passage(text, text) for text in texts], rows)
        found = compatibility.compare_with_index(index, asked_by(rows, texts))
    assert found.verdict == "same_space"
    assert found.searched[0].old < 0.99


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("index-of-nothing", "{model}"), "index-of-nothing"),
        (
            ("{model}", "{model}", "--retrieval", "stsb_partners"),
            "--retrieval stsb_partners: POCKETBERT_DATA is not set",
        ),
        (("{model}", "{model}", "--retrieval", "nowhere"), "'nowhere' is neither a collection nor a folder"),
    ],
)
def test_what_cannot_be_compared_is_told(
    arguments: tuple[str, ...],
    message: str,
    tiny_line: TinyLine,
    command_here: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("POCKETBERT_DATA", raising=False)
    model = str(tiny_line.folder / "litert-fp32")
    found = command_here("compatible", *(one.format(model=model) for one in arguments))
    assert found.rc == 2
    assert message in found.stderr
    assert "Traceback" not in found.stderr
