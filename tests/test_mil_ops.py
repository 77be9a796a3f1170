"""Operations of the Core ML interpreter, each against torch, scipy or plain Python: called directly, and in a file."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
from conftest import seed_of
from mil_programs import Call, in_worker, input_arrays, write_calls
from torch.nn import functional as F

from pipeline import mil
from pipeline.mil.interpreter import OPS
from pipeline.mil.values import flush, to_half

INF, NAN = float("inf"), float("nan")


@dataclass(frozen=True)
class Case:
    """A call and what torch, or plain Python, gives for it."""

    call: Call
    want: Callable[..., Any]
    """Computes the result from the call's tensors, in their order, as torch tensors: an array, or a tuple of them."""
    tolerance: float
    in_file: bool
    """False where coremltools' builder cannot make the call."""


CASES: list[Case] = []


def case(
    op: str,
    want: Any,
    tensors: dict[str, Any],
    /,
    *,
    tolerance: float = 1e-6,
    in_file: bool = True,
    **constants: Any,
) -> None:
    """Add a case; a tensor given as a shape is filled with normal numbers."""
    name = f"{op}_{sum(one.call.op == op for one in CASES)}"
    generator = np.random.default_rng(seed_of(name))
    filled = {key: _filled(value, generator) for key, value in tensors.items()}
    CASES.append(Case(Call(op, name, filled, constants), want, tolerance, in_file))


def _filled(value: Any, generator: np.random.Generator) -> Any:
    if isinstance(value, tuple) and all(isinstance(size, int) for size in value):
        return generator.normal(size=value).astype(np.float32)
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return [_filled(one, generator) for one in value]
    array = np.asarray(value)
    return array.astype({"f": np.float32, "i": np.int32}.get(array.dtype.kind, array.dtype))


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


SPECIAL = [0.0, -0.0, 1.0, -1.0, 1e-30, -1e-30, 70.0, -70.0, INF, -INF, NAN]
EDGES = {"x": SPECIAL}
COMPARED = {"x": [1.0, 2.0, NAN, INF, 0.0], "y": [2.0, 2.0, NAN, INF, -0.0]}
BOOLS = {"x": [True, True, False, False], "y": [True, False, True, False]}
PLAIN = {"x": (2, 3, 5)}

