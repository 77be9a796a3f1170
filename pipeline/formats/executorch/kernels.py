"""Argument types of the kernels in an ExecuTorch program."""

from collections.abc import Sequence

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
"""Argument types by kernel, which does not check them. A kernel that is not listed is left to the runtime to refuse."""
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
"""Names of executorch/exir/scalar_type.py."""
_SCALES = (5, 6)
"""Types of a table's scales, and of the looked-up rows."""
Shaped = tuple[int, list[int]]
"""Type number and sizes of a tensor."""
_TABLES = {
    # Type of the table, codes per element, least and greatest code.
    "quantized_decomposed::embedding_4bit.dtype_out": (0, 2, -8, 7),
    "quantized_decomposed::embedding_byte.out": (1, 1, -128, 127),
}


def table_problem(kernel: str, tensors: Sequence[Shaped | None], bounds: Sequence[int | None]) -> str | None:
    """Return the misfit between a quantised table's arguments, which would end the process in the kernel, or None.

    Args:
        kernel: name with overload.
        tensors: table, scales, zero points, and output; None for an absent one.
        bounds: least and greatest code.
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
