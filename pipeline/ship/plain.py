"""A plain benchmark on an Android phone without the app, by the runtimes' own command-line runners.

Who has built them gets a first figure before there is an app on the phone. It is no latency record: the runners take
random or constant ids, keep no samples, and know neither texts nor tokenisation.

ExecuTorch's runner says its time in its log, which its preset for Android writes to the phone's log and nowhere else
(tools/cmake/preset/android.cmake, runtime/platform/default/android.cpp of v1.4.1); one that was built with
`EXECUTORCH_PAL_DEFAULT=posix` writes it to stderr. Both are read.

Source: https://github.com/google-ai-edge/LiteRT (litert/tools, tflite/tools/benchmark: `benchmark_model`),
https://github.com/pytorch/executorch (examples/portable/executor_runner).
"""

import re
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from pipeline.backends.signature import Signature
from pipeline.devices.adb import TEMPORARY, AndroidPhone
from pipeline.devices.transport import DeviceError, Tell
from pipeline.errors import InputError

FOLDER = f"{TEMPORARY}/pocketbert"
_LOG_TAG = "ExecuTorch"
_RUNS, _WARMUP = 50, 5
_TIMINGS = re.compile(r"count=(\d+) first=(\S+) .*?min=(\S+) max=(\S+) avg=(\S+)(?:.*?median=(\S+))?")
_INIT = re.compile(r"Inference timings in us: Init: ([\d.e+]+)")
_EXECUTED = re.compile(r"Model executed successfully (\d+) time\(s\) in ([\d.]+) ms")


class Plain(BaseModel):
    """What a runner said of one file at one length."""

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
) -> list[Plain]:
    """Push a runner and a file, run it at each length, and remove both.

    Args:
        phone: reaches the phone.
        runner: the program, built for the phone: `benchmark_model` or `executor_runner`.
        target: what the file is called.
        model: the model artifact's folder.
        claimed: its signature.
        lengths: in tokens; ExecuTorch's runner takes the file's longest alone.
        tell: called with what goes on and the fraction done.
        threads: of the runtime.

    Raises:
        InputError: there is no runner.
        DeviceError: the phone or the runner did not do what it should.
    """
    if not runner.is_file():
        name = "benchmark_model" if claimed.backend == "litert" else "executor_runner"
        raise InputError(
            f"there is no runner {runner}. Build {name} for the phone, and name it in its row of devices.toml."
        )
    place, program = f"{FOLDER}/{claimed.file}", f"{FOLDER}/{runner.name}"
    found = []
    try:
        phone.put_program(FOLDER, {runner.name: runner, claimed.file: model / claimed.file}, runner.name, tell)
        functions = {function.max_length: function.name for function in claimed.functions}
        if claimed.backend == "litert":
            # A file of free length is run at the lengths that its functions were traced with.
            chosen = [length for length in lengths if length in functions] or sorted(functions)
            for number, length in enumerate(chosen):
                tell(f"{target}, {length} tokens", number / len(chosen))
                said = phone.run_program(_litert(program, place, functions[length], threads))
                found.append(_read_litert(said, target, runner.name, length, threads, phone.name))
        else:
            tell(f"{target}, {claimed.max_length} tokens", 0.5)
            began = phone.clock()
            said = phone.run_program(_executorch(program, place, threads))
            said = f"{said}\n{phone.logged(_LOG_TAG, began)}"
            found.append(_read_executorch(said, target, runner.name, claimed.max_length, threads, phone.name))
    finally:
        phone.remove_program(FOLDER)
    return found


def _litert(program: str, model: str, function: str, threads: int) -> list[str]:
    return [
        *(program, f"--graph={model}", f"--signature_to_run_for={function}", f"--num_threads={threads}"),
        *("--use_xnnpack=true", f"--warmup_runs={_WARMUP}", f"--num_runs={_RUNS}"),
    ]


def _executorch(program: str, model: str, threads: int) -> list[str]:
    return [program, f"--model_path={model}", f"--num_executions={_RUNS}", f"--cpu_threads={threads}"]


def _read_litert(said: str, target: str, runner: str, length: int, threads: int, phone: str) -> Plain:
    """Read the last line of timings: the first one is of the warm-up."""
    rows = list(_TIMINGS.finditer(said))
    if not rows:
        raise DeviceError(f"{phone}: {runner} gave no timings of {target}: {_last(said)}.")
    count, _, least, most, mean, middle = rows[-1].groups()
    load = _INIT.search(said)
    return Plain(
        target=target,
        runner=runner,
        seq_len=length,
        threads=threads,
        runs=int(count),
        mean_ms=float(mean) / 1e3,
        p50_ms=float(middle) / 1e3 if middle else None,
        min_ms=float(least) / 1e3,
        max_ms=float(most) / 1e3,
        load_ms=float(load[1]) / 1e3 if load else None,
        inputs="random numbers",
    )


def _read_executorch(said: str, target: str, runner: str, length: int, threads: int, phone: str) -> Plain:
    row = _EXECUTED.search(said)
    if row is None:
        raise DeviceError(
            f"{phone}: {runner} gave no timings of {target}, neither to its console nor to the phone's log: "
            f"{_last(said)}."
        )
    runs = int(row[1])
    return Plain(
        target=target,
        runner=runner,
        seq_len=length,
        threads=threads,
        runs=runs,
        mean_ms=float(row[2]) / runs,
        p50_ms=None,
        min_ms=None,
        max_ms=None,
        load_ms=None,
        inputs="ones",
    )


def _last(said: str) -> str:
    return (said.strip().splitlines() or ["it says nothing"])[-1]
