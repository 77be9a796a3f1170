"""Nearest neighbours of an embedding among candidate texts: what `predict` shows for the embedding task."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.convert.model import Model, Prediction, load
from pipeline.errors import InputError
from pipeline.text.bundled import everyday_sentences


@dataclass(frozen=True)
class Neighbour:
    """A candidate and its cosine to the text."""

    text: str
    cosine: float


def candidates(file: Path) -> list[str]:
    """Return the lines of a file that hold anything.

    Raises:
        InputError: the file is absent, not UTF-8, or empty.
    """
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text.") from error
    if not lines:
        raise InputError(f"{file} has no line of text; give one candidate a line.")
    return lines


def answer(
    file: Path, texts: Sequence[str | tuple[str, str]], among: Sequence[str] | None, *, top: int, threads: int
) -> tuple[list[Prediction], list[list[Neighbour]] | None]:
    """Load a model, predict, and for embeddings look for neighbours: the work of `predict`, done in a worker.

    Raises:
        PipelineError: see `runtime.load` and `Model.predict`.
        InputError: candidates were given, and the model gives no embeddings.
    """
    model = load(file, threads=threads)
    predictions = model.predict(texts)
    if model.signature.output_kind == "embedding":
        return predictions, find(model, predictions, among or everyday_sentences(), top=top)
    if among:
        raise InputError(
            f"{file} gives {model.signature.output_kind}; --among is for embeddings, which have neighbours."
        )
    return predictions, None


def find(model: Model, predictions: Sequence[Prediction], texts: Sequence[str], *, top: int) -> list[list[Neighbour]]:
    """Return the nearest candidates of each prediction, best first."""
    vectors = np.stack([prediction.vector for prediction in model.predict(texts)])
    result = []
    for prediction in predictions:
        cosines = vectors @ prediction.vector
        best = np.argsort(-cosines)[:top]
        result.append([Neighbour(texts[number], float(cosines[number])) for number in best])
    return result
