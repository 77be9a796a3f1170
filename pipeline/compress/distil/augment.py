"""Copies of rows with some words replaced, to learn on.

A word that is a single piece may become one that a masked-LM head finds likely in its place; a word of several pieces
one of its nearest neighbours in the embedding table. Which words these are is found once for each text and kept.

Source: Jiao et al. 2020 (TinyBERT), section 3.3 and Algorithm 1. As in the published data_augmentation.py, one word is
masked at a time in the text as it was; its neighbours come from GloVe, ours from the model's own table of tokens.
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

from pipeline.artifact import digest_of
from pipeline.checkpoint import architectures
from pipeline.checkpoint import source as student
from pipeline.compress.distil import checks, inparts, masked, models
from pipeline.compress.distil.models import Work
from pipeline.data.datasets import Labelled
from pipeline.errors import StudentError
from pipeline.recipe.compression import AugmentSection
from pipeline.text import tokenizers
from pipeline.text.encoding import Encoder, Row
from pipeline.train.checks import has_masked_lm_head

WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
"""What may be replaced: letters, with an apostrophe inside perhaps."""
_BATCH = 32
_PART = 2000
"""Texts whose candidates are one file."""
_VERSION = 2
Tell = Callable[[str, float], None]
Place = tuple[int, int]
"""First character of a word and the one behind its last."""
Candidates = dict[Place, list[str]]
"""For each word of a text that may be replaced, by what."""


@dataclass(frozen=True)
class _Word:
    """A word of an encoded text."""

    text: int
    place: Place
    tokens: tuple[int, ...]
    """Where in the row its pieces are."""


def extended(
    work: Work, section: AugmentSection, rows: Sequence[Labelled], *, device: torch.device, tell: Tell
) -> list[Labelled]:
    """Return rows with their copies behind them; a copy has the label of its row.

    Args:
        work: the distillation, which names the model and where candidates are kept.
        section: the settings.
        rows: to copy.
        device: where the model runs.
        tell: hears how far it is.

    Raises:
        StudentError: the model does not load, or its masked-LM head was never trained.
    """
    known = _candidates(work, section, rows, device, tell)
    result = list(rows)
    for number, row in enumerate(rows):
        result += copies(row, known, section, np.random.default_rng((work.section.seed, number)))
    return result


def copies(
    row: Labelled, known: Mapping[str, Candidates], section: AugmentSection, draw: np.random.Generator
) -> list[Labelled]:
    """Return a row's copies, without those that are the row itself or one another.

    Source: Jiao et al. 2020, Algorithm 1, lines 8 to 19.
    """
    found = dict.fromkeys(
        replace(row, first=_changed(row.first, known, section, draw), second=_second(row, known, section, draw))
        for _ in range(section.copies)
    )
    found.pop(row, None)
    return list(found)


def _second(
    row: Labelled, known: Mapping[str, Candidates], section: AugmentSection, draw: np.random.Generator
) -> str | None:
    return None if row.second is None else _changed(row.second, known, section, draw)


def _changed(text: str, known: Mapping[str, Candidates], section: AugmentSection, draw: np.random.Generator) -> str:
    parts, end = [], 0
    for (start, stop), words in known[text].items():
        if draw.random() <= section.probability:
            parts += [text[end:start], words[draw.integers(len(words))]]
            end = stop
    return "".join([*parts, text[end:]])


# --- what is kept --------------------------------------------------------------------------------------------------


def _candidates(
    work: Work, section: AugmentSection, rows: Sequence[Labelled], device: torch.device, tell: Tell
) -> dict[str, Candidates]:
    """Return each text's candidates, from the file of an earlier run where there is one."""
    assert work.material.augmenter is not None
    texts = list(dict.fromkeys(text for row in rows for text in (row.first, row.second) if text is not None))
    source = work.material.augmenter
    decides = [_VERSION, source.digest, section.candidates, section.single_pieces, work.section.max_length, texts]
    known: list[Candidates] = []
    finder = None
    for part in inparts.parts(work.cache / f"candidates-{digest_of(decides)}", len(texts), _PART, ".jsonl"):
        if not part.path.is_file():
            finder = finder or Finder(source.folder, section, max_length=work.section.max_length, device=device)
            tell(f"words that fit in the places of others, texts {part.first} to {part.behind} of {len(texts)}", 0.0)
            # A head that knows nothing shows in the first part; a short last one may be all rare words.
            _write(part.path, finder.find(texts[part.first : part.behind], check=part.first == 0))
        known += _read(part.path)
    return dict(zip(texts, known, strict=True))


