"""Retrieval collections: documents, queries and judgements of which document answers which query.

Three are made of public files in the folder that `POCKETBERT_DATA` names. Any other is a folder in BEIR's layout:
`corpus.jsonl`, `queries.jsonl` and `qrels/*.tsv`.

Source: Thakur et al. 2021 (BEIR).
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.artifact import digest_of
from pipeline.data import readers
from pipeline.data.datasets import DATASETS, Labelled, data_folder_note
from pipeline.data.location import locate
from pipeline.errors import InputError
from pipeline.execution import planned

_CORPUS, _QUERIES, _JUDGEMENTS = "corpus.jsonl", "queries.jsonl", "qrels"
_SPLITS = ("test", "dev")
"""Names of BEIR's files of judgements, best first; those for training judge nothing."""
_NEAR_SCORE = 4.0
"""STS-B's score from which on two sentences count as saying the same: "equivalent, some unimportant details differ"."""
_ENTAILED = 0.0


@dataclass(frozen=True)
class Judged:
    """A collection that was read."""

    queries: tuple[str, ...]
    documents: tuple[str, ...]
    relevant: tuple[Mapping[int, int], ...]
    """For each query the grade, from 1 on, of each document that answers it, by the document's number."""
    itself: tuple[int | None, ...]
    """For each query the number of the document that is the query's own text, and no answer; None for none."""

    @property
    def texts(self) -> Iterator[str]:
        """Every query and document."""
        yield from self.queries
        yield from self.documents


@dataclass(frozen=True)
class Source:
    """A collection that a recipe names, before it is read."""

    name: str
    files: tuple[Path, ...]
    read: Callable[[Sequence[Path]], Judged]

    def load(self) -> Judged:
        """Read the collection.

        Raises:
            InputError: a file is absent or malformed, or no query has an answer.
        """
        missing = next((file for file in self.files if not file.is_file()), None)
        if missing is not None:
            raise InputError(f"collection {self.name}: {missing} does not exist.{data_folder_note()}")
        found = self.read(self.files)
        if not found.queries:
            raise InputError(f"collection {self.name}: no query has a document that answers it.")
        return found

    def digest(self) -> str:
        """Return a digest of the files."""
        return digest_of([self.name, *map(planned.digest, self.files)])


class _Building:
    """Documents and queries, each text once."""

    def __init__(self) -> None:
        self.documents: dict[str, int] = {}
        self.relevant: dict[str, dict[int, int]] = {}

    def document(self, text: str) -> int:
        return self.documents.setdefault(text, len(self.documents))

    def judge(self, query: str, document: str, grade: int = 1) -> None:
        self.relevant.setdefault(query, {})[self.document(document)] = grade

    def done(self) -> Judged:
        return Judged(
            tuple(self.relevant),
            tuple(self.documents),
            tuple(self.relevant.values()),
            tuple(self.documents.get(query) for query in self.relevant),
        )


def _questions(files: Sequence[Path]) -> Judged:
    """Questions as queries, and every passage of the file as a document."""
    found = _Building()
    for one in readers.squad(files[0], (0, 1, 2)):
        found.judge(one.question, one.passage)
    return found.done()


def _entailed(files: Sequence[Path]) -> Judged:
    """Hypotheses as queries, each answered by the premise that entails it; every premise of the file is a document."""
    found = _Building()
    for row in DATASETS["rte"].load():
        found.document(row.first)
        if row.label == _ENTAILED and row.second:
            found.judge(row.second, row.first)
    return found.done()


def _partners(files: Sequence[Path]) -> Judged:
    return partners(DATASETS["stsb"].load(), least=_NEAR_SCORE)


def partners(pairs: Sequence[Labelled], *, least: float) -> Judged:
    """Return sentences of near pairs as queries, each answered by its partner among all sentences.

    Args:
        pairs: graded pairs.
        least: the score from which on a pair is near.
    """
    found = _Building()
    for row in pairs:
        assert row.second is not None
        found.document(row.first)
        found.document(row.second)
        if row.label >= least and row.first != row.second:
            found.judge(row.first, row.second)
    return found.done()


