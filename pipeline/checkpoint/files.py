"""JSON files that belong to a checkpoint."""

import json
from pathlib import Path
from typing import Any

from pipeline.artifact import check_size
from pipeline.errors import StudentError


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that belongs to a checkpoint."""
    try:
        check_size(path)
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise StudentError(
            f"{path.parent} has no {path.name}; it is not a checkpoint in Hugging Face layout."
        ) from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise StudentError(f"{path} cannot be read as JSON: {error}.") from error
    if not isinstance(value, dict):
        raise StudentError(f"{path} holds a {type(value).__name__}, not an object.")
    return value
