"""One pass over STS-B dev, as in the paper of 2019: PyTorch with every pair padded, and our files, all in turns."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from benchmarks.compare_cases import TASK
from benchmarks.compare_record import Pass, Passes
from pipeline import artifact
from pipeline.benchmark import timed
from pipeline.benchmark.stage import of_student, of_target
from pipeline.benchmark.variants import TimedCheckpoint, Variant
from pipeline.cli.progress import Progress
from pipeline.convert.stage import Target
from pipeline.convert.targets import finished_model
from pipeline.data.datasets import DATASETS
from pipeline.devices import host
from pipeline.execution.worker import Worker

TARGETS = (Target("litert", "fp32"), Target("litert", "int8_dynamic"), Target("executorch", "int8_dynamic"))
_PADDED = 128
"""Tokens to which the scripts of 2019 padded every pair."""
_CHUNK = 50
"""Pairs of one turn."""


class PaddedCheckpoint(TimedCheckpoint):
    """PyTorch with every row padded to the longest length."""

    def place(self, tokens: int) -> int:
        """Return the longest length."""
        return self.encoder.max_length


def measure(key: str, made: Sequence[tuple[str, Path]], log: Path, progress: Progress) -> Passes:
    """Time one pass of each variant over all pairs, some pairs a turn.

    Args:
        key: of what decides the result.
        made: models by name, with the folder of each one's student and files.
        log: where the runtimes' own words go.
        progress: is told.
    """
    variants = [one for name, folder in made for one in _variants(name.lower(), folder)]
    pairs = [(one.first, one.second or "") for one in DATASETS["stsb"].load()]
    started = datetime.now(UTC).isoformat(timespec="seconds")
    workers = [Worker(log) for _ in variants]
    sums = [[0.0, 0.0, 0.0] for _ in variants]
    label = "one pass over STS-B dev"
    progress.started(label)
    try:
        for worker, (variant, _) in zip(workers, variants, strict=True):
            worker.call(timed.prepare, variant.import_runtime)
            worker.call(timed.open_variant, partial(variant.open_with_threads, 1), pairs[0][0])
        for start in range(0, len(pairs), _CHUNK):
            progress.advanced(label, f"pair {start} of {len(pairs)}", start / len(pairs))
            for worker, total in zip(workers, sums, strict=True):
                tokens, _, wall, _, tokenise = worker.call(timed.time_texts, pairs[start : start + _CHUNK])
                total[0] += sum(tokens)
                total[1] += sum(wall) / 1e3
                total[2] += sum(tokenise) / 1e3
    finally:
        for worker in workers:
            worker.close()
    passes = [
        Pass(
            variant=variant.id,
            padded_to=padded,
            pairs=len(pairs),
            tokens=round(tokens),
            seconds=seconds,
            tokenise_seconds=tokenise,
        )
        for (variant, padded), (tokens, seconds, tokenise) in zip(variants, sums, strict=True)
    ]
    return Passes(key=key, machine=host.describe(), started_utc=started, passes=passes)


def _variants(name: str, folder: Path) -> list[tuple[Variant, int | None]]:
    """Return PyTorch with every pair padded as in 2019, and as it comes; then the files, which run at their lengths."""
    student = artifact.load(folder / "student")
    plain = replace(of_student(student, _PADDED), id=f"{name}-pytorch-fp32")
    padded = replace(plain, open_with_threads=partial(PaddedCheckpoint, student.path, TASK, _PADDED))
    files = [of_target(finished_model(folder, target), name) for target in TARGETS]
    return [(padded, _PADDED), (plain, None), *((file, None) for file in files)]
