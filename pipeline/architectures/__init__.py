"""In: a `model_type`. Out: the `Architecture` that knows everything of it, one module each.

To add one, write its module and name its object below.
May import errors.
"""

from pipeline.architectures.albert import ALBERT
from pipeline.architectures.architecture import Architecture
from pipeline.architectures.bert import BERT
from pipeline.architectures.distilbert import DISTILBERT
from pipeline.architectures.electra import ELECTRA
from pipeline.architectures.mobilebert import MOBILEBERT
from pipeline.architectures.mpnet import MPNET
from pipeline.architectures.roberta import ROBERTA, XLM_ROBERTA
from pipeline.architectures.static import STATIC
from pipeline.errors import StudentError

ARCHITECTURES: dict[str, Architecture] = {
    row.model_type: row for row in (BERT, DISTILBERT, ALBERT, ROBERTA, XLM_ROBERTA, ELECTRA, MOBILEBERT, MPNET, STATIC)
}
HEADED = tuple(name for name, row in ARCHITECTURES.items() if not row.headless)
"""Architectures behind which the heads of all tasks go; the others are for embeddings alone."""
COMPRESSIBLE = tuple(name for name, row in ARCHITECTURES.items() if not isinstance(row.layout, str))
"""Architectures whose layers can be compressed."""
STARTED = tuple(name for name, row in ARCHITECTURES.items() if row.start)
"""Architectures of which a student can be made of a teacher of another one; kinds of `[start]` go by their names."""
PLAIN_NORMS = tuple(name for row in ARCHITECTURES.values() for name in row.plain_norms)
"""Names of the classes of norms without mean, variance and epsilon."""

UNSUPPORTED = {
    "modernbert": "its local attention needs a second mask and rotary positions, which no graph here builds",
    "deberta-v2": "its disentangled attention gathers by relative position, which XNNPACK does not run",
    "gemma3_text": "its layers have one key-value head for several queries, rotary positions and two kinds of mask",
    "gliner": "its labels are part of the input, and its head gives spans for each of them",
    "jina_bert": "its code comes from the checkpoint, which is not run",
    "new": "its code comes from the checkpoint, which is not run",
    "nomic_bert": "its rotary positions and gated feed-forward have no module here yet",
}
"""Encoders that users bring and that have no module, with the reason."""


def get(model_type: str | None) -> Architecture:
    """Return the architecture of a model type.

    Raises:
        StudentError: there is no such architecture here.
    """
    if model_type not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        reason = UNSUPPORTED.get(model_type or "")
        why = f"It is not supported: {reason}" if reason else "To add one, write a module in pipeline/architectures"
        why += ". `pocketbert recipes` lists encoders of the same uses that convert"
        raise StudentError(f"the checkpoint's model_type is {model_type!r}; supported: {known}. {why}.")
    return ARCHITECTURES[model_type]


def register_classes() -> None:
    """Make known to transformers what it has no class for, before any config is read; to repeat it does no harm."""
    for row in ARCHITECTURES.values():
        if row.register:
            row.register()
