"""Puts the palettes of a checkpoint into a converted program, as they are: the same indices, the same lists.

coremltools palettises by k-means of its own, which knows nothing of what flows through a model. Its operation for a
palette is used here, and none of its choices.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.checkpoint.palettes import Palette
from pipeline.errors import ToolchainError


def put_in(model: Any, palettes: Mapping[str, Palette]) -> Any:
    """Return a model in which each constant that a palette gives is one.

    A constant is recognised by its content: the checkpoint holds what its palettes give, and half precision keeps that.

    Args:
        model: a float model of coremltools, in half precision, of a palettised checkpoint. It stays as it is.
        palettes: by the names of their weights.

    Raises:
        ToolchainError: the program lacks a constant that a palette gives.
    """
    from coremltools.converters.mil.frontend._utils import _construct_constexpr_lut_op
    from coremltools.converters.mil.mil.passes.graph_pass import AbstractGraphPass
    from coremltools.converters.mil.mil.passes.helper import block_context_manager
    from coremltools.models.utils import _apply_graph_pass

    by_content: dict[tuple[tuple[int, ...], bytes], list[str]] = {}
    for name, palette in palettes.items():
        by_content.setdefault(_content(palette.dense().astype(np.float16)), []).append(name)
    done: list[str] = []

    class PutIn(AbstractGraphPass):  # type: ignore[misc]  # coremltools has no types
        def apply(self, prog: Any) -> None:
            for function in prog.functions.values():
                self._block(function)
            _check_all(done, palettes)

        @block_context_manager  # type: ignore[untyped-decorator]
        def _block(self, block: Any) -> None:
            for operation in list(block.operations):
                value = operation.outputs[0].val if operation.op_type == "const" else None
                names = by_content.get(_content(value), ()) if isinstance(value, np.ndarray) else ()
                if not names:
                    continue
                palette = palettes[names[0]]
                new = _construct_constexpr_lut_op(
                    palette.indices,
                    # Groups of rows, one of columns, entries, and vectors of one number.
                    palette.lut[:, None, :, None],
                    name=f"{operation.name}_palettised",
                    before_op=operation,
                )
                block.replace_uses_of_var_after_op(anchor_op=operation, old_var=operation.outputs[0], new_var=new)
                block.remove_ops([operation])
                done.extend(names)

    edited: Any = _apply_graph_pass(model, PutIn())
    return edited


def _check_all(done: Sequence[str], palettes: Mapping[str, Palette]) -> None:
    if sorted(done) == sorted(palettes):
        return
    missing = sorted(set(palettes) - set(done))
    what = f"has no constant that the palette of {missing[0]} gives" if missing else "holds a weight twice"
    raise ToolchainError(
        f"Core ML's program {what}: {len(done)} constants for {len(palettes)} palettes. A converter that turns or "
        "folds a weight leaves none that is recognised."
    )


def _content(values: Any) -> tuple[tuple[int, ...], bytes]:
    return tuple(values.shape), values.tobytes() if values.dtype == np.float16 else b""