_PUBLIC: Mapping[str, tuple[str, Callable[[Sequence[Path]], Judged]]] = {
    "xquad_passages": ("xquad", _questions),
    "rte_premises": ("rte", _entailed),
    "stsb_partners": ("stsb", _partners),
}
"""By name: the dataset whose file it is made of, and its reader."""
NAMES = tuple(_PUBLIC)


def chosen(names: Collection[str], recipe_file: Path, key: str) -> tuple[list[Source], dict[str, str]]:
    """Return the collections that a recipe names, and the known ones whose files are not there, with the reason.

    Args:
        names: names of `NAMES`, or folders in BEIR's layout.
        recipe_file: relative paths start at its folder.
        key: the recipe's key that names them, for errors.

    Raises:
        InputError: a name is neither a collection nor a folder.
    """
    found, skipped = [], {}
    for name in dict.fromkeys(names):
        if name not in _PUBLIC:
            found.append(_folder(name, recipe_file, key))
            continue
        dataset, read = _PUBLIC[name]
        path, reason = DATASETS[dataset].path(), DATASETS[dataset].absent()
        if path is None or reason is not None:
            skipped[name] = str(reason)
        else:
            found.append(Source(name, (path,), read))
    return found, skipped


def _folder(name: str, recipe_file: Path, key: str) -> Source:
    folder = locate(name, recipe_file)
    if not folder.is_dir():
        raise InputError(
            f"{key}: {name!r} is neither a collection nor a folder. There are: {', '.join(NAMES)}; a folder has "
            f"{_CORPUS}, {_QUERIES} and {_JUDGEMENTS}/test.tsv, as BEIR's have."
        )
    judgements = [folder / _JUDGEMENTS / f"{split}.tsv" for split in _SPLITS]
    found = next((file for file in judgements if file.is_file()), judgements[0])
    return Source(folder.name, (folder / _CORPUS, folder / _QUERIES, found), _beir)


def _beir(files: Sequence[Path]) -> Judged:
    corpus, queries = (_texts(file) for file in files[:2])
    found = _Building()
    for text in corpus.values():
        found.document(text)
    for number, (query, document, score) in readers.table(files[2], ("query-id", "corpus-id", "score")):
        where = f"{files[2]}, row {number}"
        for one, known, file in ((query, queries, files[1]), (document, corpus, files[0])):
            if one not in known:
                raise InputError(f"{where}: id {one[:80]!r} is not in {file.name}.")
        try:
            grade = int(score)
        except ValueError as error:
            raise InputError(f"{where}: score {score[:80]!r} is no whole number.") from error
        if grade > 0:
            found.judge(queries[query], corpus[document], grade)
    return found.done()


def _texts(file: Path) -> dict[str, str]:
    """Return the texts of a file of BEIR's by their ids; a title stands before its text."""
    found: dict[str, str] = {}
    for number, record in readers.records(file):
        where = f"{file}, row {number}"
        given = record.get("_id"), record.get("text")
        if not all(isinstance(one, str) and one for one in given):
            raise InputError(f"{where}: it needs _id and text; there are: {', '.join(map(str, record))}.")
        title = record.get("title")
        text = f"{title} {record['text']}" if isinstance(title, str) and title.strip() else str(record["text"])
        if found.setdefault(str(record["_id"]), text) != text:
            raise InputError(f"{where}: _id {json.dumps(record['_id'])} stands there twice, with two texts.")
    return found


def judged_texts(names: Collection[str] | None, recipe_file: Path) -> frozenset[str]:
    """Return every query and document of the collections of `verify.retrieval`, which nothing may learn from.

    Raises:
        InputError: a collection cannot be read.
    """
    found, _ = chosen(names or (), recipe_file, "verify.retrieval")
    return frozenset(text for source in found for text in source.load().texts)
