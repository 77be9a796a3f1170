"""Reference stage: every text that verification uses, encoded, with the fp32 PyTorch output of the same checkpoint.

Rows run unpadded, through Hugging Face's own forward and mask, and are pooled here in NumPy: nothing of the exported
graph's own code takes part in the reference that it is compared with.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline import tasks
from pipeline.data.datasets import DATASETS, Dataset, Labelled, data_folder_note
from pipeline.data.retrieval import Source
from pipeline.errors import InputError
from pipeline.heads import sentence
from pipeline.heads.sentence import DEFAULT
from pipeline.metrics import measures, ranking, scoring
from pipeline.metrics.outputs import RowOutputs, first_tokens, overlap, word_spans
from pipeline.metrics.ranking import Judgements
from pipeline.metrics.scoring import Labels
from pipeline.student import thresholds
from pipeline.student.outputs import label_names, reference_outputs
from pipeline.tasks import Task
from pipeline.text.bundled import Text, verification_digest, verification_texts
from pipeline.text.encoding import Encoder, Row
from pipeline.text.prompts import NO_PROMPTS, Prompts

VERSION = 7
OUTPUTS = "outputs.safetensors"
ONE_TOKEN = "one_token"
"""Kind of rows with a single token; no tokenizer makes them, and every mask has to cope with them."""
_PROMPTED = (
    "Is the shop open on Sunday?",
    "The train was late again, so we took the bus.",
    "\u4eca\u5929\u5929\u6c14\u5f88\u597d",
)
"""Sentences that come behind each prompt of an embedding model."""
_ONE_TOKEN_OF = ("Yes", "7", "\u00e9t\u00e9", "?")

DatasetChoice = Sequence[str | Dataset] | None
"""Names of known datasets, or a dataset of the user's own files; None for all that fit the task."""


@dataclass(frozen=True)
class Reference:
    """The texts, rows and outputs that verification compares a file with."""

    task: str
    max_length: int
    pad_token_id: int
    labels: list[str] | None
    """Names of the logits in order, from the checkpoint's config."""
    checkpoint: dict[str, Any]
    """The structure that a converted file has to agree with, see `pipeline.checkpoint.parameters`."""
    texts: list[Text]
    rows: list[Row]
    outputs: RowOutputs
    checked: int
    """How many rows, from the first on, are verification texts; the rest belong to datasets only."""
    datasets: list[Labels]
    skipped: dict[str, str]
    """Datasets and collections that the recipe names and this run could not read, with the reason."""
    collections: list[Judgements] = field(default_factory=list)
    """Collections by which embeddings are judged in search."""


def chosen_datasets(task: Task, choice: DatasetChoice) -> tuple[list[Dataset], dict[str, str]]:
    """Return the datasets to use, and those left out with the reason.

    Raises:
        InputError: the recipe names datasets and none of them can be read.
    """
    names = task.datasets if choice is None else choice
    rows = [DATASETS[one] if isinstance(one, str) else one for one in names if one != "none"]
    skipped = {row.name: reason for row in rows if (reason := row.absent())}
    usable = [row for row in rows if row.name not in skipped]
    if choice and rows and not usable:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise InputError(f"no labelled data for {task.name}: {reasons}.{data_folder_note()}")
    return usable, skipped


def misfit_of(dataset: Dataset, task: Task, labels: Sequence[str]) -> str | None:
    """Return why a dataset's labels are not the checkpoint's, or None if they are."""
    ids = dataset.label_ids(labels) if task.has_labels else []
    return ids if isinstance(ids, str) else None


def order_params(
    task: Task, choice: DatasetChoice, max_length: int, collections: Sequence[Source] = ()
) -> dict[str, Any]:
    """Return the parameters that determine the reference's content."""
    usable, skipped = chosen_datasets(task, choice)
    judged = {"collections": {one.name: one.digest() for one in collections}} if collections else {}
    return judged | {
        "task": task.name,
        "max_length": max_length,
        "texts": verification_digest(),
        "datasets": {row.name: row.digest() for row in usable},
        "skipped": sorted(skipped),
    }


