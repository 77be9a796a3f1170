"""The layers of an encoder, whatever its architecture calls their modules. Imports nothing heavy."""

from typing import Any

from pipeline import architectures
from pipeline.architectures.layout import Layer, Layout, check_groups, layers_in, put, replace, width
from pipeline.errors import StudentError

__all__ = ["Layer", "check_groups", "layers", "layout_of", "put", "replace", "width"]


def layout_of(model_type: str) -> Layout:
    """Return the layout of an architecture.

    Raises:
        StudentError: its layers cannot be compressed here, with the reason.
    """
    layout = architectures.get(model_type).layout
    if isinstance(layout, str):
        known = ", ".join(sorted(architectures.COMPRESSIBLE))
        raise StudentError(f"{model_type} cannot be compressed here: {layout}. There are: {known}.")
    return layout


def layers(model: Any) -> list[Layer]:
    """Return the layers of a Hugging Face model, each once.

    Raises:
        StudentError: the architecture's layers cannot be compressed here.
    """
    return layers_in(model, layout_of(model.config.model_type))
