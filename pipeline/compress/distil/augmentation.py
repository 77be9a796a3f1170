"""Data augmentation: copies of rows with some words replaced.

A word of one token is replaced by a word that a masked-LM head finds likely at its position; a word of several tokens
by one of its nearest neighbours in the embedding table. The candidates are computed once per text and stored.

Source: Jiao et al. 2020 (TinyBERT), section 3.3 and Algorithm 1. As in the published data_augmentation.py, one word is
masked at a time in the original text. The paper takes neighbours from GloVe, this module from the model's embeddings.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pipeline import architectures
from pipeline.artifact import digest_of
from pipeline.atomic import write_aside
from pipeline.compress.distil import checks, masked_lm, models
from pipeline.compress.distil.models import DistilJob
from pipeline.compress.distil.outputs import shards
from pipeline.data.datasets import Labelled
from pipeline.errors import StudentError
from pipeline.execution import cache
from pipeline.execution.node import versions
from pipeline.recipe.distillation import AugmentSection
from pipeline.text import tokenizers
from pipeline.text.encoding import Encoder, Row
from pipeline.train.checks import has_masked_lm_head

WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
"""A word that may be replaced: letters, perhaps with an apostrophe inside."""
_BATCH = 32
_TEXTS_OF_SHARD = 2000
_VERSION = 2
Tell = Callable[[str, float], None]
Span = tuple[int, int]
"""Start and end of a word, in characters; the end is exclusive."""
Candidates = dict[Span, list[str]]
"""Replacements by the span of the word that they may replace."""


@dataclass(frozen=True)
class _Word:
    """A word of an encoded text."""

    text: int
    """Number of the text."""
    span: Span
    tokens: tuple[int, ...]
    """Positions of its tokens in the row."""


def with_copies(
    job: DistilJob, section: AugmentSection, rows: Sequence[Labelled], *, device: torch.device, tell: Tell
) -> list[Labelled]:
    """Return the rows followed by their copies; a copy has the label of its row.

    Args:
        job: the distillation, which names the model and the folder of the candidates.
        section: the settings.
        rows: to copy.
        device: where the model runs.
        tell: called with a message and the fraction that is done.

    Raises:
        StudentError: the model does not load, or its masked-LM head was never trained.
    """
    candidates = _all_candidates(job, section, rows, device, tell)
    result = list(rows)
    for number, row in enumerate(rows):
        result += copies_of(row, candidates, section, np.random.default_rng((job.section.seed, number)))
    return result


def copies_of(
    row: Labelled, candidates: Mapping[str, Candidates], section: AugmentSection, draw: np.random.Generator
) -> list[Labelled]:
    """Return a row's copies, without duplicates and without the row itself.

    Source: Jiao et al. 2020, Algorithm 1, lines 8 to 19.
    """
    copies: dict[Labelled, None] = {}
    for _ in range(section.copies):
        first = _with_replacements(row.first, candidates, section, draw)
        second = None if row.second is None else _with_replacements(row.second, candidates, section, draw)
        copies[replace(row, first=first, second=second)] = None
    copies.pop(row, None)
    return list(copies)


def _with_replacements(
    text: str, candidates: Mapping[str, Candidates], section: AugmentSection, draw: np.random.Generator
) -> str:
    parts, end = [], 0
    for (start, stop), words in candidates[text].items():
        if draw.random() <= section.probability:
            parts += [text[end:start], words[draw.integers(len(words))]]
            end = stop
    return "".join([*parts, text[end:]])


# --- candidates, kept in shards --------------------------------------------------------------------------------------


def _all_candidates(
    job: DistilJob, section: AugmentSection, rows: Sequence[Labelled], device: torch.device, tell: Tell
) -> dict[str, Candidates]:
    """Return the candidates of each text, from the shards of an earlier run if they exist."""
    assert job.data.augmenter is not None
    texts = list(dict.fromkeys(text for row in rows for text in (row.first, row.second) if text is not None))
    source = job.data.augmenter
    decides = [
        _VERSION,
        versions("torch", "transformers"),
        source.digest,
        section.candidates,
        section.single_pieces,
        job.section.max_length,
        texts,
    ]
    result: list[Candidates] = []
    finder = None
    folder = job.cache / f"candidates-{digest_of(decides)}"
    with cache.using(folder):
        for shard in shards(folder, len(texts), _TEXTS_OF_SHARD, ".jsonl"):
            if not shard.path.is_file():
                longest = job.section.max_length
                finder = finder or CandidateFinder(source.folder, section, max_length=longest, device=device)
                tell(f"replacements for words, texts {shard.start} to {shard.stop} of {len(texts)}", 0.0)
                # The first shard tells whether the head is trained; a short last shard may have rare words only.
                _write_shard(shard.path, finder.find(texts[shard.start : shard.stop], check=shard.start == 0))
            result += _read_shard(shard.path)
    return dict(zip(texts, result, strict=True))


def _write_shard(path: Path, candidates: Sequence[Candidates]) -> None:
    with write_aside(path) as aside, aside.open("w", encoding="utf-8") as handle:
        for by_span in candidates:
            handle.write(json.dumps([[*span, words] for span, words in by_span.items()]) + "\n")


def _read_shard(path: Path) -> Iterator[Candidates]:
    with path.open(encoding="utf-8") as handle:
        for line in handle:
            yield {(start, stop): words for start, stop, words in json.loads(line)}


# --- candidates, computed --------------------------------------------------------------------------------------------


class CandidateFinder:
    """Finds the words that may replace others, by a masked-LM head and an embedding table."""

    def __init__(self, folder: Path, section: AugmentSection, *, max_length: int, device: torch.device) -> None:
        """Load the model; texts are truncated to `max_length` tokens."""
        self.folder = folder
        self.section = section
        self.masks = section.single_pieces == "masked_lm"
        source = models.read_folder(folder)
        # Random numbers drawn later must not depend on whether the candidates existed already.
        with torch.random.fork_rng(devices=[]):
            model, _ = models.load_masked_lm(folder, keeps_head=has_masked_lm_head(source), seed=0)
        self.model: Any = model.eval().requires_grad_(False).to(device)
        self.device = device
        tokenizer = tokenizers.load_tokenizer(folder)
        tokenizers.check_size(tokenizer, folder, vocab_size=model.config.vocab_size)
        self.words = single_token_words(tokenizer)
        self.encoder = Encoder(tokenizer, max_length)
        self.input_names = architectures.get(model.config.model_type).inputs
        self.pad_token_id = int(model.config.pad_token_id or 0)

    @cached_property
    def _ids(self) -> Tensor:
        """Ids of the tokens that are words, in the order of `words`."""
        return torch.tensor(list(self.words), device=self.device)

    @cached_property
    def _spelled(self) -> list[str]:
        return list(self.words.values())

    @cached_property
    def _table(self) -> Tensor:
        """The embedding table, `(vocabulary, hidden)`."""
        table: Tensor = self.model.get_input_embeddings().weight
        return table

    @cached_property
    def _directions(self) -> Tensor:
        return nn.functional.normalize(self._table[self._ids], dim=-1)  # (words, hidden)

    def find(self, texts: Sequence[str], *, check: bool = True) -> list[Candidates]:
        """Return for each text the words that may be replaced, and their replacements.

        Raises:
            StudentError: with `check`, the masked-LM head was never trained.
        """
        encoded = [self.encoder.encode_with_offsets(text) for text in texts]
        words = [
            word
            for number, (text, (_, offsets)) in enumerate(zip(texts, encoded, strict=True))
            for word in _words(number, text, offsets)
        ]
        single = [word for word in words if self.masks and len(word.tokens) == 1]
        several = [word for word in words if not self.masks or len(word.tokens) > 1]
        rows = [row for row, _ in encoded]
        candidates = {
            **self._likely(single, rows, texts, check=check),
            **self._neighbours(several, rows, texts),
        }
        result: list[Candidates] = [{} for _ in texts]
        for word in words:
            if candidates[word]:
                result[word.text][word.span] = candidates[word]
        return result

    def _likely(
        self, words: Sequence[_Word], rows: Sequence[Row], texts: Sequence[str], *, check: bool
    ) -> dict[_Word, list[str]]:
        """Return for each word the words that the head finds most likely if this word alone is masked."""
        mask = checks.mask_token_id(self.folder)
        order = sorted(words, key=lambda word: len(rows[word.text]))
        result: dict[_Word, list[str]] = {}
        loss = 0.0
        for start in range(0, len(order), _BATCH):
            batch = order[start : start + _BATCH]
            logits = self._logits(batch, rows, mask)
            targets = torch.tensor([rows[word.text].ids[word.tokens[0]] for word in batch], device=self.device)
            loss += nn.functional.cross_entropy(logits, targets, reduction="sum").item()
            best = self._best(logits[:, self._ids])
            result |= {word: self._without(word, texts, ranked) for word, ranked in zip(batch, best, strict=True)}
        if order and check:
            self._check_trained(float(np.exp(min(loss / len(order), 100.0))))
        return result

    def _logits(self, words: Sequence[_Word], rows: Sequence[Row], mask: int | None) -> Tensor:
        """Return the head's logits at each word, `(words, vocabulary)`."""
        longest = max(len(rows[word.text]) for word in words)
        padded = [rows[word.text].padded(self.input_names, longest, pad_token_id=self.pad_token_id) for word in words]
        inputs = {
            name: torch.from_numpy(np.concatenate([one[name] for one in padded])).long() for name in self.input_names
        }
        at = torch.tensor([word.tokens[0] for word in words])
        inputs["input_ids"][torch.arange(len(words)), at] = int(mask or 0)
        with torch.no_grad():
            output = self.model(**{name: one.to(self.device) for name, one in inputs.items()})
        logits: Tensor = output.logits[torch.arange(len(words), device=self.device), at.to(self.device)].float()
        return logits

    def _check_trained(self, perplexity: float) -> None:
        size = len(self._table)
        if not perplexity < masked_lm.UNTRAINED_FROM * size:
            raise StudentError(
                f"the masked-LM head of distil.augment.model {self.folder.name} was never trained: its perplexity on "
                f"the texts is {perplexity:.0f}, and uniform guessing among its {size} tokens has {size}. "
                "Train it by a recipe's [head], or set single_pieces = 'neighbours'."
            )

    def _neighbours(self, words: Sequence[_Word], rows: Sequence[Row], texts: Sequence[str]) -> dict[_Word, list[str]]:
        """Return for each word the words with the most similar embeddings; several tokens have their mean embedding."""
        result: dict[_Word, list[str]] = {}
        for start in range(0, len(words), _BATCH):
            batch = words[start : start + _BATCH]
            means = [self._table[[rows[word.text].ids[at] for at in word.tokens]].mean(0) for word in batch]
            cosines = nn.functional.normalize(torch.stack(means), dim=-1) @ self._directions.T  # (batch, words)
            best = self._best(cosines)
            result |= {word: self._without(word, texts, ranked) for word, ranked in zip(batch, best, strict=True)}
        return result

    def _best(self, scores: Tensor) -> list[list[int]]:
        # One more than needed: the word itself may be among them.
        best: list[list[int]] = scores.topk(min(self.section.candidates + 1, scores.shape[1])).indices.tolist()
        return best

    def _without(self, word: _Word, texts: Sequence[str], ranked: Sequence[int]) -> list[str]:
        """Return the best-ranked candidate words, without the word that they replace."""
        start, stop = word.span
        replaced = texts[word.text][start:stop].casefold()
        others = [self._spelled[number] for number in ranked if self._spelled[number].casefold() != replaced]
        return others[: self.section.candidates]


def _words(number: int, text: str, offsets: Sequence[Span]) -> Iterator[_Word]:
    """Yield the words of a text, without words that truncation of the row has cut."""
    for match in WORD.finditer(text):
        start, stop = match.span()
        tokens = [at for at, (first, last) in enumerate(offsets) if first < last and first < stop and last > start]
        # The word has to begin and end where tokens do.
        if tokens and offsets[tokens[0]][0] == start and offsets[tokens[-1]][1] == stop:
            yield _Word(number, (start, stop), tuple(tokens))


def single_token_words(tokenizer: Any) -> dict[int, str]:
    """Return the tokens that spell a whole word if another word is before them, by id; words consist of letters."""
    tokenizer.no_truncation()
    spelled = {number: tokenizer.decode([number]).strip() for number in range(tokenizer.get_vocab_size())}
    words = {number: text for number, text in spelled.items() if WORD.fullmatch(text)}
    encoded = tokenizer.encode_batch([f"{text} {text}" for text in words.values()], add_special_tokens=False)
    result = {}
    for (number, text), one in zip(words.items(), encoded, strict=True):
        after = [token for token, (_, stop) in zip(one.ids, one.offsets, strict=True) if stop > len(text)]
        if after == [number]:
            result[number] = text
    return result
