"""What `init` took for granted of a checkpoint, one sentence each with the file or option that says so."""

from collections.abc import Iterator

from pipeline import tasks
from pipeline.checkpoint.inspection import Summary
from pipeline.kinds import PoolingMode

_HALF = ("F16", "BF16")
_MANY = 8


def assumptions(summary: Summary, task: str, pooling: PoolingMode | None, longest: int) -> dict[str, str]:
    """Return sentences by what they are about, in the order in which they are shown.

    Args:
        summary: the checkpoint's summary.
        task: the chosen task.
        pooling: of a bare encoder, as it was given; None where the folder says it.
        longest: the largest sequence length of the recipe.
    """
    found: dict[str, str] = {}
    if not tasks.get(task).uses_head:
        found |= dict(_of_an_embedding(summary, pooling))
    if tasks.get(task).has_labels and summary.labels:
        more = f" and {len(summary.labels) - _MANY} more" if len(summary.labels) > _MANY else ""
        found["labels"] = ", ".join(summary.labels[:_MANY]) + more
    found["limit"] = _limit(summary, longest)
    half = [dtype for dtype in summary.dtypes if dtype in _HALF]
    if half:
        found["weights"] = f"stored as {' and '.join(half)}, computed in fp32; that is the reference"
    return found


def _of_an_embedding(summary: Summary, pooling: PoolingMode | None) -> Iterator[tuple[str, str]]:
    if pooling is not None:
        yield "pooling", f"{pooling}, given by --pooling; config.json alone does not say it"
        yield "vectors", "are scaled to unit length, as cosine similarity wants; the folder does not say it"
    else:
        yield "pooling", f"{summary.head}, from {summary.head_file or 'config.json'}"
        length = "have unit length" if summary.normalizes else "keep their lengths, since no Normalize is there"
        yield "vectors", length
    if summary.prompts:
        names = ", ".join(f"{name} ({text.strip()!r})" for name, text in summary.prompts.items())
        if summary.default_prompt:
            use = f"{summary.default_prompt} is put before each text, unless another one is named"
        else:
            use = "none is put before a text unless it is named, as in predict --prompt"
        yield "prompts", f"{names}; {use}"


def _limit(summary: Summary, longest: int) -> str:
    if summary.limit < summary.max_length:
        limit = (
            f"{summary.limit} tokens, where sentence-transformers truncates texts; the encoder takes "
            f"{summary.max_length}"
        )
    else:
        limit = f"{summary.max_length} tokens, the encoder's own"
    return f"{limit}; longer texts than {longest} tokens are cut" if longest < summary.limit else limit
