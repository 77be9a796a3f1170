"""The rows of COMPRESSION.md: MiniLM made smaller on public data. Budgets are for two cores without a GPU."""

from collections.abc import Mapping
from typing import Any

from benchmarks.trials import FAST, Bound, Row, Table

_THREE = (0, 1, 2)
_SHORT = FAST | {"max_length": 64}

# A small model takes a higher rate than BERT-base does: Turc et al. 2019 search 3e-5 to 3e-4 for their miniatures.
_SST2 = {"dataset": "sst2", "epochs": 2.0, "learning_rate": 1e-4} | _SHORT
_COLA = {"dataset": "cola", "epochs": 5.0, "learning_rate": 1e-4} | _SHORT
_RTE = {"dataset": "rte", "epochs": 5.0, "learning_rate": 5e-5} | FAST
_STSB = {"dataset": "stsb", "epochs": 5.0, "learning_rate": 1e-4} | FAST
_WNUT17 = {"dataset": "wnut17", "epochs": 5.0, "learning_rate": 2e-4} | FAST
_SENTENCES = {"dataset": "stsb", "epochs": 5.0, "learning_rate": 1e-4} | _SHORT
"""STS-B's training sentences, each by itself and without its score."""

# The hidden states of all layers besides the outputs: Xia et al. 2022 (CoFi), section 2.3.
_CLASSES = {"losses": {"soft_targets": 1.0, "hidden": 1.0}}
_HALF_LABELS = _SST2 | {"losses": {"soft_targets": 1.0}, "alpha": 0.5, "temperature": 2.0}
_NUMBER = {"losses": {"logits_mse": 1.0, "hidden": 1.0}}
_BY_TEXT = {"sentence_cosine": 1.0, "similarity": 1.0}
"""They compare whole texts, so that the tokens may differ."""
_VECTORS = {"losses": _BY_TEXT | {"hidden": 1.0}}
_WORDS = {"corpus": ["stsb", "sst2", "cola", "rte", "wnut17"], "keep": 0.5}


def _pruned(compute: float) -> dict[str, Mapping[str, Any]]:
    """Return the section that leaves a part of the encoder."""
    return {"prune": {"compute": compute, "max_length": 64}}


def _untrained(name: str, said: str, task: str, compute: float, teacher: str, **more: Any) -> Row:
    """Return a student pruned without training."""
    said = f"{said}, without training"
    pruned = _pruned(compute)
    if task == "embedding":
        pruned = {"prune": {**pruned["prune"], "refine": 0}}
    return Row(name, said, task, pruned, against=teacher, files=True, minutes=6, **more)


def _distilled(
    name: str, said: str, task: str, compute: float, teacher: str, distil: Mapping[str, Any], **more: Any
) -> Row:
    """Return a student pruned, and distilled from the unpruned one."""
    sections = _pruned(compute) | {"distil": distil}
    return Row(name, f"{said}, distilled from the unpruned", task, sections, against=teacher, files=True, **more)


def _task(
    name: str,
    said: str,
    task: str,
    train: dict[str, Any],
    losses: dict[str, Any],
    *,
    minutes: float,
    begin: tuple[str, str] | None = None,
) -> tuple[Row, Row]:
    """Return a fine-tuned teacher and the student with half of its encoder's multiply-adds; one seed each.

    `begin` is the row that the teacher begins with in the place of MiniLM, and what that is.
    """
    dataset, half = str(train["dataset"]), f"{said}: half the encoder"
    source, student = begin or (None, "MiniLM")
    whole = {"train": train | ({"new_head": True} if source else {})}
    more: dict[str, Any] = {"dataset": dataset, "source": name, "minutes": 0.9 * minutes}
    return (
        Row(name, f"{said}: {student}, fine-tuned", task, whole, dataset, source=source, files=True, minutes=minutes),
        _distilled(f"{name}-half", half, task, 0.5, name, train | losses, **more),
    )


_OF_SST2: dict[str, Any] = {"dataset": "sst2", "seeds": _THREE, "source": "sst2"}


def _sentiment(name: str, said: str, compute: float, most_lost: float, minutes: float) -> tuple[Row, Row]:
    task, distil = "classification", _SST2 | _CLASSES
    more = _OF_SST2 | {"bound": Bound(most_lost, "most_lost"), "minutes": minutes}
    return (
        _untrained(f"{name}-untrained", said, task, compute, "sst2", **_OF_SST2),
        _distilled(name, said, task, compute, "sst2", distil, **more),
    )


_SENTIMENT = (
    Row(
        "sst2",
        "MiniLM, fine-tuned",
        "classification",
        {"train": _SST2},
        "sst2",
        _THREE,
        bound=Bound(90.0, "least"),
        files=True,
        minutes=55,
    ),
    *_sentiment("sst2-half", "half the encoder", 0.5, 0.7, 50),
    Row(
        "sst2-half-latency",
        "half of the encoder's milliseconds in LiteRT int8, without training",
        "classification",
        {"prune": {"compute": 0.5, "max_length": 64, "costs": "latency"}},
        "sst2",
        source="sst2",
        against="sst2-half-untrained",
        files=True,
        minutes=6,
    ),
    *_sentiment("sst2-quarter", "a quarter of the encoder", 0.25, 2.5, 40),
    Row(
        "sst2-vocabulary",
        "half the vocabulary, by training text of five datasets",
        "classification",
        {"vocabulary": _WORDS},
        against="sst2",
        bound=Bound(0.2, "most_lost"),
        files=True,
        minutes=6,
        **_OF_SST2,
    ),
)

