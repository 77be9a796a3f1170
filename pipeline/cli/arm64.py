"""`pocketbert arm64`: finished LiteRT files on emulated ARM processors."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from pipeline.cli import documents, tables
from pipeline.cli.documents import AsJson
from pipeline.cli.progress import Progress
from pipeline.errors import EXIT_DONE, EXIT_GATE_FAILED, InputError

if TYPE_CHECKING:
    from pipeline.verify.emulated import Emulated


def arm64(
    recipe: Annotated[str, typer.Argument(help="Name of a ready recipe, or path to a .toml file.")] = "minilm",
    target: Annotated[
        list[str] | None, typer.Option("--target", help="Only this backend or backend:scheme; may be repeated.")
    ] = None,
    cpu: Annotated[
        list[str] | None, typer.Option("--cpu", help="Only this processor, as qemu names it; may be repeated.")
    ] = None,
    count: Annotated[
        bool, typer.Option("--count/--no-count", help="Count the instructions of an inference as well.")
    ] = True,
    build: Annotated[Path, typer.Option("--build", help="Folder for artifacts.")] = Path("build"),
    install: Annotated[
        bool, typer.Option("--install/--no-install", help="Download LiteRT for ARM64 into BUILD/.arm64/.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run finished LiteRT files on emulated ARM64 processors: the same model there? How many instructions?"""
    from pipeline.artifact import write_text
    from pipeline.convert.targets import choose_targets, finished_model
    from pipeline.devices import arm64 as emulation
    from pipeline.recipe.loading import read
    from pipeline.verify import emulated

    parsed, _ = read(recipe)
    chosen = [one for one in choose_targets(parsed, target or []) if one.backend == emulated.BACKEND]
    if not chosen:
        raise InputError(f"there is no target of {emulated.BACKEND} among those of {parsed.name} that are asked for.")
    cpus = list(dict.fromkeys(cpu or emulation.CPUS))
    if unknown := [name for name in cpus if name not in emulation.CPUS]:
        raise InputError(f"--cpu {unknown[0]} is not emulated; there are: {', '.join(emulation.CPUS)}.")
    counted = [name for name in cpus if count and name in emulation.COUNTED]
    found: list[Emulated] = []
    with Progress(quiet=as_json) as progress:
        emulator = emulation.find(build, install=install, note=progress.note)
        for one in chosen:
            model = finished_model(build / parsed.name, one)
            label = f"emulating {one}"
            progress.started(label)
            place = build / parsed.name / str(one)
            truth = build / parsed.name / f"reference-{parsed.lengths(one.backend)[-1]}"
            log = build / parsed.name / "logs" / "arm64.log"
            judged = emulated.judge(model, truth, emulator, cpus, counted, log, partial(progress.advanced, label))
            write_text(place / emulated.RECORD, judged.model_dump_json(indent=1) + "\n")
            found.append(judged)
    code = EXIT_GATE_FAILED if any(one.verdict == "failed" for each in found for one in each.processors) else EXIT_DONE
    document: dict[str, Any] = {"emulated": [one.model_dump(mode="json") for one in found]}
    documents.show(as_json, document, partial(_print, found), code)
    raise typer.Exit(code)


def _print(found: Sequence["Emulated"]) -> None:
    for one in found:
        name = "cosine" if one.measure == "cosine" else "SQNR, dB"
        tables.say(f"{one.target}: {one.rows} rows at lengths {', '.join(map(str, one.lengths))}; {one.runtime}")
        table = Table(box=None, pad_edge=False)
        for title in ("processor", "", f"{name}, worst", "mean", "worst here", "largest difference", "has"):
            table.add_column(title)
        for row in one.processors:
            colour = "green" if row.verdict == "passed" else "red"
            figures = (f"{row.worst:.5f}", f"{row.mean:.5f}", f"{row.worst_here:.5f}", f"{row.max_difference:.2g}")
            table.add_row(row.cpu, f"[{colour}]{row.verdict}[/{colour}]", *figures, escape(row.has))
        tables.show(table)
        for row in one.processors:
            if row.reason:
                tables.say(f"{row.cpu}: {row.reason}")
        for counts in one.counts:
            each = [f"{length} tokens {number / 1e6:.2f} M" for length, number in counts.instructions.items()]
            tables.say(
                f"instructions on {counts.cpu}, pages of {counts.page_size >> 10} KB: {', '.join(each)}; "
                f"runs differ by at most {counts.spread:.3%}"
            )
    tables.say("Counted, not timed: caches, memory and clocks have no part in it, so nothing here is a latency.")
