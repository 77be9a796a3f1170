"""What users write around an encoder before they convert it, right or with one mistake; and the students themselves.

Random weights have a wide spread, so that attention, positions and types tell in the outputs as in a trained model; one
student is trained.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.coverage_folders import write
from benchmarks.coverage_rows import CLS, MEAN, SQUAD, Row
from pipeline.checkpoint import source
from pipeline.text import tokenizers

LENGTH = 48
"""Tokens of the files with one length."""
PROMPTS = {"query": "search query: ", "passage": "search passage: "}
LABELS = ("negative", "neutral", "positive")
_SHAPE = (2, 64, 4)
_WIDE = {"initializer_range": 0.12, "max_position_embeddings": 130}
STUDENTS: Mapping[str, Row] = {
    "bert": Row(1, "foreign/bert", "bert", *_SHAPE, config=_WIDE, modules=MEAN),
    "bert-cls": Row(2, "foreign/bert-cls", "bert", *_SHAPE, config=_WIDE, modules=CLS),
    "bert-prompts": Row(3, "foreign/bert-prompts", "bert", *_SHAPE, config=_WIDE, modules=MEAN, prompts=PROMPTS),
    "roberta": Row(
        4,
        "foreign/roberta",
        "roberta",
        *_SHAPE,
        tokenizer="bpe",
        config={**_WIDE, "type_vocab_size": 1},
        modules=MEAN,
    ),
    "distilbert": Row(5, "foreign/distilbert", "distilbert", *_SHAPE, config=_WIDE, modules=MEAN),
    "classifier": Row(6, "foreign/classifier", "bert", *_SHAPE, head="classification", config=_WIDE, labels=LABELS),
    "tagger": Row(
        7,
        "foreign/tagger",
        "distilbert",
        *_SHAPE,
        head="token_classification",
        config=_WIDE,
        labels=("O", "B-PER", "I-PER"),
    ),
    "reader": Row(8, "foreign/reader", "bert", *_SHAPE, head=SQUAD, config=_WIDE),
}
TRAINED = "minilm"
"""The bundled student, all-MiniLM-L6-v2: rounding moves trained weights more than random ones."""


def write_student(name: str, folder: Path) -> None:
    """Write a student's folder. Runs in a worker, since it imports torch."""
    if name == TRAINED:
        shutil.copytree(source.at("bundled:all-MiniLM-L6-v2", Path("recipe.toml")).folder, folder)
        return
    write(STUDENTS[name], folder)
    if name == "bert-prompts":
        path = folder / "config_sentence_transformers.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(document | {"default_prompt_name": "query"}), encoding="utf-8")


def samples(count: int, length: int) -> tuple[torch.Tensor, ...]:
    """Return ids, mask and types of a row of text and padding, as many as a module takes."""
    ids = torch.arange(length)[None] % 1000 + 500
    mask = torch.ones_like(ids)
    mask[:, -3:] = 0
    return (ids, mask, torch.zeros_like(ids))[:count]


