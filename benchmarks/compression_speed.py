"""How much faster a row's files are than unpruned ones, read off the records of `benchmarks/pruned_speed.py`.

Once rows have their files, one run for each unpruned student is
`python -m benchmarks.pruned_speed R/stsb-0.toml R/stsb-half-0.toml … --build build/tables/compression
--results benchmarks/results/compression-speed/stsb`, with R for build/tables/compression/recipes. A ratio counts only
where both files that were timed are those that the table's records are of.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import pruned_speed_record, trials_record
from benchmarks.pruned_speed_record import Speed
from benchmarks.trials import Row, Table, Trial
from pipeline.convert.stage import Target

BACKENDS = ("litert", "executorch")
LENGTH = 128
"""Tokens of the rows that are compared, as in the encoder's multiply-adds."""

_WHOLE = 1.001


def folder(table: Table) -> Path:
    """Return where records of speed are looked for, below it too."""
    return table.records / f"{table.name}-speed"


def read(table: Table) -> list[Speed]:
    """Return the runs at hand."""
    return [pruned_speed_record.read(path) for path in sorted(folder(table).rglob("pruned-speed-*.json"))]


def faster(table: Table, row: Row, speeds: Sequence[Speed]) -> str:
    """Return a row's cell: the unpruned files' time over its own in LiteRT and ExecuTorch."""
    found = [_of_backend(table, row, backend, speeds) for backend in BACKENDS]
    if all(one is None for one in found):
        return "not measured"
    return " / ".join(one or "—" for one in found)


def times(table: Table, row: Row, backend: str, speeds: Sequence[Speed]) -> float | None:
    """Return how many times as fast as the unpruned file a row's file is, or None where that was not measured."""
    found, _ = _timed(table, row, backend, speeds)
    return found.wall.value if found else None


def _of_backend(table: Table, row: Row, backend: str, speeds: Sequence[Speed]) -> str | None:
    one, old = _timed(table, row, backend, speeds)
    if one is None:
        return "stale" if old else None
    # Nothing is promised to a student whose encoder is whole.
    verdict = f", {one.verdict}" if one.promised > _WHOLE else ""
    return f"{one.wall.value:.2f} of {one.promised:.2f}{verdict}"


def _timed(
    table: Table, row: Row, backend: str, speeds: Sequence[Speed]
) -> tuple[pruned_speed_record.Row | None, bool]:
    """Return a row's ratio, or None; and whether files were timed that are others by now."""
    name = Trial(row, row.seeds[0]).name
    old = False
    for speed in speeds:
        for one in speed.rows:
            if (one.recipe, one.backend, one.seq_len) == (name, backend, LENGTH):
                target = Target(backend, one.scheme)
                if all(_same_file(table, which, target, speed) for which in (name, speed.unpruned)):
                    return one, False
                # Another run may have timed the files that count.
                old = True
    return None, old


def _same_file(table: Table, name: str, target: Target, speed: Speed) -> bool:
    """Return whether a file that was timed is that of the record of a trial."""
    trial = next((one for one in table.trials() if one.name == name), None)
    record = trials_record.read(table, trial)[0] if trial else None
    recorded = [
        file.digest
        for file in (record.files if record else ())
        if (file.backend, file.scheme) == (target.backend, target.scheme)
    ]
    timed = [one.model.sha256 for one in speed.records if one.model.id == f"{name}-{target}"]
    return bool(recorded) and recorded == list(dict.fromkeys(timed))


def said(speeds: Sequence[Speed]) -> Iterator[str]:
    """Yield what was timed against what, and on which machine."""
    for speed in speeds:
        device = speed.records[0].device
        yield f"`{speed.unpruned}` on {device.model_id} ({' '.join(device.cpu_features)}), {speed.rounds} rounds"
