"""Operator codes of a `.tflite` file: each operation with the version that it declares.

A runtime refuses a file at the first operation whose version it does not know. What it does know is found by handing it
models that hold nothing but one operator code.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

_CUSTOM = 32
"""`BuiltinOperator.CUSTOM`: such an operation is known by its name, and its version is its owner's."""


class Operator(BaseModel):
    """An operation and the version that a file declares for it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    code: int
    version: int


class TooNew(Operator):
    """One that a runtime does not know."""

    known: int
    """The newest version that it knows; 0 for none."""

    def __str__(self) -> str:
        """Return it as a part of a sentence."""
        knows = f"knows up to {self.known}" if self.known else "does not know it at all"
        return f"{self.name} version {self.version}; it {knows}"


def read(file: Path) -> list[Operator]:
    """Return the operator codes of a file, in its order; custom operations are named by what the file calls them."""
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


def only(code: int, version: int) -> bytes:
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


def probes(operators: Sequence[Operator]) -> list[tuple[int, int]]:
    """Return the (code, version) pairs to ask a runtime for: each version up to the declared one."""
    newest: dict[int, int] = {}
    for operator in operators:
        if operator.code != _CUSTOM:
            newest[operator.code] = max(operator.version, newest.get(operator.code, 0))
    return [(code, version) for code, last in newest.items() for version in range(1, last + 1)]


def too_new(operators: Sequence[Operator], asked: Sequence[tuple[int, int]], opened: Sequence[bool]) -> list[TooNew]:
    """Return the operations of a file that a runtime does not know at the version that the file declares."""
    known = {pair for pair, good in zip(asked, opened, strict=True) if good}
    return [
        TooNew(**operator.model_dump(), known=max((v for c, v in known if c == operator.code), default=0))
        for operator in operators
        if (operator.code, operator.version) in asked and (operator.code, operator.version) not in known
    ]
