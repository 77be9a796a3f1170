"""Embeddings by a file that another tool made, found out how to call it against its checkpoint."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.errors import InputError
from pipeline.execution.worker import Worker
from pipeline.foreign import calling, reference
from pipeline.foreign.calling import Call, File
from pipeline.foreign.judge import Request, Rows, check, look_up, workers
from pipeline.formats.ports import Array
from pipeline.kinds import PoolingMode
from pipeline.text.prompts import Prompts
from pipeline.vectors.contract import Similarity

_TASK = "embedding"
_TEXTS, _TRIAL = 40, 8
"""Texts of verification that are encoded, and those of them with which ways to call the file are tried."""


@dataclass(frozen=True)
class ForeignEmbedder:
    """An open file of another tool, that embeds."""

    name: str
    prompts: Prompts
    compared_by: Similarity
    embed: Callable[[Sequence[str], str | None], tuple[Array, int]]
    """`(texts, name of a prompt) -> (embeddings (texts, width), how many texts were truncated)`."""
    space: str | None = None
    """Nobody has said of such a file which space it has."""


@contextmanager
def opened(
    path: Path, checkpoint: str, tell: Callable[[str], None], *, pooling: PoolingMode | None = None
) -> Iterator[ForeignEmbedder]:
    """Open a file against the checkpoint that it is of, until the block ends.

    Args:
        path: the file.
        checkpoint: its tokenizer, prompts and head are the file's; see `judge.Request`.
        tell: called before a download.
        pooling: of a bare encoder.

    Raises:
        PipelineError: see `judge.judge`.
        InputError: the checkpoint gives no embeddings.
    """
    check(path)
    known = look_up(Request(path, checkpoint, _TASK, pooling, thorough=False), tell)
    with workers() as (worker, log, scratch):
        facts = worker.call(
            reference.open_checkpoint, known.source.folder, _TASK, known.section, scratch, known.longest
        )
        file = File.open(path.resolve(), log)
        try:
            ways, lengths = calling.entries(file, facts, known.longest)
            samples = worker.call(reference.samples, lengths.longest, _TEXTS)
            single = [one for one in samples if one.text.second is None]
            trial = single[:: max(1, len(single) // _TRIAL)][:_TRIAL]
            call = calling.find(file, worker, facts, known.task.output_kind, ways, lengths, trial)

            def embed(texts: Sequence[str], prompt: str | None) -> tuple[Array, int]:
                return _embed(file, worker, call, texts, facts.prompts.text(prompt))

            yield ForeignEmbedder(str(path), facts.prompts, facts.compared_by, embed)
        finally:
            file.close()


def _embed(file: File, checkpoint: Worker, call: Call, texts: Sequence[str], prompt: str) -> tuple[Array, int]:
    samples, truncated = checkpoint.call(reference.encoded, texts, prompt)
    rows = Rows(samples, [call.lengths.at(len(one.row)) for one in samples])
    outputs = calling.run(file, checkpoint, rows.parts(call), call.reading)
    by_number = dict(zip(rows.order(call), outputs, strict=True))
    found = np.concatenate([by_number[at] for at in range(len(outputs))]).astype(np.float32)
    if not np.isfinite(found).all():
        first = int(np.flatnonzero(~np.isfinite(found).all(axis=1))[0])
        raise InputError(f"{file.path} gives NaN or infinity for {texts[first][:80]!r}.")
    return found, truncated
