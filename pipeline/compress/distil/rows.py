"""The texts of a distillation as ids: once, or once for each of two tokenizers."""

from collections.abc import Iterable, Iterator, Sequence

from pipeline.compress.distil import material
from pipeline.compress.distil.material import Material
from pipeline.data import datasets as data
from pipeline.data.datasets import Dataset, Labelled
from pipeline.errors import InputError
from pipeline.recipe.compression import DistilSection
from pipeline.tasks import Task
from pipeline.text.encoding import Encoder
from pipeline.train import examples
from pipeline.train.examples import EncodedExample


def texts(section: DistilSection, task: Task, found: Material) -> list[Labelled]:
    """Return the rows to learn on, in a fixed order; labels are 0 where they come from plain text.

    Embeddings and masked tokens are of single texts, so the texts of a pair are rows of their own there, each once.
    """
    if found.files or found.dataset is None:
        rows = [Labelled(line, None) for line in material.plain(found.files)]
    else:
        rows = found.dataset.load("train")
        if task.output_kind == "embedding" or section.head == "masked_lm":
            singles = dict.fromkeys(text for row in rows for text in (row.first, row.second) if text)
            rows = [Labelled(text, None) for text in singles]
    return data.sample(rows, section.max_rows, seed=section.seed)


def encode(
    encoder: Encoder,
    section: DistilSection,
    task: Task,
    dataset: Dataset | None,
    rows: Sequence[Labelled],
    *,
    labels: Sequence[str],
) -> Iterator[EncodedExample]:
    """Encode rows, with targets where hard labels are asked for.

    Args:
        encoder: of the student or of the teacher.
        section: the settings.
        task: decides what a target is, and that a passage is cut into windows.
        dataset: whose labels they are.
        rows: of `texts`, and their copies.
        labels: names of the head's numbers in order.
    """
    if section.alpha > 0 and dataset is not None:
        return examples.encode(encoder, task, rows, _label_ids(dataset, labels) if task.has_labels else [])
    if task.output_kind == "spans" and section.texts is None:
        return examples.encode(encoder, task, rows, [])
    return (EncodedExample(encoder.encode(row.first, row.second), ()) for row in rows)


def _label_ids(dataset: Dataset, labels: Sequence[str]) -> list[int]:
    found = dataset.label_ids(labels)
    if isinstance(found, str):
        raise InputError(f"data set {dataset.name} does not fit the student: {found}.")
    return found


def check_same_tokens(mine: Encoder, theirs: Encoder, rows: Iterable[tuple[EncodedExample, EncodedExample]]) -> None:
    """Refuse rows that two vocabularies cut otherwise.

    Raises:
        InputError: with the first such row.
    """
    for number, (one, other) in enumerate(rows, 1):
        found, wanted = mine.tokens(one.row), theirs.tokens(other.row)
        if found != wanted:
            at = next((i for i, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), 0)
            raise InputError(
                f"row {number}: the student's vocabulary gives {found[at]!r} where the teacher's gives {wanted[at]!r}; "
                "losses token by token need the same. Trim the vocabulary on these texts, or compare whole texts."
            )
