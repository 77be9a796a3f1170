"""The students of `make support`: published sizes with random weights, and the bundled one."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline import architectures, tasks
from pipeline.atomic import write_aside
from pipeline.checkpoint import source as students
from pipeline.recipe import loading as recipes

REPOSITORY = Path(__file__).resolve().parent.parent
BUILD = REPOSITORY / "build" / "support"
LABELS = ("negative", "neutral", "positive")
BERT_BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}


@dataclass(frozen=True)
class Case:
    """One student: a published size with random weights, or the bundled one."""

    name: str
    architecture: str
    task: str
    config: dict[str, Any] = field(default_factory=dict)
    """Over the config class's defaults, which are the published base size of most."""
    bundled: bool = False
    timed: bool = False
    """Whether the files are also timed, which tells what they take in memory."""


CASES = (
    Case("MiniLM-L6 (bundled, trained)", "bert", "embedding", bundled=True),
    Case("BERT-base", "bert", "classification", BERT_BASE),
    Case(
        "TinyBERT-4",
        "bert",
        "classification",
        {"hidden_size": 312, "num_hidden_layers": 4, "num_attention_heads": 12, "intermediate_size": 1200},
    ),
    Case("TinyBERT-6", "bert", "regression", BERT_BASE | {"num_hidden_layers": 6}),
    Case("DistilBERT", "distilbert", "question_answering"),
    Case(
        "ALBERT-base",
        "albert",
        "classification",
        BERT_BASE | {"embedding_size": 128, "hidden_act": "gelu_new", "vocab_size": 30000},
        timed=True,
    ),
    Case(
        "RoBERTa-base",
        "roberta",
        "token_classification",
        BERT_BASE | {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1},
    ),
    Case("MobileBERT", "mobilebert", "question_answering"),
    Case(
        "ELECTRA-small",
        "electra",
        "token_classification",
        {"embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
    ),
    Case(
        "XLM-R, MiniLM-L6 size",
        "xlm-roberta",
        "embedding",
        {
            "vocab_size": 250002,
            "hidden_size": 384,
            "num_hidden_layers": 6,
            "num_attention_heads": 12,
            "intermediate_size": 1536,
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
        },
    ),
)
"""Sources: the published config.json of google-bert/bert-base-uncased, huawei-noah/TinyBERT_General_{4L_312D,6L_768D},
distilbert-base-uncased, albert-base-v2, roberta-base, google/mobilebert-uncased, google/electra-small-discriminator,
microsoft/Multilingual-MiniLM-L12-H384 (six of its layers)."""


def slug(case: Case) -> str:
    """Return a case's name for folders."""
    return "".join(letter if letter.isalnum() else "-" for letter in case.name.lower()).strip("-")


def write_source(case: Case, place: Path) -> None:
    """Write a random checkpoint of the published size, with the bundled student's tokenizer. Imports torch."""
    import torch
    import transformers

    options: dict[str, Any] = dict(case.config)
    if tasks.get(case.task).has_labels:
        options |= {"id2label": dict(enumerate(LABELS)), "label2id": {name: i for i, name in enumerate(LABELS)}}
    elif case.task == "regression":
        options |= {"num_labels": 1}
    if architectures.get(case.architecture).positions_after_padding:
        options |= {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    config = transformers.AutoConfig.for_model(case.architecture, **options)
    torch.manual_seed(0)
    model = getattr(transformers, tasks.get(case.task).auto_class).from_config(config)
    tokenizer = students.find(*recipes.read_recipe("minilm")).folder / "tokenizer.json"
    with write_aside(place) as aside:
        model.save_pretrained(aside)
        if case.config.get("vocab_size", 30522) < 30522:
            text = shortened(tokenizer, case.config["vocab_size"])
            aside.joinpath("tokenizer.json").write_text(text, encoding="utf-8")
        else:
            shutil.copyfile(tokenizer, aside / "tokenizer.json")


def shortened(tokenizer: Path, size: int) -> str:
    """Return a WordPiece tokenizer without its last, rarest pieces: ALBERT's table has 30,000 rows."""
    document = json.loads(tokenizer.read_text(encoding="utf-8"))
    document["model"]["vocab"] = {
        piece: number for piece, number in document["model"]["vocab"].items() if number < size
    }
    return json.dumps(document, ensure_ascii=False)