_THREE_LAYERS = (
    Row(
        "minilm-3", "every other layer of MiniLM, to begin with", "embedding", {"start": {"kind": "layers"}}, minutes=1
    ),
    Row(
        "sst2-3-tuned",
        "3 layers, fine-tuned",
        "classification",
        {"train": _SST2},
        "sst2",
        _THREE,
        source="minilm-3",
        against="sst2",
        files=True,
        minutes=30,
    ),
    Row(
        "sst2-3-distilled",
        "3 layers, half labels and half the fine-tuned MiniLM's soft targets",
        "classification",
        {"distil": _HALF_LABELS},
        "sst2",
        _THREE,
        source="minilm-3",
        teacher="sst2",
        against="sst2-3-tuned",
        files=True,
        minutes=35,
    ),
    # What a layer costs besides its products stays when heads and rows leave it, and goes when it leaves. In two steps:
    # three layers and half of each at once kept 86.35 %.
    Row(
        "sst2-quarter-3",
        "half of those 3 layers, which is a quarter of the encoder, distilled from the fine-tuned MiniLM again",
        "classification",
        _pruned(0.5) | {"distil": _HALF_LABELS},
        "sst2",
        _THREE,
        source="sst2-3-distilled",
        teacher="sst2",
        against="sst2",
        bound=Bound(2.5, "most_lost"),
        files=True,
        minutes=20,
    ),
)

_SIMILARITY = (
    # Nothing is asked of the bundled student: the recipe only lays it out.
    Row("stsb", "MiniLM as it is", "embedding", {}, "stsb", files=True, minutes=5),
    _untrained(
        "stsb-1.4",
        "1.4 × less encoder compute",
        "embedding",
        0.714,
        "stsb",
        dataset="stsb",
        bound=Bound(1.0, "most_lost"),
    ),
    _untrained("stsb-half-untrained", "half the encoder", "embedding", 0.5, "stsb", dataset="stsb"),
    Row(
        "stsb-8mb",
        "`bundled:minilm-8mb`, a quarter of the encoder, distilled from MiniLM and bge-small, as it is",
        "embedding",
        {},
        "stsb",
        student="bundled:minilm-8mb",
        against="stsb-half-untrained",
        files=True,
        minutes=5,
    ),
    Row(
        "stsb-half",
        "half the encoder, distilled from the unpruned on unlabelled text",
        "embedding",
        _pruned(0.5) | {"distil": _SENTENCES | _VECTORS},
        "stsb",
        _THREE,
        against="stsb",
        bound=Bound(1.0, "most_lost"),
        files=True,
        minutes=40,
    ),
    Row(
        "stsb-vocabulary",
        "half the vocabulary, by training text of five datasets",
        "embedding",
        {"vocabulary": _WORDS},
        "stsb",
        against="stsb",
        bound=Bound(0.2, "most_lost"),
        files=True,
        minutes=6,
    ),
    Row(
        "stsb-vocabulary-distilled",
        "half the vocabulary, distilled from the untrimmed on unlabelled text",
        "embedding",
        {"vocabulary": _WORDS, "distil": _SENTENCES | {"losses": _BY_TEXT}},
        "stsb",
        _THREE,
        against="stsb",
        bound=Bound(0.2, "most_lost"),
        files=True,
        minutes=30,
    ),
    Row(
        "stsb-e128",
        "embeddings factorised to 128, without training",
        "embedding",
        {"factorise": {"embedding": 128}},
        "stsb",
        against="stsb",
        files=True,
        minutes=6,
    ),
)

TASKS: Mapping[str, tuple[Row, Row]] = {
    "CoLA": _task("cola", "CoLA", "classification", _COLA, _CLASSES, minutes=25),
    "STS-B": _task("stsb-regression", "STS-B as a cross-encoder", "regression", _STSB, _NUMBER, minutes=30),
    # 2,490 rows alone teach it nothing (LOG.md); a task of pairs first, as in Phang et al. 2018 (STILTs).
    "RTE": _task(
        "rte",
        "RTE",
        "classification",
        _RTE,
        _CLASSES,
        minutes=25,
        begin=("stsb-regression", "the cross-encoder of STS-B"),
    ),
    # The records are of the reader that joined sentences, and this says so until they are made again.
    "WNUT17": _task(
        "wnut17", "WNUT17 (1,000 joined rows of 3,394)", "token_classification", _WNUT17, _CLASSES, minutes=20
    ),
}
MACRO: Mapping[str, tuple[str, str]] = {
    "SST-2": ("sst2", "sst2-half"),
    **{title: (teacher.name, half.name) for title, (teacher, half) in TASKS.items()},
}
"""Teacher and student of each task of the macro score."""

SECTIONS: Mapping[str, tuple[Row, ...]] = {
    "SST-2": _SENTIMENT,
    "SST-2 with three layers: distillation against plain fine-tuning, and half of them": _THREE_LAYERS,
    "STS-B as sentence embeddings, no labels": _SIMILARITY,
    "Other tasks, one seed": tuple(row for pair in TASKS.values() for row in pair),
}
"""In the order of the page."""

TABLE = Table(
    "compression",
    tuple(row for rows in SECTIONS.values() for row in rows),
    targets={"litert": ("int8_dynamic",), "coreml": ("int8_weight_only",), "executorch": ("int8_dynamic",)},
    lengths={
        "classification": (32, 64, 128),
        "regression": (32, 64, 128),
        "token_classification": (32, 64, 128),
        "embedding": (32, 64, 128),
    },
    # Not STS-B's partners: an interpreter runs Core ML's files, and takes an hour for their sentences.
    retrieval=("xquad_passages", "rte_premises"),
)
