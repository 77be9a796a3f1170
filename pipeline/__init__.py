"""PocketBERT: small BERT students, converted for phones and proven to be the same model.

This is PocketBERT's own code, which may change at any time. What users import is `pocketbert`, in `api/`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.convert.isolated import IsolatedModel, load
    from pipeline.convert.model import Model

__all__ = ["IsolatedModel", "Model", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import what is asked for: the command imports this package first, and tells of Ctrl-C only from then on."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pipeline.convert import isolated

    return getattr(isolated, name)
