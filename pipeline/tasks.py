"""Tasks: one row each. To add one, add a row.

A row says which Hugging Face class carries the head, what the outputs are called, and how the result is judged. What
computes them is made from the checkpoint, see `pipeline.heads`.
"""

from dataclasses import dataclass

from pipeline.errors import RecipeError
from pipeline.kinds import KINDS, OutputKind


@dataclass(frozen=True)
class Task:
    """One task: its head, its outputs, and the data that judge it."""

    name: str
    auto_class: str
    """Name of the transformers class that loads checkpoint and head."""
    head_suffix: str
    """Suffix of the model classes with that head, as `architectures` in config.json names them."""
    output_names: tuple[str, ...]
    output_kind: OutputKind
    uses_head: bool
    """False for the bare encoder, whose pooler is left out."""
    datasets: tuple[str, ...]
    """Names of the labelled datasets in `pipeline.data.datasets` that fit the task, best first."""
    least_labels: int | None = None
    """Fewest outputs of the head; None for a bare encoder."""
    most_labels: int | None = None
    """Most outputs of the head; None if there is no limit."""
    problem_type: str | None = None
    """`problem_type` of config.json, which tells tasks of one class apart; None if the class is enough."""

    @property
    def has_labels(self) -> bool:
        """Whether the head's outputs have names, from the checkpoint's `id2label`."""
        return KINDS[self.output_kind].named

    @property
    def widths(self) -> str:
        """How many outputs the head may have, in words."""
        return f"{self.least_labels}" if self.least_labels == self.most_labels else f"{self.least_labels} or more"

    def fits(self, count: int) -> bool:
        """Return whether a head may have `count` outputs."""
        least, most = self.least_labels or 0, self.most_labels
        return least <= count and (most is None or count <= most)


TASKS: dict[str, Task] = {
    row.name: row
    for row in (
        Task(
            "embedding",
            auto_class="AutoModel",
            head_suffix="Model",
            output_names=("sentence_embedding",),
            output_kind="embedding",
            uses_head=False,
            datasets=("graded_pairs", "stsb"),
        ),
        Task(
            "classification",
            auto_class="AutoModelForSequenceClassification",
            head_suffix="ForSequenceClassification",
            output_names=("logits",),
            output_kind="logits",
            uses_head=True,
            datasets=("sentiment", "sst2", "cola", "rte"),
            least_labels=2,
            problem_type="single_label_classification",
        ),
        Task(
            "multi_label_classification",
            auto_class="AutoModelForSequenceClassification",
            head_suffix="ForSequenceClassification",
            output_names=("logits",),
            output_kind="multi_label",
            uses_head=True,
            datasets=(),
            least_labels=1,
            problem_type="multi_label_classification",
        ),
        Task(
            "regression",
            auto_class="AutoModelForSequenceClassification",
            head_suffix="ForSequenceClassification",
            output_names=("logits",),
            output_kind="value",
            uses_head=True,
            datasets=("graded_pairs", "stsb"),
            least_labels=1,
            most_labels=1,
            problem_type="regression",
        ),
        Task(
            "multi_regression",
            auto_class="AutoModelForSequenceClassification",
            head_suffix="ForSequenceClassification",
            output_names=("logits",),
            output_kind="values",
            uses_head=True,
            datasets=(),
            least_labels=2,
            problem_type="regression",
        ),
        Task(
            "token_classification",
            auto_class="AutoModelForTokenClassification",
            head_suffix="ForTokenClassification",
            output_names=("logits",),
            output_kind="token_logits",
            uses_head=True,
            datasets=("wnut17",),
            least_labels=2,
        ),
        Task(
            "question_answering",
            auto_class="AutoModelForQuestionAnswering",
            head_suffix="ForQuestionAnswering",
            output_names=("start_logits", "end_logits"),
            output_kind="spans",
            uses_head=True,
            datasets=("questions", "xquad"),
            least_labels=2,
            most_labels=2,
        ),
    )
}


def get(name: str) -> Task:
    """Return the row of a task.

    Raises:
        RecipeError: there is no such row.
    """
    if name not in TASKS:
        raise RecipeError(f"task {name!r} does not exist; there are: {', '.join(sorted(TASKS))}.")
    return TASKS[name]