def _write(path: Path, found: Sequence[Candidates]) -> None:
    with inparts.whole(path) as aside, aside.open("w", encoding="utf-8") as handle:
        for one in found:
            handle.write(json.dumps([[*place, words] for place, words in one.items()]) + "\n")


def _read(path: Path) -> Iterator[Candidates]:
    with path.open(encoding="utf-8") as handle:
        for line in handle:
            yield {(start, stop): words for start, stop, words in json.loads(line)}


# --- where candidates come from ------------------------------------------------------------------------------------


class Finder:
    """A model that knows by which words others may be replaced."""

    def __init__(self, folder: Path, section: AugmentSection, *, max_length: int, device: torch.device) -> None:
        """Load the model; `max_length` is the tokens of a text that are looked at."""
        self.folder = folder
        self.section = section
        self.masks = section.single_pieces == "masked_lm"
        source = student.inspect_folder(folder, origin=folder.name, licence=None)
        # Numbers drawn after this must not hang on whether candidates were at hand already.
        with torch.random.fork_rng(devices=[]):
            model, _ = models.load_masked_lm(folder, keeps_head=has_masked_lm_head(source), seed=0)
        self.model: Any = model.eval().requires_grad_(False).to(device)
        self.device = device
        tokenizer = tokenizers.load_tokenizer(folder)
        tokenizers.check_size(tokenizer, folder, vocab_size=model.config.vocab_size)
        self.words = whole_words(tokenizer)
        self.encoder = Encoder(tokenizer, max_length)
        self.names = architectures.get(model.config.model_type).inputs
        self.pad_token_id = int(model.config.pad_token_id or 0)

    @cached_property
    def _ids(self) -> Tensor:
        """Ids of the pieces that are words, in the order of `words`."""
        return torch.tensor(list(self.words), device=self.device)

    @cached_property
    def _spelled(self) -> list[str]:
        return list(self.words.values())

    @cached_property
    def _table(self) -> Tensor:
        """Embeddings of all pieces, `(vocabulary, width)`."""
        found: Tensor = self.model.get_input_embeddings().weight
        return found

    @cached_property
    def _directions(self) -> Tensor:
        return nn.functional.normalize(self._table[self._ids], dim=-1)  # (words, width)

    def find(self, texts: Sequence[str], *, check: bool = True) -> list[Candidates]:
        """Return for each text the words that may be replaced, and by what.

        Raises:
            StudentError: with `check`, the masked-LM head was never trained.
        """
        encoded = [self.encoder.encode_with_offsets(text) for text in texts]
        words = [
            word
            for number, (text, (_, spans)) in enumerate(zip(texts, encoded, strict=True))
            for word in _words(number, text, spans)
        ]
        single = [word for word in words if self.masks and len(word.tokens) == 1]
        several = [word for word in words if not self.masks or len(word.tokens) > 1]
        rows = [row for row, _ in encoded]
        found = {**self._likely(single, rows, texts, check=check), **self._near(several, rows, texts)}
        result: list[Candidates] = [{} for _ in texts]
        for word in words:
            if found[word]:
                result[word.text][word.place] = found[word]
        return result

    def _likely(
        self, words: Sequence[_Word], rows: Sequence[Row], texts: Sequence[str], *, check: bool
    ) -> dict[_Word, list[str]]:
        """Return the words that the head finds most likely in the place of each, masked alone."""
        mask = checks.mask_token_id(self.folder)
        order = sorted(words, key=lambda word: len(rows[word.text]))
        found: dict[_Word, list[str]] = {}
        loss = 0.0
        for start in range(0, len(order), _BATCH):
            batch = order[start : start + _BATCH]
            logits = self._logits(batch, rows, mask)
            truth = torch.tensor([rows[word.text].ids[word.tokens[0]] for word in batch], device=self.device)
            loss += nn.functional.cross_entropy(logits, truth, reduction="sum").item()
            best = self._best(logits[:, self._ids])
            found |= {word: self._others(word, texts, places) for word, places in zip(batch, best, strict=True)}
        if order and check:
            self._check_trained(float(np.exp(min(loss / len(order), 100.0))))
        return found

    def _logits(self, words: Sequence[_Word], rows: Sequence[Row], mask: int | None) -> Tensor:
        """Return the head's logits at each word, `(words, vocabulary)`."""
        longest = max(len(rows[word.text]) for word in words)
        padded = [rows[word.text].padded(self.names, longest, pad_token_id=self.pad_token_id) for word in words]
        inputs = {name: torch.from_numpy(np.concatenate([one[name] for one in padded])).long() for name in self.names}
        at = torch.tensor([word.tokens[0] for word in words])
        inputs["input_ids"][torch.arange(len(words)), at] = int(mask or 0)
        with torch.no_grad():
            output = self.model(**{name: one.to(self.device) for name, one in inputs.items()})
        logits: Tensor = output.logits[torch.arange(len(words), device=self.device), at.to(self.device)].float()
        return logits

    def _check_trained(self, perplexity: float) -> None:
        size = len(self._table)
        if not perplexity < masked.UNTRAINED * size:
            raise StudentError(
                f"the masked-LM head of distil.augment.model {self.folder.name} was never trained: its perplexity is "
                f"{perplexity:.0f} on the texts, and guessing among its {size} tokens has {size}. "
                "Train it by a recipe's [head], or set single_pieces = 'neighbours'."
            )

    def _near(self, words: Sequence[_Word], rows: Sequence[Row], texts: Sequence[str]) -> dict[_Word, list[str]]:
        """Return the words whose embeddings lie nearest by angle; a word of several pieces lies at their mean."""
        found: dict[_Word, list[str]] = {}
        for start in range(0, len(words), _BATCH):
            batch = words[start : start + _BATCH]
            means = [self._table[[rows[word.text].ids[at] for at in word.tokens]].mean(0) for word in batch]
            angles = nn.functional.normalize(torch.stack(means), dim=-1) @ self._directions.T  # (batch, words)
            best = self._best(angles)
            found |= {word: self._others(word, texts, places) for word, places in zip(batch, best, strict=True)}
        return found

    def _best(self, scores: Tensor) -> list[list[int]]:
        # One more than is wanted: the word itself may be among them.
        places: list[list[int]] = scores.topk(min(self.section.candidates + 1, scores.shape[1])).indices.tolist()
        return places

    def _others(self, word: _Word, texts: Sequence[str], places: Sequence[int]) -> list[str]:
        """Return the best words but the one that is replaced."""
        start, stop = word.place
        own = texts[word.text][start:stop].casefold()
        others = [self._spelled[place] for place in places if self._spelled[place].casefold() != own]
        return others[: self.section.candidates]


