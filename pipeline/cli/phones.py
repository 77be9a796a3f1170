"""Phones: `pocketbert devices` lists them, `benchmark --device` measures on one, `import` takes records of others."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from pipeline.cli import documents, tables
from pipeline.cli.documents import AsJson
from pipeline.cli.progress import Progress
from pipeline.convert.targets import choose_targets
from pipeline.errors import EXIT_DONE, GateFailed, InputError

if TYPE_CHECKING:
    from pipeline.devices.table import Attached, Device
    from pipeline.devices.transport import Transport
    from pipeline.ship.phones import Measured


def devices(as_json: AsJson = False) -> None:
    """List the devices of the tables, and the phones that are attached."""
    from pipeline.devices import adb, iphone
    from pipeline.devices.table import all_devices

    rows = all_devices()
    phones, problem = _listed(adb.attached)
    iphones, iphones_problem = _listed(iphone.attached)
    document: dict[str, Any] = {
        "devices": {name: row.model_dump(mode="json") for name, row in rows.items()},
        "attached": [one.model_dump(mode="json") for one in phones],
        "problem": problem,
        "iphones": [one.model_dump(mode="json") for one in iphones],
        "iphones_problem": iphones_problem,
    }
    kinds = (("Android phone", phones, problem), ("iPhone", iphones, iphones_problem))
    documents.show(as_json, document, partial(_print_devices, rows, kinds))


def _listed(attached: "Callable[[], list[Attached]]") -> "tuple[list[Attached], str | None]":
    """Return the phones that are attached, and why they cannot be listed."""
    from pipeline.devices.transport import DeviceError

    try:
        return attached(), None
    except DeviceError as error:
        return [], str(error)


def _print_devices(rows: "dict[str, Device]", kinds: "Sequence[tuple[str, Sequence[Attached], str | None]]") -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("device", "transport", "what it is"):
        table.add_column(title)
    for name, row in rows.items():
        table.add_row(escape(name), row.transport, escape(row.summary))
    tables.show(table)
    for kind, found, problem in kinds:
        for one in found:
            tables.say(f"attached {kind}: {one.serial}, {one.model or 'model not known'}, {one.state}")
        if problem:
            tables.say(f"attached {kind}s cannot be listed: {problem}")
        elif not found:
            tables.say(f"no {kind} is attached")


def is_phone(device: str) -> bool:
    """Return whether a device is reached through an app, and not this machine.

    Raises:
        RecipeError: there is no such device.
    """
    from pipeline.devices.table import find_device

    return find_device(device).transport != "host"


def benchmark(
    recipe: str, target: list[str] | None, device: str, build: Path, sign: Path | None, *, as_json: bool
) -> None:
    """Make and verify what is missing, and measure it on a phone."""
    from pipeline.devices.table import find_device
    from pipeline.graph import run as running
    from pipeline.graph.build import Request
    from pipeline.recipe.loading import read
    from pipeline.ship import phones
    from pipeline.text.bundled import everyday_sentences

    parsed, file = read(recipe)
    row = find_device(device)
    targets = [one for one in choose_targets(parsed, target or []) if one.backend in row.backends]
    if not targets:
        raise InputError(f"{device} runs files for {', '.join(row.backends)}, and none of them is asked for.")
    texts = everyday_sentences()[: parsed.benchmark.texts]
    with Progress(quiet=as_json) as progress:
        # Before anything is made: whoever forgot the cable is to know now.
        transport = _reach(row)
        request = Request(parsed, file, "verify", targets, thorough=sign is not None)
        verdicts = running.parities(running.run(request, build, progress), parsed.name)
        failed = [name for name, parity in verdicts.items() if parity.verdict != "passed"]
        targets = [one for one in targets if str(one) not in failed]
        for name in failed:
            progress.note(f"{name} is not measured: its verdict is {verdicts[name].verdict}")
        if not targets:
            raise GateFailed(f"no target of {parsed.name} has passed, so nothing is measured.")
        label = f"measuring on {device}"
        progress.started(label)
        tell = partial(progress.advanced, label)
        found = phones.measure(parsed, build, targets, row, transport, texts, tell, sign=sign)
    folder = build / parsed.name / f"benchmark-{device}"
    document = {
        "device": device,
        "folder": str(folder),
        "records": [{"target": one.target, "kept": one.kept} | one.record.model_dump(mode="json") for one in found],
    }
    documents.show(as_json, document, partial(_print_measured, device, folder, found), EXIT_DONE)


def _reach(device: "Device") -> "Transport":
    from pipeline.devices import adb, iphone

    return iphone.reach(device) if device.transport == "ios" else adb.AndroidPhone(device)


def _print_measured(device: str, folder: Path, found: "Sequence[Measured]") -> None:
    lengths = sorted({one.seq_len for each in found for one in each.record.timing.lengths})
    table = Table(box=None, pad_edge=False)
    for title in (
        "target",
        "on",
        "",
        *(f"{length} tokens, p50" for length in lengths),
        "sentences",
        "with tokens",
        "peak MB",
    ):
        table.add_column(title)
    for each in found:
        timing = each.record.timing
        at = {one.seq_len: one.wall.p50 for one in timing.lengths}
        cells = [_ms(at.get(length)) for length in lengths]
        cells += [_ms(timing.texts.wall.p50), _ms(timing.texts.wall_with_tokenisation.p50)]
        taken = each.record.memory.model_bytes
        cells.append("not told" if taken is None else f"{taken / 1e6:.0f}")
        table.add_row(each.target, each.record.backend.compute_units or "", "kept" if each.kept else "measured", *cells)
    tables.show(table)
    if found:
        machine = found[0].record.device
        tables.say(f"{device}: {machine.model_id}, {machine.platform} {machine.os}; records in {folder}")


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} ms"


def import_record(
    recipe: Annotated[str, typer.Argument(help="Recipe whose model was measured.")],
    record: Annotated[list[Path], typer.Argument(help="record.json files of a phone; may be several.")],
    device: Annotated[str, typer.Option("--device", help="Name for the phone that measured.")],
    build: Annotated[Path, typer.Option("--build", help="Folder for artifacts.")] = Path("build"),
    as_json: AsJson = False,
) -> None:
    """Take latency records that somebody else's phone wrote, of files that lie in the build folder."""
    from pipeline.recipe.loading import read
    from pipeline.ship import phones

    parsed, _ = read(recipe)
    found = [phones.take(parsed, build, one, device) for one in record]
    folder = build / parsed.name / f"benchmark-{device}"
    document = {"device": device, "folder": str(folder), "targets": [one.target for one in found]}
    documents.show(as_json, document, partial(_print_measured, device, folder, found))
