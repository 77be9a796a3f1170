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
from pipeline.cli.options import BUILD, BuildFolder
from pipeline.cli.progress import Progress
from pipeline.convert.targets import choose_targets
from pipeline.errors import EXIT_DONE, GateFailed, InputError

if TYPE_CHECKING:
    from pipeline.devices.table import AttachedPhone, Device
    from pipeline.ship.phones import MeasuredFile
    from pipeline.ship.plain import RunnerTimes


def devices(as_json: AsJson = False) -> None:
    """List devices and attached phones."""
    from pipeline.devices import adb, iphone
    from pipeline.devices.table import all_devices

    rows = all_devices()
    with adb.borrowed_server():
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


def _listed(attached: "Callable[[], list[AttachedPhone]]") -> "tuple[list[AttachedPhone], str | None]":
    """Return the phones that are attached, and why they cannot be listed."""
    from pipeline.devices.transport import DeviceError

    try:
        return attached(), None
    except DeviceError as error:
        return [], str(error)


def _print_devices(
    rows: "dict[str, Device]", kinds: "Sequence[tuple[str, Sequence[AttachedPhone], str | None]]"
) -> None:
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

    return find_device(device).app_system is not None


def benchmark(
    recipe: str,
    target: list[str] | None,
    device: str,
    build: Path,
    sign: Path | None,
    *,
    minutes: float,
    as_json: bool,
) -> None:
    """Make and verify what is missing, and measure it on a phone; `minutes` of a sustained run where there are any."""
    from pipeline import formats
    from pipeline.devices.reach import reach
    from pipeline.devices.table import find_device
    from pipeline.planning import places
    from pipeline.planning import run as running
    from pipeline.planning.request import Request
    from pipeline.ship import phones
    from pipeline.text.bundled import everyday_sentences

    parsed, file = places.recipe(recipe, build)
    row = find_device(device)
    backends = [name for name in formats.NAMES if row.app_system in formats.get(name).APPS]
    targets = [one for one in choose_targets(parsed, target or []) if one.backend in backends]
    if not targets:
        raise InputError(f"{device} runs files for {', '.join(backends)}, and none of them is asked for.")
    texts = everyday_sentences()[: parsed.benchmark.texts]
    with Progress(quiet=as_json) as progress:
        # Before anything is made: whoever forgot the cable is to know now.
        transport = reach(row)
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
        found = phones.measure(parsed, build, targets, row, transport, texts, tell, sign=sign, sustained_s=60 * minutes)
    folder = build / parsed.name / f"benchmark-{device}"
    document = {
        "device": device,
        "folder": str(folder),
        "records": [{"target": one.target, "kept": one.kept} | one.record.model_dump(mode="json") for one in found],
    }
    documents.show(as_json, document, partial(_print_measured, device, folder, found), EXIT_DONE)


def _print_measured(device: str, folder: Path, found: "Sequence[MeasuredFile]") -> None:
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
    for each in found:
        _print_sustained(each)
    if found:
        machine = found[0].record.device
        tables.say(f"{device}: {machine.model_id}, {machine.platform} {machine.os}; records in {folder}")


def _print_sustained(each: "MeasuredFile") -> None:
    from pipeline.benchmark.sustained import energy, slowdown

    ran = each.record.timing.sustained
    if ran is None:
        return
    first, last = ran.parts[0], ran.parts[-1]
    slower = slowdown(ran)
    times = (
        "too few runs for a median" if slower is None else f"{_ms(first.p50_ms)} to {_ms(last.p50_ms)}, {slower:.2f} ×"
    )
    warmth = "" if last.temperature_c is None else f", {first.temperature_c} to {last.temperature_c} °C"
    used = energy(each.record)
    told = (
        used
        if isinstance(used, str)
        else (f"{used.millijoules:.1f} mJ an inference, of the whole phone, to {used.resolution_millijoules:.2f} mJ")
    )
    tables.say(
        f"{each.target}: {(last.begins_s + last.seconds) / 60:.1f} minutes without a pause at {ran.seq_len} tokens: "
        f"{times}{warmth}; energy: {told}"
    )


def plain(recipe: str, target: list[str] | None, device: str, build: Path, *, as_json: bool) -> None:
    """Measure finished files by the runtimes' own runners, which the user has built for his phone."""
    from pipeline.atomic import write_text
    from pipeline.convert.targets import finished_model
    from pipeline.devices.adb import AndroidPhone
    from pipeline.devices.table import find_device
    from pipeline.formats import signature
    from pipeline.planning import places
    from pipeline.ship import plain as runners

    parsed, _ = places.recipe(recipe, build)
    row = find_device(device)
    if row.transport != "adb":
        raise InputError(f"--plain is for Android phones, and {device} is reached by {row.transport}.")
    if not row.runners:
        raise InputError(
            f"{device} has no `runners` in its row of devices.toml. Name the programs that you built for it, as in "
            'runners = { litert = "benchmark_model", executorch = "executor_runner" }.'
        )
    chosen = [one for one in choose_targets(parsed, target or []) if one.backend in row.runners]
    if not chosen:
        raise InputError(f"{device} has runners for {', '.join(row.runners)}, and no such target is asked for.")
    found: list[runners.RunnerTimes] = []
    folder = build / parsed.name / f"benchmark-{device}"
    with Progress(quiet=as_json) as progress:
        phone = AndroidPhone(row)
        label = f"measuring on {device}"
        progress.started(label)
        for one in chosen:
            model = finished_model(build / parsed.name, one)
            claimed = signature.read(model.path)
            lengths = [length for length in parsed.benchmark.lengths if length <= claimed.max_length]
            program = row.runners[one.backend]
            found += runners.measure(
                phone, program, str(one), model.path, claimed, lengths, partial(progress.advanced, label)
            )
            rows = [each for each in found if each.target == str(one)]
            text = "[" + ",\n".join(each.model_dump_json() for each in rows) + "]\n"
            write_text(folder / f"plain-{one}.json", text)
    document = {"device": device, "plain": [one.model_dump(mode="json") for one in found]}
    documents.show(as_json, document, partial(_print_plain, found))


def _print_plain(found: "Sequence[RunnerTimes]") -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("target", "tokens", "runner", "mean", "p50", "least", "most", "runs", "inputs"):
        table.add_column(title)
    for one in found:
        times = [_ms(value) for value in (one.mean_ms, one.p50_ms, one.min_ms, one.max_ms)]
        table.add_row(one.target, str(one.seq_len), escape(one.runner), *times, str(one.runs), one.inputs)
    tables.show(table)
    tables.say("The runners keep no samples and know no texts: these figures stand in no table of latencies.")


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} ms"


def import_record(
    recipe: Annotated[str, typer.Argument(help="Recipe whose model was measured.")],
    record: Annotated[list[Path], typer.Argument(help="record.json files of a phone; may be several.")],
    device: Annotated[str, typer.Option("--device", help="Name for the phone that measured.")],
    throttled: Annotated[
        bool, typer.Option("--allow-throttled", help="Also of a phone that was hot enough to slow down.")
    ] = False,
    build: BuildFolder = BUILD,
    as_json: AsJson = False,
) -> None:
    """Take latency records from somebody else's phone.

    Of files that lie in the build folder.
    """
    from pipeline.planning import places
    from pipeline.ship import phones

    parsed, _ = places.recipe(recipe, build)
    found = [phones.take(parsed, build, one, device, throttled=throttled) for one in record]
    folder = build / parsed.name / f"benchmark-{device}"
    document = {"device": device, "folder": str(folder), "targets": [one.target for one in found]}
    documents.show(as_json, document, partial(_print_measured, device, folder, found))
