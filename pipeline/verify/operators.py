"""Judge the operators of a file: the same in every function, and none that no conversion has.

What they compute is compared with the checkpoint elsewhere. Here it is a question of what may lie in wait for an input
that nobody tries: a comparison with some ids, a choice, a loop, a random number, a bound that nothing tried reaches.
"""

import json
from collections import Counter
from pathlib import Path

import numpy as np

from pipeline.backends.structure import Structure
from pipeline.schemes import Arithmetic, OutputKind
from pipeline.verify.record import GateResult
from pipeline.verify.weights import Expected

_COMMON = {
    "litert": """
        ADD BATCH_MATMUL CAST(INT32:FLOAT32) DEQUANTIZE DIV EMBEDDING_LOOKUP EXP FULLY_CONNECTED GELU HARD_SWISH
        LEAKY_RELU LOG LOGISTIC MAXIMUM MEAN MINIMUM MUL RELU RESHAPE RESHAPE(INT32) RSQRT SLICE SOFTMAX SQRT
        SQUARED_DIFFERENCE SUB SUM TANH TRANSPOSE""",
    # Ids go into the gathers as they come: nothing computes with them but positions that are counted.
    "coreml": """
        add cast_fp16_to_fp32 cast_int32_to_fp16 cast_int32_to_fp32 expand_dims gather gelu layer_norm linear matmul
        maximum mul real_div reduce_sum relu reshape rsqrt sigmoid silu slice_by_index softmax split sqrt squeeze sub
        tanh transpose""",
    "executorch": """
        XNNAdd XNNBatchMatrixMultiply XNNClamp XNNConvert XNNCopy XNNDiv XNNExp XNNFullyConnected XNNGelu XNNMultiply
        XNNReciprocalSquareRoot XNNSigmoid XNNSoftmax XNNStaticReshape XNNStaticTranspose XNNSubtract XNNTanh
        aten::embedding aten::native_layer_norm aten::select_copy aten::slice_copy aten::split_with_sizes_copy
        aten::squeeze_copy aten::sum aten::sym_size aten::unsqueeze_copy
        dim_order_ops::_to_dim_order_copy:attention_mask:float32 dim_order_ops::_to_dim_order_copy:input_ids:int64
        dim_order_ops::_to_dim_order_copy:token_type_ids:int64 executorch_prim::et_view
        quantized_decomposed::embedding_4bit quantized_decomposed::embedding_byte""",
}
"""By backend: the kinds of operators that a conversion may have, whatever the checkpoint."""
_POSITIONS = """
    aten::add:int64 aten::cumsum:int64 aten::mul:int64 aten::ne:int64 dim_order_ops::_to_dim_order_copy:bool:int64"""
"""ExecuTorch's kinds, see `Integers`, for positions that are counted."""
_BY_CHECKPOINT: dict[str, dict[str, str]] = {
    "litert": {
        # What computes with integers is named with them, and is there once.
        "mobilebert": "CAST(BOOL:FLOAT32) CONCATENATION NOT_EQUAL(INT32) PAD",
        "roberta": "ADD(INT32) CAST(BOOL:INT32) CUMSUM(INT32) MUL(INT32) NOT_EQUAL(INT32)",
        "xlm-roberta": "ADD(INT32) CAST(BOOL:INT32) CUMSUM(INT32) MUL(INT32) NOT_EQUAL(INT32)",
        "MishActivation": "GREATER SELECT",
    },
    "coreml": {
        "mobilebert": "cast_bool_to_fp16 cast_bool_to_fp32 concat not_equal_int32 pad",
        "roberta": "add_int32 cast_bool_to_int32 cumsum_int32 mul_int32 not_equal_int32",
        "xlm-roberta": "add_int32 cast_bool_to_int32 cumsum_int32 mul_int32 not_equal_int32",
        "MishActivation": "softplus",
    },
    "executorch": {
        **dict.fromkeys(("albert", "bert", "distilbert", "electra"), "aten::slice_copy:constant"),
        "mobilebert": """XNNConcatenate3 XNNStaticConstantPad aten::ne:int64 aten::slice_copy:constant
            dim_order_ops::_to_dim_order_copy:bool:float32""",
        "roberta": _POSITIONS,
        "xlm-roberta": _POSITIONS,
        "MishActivation": "aten::gt aten::log1p aten::where",
    },
}
"""And those that come with a model type, or with an activation.

MobileBERT joins the embeddings of neighbours and gives padding one of zeros; RoBERTa counts the tokens before each one.
Read from clean conversions of every architecture, task and activation that PocketBERT knows.
"""


_BY_ARITHMETIC: dict[tuple[str, Arithmetic], str] = {
    ("litert", "static_int8"): "QUANTIZE",
    ("coreml", "static_int8"): "quantize_fp16 dequantize_int8 dequantize_uint8",
    # What one delegate rounds, another may read.
    ("executorch", "static_int8"): "delegate:int8",
}
"""And those that come with what linears multiply."""


_LEAST: dict[str, tuple[float, ...]] = {
    # A mean over no tokens divides by one; a vector of zeros keeps its length: torch.nn.functional.normalize, for whose
    # epsilon the smallest normal half stands in half precision.
    "embedding": (1.0, 1e-12, 2.0**-14),
}
"""By kind of output: the constants that may bound a value from below. None may from above, nor any other."""
_LEAST_ERROR = 1e-6
"""Relative; they are kept in single precision."""


def check(stored: Structure, expected: Expected, backend: str, config: Path, output_kind: OutputKind) -> GateResult:
    """Judge the operators of a file.

    Args:
        stored: what its backend read back from the file.
        expected: the checkpoint, whose activations decide what there may be.
        backend: the file's.
        config: the checkpoint's config.json, whose model type decides as well.
        output_kind: what the file gives, which decides what bounds there may be.
    """
    model_type = str(json.loads(config.read_text(encoding="utf-8"))["model_type"])
    more = _BY_CHECKPOINT[backend]
    by_checkpoint = (more.get(name, "") for name in (model_type, *expected.activations))
    by_arithmetic = (_BY_ARITHMETIC.get((backend, kind), "") for kind in set(stored.arithmetic))
    known = " ".join([_COMMON[backend], *by_checkpoint, *by_arithmetic]).split()
    counts = [Counter(kinds) for kinds in stored.operators]
    total = sum(counts, Counter())
    strange = {kind: count for kind, count in sorted(total.items()) if kind not in known}
    wrong = [f"{count} {kind}, which no conversion of {model_type} has" for kind, count in strange.items()]
    wrong += [
        f"a bound of {low:.6g} to {high:.6g}, which no {output_kind} has"
        for low, high in dict.fromkeys(stored.limits)
        if not (np.isinf(high) and any(abs(low - one) <= _LEAST_ERROR * one for one in _LEAST.get(output_kind, ())))
    ]
    if stored.operators[1:] != stored.operators[:-1]:
        wrong.append(_difference(counts) or "its functions run the same operators in another order")
    detail = f"{total.total()} operators of {len(total)} kinds, the same in each function"
    if wrong:
        detail = f"operators: {'; '.join(wrong[:3])}"
    return GateResult(name="operators", bound=0.0, found=float(len(wrong)), passed=not wrong, detail=detail)


def _difference(counts: list[Counter[str]]) -> str | None:
    """Say which kind of operator some functions have more of."""
    for kind in sorted(set().union(*counts)):
        numbers = [count[kind] for count in counts]
        if len(set(numbers)) > 1:
            return f"{' and '.join(map(str, numbers))} {kind} in its functions, which differ in their lengths alone"
    return None
