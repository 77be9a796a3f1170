"""Runs one `.tflite` file inside the emulated machine. A plain script: Python 3.9 or later, NumPy and LiteRT.

    python arm64_guest.py JOB.json

The job names the file, the inputs (.npz), the calls, where outputs (.npz) go, and how often each call is counted. In a
machine whose clock moves by one nanosecond an instruction, a time is a count.
"""

from __future__ import annotations

import json
import mmap
import sys
import time

import numpy as np

MARK = "POCKETBERT "
"""Begins the lines that are meant for whoever reads the console."""


def main(path: str) -> None:
    """Do the job."""
    with open(path, encoding="utf-8") as file:
        job = json.load(file)
    from ai_edge_litert.interpreter import Interpreter

    arrays = np.load(job["inputs"], allow_pickle=False)
    interpreter = Interpreter(model_path=job["model"], num_threads=1)
    outputs = {}
    for number, call in enumerate(job["calls"]):
        runner = interpreter.get_signature_runner(call["function"])
        inputs = {name: arrays[key] for name, key in call["inputs"].items()}
        # The first run packs weights, and is not counted.
        found = runner(**inputs)
        for name in job["names"]:
            # A copy: the runtime owns what it hands out, and the next call writes over it.
            outputs[f"o{number}-{name}"] = np.array(found[name])
        counts = []
        for _ in range(job["repeats"]):
            began = time.perf_counter_ns()
            runner(**inputs)
            counts.append(time.perf_counter_ns() - began)
        said = {"call": number, "counts": counts, "page_size": mmap.PAGESIZE}
        print(MARK + json.dumps(said), flush=True)
    if job.get("outputs"):
        np.savez(job["outputs"], **outputs)  # type: ignore[arg-type]  # the stub takes the names for its own options
    print(MARK + json.dumps({"done": True}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
