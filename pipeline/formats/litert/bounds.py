"""Check a LiteRT file before a runtime follows it: every offset and index stays inside and leads to something.

LiteRT itself checks little of this: a wrong offset or index ends the process. Whether the numbers of a file are right
is not judged here but by verification.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ArtifactError
from pipeline.formats.columns import Columns, Ints, Rows, damage
from pipeline.formats.flatbuffer import Schema
from pipeline.formats.litert.scales import COLUMNS, INT4
from pipeline.formats.litert.scales import check as check_blocks

_MAGIC = b"TFL3"
_VERSION = 3
_BITS = {0: 32, 1: 16, 2: 32, 3: 8, 4: 64, 6: 8, 7: 16, 9: 8, 10: 64, 15: 32, 16: 16, 17: 4}
"""Bits of an element by `TensorType`: floats, integers and booleans; no encoder's file has strings or resources."""
_FLOAT32, _INT32, _INT64, _BOOL, _INT8 = 0, 2, 4, 6, 9
_ZERO_POINTS = {3: (0, 255), 9: (-128, 127), 17: (-8, 7)}
_MOST_BYTES = 2.0**32
"""Most bytes of one tensor; the largest of an encoder's is its vocabulary's table."""
_MOST_AXES = 6
"""Most axes of a tensor in XNNPACK."""
_IN_FILE = 2
"""Smallest offset of a buffer that lies after the flatbuffer: 0 and 1 mean that it lies inside."""


@cache
def _schema() -> Schema:
    return Schema.read(Path(__file__).parent / "schema.fbs")


def check(file: Path) -> Rows:
    """Return a file's root table, and refuse a file with a reference out of it, or with misfitting types or shapes.

    Raises:
        ArtifactError: the first such reference or misfit, in one line.
    """
    return _File(file).check()


# --- operations -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kind:
    """The constraints on every operation of a kind."""

    inputs: int
    options: str | None = None
    most: int | None = None
    """Most inputs, if their number varies."""
    optional: tuple[int, ...] = ()
    """Indices of inputs that may be left out."""
    same: tuple[int, ...] = ()
    """Indices of inputs that have to have the same type."""
    types: tuple[tuple[int, ...] | None, ...] = ()
    """Allowed types of each input, in order; None for any."""
    int4: tuple[int, ...] = ()
    """Indices of inputs that may be int4."""
    shapes: Callable[["_Operation"], str | None] | None = None
    """Returns the error in an operation's shapes, or None."""


