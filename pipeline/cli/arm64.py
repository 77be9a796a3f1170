"""`pocketbert arm64`: finished files on emulated ARM processors."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from pipeline.cli import documents, tables
from pipeline.cli.documents import AsJson
from pipeline.cli.options import BUILD, BuildFolder, RecipeName, Targets
from pipeline.cli.progress import Progress
from pipeline.errors import EXIT_DONE, EXIT_GATE_FAILED, InputError

if TYPE_CHECKING:
    from pipeline.convert.stage import Target
    from pipeline.recipe.schema import Recipe
    from pipeline.verify.emulated import EmulatedRuns

_OPTION = "--stub-cuda"
_SHOWN_LENGTHS = 8


def arm64(
    recipe: RecipeName = "minilm",
    target: Targets = None,
    cpu: Annotated[
        list[str] | None, typer.Option("--cpu", help="Only this processor, as qemu names it; may be repeated.")
    ] = None,
    count: Annotated[
        bool, typer.Option("--count/--no-count", help="Count the instructions of an inference as well.")
    ] = True,
    build: BuildFolder = BUILD,
    install: Annotated[
        bool,
        typer.Option(
            "--install/--no-install",
            help="Download runtimes for ARM64 into BUILD/.arm64/: LiteRT 35 MB, ExecuTorch with PyTorch 460 MB.",
        ),
    ] = False,
    stub_cuda: Annotated[
        bool,
        typer.Option(
            f"{_OPTION}/--no-stub-cuda",
            help="ExecuTorch files too. Their runtime stands on PyTorch, whose build for ARM64 is linked against "
            "CUDA's libraries; empty ones take their place for loading. A call of one would end the run.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run files on emulated ARM processors.

    Whether LiteRT and ExecuTorch files are the same model there, and how many instructions they take.
    """
    from pipeline.atomic import write_text
    from pipeline.convert.targets import finished_model
    from pipeline.devices import arm64 as emulation
    from pipeline.planning import places
    from pipeline.verify import emulated

    parsed, _ = places.recipe(recipe, build)
    chosen, left_out = _choose(parsed, target or [], stub_cuda=stub_cuda)
    cpus = list(dict.fromkeys(cpu or emulation.CPUS))
    if unknown := [name for name in cpus if name not in emulation.CPUS]:
        raise InputError(f"--cpu {unknown[0]} is not emulated; there are: {', '.join(emulation.CPUS)}.")
    counted = [name for name in cpus if count and name in emulation.COUNTED]
    found: list[EmulatedRuns] = []
    with Progress(quiet=as_json) as progress:
        for one in left_out:
            progress.note(f"{one.backend}:{one.scheme} is left out; {_OPTION} takes it")
        # Before anything is downloaded.
        emulation.tools()
        models = [finished_model(build / parsed.name, one) for one in chosen]
        backends = dict.fromkeys(one.backend for one in chosen)
        emulators = {name: emulation.find(build, name, install=install, note=progress.note) for name in backends}
        for one, model in zip(chosen, models, strict=True):
            label = f"emulating {one}"
            progress.started(label)
            place = build / parsed.name / str(one)
            reference_folder = build / parsed.name / f"reference-{parsed.lengths(one.backend)[-1]}"
            log = build / parsed.name / "logs" / "arm64.log"
            judged = emulated.judge(
                model, reference_folder, emulators[one.backend], cpus, counted, log, partial(progress.advanced, label)
            )
            write_text(place / emulated.RECORD, judged.model_dump_json(indent=1) + "\n")
            found.append(judged)
    code = EXIT_GATE_FAILED if any(one.verdict == "failed" for each in found for one in each.processors) else EXIT_DONE
    document: dict[str, Any] = {"emulated": [one.model_dump(mode="json") for one in found]}
    documents.show(as_json, document, partial(_print, found), code)
    raise typer.Exit(code)


def _choose(parsed: "Recipe", names: Sequence[str], *, stub_cuda: bool) -> tuple[list["Target"], list["Target"]]:
    """Return the targets to run, and the ones left out, which need an option and were not requested by name."""
    from pipeline.convert.targets import choose_targets
    from pipeline.devices.arm64_packages import BUILDS

    every = [one for one in choose_targets(parsed, names) if one.backend in BUILDS]
    if not every:
        raise InputError(
            f"there is no target of {' or '.join(BUILDS)} among those of {parsed.name} that are asked for."
        )
    left_out = [one for one in every if BUILDS[one.backend].opened and not stub_cuda]
    if left_out and (names or left_out == every):
        raise InputError(
            f"{left_out[0].backend}:{left_out[0].scheme} needs {_OPTION}: PyTorch's build for ARM64, which its runtime "
            "stands on, is linked against CUDA's libraries, and loads here only with empty ones in their place."
        )
    return [one for one in every if one not in left_out], left_out


def _print(found: Sequence["EmulatedRuns"]) -> None:
    for one in found:
        name = "cosine, worst" if one.measure == "cosine" else "SQNR in dB, all"
        lengths = ", ".join(map(str, one.lengths))
        if len(one.lengths) > _SHOWN_LENGTHS:
            lengths = f"{one.lengths[0]} to {one.lengths[-1]}"
        tables.say(f"{one.target}: {one.rows} rows at lengths {lengths}; {one.runtime}")
        if one.stubs:
            tables.say(
                f"{len(one.stubs)} libraries were empty ones: {', '.join(one.stubs)}; loading called "
                f"{', '.join(one.answered)} of them, and the run nothing"
            )
        table = Table(box=None, pad_edge=False)
        for title in ("processor", "", name, "mean of rows", "here", "largest difference", "has"):
            table.add_column(title)
        for row in one.processors:
            colour = "green" if row.verdict == "passed" else "red"
            figures = (f"{row.score:.5f}", f"{row.mean:.5f}", f"{row.score_here:.5f}", f"{row.max_difference:.2g}")
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
