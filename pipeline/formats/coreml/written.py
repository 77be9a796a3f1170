"""Check that a Core ML package has only content that conversions write.

Core ML reads more than `pipeline.mil`: which file the manifest makes the model, whether an input may be left out,
blocks for other systems. Content that no conversion writes has been tested nowhere here, so it is refused.
`pipeline.mil` itself reads packages of any origin.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.formats.columns import Refuse, damage
from pipeline.formats.coreml.convert import FUNCTIONS_FROM_IOS, SPECIFICATION
from pipeline.mil import Package
from pipeline.mil.package import Program, items
from pipeline.mil.values import TensorType

_MANIFEST = """{
    "fileFormatVersion": "1.0.0",
    "itemInfoEntries": {
        "00000000-0000-4000-8000-000000000001": {
            "author": "com.apple.CoreML",
            "description": "CoreML Model Specification",
            "name": "model.mlmodel",
            "path": "com.apple.CoreML/model.mlmodel"
        },
        "00000000-0000-4000-8000-000000000002": {
            "author": "com.apple.CoreML",
            "description": "CoreML Model Weights",
            "name": "weights",
            "path": "com.apple.CoreML/weights"
        }
    },
    "rootModelIdentifier": "00000000-0000-4000-8000-000000000001"
}
"""
"""The manifest of every package: `convert` fixes the identifiers."""
_WEIGHTS = "Data/com.apple.CoreML/weights/weight.bin"
_BLOBS = "@model_path/weights/weight.bin"
"""Path of the weight file in a program."""
_HANDLES = "executorch_debug_handle_mapping.json"
"""A list of operation names; coremltools writes it for a function that is saved alone and not compressed."""
_FILES = {"Manifest.json", "Data", "Data/com.apple.CoreML", SPECIFICATION, "Data/com.apple.CoreML/weights", _WEIGHTS}
_OPSETS = {6: "CoreML5", 7: "CoreML6", 8: "CoreML7", 9: "CoreML8"}
"""Opsets by specification version: those of iOS 15 to 18."""
_IOS_OF_VERSION = 9
"""The iOS release minus the specification version."""
_COREMLTOOLS = "com.github.apple.coremltools.version"
_BUILD = {"coremltools-version", "coremltools-component-torch", "coremltools-source-dialect"}
_DTYPES = {65568: "fp32", 131104: "int32"}
"""`ArrayFeatureType.ArrayDataType` of inputs and outputs."""
_ALIGNMENT = 64
_HEADER_BYTES = 64

_FIELDS = {
    "Model": "specificationVersion description mlProgram",
    "ModelDescription": "functions defaultFunctionName metadata input output",
    "FunctionDescription": "name input output",
    "Metadata": "author license shortDescription versionString userDefined",
    "FeatureDescription": "name type",
    "FeatureType": "multiArrayType",
    "ArrayFeatureType": "dataType shape",
    "Program": "version functions attributes",
    "Function": "inputs opset block_specializations",
    "Block": "operations outputs",
    "Operation": "type inputs outputs attributes",
    "Argument": "arguments",
    "Binding": "name value",
    "NamedValueType": "name type",
    "Value": "type immediateValue blobFileValue",
    "ValueType": "tensorType dictionaryType",
    "DictionaryType": "keyType valueType",
    "TensorType": "dataType rank dimensions",
    "Dimension": "constant",
    "ConstantDimension": "size",
    "BlobFileValue": "fileName offset",
    "ImmediateValue": "tensor dictionary",
    "DictionaryValue": "values",
    "KeyValuePair": "key value",
    "TensorValue": "floats ints bools strings bytes",
    "RepeatedFloats": "values",
    "RepeatedInts": "values",
    "RepeatedBools": "values",
    "RepeatedStrings": "values",
    "RepeatedBytes": "values",
}
"""Fields that conversions set, by protobuf message. Read from clean packages for iOS 15 to 18."""
_KNOWN = {(message, field) for message, fields in _FIELDS.items() for field in fields.split()}


def check(package: Package) -> None:
    """Refuse a package with content that no conversion writes.

    Raises:
        ArtifactError: the first such content, in one line.
    """
    _Written(package, damage(package.path)).all()


@dataclass(frozen=True)
class _Written:
    """The content check of one package."""

    package: Package
    refuse: Refuse

    def all(self) -> None:
        """Check files, manifest, protobuf and weight file."""
        self._manifest()
        self._files()
        self._fields()
        self._versions()
        for name in self.package.functions:
            self._described(self.package.program(name))
            self._read(self.package.program(name))
        self._handles()
        self._weight_file()

    # --- the folder ---------------------------------------------------------------------------------------------------

    def _manifest(self) -> None:
        path = self.package.path / "Manifest.json"
        listed, root = items(path)
        model, weights = path.parent / SPECIFICATION, (path.parent / _WEIGHTS).parent
        if root != model:
            named = root.relative_to(path.parent).as_posix() if root else "nothing"
            raise self.refuse(f"its manifest makes {named} the model, not {SPECIFICATION}")
        if sorted(listed) != sorted((model, weights)):
            names = ", ".join(sorted(place.relative_to(path.parent).as_posix() for place in listed))
            raise self.refuse(f"its manifest lists {names}; conversions list the model and its weights")
        if path.read_bytes() != _MANIFEST.encode():
            raise self.refuse("its manifest is not the one that conversions write")

    def _files(self) -> None:
        folder = self.package.path
        found = {str(path.relative_to(folder).as_posix()) for path in folder.rglob("*")}
        if stray := sorted(found - _FILES - {_HANDLES}):
            raise self.refuse(f"it has {stray[0]}, which no conversion writes")
        if missing := sorted(_FILES - found):
            raise self.refuse(f"it has no {missing[0]}")
        if links := sorted(name for name in found if (folder / name).is_symlink()):
            raise self.refuse(f"{links[0]} is a link")

    def _handles(self) -> None:
        """Check that the separate list of operation names is that of the program."""
        path = self.package.path / _HANDLES
        if not path.exists():
            return
        version = self.package.spec.description.metadata.userDefined.get(_COREMLTOOLS, "")
        rows = [
            [
                {"Type": "Program"},
                {"Type": "Function", "Name": name},
                {"Type": "Block"},
                {"Type": "Operation", "Operator": operation.kind, "Output": operation.name},
            ]
            for name in self.package.functions
            for operation in self.package.program(name).operations
        ]
        if path.read_bytes() != json.dumps({"version": version, "mapping": {"null": rows}}).encode():
            raise self.refuse(f"{_HANDLES} does not list the operations of its program")

    # --- the protobuf -------------------------------------------------------------------------------------------------

    def _fields(self) -> None:
        spec = type(self.package.spec)()
        spec.CopyFrom(self.package.spec)
        # Fields that the schema lacks, and fields written twice, take bytes and are invisible after parsing.
        spec.DiscardUnknownFields()
        size = (self.package.path / SPECIFICATION).stat().st_size
        if spec.ByteSize() != size:
            raise self.refuse(f"{size - spec.ByteSize()} bytes of its model are of fields that the schema lacks")
        for message, field in _fields(spec):
            if (message, field) not in _KNOWN:
                raise self.refuse(f"{message}.{field} is set, which no conversion does")

    def _versions(self) -> None:
        spec = self.package.spec
        version, program, functions = spec.specificationVersion, spec.mlProgram, spec.mlProgram.functions
        if version not in _OPSETS:
            raise self.refuse(f"its specification is version {version}; conversions write {min(_OPSETS)} to 9")
        if program.version != 1:
            raise self.refuse(f"its program is version {program.version}; conversions write 1")
        for name, function in sorted(functions.items()):
            if function.opset != _OPSETS[version]:
                raise self.refuse(
                    f"{name} is of opset {function.opset}, and specification version {version} goes with"
                    f" {_OPSETS[version]}"
                )
            if list(function.block_specializations) != [function.opset]:
                blocks = ", ".join(sorted(function.block_specializations))
                raise self.refuse(f"{name} has blocks for {blocks}, and its opset is {function.opset}")
        described = spec.description.functions
        if len(functions) > 1 and version + _IOS_OF_VERSION < FUNCTIONS_FROM_IOS:
            raise self.refuse(f"it has {len(functions)} functions, which specification version {version} does not know")
        if not described and list(functions) != ["main"]:
            raise self.refuse(f"its functions {', '.join(sorted(functions))} are not described")
        if described and (spec.description.input or spec.description.output):
            raise self.refuse("it describes inputs or outputs of no function")
        if described and spec.description.defaultFunctionName not in functions:
            raise self.refuse(f"its default function is {spec.description.defaultFunctionName!r}")
        self._build(program.attributes)

    def _build(self, attributes: Any) -> None:
        """Check the tool versions in a program that was saved alone."""
        if not set(attributes) <= {"buildInfo"}:
            raise self.refuse(f"its program has the attributes {', '.join(sorted(attributes))}")
        for value in attributes.values():
            rows = value.immediateValue.dictionary.values
            names = ["".join(row.key.immediateValue.tensor.strings.values) for row in rows]
            if not set(names) <= _BUILD or len(set(names)) < len(names):
                raise self.refuse(f"its program was built with {', '.join(names)}")

    def _described(self, program: Program) -> None:
        """Check that description and program declare the same types and shapes."""
        declared: dict[str, TensorType | None] = {row.name: row.type for row in program.inputs}
        declared |= {row.name: row.type for operation in program.operations for row in operation.outputs}
        description = program.description
        for what, rows in (("input", description.input), ("output", description.output)):
            for row in rows:
                array, own = row.type.multiArrayType, declared[row.name]
                said = (_DTYPES.get(array.dataType, f"type {array.dataType}"), tuple(array.shape))
                there = (own.dtype.name, own.shape) if own else ("nothing", ())
                if said != there:
                    raise self.refuse(
                        f"{program.name}, {what} {row.name} is described as {said[0]} {list(said[1])}, and is"
                        f" {there[0]} {list(there[1] or ())}"
                    )

    def _read(self, program: Program) -> None:
        """Check that everything is read by something: an unread value is never compared with the checkpoint."""
        given = [one for operation in program.operations for row in operation.arguments.values() for one in row]
        read = {one for one in given if isinstance(one, str)} | set(program.outputs)
        # Operations on sparse int8 weights give mask and numbers, and the mask is read before the operation.
        given_by = [[output.name for output in operation.outputs] for operation in program.operations]
        for names in (*([row.name] for row in program.inputs), *given_by):
            if names and not read & set(names):
                raise self.refuse(f"{program.name} has {names[0]}, which nothing reads")

    # --- the weight file ----------------------------------------------------------------------------------------------

    def _weight_file(self) -> None:
        """Check that references cover the weight file, with zeros between them."""
        places: set[int] = set()
        for value in _blobs(self.package.spec):
            if value.fileName != _BLOBS:
                raise self.refuse(f"it reads weights from {value.fileName!r}; conversions write {_BLOBS}")
            places.add(int(value.offset))
        blobs = self.package.blob(_BLOBS.removeprefix("@model_path/"))
        spans = [(0, _HEADER_BYTES)]
        for offset in places:
            record = blobs.record(offset)
            spans += [(offset, offset + _HEADER_BYTES), (record.start, record.start + record.bytes)]
        content = blobs.content
        end = 0
        for start, stop in sorted(spans):
            if start < end:
                raise self.refuse(f"two weights of {_WEIGHTS} overlap at byte {start}")
            if start - end >= _ALIGNMENT or content[end:start].any():
                raise self.refuse(f"nothing reads bytes {end} to {start} of {_WEIGHTS}")
            end = stop
        if end != content.size:
            raise self.refuse(f"nothing reads bytes {end} to {content.size} of {_WEIGHTS}")
        if blobs.count != len(places):
            raise self.refuse(f"{_WEIGHTS} counts {blobs.count} weights, and {len(places)} are read")
        if any(blobs.unused(offset).any() for offset in (None, *places)):
            raise self.refuse(f"{_WEIGHTS} has something where its format has nothing")


def _fields(message: Any) -> Iterator[tuple[str, str]]:
    """Yield every field that is set in a message or below it, with its message's name."""
    for descriptor, value in message.ListFields():
        yield message.DESCRIPTOR.name, descriptor.name
        if descriptor.message_type is None:
            continue
        if descriptor.message_type.GetOptions().map_entry:
            rows = [row for row in value.values() if hasattr(row, "ListFields")]
        else:
            rows = [value] if hasattr(value, "ListFields") else list(value)
        for row in rows:
            yield from _fields(row)


def _blobs(spec: Any) -> Iterator[Any]:
    """Yield every reference to a weight file."""
    for function in spec.mlProgram.functions.values():
        for block in function.block_specializations.values():
            for operation in block.operations:
                values = list(operation.attributes.values())
                values += [row.value for given in operation.inputs.values() for row in given.arguments]
                yield from (value.blobFileValue for value in values if value.WhichOneof("value") == "blobFileValue")
