"""May vectors of an old model stay where a new one asks? Cosines of the same texts, and search across the two.

The vectors of each side are computed once, so that many pairs of models are compared at no more cost.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.data import retrieval
from pipeline.data.datasets import DATASETS
from pipeline.data.retrieval import Judged
from pipeline.errors import InputError
from pipeline.metrics import measures, ranking
from pipeline.metrics.ranking import Judgements
from pipeline.search import codes
from pipeline.search.about import About
from pipeline.search.codes import Floats
from pipeline.search.embedding import Embedder
from pipeline.search.indexing import Index
from pipeline.text.prompts import Prompts
from pipeline.vectors.contract import Similarity

Verdict = Literal["same_space", "usable_with_loss", "re_index"]
ITSELF = "its own passages"
"""Stands for a collection where an index is compared by what it holds."""
OWN_PAIRS = "graded_pairs"
"""The collection of the package's own sentence pairs, for where no other is at hand."""
_NEAR_SCORE = 4.0
_SAME_COSINE, _SAME_RECALL = 0.97, 0.99
_USABLE_RECALL = 0.90
_OF_INDEX = 500
"""Passages of a stored index that are embedded anew."""
_WORST = 3


@dataclass(frozen=True)
class Collection:
    """Texts by which search is compared."""

    name: str
    judged: Judged

    @property
    def judgements(self) -> Judgements:
        """The judgements, for queries and documents in their own order."""
        relevant = [list(one.items()) for one in self.judged.relevant]
        queries, documents = (list(range(len(one))) for one in (self.judged.queries, self.judged.documents))
        return Judgements(self.name, queries, documents, relevant, list(self.judged.itself))


class Model(Protocol):
    """An open model, ours or another tool's."""

    @property
    def name(self) -> str:
        """Its folder or file, for messages."""

    @property
    def space(self) -> str | None:
        """Id of the space of its vectors; None where nobody said it."""

    @property
    def prompts(self) -> Prompts:
        """Its prompts by name."""

    @property
    def compared_by(self) -> Similarity:
        """How its vectors are compared in a search."""

    @property
    def embed(self) -> Callable[[Sequence[str], str | None], tuple[Floats, int]]:
        """The function that embeds texts behind a prompt, and tells how many it truncated."""


@dataclass(frozen=True)
class Side:
    """The vectors of one model, or those that an index has stored."""

    name: str
    space: str | None
    """None for a file without a contract."""
    width: int
    texts: Floats
    """Of the texts that both sides embed, `(texts, width)`."""
    searched: Mapping[str, tuple[Floats, Floats]]
    """By the collection's name, the vectors of its queries and of its documents."""
    compared_by: Similarity = "cosine"
    """How an index of its vectors orders passages."""
    truncated: int = 0
    """How many of the texts were longer than the model takes."""


@dataclass(frozen=True)
class Searched:
    """Recall over one collection: the old model by itself, and the new one's queries on the old one's vectors."""

    collection: str
    queries: int
    documents: int
    old: float
    """Recall@10 of the old model's queries on its own vectors."""
    across: float
    """Recall@10 of the new model's queries on the old one's vectors."""
    new: float | None
    """Recall@10 of the new model by itself, as after indexing again; None where that is not known."""
    low: float
    """Lower end of the 95 % interval of `across - old`."""
    high: float
    old_at_1: float
    across_at_1: float


@dataclass(frozen=True)
class Comparison:
    """What becomes of an index of the old model's vectors when the new model asks."""

    old: str
    new: str
    old_space: str | None
    new_space: str | None
    verdict: Verdict
    said: str
    texts: int
    mean_cosine: float | None
    """Between the two vectors of a text, over all texts; None where their widths differ."""
    worst_cosine: float | None
    old_truncated: int
    """How many of the texts the old model truncated: where the new one does not, their vectors differ."""
    new_truncated: int
    worst: list[tuple[str, float]]
    """The texts whose vectors differ most."""
    searched: list[Searched]

    @property
    def recall_kept(self) -> float:
        """The share of the old model's recall@10 that is left, over the queries of all collections."""
        weights = [row.queries for row in self.searched]
        before = float(np.average([row.old for row in self.searched], weights=weights))
        after = float(np.average([row.across for row in self.searched], weights=weights))
        return after / before if before else 0.0


