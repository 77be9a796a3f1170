"""The protobuf classes of a Core ML model, taken out of coremltools without importing coremltools.

`import coremltools` takes six seconds and imports torch; its generated schema alone takes a tenth of a second.
"""

import functools
import importlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

from pipeline.errors import ArtifactError, ToolchainError

_ALIAS = "pipeline_coremltools_proto"
"""The generated modules import each other relatively, so they need a package; this one has no `__init__`."""
_REAL = "coremltools.proto.Model_pb2"


@functools.lru_cache(maxsize=1)
def model_class() -> Any:
    """Return the message class `CoreML.Specification.Model`.

    Protobuf keeps one class per message and process, so it does not matter whether coremltools is imported before
    this, after it, or not at all.

    Raises:
        ToolchainError: coremltools is not installed, or has no such schema.
    """
    if _REAL in sys.modules:
        return sys.modules[_REAL].Model
    folder = _schema_folder()
    package = types.ModuleType(_ALIAS)
    package.__path__ = [str(folder)]
    sys.modules.setdefault(_ALIAS, package)
    try:
        return importlib.import_module(f"{_ALIAS}.Model_pb2").Model
    except (ImportError, TypeError) as error:
        raise ToolchainError(f"the Core ML schema in {folder} cannot be loaded: {error}. Run `make setup`.") from error


def parse(file: Path) -> Any:
    """Read a model file.

    Raises:
        ArtifactError: it is missing or damaged.
        ToolchainError: coremltools is not installed.
    """
    model = model_class()()
    from google.protobuf.message import DecodeError

    try:
        model.ParseFromString(file.read_bytes())
    except OSError as error:
        raise ArtifactError(f"{file} cannot be read: {error.strerror}. Convert the model again.") from error
    except DecodeError as error:
        raise ArtifactError(f"{file} is no Core ML model, or is damaged. Convert the model again.") from error
    return model


def _schema_folder() -> Path:
    found = importlib.util.find_spec("coremltools")
    for place in (found.submodule_search_locations or ()) if found else ():
        if (Path(place) / "proto" / "Model_pb2.py").is_file():
            return Path(place) / "proto"
    raise ToolchainError("coremltools is not installed; reading a .mlpackage needs its schema. Run `make setup`.")
