"""A plain benchmark on an Android phone without the app, by the runtimes' own command-line runners.

If you built them, they give a first figure before there is an app on the phone. It is no latency record: the runners
take random or constant ids, keep no samples, and know neither texts nor tokenisation. What each is told and says is its
format's fact.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from pipeline import formats
from pipeline.devices.adb import TEMPORARY, AndroidPhone
from pipeline.devices.transport import DeviceError, Tell
from pipeline.errors import InputError
from pipeline.formats.signature import Signature

FOLDER = f"{TEMPORARY}/pocketbert"


class RunnerTimes(BaseModel):
    """The times of one file at one sequence length, as a runner program printed them."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    target: str
    runner: str
    """Name of the program."""
    seq_len: int
    threads: int
    runs: int
    mean_ms: float
    p50_ms: float | None
    """None where the runner gives no median."""
    min_ms: float | None
    max_ms: float | None
    load_ms: float | None
    inputs: str
    """What the file was given."""


def measure(
    phone: AndroidPhone,
    runner: Path,
    target: str,
    model: Path,
    claimed: Signature,
    lengths: Sequence[int],
    tell: Tell,
    *,
    threads: int = 1,
) -> list[RunnerTimes]:
    """Push a runner and a file, run it at each length, and remove both.

    Args:
        phone: reaches the phone.
        runner: the program, built for the phone.
        target: what the file is called.
        model: the model artifact's folder.
        claimed: its signature.
        lengths: in tokens; some runners take the file's longest alone.
        tell: called with what goes on and the fraction done.
        threads: of the runtime.

    Raises:
        InputError: there is no runner.
        DeviceError: the phone or the runner did not do what it should.
    """
    known = formats.get(claimed.backend).PHONE_RUNNER
    if known is None:
        raise InputError(f"{target} has no runner for Android phones.")
    if not runner.is_file():
        raise InputError(
            f"there is no runner {runner}. Build {known.name} for the phone, and name it in its row of devices.toml."
        )
    functions = {function.max_length: function.name for function in claimed.functions}
    # A file of free length is run at the lengths that its functions were traced with.
    chosen = [length for length in lengths if length in functions] or sorted(functions)
    found = []
    try:
        phone.put_program(FOLDER, {runner.name: runner, claimed.file: model / claimed.file}, runner.name, tell)
        for number, length in enumerate(chosen if known.any_length else [claimed.max_length]):
            tell(f"{target}, {length} tokens", number / len(chosen))
            began = phone.clock() if known.log_tag else ""
            command = known.command(f"{FOLDER}/{runner.name}", f"{FOLDER}/{claimed.file}", functions[length], threads)
            said = phone.run_program(command)
            if known.log_tag:
                said = f"{said}\n{phone.logged(known.log_tag, began)}"
            timings = known.read(said)
            if timings is None:
                where = ", neither to its console nor to the phone's log" if known.log_tag else ""
                last = (said.strip().splitlines() or ["it says nothing"])[-1]
                raise DeviceError(f"{phone.name}: {runner.name} gave no timings of {target}{where}: {last}.")
            found.append(
                RunnerTimes(
                    target=target,
                    runner=runner.name,
                    seq_len=length,
                    threads=threads,
                    inputs=known.inputs,
                    **asdict(timings),
                )
            )
    finally:
        phone.remove_program(FOLDER)
    return found
