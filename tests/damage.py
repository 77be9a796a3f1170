"""Converted files with one thing changed, for tests of what reads and judges them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline import mil
from pipeline.formats.coreml.convert import SPECIFICATION
from pipeline.formats.litert.container import read_model, write_model

Contents = list[memoryview]


def edited_litert(file: Path, change: Callable[[Any, Contents], object], out: Path) -> Path:
    """Write a `.tflite` anew with a change to its model, or to the contents of its buffers."""
    model, contents = read_model(file)
    change(model, contents)
    write_model(model, contents, out)
    return out


def edited_bytes(file: Path, old: bytes, new: bytes, out: Path) -> Path:
    """Write a file with the first of some bytes replaced by as many others."""
    content = file.read_bytes()
    assert old in content
    assert len(old) == len(new)
    out.write_bytes(content.replace(old, new, 1))
    return out


def edit_coreml(package: Path, change: Callable[[Any], object]) -> None:
    """Change the protobuf of a package in place."""
    spec = mil.read(package).spec
    change(spec)
    (package / SPECIFICATION).write_bytes(spec.SerializeToString())
