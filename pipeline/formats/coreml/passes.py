"""Graph passes of coremltools, for conversion and for each later rewriting of a program.

Two of the default passes are left out. `guard_negative_gather_indices` puts a comparison, an addition and a selection
before every gather from iOS 17 on, and once more at each rewriting, to support negative indices; ids come from a
tokenizer, and sessions check them. `add_int16_cast` puts casts around these and before gathers. Programs for iOS 16
have neither anyway.
"""

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any

from pipeline.formats import replaced

_LEFT_OUT = frozenset({"common::guard_negative_gather_indices", "common::add_int16_cast"})


def pipeline() -> Any:
    """Return the passes of a conversion, which include rounding to half precision."""
    import coremltools as ct

    passes = ct.PassPipeline()
    passes.remove_passes(_LEFT_OUT)
    return passes


@contextlib.contextmanager
def fewer() -> Iterator[None]:
    """Skip work of coremltools 9.0 that changes no byte of a file.

    A program is checked after dead code was removed and before it is written, not after each pass: a check walks
    through all of it, which took as long as the passes. A weight that every length has is quantised once.
    """
    from coremltools.converters.mil.mil import Program
    from coremltools.optimize import _utils

    check, quantise = Program.validate, _utils.compute_qparams_by_dtype
    quantised: dict[Any, Any] = {}

    def validate(self: Any, check_essential_scope: bool = False) -> None:
        # Those two ask for scopes too.
        if check_essential_scope:
            check(self, check_essential_scope)

    def quantise_once(weight: Any, dtype: Any, quantization_mode: str, block_sizes: list[int]) -> Any:
        content = hashlib.sha256(weight.tobytes()).digest()
        key = (content, weight.shape, weight.dtype, dtype, quantization_mode, *block_sizes)
        if key not in quantised:
            quantised[key] = quantise(weight, dtype, quantization_mode, block_sizes)
        return quantised[key]

    with (
        replaced(Program, "validate", validate),
        replaced(_utils, "compute_qparams_by_dtype", quantise_once),
    ):
        yield


def compress(model: Any, name: str, config: Any, *, joint: bool) -> Any:
    """Return a model with one of coremltools' compressions applied to its weights.

    Args:
        model: a model of coremltools with one function. It is not changed.
        name: name of the pass, such as `linear_quantize_weights`.
        config: arguments of `OptimizationConfig`: the compression of each operation.
        joint: whether weights that are already compressed are compressed further.
    """
    import coremltools.optimize as cto
    from coremltools.converters.mil.mil.passes.graph_pass import PassOption
    from coremltools.converters.mil.mil.passes.pass_registry import PASS_REGISTRY

    options = cto.coreml.OptimizationConfig(**config)
    chosen = PASS_REGISTRY[f"compression::{name}"]
    chosen.set_options([PassOption("config", options), PassOption("joint_compression", joint)])
    return apply(model, chosen)


def apply(model: Any, graph_pass: Any) -> Any:
    """Return a model rewritten by one pass, like coremltools' `_apply_graph_pass`, then by our selection of passes.

    Args:
        model: a model of coremltools with one function. It is not changed.
        graph_pass: the pass.
    """
    import coremltools as ct
    from coremltools.converters.mil.converter import mil_convert
    from coremltools.models.utils import _apply_graph_pass

    program = _apply_graph_pass(model, graph_pass, return_pymil_prog=True)
    passes = pipeline()
    passes.remove_passes({"common::add_fp16_cast"})
    spec = model.get_spec()
    return mil_convert(
        program,
        convert_from="milinternal",
        convert_to="mlprogram",
        specification_version=max(spec.specificationVersion, ct._SPECIFICATION_VERSION_IOS_16),
        compute_units=model.compute_unit,
        model_description=spec.description,
        skip_model_load=True,
        main_pipeline=passes,
    )
