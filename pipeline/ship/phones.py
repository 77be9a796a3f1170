"""Measure verified targets on a phone: push each with a request, let the app run it, and check its record.

Records lie in `<build>/<recipe>/benchmark-<device>/`, as those of the host do. Each is written as soon as it arrives,
so that a measurement finished before a cable was pulled is not repeated.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline import artifact, atomic, formats, strict
from pipeline.artifact import Artifact, digest_of
from pipeline.benchmark.pooling import pool
from pipeline.benchmark.record import LEAST_SAMPLES, BenchmarkRecord, disturbed, texts_digest, unfit
from pipeline.convert.stage import Target
from pipeline.convert.targets import choose_targets, finished_model
from pipeline.devices.headless import MODELS, BenchmarkRequest
from pipeline.devices.table import Device
from pipeline.devices.transport import PATIENCE, DeviceError, Patience, Transport, carry_out
from pipeline.errors import ArtifactError, InputError
from pipeline.formats import signature
from pipeline.recipe.schema import BenchmarkSection, Recipe
from pipeline.ship import apps, placing
from pipeline.trust import signing

RECORDS = "records.json"
PLAIN = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
TURNS = "turns"
_TURNS = 4
"""Number of turns, if the recipe has at least as many rounds and passes."""
_LIMIT_S = 600.0

Tell = Callable[[str, float], None]


@dataclass(frozen=True)
class MeasuredFile:
    """The record of one target on one choice of compute units."""

    target: str
    record: BenchmarkRecord
    kept: bool
    """Whether the record existed already."""


def measure(
    recipe: Recipe,
    build: Path,
    targets: Sequence[Target],
    device: Device,
    transport: Transport,
    texts: Sequence[str],
    tell: Tell,
    *,
    sign: Path | None = None,
    sustained_s: float = 0.0,
    patience: Patience = PATIENCE,
) -> list[MeasuredFile]:
    """Measure targets on a phone in turns, except those that have a record of the same model and request.

    Every turn starts the app anew for each target, in rotating order, and waits until the phone is cool, so that slow
    drift affects all targets alike. Each turn's record is kept in `turns/` as soon as it arrives.

    Args:
        recipe: whose models they are; its `[benchmark]` says how much is measured.
        build: the build folder.
        targets: their verdicts have to be `passed`.
        device: the phone's row.
        transport: reaches it.
        texts: real texts, timed as they come.
        tell: called with what goes on and the fraction done.
        sign: private key for an app that trusts its maker's models alone.
        sustained_s: how long each file runs without a pause at the end of its last turn; 0 leaves it out.
        patience: see `carry_out`.

    Raises:
        DeviceError: the phone or the app did not do what it should; earlier records stay.
        GateFailed: a verdict is not `passed`.
    """
    folder = build / recipe.name
    out = folder / f"benchmark-{device.name}"
    key = signing.read_key(sign) if sign is not None else None
    models = [finished_model(folder, target) for target in targets]
    shipped = [
        apps.checked(recipe, folder, target, model, allow_not_run=False, thorough=recipe.name if key else None)
        for target, model in zip(targets, models, strict=True)
    ]
    asked = [
        TimedFile(
            _name(str(target), units),
            model,
            said,
            requests_of(recipe.benchmark, model, said, texts, device, sustained_s, units),
        )
        for target, model, said in zip(targets, models, shipped, strict=True)
        for units in _units(target, said, device, tell)
    ]
    return in_turns(asked, out, device.name, transport, tell, key=key, patience=patience)


@dataclass(frozen=True)
class TimedFile:
    """A shipped file with the benchmark request of each turn."""

    name: str
    """The name in its record."""
    model: Artifact
    shipped: placing.ShippedModel
    requests: list[BenchmarkRequest]


def in_turns(
    asked: Sequence[TimedFile],
    out: Path,
    device: str,
    transport: Transport,
    tell: Tell,
    *,
    key: signing.PrivateKey | None = None,
    patience: Patience = PATIENCE,
) -> list[MeasuredFile]:
    """Measure files in turns on a phone; keep each turn's record and a pooled record of each file. See `measure`.

    Args:
        asked: the files, with the same number of requests each.
        out: folder of the records.
        device: the phone's name.
        transport: reaches it.
        tell: called with what goes on and the fraction done.
        key: signs what is pushed.
        patience: see `carry_out`.

    Raises:
        DeviceError: the phone or the app did not do what it should; earlier records stay.
    """
    turns = len(asked[0].requests)
    fresh = set()
    for turn in range(turns):
        for number, one in enumerate(_turned(asked, turn)):
            request, place = one.requests[turn], out / TURNS / f"{one.name}-{turn}.json"
            step = turn * len(asked) + number
            share = _share(tell, f"{one.name}, turn {turn + 1} of {turns}", step, turns * len(asked))
            if _kept(place, request, one.model) is None:
                data = _carried_out(one, request, transport, key, share, patience)
                read_record(data, request, one.model, device)
                atomic.write_text(place, data.decode("utf-8"))
                fresh.add(one.name)
    found = []
    for one in asked:
        places = [out / TURNS / f"{one.name}-{turn}.json" for turn in range(turns)]
        parts = [
            read_record(place.read_bytes(), request, one.model, device)
            for place, request in zip(places, one.requests, strict=True)
        ]
        try:
            record = pool(parts, one.requests[0].run_id.removesuffix("-0"))
        except ValueError as error:
            raise DeviceError(
                f"{device}: the records of {one.name} cannot be put together: {error}. Remove {out / TURNS} and "
                "measure again."
            ) from error
        if one.name in fresh or not (out / f"{one.name}.json").is_file():
            _keep(out, f"{one.name}.json", record.model_dump_json(indent=1) + "\n")
        found.append(MeasuredFile(one.name, record, kept=one.name not in fresh))
    return found


def _turned(asked: Sequence[TimedFile], turn: int) -> list[TimedFile]:
    """Return the targets in the order of a turn: the list rotated by the turn's number."""
    first = turn % len(asked)
    return [*asked[first:], *asked[:first]]


