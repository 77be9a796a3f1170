"""The passes of coremltools through which a program goes, when it is converted and each time it is rewritten.

Two of the default ones are left out. `guard_negative_gather_indices` puts a comparison, an addition and a choice before
every gather from iOS 17 on, and once more at each rewriting, to take negative indices as ones from the end; ids come
from a tokenizer, and whoever runs a file checks them. `add_int16_cast` puts casts around these and before gathers. From
both, programs for iOS 16 are free as they are.
"""

from typing import Any

_LEFT_OUT = frozenset({"common::guard_negative_gather_indices", "common::add_int16_cast"})


def pipeline() -> Any:
    """Return the passes of a conversion, which still may round to half precision."""
    import coremltools as ct

    passes = ct.PassPipeline()
    passes.remove_passes(_LEFT_OUT)
    return passes


def compress(model: Any, name: str, config: Any, *, joint: bool) -> Any:
    """Return a model whose weights one of coremltools' compressions was applied to.

    Args:
        model: a model of coremltools with one function. It stays as it is.
        name: of the pass, such as `linear_quantize_weights`.
        config: what is compressed how, by operation.
        joint: whether weights that are compressed already are compressed further.
    """
    import coremltools.optimize as cto
    from coremltools.converters.mil.mil.passes.graph_pass import PassOption
    from coremltools.converters.mil.mil.passes.pass_registry import PASS_REGISTRY

    options = cto.coreml.OptimizationConfig(**config)
    chosen = PASS_REGISTRY[f"compression::{name}"]
    chosen.set_options([PassOption("config", options), PassOption("joint_compression", joint)])
    return apply(model, chosen)


def apply(model: Any, graph_pass: Any) -> Any:
    """Return a model that one pass has rewritten, as coremltools' own `_apply_graph_pass` does with its default passes.

    Args:
        model: a model of coremltools with one function. It stays as it is.
        graph_pass: what rewrites its program.
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
