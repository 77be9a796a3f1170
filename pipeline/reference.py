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

from pipeline import data, metrics, tasks
from pipeline.encoding import Encoder, Row
from pipeline.errors import InputError
from pipeline.tasks import Task

VERSION = 2
ONE_TOKEN = "one_token"
"""Kind of rows that hold one token and nothing else; no tokenizer gives them, and every mask has to cope with them."""
_ONE_TOKEN_OF = ("Yes", "7", "\u00e9t\u00e9", "?")
_BATCH = 64


@dataclass(frozen=True)
class Labels:
    """A labelled data set as indices into the reference's rows."""

    name: str
    first: list[int]
    second: list[int] | None
    """For graded pairs of embeddings: the other sentence."""
    labels: list[float]
    metric: str
    chance: float
    truth: float
    """The metric of the reference itself."""


@dataclass(frozen=True)
class Reference:
    """What verification compares with."""

    task: str
    max_length: int
    pad_token_id: int
    labels: list[str] | None
    """Names of the logits in order, from the checkpoint's config."""
    checkpoint: dict[str, Any]
    """What the structural check expects of a file, see `pipeline.facts`."""
    texts: list[data.Text]
    rows: list[Row]
    outputs: NDArray[np.float32]
    """`(rows, width)`."""
    checked: int
    """The first so many rows are the verification texts; the rest belong to data sets only."""
    datasets: list[Labels]
    skipped: dict[str, str]
    """Data sets that the recipe names and this run could not read, with the reason."""


def chosen_datasets(task: Task, wanted: Sequence[str] | None) -> tuple[list[data.Dataset], dict[str, str]]:
    """Return the data sets to use, and those left out with the reason.

    Raises:
        InputError: the recipe names data sets and none of them is at hand.
    """
    names = task.datasets if wanted is None else wanted
    rows = [data.DATASETS[name] for name in names if name != "none"]
    skipped = {row.name: reason for row in rows if (reason := row.absent())}
    usable = [row for row in rows if row.name not in skipped]
    if rows and not usable:
        raise InputError(
            f"no labelled data for {task.name}: " + "; ".join(f"{k}: {v}" for k, v in skipped.items()) + "."
        )
    return usable, skipped


def order_params(task: Task, wanted: Sequence[str] | None, max_length: int) -> dict[str, Any]:
    """Return what decides the reference's content."""
    usable, skipped = chosen_datasets(task, wanted)
    return {
        "task": task.name,
        "max_length": max_length,
        "texts": data.verification_digest(),
        "datasets": {row.name: row.digest() for row in usable},
        "skipped": sorted(skipped),
    }


def make(student: Path, task_name: str, wanted: Sequence[str] | None, max_length: int, out: Path) -> dict[str, Any]:
    """Encode all texts and run the checkpoint over them. Runs in a worker, since it imports torch."""
    from safetensors.numpy import save_file

    from pipeline.checkpoint import load_checkpoint
    from pipeline.facts import checkpoint_facts
    from pipeline.student import label_names

    task = tasks.get(task_name)
    model = load_checkpoint(student, task)
    encoder = Encoder.from_folder(student, max_length)
    usable, skipped = chosen_datasets(task, wanted)
    texts = data.verification_texts()
    index = {(text.first, text.second): number for number, text in enumerate(texts)}
    single = _one_token_rows(encoder)
    texts += [text for text, _ in single]
    checked = len(texts)
    plans = [_plan(row, task, texts, index) for row in usable]
    singles = {text.id: row for text, row in single}
    rows = [singles.get(text.id) or encoder.encode(text.first, text.second) for text in texts]
    outputs = true_outputs(model, task, rows)
    if not metrics.all_finite(outputs):
        raise InputError("the reference itself gives NaN or infinity; the checkpoint is broken.")
    datasets = [_labels(task, dataset, plan, outputs) for dataset, plan in zip(usable, plans, strict=True)]
    save_file({"outputs": outputs}, out / "outputs.safetensors")
    document = {
        "task": task_name,
        "max_length": max_length,
        "pad_token_id": int(model.config.pad_token_id or 0),
        "labels": label_names(model.config) if task.output_kind == "logits" else None,
        "checkpoint": checkpoint_facts(model),
        "checked": checked,
        "texts": [asdict(text) for text in texts],
        "rows": [asdict(row) for row in rows],
        "datasets": [asdict(dataset) for dataset in datasets],
        "skipped": skipped,
    }
    (out / "reference.json").write_text(json.dumps(document, ensure_ascii=True), encoding="utf-8")
    summary = {dataset.name: {dataset.metric: dataset.truth, "rows": len(dataset.labels)} for dataset in datasets}
    return {"rows": len(rows), "checked_rows": checked, "datasets": summary, "skipped": skipped}


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
        texts=[data.Text(**text) for text in document["texts"]],
        rows=[Row(tuple(row["ids"]), tuple(row["types"])) for row in document["rows"]],
        outputs=load_file(folder / "outputs.safetensors")["outputs"],
        checked=document["checked"],
        datasets=[Labels(**dataset) for dataset in document["datasets"]],
        skipped=document["skipped"],
    )