def _carried_out(
    one: TimedFile,
    request: BenchmarkRequest,
    transport: Transport,
    key: signing.PrivateKey | None,
    tell: Tell,
    patience: Patience,
) -> bytes:
    """Push a model as an app holds it, and let the app measure it."""
    with TemporaryDirectory() as scratch:
        root = Path(scratch) / MODELS
        root.mkdir()
        placing.put([(one.model, one.shipped)], {one.shipped.backend: [root]}, key)
        files = {
            f"{MODELS}/{file.relative_to(root)}": file
            for file in sorted(root.rglob("*"))
            if file.is_file() and not file.name.startswith(".")
        }
        return carry_out(transport, request, files, tell, patience)


def take(recipe: Recipe, build: Path, file: Path, device: str, *, throttled: bool = False) -> MeasuredFile:
    """Import the record of another person's phone about a file in the build folder.

    Args:
        recipe: whose model was measured.
        build: the build folder.
        file: the record.
        device: a name for the phone.
        throttled: accept a record of a phone that was hot enough to slow down; tables mark it.

    Raises:
        InputError: it is no record of a phone, or of a model that is not in the build folder.
    """
    if not PLAIN.fullmatch(device):
        raise InputError(f"--device {device!r} is no plain name: small letters, digits, dots and dashes make one.")
    folder = build / recipe.name
    try:
        data = file.read_bytes()
        record = strict.read(BenchmarkRecord, data)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise InputError(f"{file} is no latency record: {error}.") from error
    here = {
        str(target): finished_model(folder, target)
        for target in choose_targets(recipe, [])
        if (folder / str(target) / "model").exists()
    }
    target = next((name for name, model in here.items() if model.digest == record.model.sha256), None)
    if target is None:
        there = ", ".join(f"{name} ({model.digest[:12]})" for name, model in here.items()) or "none"
        its = f"{record.model.id} ({(record.model.sha256 or 'no digest')[:12]})"
        raise InputError(f"{file} is refused: its model {its} is none of those in {folder}: {there}.")
    if reason := unfit(record, throttled=throttled):
        raise InputError(f"{file} is refused: {reason}.")
    _keep(folder / f"benchmark-{device}", f"{_name(target, record.backend.compute_units)}.json", data.decode("utf-8"))
    return MeasuredFile(target, record, kept=False)


def _units(target: Target, shipped: placing.ShippedModel, device: Device, tell: Tell) -> Sequence[str | None]:
    """Return the compute units to measure; `(None,)` for a runtime without a choice of units.

    Units on which no file of the scheme has passed yet are left out, with a message, since an app refuses them. If none
    of the row's units is left, the file's default is measured under its own name.
    """
    if len(formats.get(target.backend).COMPUTE_UNITS) == 1:
        return (None,)
    if left := [units for units in device.compute_units if units not in shipped.compute_units]:
        tell(f"{target} is not measured on {', '.join(left)}: no such file has passed there", 0.0)
    return [units for units in device.compute_units if units in shipped.compute_units] or shipped.compute_units[:1]


def _name(target: str, units: str | None) -> str:
    """Return the name of a record, which is specific to a target and its compute units."""
    # A record that was handed to us may say anything, and none of it leads out of the folder.
    return target if units is None else f"{target}-{re.sub('[^a-z0-9]+', '_', units.lower())}"