def collections(names: Sequence[str], here: Path) -> list[Collection]:
    """Return the collections of some names; without names, all that are at hand, or else the package's own pairs.

    Raises:
        InputError: there is none of a name, or its files are not there.
    """
    named = [name for name in names or retrieval.NAMES if name != OWN_PAIRS]
    found, skipped = retrieval.chosen(named, here, "--retrieval")
    if names and skipped:
        name, reason = next(iter(skipped.items()))
        raise InputError(f"--retrieval {name}: {reason}.")
    chosen = [Collection(source.name, source.load()) for source in found]
    if not chosen or OWN_PAIRS in names:
        pairs = DATASETS[OWN_PAIRS].load()
        chosen.append(Collection(OWN_PAIRS, retrieval.partners(pairs, least=_NEAR_SCORE)))
    return chosen


def of_model(model: Model, texts: Sequence[str], chosen: Sequence[Collection]) -> Side:
    """Embed the texts, and the collections, with an open model."""
    prompts = model.prompts
    searched = {}
    for one in chosen:
        queries, _ = model.embed(one.judged.queries, prompts.of_queries)
        documents, _ = model.embed(one.judged.documents, prompts.of_documents)
        searched[one.name] = queries, documents
    vectors, truncated = model.embed(texts, prompts.of_documents)
    return Side(model.name, model.space, vectors.shape[1], vectors, searched, model.compared_by, truncated)


def compare(old: Side, new: Side, texts: Sequence[str], chosen: Sequence[Collection]) -> Comparison:
    """Compare two models by vectors that are there.

    Args:
        old: whose vectors an index has.
        new: which asks.
        texts: those that both embedded.
        chosen: the collections that both embedded.
    """
    if old.width != new.width:
        return _of_other_width(old, new, len(texts))
    cosines = np.nan_to_num(measures.cosine(old.texts, new.texts))
    searched = [_searched(one, old, new) for one in chosen]
    return _judged(old, new, texts, cosines, searched)


def compare_with_index(index: Index, new: Embedder) -> Comparison:
    """Compare a model with the vectors that an index has stored, by the index's own passages.

    The model embeds passages anew, each as a passage: it has to come out near the stored vector, and to find itself
    among all that the index holds.

    Raises:
        InputError: the index is empty.
    """
    if not len(index):
        raise InputError(f"{index.folder} has no passages yet, so there is nothing to compare.")
    about = index.about
    passages, stored = index.sample(_OF_INDEX)
    texts = [one.text for one in passages]
    vectors, _ = new.embed(texts, about.document_prompt)
    old = Side(str(index.folder), about.space, about.width, stored, {})
    side = Side(new.name, new.vectors.space, vectors.shape[1], vectors, {})
    if about.width != side.width and about.width not in new.vectors.widths:
        return _of_other_width(old, side, len(texts))
    cosines = _cosines(about, stored, vectors)
    # By the dot product not even the stored vector of each passage finds it. One that was cut is filled up, since the
    # index compares by the query's first numbers.
    filled = np.pad(stored, ((0, 0), (0, side.width - about.width)))
    before_first, before = _finding_themselves(index, texts, filled)
    first, among = _finding_themselves(index, texts, vectors)
    low, high = ranking.interval(before, among)
    own = Searched(
        collection=ITSELF,
        queries=len(texts),
        documents=len(index),
        old=float(before.mean()),
        across=float(among.mean()),
        new=None,
        low=low,
        high=high,
        old_at_1=float(before_first.mean()),
        across_at_1=float(first.mean()),
    )
    return _judged(old, side, texts, cosines, [own])


