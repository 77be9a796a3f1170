"""`pocketbert ranges` and `pocketbert sensitivity`: the results of quantising a student, linear by linear."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from pipeline.cli import documents, tables
from pipeline.cli.documents import AsJson
from pipeline.cli.options import BUILD, BuildFolder, RecipeName
from pipeline.cli.progress import Progress
from pipeline.errors import InputError

if TYPE_CHECKING:
    from pipeline.checkpoint.ranges import Linear
    from pipeline.convert.stage import Target
    from pipeline.quantize.checkpoint import Found
    from pipeline.quantize.sensitivity import Sensitivity

_SHOWN = 12


def ranges(
    recipe: RecipeName = "minilm",
    scheme: Annotated[
        str | None, typer.Option("--scheme", help="Only the checkpoint of this scheme; by default all that are made.")
    ] = None,
    build: BuildFolder = BUILD,
    as_json: AsJson = False,
) -> None:
    """Show what calibration found in each linear layer.

    Outliers, SmoothQuant scales, ranges, and errors.
    """
    from pipeline.planning import places
    from pipeline.quantize import checkpoint as quantised
    from pipeline.quantize import costs

    parsed, _ = places.recipe(recipe, build)
    folder = build / parsed.name
    made = costs.checkpoints(folder, parsed.quantize)
    if scheme is not None and scheme not in made:
        raise InputError(
            f"{folder} has no checkpoint that was quantised for {scheme}; there are: {', '.join(made) or 'none'}. "
            f"`pocketbert convert {recipe}` makes them."
        )
    if not made:
        raise InputError(
            f"{folder} has no checkpoint that was quantised. `pocketbert convert {recipe}` makes one for each scheme "
            "that asks for calibration, and for int8_dynamic where the recipe has [quantize]."
        )
    found = {name: quantised.read_record(place)[1] for name, place in made.items() if scheme in (None, name)}
    schemes = {name: record.model_dump(mode="json") for name, record in found.items()}
    documents.show(as_json, {"recipe": parsed.name, "schemes": schemes}, partial(_print_ranges, found))


def _print_ranges(found: "dict[str, Found]") -> None:
    from pipeline.checkpoint.ranges import Ranges
    from pipeline.quantize.costs import costs

    for name, record in found.items():
        tables.say(f"{name}: calibrated on {record.texts} texts; what loses most comes first")
        if record.training:
            before, after = record.training.distance_before, record.training.distance
            tables.say(f"trained behind that: distance of the outputs to the student's {before:.2e} → {after:.2e}")
        table = Table(box=None, pad_edge=False)
        extra: dict[str, list[str]]
        if isinstance(record, Ranges):
            titles: tuple[str, ...] = ("largest channel", "alpha", "input", "output")
            extra = {row.path: _of_linear(row) for row in record.linears}
        else:
            titles = ("bits",)
            extra = {row.name.removesuffix(".weight"): [str(getattr(row, "bits", "palette"))] for row in record.weights}
        for title in ("linear", *titles, "error before", "error"):
            table.add_column(title)
        for cost in costs(record):
            before_and_after = ["–" if one is None else f"{one:.2e}" for one in (cost.error_before, cost.error)]
            table.add_row(escape(cost.label), *extra[cost.paths[0]], *before_and_after)
            for path in cost.paths:
                extra.pop(path, None)
        for path, cells in extra.items():
            table.add_row(escape(path), *cells, "–", "–")
        tables.show(table)
    tables.say(
        "Errors are squares of the outputs' differences over the outputs' squares; channels are over the median."
    )


def _of_linear(row: "Linear") -> list[str]:
    shown = [f"{one.low:.3g} … {one.high:.3g}" if one else "per token" for one in (row.input, row.output)]
    if not row.output:
        shown[1] = "float"
    return [f"{row.largest_channel:.1f} x", "–" if row.alpha is None else f"{row.alpha:.1f}", *shown]


def sensitivity(
    recipe: RecipeName,
    target: Annotated[str, typer.Option("--target", help="Which file, such as litert:int4_dynamic.")],
    out: Annotated[Path, typer.Option("--out", help="Policy to write, for quantize.policy of a recipe.")] = Path(
        "policy.toml"
    ),
    extra: Annotated[
        float, typer.Option("--extra", help="What the policy may add to the file, as a share of it.", min=0.0, max=1.0)
    ] = 0.05,
    length: Annotated[int, typer.Option("--length", help="Tokens at which files are tried and timed.", min=8)] = 64,
    build: BuildFolder = BUILD,
    as_json: AsJson = False,
) -> None:
    """Measure which linear layers need 8 bits, and write a policy.

    Each is tried at 4 bits in the real runtime; a stopped study goes on where it stopped.
    """
    from pipeline.atomic import write_text
    from pipeline.convert.private_log import private_log
    from pipeline.convert.targets import choose_targets
    from pipeline.execution.worker import Worker
    from pipeline.planning import places
    from pipeline.planning import run as running
    from pipeline.planning.request import Request
    from pipeline.quantize import sensitivity as studies
    from pipeline.schemes import SCHEMES

    parsed, file = places.recipe(recipe, build)
    (chosen, *others) = choose_targets(parsed, [target])
    if others or SCHEMES[chosen.scheme].weights != "int4":
        raise InputError(f"--target {target} is to name one file of int4, such as {chosen.backend}:int4_dynamic.")
    with Progress(quiet=as_json) as progress:
        running.run(Request(parsed, file, "verify", [chosen]), build, progress)
        study = _study(build / parsed.name, chosen, length, parsed, file)
        label = f"sensitivity of {chosen}"
        progress.started(label)
        with private_log() as log, Worker(log, partial(progress.advanced, label)) as worker:
            found = worker.call(studies.try_all, study, extra)
    write_text(out, studies.policy_text(found))
    documents.show(as_json, studies.document(found) | {"policy": str(out)}, partial(_print_sensitivity, found, out))


def _study(folder: Path, target: "Target", length: int, parsed: Any, file: Path) -> Any:
    from pipeline.quantize import stage
    from pipeline.quantize.sensitivity import Study

    longest = parsed.lengths(target.backend)[-1]
    section = stage.section_for(parsed.quantize, target.scheme)
    assert section
    return Study(
        student=(folder / "student").resolve(),
        quantised=(folder / f"quantised-{target.scheme}").resolve(),
        task=parsed.task,
        section=section,
        texts=tuple(stage.calibration_set(section, file)),
        reference=(folder / f"reference-{longest}").resolve(),
        target=target,
        length=min(length, longest),
        minimum_ios=parsed.minimum_ios(target.backend),
        folder=folder / f"sensitivity-{target}",
    )


def _print_sensitivity(found: "Sensitivity", out: Path) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("linear at 4 bits", "SQNR lost", "error per MB saved", "per million multiply-adds", "policy"):
        table.add_column(title)
    ranked = sorted(found.trials, key=lambda one: -one.per_byte)
    for one in ranked[:_SHOWN]:
        figures = (f"{one.sqnr_lost_db:.2f} dB", f"{1e6 * one.per_byte:.2e}", f"{1e6 * one.per_multiply_add:.2e}")
        table.add_row(escape(one.linear), *figures, "8 bits" if one.linear in found.eight_bits else "4 bits")
    tables.show(table)
    if len(ranked) > _SHOWN:
        tables.say(f"{len(ranked) - _SHOWN} more cost less; --json has all.")
    final = Table(box=None, pad_edge=False)
    for title in ("file", "linears at 8 bits", "MB", "SQNR", "mean cosine", "worst", f"ms at {found.length} tokens"):
        final.add_column(title)
    for row in found.compared:
        cosines = (f"{row.sqnr_db:.1f} dB", f"{row.mean_cosine:.5f}", f"{row.worst_cosine:.5f}")
        final.add_row(row.name, str(row.eight_bits), f"{row.file_bytes / 1e6:.2f}", *cosines, f"{row.milliseconds:.2f}")
    tables.show(final)
    tables.say(f"wrote {out}; name it in the recipe: [quantize] policy = {str(out)!r}")
