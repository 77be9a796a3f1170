"""Put a checkpoint's palettes or integers with scales into a converted program, unchanged.

coremltools palettises with its own k-means, and rounds with its own scales, without calibration. Its operations for
palettes and integers are used here, and none of its choices.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.checkpoint import integers, palettes
from pipeline.checkpoint.integers import Integers
from pipeline.checkpoint.palettes import Palette
from pipeline.errors import ToolchainError
from pipeline.formats.coreml import passes
from pipeline.schemes import Scheme

QuantisedWeight = Palette | Integers


def read(student: Path, scheme: Scheme) -> Mapping[str, QuantisedWeight]:
    """Return a checkpoint's palettes or integers, by tensor name.

    Raises:
        StudentError: the checkpoint was not quantised for such a scheme.
    """
    return palettes.read(student) if scheme.palette_bits else integers.read(student)


def put_in(model: Any, weights: Mapping[str, QuantisedWeight]) -> Any:
    """Return a model with palettes or integers in place of the constants that equal them after dequantisation.

    A constant is recognised by its content. The checkpoint holds dequantised weights, which half precision keeps,
    except products of 8-bit integers and their scales: those are rounded to it, here as there.

    Args:
        model: a float model of coremltools, in half precision, of the checkpoint. It is not changed.
        weights: palettes or integers by weight name.

    Raises:
        ToolchainError: the program lacks a constant that equals one of them.
    """
    from coremltools.converters.mil.mil.passes.graph_pass import AbstractGraphPass
    from coremltools.converters.mil.mil.passes.helper import block_context_manager

    by_content: dict[tuple[tuple[int, ...], bytes], list[str]] = {}
    for name, one in weights.items():
        by_content.setdefault(_content(one.dense().astype(np.float16)), []).append(name)
    done: list[str] = []

    class PutIn(AbstractGraphPass):  # type: ignore[misc]  # coremltools has no types
        def apply(self, prog: Any) -> None:
            for function in prog.functions.values():
                self._block(function)
            _check_all(done, weights)

        @block_context_manager  # type: ignore[untyped-decorator]
        def _block(self, block: Any) -> None:
            for operation in list(block.operations):
                value = operation.outputs[0].val if operation.op_type == "const" else None
                names = by_content.get(_content(value), ()) if isinstance(value, np.ndarray) else ()
                if not names:
                    continue
                new = _decompressed(weights[names[0]], operation)
                block.replace_uses_of_var_after_op(anchor_op=operation, old_var=operation.outputs[0], new_var=new)
                block.remove_ops([operation])
                done.extend(names)

    return passes.apply(model, PutIn())


def _decompressed(one: QuantisedWeight, constant: Any) -> Any:
    """Insert an operation that decompresses a quantised weight before a constant, and return its output."""
    from coremltools.converters.mil.frontend import _utils
    from coremltools.converters.mil.mil import Builder, types

    if isinstance(one, Palette):
        # Groups of rows, one group of columns, centroids, and vectors of one number.
        lut = one.lut[:, None, :, None]
        name = f"{constant.name}_palettised"
        return _utils._construct_constexpr_lut_op(one.indices, lut, name=name, before_op=constant)
    return Builder.constexpr_blockwise_shift_scale(
        data=one.codes.astype(types.nptype_from_builtin(types.string_to_builtin(f"int{one.bits}"))),
        scale=one.scales.astype(np.float16),
        name=f"{constant.name}_quantized",
        before_op=constant,
    )


def _check_all(done: Sequence[str], weights: Mapping[str, QuantisedWeight]) -> None:
    if sorted(done) == sorted(weights):
        return
    missing = sorted(set(weights) - set(done))
    what = "holds a weight twice"
    if missing:
        gives = "the palette of {} gives" if isinstance(weights[missing[0]], Palette) else "the integers of {} give"
        what = f"has no constant that {gives.format(missing[0])}"
    raise ToolchainError(
        f"Core ML's program {what}: {len(done)} constants for {len(weights)} weights. A converter that turns or folds "
        "a weight leaves none that is recognised."
    )


def _content(values: Any) -> tuple[tuple[int, ...], bytes]:
    return tuple(values.shape), values.tobytes() if values.dtype == np.float16 else b""
