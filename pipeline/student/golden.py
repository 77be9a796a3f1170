"""Golden rows: a few texts with their ids and true outputs, which ship with every file and which both apps replay."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict
from tokenizers import Tokenizer

from pipeline import architectures, strict
from pipeline.heads.sentence import SentenceHead
from pipeline.metrics.measures import Floats
from pipeline.metrics.outputs import overlap
from pipeline.schemes import Gates
from pipeline.student.outputs import reference_outputs
from pipeline.tasks import Task
from pipeline.text.encoding import Encoder, Row, Window
from pipeline.text.prompts import Prompts

GOLDEN = "golden.json"
TEXTS: tuple[tuple[str, str | None], ...] = (
    ("Thanks!", None),
    ("A man is playing a guitar.", None),
    ("The quick brown fox jumps over the lazy dog.", None),
    ("Crème brûlée, naïve façade — jalapeño & Zürich.", None),
    ("I\u0307stanbul'da \u0131l\u0131k bir akşam, Cafe\u0301 aç\u0131k.", None),
    ("今天天气很好\uff0c我们去公园吧。", None),
    ("مرحبا بالعالم", None),
    ("👩‍👩‍👧 family, 🇫🇷 flag, 👍🏽 thumb", None),
    ("zero\u200bwidth\u00a0space\tand\u0007bell", None),
    ("Donaudampfschifffahrtsgesellschaftskapitän" * 4, None),
    ("Price: $1,299.99 (50% off) at https://example.org/a?b=c#d", None),
    ("", None),
    ("Is the shop open on Sunday?", "It is closed on Sundays and public holidays."),
    ("The train was late again, so we took the bus and walked the last part of the way. " * 12, None),
)
"""Short and long, accents composed and not, scripts, joiners, control characters, a pair, a truncated text."""

_QUESTIONS: tuple[tuple[str, str | None], ...] = (
    (
        "When does the café on the corner open?",
        "The café on the corner has changed hands twice. Its first owner kept it closed on Mondays. " * 8
        + "Since last spring it opens at half past seven, and the bakery beside it an hour earlier. "
        + "On Sundays nobody is there before noon. " * 6,
    ),
    ("Who wrote the letter?", "The letter was written by Ana Sørensen in 1907."),
)
"""A passage that needs several windows, and one that fits a row; for question answering alone."""

_PROMPTED = ("A man is playing a guitar.", "When does the café on the corner open?")
"""Texts that come once more behind each prompt of an embedding model."""


@dataclass(frozen=True)
class Sample:
    """A text, a pair, a window over a passage, or a text behind a prompt."""

    first: str
    second: str | None = None
    window: int | None = None
    prompt: str | None = None
    """Name of the prompt before `first`; None for none."""


_ANOTHER_PROCESSOR = 3e-4
"""Largest difference of outputs between two processors, of their root mean square: 1.2e-5 was measured."""
_LENGTH = 128
"""Rows are truncated to this length, or the model's if it is shorter; an app skips rows that its file cannot take."""


