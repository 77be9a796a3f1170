"""Settings under which numerical libraries compute as they would on another processor, and a probe of what each limits.

`pytest --processor NAME` runs tests under one; `python -m processors` says which operations come out with other bytes.
"""

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from pipeline.artifact import digest_of
from pipeline.devices import host

LIMITED = Path(__file__).parent / "limited"
"""In PYTHONPATH it limits what no variable of a library does: XNNPACK's choice of kernels."""
XNNPACK, THREADS = "TESTS_XNNPACK", "TESTS_THREADS"
_NO_AVX512 = "X86_V4 AVX512_ICL AVX512_SPR"
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "native": {},
    # What every x86-64 has: no AVX, and MKL's own code for processors that it does not know.
    "plainest": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "MKL_CBWR": "COMPATIBLE",
        "OPENBLAS_CORETYPE": "Nehalem",
        "NPY_DISABLE_CPU_FEATURES": f"X86_V3 {_NO_AVX512}",
        XNNPACK: "SSE41",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": _NO_AVX512,
        XNNPACK: "AVX2",
    },
    "avx512": {
        "ATEN_CPU_CAPABILITY": "avx512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512",
        "OPENBLAS_CORETYPE": "SkylakeX",
        "NPY_DISABLE_CPU_FEATURES": "AVX512_ICL AVX512_SPR",
        XNNPACK: "AVX512_CORE",
    },
    "threads2": {"OMP_NUM_THREADS": "2", THREADS: "2"},
}
"""Variables by setting."""
_LIBRARIES = {name for setting in ("plainest", "avx2", "avx512") for name in SETTINGS[setting]}
VARIABLES = _LIBRARIES | {*SETTINGS["threads2"]}
_TAKES = {"avx2": "avx2", "avx512": "avx512f"}
"""Feature without which a processor cannot compute under a setting."""


def set_up(setting: str) -> None:
    """Let the processes that this one begins compute under a setting.

    Raises:
        UsageError: this processor cannot.
    """
    if setting not in ("native", "threads2"):
        if (sys.platform, platform.machine()) != ("linux", "x86_64"):
            raise pytest.UsageError(f"--processor {setting} is for Linux on x86-64; here it would limit nothing.")
        needed = _TAKES.get(setting)
        if needed and needed not in host.cpu_features():
            raise pytest.UsageError(f"--processor {setting} needs {needed}, which this processor lacks.")
    os.environ |= SETTINGS[setting]
    os.environ["PYTHONPATH"] = python_path(*filter(None, [os.environ.get("PYTHONPATH")]))


def python_path(*places: object, variables: Mapping[str, str] = os.environ) -> str:
    """Return a PYTHONPATH of places, and of the folder that limits XNNPACK where the variables ask for it."""
    return os.pathsep.join([*map(str, places), *([str(LIMITED)] if XNNPACK in variables else [])])


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment for a child under the variables of a setting, and under no other."""
    clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    tests = Path(__file__).parent
    return clean | dict(variables) | {"PYTHONPATH": python_path(tests.parent, tests, variables=variables)}


def here(environment: Mapping[str, str] = os.environ) -> str:
    """Return a short digest of what decides the last digits of numbers: the processor, and the libraries' limits.

    Threads are left out: pytest's own processes have one each, and workers theirs.
    """
    machine = host.describe()
    limits = {name: environment[name] for name in sorted(_LIBRARIES) if name in environment}
    return digest_of([machine.abi, machine.model_id, machine.cpu_features, limits])[:12]


def digests() -> dict[str, str]:
    """Return a digest of what each operation gives, by library and operation. Imports the libraries."""
    import numpy as np
    import torch
    from scipy import linalg
    from torch.nn import functional as F

    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    rows, matrix = (generator.standard_normal(shape).astype(np.float32) for shape in ((64, 384), (384, 96)))
    x, w = torch.from_numpy(rows), torch.from_numpy(matrix)
    heads = x.view(1, 4, 16, 384)
    # Of whole numbers, so that their sums are the same in any order.
    whole = np.round(8 * rows.astype(np.float64))
    gram = whole @ whole.T + 25_600 * np.eye(64)
    found = {
        "NumPy matmul": rows @ matrix,
        "NumPy exp": np.exp(rows),
        "NumPy sum": rows.sum(1),
        "SciPy cholesky": linalg.cholesky(gram),
        "torch linear": F.linear(x, w.T.contiguous(), torch.ones(96)),
        "torch bfloat16 linear": F.linear(x.bfloat16(), w.T.contiguous().bfloat16()).float(),
        "torch attention": F.scaled_dot_product_attention(heads, heads, heads),
        "torch softmax": torch.softmax(x, -1),
        "torch LayerNorm": F.layer_norm(x, (384,)),
        "torch GELU": F.gelu(x),
        "torch tanh": torch.tanh(x),
        "torch cholesky": torch.linalg.cholesky(torch.from_numpy(gram)),
        "torch svd": torch.linalg.svd(w)[1],
    }
    return {name: hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest() for name, value in found.items()}


def _digests_under(variables: Mapping[str, str]) -> dict[str, str]:
    command = [sys.executable, "-W", "ignore", "-m", "processors", "--digests"]
    done = subprocess.run(command, env=environment(variables), capture_output=True, check=True, encoding="utf-8")
    found: dict[str, str] = json.loads(done.stdout)
    return found


def main() -> None:
    """Print, for each variable alone, the operations that come out with other bytes than without it."""
    if sys.argv[1:] == ["--digests"]:
        print(json.dumps(digests()))
        return
    machine, native = host.describe(), _digests_under({})
    print(f"{machine.model_id}: {', '.join(machine.cpu_features)}")
    for name, value in dict.fromkeys(pair for setting in SETTINGS.values() for pair in setting.items()):
        if name.startswith("TESTS_"):
            # No operation above is XNNPACK's; `tests/test_processors.py` looks at what it sees.
            continue
        found = _digests_under({name: value})
        changed = [operation for operation in native if found[operation] != native[operation]]
        print(f"{name}={value}: {', '.join(changed) or 'nothing'}")


if __name__ == "__main__":
    main()
