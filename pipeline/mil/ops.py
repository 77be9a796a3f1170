"""Every operation that the interpreter knows, by its MIL type."""

from collections.abc import Callable, Mapping
from typing import Any

from pipeline.mil import ops_activation, ops_elementwise, ops_neural, ops_reduce, ops_tensor

OPS: Mapping[str, Callable[..., Any]] = {
    **ops_activation.OPS,
    **ops_elementwise.OPS,
    **ops_neural.OPS,
    **ops_reduce.OPS,
    **ops_tensor.OPS,
}
"""Each takes the parameters of its MIL name: arrays with floats in single precision, texts as str."""