@dataclass(frozen=True)
class _Operation:
    """One operation with shapes and types of its tensors."""

    inputs: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of the inputs; empty for an input that is left out."""
    types: tuple[int, ...]
    out: tuple[int, ...]
    """Shape of the output."""
    constant: Callable[[int], list[int] | None]
    """Returns the integers of an input, if the file holds them."""


def _broadcast(operation: _Operation) -> str | None:
    for sizes in zip(*(_aligned(shape) for shape in (*operation.shapes, operation.out)), strict=True):
        given = {size for size in sizes[:-1] if size != 1}
        if len(given) > 1 or sizes[-1] != (given.pop() if given else 1):
            return "the shapes do not fit each other"
    return None


def _aligned(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * (_MOST_AXES - len(shape)) + shape


def _unchanged(operation: _Operation) -> str | None:
    return None if operation.shapes[0] == operation.out else "the shape changes"


def _count(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def _reshaped(operation: _Operation) -> str | None:
    wanted = operation.constant(1)
    if _count(operation.shapes[0]) != _count(operation.out):
        return "the number of elements changes"
    if wanted is not None and (
        len(wanted) != len(operation.out)
        or any(size not in (-1, out) for size, out in zip(wanted, operation.out, strict=True))
    ):
        return "it is not what it was asked for"
    return None


def _linear(operation: _Operation) -> str | None:
    rows, matrix = operation.shapes[:2]
    if len(matrix) != 2 or not rows or rows[-1] != matrix[1] or operation.out[-1:] != matrix[:1]:
        return "matrix and rows do not fit"
    if operation.types[1] == INT4 and (operation.types[0] != _FLOAT32 or matrix[1] % COLUMNS):
        return f"int4 is multiplied with something else than floats, or has no blocks of {COLUMNS} columns"
    if len(operation.shapes) > 2 and operation.inputs[2] >= 0 and _count(operation.shapes[2]) != matrix[0]:
        return "the bias does not fit the matrix"
    return None if _count(rows) // matrix[1] * matrix[0] == _count(operation.out) else "the rows are not as many"


def _looked_up(operation: _Operation) -> str | None:
    ids, table = operation.shapes
    return None if len(ids) == 1 and operation.out == ids + table[1:] else "ids, table and rows do not fit"


def _transposed(operation: _Operation) -> str | None:
    order, shape = operation.constant(1), operation.shapes[0]
    if order is None or sorted(order) != list(range(len(shape))):
        return "the order of axes is none"
    return None if tuple(shape[axis] for axis in order) == operation.out else "the shape is of another order"


def _reduced(operation: _Operation) -> str | None:
    axes, shape = operation.constant(1), operation.shapes[0]
    if axes is None or any(not -len(shape) <= axis < len(shape) for axis in axes):
        return "it has no such axis"
    return None


def _multiplied(operation: _Operation) -> str | None:
    left, right = operation.shapes
    fits = len(left) >= 2 and len(right) >= 2 and len(operation.out) == max(len(left), len(right))
    return None if fits else "the matrices have too few axes"


def _sliced(operation: _Operation) -> str | None:
    shape = operation.shapes[0]
    begins, sizes = operation.constant(1), operation.constant(2)
    if begins is None or sizes is None or not len(begins) == len(sizes) == len(shape) == len(operation.out):
        return "begins and sizes do not fit the axes"
    for size, begin, taken in zip(shape, begins, sizes, strict=True):
        if begin < 0 or taken < -1 or begin + max(taken, 0) > size:
            return f"{begin} and {taken} more of an axis of {size}"
    return None


_NUMBERS = ((_FLOAT32, _INT32, _INT64, _INT8),) * 2
_AXES: tuple[tuple[int, ...] | None, ...] = (None, (_INT32, _INT64))


def _both(options: str | None) -> _Kind:
    return _Kind(2, options, same=(0, 1), types=_NUMBERS, shapes=_broadcast)


def _each(options: str | None = None) -> _Kind:
    return _Kind(1, options, types=((_FLOAT32, _INT8),), shapes=_unchanged)


def _compared(options: str) -> _Kind:
    return _Kind(2, options, same=(0, 1), shapes=_broadcast)


_KINDS: dict[int, _Kind] = {
    0: _both("AddOptions"),
    2: _Kind(1, "ConcatenationOptions", most=64),
    6: _Kind(1, "DequantizeOptions", shapes=_unchanged),
    7: _Kind(2, types=((_INT32,), None), int4=(1,), shapes=_looked_up),
    9: _Kind(2, "FullyConnectedOptions", most=3, optional=(2,), int4=(1,), shapes=_linear),
    8: _each(),
    14: _each(),
    18: _both("MulOptions"),
    19: _each(),
    20: _each(),
    21: _each(),
    22: _Kind(1, "ReshapeOptions", most=2, types=_AXES, shapes=_reshaped),
    25: _each("SoftmaxOptions"),
    28: _each(),
    34: _Kind(2, "PadOptions", types=_AXES),
    36: _Kind(2, "GatherOptions", types=_AXES),
    39: _Kind(2, "TransposeOptions", types=_AXES, shapes=_transposed),
    40: _Kind(2, "ReducerOptions", types=_AXES, shapes=_reduced),
    41: _both("SubOptions"),
    42: _both("DivOptions"),
    43: _Kind(1, "SqueezeOptions"),
    45: _Kind(4, "StridedSliceOptions", types=(None, *_AXES[1:], *_AXES[1:], *_AXES[1:])),
    47: _each("ExpOptions"),
    49: _Kind(2, "SplitOptions"),
    53: _Kind(1, "CastOptions", shapes=_unchanged),
    55: _both("MaximumMinimumOptions"),
    57: _both("MaximumMinimumOptions"),
    58: _compared("LessOptions"),
    59: _each("NegOptions"),
    60: _Kind(3, "PadV2Options", types=_AXES),
    61: _compared("GreaterOptions"),
    62: _compared("GreaterEqualOptions"),
    63: _compared("LessEqualOptions"),
    64: _Kind(3, "SelectOptions", same=(1, 2), types=((_BOOL,),), shapes=_broadcast),
    65: _Kind(3, "SliceOptions", types=(None, *_AXES[1:], *_AXES[1:]), shapes=_sliced),
    66: _each(),
    69: _Kind(2, "TileOptions", types=_AXES),
    70: _Kind(2, "ExpandDimsOptions", types=_AXES),
    71: _compared("EqualOptions"),
    72: _compared("NotEqualOptions"),
    73: _each(),
    74: _Kind(2, "ReducerOptions", types=_AXES, shapes=_reduced),
    75: _each(),
    76: _each(),
    78: _both("PowOptions"),
    82: _Kind(2, "ReducerOptions", types=_AXES, shapes=_reduced),
    83: _Kind(1, "PackOptions", most=64),
    84: _compared("LogicalOrOptions"),
    86: _compared("LogicalAndOptions"),
    87: _Kind(1, "LogicalNotOptions", types=((_BOOL,),), shapes=_unchanged),
    89: _Kind(2, "ReducerOptions", types=_AXES, shapes=_reduced),
    92: _Kind(1, "SquareOptions", shapes=_unchanged),
    98: _each("LeakyReluOptions"),
    99: _both("SquaredDifferenceOptions"),
    101: _each("AbsOptions"),
    104: _each(),
    107: _Kind(2, "GatherNdOptions", types=_AXES),
    111: _each(),
    114: _Kind(1, "QuantizeOptions", shapes=_unchanged),
    116: _each(),
    117: _each("HardSwishOptions"),
    123: _Kind(3, "SelectV2Options", same=(1, 2), types=((_BOOL,),), shapes=_broadcast),
    126: _Kind(2, "BatchMatMulOptions", same=(0, 1), shapes=_multiplied),
    128: _Kind(2, "CumsumOptions", types=(None, (_INT32,)), shapes=None),
    130: _Kind(2, "BroadcastToOptions", types=_AXES),
    150: _each("GeluOptions"),
}
"""Constraints by `BuiltinOperator`, for the operators of encoders. Options may be left out."""


# --- the file ---------------------------------------------------------------------------------------------------------


class _File:
    """The bounds check of one file."""

    def __init__(self, file: Path) -> None:
        self._refuse = damage(file)
        try:
            self._data: NDArray[np.uint8] = np.memmap(file, np.uint8, "r")
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{file} cannot be read: {error}. Make the target again.") from error
        found = bytes(self._data[4:8])
        if found != _MAGIC:
            raise ArtifactError(f"{file} is not a .tflite: it has {found!r} at byte 4, not {_MAGIC!r}. Make it again.")
        model = Columns(_schema(), self._data, self._refuse).root("Model", len(self._data))
        self._model, self._graphs = model, model["subgraphs"]
        self._buffers, self._tensors = model["buffers"], model["subgraphs"]["tensors"]
        self._operations = model["subgraphs"]["operators"]
        self._shapes = self._tensors.vector("shape")
        self._counts = np.bincount(self._tensors.owner, minlength=len(self._graphs))
        self._first = np.cumsum(self._counts) - self._counts
        """Index of each graph's first tensor."""
        self._types: list[int] = self._tensors.number("type").tolist()
        self._buffer_of: list[int] = self._tensors.number("buffer").tolist()
        self._read: dict[tuple[int, int], list[int]] = {}
        """Integers of constants, by buffer and type."""

    def check(self) -> Rows:
        """Check everything, from buffers to operations, and return the root table."""
        self._model.demand(self._model.number("version") == _VERSION, f"its schema is not version {_VERSION}")
        self._model.demand(len(self._graphs) > 0 and len(self._buffers) > 0, "it has no graph or no buffer")
        self._check_buffers()
        self._check_tensors()
        self._check_scales()
        self._check_places()
        self._check_operations()
        return self._model

    def _check_buffers(self) -> None:
        offsets = self._buffers.number("offset").astype(np.float64)
        ends = offsets + self._buffers.number("size").astype(np.float64)
        outside = offsets >= _IN_FILE
        self._buffers.demand(~outside | (ends <= len(self._data)), f"it ends outside of {len(self._data)} bytes")
        sizes = np.where(outside, self._buffers.number("size"), self._buffers.vector("data").count)
        self._sizes: Ints = sizes.astype(np.int64)
        metadata = self._model["metadata"]
        metadata.demand(metadata.number("buffer") < len(self._buffers), "it names a buffer that is not there")
        self._model.vector("metadata_buffer").demand_below(len(self._buffers), "buffer")

    def _check_tensors(self) -> None:
        tensors = self._tensors
        types = tensors.number("type")
        bits = np.array([_BITS.get(number, 0) for number in range(-128, 128)])[types.astype(np.int64) + 128]
        tensors.demand(bits > 0, "its type is unknown")
        tensors.demand(tensors.number("buffer") < len(self._buffers), "it names a buffer that is not there")
        tensors.demand(self._shapes.count <= _MOST_AXES, f"it has more than {_MOST_AXES} axes")
        tensors.demand(self._shapes.total(self._shapes.values <= 0) == 0, "its shape has a size below 1")
        tensors.demand(self._signed_as_shaped(), "its shape and its signature's differ")
        tensors.demand(tensors.number("external_buffer") == 0, "its content is said to lie in another file")
        tensors.demand(~tensors.has("sparsity"), "it is sparse, which no encoder of ours is")
        tensors["variant_tensors"].demand(np.zeros(len(tensors["variant_tensors"])), "no encoder has such tensors")
        needed = np.ceil(self._shapes.product() * bits / 8)
        tensors.demand(needed <= _MOST_BYTES, f"it would take more than {_MOST_BYTES:.0f} bytes")
        held = self._sizes[tensors.number("buffer").astype(np.int64)]
        self._constant = held > 0
        wrong = np.flatnonzero(self._constant & (held != needed))
        if len(wrong):
            first = int(wrong[0])
            said = (
                f"its buffer has {held[first]} bytes, and its shape {self._shapes.at(first)} needs {needed[first]:.0f}"
            )
            tensors.demand(np.arange(len(tensors)) != first, said)

    def _signed_as_shaped(self) -> NDArray[np.bool_]:
        signatures = self._tensors.vector("shape_signature")
        return np.array(
            [
                not signed or signed == shape
                for signed, shape in zip(signatures.rows(), self._shapes.rows(), strict=True)
            ]
        )

    def _check_scales(self) -> None:
        table = self._tensors["quantization"]
        scales, zeros, axes = table.vector("scale"), table.vector("zero_point"), table.number("quantized_dimension")
        shapes = self._shapes.rows()
        owners, axes_list = table.owner.tolist(), axes.tolist()
        many = scales.count.tolist()
        fits = [
            count < 2 or (0 <= axis < len(shapes[owner]) and shapes[owner][axis] == count)
            for owner, axis, count in zip(owners, axes_list, many, strict=True)
        ]
        table.demand(fits, "its scales are not as many as the rows of its axis")
        table.demand((zeros.count == scales.count) | (zeros.count == 0), "it has not a zero point for each scale")
        finite = np.isfinite(scales.values) & (scales.values >= 0)
        table.demand(scales.total(~finite) == 0, "a scale is negative or no number")
        types = self._tensors.number("type")[table.owner]
        for kind, (least, most) in _ZERO_POINTS.items():
            beyond = (zeros.values < least) | (zeros.values > most)
            table.demand((types != kind) | (zeros.total(beyond) == 0), "a zero point is beyond its type")

        check_blocks(self._tensors, self._constant, self._content)

    def _check_places(self) -> None:
        graphs, signatures = self._graphs, self._model["signature_defs"]
        graphs.vector("inputs").demand_below(self._counts, "tensor")
        graphs.vector("outputs").demand_below(self._counts, "tensor")
        signatures.demand(signatures.number("subgraph_index") < len(graphs), "it names a graph that is not there")
        for name in ("inputs", "outputs"):
            rows = signatures[name]
            graph = signatures.number("subgraph_index").astype(np.int64)[rows.owner]
            listed = [set(found) for found in graphs.vector(name).rows()]
            known = [
                number in listed[of]
                for number, of in zip(rows.number("tensor_index").tolist(), graph.tolist(), strict=True)
            ]
            rows.demand(known, f"it names a tensor that is none of the graph's {name}")

    # --- operations ---------------------------------------------------------------------------------------------------

    def _check_operations(self) -> None:
        codes, operations = self._model["operator_codes"], self._operations
        operations.demand(operations.number("opcode_index") < len(codes), "it names a kind that is not there")
        numbers = np.maximum(codes.number("builtin_code"), codes.number("deprecated_builtin_code").astype(np.int32))
        known = np.isin(numbers, list(_KINDS)) & ~codes.has("custom_code")
        codes.demand(known, "it is a kind of operation that no encoder known here has")
        count = self._counts[operations.owner]
        operations.vector("inputs").demand_below(count, "tensor", least=-1)
        operations.vector("outputs").demand_below(count, "tensor")
        operations.demand(operations.vector("outputs").count == 1, "it has not one output")
        operations.demand(operations.number("builtin_options2_type") == 0, "it has options of a later schema")
        for name in ("custom_options", "intermediates", "mutating_variable_inputs"):
            operations.demand(operations.vector(name).count == 0, f"it has {name}")
        operations.demand(operations.number("large_custom_options_size") == 0, "it has custom options")
        self._check_each(numbers[operations.number("opcode_index").astype(np.int64)].tolist())

    def _check_each(self, kinds: list[int]) -> None:
        """Check each operation by its kind, and that earlier operations made its inputs."""
        operations = self._operations
        members = [None, *(name for name, _ in _schema().unions["BuiltinOptions"])]
        options = operations.number("builtin_options_type").tolist()
        types, shapes = self._types, self._shapes.rows()
        ready = self._constant.copy()
        given = self._graphs.vector("inputs")
        ready[self._first[given.owner] + given.values] = True
        made = ready.tolist()
        first = self._first[operations.owner].tolist()
        rows = zip(operations.vector("inputs").rows(), operations.vector("outputs").rows(), strict=True)
        for number, (inputs, (output,)) in enumerate(rows):
            kind = _KINDS[kinds[number]]
            start = first[number]
            places = [start + place for place in inputs if place >= 0]
            problem = None
            if not kind.inputs <= len(inputs) <= (kind.most or kind.inputs):
                problem = f"it has {len(inputs)} inputs"
            elif options[number] and members[options[number]] != kind.options:
                problem = f"it has {members[options[number]]}"
            elif any(place < 0 and at not in kind.optional for at, place in enumerate(inputs)):
                problem = "an input is left out"
            elif not all(made[place] for place in places):
                problem = "it reads what nothing has made"
            elif made[start + output]:
                problem = "it writes what is made already"
            else:
                found = _Operation(
                    inputs,
                    tuple(shapes[start + place] if place >= 0 else () for place in inputs),
                    tuple(types[start + place] if place >= 0 else -1 for place in inputs),
                    shapes[start + output],
                    partial(self._integers_of, start, inputs),
                )
                problem = _wrong(kind, found)
            if problem is not None:
                operations.demand(np.arange(len(operations)) != number, f"builtin {kinds[number]}: {problem}")
            made[start + output] = True
        outputs = self._graphs.vector("outputs")
        done = np.array(made)[self._first[outputs.owner] + outputs.values]
        self._graphs.demand(outputs.total(~done) == 0, "an output is made by nothing")

    def _integers_of(self, start: int, inputs: tuple[int, ...], at: int) -> list[int] | None:
        """Return the integers of an operation's input."""
        return self._integers(start + inputs[at]) if at < len(inputs) and inputs[at] >= 0 else None

    def _integers(self, tensor: int) -> list[int] | None:
        """Return the integers of a tensor, if the file holds them."""
        kind, buffer = self._types[tensor], self._buffer_of[tensor]
        if not self._sizes[buffer] or kind not in (_INT32, _INT64):
            return None
        if (buffer, kind) not in self._read:
            self._read[buffer, kind] = self._content(tensor).view("<i4" if kind == _INT32 else "<i8").tolist()
        return self._read[buffer, kind]

    def _content(self, tensor: int) -> NDArray[np.uint8]:
        """Return the bytes of a constant tensor."""
        buffer = self._buffer_of[tensor]
        offset = int(self._buffers.number("offset")[buffer])
        start = offset if offset >= _IN_FILE else int(self._buffers.vector("data").start[buffer])
        return self._data[start : start + int(self._sizes[buffer])]


def _wrong(kind: _Kind, operation: _Operation) -> str | None:
    """Return the error in an operation's types and shapes, or None."""
    for allowed, found in zip(kind.types, operation.types, strict=False):
        if allowed is not None and found not in allowed:
            return f"an input is of type {found}"
    if any(found == INT4 and at not in kind.int4 for at, found in enumerate(operation.types)):
        return "an input is of int4"
    if len({operation.types[at] for at in kind.same}) > 1:
        return "its inputs are of several types"
    return kind.shapes(operation) if kind.shapes else None