# Element by element; broadcasting, integers and special values.
for op, function in {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "real_div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}.items():
    case(op, function, {"x": (2, 1, 4), "y": (3, 1)})
    case(op, function, {"x": SPECIAL, "y": SPECIAL[::-1]})
for op, function in {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "maximum": torch.maximum}.items():
    case(op, function, {"x": [[7, -3], [2, 0]], "y": [5, -2]})
case("real_div", lambda x, y: torch.div(x, y, rounding_mode="trunc"), {"x": [7, -7, 6], "y": [2, 2, 3]})
case("floor_div", torch.floor_divide, {"x": [7.5, -7.5, 6.0], "y": [2.0, 2.0, -4.0]})
case("floor_div", torch.floor_divide, {"x": [7, -7, 6], "y": [2, 2, -4]})
case("mod", torch.remainder, {"x": [7.5, -7.5, 6.0], "y": [2.0, 2.0, -4.0]})
case("mod", torch.remainder, {"x": [7, -7, 6], "y": [2, 2, -4]})
case("pow", torch.pow, {"x": [2.0, 9.0, 0.0, INF], "y": [3.0, 0.5, 0.0, -1.0]})
for op, function in {
    "equal": torch.eq,
    "not_equal": torch.ne,
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "less": torch.lt,
    "less_equal": torch.le,
}.items():
    case(op, function, COMPARED)
    case(op, function, {"x": [[1, 2], [3, 4]], "y": [2, 3]})
case("logical_and", torch.logical_and, BOOLS)
case("logical_or", torch.logical_or, BOOLS)
case("logical_xor", torch.logical_xor, BOOLS)
case("logical_not", torch.logical_not, {"x": [True, False]})
case("select", torch.where, {"cond": [[True], [False]], "a": (2, 3), "b": (2, 3)})
case("select", torch.where, {"cond": [True, False], "a": [INF, 1.0], "b": [2.0, NAN]})
for op, function in {
    "abs": torch.abs,
    "ceil": torch.ceil,
    "cos": torch.cos,
    "erf": torch.erf,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "floor": torch.floor,
    "identity": lambda x: x,
    "relu": torch.relu,
    "round": torch.round,
    "sign": torch.sign,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "sin": torch.sin,
    "softplus": F.softplus,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tanh": torch.tanh,
}.items():
    case(op, function, PLAIN, tolerance=2e-6)
    if op not in ("identity", "sign", "silu"):
        case(op, function, EDGES, tolerance=2e-6)
case("round", torch.round, {"x": [0.5, 1.5, 2.5, -0.5]})
case("rsqrt", lambda x: torch.rsqrt(x + 1e-6), {"x": [0.0, 1.0, 4.0, INF]}, epsilon=np.float32(1e-6))
case("rsqrt", torch.rsqrt, {"x": [0.25, 4.0]})
case("inverse", lambda x: 1 / (x + 0.5), {"x": [0.0, 1.0, 4.0]}, epsilon=np.float32(0.5))
case("inverse", lambda x: 1 / (x + 1e-4), {"x": [0.0, 1.0, -3.0]})
case("log", lambda x: torch.log(x + 0.5), {"x": [0.0, 1.0, INF]}, epsilon=np.float32(0.5))
case("log", torch.log, {"x": [1e-20, 1.0, 3.0]})
case("clip", lambda x: x.clamp(-1.0, 0.5), EDGES, alpha=np.float32(-1), beta=np.float32(0.5))
case("clip", lambda x: x.clamp(min=1e-9), EDGES, alpha=np.float32(1e-9), beta=np.float32(INF))
case("threshold", lambda x: x.clamp(min=0.25), PLAIN, alpha=np.float32(0.25))
case("cast", lambda x: x.to(torch.int32), {"x": [1.9, -1.9, 0.0]}, dtype="int32")
case("cast", lambda x: x.to(torch.float32), {"x": [3, -4]}, dtype="fp32")
case("cast", lambda x: x != 0, {"x": [0.0, 0.5, -2.0]}, dtype="bool")
case("cast", lambda x: x.to(torch.int32), {"x": [True, False]}, dtype="int32")
case("cast", lambda x: x, {"x": [1, 30521, -5]}, dtype="int16")

# Activations.
case("gelu", lambda x: F.gelu(x.double()), {"x": np.linspace(-9, 9, 2001)}, mode="EXACT")
# Written out: torch's own vector code has NaN for infinity, and scalar code has infinity.
case("gelu", lambda x: x * 0.5 * (1 + torch.erf(x * math.sqrt(0.5))), EDGES)
case("gelu", F.gelu, {"x": (0, 3)}, in_file=False)
case("gelu", lambda x: F.gelu(x, approximate="tanh"), {"x": np.linspace(-9, 9, 301)}, mode="TANH_APPROXIMATION")
case("gelu", lambda x: x * torch.sigmoid(1.702 * x), {"x": np.linspace(-9, 9, 301)}, mode="SIGMOID_APPROXIMATION")
case("relu6", F.relu6, {"x": [-1.0, 0.5, 7.0, INF, NAN]})
case("leaky_relu", lambda x: F.leaky_relu(x, 0.1), {"x": [-2.0, 0.0, 3.0]}, alpha=np.float32(0.1))
case(
    "clamped_relu",
    lambda x: F.leaky_relu(x, 0.1).clamp(max=2),
    {"x": [-2.0, 1.0, 3.0]},
    alpha=np.float32(0.1),
    beta=np.float32(2),
)
case("elu", lambda x: F.elu(x, 0.7), {"x": [-2.0, 1e-6, 3.0]}, alpha=np.float32(0.7))
case(
    "prelu",
    lambda x: F.prelu(x, torch.tensor([0.1, 0.2, 0.3])),
    {"x": (2, 3, 4, 5)},
    alpha=np.array([0.1, 0.2, 0.3], np.float32),
)
case(
    "sigmoid_hard",
    lambda x: (0.2 * x + 0.5).clamp(0, 1),
    {"x": [-9.0, 0.3, 9.0]},
    alpha=np.float32(0.2),
    beta=np.float32(0.5),
)
case("linear_activation", lambda x: 2 * x + 0.5, PLAIN, alpha=np.float32(2), beta=np.float32(0.5))
case("scaled_tanh", lambda x: 2 * torch.tanh(0.5 * x), PLAIN, alpha=np.float32(2), beta=np.float32(0.5))
case("softsign", F.softsign, PLAIN)
case("thresholded_relu", lambda x: torch.where(x >= 0.5, x, 0.0), {"x": [0.4, 0.5, 0.6]}, alpha=np.float32(0.5))
case("softmax", lambda x: torch.softmax(x, -1), {"x": (2, 3, 5)})
case("softmax", lambda x: torch.softmax(x, 1), {"x": (2, 3, 5)}, axis=-2)
case("softmax", lambda x: torch.softmax(x, 0), {"x": [1000.0, 999.0, -INF]}, axis=0)
case("softmax", lambda x: torch.softmax(x, -1), {"x": [[-INF, -INF], [-INF, 1.0]]})
case("softmax", lambda x: torch.softmax(x, -1), {"x": (3, 0)}, in_file=False)

# Products.
W, B = _filled((4, 5), np.random.default_rng(1)), _filled((4,), np.random.default_rng(2))
case("linear", lambda x: F.linear(x, torch.from_numpy(W), torch.from_numpy(B)), {"x": (2, 3, 5)}, weight=W, bias=B)
case("linear", lambda x: F.linear(x, torch.from_numpy(W)), {"x": (3, 5)}, weight=W)
case(
    "linear",
    lambda x: F.linear(x, torch.from_numpy(W), torch.from_numpy(B)),
    {"x": (0, 5)},
    weight=W,
    bias=B,
    in_file=False,
)
case("matmul", torch.matmul, {"x": (2, 1, 3, 4), "y": (5, 4, 2)})
case(
    "matmul",
    lambda x, y: torch.matmul(x.mT, y.mT),
    {"x": (2, 4, 3), "y": (2, 5, 4)},
    transpose_x=True,
    transpose_y=True,
)
case(
    "einsum",
    lambda *v: torch.einsum("nchw,nwhu->nchu", *v),
    {"values": [(2, 3, 4, 5), (2, 5, 4, 6)]},
    equation="nchw,nwhu->nchu",
)
case(
    "einsum",
    lambda *v: torch.einsum("bchq,bkhc->bkhq", *v[::-1]),
    {"values": [(1, 7, 2, 3), (1, 3, 2, 4)]},
    equation="bkhc,bchq->bkhq",
)
case("einsum", lambda *v: torch.einsum("chw,whr->chr", *v), {"values": [(3, 4, 5), (5, 4, 6)]}, equation="chw,whr->chr")
QKV = {"query": (2, 3, 5, 4), "key": (2, 3, 6, 4), "value": (2, 3, 6, 4)}
case("scaled_dot_product_attention", F.scaled_dot_product_attention, QKV)
case(
    "scaled_dot_product_attention",
    lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
    QKV | {"attn_mask": (2, 1, 5, 6)},
)
case(
    "scaled_dot_product_attention",
    lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
    QKV | {"attn_mask": np.tril(np.ones((5, 6), bool))},
)
NORM: dict[str, Any] = {
    "gamma": np.array([1.5, -0.5, 2.0, 1.0, 0.1], np.float32),
    "beta": np.array([0.1, 0.2, -0.3, 0.0, 5.0], np.float32),
}
T_GAMMA, T_BETA = (torch.from_numpy(value) for value in NORM.values())
case(
    "layer_norm",
    lambda x: F.layer_norm(x, [5], T_GAMMA, T_BETA, eps=1e-12),
    {"x": (2, 3, 5)},
    axes=ints(-1),
    epsilon=np.float32(1e-12),
    tolerance=3e-6,
    **NORM,
)
case("layer_norm", lambda x: F.layer_norm(x, [3, 5]), {"x": (2, 3, 5)}, axes=ints(1, 2))
case("layer_norm", lambda x: F.layer_norm(x, [2, 3]), {"x": (2, 3)}, in_file=False)
case(
    "layer_norm",
    lambda x: F.layer_norm(x, [4], eps=0.5),
    {"x": [[3.0] * 4, [1.0, 2.0, 3.0, 4.0]]},
    axes=ints(1),
    epsilon=np.float32(0.5),
)
STATISTICS: dict[str, Any] = {
    "mean": np.array([0.1, -0.2, 0.3], np.float32),
    "variance": np.array([1.0, 0.5, 2.0], np.float32),
}
T_MEAN, T_VARIANCE = (torch.from_numpy(value) for value in STATISTICS.values())
case("batch_norm", lambda x: F.batch_norm(x, T_MEAN, T_VARIANCE), {"x": (2, 3, 4, 5)}, **STATISTICS)
case(
    "batch_norm",
    lambda x: F.batch_norm(x, T_MEAN, T_VARIANCE, T_GAMMA[:3], T_BETA[:3], eps=0.1),
    {"x": (2, 3, 4)},
    gamma=NORM["gamma"][:3],
    beta=NORM["beta"][:3],
    epsilon=np.float32(0.1),
    **STATISTICS,
)
case(
    "instance_norm",
    lambda x: F.instance_norm(x, weight=T_GAMMA[:3], bias=T_BETA[:3]),
    {"x": (2, 3, 4, 5)},
    gamma=NORM["gamma"][:3],
    beta=NORM["beta"][:3],
    epsilon=np.float32(1e-5),
)
K1, K2 = _filled((4, 3, 1, 1), np.random.default_rng(3)), _filled((6, 2, 3, 2), np.random.default_rng(4))
K3 = _filled((2, 3, 3), np.random.default_rng(5))
T_K1, T_K2, T_K3 = map(torch.from_numpy, (K1, K2, K3))
case("conv", lambda x: F.conv2d(x, T_K1, torch.from_numpy(B)), {"x": (2, 3, 1, 7)}, weight=K1, bias=B, tolerance=2e-6)
case(
    "conv",
    lambda x: F.conv2d(F.pad(x, (0, 2, 1, 1)), T_K2, stride=(2, 1), dilation=(1, 2), groups=2),
    {"x": (2, 4, 7, 6)},
    weight=K2,
    strides=ints(2, 1),
    dilations=ints(1, 2),
    groups=2,
    pad_type="custom",
    pad=ints(1, 1, 0, 2),
    tolerance=3e-6,
)
case("conv", lambda x: F.conv1d(x, T_K3, padding="same"), {"x": (2, 3, 8)}, weight=K3, pad_type="same", tolerance=2e-6)
case(
    "conv",
    lambda x: F.conv1d(F.pad(x, (1, 0)), T_K3, stride=2),
    {"x": (2, 3, 8)},
    weight=K3,
    pad_type="same_lower",
    strides=ints(2),
    tolerance=2e-6,
)
case(
    "conv",
    lambda x: F.conv1d(F.pad(x, (0, 1)), T_K3, stride=2),
    {"x": (2, 3, 8)},
    weight=K3,
    pad_type="same",
    strides=ints(2),
    tolerance=2e-6,
)
case(
    "quantize",
    lambda x: torch.tensor([-128, -2, 0, 2, 127]),
    {"input": [-500.0, -1.25, 0.1, 1.25, 500.0]},
    scale=np.float32(0.5),
    output_dtype="int8",
)
case(
    "quantize",
    lambda x: (
        torch.fake_quantize_per_channel_affine(
            x, torch.tensor([0.5, 0.25, 2.0]), torch.tensor([3, 128, 250], dtype=torch.int32), 1, 0, 255
        )
        / torch.tensor([0.5, 0.25, 2.0])[:, None]
        + torch.tensor([3, 128, 250])[:, None]
    ),
    {"input": (2, 3, 5)},
    scale=np.array([0.5, 0.25, 2.0], np.float32),
    zero_point=np.array([3, 128, 250], np.uint8),
    axis=1,
    output_dtype="uint8",
)
case(
    "dequantize",
    lambda x: (x - 3.0) * 0.5,
    {"input": np.array([[-128, 0, 127]], np.int8)},
    scale=np.float32(0.5),
    zero_point=np.int8(3),
    in_file=False,
)
case(
    "dequantize",
    lambda x: x * torch.tensor([[0.5], [2.0]]),
    {"input": np.array([[200, 0, 1], [3, 4, 5]], np.uint8)},
    scale=np.array([0.5, 2.0], np.float32),
    axis=0,
    in_file=False,
)
case(
    "classify",
    lambda x: ("b", {"a": 0.25, "b": 0.75}),
    {"probabilities": [[0.25, 0.75]]},
    classes=("a", "b"),
    in_file=False,
)

# Moving and picking.
case("reshape", lambda x: x.reshape(2, 15), PLAIN, shape=ints(2, -1))
case("reshape", lambda x: x.reshape(2, 5, 3), PLAIN, shape=ints(0, 5, 3), in_file=False)
case("transpose", lambda x: x.permute(2, 0, 1), PLAIN, perm=ints(-1, 0, 1))
case("expand_dims", lambda x: x[:, None, :, :, None], PLAIN, axes=ints(1, -1))
case("squeeze", lambda x: x[0, :, 0], {"x": (1, 3, 1)}, axes=ints(0, -1))
case("squeeze", lambda x: x[0, :, 0], {"x": (1, 3, 1)})
case("squeeze", lambda x: x[0], {"x": (1, 3, 1)}, axes=ints(0, 1), in_file=False)
case("slice_by_index", lambda x: x[:, 1:3, -2:], PLAIN, begin=ints(0, 1, -2), end=ints(2, 3, 5))
case(
    "slice_by_index",
    lambda x: x[:, :2, 3:],
    PLAIN,
    begin=ints(9, 9, 3),
    end=ints(9, 2, 9),
    begin_mask=[True, True, False],
    end_mask=[True, False, True],
)
case(
    "slice_by_index",
    lambda x: x[1, :, 2],
    PLAIN,
    begin=ints(1, 0, 2),
    end=ints(0, 3, 0),
    squeeze_mask=[True, False, True],
)
case("slice_by_index", lambda x: x[:, :, ::2], PLAIN, begin=ints(0, 0, 0), end=ints(2, 3, 5), stride=ints(1, 1, 2))
case(
    "slice_by_index",
    lambda x: x.flip(2)[:, :, 1:4],
    PLAIN,
    begin=ints(0, 0, 3),
    end=ints(2, 3, 0),
    stride=ints(1, 1, -1),
)
case(
    "slice_by_index",
    lambda x: x.flip(2)[:, :, ::2],
    PLAIN,
    begin=ints(0, 0, 0),
    end=ints(2, 3, 0),
    stride=ints(1, 1, -2),
    begin_mask=[False, False, True],
    end_mask=[False, False, True],
)
case("slice_by_index", lambda x: x[0:0], {"x": (3, 2)}, begin=ints(0, 0), end=ints(0, 2), in_file=False)
case("slice_by_size", lambda x: x[1:2, 1:, :3], PLAIN, begin=ints(1, 1, 0), size=ints(1, -1, 3))
case("slice_by_size", lambda x: x[:, 1:3, -2:], PLAIN, begin=ints(0, -2, -2), size=ints(2, 2, 2), in_file=False)
case("gather", lambda x, i: x[i.long()], {"x": (4, 3), "indices": [[0, 3], [2, 2]]}, axis=0)
case("gather", lambda x, i: x[:, [2, -1, 0]], {"x": (4, 3, 2), "indices": [2, -1, 0]}, axis=-2)
case("gather", lambda x, i: x[:, 1], {"x": (4, 3), "indices": 1}, axis=1, in_file=False)
case(
    "gather",
    lambda x, i: torch.stack([x[b][:, i[b].long()] for b in range(2)]),
    {"x": (2, 3, 5), "indices": [[4, 0], [1, 1]]},
    axis=2,
    batch_dims=1,
)
case(
    "gather",
    lambda x, i: torch.stack([x[b][i[b].long()] for b in range(2)]),
    {"x": (2, 3, 5), "indices": [[[2, 0]], [[1, 1]]]},
    axis=1,
    batch_dims=1,
)
case(
    "gather",
    lambda x, i: torch.gather(x, 2, i.long()),
    {"x": (2, 3, 5), "indices": np.arange(12).reshape(2, 3, 2) % 5},
    axis=2,
    batch_dims=2,
)
case("gather", lambda x, i: x[:0], {"x": (4, 3), "indices": np.zeros(0, np.int32)}, axis=0, in_file=False)
case(
    "gather_along_axis",
    lambda x, i: torch.gather(x, 1, i.long()),
    {"x": (2, 5), "indices": [[4, 0, 0], [1, 2, 3]]},
    axis=-1,
)
case("gather_nd", lambda x, i: torch.stack([x[0, 2], x[1, 0]]), {"x": (2, 3, 5), "indices": [[0, 2], [1, 0]]})
case("gather_nd", lambda x, i: torch.stack([x[0, 2], x[1, 0]]), {"x": (2, 3, 5), "indices": [[2], [0]]}, batch_dims=1)
case("concat", lambda *v: torch.cat(v, -1), {"values": [(2, 3), (2, 1)]}, axis=-1)
case("concat", lambda *v: torch.stack(v, 1).reshape(6, 2), {"values": [(3, 2), (3, 2)]}, axis=0, interleave=True)
case("concat", lambda *v: torch.stack(v, 3).reshape(2, 3, 6), {"values": [(2, 3, 2)] * 3}, axis=-1, interleave=True)
case("concat", lambda *v: torch.stack(v), {"values": [np.int32(3), np.int32(4)]}, axis=0, in_file=False)
case("stack", lambda *v: torch.stack(v, -1), {"values": [(2, 3), (2, 3)]}, axis=-1)
case("split", lambda x: x.chunk(3, 1), {"x": (2, 6)}, num_splits=3, axis=1)
case("split", lambda x: x.split([1, 4, 1], 1), {"x": (2, 6)}, split_sizes=ints(1, 4, 1), axis=-1)
case("pad", lambda x: F.pad(x, (1, 2, 0, 3), value=7.0), PLAIN, pad=ints(0, 3, 1, 2), constant_val=np.float32(7))
case("pad", lambda x: F.pad(x, (1, 0)), PLAIN, pad=ints(0, 0, 0, 0, 1, 0))
case("pad", lambda x: F.pad(x, (3, 2), mode="reflect"), PLAIN, pad=ints(3, 2), mode="reflect")
case("pad", lambda x: F.pad(x, (3, 2), mode="replicate"), PLAIN, pad=ints(3, 2), mode="replicate")
case("tile", lambda x: x.repeat(2, 1, 3), PLAIN, reps=ints(2, 1, 3))
case("reverse", lambda x: x.flip(0, 2), PLAIN, axes=ints(0, -1))
case("reverse", lambda x: x.flip(0, 1, 2), PLAIN)
case("shape", lambda x: torch.tensor([2, 3, 5]), PLAIN)
case("fill", lambda: torch.full((2, 3), 7.0), {}, shape=ints(2, 3), value=np.float32(7), in_file=False)
case("fill", lambda: torch.zeros(2), {}, shape=ints(2), in_file=False)
case("fill_like", lambda x: torch.full_like(x, -1.5), {"ref_tensor": (2, 3)}, value=np.float32(-1.5))
case("range_1d", lambda: torch.arange(2, 9, 3), {}, start=np.int32(2), end=np.int32(9), step=np.int32(3), in_file=False)
case(
    "range_1d",
    lambda: torch.arange(1.0, 0.0, -0.25),
    {},
    start=np.float32(1),
    end=np.float32(0),
    step=np.float32(-0.25),
    in_file=False,
)
case("band_part", lambda x: x.tril(1).triu(-2), {"x": (2, 5, 6)}, lower=2, upper=1)
case("band_part", lambda x: x.tril(0), {"x": (5, 6)}, lower=-1, upper=0)
case(
    "one_hot",
    lambda i: F.one_hot(i.long(), 4).permute(0, 2, 1) * 5.0 - 2.0,
    {"indices": [[0, 3], [1, 1]]},
    one_hot_vector_size=4,
    axis=1,
    on_value=np.float32(3),
    off_value=np.float32(-2),
)

# Along axes.
for op, function in {
    "reduce_sum": lambda x, axes, keep: x.sum(axes, keepdim=keep),
    "reduce_mean": lambda x, axes, keep: x.mean(axes, keepdim=keep),
    "reduce_max": lambda x, axes, keep: x.amax(axes, keepdim=keep),
    "reduce_min": lambda x, axes, keep: x.amin(axes, keepdim=keep),
    "reduce_prod": lambda x, axes, keep: math.prod(x.unbind(axes[0])).unsqueeze(axes[0]) if keep else x.prod(),
    "reduce_sum_square": lambda x, axes, keep: x.square().sum(axes, keepdim=keep),
    "reduce_l1_norm": lambda x, axes, keep: x.abs().sum(axes, keepdim=keep),
    "reduce_l2_norm": lambda x, axes, keep: torch.linalg.vector_norm(x, dim=axes, keepdim=keep),
    "reduce_log_sum": lambda x, axes, keep: x.sum(axes, keepdim=keep).log(),
    "reduce_log_sum_exp": lambda x, axes, keep: torch.logsumexp(x, axes, keepdim=keep),
}.items():
    positive = {"x": np.abs(_filled((2, 3, 5), np.random.default_rng(7)))}
    case(op, lambda x, f=function: f(x, (-2,), True), positive, axes=ints(-2), keep_dims=True, tolerance=3e-6)
    case(op, lambda x, f=function: f(x, (0, 1, 2), False), positive, tolerance=1e-5, in_file=False)
case("reduce_sum", lambda x: x.sum(1), {"x": [[1, 2], [3, 2**24 + 1]]}, axes=ints(1), keep_dims=False)
case("reduce_sum", lambda x: torch.zeros(3), {"x": (3, 0)}, axes=ints(1), keep_dims=False, in_file=False)
case("reduce_max", lambda x: x.amax(0), {"x": [[1.0, NAN], [INF, 2.0]]}, axes=ints(0), keep_dims=False)
case(
    "reduce_log_sum_exp",
    lambda x: torch.logsumexp(x, 1),
    {"x": [[1000.0, 999.0], [-INF, -INF], [-INF, 1.0]]},
    axes=ints(1),
    keep_dims=False,
)
case("reduce_argmax", lambda x: x.argmax(1), {"x": [[1.0, 3.0, 3.0], [5.0, 2.0, 5.0]]}, axis=1, keep_dims=False)
case("reduce_argmin", lambda x: x.argmin(-1, keepdim=True), {"x": (2, 3, 5)}, axis=-1, keep_dims=True)
case("cumsum", lambda x: x.cumsum(1), {"x": [[1, 2, 3], [4, 5, 6]]}, axis=-1)
case("cumsum", lambda x: torch.tensor([[0, 1, 3], [0, 4, 9]]), {"x": [[1, 2, 3], [4, 5, 6]]}, axis=1, exclusive=True)
case("cumsum", lambda x: torch.tensor([[6, 5, 3], [15, 11, 6]]), {"x": [[1, 2, 3], [4, 5, 6]]}, axis=1, reverse=True)
case(
    "cumsum", lambda x: torch.tensor([[5.0, 3.0, 0.0]]), {"x": [[1.0, 2.0, 3.0]]}, axis=1, exclusive=True, reverse=True
)
case("cumsum", lambda x: torch.tensor([0.0, INF, INF]), {"x": [INF, 2.0, 3.0]}, axis=0, exclusive=True)
case("cumsum", lambda x: x, {"x": (2, 0)}, axis=1, exclusive=True, in_file=False)
TIES = {"x": [[2.0, 3.0, 2.0, 1.0], [0.0, 0.0, 1.0, 1.0]]}
case("argsort", lambda x: torch.argsort(x, dim=1, descending=True, stable=True), TIES, axis=1)
case("argsort", lambda x: torch.argsort(x, dim=0, stable=True), TIES, axis=0, ascending=True)
case("topk", lambda x: x.topk(2, dim=1), {"x": (3, 5)}, k=2, axis=1)
case("topk", lambda x: x.topk(2, dim=0, largest=False), {"x": (5, 3)}, k=2, axis=0, ascending=True)


def check(found: Any, expected: Any, tolerance: float) -> None:
    """Compare values and shapes; infinities and NaN have to be at the same places."""
    if isinstance(expected, str | dict):
        assert (found.item() if isinstance(found, np.ndarray) else found) == expected
        return
    right = np.asarray(expected)
    assert np.shape(found) == right.shape
    np.testing.assert_allclose(np.asarray(found, np.float64), right.astype(np.float64), rtol=tolerance, atol=tolerance)


def wanted_of(one: Case) -> tuple[Any, ...]:
    tensors = one.call.tensors["values"] if "values" in one.call.tensors else one.call.tensors.values()
    expected = one.want(*(torch.from_numpy(np.array(value)) for value in tensors))
    return tuple(expected) if isinstance(expected, tuple) else (expected,)


@pytest.mark.numeric
@pytest.mark.parametrize("one", CASES, ids=lambda one: one.call.name)
def test_op(one: Case) -> None:
    constants = {
        name: value if isinstance(value, str | tuple) else np.asarray(value)
        for name, value in one.call.constants.items()
    }
    with np.errstate(all="ignore"):
        found = OPS[one.call.op](**one.call.tensors, **constants)
    for part, expected in zip(found if isinstance(found, tuple) else (found,), wanted_of(one), strict=True):
        check(part, expected, one.tolerance)


def test_every_op_has_a_case() -> None:
    assert {one.call.op for one in CASES} == set(OPS)


class TestInFile:
    """The same calls as coremltools writes them: names of parameters, defaults, types and shapes are as declared."""

    @pytest.fixture(scope="class")
    @staticmethod
    def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("ops")
        calls = [one.call for one in CASES if one.in_file]
        in_worker(write_calls, calls, folder / "ops.mlpackage")
        inputs = {name: array for call in calls for name, array in input_arrays(call).items()}
        return mil.Interpreter(folder / "ops.mlpackage", precision="fp32").run(inputs)

    @pytest.mark.numeric
    @pytest.mark.parametrize("one", [one for one in CASES if one.in_file], ids=lambda one: one.call.name)
    def test_op(self, one: Case, outputs: dict[str, Any]) -> None:
        for index, expected in enumerate(wanted_of(one)):
            check(outputs[f"{one.call.name}__out{index}"], expected, one.tolerance)


def test_exact_gelu_errs_less_than_half_precision_sees() -> None:
    x = np.linspace(-12, 12, 400_001).astype(np.float32)
    exact = x.astype(np.float64) * 0.5 * scipy.special.erfc(-x.astype(np.float64) / math.sqrt(2))
    assert (np.abs(OPS["gelu"](x) - exact) <= 2e-7 * np.maximum(np.abs(x), 1)).all()


def test_an_op_leaves_its_inputs_alone() -> None:
    for one in CASES:
        before = {name: np.array(value) for name, value in one.call.tensors.items() if name != "values"}
        constants = {n: v if isinstance(v, str | tuple) else np.asarray(v) for n, v in one.call.constants.items()}
        with np.errstate(all="ignore"):
            OPS[one.call.op](**one.call.tensors, **constants)
        for name, value in before.items():
            np.testing.assert_array_equal(one.call.tensors[name], value)


@pytest.mark.parametrize("with_torch", [True, False], ids=["torch", "numpy"])
class TestToHalf:
    @pytest.fixture(autouse=True)
    def _without_torch(self, with_torch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        if not with_torch:
            monkeypatch.delitem(sys.modules, "torch")

    def check(self, bits: np.ndarray) -> None:
        values = bits.astype(np.uint32).view(np.float32)
        with np.errstate(all="ignore"):
            expected = values.astype(np.float16).astype(np.float32)
        found = to_half(values)
        assert np.array_equal(np.isnan(found), np.isnan(expected))
        number = ~np.isnan(expected)
        assert np.array_equal(found[number].view(np.uint32), expected[number].view(np.uint32))

    def test_every_half_and_its_neighbours(self) -> None:
        """Each half, the middle to the next one, and the floats around both."""
        with np.errstate(all="ignore"):
            halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
        middles = halves + np.uint32(0x1000)
        for start in (halves, middles):
            for step in (-1, 0, 1):
                self.check(start + np.int64(step) & 0xFFFFFFFF)

    def test_floats_from_end_to_end(self) -> None:
        self.check(np.arange(0, 2**32, 2**32 // 500_009, dtype=np.uint64))

    def test_shapes_and_strides(self) -> None:
        x = np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1) / np.float32(3)
        assert np.array_equal(to_half(x), x.astype(np.float16).astype(np.float32))
        assert to_half(np.array(1e6, np.float32)) == np.inf
        assert to_half(np.zeros((0, 3), np.float32)).shape == (0, 3)

    def test_flushing_makes_signed_zeros_of_subnormal_halves_alone(self) -> None:
        with np.errstate(all="ignore"):
            halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
        exponents = np.arange(2**16, dtype=np.uint16) >> 10 & 31
        expected = np.where(exponents == 0, np.copysign(np.float32(0), halves), halves)
        found = flush(halves)
        assert np.array_equal(np.isnan(found), np.isnan(expected))
        number = ~np.isnan(expected)
        assert np.array_equal(found[number].view(np.uint32), expected[number].view(np.uint32))