def _finding_themselves(index: Index, texts: Sequence[str], queries: Floats) -> list[NDArray[np.float64]]:
    """Return which passages of an index are nearest to their own query, and which are among the ten nearest.

    Of passages with one text any will do: all of them are as near.
    """
    found = [[hit.text for hit in index.search(query, ranking.DEPTH)] for query in queries]
    return [
        np.array([own in near[:depth] for own, near in zip(texts, found, strict=True)], np.float64)
        for depth in (1, ranking.DEPTH)
    ]


def _cosines(about: About, stored: Floats, vectors: Floats) -> NDArray[np.float64]:
    """Return the cosine between the stored and the new vector of each text.

    Of bits only the signs are known: where a share h of them differ, the angle is about πh.

    Source: Charikar 2002 (similarity estimation by random hyperplanes).
    """
    if about.storage == "bits":
        signs = codes.decode(codes.encode(vectors, about), about)
        estimated: NDArray[np.float64] = np.cos(np.pi * (stored != signs).mean(axis=1))
        return estimated
    return np.nan_to_num(measures.cosine(stored, vectors[:, : about.width]))


def _searched(one: Collection, old: Side, new: Side) -> Searched:
    (asked, stored), (asked_anew, stored_anew) = old.searched[one.name], new.searched[one.name]
    of_old, across, of_new = (
        ranking.by_query(one.judgements, ranking.near(queries, documents, by))
        for queries, documents, by in (
            (asked, stored, old.compared_by),
            (asked_anew, stored, old.compared_by),
            (asked_anew, stored_anew, new.compared_by),
        )
    )
    low, high = ranking.interval(of_old["recall_at_10"], across["recall_at_10"])
    return Searched(
        collection=one.name,
        queries=len(one.judged.queries),
        documents=len(one.judged.documents),
        old=float(of_old["recall_at_10"].mean()),
        across=float(across["recall_at_10"].mean()),
        new=float(of_new["recall_at_10"].mean()),
        low=low,
        high=high,
        old_at_1=float(of_old["recall_at_1"].mean()),
        across_at_1=float(across["recall_at_1"].mean()),
    )


def _of_other_width(old: Side, new: Side, texts: int) -> Comparison:
    said = f"vectors of {old.width} numbers are stored, and {new.name} gives {new.width}: index again"
    return Comparison(
        old.name,
        new.name,
        old.space,
        new.space,
        "re_index",
        said,
        texts,
        None,
        None,
        old.truncated,
        new.truncated,
        [],
        [],
    )


def _judged(
    old: Side, new: Side, texts: Sequence[str], cosines: NDArray[np.float64], searched: list[Searched]
) -> Comparison:
    order = np.argsort(cosines)[:_WORST]
    found = Comparison(
        old=old.name,
        new=new.name,
        old_space=old.space,
        new_space=new.space,
        verdict="re_index",
        said="",
        texts=len(texts),
        mean_cosine=float(cosines.mean()),
        worst_cosine=float(cosines.min()),
        old_truncated=old.truncated,
        new_truncated=new.truncated,
        worst=[(texts[number], float(cosines[number])) for number in order],
        searched=searched,
    )
    verdict, said = _verdict(found)
    return replace(found, verdict=verdict, said=said)


def _verdict(found: Comparison) -> tuple[Verdict, str]:
    kept, cosine = found.recall_kept, found.mean_cosine or 0.0
    ids = "" if found.old_space == found.new_space else ", though the ids of their spaces differ"
    if cosine >= _SAME_COSINE and kept >= _SAME_RECALL:
        return "same_space", f"one space: stored vectors may stay{ids}"
    if kept >= _USABLE_RECALL:
        return "usable_with_loss", f"usable with loss: {kept:.1%} of recall@10 are left; index again when there is time"
    return "re_index", f"index again: {kept:.1%} of recall@10 would be left"
