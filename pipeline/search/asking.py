"""The work of `pocketbert search`: one question to an index."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import InputError
from pipeline.search import about as abouts
from pipeline.search.about import About
from pipeline.search.embedding import Embedder
from pipeline.search.flat import Hit
from pipeline.search.indexing import Engine, Index, open_index


@dataclass(frozen=True)
class Found:
    """The passages nearest to a question, the nearest first."""

    question: str
    index: str
    engine: Engine
    about: About
    hits: Sequence[Hit]
    truncated: bool
    """Whether the question was longer than the file takes."""


def ask(place: Path, question: str, model: Embedder, *, top: int, prompt: str | None = None) -> Found:
    """Return the passages of an index nearest to a question.

    Args:
        place: the index.
        question: the text.
        model: an open model of the index's space.
        top: how many passages.
        prompt: name of the prompt before the question; None for that of the index, an empty name for none.

    Raises:
        InputError: there is no index, it is empty or of another space, or the question is empty.
        ArtifactError: it is damaged.
    """
    with open_index(place) as index:
        return _ask(index, question, model, top=top, prompt=prompt)


def _ask(index: Index, question: str, model: Embedder, *, top: int, prompt: str | None) -> Found:
    abouts.check_space(index.folder, index.about, model.vectors, model.name)
    model.check_prompt(prompt)
    if not len(index):
        raise InputError(f"{index.folder} has no passages yet. `pocketbert index` puts some in.")
    named = index.about.query_prompt if prompt is None else prompt
    vectors, truncated = model.embed([question], named)
    hits = index.search(vectors[0], top)
    return Found(question, str(index.folder), index.engine, index.about, hits, bool(truncated))
