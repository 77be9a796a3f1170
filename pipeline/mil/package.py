"""Packages: a `.mlpackage` read into functions of operations.

The protobuf classes of a Core ML model come out of coremltools without importing it: `import coremltools` takes six
seconds and imports torch; its generated schema alone takes a tenth of a second.
"""

import functools
import importlib
import importlib.util
import json
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.errors import ArtifactError, InputError, ToolchainError
from pipeline.mil.blob import BlobFile
from pipeline.mil.values import TensorType, Value, immediate, tensor_type

_MANIFEST = "Manifest.json"
_MODEL = "model.mlmodel"
_AUTHOR = "com.apple.CoreML"
_MODEL_PATH = "@model_path/"
"""Prefix of paths beside the model, in a program."""
VARIADIC = "values"
"""The parameter of `concat`, `stack` and `einsum` that takes several values."""
_ALIAS = "pipeline_coremltools_proto"
"""The generated modules import each other relatively, so they need a package; this one has no `__init__`."""
_REAL = "coremltools.proto.Model_pb2"


@dataclass(frozen=True)
class Literal:
    """A constant in the program: written into it, or at an offset of a weight file."""

    type: TensorType | None
    """None for a list of labels."""
    proto: Any
    """`MILSpec.Value.ImmediateValue`; None where a weight file holds it."""
    blob: tuple[str, int] | None
    """Path of the weight file below the model's folder, and offset."""

    @functools.cached_property
    def key(self) -> tuple[Any, ...]:
        """Equal for two literals that are stored at the same place, or written with the same bytes."""
        return (
            ("blob", *self.blob, self.type) if self.blob else ("immediate", self.proto.SerializeToString(), self.type)
        )


@dataclass(frozen=True)
class Output:
    """An output of an operation."""

    name: str
    type: TensorType | None
    """None for the dictionary of a classifier."""


Argument = str | Literal
"""A reference to a value by name, or a literal."""


@dataclass(frozen=True)
class Operation:
    """One operation of a function."""

    kind: str
    arguments: Mapping[str, tuple[Argument, ...]]
    """One argument per parameter, except for `VARIADIC`. Attributes count: iOS 16 keeps compressed weights there."""
    outputs: tuple[Output, ...]
    nested: bool
    """Whether it contains blocks, like loops and conditions."""

    @property
    def name(self) -> str:
        """Name of its first output, by which Core ML's tools refer to it."""
        return self.outputs[0].name if self.outputs else self.kind