def make(
    student: Path,
    task_name: str,
    choice: DatasetChoice,
    max_length: int,
    out: Path,
    *,
    exempt: bool = True,
    collections: Sequence[Source] = (),
    absent: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Encode all texts and run the checkpoint over them. Runs in a worker, since it imports torch.

    Args:
        student: its laid-out folder.
        task_name: a row of `tasks.py`.
        choice: the datasets of the task metric.
        max_length: tokens at which rows are truncated.
        out: the artifact's folder.
        exempt: whether the checkpoint may be at chance, as one with random weights is.
        collections: those by which an embedding is judged in search.
        absent: collections that the recipe names and that are not there, with the reason.

    Raises:
        InputError: a dataset that the recipe names does not fit the checkpoint, the checkpoint is at chance on one, or
            an output is not finite.
    """
    from safetensors.numpy import save_file

    from pipeline.checkpoint.loading import load_checkpoint
    from pipeline.checkpoint.parameters import model_structure

    task = tasks.get(task_name)
    model = load_checkpoint(student, task)
    names = label_names(model.config) if task.has_labels else None
    head = DEFAULT if task.uses_head else sentence.settings(model)
    book = EncodedTexts(Encoder.from_folder(student, max_length), task, names or [], head.wanted)
    given_from = thresholds.read(student)
    usable, skipped = chosen_datasets(task, choice)
    for text in verification_texts():
        row = book.encoder.encode(text.first, text.second)
        # Without special tokens a text of joiners alone has none; it is zero, as the row of padding that verify runs.
        if len(row):
            book.add(text, row)
    book.add_prompted()
    book.add_single_tokens()
    checked = len(book.rows)
    datasets = []
    for dataset in usable:
        misfit = misfit_of(dataset, task, names or [])
        if misfit and choice and (dataset.name in choice or dataset in choice):
            raise InputError(f"dataset {dataset.name} does not fit the checkpoint: {misfit}.")
        if misfit:
            skipped[dataset.name] = misfit
        else:
            datasets.append(replace(book.add_dataset(dataset), thresholds=given_from))
    skipped |= absent
    judged = [book.add_collection(one) for one in collections]
    outputs = reference_outputs(model, task, book.rows)
    if not measures.all_finite(outputs.values):
        raise InputError("the checkpoint gives NaN or infinity for a text, so no file can be compared with it.")
    if not exempt:
        _check_above_chance(task, datasets, outputs)
    save_file({"values": outputs.values, "counts": outputs.counts}, out / OUTPUTS)
    document = {
        "task": task_name,
        "max_length": max_length,
        "pad_token_id": int(model.config.pad_token_id or 0),
        "labels": names,
        "checkpoint": model_structure(model),
        "checked": checked,
        "texts": [asdict(text) for text in book.texts],
        "rows": [{"ids": row.ids, "types": row.types, "unpooled": row.unpooled} for row in book.rows],
        "datasets": [asdict(dataset) for dataset in datasets],
        "collections": [asdict(one) for one in judged],
        "skipped": skipped,
    }
    (out / "reference.json").write_text(json.dumps(document, ensure_ascii=True), encoding="utf-8")
    summary = {
        row.name: {**scoring.reported(task.output_kind, row, outputs), "rows": len(row.gold)} for row in datasets
    }
    found = {one.name: ranking.means(one, outputs, head.compared_by) for one in judged}
    return {
        "rows": len(book.rows),
        "checked_rows": checked,
        "datasets": summary,
        "retrieval": found,
        "skipped": skipped,
    }


def _check_above_chance(task: Task, datasets: Sequence[Labels], outputs: RowOutputs) -> None:
    """Refuse a checkpoint that knows nothing of a dataset, before hours go into files of it."""
    for row in datasets:
        found, bound = scoring.score(task.output_kind, row, outputs), scoring.above_chance_bound(row)
        if bound >= 1:
            raise InputError(
                f"{row.name} cannot tell any student from luck: on {len(row.gold)} rows like these a model that has "
                f"learnt nothing may reach {row.metric} {bound:.3f}, and no model has more than 1. Nothing was "
                "converted. Give more rows, or more of the rarer labels; or a metric that evens them, such as "
                'train.metric = "matthews"; or name other data in verify.datasets, or ["none"].'
            )
        if found <= bound:
            raise InputError(
                f"the student itself is at chance, in PyTorch: {row.metric} {found:.3f} on {row.name}, and a model "
                f"that has learnt nothing may reach {bound:.3f}. Nothing was converted. Train its head ([train]); or "
                "give its labels in the order of the data, in config.json's id2label; or name other data in "
                'verify.datasets, or ["none"]; or declare weights that were never trained: student.random_weights = '
                "true."
            )


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
        rows=[Row(tuple(row["ids"]), tuple(row["types"]), row["unpooled"]) for row in document["rows"]],
        outputs=RowOutputs(**load_file(folder / OUTPUTS)),
        checked=document["checked"],
        datasets=[Labels(**dataset) for dataset in document["datasets"]],
        skipped=document["skipped"],
        collections=[Judgements(**one) for one in document["collections"]],
    )


Example = tuple[int, int | None, Any]
"""Number of a row, of the other row of a compared pair, and the gold label."""


class EncodedTexts:
    """Texts and their encoded rows, each once, and the labels that datasets give them."""

    def __init__(self, encoder: Encoder, task: Task, names: Sequence[str], prompts: Prompts = NO_PROMPTS) -> None:
        self.encoder = encoder
        self.prompts = prompts
        self.task = task
        self.names = names
        self.texts: list[Text] = []
        self.rows: list[Row] = []
        self._known: dict[tuple[str, str | None, int | None], int] = {}

    def add(self, text: Text, row: Row | None = None) -> int:
        """Return the number of a text's row; a new text is encoded, unless `row` is given."""
        key = (text.first, text.second, text.window)
        if key not in self._known:
            self._known[key] = self._append(text, row or self.encoder.encode(text.first, text.second))
        return self._known[key]

    def _append(self, text: Text, row: Row) -> int:
        self.texts.append(text)
        self.rows.append(row)
        return len(self.rows) - 1

    def add_prompted(self) -> None:
        """Add a few sentences behind each prompt; their texts are the prompt and the sentence in one."""
        for name, prompt in self.prompts.texts.items():
            for number, text in enumerate(_PROMPTED):
                self.add(Text(f"prompt-{name}-{number}", "prompt", prompt + text), self._behind(prompt, text))

    def _behind(self, prompt: str, text: str) -> Row:
        return self.encoder.encode_prompted(prompt, text, pooled=self.prompts.pooled)

    def add_single_tokens(self) -> None:
        """Add rows of one token each, from the middle of encoded words; a dataset's rows of these words differ."""
        for number, word in enumerate(_ONE_TOKEN_OF):
            ids = self.encoder.encode(word).ids
            self._append(Text(f"{ONE_TOKEN}-{number}", ONE_TOKEN, word), Row((ids[len(ids) // 2],), (0,)))

    def add_dataset(self, dataset: Dataset) -> Labels:
        """Add a dataset's texts, and return its labels by the checkpoint's numbers."""
        ids = dataset.label_ids(self.names) if self.task.has_labels else []
        assert not isinstance(ids, str)
        build = {
            "embedding": self._pair,
            "token_logits": self._tags,
            "spans": self._question,
            "multi_label": self._values,
            "values": self._values,
        }
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
        dataset: Dataset,
        first: str,
        second: str | None,
        row: Row | None = None,
        window: int | None = None,
    ) -> int:
        return self.add(Text(f"{dataset.name}-{len(self.texts)}", dataset.name, first, second, window), row)

    def _plain(self, dataset: Dataset, example: Labelled, ids: list[int]) -> Example:
        label = float(ids[int(example.label)]) if ids else example.label
        return self._row(dataset, example.first, example.second), None, label

    def _values(self, dataset: Dataset, example: Labelled, ids: list[int]) -> Example:
        gold = list(example.by_output(ids, len(self.names)))
        return self._row(dataset, example.first, example.second), None, gold

    def _pair(self, dataset: Dataset, example: Labelled, ids: list[int]) -> Example:
        """Encode two texts as sentence-transformers does without being told a prompt: behind the default one."""
        prompt = self.prompts.text(None)
        first, second = (
            self._row(dataset, prompt + text, None, self._behind(prompt, text) if prompt else None)
            for text in (example.first, example.second or "")
        )
        return first, second, example.label

    def add_collection(self, source: Source) -> Judgements:
        """Add the texts of a collection: queries behind the prompt of queries, documents behind that of documents."""
        found = source.load()
        of_queries = self.prompts.text(self.prompts.of_queries)
        of_documents = self.prompts.text(self.prompts.of_documents)
        return Judgements(
            source.name,
            [self._prompted(source.name, of_queries, text) for text in found.queries],
            [self._prompted(source.name, of_documents, text) for text in found.documents],
            [list(relevant.items()) for relevant in found.relevant],
            list(found.itself),
        )

    def _prompted(self, name: str, prompt: str, text: str) -> int:
        row = self._behind(prompt, text) if prompt else None
        return self.add(Text(f"{name}-{len(self.texts)}", name, prompt + text), row)

    def _tags(self, dataset: Dataset, example: Labelled, ids: list[int]) -> Example:
        row, offsets = self.encoder.encode_with_offsets(example.first)
        at = first_tokens(word_spans(example.first), offsets)
        gold = {"at": at, "tags": [ids[tag] for tag in example.tags]}
        return self._row(dataset, example.first, None, row), None, gold

    def _question(self, dataset: Dataset, example: Labelled, ids: list[int]) -> Example:
        passage = example.second or ""
        stride = overlap(self.encoder.max_length)
        windows = self.encoder.windows(example.first, passage, stride=stride)
        numbers = [
            self._row(dataset, example.first, passage, window.row, number) for number, window in enumerate(windows)
        ]
        offsets = [window.offsets for window in windows]
        gold = {"windows": numbers, "offsets": offsets, "passage": passage, "answers": list(example.answers)}
        return numbers[0], None, gold
