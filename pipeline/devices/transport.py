"""Run a benchmark in an app on a phone over any transport: put files there, start the app, watch it, fetch the record.

A run's name is made from its request and files, so a run that was cut off by a pulled cable is found again instead of
being started twice. Each fault is an error of one sentence, with exit code 3.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pipeline import strict
from pipeline.devices.headless import FINAL, HEARTBEAT_S, RECORD, REQUEST, STATUS, BenchmarkRequest, BenchmarkStatus
from pipeline.errors import ToolchainError

Tell = Callable[[str, float], None]
_POLL_S, _QUICK_S = 10.0, 1.0
"""Seconds between two looks at a phone: long ones while it measures, since each look costs it time; short ones while it
starts or is about to end."""
_SILENT_S = 3 * HEARTBEAT_S
_BEGIN_S = 60.0
"""Limit until the first status of an app; a phone that unpacks a model takes long."""
_GRACE_S = 60.0
"""Waiting time for the end of a run beyond the limit in its request."""


class DeviceError(ToolchainError):
    """The error for a device that is absent, not ready, or failed."""


class Transport(Protocol):
    """The connection to one device. Every method may raise `DeviceError`."""

    name: str

    def check(self, room_bytes: int) -> None:
        """Refuse a device that is locked, full, or lacks the app."""

    def put(self, run: str, files: Mapping[str, Path | bytes], tell: Tell) -> None:
        """Write files into a run's folder, by their paths in it; earlier contents are removed."""

    def start(self, run: str) -> None:
        """Start the app for a run."""

    def read(self, run: str, file: str) -> bytes | None:
        """Return a file of a run's folder; None if it does not exist."""

    def alive(self) -> bool:
        """Return whether the app's process is running."""

    def stop(self) -> None:
        """End the app."""

    def remove(self, run: str) -> None:
        """Remove a run's folder."""


@dataclass(frozen=True)
class Patience:
    """Time limits of a run in seconds; tests use shorter ones."""

    poll_s: float = _POLL_S
    quick_s: float = _QUICK_S
    silent_s: float = _SILENT_S
    begin_s: float = _BEGIN_S
    grace_s: float = _GRACE_S


PATIENCE = Patience()


def carry_out(
    transport: Transport,
    request: BenchmarkRequest,
    files: Mapping[str, Path | bytes],
    tell: Tell,
    patience: Patience = PATIENCE,
) -> bytes:
    """Carry out a run, or resume one that has begun already, and return its record as the app wrote it.

    Args:
        transport: reaches the device.
        request: the measurement; its `run_id` belongs to exactly this request and these files.
        files: the files of the request, such as the model, by path in the run's folder.
        tell: called with a message and the fraction that is done.
        patience: the time limits.

    Raises:
        DeviceError: the device or the app failed; nothing on this machine has changed.
    """
    run = request.run_id
    status = _status(transport, run)
    if status is not None and status.state == "finished" and (found := transport.read(run, RECORD)) is not None:
        transport.remove(run)
        return found
    if status is None or status.state in FINAL or not transport.alive():
        room = sum(one.stat().st_size if isinstance(one, Path) else len(one) for one in files.values())
        # The app copies a model into its own storage before it opens it.
        transport.check(2 * room)
        said = request.model_dump_json(indent=1).encode()
        transport.put(run, {**files, REQUEST: said}, tell)
        transport.start(run)
        status = None
    status = _watch(transport, request, status, tell, patience)
    if status.state != "finished":
        transport.remove(run)
        raise DeviceError(f"{transport.name}: the run ended as {status.state.replace('_', ' ')}: {status.message}.")
    record = transport.read(run, RECORD)
    if record is None:
        raise DeviceError(
            f"{transport.name}: the app says that it finished, and there is no {RECORD} in its run {run}."
        )
    transport.remove(run)
    return record


def _watch(
    transport: Transport, request: BenchmarkRequest, status: BenchmarkStatus | None, tell: Tell, patience: Patience
) -> BenchmarkStatus:
    """Return the final status of a run; raise if the app is silent, gone or too slow."""
    began = changed = time.monotonic()
    beats = -1 if status is None else status.beats
    while True:
        status = _status(transport, request.run_id)
        now = time.monotonic()
        if status is not None and status.beats != beats:
            beats, changed = status.beats, now
            tell(status.doing, status.done)
        if status is not None and status.state in FINAL:
            return status
        if status is None and now - began > patience.begin_s:
            why = "runs, and says nothing" if transport.alive() else "is gone"
            transport.stop()
            raise DeviceError(
                f"{transport.name}: {patience.begin_s:.0f} s after its start the app {why}. Open it by hand once, and "
                "look at what it says."
            )
        if status is not None and now - changed > patience.silent_s:
            _lost(transport, status)
        if now - began > request.time_limit_s + patience.grace_s:
            transport.stop()
            raise DeviceError(f"{transport.name}: the run did not end in its time of {request.time_limit_s:.0f} s.")
        time.sleep(_pause_s(status, now - began, patience))


def _pause_s(status: BenchmarkStatus | None, watched_s: float, patience: Patience) -> float:
    """Return the seconds until the next look at the phone: few while it starts or cools, and near the end."""
    if status is None or status.state != "running":
        return patience.quick_s
    left_s = watched_s * (1 - status.done) / status.done if status.done > 0 else patience.poll_s
    return min(max(left_s, patience.quick_s), patience.poll_s)


def _lost(transport: Transport, status: BenchmarkStatus) -> None:
    if transport.alive():
        transport.stop()
        raise DeviceError(
            f"{transport.name}: the app is running and makes no progress (at {status.doing!r}). The screen may be "
            "dark, or another app came to the front; keep the phone awake and run it again."
        )
    raise DeviceError(
        f"{transport.name}: the app was killed or has crashed (at {status.doing!r}); memory may have been short. "
        "Run it again."
    )


def _status(transport: Transport, run: str) -> BenchmarkStatus | None:
    data = transport.read(run, STATUS)
    if data is None:
        return None
    try:
        return strict.read(BenchmarkStatus, data)
    except ValueError as error:
        raise DeviceError(f"{transport.name}: {STATUS} of run {run} is not what the contract says: {error}.") from error