class Sentence(nn.Module):
    """Hugging Face's encoder with a pooling and a norm written by hand, and one mistake or none."""

    def __init__(self, folder: Path, mistake: str = "", *, plain_mask: bool = False) -> None:
        """Load the encoder.

        Args:
            folder: the student.
            mistake: one of those that `forward` or `_spoil` name; empty for none.
            plain_mask: compute the attention's mask here, for converters that do not take Hugging Face's code for it.
        """
        super().__init__()
        from transformers import AutoModel

        self.model: Any = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
        self.mistake = mistake
        self.prompt_tokens = 0
        self.plain_mask = plain_mask
        self.types = getattr(self.model.config, "type_vocab_size", 1) > 1
        self.pooling = next((word for word in ("cls", "max") if mistake.startswith(word)), "mean")
        if mistake == "prompt missing":
            tokenizer = tokenizers.load_tokenizer(folder)
            self.prompt_tokens = len(tokenizer.encode(PROMPTS["query"], add_special_tokens=False).ids)
        self._spoil()

    def _spoil(self) -> None:
        """Change the weights as a mistake in them would."""
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            words = self.model.get_input_embeddings().weight
            if self.mistake == "vocabulary":
                words.copy_(words[torch.randperm(len(words), generator=generator)])
            elif self.mistake == "vocabulary off":
                words.copy_(words.roll(-1, 0))
            elif self.mistake == "scaled":
                self.model.encoder.layer[0].intermediate.dense.weight.mul_(1.5)
            elif self.mistake == "another":
                for parameter in self.model.parameters():
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.std())
            elif self.mistake == "positions dead":
                self.model.embeddings.position_embeddings.weight.zero_()

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the embedding, `(1, hidden)`, of ids, mask and perhaps types."""
        ids, mask = inputs[:2]
        types = inputs[2] if len(inputs) == 3 else None
        if self.mistake == "truncated":
            ids, mask, types = ids[:, :16], mask[:, :16], None if types is None else types[:, :16]
        elif self.mistake == "prompt missing":
            # The tokens behind [CLS] are taken out again, and padding comes at the end.
            count = self.prompt_tokens
            ids = torch.cat((ids[:, :1], ids[:, 1 + count :], ids[:, 1 : 1 + count] * 0), 1)
            mask = torch.cat((mask[:, count:], mask[:, :count] * 0), 1)
        attended = torch.ones_like(mask) if self.mistake.startswith("mask") else mask
        options: dict[str, torch.Tensor] = {}
        if types is not None:
            options["token_type_ids"] = types * 0 if self.mistake.startswith("types") else types
        if self.mistake == "offset":
            options["position_ids"] = torch.arange(ids.shape[1])[None]
        if self.plain_mask:
            if self.types:
                # coremltools 9.0 does not take the slice of positions in transformers' BERT.
                options["position_ids"] = torch.arange(int(ids.shape[1]))[None]
            attended = (1.0 - attended.float())[:, None, None, :] * -1e4
        output = self.model(input_ids=ids, attention_mask=attended, **options)
        if self.mistake == "pooler":
            pooler: torch.Tensor = output.pooler_output
            return pooler
        pooled = self._pooled(output.last_hidden_state, mask)
        return pooled if "norm" in self.mistake else nn.functional.normalize(pooled, p=2.0, dim=1)

    def _pooled(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.pooling == "cls":
            return hidden[:, 0]
        weights = torch.ones_like(mask) if self.mistake == "padding" else mask
        weights = weights[:, :, None].float()
        if self.pooling == "max":
            return (hidden + (weights - 1.0) * 1e4).amax(1)
        return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


class Tokens(nn.Module):
    """The bare encoder: vectors of all tokens, for an app that pools itself."""

    def __init__(self, folder: Path) -> None:
        """Load the encoder."""
        super().__init__()
        from transformers import AutoModel

        self.model: Any = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        """Return the vectors, `(1, length, hidden)`."""
        output = self.model(input_ids=ids, attention_mask=mask, token_type_ids=types)
        hidden: torch.Tensor = output.last_hidden_state
        return hidden


class Headed(nn.Module):
    """A model with a head of Hugging Face's, and one mistake or none."""

    def __init__(self, folder: Path, auto: str, mistake: str = "") -> None:
        """Load it into one of transformers' auto classes."""
        super().__init__()
        import transformers

        self.model: Any = getattr(transformers, auto).from_pretrained(folder, attn_implementation="eager").eval()
        self.mistake = mistake

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Return the logits, or those of starts and ends."""
        names = ("input_ids", "attention_mask", "token_type_ids")
        given = dict(zip(names, inputs, strict=False))
        if self.mistake.startswith("types"):
            given["token_type_ids"] = given["token_type_ids"] * 0
        output = self.model(**given)
        if hasattr(output, "start_logits"):
            pair = (output.start_logits, output.end_logits)
            return pair[::-1] if self.mistake == "exchanged" else pair
        if self.mistake == "softmax":
            return output.logits.softmax(-1)
        return output.logits[:, [2, 0, 1]] if self.mistake == "order" else output.logits
