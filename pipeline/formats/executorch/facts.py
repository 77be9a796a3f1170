"""Facts about ExecuTorch for other modules.

Its program for phones (examples/portable/executor_runner of pytorch/executorch) reports its time in its log. The preset
for Android writes that to the phone's log only (tools/cmake/preset/android.cmake, runtime/platform/default/android.cpp
of v1.4.1); a program built with `EXECUTORCH_PAL_DEFAULT=posix` writes it to stderr. Both are read. It takes a
method's name since v1.3.0.
"""

import re
from collections.abc import Mapping

from pipeline.formats.browsers import BrowserRuntime
from pipeline.formats.rounding import ComputedAs, Rounding
from pipeline.formats.runners import RUNS, PhoneRunner, Timings

TITLE = "ExecuTorch"
DELEGATE = "XNNPACK"
RUNTIME: str | None = "executorch"
CONVERT_SECONDS = 40.0
APPS = ("android", "ios")
DRAFTED: tuple[str, bool] = ("int8_dynamic", False)
COMPUTE_UNITS = ("CPU",)
MINIMUM_RUNTIME = "1.4.1"
"""The release that writes the file: older runtimes are not promised to read it."""
METHOD, OUTPUT_NAMES = "forward", "get_output_names"
"""The method of the student's own head, and the constant method with the names of its outputs."""
SHORTEST = 3
"""Shortest length that torch.export accepts for every architecture; a row of [CLS] and [SEP] alone is padded by one."""
_EXECUTED = re.compile(r"Model executed successfully (\d+) time\(s\) in ([\d.]+) ms")


def _command(program: str, model: str, function: str, threads: int) -> list[str]:
    # Without a method it runs the first of the file, by name: of several heads that may be another than the student's.
    return [
        *(program, f"--model_path={model}", f"--method_name={function}"),
        *(f"--num_executions={RUNS}", f"--cpu_threads={threads}"),
    ]


def _read(said: str) -> Timings | None:
    row = _EXECUTED.search(said)
    return None if row is None else Timings(int(row[1]), float(row[2]) / int(row[1]))


ROUNDING = Rounding(127.5, by_reciprocal=True)
"""Rounding of torchao 0.18: symmetric, with 255 codes over the range."""
COMPUTED_AS: Mapping[str, ComputedAs] = {
    # XNNPACK in executorch 1.4 has one gelu, by erf: at most 4.74e-4 per element from the tanh form, measured over
    # -12 … 12. Twelve layers of ALBERT-base with random weights: 69.8 dB; two layers: 77.8.
    "gelu_tanh": ComputedAs(("gelu", "tanh"), least_db=60.0),
}

PHONE_RUNNER: PhoneRunner | None = PhoneRunner(
    "executor_runner", inputs="ones", any_length=False, log_tag="ExecuTorch", command=_command, read=_read
)

BROWSER_RUNTIME: BrowserRuntime | None = None
