"""Run a file on a runtime in that runtime's own environment, and survive its crashes and hangs.

A runtime refuses a file at the first operation whose version it does not know. The versions that it knows are found
with models that hold nothing but one operator code.
"""

import json
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.compat.record import Operator, TooNew
from pipeline.formats.signature import Function, Signature
from pipeline.student.golden import Golden
from pipeline.text.encoding import Row

RUNNER = Path(__file__).with_name("runner.py")
TIMED_RUNS = 5
TIMEOUT_S = 600.0
_IMPORTING = "importing the runtime"
_CUSTOM = 32
_NEWEST = 1000
"""`BuiltinOperator.CUSTOM`: such an operation is known by its name, and its version is its owner's."""

Ended = Literal["done", "error", "died", "not_importable"]


@dataclass(frozen=True)
class Call:
    """One golden row at one of the file's lengths."""

    function: Function
    row: int
    inputs: Mapping[str, NDArray[np.int32]]


@dataclass(frozen=True)
class Trial:
    """The end of a run, with its outputs and times."""

    ended: Ended
    outputs: tuple[tuple[NDArray[np.float32], ...], ...] = ()
    """The file's outputs of each call, in the order of their names; none if it was not done."""
    ms: tuple[float, ...] = ()
    at: str = ""
    """The step at which it failed."""
    words: str = ""
    """The runtime's own error, or how its process ended."""


def calls_of(signature: Signature, rows: Golden) -> list[Call]:
    """Return every golden row at every length of the file that it fits; its ids are the shipped tokenizer's.

    Rows behind a prompt whose tokens are not pooled are left out: how many these are, the tokenizer alone knows.
    """
    calls = []
    for number, golden_row in enumerate(rows.rows):
        if golden_row.prompt is not None and not signature.include_prompt:
            continue
        row = Row(tuple(golden_row.input_ids), tuple(golden_row.token_type_ids))
        for function in signature.functions:
            if len(row) <= function.max_length:
                names = tuple(tensor.name for tensor in function.inputs)
                padded = row.padded(names, function.max_length, pad_token_id=signature.pad_token_id)
                calls.append(Call(function, number, padded))
    return calls


def timed_call(calls: Sequence[Call]) -> int:
    """Return the number of the call that is timed: the longest row at the longest length."""
    return max(
        range(len(calls)),
        key=lambda number: (
            calls[number].function.max_length,
            int(next(iter(calls[number].inputs.values())).astype(bool).sum()),
        ),
    )


