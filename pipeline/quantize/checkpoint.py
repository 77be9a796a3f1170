"""A quantised checkpoint on disk: its record, and the structure that its files are compared with."""

import json
from pathlib import Path
from typing import Any

from pipeline.checkpoint import ranges
from pipeline.errors import StudentError

STRUCTURE = "structure.json"
"""File with the structure of the rewritten model, see `checkpoint.parameters`; verify compares files with it."""


def write_structure(model: Any, out: Path) -> None:
    """Write the structure of a checkpoint's model, with which verify compares files."""
    from pipeline.checkpoint.parameters import model_structure

    (out / STRUCTURE).write_text(json.dumps(model_structure(model)), encoding="utf-8")


def structure(folder: Path) -> dict[str, Any]:
    """Return the structure of a quantised checkpoint's model."""
    found: dict[str, Any] = json.loads((folder / STRUCTURE).read_text(encoding="utf-8"))
    return found


Found = ranges.Ranges | ranges.QuantisedWeightsRecord
"""The record of a quantised checkpoint: ranges and scales, or integers or palettes."""


def read_record(folder: Path) -> tuple[str, Found]:
    """Return the record of a quantised checkpoint and the name of its file.

    Raises:
        StudentError: the checkpoint has none.
    """
    from pipeline.checkpoint import integers, palettes

    kinds: dict[str, type[Found]] = {
        ranges.FILE: ranges.Ranges,
        integers.RECORD: integers.Record,
        palettes.RECORD: palettes.Record,
    }
    for name, kind in kinds.items():
        if (folder / name).is_file():
            return name, kind.model_validate_json((folder / name).read_text(encoding="utf-8"))
    raise StudentError(f"{folder} has no record of its quantisation; make it again with `pocketbert convert`.")


def was_trained(folder: Path) -> bool:
    """Return whether a quantised checkpoint was trained after calibration."""
    return read_record(folder)[1].training is not None
