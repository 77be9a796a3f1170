"""What `make compare` compares: published sizes, the files of each, and the rows that others have published."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.support_cases import BERT_BASE, REPOSITORY, Case, slug
from pipeline.convert.stage import Target
from pipeline.recipe import loading
from pipeline.recipe.schema import Recipe

BUILD = REPOSITORY / "build" / "compare"
RESULTS = REPOSITORY / "benchmarks" / "results" / "compare"
PAGE = REPOSITORY / "benchmarks" / "COMPARISON.md"
TASK = "question_answering"
"""As in 2019: a row has numbers for each token, and no pooled output."""
LENGTHS = (128, 384)
"""Full rows of so many tokens are timed; 384 is the length of question answering in the papers."""
_FILE_LENGTHS = (32, 64, *LENGTHS)
"""Real sentences run at the shorter ones."""
BASE = "BERT-base"
_BERT_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_TINYBERT = {"hidden_size": 312, "num_hidden_layers": 4, "num_attention_heads": 12, "intermediate_size": 1200}
_MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
_ROBERTA = BERT_BASE | {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
_ALBERT = BERT_BASE | {"embedding_size": 128, "hidden_act": "gelu_new", "vocab_size": 30000}

CASES = (
    Case(BASE, "bert", TASK, BERT_BASE),
    Case("DistilBERT", "distilbert", TASK),
    Case("MiniLM-L6", "bert", TASK, _MINILM),
    Case("TinyBERT-4", "bert", TASK, _TINYBERT),
    Case("MobileBERT", "mobilebert", TASK),
    Case("ALBERT-base", "albert", TASK, _ALBERT),
    Case("RoBERTa-base", "roberta", TASK, _ROBERTA),
    Case("BERT-large", "bert", TASK, _BERT_LARGE),
)
"""The base first, which stands beside each other one; the largest last. Sources: the published config.json of each, as
in `support_cases`, and google-bert/bert-large-uncased, nreimers/MiniLM-L6-H384-uncased."""

TIMED = (
    Target("litert", "fp32"),
    Target("litert", "int8_dynamic"),
    Target("executorch", "fp32"),
    Target("executorch", "int8_dynamic"),
)
"""In this order: both schemes of a format come from one export."""
SIZED = (Target("coreml", "fp16"), Target("coreml", "int8_weight_only"))
"""Timed on a Mac or an iPhone alone."""

MINUTES: Mapping[str, tuple[float, float]] = {
    "BERT-base": (7, 0),
    "DistilBERT": (4, 5),
    "MiniLM-L6": (3, 4),
    "TinyBERT-4": (2, 3),
    "MobileBERT": (12, 6),
    "ALBERT-base": (7, 8),
    "RoBERTa-base": (7, 8),
    "BERT-large": (22, 24),
}
"""Minutes for making the files of a row, and for timing its four cells, on the machine of the page; an estimate."""


def recipe_of(case: Case, checkpoint: str | None) -> Recipe:
    """Return a row's recipe: random weights, or a checkpoint that somebody has at hand."""
    targets: dict[str, Any] = {}
    for target in (*TIMED, *SIZED):
        targets.setdefault(target.backend, {"schemes": []})["schemes"].append(target.scheme)
        if target in SIZED:
            # An entry point each; sentences are not timed in them.
            targets[target.backend]["sequence_lengths"] = list(LENGTHS)
    values: dict[str, Any] = {
        "name": slug(case),
        "task": case.task,
        "student": {"source": checkpoint or str(source_of(case)), "random_weights": checkpoint is None},
        "convert": {"sequence_lengths": list(_FILE_LENGTHS)},
        "targets": targets,
    }
    return loading.checked(values, PAGE)


def source_of(case: Case) -> Path:
    """Return the folder of a row's random checkpoint."""
    return BUILD / "sources" / slug(case)


@dataclass(frozen=True)
class Published:
    """A row of somebody's paper or page, in his words and units."""

    model: str
    machine: str
    setting: str
    result: str
    source: str


PUBLISHED = (
    Published(
        "BERT-base, SQuAD",
        "iPhone 7 Plus, Core ML, 2019",
        "inference alone",
        "1.118 s ± 5.9 %; 1.583 s with tokenisation",
        "huggingface/swift-coreml-transformers, model_generation/distilbert-performance.md",
    ),
    Published(
        "DistilBERT, SQuAD",
        "iPhone 7 Plus, Core ML, 2019",
        "inference alone, 10 runs",
        "0.319 s ± 0.55 %: 71.5 % less time; 207 MB",
        "the same page; arXiv 1910.01108, section 3 (71 %)",
    ),
    Published(
        "BERT-base / DistilBERT / ELMo",
        "Xeon E5-2690 v3, 2019",
        "one pass over STS-B dev, batch 1",
        "668 s / 410 s / 895 s",
        "arXiv 1910.01108, table 3",
    ),
    Published("TinyBERT-4", "GPU", "against BERT-base", "7.5 × smaller, 9.4 × faster", "arXiv 1909.10351, abstract"),
    Published(
        "MobileBERT",
        "Pixel 4, TFLite",
        "128 tokens",
        "62 ms; 4.3 × smaller and 5.5 × faster than BERT-base",
        "arXiv 2004.02984, abstract",
    ),
    Published("BERT-base", "Pixel 3", "not said", "1.7 s", "arXiv 2006.11316, abstract"),
    Published(
        "MobileBERT, SQuAD, fp32",
        "Pixel 3 / Pixel 4, TFLite, 4 threads",
        "384 tokens",
        "123 ms / 74 ms; 100.5 MB",
        "tensorflow/tensorflow, lite/g3doc/examples/bert_qa/overview.md",
    ),
    Published(
        "BERT-base / DistilBERT / ALBERT-base / MobileBERT",
        "Galaxy S25, TFLite, float, NPU",
        "384 tokens, masked-LM head",
        "12.39 / 8.48 / 12.43 / 15.12 ms",
        "Qualcomm AI Hub Models v0.46.1, perf.yaml",
    ),
    Published(
        "DistilBERT",
        "iPhone 13, Neural Engine",
        "128 tokens",
        "3.47 ms at 0.454 W",
        "machinelearning.apple.com/research/neural-engine-transformers",
    ),
    Published(
        "MiniLM-L6, fp16 / int8",
        "iPhone 16, Core ML, CPU",
        "3 + 20 runs",
        "1.256 / 1.277 ms; peak 122 / 102 MB",
        "software-mansion/react-native-executorch#1465",
    ),
)
