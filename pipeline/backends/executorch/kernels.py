"""What the kernels of an ExecuTorch program take, and what they compute with integers."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from pipeline.backends.flatbuffer import Table
from pipeline.backends.structure import Limit

ARGUMENTS = {
    "aten::add.out": "TTSTT",
    "aten::any.out": "TIBTT",
    "aten::arange.start_out": "SSSTT",
    "aten::bitwise_and.Tensor_out": "TTTT",
    "aten::cumsum.out": "TI?TT",
    "aten::embedding.out": "TTIBBTT",
    "aten::eq.Scalar_out": "TSTT",
    "aten::expand_copy.out": "TLBTT",
    "aten::full.out": "LSTT",
    "aten::full_like.out": "TS?TT",
    "aten::ge.Scalar_out": "TSTT",
    "aten::gelu.out": "TXTT",
    "aten::index.Tensor_out": "TOTT",
    "aten::logical_not.out": "TTT",
    "aten::mul.Scalar_out": "TSTT",
    "aten::mul.out": "TTTT",
    "aten::native_layer_norm.out": "TL??DTTTV",
    "aten::ne.Scalar_out": "TSTT",
    "aten::pow.Tensor_Scalar_out": "TSTT",
    "aten::relu.out": "TTT",
    "aten::scalar_tensor.out": "STT",
    "aten::select_copy.int_out": "TIITT",
    "aten::sigmoid.out": "TTT",
    "aten::slice_copy.Tensor_out": "TI??ITT",
    "aten::sum.IntList_out": "TLB?TT",
    "aten::sym_size.int": "TII",
    "aten::tanh.out": "TTT",
    "aten::unsqueeze_copy.out": "TITT",
    "aten::where.self_out": "TTTTT",
    "dim_order_ops::_to_dim_order_copy.out": "TBLTT",
    "executorch_prim::et_view.default": "TLT",
    "quantized_decomposed::embedding_4bit.dtype_out": "TT?IIT?TT",
    "quantized_decomposed::embedding_byte.out": "TT?IITTT",
}
"""Kinds of a kernel's arguments: it takes them unlooked at. One that is not here is the runtime's to refuse."""
KINDS = {
    "T": {"Tensor"},
    "I": {"Int"},
    "B": {"Bool"},
    "D": {"Double"},
    "S": {"Int", "Bool", "Double"},
    "L": {"IntList"},
    "V": {"TensorList"},
    "O": {"OptionalTensorList"},
    "X": {"String"},
    "?": {"Null", "Tensor", "Int", "Bool", "Double", "IntList"},
}
EMBEDDINGS = (
    "aten::embedding.out",
    "quantized_decomposed::embedding_4bit.dtype_out",
    "quantized_decomposed::embedding_byte.out",
)

_TYPES = {
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "float16",
    6: "float32",
    7: "float64",
    11: "bool",
}
"""executorch/exir/scalar_type.py."""
_NUMPY = {3: "<i4", 4: "<i8", 6: "<f4"}
_FLOATS = (5, 6, 7)
_SCALES = (5, 6)
"""Types of the scales of tables, and of what comes out."""
_BOOL = 11
_CAST = "dim_order_ops::_to_dim_order_copy"
_COMPARED, _ADDED = "aten::ne", "aten::add"
_NO_ARITHMETIC = (
    "aten::embedding",
    "aten::sym_size",
    "quantized_decomposed::embedding_4bit",
    "quantized_decomposed::embedding_byte",
)
"""Kernels that look rows up or tell a length, and compute nothing with integers."""
_CLAMP, _LEAST, _MOST = "aten::clamp", "aten::maximum", "aten::minimum"


Shaped = tuple[int, list[int]]
"""Type, by number, and sizes of a tensor."""
_TABLES = {
    # Type of the table, codes to an element, the least code and the greatest.
    "quantized_decomposed::embedding_4bit.dtype_out": (0, 2, -8, 7),
    "quantized_decomposed::embedding_byte.out": (1, 1, -128, 127),
}


def table_problem(kernel: str, tensors: Sequence[Shaped | None], bounds: Sequence[int | None]) -> str | None:
    """Say what of a quantised table's arguments does not fit together: the kernel ends the process then.

    Args:
        kernel: with its overload.
        tensors: table, scales, zero points, and the rows that are made; None for what is left out.
        bounds: the least code and the greatest.
    """
    if kernel not in _TABLES:
        return None
    table, scales, zeros, made = tensors
    if table is None or scales is None or made is None or len(table[1]) != 2 or len(scales[1]) not in (1, 2):
        return "its table or its scales are none"
    wanted, per_element, *codes = _TABLES[kernel]
    width, groups = table[1][1] * per_element, (scales[1][1:] or [1])[0]
    if table[0] != wanted or list(bounds) != codes:
        return f"its table is {_TYPES.get(table[0])} of codes {bounds[0]} to {bounds[1]}"
    if scales[0] not in _SCALES or made[0] not in _SCALES:
        return f"its scales are {_TYPES.get(scales[0])}, and it gives {_TYPES.get(made[0])}"
    if scales[1][0] != table[1][0] or not groups or width % groups:
        return f"its scales are {scales[1]} for a table of {table[1][0]} rows and {width} columns"
    if zeros is not None and zeros != scales:
        return f"its zero points are {zeros[1]} for scales {scales[1]}"
    return None if made[1][-1:] == [width] else f"it gives rows of {made[1][-1:]} of a table with {width} columns"


class Integers:
    """Follows one method's integers: what is computed with ids may lie in wait for one of them.

    A kernel on integers is a kind of its own, such as `aten::mul:int64`, and one on an input or a constant says so,
    such as `dim_order_ops::_to_dim_order_copy:input_ids:int64`. A conversion has each once; a second one is named so.
    """

    def __init__(self, values: list[Table], inputs: Mapping[int, str], constant: Callable[[int], memoryview]) -> None:
        """Begin a method.

        Args:
            values: the method's.
            inputs: what its inputs are called, by their numbers.
            constant: returns the bytes of a constant by its number.
        """
        self._values, self._constant = values, constant
        self._inputs = {int(number): name for number, name in inputs.items()}
        self._seen: set[str] = set()
        self._compared: int | None = None

    def kind(self, kernel: str, arguments: list[int]) -> str:
        """Return a kernel's kind, which for one on integers says on which."""
        tensors = [number for number in map(int, arguments) if self._values[number].member("val") == "Tensor"]
        if not tensors or kernel in _NO_ARITHMETIC:
            return kernel
        read = self._type(tensors[0])
        if kernel == _CAST:
            kind = f"{kernel}:{self._of(tensors[0])}:{_TYPES.get(self._type(tensors[-1]))}"
        elif read in _FLOATS or read == _BOOL:
            return kernel
        else:
            kind = f"{kernel}:{self._of(tensors[0])}"
            operand = self._number(int(arguments[1])) if len(arguments) > 1 else None
            if kernel == _COMPARED and operand is not None:
                self._compared = int(operand)
            elif kernel == _ADDED and operand != self._compared:
                # RoBERTa counts the tokens that are not padding from the id of padding on: two times the same number.
                kind += ":of_another_number"
        if kind in self._seen:
            return f"{kind}:again"
        self._seen.add(kind)
        return kind

    def into_delegate(self, arguments: list[int]) -> list[str]:
        """Return a kind for each integer that a delegate takes: it computes with floats alone."""
        tensors = [number for number in map(int, arguments) if self._values[number].member("val") == "Tensor"]
        return [f"delegate:{self._of(number)}" for number in tensors if self._type(number) not in _FLOATS]

    def limits(self, kernel: str, arguments: list[int]) -> Iterator[Limit]:
        """Yield the bounds by constants that a kernel sets, of integers or floats."""
        if kernel == _CLAMP:
            low, high = (self._number(int(number)) for number in arguments[1:3])
            yield (-np.inf if low is None else low, np.inf if high is None else high)
        elif kernel in (_LEAST, _MOST):
            for number in map(int, arguments[:2]):
                bound = self._number(number)
                if bound is not None:
                    yield (bound, np.inf) if kernel == _LEAST else (-np.inf, bound)

    def _type(self, number: int) -> int:
        return int(self._values[number]["val"]["scalar_type"])

    def _of(self, number: int) -> str:
        """Return what an integer is: an input by its name, a constant, or anything else by its type."""
        if self._values[number]["val"]["data_buffer_idx"]:
            return "constant"
        return self._inputs.get(number) or _TYPES.get(self._type(number), "unknown")

    def _number(self, number: int) -> float | None:
        """Return the number that a value holds, None where it holds none or more than one."""
        value = self._values[number]
        kind = value.member("val")
        if kind == "Int":
            return float(value["val"]["int_val"])
        if kind == "Double":
            return float(value["val"]["double_val"])
        if kind != "Tensor" or not value["val"]["data_buffer_idx"] or self._type(number) not in _NUMPY:
            return None
        if int(np.prod([int(size) for size in value["val"]["sizes"]])) != 1:
            return None
        return float(np.frombuffer(self._constant(value["val"]["data_buffer_idx"]), _NUMPY[self._type(number)], 1)[0])
