"""Time bare encoders of a few shapes against each other: what their parts cost follows from the differences.

The files take turns, so that a busy moment of the machine hits all of them; the fastest run of each counts, since other
processes can only slow a run down.
"""

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from pipeline import formats
from pipeline.architectures.layers import put
from pipeline.checkpoint import shapes
from pipeline.formats import ConvertRequest, Inputs
from pipeline.formats.signature import Signature

_VOCABULARY_SIZE = 128
"""Vocabulary size of the timed files."""
_ROUNDS, _RUNS = 12, 5
"""Rounds, and runs per file in each."""


@dataclass(frozen=True)
class TimedFile:
    """An encoder's file with one length."""

    path: Path
    signature: Signature


def keep_few_tokens(base: Any) -> None:
    """Leave a bare encoder the first tokens of its vocabulary: a look-up costs the same in a table of any size."""
    table = base.get_input_embeddings()
    # A factorised table is followed by its second factor.
    table = table[0] if isinstance(table, nn.Sequential) else table
    assert isinstance(table, nn.Embedding)
    few = nn.Embedding.from_pretrained(table.weight.detach()[:_VOCABULARY_SIZE].clone(), freeze=False)
    put(base, next(path for path, module in base.named_modules() if module is table), few)
    base.config.vocab_size = _VOCABULARY_SIZE


def convert(model: Any, backend: str, scheme: str, *, length: int, parent: Path) -> TimedFile:
    """Convert an encoder at one length, by way of the format's base scheme if it has one."""
    folder = parent / "student"
    folder.mkdir(parents=True)
    shapes.save(model, folder)
    chosen = formats.get(backend)
    first = chosen.BASE_SCHEME if chosen.BASE_SCHEME not in (None, scheme) else None
    file: Path | None = None
    for name in dict.fromkeys(one for one in (first, scheme) if one is not None):
        out = parent / name
        out.mkdir()
        request = ConvertRequest(
            folder, "embedding", name, (length,), minimum_ios=None, base=file, metadata={}, labels=None
        )
        chosen.convert(request, out)
        file = out / chosen.FILE
    assert file is not None
    signature = Signature(
        backend=backend,
        scheme=scheme,
        task="embedding",
        output_kind="embedding",
        file=file.name,
        minimum_runtime=chosen.MINIMUM_RUNTIME,
        pad_token_id=0,
        labels=None,
        functions=tuple(chosen.inspect(file)),
        parameters=0,
    )
    return TimedFile(file, signature)


def fastest_ms(files: Sequence[TimedFile]) -> list[float]:
    """Return the milliseconds of each file's fastest run on one thread; the files take turns."""
    fastest = [math.inf] * len(files)
    with contextlib.ExitStack() as stack:
        runs = []
        for file in files:
            session = formats.get(file.signature.backend).load(file.path, file.signature, threads=1)
            stack.callback(session.close)
            (function,) = file.signature.functions
            inputs: Inputs = {tensor.name: np.ones((1, function.max_length), np.int32) for tensor in function.inputs}
            session.run(function, inputs)
            runs.append((session, function, inputs))
        for _ in range(_ROUNDS):
            for number, (session, function, inputs) in enumerate(runs):
                for _ in range(_RUNS):
                    started = time.perf_counter()
                    session.run(function, inputs)
                    fastest[number] = min(fastest[number], (time.perf_counter() - started) * 1e3)
    return fastest