def requests_of(
    settings: BenchmarkSection,
    model: Artifact,
    shipped: placing.ShippedModel,
    texts: Sequence[str],
    device: Device,
    sustained_s: float = 0.0,
    units: str | None = None,
) -> list[BenchmarkRequest]:
    """Return a model's benchmark request for each turn; the run ids are specific to this model and these requests.

    The rounds and passes are spread over the turns, so there are no more turns than rounds or passes.
    """
    claimed = signature.read(model.path)
    lengths = [length for length in settings.lengths if length <= claimed.max_length] or [claimed.max_length]
    turns = min(_TURNS, settings.rounds, settings.text_passes)
    # A slow file runs no more than it has to in a round, and a table wants so many of each length.
    runs = max(settings.runs_per_block, math.ceil(LEAST_SAMPLES / settings.rounds))
    asked = [
        BenchmarkRequest(
            run_id="none",
            model=f"{shipped.recipe}/{shipped.target}",
            compute_units=units,
            threads=1,
            lengths=lengths,
            texts=list(texts),
            rounds=_part(settings.rounds, turn, turns),
            runs_per_round=runs,
            round_ms=settings.block_ms,
            text_passes=_part(settings.text_passes, turn, turns),
            time_limit_s=_LIMIT_S + (sustained_s if turn == turns - 1 else 0.0),
            start_below_c=device.start_below_c,
            start_thermal=device.start_thermal,
            sustained_s=sustained_s if turn == turns - 1 else 0.0,
        )
        for turn in range(turns)
    ]
    digest = digest_of([[one.model_dump(mode="json") for one in asked], model.digest])
    name = f"{shipped.recipe}-{shipped.target}-{digest[:12]}"
    return [one.model_copy(update={"run_id": f"{name}-{turn}"}) for turn, one in enumerate(asked)]


def _part(whole: int, turn: int, turns: int) -> int:
    """Return a turn's share of rounds or passes; the first turns take the remainder of the division."""
    return whole // turns + (turn < whole % turns)


def read_record(data: bytes, request: BenchmarkRequest, model: Artifact, device: str) -> BenchmarkRecord:
    """Check a record that an app wrote, and return it.

    Raises:
        DeviceError: it is not what was asked for, with the reason.
    """
    try:
        record = strict.read(BenchmarkRecord, data)
    except ValueError as error:
        raise DeviceError(f"{device}: the record is not what its schema says: {error}.") from error
    if reason := _fault(record, request, model):
        raise DeviceError(f"{device}: the record of {request.model} is refused: {reason}.")
    return record


def _fault(record: BenchmarkRecord, request: BenchmarkRequest, model: Artifact) -> str | None:
    """Return a description of the fault of a phone's record, or None if it fits the request."""
    claimed = signature.read(model.path)
    file = model.path / claimed.file
    samples = request.text_passes * len(request.texts)
    checks: Mapping[str, bool] = {
        f"it is of run {record.run_id}, and {request.run_id} was asked for": record.run_id == request.run_id,
        f"its source is {record.source}, not device or simulator": record.source in ("device", "simulator"),
        f"it is of the compute units {record.backend.compute_units}, and {request.compute_units} were asked for": (
            record.backend.compute_units == request.compute_units
        ),
        "it is of another model": record.model.sha256 == model.digest,
        "it is of another model file": not file.is_file()
        or record.model.file_sha256 in (None, artifact.sha256_file(file)),
        "it is of other texts": record.timing.texts_sha256 == texts_digest(request.texts),
        f"it has {len(record.timing.texts.latencies_ms)} samples over texts, and {samples} were asked for": len(
            record.timing.texts.latencies_ms
        )
        == samples,
        f"its lengths are {[one.seq_len for one in record.timing.lengths]}, and {request.lengths} were asked for": [
            one.seq_len for one in record.timing.lengths
        ]
        == request.lengths,
        "it has no sustained run": request.sustained_s == 0 or record.timing.sustained is not None,
        "a length has too few samples": all(
            len(one.latencies_ms) >= request.rounds * request.runs_per_round for one in record.timing.lengths
        ),
        "a time is not positive: its clock ran backwards": all(
            sample > 0
            for samples in (record.timing.texts.latencies_ms, *(one.latencies_ms for one in record.timing.lengths))
            for sample in samples
        ),
    }
    # What another unit ran is kept: no table takes it, and the phone will do the same the next time.
    return next((said for said, holds in checks.items() if not holds), None) or disturbed(record)


def _kept(place: Path, request: BenchmarkRequest, model: Artifact) -> BenchmarkRecord | None:
    """Return the stored record if it is of this model and request, else None."""
    try:
        return read_record(place.read_bytes(), request, model, place.parent.name)
    except (OSError, DeviceError):
        return None


def _keep(out: Path, name: str, text: str) -> None:
    """Write a record, and update the list of all records."""
    atomic.write_text(out / name, text)
    names = sorted({*_listed(out), name})
    atomic.write_text(out / RECORDS, json.dumps(names, indent=1) + "\n")


def _listed(out: Path) -> list[str]:
    try:
        names = json.loads((out / RECORDS).read_text(encoding="utf-8"))
        return [name for name in names if (out / name).is_file()]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        raise ArtifactError(f"{out / RECORDS} cannot be read: {error}. Remove {out}, and measure again.") from error


def _share(tell: Tell, target: str, number: int, parts: int) -> Tell:
    def told(what: str, fraction: float) -> None:
        tell(f"{target}: {what}", (number + fraction) / parts)

    return told
