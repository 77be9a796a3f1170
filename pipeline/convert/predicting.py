"""The work of `pocketbert predict`: a model that stays open in a worker and answers texts batch by batch."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.convert import zero_shot
from pipeline.convert.model import LabelScores, Model, Prediction, load
from pipeline.errors import InputError, no_file
from pipeline.metrics import measures
from pipeline.text.bundled import everyday_sentences

_BATCH = 32
"""Most lines that go to the worker at once."""
_CHUNK_BYTES = 1 << 16
_LARGEST_CANDIDATES_BYTES = 1 << 26
"""A million lines of sixty characters take an hour."""
_SHELL_PIPES = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""Where a shell's `<(command)` and `/dev/stdin` are."""


@dataclass(frozen=True)
class NearText:
    """A candidate and the cosine of its embedding to a text's."""

    text: str
    cosine: float


def read_candidates(file: Path) -> list[str]:
    """Return the lines of a file that hold anything.

    Raises:
        InputError: the file is absent, no regular file, too large, not UTF-8, or empty.
    """
    try:
        # Editors on Windows begin a file with a byte order mark, which is no part of its first line.
        text = _read_limited(file).decode("utf-8-sig")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
    except OSError as error:
        why = f"cannot be read: {error.strerror}" if os.path.exists(file) else no_file(file)
        raise InputError(f"{file} {why}; name a text file with a candidate a line.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text.") from error
    if not lines:
        raise InputError(f"{file} has no line of text; give one candidate a line.")
    return lines


def _read_limited(file: Path) -> bytes:
    """Read a file of texts. A named pipe would be waited for, and a device never ends; a shell's own pipes do."""
    if os.path.exists(file) and not os.path.isfile(file) and not str(file).startswith(_SHELL_PIPES):
        raise InputError(f"{file} {no_file(file)}; name a text file with a candidate a line.")
    with file.open("rb") as handle:
        content = handle.read(_LARGEST_CANDIDATES_BYTES + 1)
    if len(content) > _LARGEST_CANDIDATES_BYTES:
        raise InputError(
            f"{file} has more than {_LARGEST_CANDIDATES_BYTES / 1e6:.0f} MB, and each line is a text to be run; "
            "name a smaller file."
        )
    return content


@dataclass(frozen=True)
class Settings:
    """What a model is asked, whatever the texts."""

    file: Path
    head: str | None = None
    threads: int = 1
    prompt: str | None = None
    among: tuple[str, ...] | None = None
    """Candidates for the neighbours of an embedding; None for everyday sentences."""
    top: int = 3
    labels: tuple[str, ...] | None = None
    """Labels of the user's own; None for the model's own answer."""
    template: str | None = None
    multi_label: bool = False


@dataclass(frozen=True)
class Answer:
    """A model's answer to one text: a prediction, or the scores of the user's labels."""

    text: str
    prediction: Prediction | None = None
    near: Sequence[NearText] | None = None
    """The nearest candidates of an embedding; None elsewhere."""
    scores: LabelScores | None = None


def batches(stream: int) -> Iterator[list[str]]:
    """Yield the lines of a file descriptor in batches: those that are there, and it waits only where there is none.

    Blank lines are left out.

    Raises:
        InputError: a line is not UTF-8, or longer than a file of candidates may be.
    """
    rest, number, chunk = b"", 0, b" "
    while chunk:
        chunk = os.read(stream, _CHUNK_BYTES)
        *lines, rest = (rest + (chunk or b"\n")).split(b"\n")
        if len(rest) > _LARGEST_CANDIDATES_BYTES:
            raise InputError(f"line {number + len(lines) + 1} of standard input has no end; give a text a line.")
        texts = []
        for line in lines:
            number += 1
            texts.append(_decoded(line, number))
        texts = [text for text in texts if text]
        for begin in range(0, len(texts), _BATCH):
            yield texts[begin : begin + _BATCH]


def _decoded(line: bytes, number: int) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
    except UnicodeDecodeError as error:
        raise InputError(f"line {number} of standard input is not UTF-8 text.") from error


_opened: tuple[Model, Settings, NDArray[np.float32] | None] | None = None
"""In a worker process: the open model, what it is asked, and the vectors of the candidates."""


def open_model(settings: Settings) -> None:
    """Open a model in this worker process, and embed the candidates once.

    Raises:
        PipelineError: see `pipeline.load`.
        InputError: candidates were given, and the model gives no embeddings.
    """
    global _opened
    model = load(settings.file, threads=settings.threads, head=settings.head)
    vectors = None
    _opened = model, settings, vectors
    if settings.labels is None:
        if model.signature.output_kind == "embedding":
            vectors = _candidate_vectors(model, settings)
        elif settings.among:
            raise InputError(
                f"{settings.file} gives {model.signature.output_kind}; --among is for embeddings, which have "
                "neighbours."
            )
    _opened = model, settings, vectors


def close_model() -> None:
    """Close the open model, so that a worker that goes on has the runtime to itself."""
    global _opened
    if _opened is not None:
        _opened[0].close()
        _opened = None


def answer(texts: Sequence[str | tuple[str, str]]) -> list[Answer]:
    """Answer a batch of texts or pairs by the open model.

    Raises:
        PipelineError: see `Model.predict` and `Model.zero_shot`.
    """
    assert _opened is not None
    model, settings, vectors = _opened
    if settings.labels is not None:
        template = zero_shot.TEMPLATE if settings.template is None else settings.template
        return [
            Answer(text, scores=model.zero_shot(text, settings.labels, template, multi_label=settings.multi_label))
            for text in map(str, texts)
        ]
    found = model.predict(texts, prompt=settings.prompt)
    if vectors is None:
        return [Answer(one.text, one) for one in found]
    candidates = settings.among or everyday_sentences()
    return [Answer(one.text, one, _nearest(one, vectors, candidates, settings.top)) for one in found]


def _candidate_vectors(model: Model, settings: Settings) -> NDArray[np.float32]:
    """Embed the candidates; if the texts have a prompt by name, candidates get the model's prompt for documents."""
    prompt = model.signature.wanted.of_documents if settings.prompt else settings.prompt
    return np.stack([one.vector for one in model.predict(settings.among or everyday_sentences(), prompt=prompt)])


def _nearest(
    prediction: Prediction, vectors: NDArray[np.float32], candidates: Sequence[str], top: int
) -> list[NearText]:
    """Return the candidates nearest to a prediction, best first."""
    cosines = np.nan_to_num(measures.cosine(vectors, np.broadcast_to(prediction.vector, vectors.shape)))
    return [NearText(candidates[number], float(cosines[number])) for number in np.argsort(-cosines)[:top]]
