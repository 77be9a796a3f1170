"""Tiny students in which everything matters: with Hugging Face's own 0.02, exchanging query and key hardly shows.

Weights keep the variance of what flows through them, queries and keys are larger so that attention is peaked, and
biases, gains, positions and token types are far from the zeros and ones that hide a dropped one.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pieces

from faults.settings import SETTINGS
from pipeline import tasks
from pipeline.architectures import ARCHITECTURES, register_classes
from pipeline.checkpoint import source as student
from pipeline.recipe import loading as recipes
from pipeline.text import bundled

LABELS = ("negative", "neutral", "positive")
LENGTHS = SETTINGS[""].lengths
_PEAKED = 1.5
"""Gain of queries and keys: scores have a standard deviation near its square."""
_BIAS = 0.3
_GAIN_SPREAD = 0.25
_UNNORMED = 0.7
"""Gain of MobileBERT's norms, which only scale: states stay of one size where two are added. With gains of 1 they are
five times as large after two layers, and attention is one token's alone: no trained model is like that, and half
precision does not keep it."""
_TABLES = {"position": 0.7, "token_type": 0.7, "word": 1.0}


@dataclass(frozen=True)
class Student:
    """Which student: a random one, or the bundled one."""

    architecture: str = "bert"
    task: str = "embedding"
    seed: int | None = 0
    """None for the bundled student, which was trained."""
    pieces: str = "wordpiece"
    """Its tokenizer: the bundled one's, `few` pieces of that, or a small `unigram` or `byte_bpe` one."""
    setting: str = ""
    """What is unusual about it, a key of `settings.SETTINGS`."""

    def __str__(self) -> str:
        """Return a name for folders and tables."""
        if self.seed is None:
            return bundled_name()
        more = "" if self.pieces == "wordpiece" else f"-{self.pieces}"
        more += f"-{self.setting}" if self.setting else ""
        return f"{self.architecture}-{self.task}-{self.seed}{more}"

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of its files, the longest last."""
        return SETTINGS[self.setting].lengths

    @property
    def random_weights(self) -> bool:
        """Whether the weights were never trained."""
        return self.seed is not None


BUNDLED = Student(seed=None)


def few(architecture: str = "bert", task: str = "embedding", *, setting: str = "") -> Student:
    """Return a student with a small vocabulary, as tests take it: each row of its table costs time to verify."""
    return Student(architecture, task, pieces="few", setting=setting)


def unusual(setting: str) -> Student:
    """Return the student of an unusual setting."""
    of = SETTINGS[setting]
    return Student(of.architecture, of.task, pieces=of.pieces, setting=setting)


def bundled_name() -> str:
    """Return the name of the student that comes with the package."""
    return next(iter(student.BUNDLED))


def source(which: Student, folder: Path) -> Path:
    """Return a folder in Hugging Face layout, written into `folder` where it is a random one. Imports torch."""
    bundled = student.find(*recipes.read_recipe("minilm")).folder
    if not which.random_weights:
        return bundled
    _write(which, folder)
    if which.pieces == "wordpiece":
        shutil.copyfile(bundled / "tokenizer.json", folder / "tokenizer.json")
    else:
        {"few": pieces.write, "unigram": _write_unigram, "byte_bpe": _write_byte_bpe}[which.pieces](folder)
    return folder


def _write_unigram(folder: Path) -> None:
    """Train a small `sentencepiece.bpe.model`, as XLM-R has it."""
    import sentencepiece

    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(_corpus()), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(folder / "sentencepiece.bpe"),
        vocab_size=1500,
        hard_vocab_limit=False,
        character_coverage=0.995,
        num_threads=1,
        minloglevel=2,
    )
    corpus.unlink()


def _write_byte_bpe(folder: Path) -> None:
    """Train a small `vocab.json` and `merges.txt`, as RoBERTa has them."""
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(_corpus(), vocab_size=1200, show_progress=False, special_tokens=names)
    trained.save_model(str(folder))


def _corpus() -> list[str]:
    """Return the texts that come with the package."""
    rows = [
        json.loads(line)
        for file in sorted(bundled.FOLDER.glob("*.jsonl"))
        for line in file.read_text("utf-8").splitlines()
    ]
    texts = [value for row in rows for value in row.values() if isinstance(value, str)]
    return [" ".join(text.replace("\0", "").split()) for text in texts]


def _write(which: Student, folder: Path) -> None:
    """Write a randomised checkpoint: config and weights."""
    import torch
    import transformers

    register_classes()
    setting = SETTINGS[which.setting]
    options: dict[str, Any] = {**ARCHITECTURES[which.architecture].tiny_config, **setting.config}
    if which.pieces == "few":
        options["vocab_size"] = pieces.SIZE
    if tasks.get(which.task).has_labels:
        labels = setting.labels or LABELS
        options |= {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}
    elif which.task == "regression":
        options |= {"num_labels": 1}
    config = transformers.AutoConfig.for_model(which.architecture, **options)
    model = getattr(transformers, tasks.get(which.task).auto_class).from_config(config)
    generator = torch.Generator().manual_seed(which.seed or 0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            gain = _UNNORMED if which.architecture == "mobilebert" else 1.0
            parameter.copy_(_randomised(name, torch.randn(parameter.shape, generator=generator), gain))
    tensors = {name: tensor.to(getattr(torch, setting.dtype)) for name, tensor in model.state_dict().items()}
    model.save_pretrained(folder, state_dict=setting.edit(tensors) if setting.edit else tensors)


def _randomised(name: str, noise: Any, gain: float) -> Any:
    """Turn unit noise into a parameter of this name; norms get gains around `gain`."""
    lowered = name.lower()
    if name.endswith("bias"):
        return noise * _BIAS
    if "norm" in lowered:
        return gain + noise * _GAIN_SPREAD
    if lowered.endswith("_embeddings.weight"):
        return noise * next(size for kind, size in _TABLES.items() if kind in lowered)
    peaked = any(kind in lowered for kind in ("query", "key", "q_lin", "k_lin"))
    return noise * (_PEAKED if peaked else 1.0) / noise.shape[-1] ** 0.5
