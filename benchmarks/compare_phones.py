"""`make compare` on phones: each file's turns beside BERT-base's of the same format, by the demo app."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.compare_cases import BUILD, RESULTS
from benchmarks.compare_record import SETTINGS
from pipeline import formats
from pipeline.artifact import Artifact
from pipeline.benchmark.record import BenchmarkRecord
from pipeline.convert.stage import Target
from pipeline.devices import reach
from pipeline.devices.table import Device, all_devices, find_device
from pipeline.devices.transport import DeviceError, Transport
from pipeline.errors import InputError
from pipeline.formats import compute_units, signature
from pipeline.ship import phones
from pipeline.ship.placing import ShippedModel

_VERDICT = "make compare has set it beside PyTorch on six texts, and no verdict was asked for"


@dataclass(frozen=True)
class Phone:
    """A phone that is attached."""

    device: Device
    transport: Transport

    @property
    def folder(self) -> Path:
        """Where its cells are kept."""
        return RESULTS / f"device-{self.device.name}"

    def measure(
        self, files: Sequence[tuple[str, Artifact]], texts: Sequence[str], tell: Callable[[str, float], None]
    ) -> list[BenchmarkRecord]:
        """Let files take turns, and return their records; turns that are kept are not measured again.

        Args:
            files: a name for each and its model artifact; the first names the folder of turns.
            texts: real texts.
            tell: called with what goes on and the fraction done.

        Raises:
            DeviceError: the phone or the app did not do what it should; the turns so far are kept.
        """
        asked = []
        for name, model in files:
            said = _shipped(name, model)
            asked.append(
                phones.TimedFile(name, model, said, phones.requests_of(SETTINGS, model, said, texts, self.device))
            )
        out = BUILD / f"benchmark-{self.device.name}" / files[0][0]
        return [one.record for one in phones.in_turns(asked, out, self.device.name, self.transport, tell)]


def attached(names: Sequence[str] | None, note: Callable[[str], None]) -> list[Phone]:
    """Return the phones that are asked for, or every one with a row that is attached now.

    Args:
        names: of devices; None: every row.
        note: told why a row's phone is left out.

    Raises:
        DeviceError: one that was named is not there.
        InputError: one that was named is no phone.
    """
    found = []
    for device in [find_device(name) for name in names] if names else all_devices().values():
        if device.app_system is None:
            if names:
                raise InputError(f"--device {device.name} is this machine, which is timed anyway.")
            continue
        try:
            found.append(Phone(device, reach.reach(device)))
        except DeviceError as error:
            if names:
                raise
            note(f"{device.name} is left out: {error}")
    return found


def runs(phone: Phone, target: Target) -> bool:
    """Return whether a phone runs a target's files."""
    return phone.device.app_system in formats.get(target.backend).APPS


def _shipped(name: str, model: Artifact) -> ShippedModel:
    claimed, metrics = signature.read(model.path), model.manifest.metrics
    offered, untried = compute_units(claimed.backend, claimed.scheme)
    return ShippedModel(
        recipe="compare",
        target=name,
        backend=claimed.backend,
        scheme=claimed.scheme,
        task=claimed.task,
        verdict="not_run",
        reasons=[_VERDICT],
        evaluator=None,
        random_weights=True,
        licence=metrics["licence"],
        digest=model.digest,
        files=model.manifest.files,
        bytes=sum(entry.bytes for entry in model.manifest.files),
        compute_units=offered,
        untried_units=untried,
    )