def run(
    python: Path,
    module: str,
    file: Path,
    calls: Sequence[Call],
    names: Sequence[str],
    *,
    log: Path,
    scratch: Path | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Trial:
    """Run all calls and time one of them.

    Args:
        python: interpreter of the runtime's environment.
        module: where it has its `Interpreter`.
        file: the `.tflite`.
        calls: what to run.
        names: the file's outputs that are wanted, in order.
        log: the runtime's own words are added to it.
        scratch: a folder for temporary files; the system's unless given.
        timeout_s: after so long it counts as hung.
    """
    arrays: dict[str, NDArray[Any]] = {}
    rows = []
    for number, call in enumerate(calls):
        keys = {name: f"i{number}-{name}" for name in call.inputs}
        arrays |= {keys[name]: array for name, array in call.inputs.items()}
        rows.append({"signature": call.function.name, "inputs": keys})
    job: dict[str, Any] = {"model": str(file.resolve()), "calls": rows, "names": list(names)}
    job |= {"timed": timed_call(calls), "runs": TIMED_RUNS}
    with TemporaryDirectory(dir=scratch) as place:
        trial, last = _job(python, module, job, arrays, Path(place), log=log, timeout_s=timeout_s)
        if trial.ended != "done":
            return trial
        with np.load(Path(place) / "outputs.npz", allow_pickle=False) as found:
            outputs = tuple(tuple(found[f"o{number}-{name}"] for name in names) for number in range(len(calls)))
    return Trial("done", outputs, tuple(last["ms"]))


def probe(
    python: Path,
    module: str,
    models: Sequence[bytes],
    *,
    log: Path,
    scratch: Path | None = None,
    timeout_s: float = TIMEOUT_S,
) -> list[bool] | None:
    """Return for each of the small models whether the runtime opens it; None if the run failed."""
    arrays = {f"p{number}": np.frombuffer(model, np.uint8) for number, model in enumerate(models)}
    with TemporaryDirectory(dir=scratch) as place:
        trial, last = _job(python, module, {"probes": list(arrays)}, arrays, Path(place), log=log, timeout_s=timeout_s)
    return list(last["opened"]) if trial.ended == "done" else None


def _job(
    python: Path,
    module: str,
    job: dict[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    scratch: Path,
    *,
    log: Path,
    timeout_s: float,
) -> tuple[Trial, dict[str, Any]]:
    """Run a job in the runner; return the trial and the last line of the runner's report."""
    inputs, outputs, report = (scratch / name for name in ("inputs.npz", "outputs.npz", "report.jsonl"))
    np.savez(inputs, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the names for its own options
    job |= {"module": module, "inputs": str(inputs), "outputs": str(outputs), "report": str(report)}
    (scratch / "job.json").write_text(json.dumps(job), encoding="utf-8")
    log.parent.mkdir(parents=True, exist_ok=True)
    how = _process([str(python), "-I", str(RUNNER), str(scratch / "job.json")], log, timeout_s)
    lines = _report(report)
    last = lines[-1] if lines else {}
    at = next((line["at"] for line in reversed(lines) if "at" in line), "starting")
    if how:
        importing = at in ("starting", _IMPORTING)
        return Trial("not_importable" if importing else "died", at=at, words=how), last
    if "error" in last:
        return Trial("not_importable" if at == _IMPORTING else "error", at=at, words=last["error"]), last
    return Trial("done"), last


def _process(command: list[str], log: Path, timeout_s: float) -> str:
    """Run a command to its end; return a description of its failure, or an empty string."""
    with log.open("ab") as sink:
        try:
            code = subprocess.run(
                command, check=False, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, timeout=timeout_s
            ).returncode
        except subprocess.TimeoutExpired:
            return f"was not done after {timeout_s:.0f} s, and was ended"
        except OSError as error:
            return f"could not be started: {error.strerror}"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}" if code else ""


def _report(path: Path) -> list[dict[str, Any]]:
    """Read the lines that are whole; a crash may cut the last one."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    return lines


# --- operator codes --------------------------------------------------------------------------------------------------


def operators_of(file: Path) -> list[Operator]:
    """Return the operator codes of a file, in its order; custom operations have the file's own name for them."""
    from ai_edge_litert import schema_py_generated as schema

    names = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
    model = schema.Model.GetRootAs(file.read_bytes(), 0)
    found = []
    for entry in (model.OperatorCodes(number) for number in range(model.OperatorCodesLength())):
        # The older, narrower field counts where the newer is at its default.
        code = max(entry.BuiltinCode(), entry.DeprecatedBuiltinCode())
        custom = entry.CustomCode()
        found.append(
            Operator(name=custom.decode() if custom else names[code], code=int(code), version=int(entry.Version()))
        )
    return found


def model_of_one_operator(code: int, version: int) -> bytes:
    """Return a model that has one operator code and no operation."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    entry: Any = schema.OperatorCodeT()
    entry.builtinCode, entry.deprecatedBuiltinCode, entry.version = code, min(code, 127), version
    graph: Any = schema.SubGraphT()
    graph.tensors, graph.inputs, graph.outputs, graph.operators = [], [], [], []
    model: Any = schema.ModelT()
    model.version, model.operatorCodes, model.subgraphs, model.buffers = 3, [entry], [graph], [schema.BufferT()]
    builder = flatbuffers.Builder(256)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def versions_to_probe(operators: Sequence[Operator]) -> list[tuple[int, int]]:
    """Return the (code, version) pairs to ask a runtime for: each version up to the declared one."""
    newest: dict[int, int] = {}
    for operator in operators:
        if operator.code != _CUSTOM:
            newest[operator.code] = max(operator.version, newest.get(operator.code, 0))
    # A damaged file may declare any number; the newest of today are below 20.
    return [(code, version) for code, last in newest.items() for version in range(1, min(last, _NEWEST) + 1)]


def operators_too_new(
    operators: Sequence[Operator], probed: Sequence[tuple[int, int]], opened: Sequence[bool]
) -> list[TooNew]:
    """Return the operations of a file that a runtime does not know at the version that the file declares."""
    known = {pair for pair, good in zip(probed, opened, strict=True) if good}
    return [
        TooNew(**operator.model_dump(), known=max((v for c, v in known if c == operator.code), default=0))
        for operator in operators
        if (operator.code, operator.version) in probed and (operator.code, operator.version) not in known
    ]
