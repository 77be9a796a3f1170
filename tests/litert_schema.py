"""Derives `pipeline/formats/litert/schema.fbs` from the accessors that LiteRT's wheel carries; it has no `.fbs`.

`python tests/litert_schema.py` prints it; a test compares it with the file.
"""

import inspect
import re
from collections.abc import Iterator
from typing import Any

HEAD = """\
// The tables of a .tflite, for checks of bounds: fields in the order of their slots, without their defaults.
// Derived by tests/litert_schema.py from the accessors in ai_edge_litert (Apache-2.0), which come from
// tensorflow/compiler/mlir/lite/schema/schema.fbs. Unions hold bytes of a member's number, enums are plain numbers.
"""
_KINDS = {
    "Bool": "bool", "Int8": "byte", "Uint8": "ubyte", "Int16": "short", "Uint16": "ushort", "Int32": "int",
    "Uint32": "uint", "Int64": "long", "Uint64": "ulong", "Float32": "float", "Float64": "double",
}  # fmt: skip
_UNIONS = ("QuantizationDetails", "SparseIndexVector", "BuiltinOptions", "BuiltinOptions2")
_UNION_FIELDS = {"Details": 0, "ArraySegments": 1, "ArrayIndices": 1, "BuiltinOptions": 2, "BuiltinOptions2": 3}


def schema() -> str:
    """Return the schema as text."""
    from ai_edge_litert import schema_py_generated as generated

    unions = {name: _members(getattr(generated, name)) for name in _UNIONS}
    tables: dict[str, str] = {}
    waiting = ["Model", *(member for members in unions.values() for member in members)]
    while waiting:
        name = waiting.pop(0)
        if name not in tables:
            fields = list(_fields(getattr(generated, name)))
            tables[name] = f"table {name} {{ {' '.join(f'{field}: {kind};' for field, kind in fields)} }}"
            waiting += [plain for _, kind in fields if (plain := kind.strip("[]"))[0].isupper() and plain not in unions]
    lines = [f"union {name} {{ {', '.join(members)} }}" for name, members in unions.items()]
    return "\n".join([HEAD, *lines, "", *(tables[name] for name in sorted(tables))]) + "\n"


def _members(union: Any) -> list[str]:
    numbers = {value: name for name, value in vars(union).items() if isinstance(value, int)}
    assert sorted(numbers) == list(range(len(numbers)))
    return [numbers[number] for number in range(1, len(numbers))]


def _fields(table: Any) -> Iterator[tuple[str, str]]:
    """Yield the fields in the order of their slots; the number of a union's member belongs to the union."""
    slot = 4
    for name, method in vars(table).items():
        if not inspect.isfunction(method) or name in ("Init", "__init__") or re.search("AsNumpy$|IsNone$", name):
            continue
        source = inspect.getsource(method)
        at = re.search(r"Offset\((\d+)\)", source)
        if at is None or (name.endswith("Length") and name[:-6] in vars(table)):
            continue
        if name.endswith("Type") and name[:-4] in _UNION_FIELDS:
            slot += 2
            continue
        # A deprecated field has no accessor, and keeps its slot.
        for unused in range(slot, int(at[1]), 2):
            yield f"unused_{unused}", "ubyte"
        slot = int(at[1]) + 2
        yield re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(), _kind(name, source, many=f"{name}Length" in vars(table))


def _kind(name: str, source: str, *, many: bool) -> str:
    if name in _UNION_FIELDS:
        return _UNIONS[_UNION_FIELDS[name]]
    inner = re.search(r"obj = (\w+)\(\)", source)
    number = re.search(r"_tab\.Get\(flatbuffers\.number_types\.(\w+)Flags", source)
    kind = inner[1] if inner else _KINDS[number[1]] if number else "string"
    return f"[{kind}]" if many else kind


if __name__ == "__main__":
    print(schema(), end="")