@dataclass(frozen=True)
class Program:
    """One function of a package."""

    name: str
    opset: str
    inputs: tuple[Output, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[str, ...]
    description: Any
    """Its part of the model description: rows `input` and `output`."""


class Package:
    """A `.mlpackage` that holds an ML Program. Weight files are mapped, not read."""

    def __init__(self, path: Path, spec: Any, folder: Path) -> None:
        """Store a parsed package; `read` makes one.

        Args:
            path: path of the package.
            spec: the parsed model.
            folder: folder of the model: `@model_path` of references to weight files.
        """
        self.path = path
        self.spec = spec
        self._folder = folder
        self._blobs: dict[str, BlobFile] = {}
        self._programs: dict[str, Program] = {}
        self.decoded: dict[Any, Value] = {}
        """Decoded constants, by their storage; shared by all functions."""

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of the functions, in the order of the model description."""
        described = [row.name for row in self.spec.description.functions]
        rest = sorted(name for name in self.spec.mlProgram.functions if name not in described)
        return tuple(described + rest)

    def choose(self, function: str | None) -> str:
        """Return the name of a function: the given one, or that of the default function.

        Raises:
            InputError: the package has no function of that name.
        """
        default = self.spec.description.defaultFunctionName or self.functions[0]
        name = function or ("main" if "main" in self.functions else default)
        if name not in self.spec.mlProgram.functions:
            raise InputError(f"{self.path} has no function {name}; it has {', '.join(self.functions)}.")
        return name

    def program(self, function: str | None = None) -> Program:
        """Return a function, by default the default one; each is parsed once."""
        name = self.choose(function)
        if name not in self._programs:
            self._programs[name] = self._parse(name)
        return self._programs[name]

    def _parse(self, name: str) -> Program:
        proto = self.spec.mlProgram.functions[name]
        if proto.opset not in proto.block_specializations:
            raise ArtifactError(
                f"{self.path}: function {name} has no block for its opset {proto.opset}; it is damaged."
            )
        block = proto.block_specializations[proto.opset]
        described = [row for row in self.spec.description.functions if row.name == name]
        return Program(
            name=name,
            opset=proto.opset,
            inputs=tuple(_output(row) for row in proto.inputs),
            operations=tuple(_operation(row) for row in block.operations),
            outputs=tuple(block.outputs),
            description=described[0] if described else self.spec.description,
        )

    def blob(self, name: str) -> BlobFile:
        """Return a weight file by its path below the model's folder.

        Raises:
            ArtifactError: the path leads out of the package.
        """
        if name not in self._blobs:
            place = PurePosixPath(name)
            if place.is_absolute() or ".." in place.parts or not place.name:
                raise ArtifactError(f"{self.path} keeps weights in {name!r}, outside of the package; it is damaged.")
            self._blobs[name] = BlobFile(self._folder / place)
        return self._blobs[name]

    def literal(self, literal: Literal) -> Value:
        """Decode a literal.

        Raises:
            ArtifactError: the literal is damaged.
        """
        if literal.blob is None or literal.type is None:
            return immediate(literal.proto, literal.type)
        file, offset = literal.blob
        return self.blob(file).read(offset, literal.type)


def read(path: Path) -> Package:
    """Read a package's manifest and program.

    Raises:
        ArtifactError: the package is incomplete or damaged, or a weight file is missing.
        InputError: there is nothing at that path, or no package.
        ToolchainError: coremltools, which contains the schema, is not installed.
    """
    if not (path / _MANIFEST).is_file():
        found = "is a folder without" if path.is_dir() else "is a file and has no" if path.exists() else "has no"
        raise InputError(f"{path} is no .mlpackage: it {found} {_MANIFEST}. Name a folder that ends on .mlpackage.")
    for part in path.rglob("*"):
        if part.is_symlink() or not (part.is_file() or part.is_dir()):
            raise ArtifactError(f"{part} is a link, a pipe or a device; packages hold files. Copy the package again.")
    # Core ML loads the root model, whatever else the folder holds.
    model = root(path / _MANIFEST) or path / "Data" / _AUTHOR / _MODEL
    spec = parse(model)
    if spec.WhichOneof("Type") != "mlProgram":
        kind = spec.WhichOneof("Type") or "nothing"
        raise InputError(f"{path} holds {kind}, no ML Program; only those can be read. Convert to an ML Program.")
    if not spec.mlProgram.functions:
        raise ArtifactError(f"{model} has no function; it is damaged. Convert the model again.")
    return Package(path, spec, model.parent)


def root(manifest: Path) -> Path | None:
    """Return the path of the root model in a manifest; None if it names no root.

    Raises:
        ArtifactError: the manifest is damaged, or leads out of the package.
    """
    try:
        content = json.loads(manifest.read_bytes())
        paths = {name: PurePosixPath(row["path"]) for name, row in content["itemInfoEntries"].items()}
        identifier = content.get("rootModelIdentifier")
        named = None if identifier is None else paths[identifier]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{manifest} is no package manifest: {error!r}. Convert the model again.") from error
    if any(path.is_absolute() or ".." in path.parts for path in paths.values()):
        raise ArtifactError(f"{manifest} names files outside of the package; it is damaged.")
    return None if named is None else manifest.parent / "Data" / named


def _output(proto: Any) -> Output:
    return Output(proto.name, _type(proto.type))


def _type(proto: Any) -> TensorType | None:
    return tensor_type(proto.tensorType) if proto.WhichOneof("type") == "tensorType" else None


def _operation(proto: Any) -> Operation:
    arguments: dict[str, tuple[Argument, ...]] = {
        name: (_literal(value),) for name, value in proto.attributes.items() if name != "name"
    }
    for name, given in proto.inputs.items():
        arguments[name] = tuple(
            row.name if row.WhichOneof("binding") == "name" else _literal(row.value) for row in given.arguments
        )
    outputs = tuple(_output(row) for row in proto.outputs)
    return Operation(proto.type, arguments, outputs, nested=len(proto.blocks) > 0)


def _literal(proto: Any) -> Literal:
    if proto.WhichOneof("value") == "blobFileValue":
        blob = (proto.blobFileValue.fileName.removeprefix(_MODEL_PATH), int(proto.blobFileValue.offset))
        return Literal(_type(proto.type), None, blob)
    return Literal(_type(proto.type), proto.immediateValue, None)


# --- the schema ---------------------------------------------------------------------------------------------------


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
        ArtifactError: the file is missing or damaged.
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
