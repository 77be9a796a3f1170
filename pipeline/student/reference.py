"""Reference stage: every text that verification uses, encoded, with the fp32 PyTorch output of the same checkpoint.

Rows run unpadded, through Hugging Face's own forward and mask, and are pooled here in NumPy: nothing of the exported
graph's own code takes part in the truth that it is compared with.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline import tasks
from pipeline.data import datasets as data
from pipeline.errors import InputError
from pipeline.metrics import measures, scoring
from pipeline.metrics.outputs import RowOutputs, first_tokens, overlap, word_spans
from pipeline.metrics.scoring import Labels
from pipeline.tasks import Task
from pipeline.text.bundled import Text, verification_digest, verification_texts
from pipeline.text.encoding import Encoder, Row

VERSION = 3
ONE_TOKEN = "one_token"
"""Kind of rows that hold one token and nothing else; no tokenizer gives them, and every mask has to cope with them."""
_ONE_TOKEN_OF = ("Yes", "7", "\u00e9t\u00e9", "?")
_BATCH = 64

Wanted = Sequence[str | data.Dataset] | None
"""Names from `pipeline.data.datasets`, or a data set of the user's own; None for all that fit the task."""


@dataclass(frozen=True)
class Reference:
    """What verification compares with."""

    task: str
    max_length: int
    pad_token_id: int
    labels: list[str] | None
    """Names of the logits in order, from the checkpoint's config."""
    checkpoint: dict[str, Any]
    """What the structural check expects of a file, see `pipeline.checkpoint.parameters`."""
    texts: list[Text]
    rows: list[Row]
    outputs: RowOutputs
    checked: int
    """The first so many rows are the verification texts; the rest belong to data sets only."""
    datasets: list[Labels]
    skipped: dict[str, str]
    """Data sets that the recipe names and this run could not read, with the reason."""


def chosen_datasets(task: Task, wanted: Wanted) -> tuple[list[data.Dataset], dict[str, str]]:
    """Return the data sets to use, and those left out with the reason.

    Raises:
        InputError: the recipe names data sets and none of them is at hand.
    """
    names = task.datasets if wanted is None else wanted
    rows = [data.DATASETS[one] if isinstance(one, str) else one for one in names if one != "none"]
    skipped = {row.name: reason for row in rows if (reason := row.absent())}
    usable = [row for row in rows if row.name not in skipped]
    if wanted and rows and not usable:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise InputError(f"no labelled data for {task.name}: {reasons}.{data.data_folder_note()}")
    return usable, skipped


def order_params(task: Task, wanted: Wanted, max_length: int) -> dict[str, Any]:
    """Return what decides the reference's content."""
    usable, skipped = chosen_datasets(task, wanted)
    return {
        "task": task.name,
        "max_length": max_length,
        "texts": verification_digest(),
        "datasets": {row.name: row.digest() for row in usable},
        "skipped": sorted(skipped),
    }


def make(student: Path, task_name: str, wanted: Wanted, max_length: int, out: Path) -> dict[str, Any]:
    """Encode all texts and run the checkpoint over them. Runs in a worker, since it imports torch."""
    from safetensors.numpy import save_file

    from pipeline.checkpoint.loading import load_checkpoint
    from pipeline.checkpoint.parameters import model_structure
    from pipeline.student.stage import label_names

    task = tasks.get(task_name)
    model = load_checkpoint(student, task)
    names = label_names(model.config) if task.has_labels else None
    book = Book(Encoder.from_folder(student, max_length), task, names or [])
    usable, skipped = chosen_datasets(task, wanted)
    for text in verification_texts():
        book.add(text)
    book.add_single_tokens()
    checked = len(book.rows)
    datasets = []
    for dataset in usable:
        misfit = book.misfit(dataset)
        if misfit and wanted and (dataset.name in wanted or dataset in wanted):
            raise InputError(f"data set {dataset.name} does not fit the checkpoint: {misfit}.")
        if misfit:
            skipped[dataset.name] = misfit
        else:
            datasets.append(book.add_dataset(dataset))
    outputs = true_outputs(model, task, book.rows)
    if not measures.all_finite(outputs.values):
        raise InputError("the reference itself gives NaN or infinity; the checkpoint is broken.")
    save_file({"values": outputs.values, "counts": outputs.counts}, out / "outputs.safetensors")
    document = {
        "task": task_name,
        "max_length": max_length,
        "pad_token_id": int(model.config.pad_token_id or 0),
        "labels": names,
        "checkpoint": model_structure(model),
        "checked": checked,
        "texts": [asdict(text) for text in book.texts],
        "rows": [{"ids": row.ids, "types": row.types} for row in book.rows],
        "datasets": [asdict(dataset) for dataset in datasets],
        "skipped": skipped,
    }
    (out / "reference.json").write_text(json.dumps(document, ensure_ascii=True), encoding="utf-8")
    scores = {row.name: (row.metric, scoring.score(task.output_kind, row, outputs), row) for row in datasets}
    summary = {name: {metric: value, "rows": len(row.gold)} for name, (metric, value, row) in scores.items()}
    return {"rows": len(book.rows), "checked_rows": checked, "datasets": summary, "skipped": skipped}


