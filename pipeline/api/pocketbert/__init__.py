"""PocketBERT in Python: open converted models and run them on texts.

::

    import pocketbert

    with pocketbert.load("build/minilm/litert-int8_dynamic/model") as model:
        vectors = [found.vector for found in model.predict(["a text", "another"])]
        (pair,) = model.predict("a question", "a passage")

What this package and its modules `errors` and `tasks` name is public: it keeps its meaning between releases, or the
change log says what became of it. Everything below `pipeline` is PocketBERT's own and may change at any time; whoever
makes models from Python runs the command `pocketbert`, whose `--json` gives documents.
"""

from typing import TYPE_CHECKING, Any

from pipeline import __version__
from pocketbert import errors, tasks

if TYPE_CHECKING:
    from pipeline.convert.isolated import IsolatedModel, load
    from pipeline.convert.model import LabelScores, Model, Prediction
    from pipeline.metrics.outputs import Entity, Span

__all__ = [
    "Entity",
    "IsolatedModel",
    "LabelScores",
    "Model",
    "Prediction",
    "Span",
    "__version__",
    "errors",
    "load",
    "tasks",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for, so that `import pocketbert` takes a moment."""
    if name in ("IsolatedModel", "load"):
        from pipeline.convert import isolated as home
    elif name in ("LabelScores", "Model", "Prediction"):
        from pipeline.convert import model as home  # type: ignore[no-redef]
    elif name in ("Entity", "Span"):
        from pipeline.metrics import outputs as home  # type: ignore[no-redef]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; there are: {', '.join(__all__)}")
    return getattr(home, name)


def __dir__() -> list[str]:
    """Return the public names, those that are not imported yet among them."""
    return __all__
