"""Runs one `.tflite` file on one runtime. A plain script: Python 3.9 or later, NumPy 1 or 2, nothing of `pipeline`.

    python -I runner.py JOB.json

The job names the file, the inputs (.npz), where outputs (.npz) and the report go, and the module of the interpreter.
The report has one JSON object a line, each flushed, so that after a crash it says what was being done.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


class Report:
    """The report of a run, one JSON line per event."""

    def __init__(self, path: str) -> None:
        """Open the report for writing."""
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115, closed with the process

    def say(self, **fields: object) -> None:
        """Write one line that survives a crash."""
        self._file.write(json.dumps(fields) + "\n")
        self._file.flush()


def probe(interpreter_class: Any, models: Sequence[Any]) -> list[bool]:
    """Return which of the models, given as bytes, the runtime opens."""
    opened = []
    for model in models:
        try:
            interpreter_class(model_content=model.tobytes())
            opened.append(True)
        except Exception:  # any refusal is the answer
            opened.append(False)
    return opened


def run(
    interpreter_class: Any, job: Mapping[str, Any], arrays: Mapping[str, Any], report: Report
) -> tuple[dict[str, Any], list[float]]:
    """Run every call of the job; the calls named for it are timed as well."""
    report.say(at="opening the file")
    interpreter = interpreter_class(model_path=job["model"], num_threads=1)
    outputs = {}
    for number, call in enumerate(job["calls"]):
        report.say(at="running " + call["signature"])
        runner = interpreter.get_signature_runner(call["signature"])
        inputs = {name: arrays[key] for name, key in call["inputs"].items()}
        found = runner(**inputs)
        for name in job["names"]:
            # A copy: the runtime owns what it hands out, and the next call writes over it.
            outputs[f"o{number}-{name}"] = np.array(found[name])
    call = job["calls"][job["timed"]]
    report.say(at="timing " + call["signature"])
    runner = interpreter.get_signature_runner(call["signature"])
    inputs = {name: arrays[key] for name, key in call["inputs"].items()}
    return outputs, [milliseconds(runner, inputs) for _ in range(job["runs"])]


def milliseconds(runner: Callable[..., Any], inputs: Mapping[str, Any]) -> float:
    """Return the wall time of one inference in ms."""
    started = time.perf_counter()
    runner(**inputs)
    return (time.perf_counter() - started) * 1e3


def main(path: str) -> None:
    """Do the job; an error of the runtime is an answer, and ends with exit code 0 as well."""
    with open(path, encoding="utf-8") as file:
        job = json.load(file)
    report = Report(job["report"])
    arrays = np.load(job["inputs"], allow_pickle=False)
    try:
        report.say(at="importing the runtime")
        interpreter_class = importlib.import_module(job["module"]).Interpreter
        if "probes" in job:
            report.say(opened=probe(interpreter_class, [arrays[key] for key in job["probes"]]))
            return
        outputs, timings = run(interpreter_class, job, arrays, report)
    except Exception as error:
        report.say(error=f"{type(error).__name__}: {error}")
        return
    np.savez(job["outputs"], **outputs)
    report.say(ms=timings)


if __name__ == "__main__":
    main(sys.argv[1])
