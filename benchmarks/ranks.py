"""`python -m benchmarks.ranks REFERENCE FOLDER ...`: how a reranker's files order passages, against its fp32 file.

For each of XQuAD's questions (POCKETBERT_DATA) the candidates are the passage that answers it and others, of the same
article first, since they are the hardest to tell apart. Kendall's tau and the first place are what an app's user sees
of a reranker; the scores themselves are what `verify` compares.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import kendalltau

import pipeline
from pipeline.convert.model import model_folder
from pipeline.data import datasets, readers
from pipeline.errors import InputError, PipelineError

Scores = NDArray[np.float64]
_DATASET = "xquad"


@dataclass(frozen=True)
class Query:
    """A question and the passages that are ranked for it; the first one answers it."""

    question: str
    passages: tuple[str, ...]


def queries(path: Path, count: int, passages: int) -> list[Query]:
    """Choose questions, spread over the file, with their candidates.

    Args:
        path: a file in SQuAD's format.
        count: how many questions.
        passages: candidates of each, the right one included.
    """
    questions = list(readers.squad(path))
    every = list(dict.fromkeys(one.passage for one in questions))
    if len(every) < passages:
        raise InputError(f"{path} has {len(every)} passages; --passages asks for {passages}.")
    chosen = [questions[at] for at in np.linspace(0, len(questions) - 1, count).round().astype(int)]
    return [Query(one.question, tuple(_candidates(one.passage, every, passages))) for one in chosen]


def _candidates(right: str, every: Sequence[str], count: int) -> Iterator[str]:
    """Yield the right passage and its neighbours in the file, which are those of its article."""
    at = every.index(right)
    nearest = sorted(range(len(every)), key=lambda other: (abs(other - at), other))
    return (every[other] for other in nearest[:count])


def scores(folder: Path, asked: Sequence[Query], console: Console) -> Scores:
    """Return the file's score of each pair, `(questions, passages)`."""
    with pipeline.load(folder) as model:
        if model.signature.output_kind != "value":
            raise InputError(f"{folder} has the task {model.signature.task}; a reranker gives one number for a pair.")
        rows = [
            [float(one.vector[0]) for one in model.predict([(query.question, passage) for passage in query.passages])]
            for query in track(asked, f"{folder.parent.name}", console=console, transient=True)
        ]
    return np.array(rows)


def compared(reference: Scores, found: Scores) -> dict[str, float]:
    """Compare the order of passages, question by question."""
    tau = np.array([kendalltau(a, b).statistic for a, b in zip(reference, found, strict=True)])
    return {
        "mean Kendall's τ": float(tau.mean()),
        "worst τ": float(tau.min()),
        "same first place": float((reference.argmax(1) == found.argmax(1)).mean()),
        "right first place": float((found.argmax(1) == 0).mean()),
        "largest change of a score": float(np.abs(found - reference).max()),
    }


def main() -> int:
    """Rank with each file and print the comparison."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description=__doc__)
    parser.add_argument("reference", type=Path, help="the model folder of the fp32 file")
    parser.add_argument("folders", type=Path, nargs="+", help="model folders that are compared with it")
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--passages", type=int, default=10, help="candidates of each question")
    options = parser.parse_args()
    console = Console()
    try:
        dataset = datasets.DATASETS[_DATASET]
        path, absent = dataset.path(), dataset.absent()
        if path is None or absent:
            raise InputError(f"{_DATASET} is needed, and {absent}.{datasets.data_folder_note()}")
        for folder in (options.reference, *options.folders):
            # Before minutes of work for the others.
            model_folder(folder)
        asked = queries(path, options.questions, options.passages)
        reference = scores(options.reference, asked, console)
        rows = {folder: scores(folder, asked, console) for folder in options.folders}
    except PipelineError as error:
        print(error, file=sys.stderr)
        return 2
    _show(console, options.reference, reference, rows)
    return 0


def _show(console: Console, name: Path, reference: Scores, rows: dict[Path, Scores]) -> None:
    counted = f"{reference.shape[0]} questions, {reference.shape[1]} passages each"
    spread = f"scores have a standard deviation of {reference.std():.3g}"
    table = {folder: compared(reference, found) for folder, found in {name: reference, **rows}.items()}
    shown = Table("file", *table[name], title=f"{counted}; {spread}")
    for folder, values in table.items():
        shown.add_row(folder.parent.name, *(f"{value:.4f}" for value in values.values()))
    console.print(shown)


if __name__ == "__main__":
    sys.exit(main())
