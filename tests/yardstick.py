"""A fixed workload on one core: CPU seconds of two runs, on two machines or on two days, are compared in its seconds.

`.ci/run` and `make test-durations` time it in the same run as what they list. To change it is to lose every comparison
with what was written down before.
"""

import hashlib
import os
import subprocess
import sys
import time

_ROUNDS = 40


def seconds() -> float:
    """Return the CPU seconds that the workload takes now, in a process of its own."""
    return float(subprocess.run([sys.executable, __file__], stdout=subprocess.PIPE, check=True).stdout)


def _interpret() -> None:
    """Do what a parser, a graph and a serialiser do: small integers, dictionaries, lists, sorting, strings, digests."""
    counts: dict[int, int] = {}
    number = 1
    for _ in range(120_000):
        number = number * 1_103_515_245 + 12_345 & 0x7FFF_FFFF
        counts[number % 5_003] = counts.get(number % 5_003, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    hashlib.sha256(" ".join(f"{key}:{count}" for key, count in ordered).encode() * 200).hexdigest()


def _multiply() -> None:
    """Do what a tiny student's layers do."""
    import numpy as np

    values = np.ones((64, 512), np.float32)
    weights = np.full((512, 512), 1 / 512, np.float32)
    for _ in range(150):
        values = np.tanh(values @ weights)


if __name__ == "__main__":
    # Read when NumPy is imported. Threads that wait for each other on a busy machine would spend what is no work.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    _multiply()
    began = time.process_time()
    for _ in range(_ROUNDS):
        _interpret()
        _multiply()
    print(f"{time.process_time() - began:.2f}")