def _one_token_rows(encoder: Encoder) -> list[tuple[data.Text, Row]]:
    """Take one token out of the middle of a few encoded words."""
    rows = []
    for number, word in enumerate(_ONE_TOKEN_OF):
        ids = encoder.encode(word).ids
        text = data.Text(f"{ONE_TOKEN}-{number}", ONE_TOKEN, word)
        rows.append((text, Row((ids[len(ids) // 2],), (0,))))
    return rows


Plan = tuple[list[int], list[int] | None, list[float]]


def _plan(dataset: data.Dataset, task: Task, texts: list[data.Text], index: dict[tuple[str, str | None], int]) -> Plan:
    """Append a data set's texts to the rows, each text once, and return the indices and labels."""
    labelled = dataset.load()

    def number(first: str, second: str | None) -> int:
        if (first, second) not in index:
            index[first, second] = len(texts)
            texts.append(data.Text(f"{dataset.name}-{len(texts)}", dataset.name, first, second))
        return index[first, second]

    if task.output_kind == "embedding":
        pairs = [(number(row.first, None), number(row.second or "", None)) for row in labelled]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs], [row.label for row in labelled]
    return [number(row.first, row.second) for row in labelled], None, [row.label for row in labelled]


def _labels(task: Task, dataset: data.Dataset, plan: Plan, outputs: NDArray[np.float32]) -> Labels:
    first, second, labels = plan
    truth = task_metric(task.metric, first, second, labels, outputs)
    chance = metrics.chance_level(task.metric, np.asarray(labels))
    return Labels(dataset.name, first, second, labels, task.metric, chance, truth)


def task_metric(
    metric: str, first: list[int], second: list[int] | None, labels: list[float], outputs: NDArray[np.float32]
) -> float:
    """Return a task metric of some outputs `(rows, width)`; pairs of embeddings are scored by their cosine."""
    return metrics.TASK_METRICS[metric](task_scores(first, second, outputs), np.asarray(labels))


def task_scores(first: list[int], second: list[int] | None, outputs: NDArray[np.float32]) -> NDArray[np.floating]:
    """Return what a task metric is computed from: logits `(rows, classes)`, or the cosines `(rows,)` of pairs."""
    return outputs[first] if second is None else metrics.cosine(outputs[first], outputs[second])


def true_outputs(model: Any, task: Task, rows: Sequence[Row]) -> NDArray[np.float32]:
    """Run a checkpoint over rows, `(rows, width)`. Rows of one length share a batch, so that none is padded."""
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
    return np.stack([outputs[number] for number in range(len(rows))])


def _tensors(rows: Sequence[Row], model: Any) -> Mapping[str, Any]:
    """Return int64 tensors `(batch, seq_len)` for rows of one length."""
    import torch

    from pipeline import architectures

    ids = torch.tensor([row.ids for row in rows])
    tensors = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.tensor([row.types for row in rows]),
    }
    return {name: tensors[name] for name in architectures.get(model.config.model_type).inputs}