class GoldenRow(BaseModel):
    """One text with the ids and outputs that a correct implementation gives."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    first: str
    second: str | None
    window: int | None
    """Number of the window over the passage `second`; None for the text as a whole."""
    prompt: str | None = None
    """Name of the prompt before `first`; None for none, not even the default one."""
    input_ids: list[int]
    token_type_ids: list[int]
    output: list[float]
    """The fp32 reference of the unpadded row; token after token for tasks that have outputs for each token."""


class Golden(BaseModel):
    """The content of `golden.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: Literal[1] = 1
    task: str
    max_length: int
    min_cosine: float | None
    """The target's gate for its worst row; None for the student itself."""
    min_sqnr_db: float | None
    rows: list[GoldenRow]

    def is_of(self, student: "Golden") -> bool:
        """Return whether these are a student's rows: its texts and ids, and its outputs as any processor has them."""
        return self._shape() == student._shape() and _agree(self._outputs(), student._outputs())

    def _shape(self) -> tuple[object, ...]:
        """Return all that no arithmetic decides."""
        rows = [(row.model_copy(update={"output": []}), len(row.output)) for row in self.rows]
        return self.task, self.max_length, rows

    def _outputs(self) -> list[Floats]:
        return [np.array(row.output) for row in self.rows]


def _agree(found: list[Floats], reference: list[Floats]) -> bool:
    """Return whether outputs are near each other, against the size of the row or, if the row is small, of all rows."""
    usual = float(np.sqrt(np.mean(np.square(np.concatenate(reference)))))
    sizes = (max(usual, float(np.sqrt(np.mean(np.square(row))))) for row in reference)
    # Written so that NaN does not agree.
    return all(
        bool((np.abs(one - other) <= _ANOTHER_PROCESSOR * size).all())
        for one, other, size in zip(found, reference, sizes, strict=True)
    )


def make(model: Any, task: Task, tokenizer: Tokenizer, head: SentenceHead) -> Golden:
    """Return the golden rows of a checkpoint with its own outputs.

    A text without tokens, such as an empty one where there are no special tokens, is left out: its embedding is zero,
    and apps compare by cosine.
    """
    limit = architectures.get(model.config.model_type).max_length(model.config.to_dict())
    length = min(_LENGTH, limit, head.max_seq_length or limit)
    encoder = Encoder(tokenizer, length)
    questions = _QUESTIONS if task.output_kind == "spans" else ()
    samples = [Sample(*text) for text in TEXTS]
    samples += [Sample(*text, window) for text in questions for window in range(len(_windows(encoder, *text)))]
    samples += [Sample(text, prompt=name) for name in head.prompts for text in _PROMPTED]
    encoded = [(sample, row) for sample in samples if len(row := encode(encoder, sample, head.wanted))]
    outputs = reference_outputs(model, task, [row for _, row in encoded])
    tokenizer.no_truncation()
    return Golden(
        task=task.name,
        max_length=length,
        min_cosine=None,
        min_sqnr_db=None,
        rows=[_row(sample, row, output) for (sample, row), output in zip(encoded, outputs, strict=True)],
    )


def encode(encoder: Encoder, sample: Sample | GoldenRow, prompts: Prompts) -> Row:
    """Return the row of a text, a pair, a window over a passage, or a text behind a prompt."""
    if sample.prompt is not None:
        return encoder.encode_prompted(prompts.text(sample.prompt), sample.first, pooled=prompts.pooled)
    if sample.window is None:
        return encoder.encode(sample.first, sample.second)
    return _windows(encoder, sample.first, sample.second)[sample.window].row


def _windows(encoder: Encoder, question: str, passage: str | None) -> list[Window]:
    return encoder.windows(question, passage or "", stride=overlap(encoder.max_length))


def _row(sample: Sample, row: Row, output: Any) -> GoldenRow:
    rounded = [float(np.float32(f"{value:.7g}")) for value in output.ravel()]
    return GoldenRow(
        first=sample.first,
        second=sample.second,
        window=sample.window,
        prompt=sample.prompt,
        input_ids=list(row.ids),
        token_type_ids=list(row.types),
        output=rounded,
    )


def read(folder: Path) -> Golden:
    """Read the golden rows of a student or model folder.

    Raises:
        OSError: there are none.
        ValueError: they are not what an app's parser takes for golden rows.
    """
    return strict.read(Golden, (folder / GOLDEN).read_bytes())


def write_for_target(student: Path, out: Path, gates: Gates) -> None:
    """Copy the student's golden rows beside a converted file, with the tolerance that its gates set."""
    golden = read(student).model_copy(update={"min_cosine": gates.min_worst_cosine, "min_sqnr_db": gates.min_sqnr_db})
    text = json.dumps(golden.model_dump(), ensure_ascii=True, indent=1)
    (out / GOLDEN).write_text(text + "\n", encoding="utf-8")
