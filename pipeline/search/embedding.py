"""Embeddings of many texts by a converted file in a worker process, whose runtime may take its process down."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from pipeline.convert.model import Model, load
from pipeline.convert.private_log import private_log
from pipeline.errors import InputError, PipelineError, ToolchainError
from pipeline.execution import worker
from pipeline.execution.worker import Worker
from pipeline.search.codes import Floats
from pipeline.text.prompts import Prompts
from pipeline.vectors.contract import Similarity, Vectors


class Embed(Protocol):
    """The function that embeds."""

    def __call__(
        self, texts: Sequence[str], prompt: str | None, told: Callable[[int], None] = ..., /
    ) -> tuple[Floats, int]:
        """Return the embeddings, `(texts, width)`, and how many texts were truncated.

        Args:
            texts: texts with at least a visible character.
            prompt: name of the prompt; None for the default one, an empty name for none.
            told: is told how many are embedded.
        """


@dataclass(frozen=True)
class Embedder:
    """An open embedding model: what is known of it, and the function that embeds."""

    name: str
    """Its folder, for messages."""
    made_by: str
    vectors: Vectors
    prompts: Prompts
    embed: Embed

    @property
    def space(self) -> str:
        """Id of the space of its vectors."""
        return self.vectors.space

    @property
    def compared_by(self) -> Similarity:
        """How its vectors are compared in a search."""
        return self.vectors.compared_by

    def check_prompt(self, name: str | None) -> None:
        """Refuse a prompt that the model does not have; an empty name is none.

        Raises:
            InputError: it has no such prompt.
        """
        if name and name not in self.prompts.texts:
            exist = ", ".join(self.prompts.texts) or "none; the model wants no prompts"
            raise InputError(f"--prompt {name[:80]!r} does not exist; there are: {exist}.")


@contextmanager
def opened(folder: Path, *, threads: int = 1) -> Iterator[Embedder]:
    """Open a converted embedding model in a worker, until the block ends.

    Args:
        folder: the model folder.
        threads: threads of the runtime.

    Raises:
        InputError: the model is none of embeddings.
        PipelineError: see `pipeline.load`.
    """
    # On one core a table would wait for its tokenizer.
    with private_log() as log, Worker(log, tokenize_on_all_cores=True) as process:

        def embed(
            texts: Sequence[str], prompt: str | None, told: Callable[[int], None] = lambda _: None, /
        ) -> tuple[Floats, int]:
            # Texts of one length after the other: a runtime prepares itself anew for each length.
            order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
            process.tell = lambda _, fraction: told(round(fraction * len(texts)))
            vectors, truncated = process.call(embed_texts, [texts[number] for number in order], prompt)
            return vectors[np.argsort(order)], truncated

        try:
            made_by, vectors, prompts = process.call(open_model, folder, threads)
            yield Embedder(str(folder), made_by, vectors, prompts, embed)
        except PipelineError:
            with suppress(PipelineError):
                process.call(close_model)
            raise
        process.call(close_model)


_model: Model | None = None
"""In a worker process: the open model."""


def open_model(folder: Path, threads: int) -> tuple[str, Vectors, Prompts]:
    """Open a model in this worker process; return what `Embedder` says of it."""
    global _model
    _model = load(folder, threads=threads)
    signature = _model.signature
    if signature.output_kind != "embedding":
        raise InputError(
            f"{folder} gives {signature.output_kind} (task {signature.task}); an index is made of embeddings. Name a "
            "model of task embedding."
        )
    if signature.vectors is None:
        raise InputError(
            f"{folder} was made before signatures had `vectors`, the contract of its embeddings. Make the target again "
            "with `pocketbert run`."
        )
    made_by = f"{signature.backend}-{signature.scheme}"
    return made_by, signature.vectors, signature.wanted


def close_model() -> None:
    """Close the open model, so that a worker that goes on has the runtime to itself."""
    global _model
    if _model is not None:
        _model.close()
        _model = None


def embed_texts(texts: Sequence[str], prompt: str | None) -> tuple[Floats, int]:
    """Embed texts, and tell the parent how far it is; return `(texts, width)` and how many were truncated.

    Raises:
        ToolchainError: an embedding is not finite.
    """
    assert _model is not None
    vectors, truncated = _model.embed(
        texts, prompt=prompt, told=lambda done: worker.tell("embedding", done / len(texts))
    )
    if not np.isfinite(vectors).all():
        first = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
        raise ToolchainError(
            f"the embedding of {texts[first][:80]!r} is not finite. `pocketbert verify` says more of the file."
        )
    return vectors.astype(np.float32, copy=False), truncated