def _words(number: int, text: str, spans: Sequence[Place]) -> Iterator[_Word]:
    """Yield the words of a text whose pieces are all in its row, which may have been cut."""
    for match in WORD.finditer(text):
        start, stop = match.span()
        inside = [at for at, (first, last) in enumerate(spans) if first < last and first < stop and last > start]
        # A piece that covers more than the word, or less than there is of it, cannot be replaced with it.
        if inside and spans[inside[0]][0] == start and spans[inside[-1]][1] == stop:
            yield _Word(number, (start, stop), tuple(inside))


def whole_words(tokenizer: Any) -> dict[int, str]:
    """Return the pieces that are a word of letters by themselves, behind another word, by id."""
    tokenizer.no_truncation()
    spelled = {number: tokenizer.decode([number]).strip() for number in range(tokenizer.get_vocab_size())}
    words = {number: text for number, text in spelled.items() if WORD.fullmatch(text)}
    encoded = tokenizer.encode_batch([f"{text} {text}" for text in words.values()], add_special_tokens=False)
    found = {}
    for (number, text), one in zip(words.items(), encoded, strict=True):
        behind = [token for token, (_, stop) in zip(one.ids, one.offsets, strict=True) if stop > len(text)]
        if behind == [number]:
            found[number] = text
    return found
