"""`pocketbert verify FILE --against CHECKPOINT`: the verdict on a file that another tool made."""

import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import typer
from rich.markup import escape
from rich.table import Table

from pipeline.cli import documents, tables
from pipeline.cli.progress import Progress
from pipeline.cli.texts import plain, shortened
from pipeline.errors import EXIT_DONE, EXIT_GATE_FAILED
from pipeline.foreign.record import Cause, Judgement
from pipeline.kinds import PoolingMode

_VERDICT = {
    "same": "[green]same model[/green]",
    "rounded": "[green]same model, rounded[/green]",
    "another": "[red]another model[/red]",
}


def judge(
    file: str, checkpoint: str, task: str | None, pooling: PoolingMode | None, *, thorough: bool, as_json: bool
) -> None:
    """Judge a file against a checkpoint, print what was found, and leave with the exit code."""
    from pipeline.foreign import judge as judging

    with Progress(quiet=as_json) as progress:
        request = judging.Request(Path(file), checkpoint, task, pooling, thorough)
        found = judging.judge(request, progress.note)
    code = EXIT_DONE if found.is_same else EXIT_GATE_FAILED
    documents.show(as_json, dataclasses.asdict(found), partial(_print, found), code)
    raise typer.Exit(code)


def _print(found: Judgement) -> None:
    """Print a judgement: the verdict, the figures, how the file was called, and what that rests on."""
    tables.show(f"{escape(plain(found.file))}: {_VERDICT[found.verdict]}")
    table = Table(box=None, pad_edge=False, show_header=False)
    for title, text in _rows(found):
        table.add_row(title, escape(plain(text)))
    tables.show(table)


def _rows(found: Judgement) -> Iterator[tuple[str, str]]:
    yield "verdict", found.said
    if found.cause is not None and found.cause.error_variant is not None:
        yield "because", _evidence(found.cause)
    for other in found.others:
        yield "also", f"{other.words}{f' ({_evidence(other)})' if other.error_variant is not None else ''}"
    yield "checkpoint", f"{found.checkpoint}; {found.task}: {found.task_why}"
    yield "figures", "; ".join(_figures(found))
    if found.worst is not None:
        worst = found.worst
        padded = f" padded to {worst.length}" if worst.length > worst.tokens else ""
        yield "worst text", f"{_score(found, worst.score)} on {shortened(worst.text)!r}, {worst.tokens} tokens{padded}"
    yield "inputs", ", ".join(f"{name} = {role}" for name, role in found.inputs.items())
    yield "outputs", f"{', '.join(found.outputs)}; {found.lengths}"
    yield "weights", "; ".join(_weights(found))
    yield "run by", found.runtime
    if found.stands_in:
        yield "", found.stands_in
    for text in found.assumed:
        yield "assumed", text
    for text in found.notes:
        yield "note", text


def _evidence(cause: Cause) -> str:
    """Return how much nearer a file is to the error than to the checkpoint."""
    return (
        f"on {cause.rows} rows on which that shows, it is {cause.error_variant:.2g} from a reference that does so, and "
        f"{cause.error_reference:.2g} from the right one (relative error)"
    )


def _figures(found: Judgement) -> Iterator[str]:
    if found.mean_score is not None:
        yield f"mean {_score(found, found.mean_score)}"
    if found.sqnr_db is not None:
        yield f"SQNR {found.sqnr_db:.1f} dB"
    if found.agreement is not None:
        yield f"{found.agreement:.1%} the same decisions"
    yield f"{found.texts} rows, {found.padded} of them padded"


def _score(found: Judgement, value: float) -> str:
    return f"cosine {value:.6g}" if found.score == "cosine" else f"SQNR {value:.1f} dB"


def _weights(found: Judgement) -> Iterator[str]:
    storage = found.storage
    if storage.matched is not None:
        yield f"{storage.matched} of the checkpoint's {storage.matrices} matrices were read back"
    yield f"like {storage.scheme or 'no scheme that is known'}, by {storage.known_by}"
    yield f"{storage.bytes_per_parameter:.2f} bytes per parameter"
