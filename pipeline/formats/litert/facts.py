"""Facts about LiteRT for other modules. Its program for phones: tflite/tools/benchmark of google-ai-edge/LiteRT."""

import re
from collections.abc import Mapping

from pipeline.formats.browsers import BrowserRuntime, NpmPackage
from pipeline.formats.rounding import ComputedAs, Rounding
from pipeline.formats.runners import RUNS, WARMUP, PhoneRunner, Timings

TITLE = "LiteRT"
DELEGATE = "XNNPACK"
RUNTIME: str | None = "ai-edge-litert"
CONVERT_SECONDS = 45.0
APPS = ("android", "ios")
DRAFTED: tuple[str, bool] = ("int8_dynamic", True)
COMPUTE_UNITS = ("CPU",)
MINIMUM_RUNTIME = "1.2.0"
"""The newest of the releases that first computed a scheme correctly, see `right_from` in `schemes.SCHEMES`."""
_TIMINGS = re.compile(r"count=(\d+) first=(\S+) .*?min=(\S+) max=(\S+) avg=(\S+)(?:.*?median=(\S+))?")
_INIT = re.compile(r"Inference timings in us: Init: ([\d.e+]+)")


def _command(program: str, model: str, function: str, threads: int) -> list[str]:
    return [
        *(program, f"--graph={model}", f"--signature_to_run_for={function}", f"--num_threads={threads}"),
        *("--use_xnnpack=true", f"--warmup_runs={WARMUP}", f"--num_runs={RUNS}"),
    ]


def _read(said: str) -> Timings | None:
    """Read the last line of timings, in microseconds; the first one is of the warm-up."""
    rows = list(_TIMINGS.finditer(said))
    if not rows:
        return None
    count, _, least, most, mean, middle = rows[-1].groups()
    load = _INIT.search(said)
    return Timings(
        int(count),
        float(mean) / 1e3,
        p50_ms=float(middle) / 1e3 if middle else None,
        min_ms=float(least) / 1e3,
        max_ms=float(most) / 1e3,
        load_ms=float(load[1]) / 1e3 if load else None,
    )


ROUNDING = Rounding(127)
"""Rounding of ai-edge-quantizer 0.10."""
COMPUTED_AS: Mapping[str, ComputedAs] = {}

PHONE_RUNNER: PhoneRunner | None = PhoneRunner(
    "benchmark_model", inputs="random numbers", any_length=True, log_tag=None, command=_command, read=_read
)

_BUILDS = ("", "_compat", "_jspi")
"""Builds of the runtime: the usual one, one for browsers without relaxed SIMD, and one that lets WebGPU leave single
operations to WebAssembly."""
BROWSER_RUNTIME: BrowserRuntime | None = BrowserRuntime(
    "LiteRT.js 2.5.3",
    (
        NpmPackage(
            "@litertjs/core",
            "2.5.3",
            "PlGmbMOq9WitX7FO0jhbdJw9GthatsyuCQXjTt/wJZo0FLaw48q4tz8IwqgqCIkviYGr9OFDL1kCnN4nzWoyJQ==",
            11_817_097,
            {
                "core.mjs": "package/dist/index.js",
                **{
                    f"litert_wasm{build}_internal.{kind}": f"package/wasm/litert_wasm{build}_internal.{kind}"
                    for build in _BUILDS
                    for kind in ("js", "wasm")
                },
            },
        ),
        NpmPackage(
            "@litertjs/wasm-utils",
            "2.5.3",
            "4fJiw6tBQnIs+0jH/OQ16nYOiSl8/+zZnn5h2ul8aTKHi05sVqZW580Tmk78pC2kT39A9OYBVdFawteZ/sI1kQ==",
            4_698,
            {"wasm-utils.mjs": "package/dist/index.js"},
        ),
    ),
    {"@litertjs/wasm-utils": "wasm-utils.mjs"},
)