def read(folder: Path) -> Reference:
    """Read a reference artifact."""
    from safetensors.numpy import load_file

    document = json.loads((folder / "reference.json").read_text(encoding="utf-8"))
    return Reference(
        task=document["task"],
        max_length=document["max_length"],
        pad_token_id=document["pad_token_id"],
        labels=document["labels"],
        checkpoint=document["checkpoint"],
        texts=[Text(**text) for text in document["texts"]],
        rows=[Row(tuple(row["ids"]), tuple(row["types"])) for row in document["rows"]],
        outputs=RowOutputs(**load_file(folder / "outputs.safetensors")),
        checked=document["checked"],
        datasets=[Labels(**dataset) for dataset in document["datasets"]],
        skipped=document["skipped"],
    )


Example = tuple[int, int | None, Any]
"""Row, the other row of a compared pair, and what is right."""


class Book:
    """Texts and their rows, each once, and what the labelled data say of them."""

    def __init__(self, encoder: Encoder, task: Task, names: Sequence[str]) -> None:
        self.encoder = encoder
        self.task = task
        self.names = names
        self.texts: list[Text] = []
        self.rows: list[Row] = []
        self._known: dict[tuple[str, str | None, int | None], int] = {}

    def add(self, text: Text, row: Row | None = None) -> int:
        """Return the number of a text's row; a new text is encoded, unless its row is given."""
        key = (text.first, text.second, text.window)
        if key not in self._known:
            self._known[key] = self._append(text, row or self.encoder.encode(text.first, text.second))
        return self._known[key]

    def _append(self, text: Text, row: Row) -> int:
        self.texts.append(text)
        self.rows.append(row)
        return len(self.rows) - 1

    def add_single_tokens(self) -> None:
        """Take one token out of the middle of a few encoded words; the same words in a data set are other rows."""
        for number, word in enumerate(_ONE_TOKEN_OF):
            ids = self.encoder.encode(word).ids
            self._append(Text(f"{ONE_TOKEN}-{number}", ONE_TOKEN, word), Row((ids[len(ids) // 2],), (0,)))

    def misfit(self, dataset: data.Dataset) -> str | None:
        """Say why a data set's labels are not the checkpoint's, or return None."""
        found = dataset.label_ids(self.names) if self.task.has_labels else []
        return found if isinstance(found, str) else None

    def add_dataset(self, dataset: data.Dataset) -> Labels:
        """Add a data set's texts, and return its labels in the checkpoint's numbers."""
        ids = dataset.label_ids(self.names) if self.task.has_labels else []
        assert not isinstance(ids, str)
        build = {"embedding": self._compared, "token_logits": self._tagged, "spans": self._asked}
        make = build.get(self.task.output_kind, self._plain)
        rows, second, gold = [], [], []
        for example in dataset.load():
            row, other, label = make(dataset, example, ids)
            rows.append(row)
            gold.append(label)
            second += [] if other is None else [other]
        return Labels(dataset.name, rows, second or None, gold, dataset.metric, list(self.names))

    def _row(
        self,
        dataset: data.Dataset,
        first: str,
        second: str | None,
        row: Row | None = None,
        window: int | None = None,
    ) -> int:
        return self.add(Text(f"{dataset.name}-{len(self.texts)}", dataset.name, first, second, window), row)

    def _plain(self, dataset: data.Dataset, example: data.Labelled, ids: list[int]) -> Example:
        label = float(ids[int(example.label)]) if ids else example.label
        return self._row(dataset, example.first, example.second), None, label

    def _compared(self, dataset: data.Dataset, example: data.Labelled, ids: list[int]) -> Example:
        other = self._row(dataset, example.second or "", None)
        return self._row(dataset, example.first, None), other, example.label

    def _tagged(self, dataset: data.Dataset, example: data.Labelled, ids: list[int]) -> Example:
        row, offsets = self.encoder.encode_with_offsets(example.first)
        at = first_tokens(word_spans(example.first), offsets)
        gold = {"at": at, "tags": [ids[tag] for tag in example.tags]}
        return self._row(dataset, example.first, None, row), None, gold

    def _asked(self, dataset: data.Dataset, example: data.Labelled, ids: list[int]) -> Example:
        passage = example.second or ""
        stride = overlap(self.encoder.max_length)
        windows = self.encoder.windows(example.first, passage, stride=stride)
        numbers = [
            self._row(dataset, example.first, passage, window.row, number) for number, window in enumerate(windows)
        ]
        offsets = [window.offsets for window in windows]
        gold = {"windows": numbers, "offsets": offsets, "passage": passage, "answers": list(example.answers)}
        return numbers[0], None, gold


def true_outputs(model: Any, task: Task, rows: Sequence[Row]) -> RowOutputs:
    """Run a checkpoint over rows. Rows of one length share a batch, so that none is padded."""
    import torch

    by_length: dict[int, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        by_length[len(row)].append(number)
    outputs: dict[int, NDArray[np.float32]] = {}
    with torch.no_grad():
        for numbers in by_length.values():
            for start in range(0, len(numbers), _BATCH):
                batch = numbers[start : start + _BATCH]
                result = model(**_tensors([rows[number] for number in batch], model))
                outputs.update(zip(batch, task.truth(result), strict=True))
    return RowOutputs.of([outputs[number] for number in range(len(rows))])


def _tensors(rows: Sequence[Row], model: Any) -> Mapping[str, Any]:
    """Return int64 tensors `(batch, seq_len)` for rows of one length."""
    import torch

    from pipeline.checkpoint import architectures

    ids = torch.tensor([row.ids for row in rows])
    tensors = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.tensor([row.types for row in rows]),
    }
    return {name: tensors[name] for name in architectures.get(model.config.model_type).inputs}
