"""Schemas of a `.pte`, which the executorch package contains."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from pipeline.errors import ToolchainError
from pipeline.formats.flatbuffer import Schema

PROGRAM = "exir/_serialize/program.fbs"
XNNPACK = "backends/xnnpack/serialization/runtime_schema.fbs"


@cache
def schema(name: str) -> Schema:
    """Read a schema by its path in the package.

    Raises:
        ToolchainError: executorch is not installed.
    """
    spec = find_spec("executorch")
    if spec is None or not spec.submodule_search_locations:
        raise ToolchainError("executorch is not installed; its schemas are needed to read a .pte.")
    return Schema.read(Path(spec.submodule_search_locations[0]) / name)
