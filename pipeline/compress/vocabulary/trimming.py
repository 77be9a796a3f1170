"""Trim a tokenizer to a corpus, count the changed tokens over the whole corpus, and write the trimmed checkpoint."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from pipeline import architectures
from pipeline.checkpoint.files import read_json
from pipeline.checkpoint.weights import WEIGHTS
from pipeline.compress.vocabulary.selection import CONFIG_IDS, Vocabulary, required_ids
from pipeline.errors import StudentError
from pipeline.recipe.compression import VocabularySection
from pipeline.text import tokenizers

if TYPE_CHECKING:
    import torch

_TABLES = ("embeddings.word_embeddings.weight", "embeddings.word_embeddings.0.weight")
"""Suffixes of the embedding table's name, as one matrix or as factors."""
_HEADS = (
    *(
        f"{head}.{tensor}"
        for head in ("predictions", "lm_head")
        for tensor in ("bias", "decoder.weight", "decoder.bias")
    ),
    *(f"{head}.{tensor}" for head in ("vocab_projector", "generator_lm_head") for tensor in ("weight", "bias")),
)
"""Suffixes of the names of masked-LM heads' tensors with a row for each token."""
_COLUMNS = "predictions.dense.weight"
"""Suffix of the second part of MobileBERT's masked-LM head, with a column per token; the first is the table."""
_CHUNK = 1000
"""Number of texts whose encodings are in memory at a time; an encoding takes kilobytes."""


@dataclass(frozen=True)
class TrimmedVocabulary:
    """A tokenizer with a smaller vocabulary."""

    tokenizer: Tokenizer
    ids: dict[int, int]
    """New ids by old ids, in the same order."""
    metrics: dict[str, Any]


def trim(source: Path, section: VocabularySection, texts: Sequence[str], prompts: Sequence[str]) -> TrimmedVocabulary:
    """Choose tokens and restrict a checkpoint's tokenizer to them.

    Args:
        source: folder with config.json and tokenizer files.
        section: `[vocabulary]` of the recipe.
        texts: the corpus; empty where the section has none.
        prompts: the model's own, which keep their tokens.

    Raises:
        RecipeError: too small a size.
        StudentError: texts got other tokens although all that the corpus needs were kept.
    """
    vocabulary = Vocabulary(tokenizers.load_tokenizer(source), source)
    config = read_json(source / "config.json")
    required = required_ids(config, architectures.get(config["model_type"]))
    vocabulary.check_ids(required)
    kept, whole = vocabulary.keep(section, required, texts, prompts, count_tokens(vocabulary, texts))
    tokenizer, ids = vocabulary.restrict(kept)
    changes = compare(vocabulary, tokenizer, ids, texts)
    if whole and changes.example is not None:
        raise StudentError(
            f"the tokenizer in {source} cannot be trimmed: with all tokens that the corpus needs, "
            f"{changes.example[:80]!r} gets other tokens. Leave [vocabulary] out."
        )
    metrics: dict[str, Any] = {"pieces_before": len(vocabulary.ids), "pieces": len(kept), "tokens_kept": whole}
    if section.languages:
        metrics["languages"] = list(section.languages)
    # Fractions of nothing would read as a measurement.
    return TrimmedVocabulary(tokenizer, ids, metrics | (changes.metrics() if texts else {}))


def count_tokens(vocabulary: Vocabulary, texts: Sequence[str]) -> Counter[str]:
    """Return the count of each token in the texts; 0 for tokens that only decide that a word is unknown."""
    by_id: Counter[int] = Counter()
    deciding: set[str] = set()
    unknown = vocabulary.unknown
    for text, encoded in zip(texts, _encodings(vocabulary.tokenizer, texts), strict=True):
        by_id.update(encoded.ids)
        if unknown in encoded.ids:
            deciding.update(
                *(vocabulary.family.before_unknown(vocabulary.model, word) for word in vocabulary.words(text))
            )
    spelled = {number: token for token, number in vocabulary.ids.items()}
    counts = Counter({spelled[number]: times for number, times in by_id.items()})
    for token in deciding:
        counts.setdefault(token, 0)
    return counts


def _encodings(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[Encoding]:
    for start in range(0, len(texts), _CHUNK):
        yield from tokenizer.encode_batch(list(texts[start : start + _CHUNK]), add_special_tokens=False)


@dataclass
class TokenizerChanges:
    """Counts of the texts, words and tokens of a corpus that the trimmed tokenizer changes."""

    texts: int = 0
    texts_changed: int = 0
    words: int = 0
    words_changed: int = 0
    tokens_before: int = 0
    tokens: int = 0
    unknown_before: int = 0
    unknown: int = 0
    example: str | None = None
    """The first text with other tokens."""

    def metrics(self) -> dict[str, Any]:
        """Return counts and fractions for the manifest."""
        return {
            "texts": self.texts,
            "texts_changed": self.texts_changed,
            "words_changed_fraction": self.words_changed / max(self.words, 1),
            "tokens_ratio": self.tokens / max(self.tokens_before, 1),
            "unknown_fraction_before": self.unknown_before / max(self.tokens_before, 1),
            "unknown_fraction": self.unknown / max(self.tokens, 1),
        }


def compare(
    vocabulary: Vocabulary, tokenizer: Tokenizer, ids: dict[int, int], texts: Sequence[str]
) -> TokenizerChanges:
    """Encode texts with both tokenizers and count the changed tokens and words (of the pre-tokenizer).

    Args:
        vocabulary: the full vocabulary, the reference.
        tokenizer: the trimmed tokenizer.
        ids: new ids by old ids.
        texts: the corpus.
    """
    changes = TokenizerChanges()
    new_ids = np.full(max(vocabulary.ids.values()) + 1, -1, np.int64)
    new_ids[list(ids)] = list(ids.values())
    unknown = vocabulary.unknown
    both = zip(texts, _encodings(vocabulary.tokenizer, texts), _encodings(tokenizer, texts), strict=True)
    for text, old, new in both:
        ids_now = np.array(new.ids, np.int64)
        kept_ids = new_ids[np.array(old.ids, np.int64)]
        changes.texts += 1
        changes.words += len(set(old.word_ids))
        changes.tokens_before += len(kept_ids)
        changes.tokens += len(ids_now)
        if unknown is not None:
            changes.unknown_before += old.ids.count(unknown)
            changes.unknown += new.ids.count(ids[unknown])
        if not np.array_equal(kept_ids, ids_now):
            changes.texts_changed += 1
            changes.words_changed += _words_changed(old, kept_ids, new, ids_now)
            changes.example = changes.example or text
    return changes


def _words_changed(old: Encoding, kept_ids: NDArray[np.int64], new: Encoding, ids: NDArray[np.int64]) -> int:
    before, after = (_by_word(one, numbers) for one, numbers in ((old, kept_ids), (new, ids)))
    return sum(before.get(word) != after.get(word) for word in before | after)


def _by_word(encoded: Encoding, ids: NDArray[np.int64]) -> dict[int | None, list[int]]:
    words: dict[int | None, list[int]] = {}
    for word, number in zip(encoded.word_ids, ids.tolist(), strict=True):
        words.setdefault(word, []).append(number)
    return words


# --- the trimmed checkpoint ------------------------------------------------------------------------------------------


def write(source: Path, trimmed: TrimmedVocabulary, out: Path) -> dict[str, Any]:
    """Write config, weights and tokenizer into `out`; other files of the vocabulary are left out.

    Returns:
        The metrics, with the bytes that weights and tokenizer lost.

    Raises:
        StudentError: there is no embedding table, or a tensor of its size that is not known here.
    """
    import torch
    from safetensors.torch import load_file, save_file

    kept = keep_tokens(load_file(source / WEIGHTS), torch.tensor(sorted(trimmed.ids)), str(source / WEIGHTS))
    save_file(kept, out / WEIGHTS, metadata={"format": "pt"})
    trimmed.tokenizer.save(str(out / "tokenizer.json"))
    _write_config(source, trimmed, out)
    _write_settings(source, trimmed, out)
    names = (WEIGHTS, "tokenizer.json")
    before = sum((source / name).stat().st_size for name in names if (source / name).is_file())
    saved = before - sum((out / name).stat().st_size for name in names)
    return trimmed.metrics | {"bytes_saved": saved}


def keep_tokens(
    tensors: "Mapping[str, torch.Tensor]", kept: "torch.Tensor", checkpoint: str
) -> "dict[str, torch.Tensor]":
    """Return a checkpoint's tensors with only the rows, or columns, of the kept tokens.

    Args:
        tensors: by name, on any device.
        kept: ids of tokens, `(kept,)`.
        checkpoint: its name, for error messages.

    Raises:
        StudentError: there is no embedding table, or a tensor of its size that is not known here.
    """
    tables = [name for name in tensors if name.endswith(_TABLES)]
    if len(tables) != 1:
        raise StudentError(f"{checkpoint} has {len(tables)} embedding tables; a checkpoint with one can be trimmed.")
    rows = tensors[tables[0]].shape[0]
    result = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith((*_TABLES, *_HEADS)) and tensor.shape[0] == rows:
            result[name] = tensor[kept].contiguous()
        elif name.endswith(_COLUMNS) and tensor.shape[1] == rows:
            result[name] = tensor[:, kept].contiguous()
        elif rows in tensor.shape:
            raise StudentError(
                f"{checkpoint}: {name} is {tuple(tensor.shape)}, of the vocabulary's size, and it is not known "
                "here how to trim it. Save the checkpoint without that head."
            )
    return result


def _write_config(source: Path, trimmed: TrimmedVocabulary, out: Path) -> None:
    config = read_json(source / "config.json")
    config["pad_token_id"] = architectures.get(config["model_type"]).padding_id(config)
    config |= {key: trimmed.ids[config[key]] for key in CONFIG_IDS if isinstance(config.get(key), int)}
    config["vocab_size"] = len(trimmed.ids)
    _save(out / "config.json", config)


def _write_settings(source: Path, trimmed: TrimmedVocabulary, out: Path) -> None:
    """Write the tokenizer's settings files beside the vocabulary, with new ids where they list ids."""
    if (source / "special_tokens_map.json").is_file():
        shutil.copyfile(source / "special_tokens_map.json", out / "special_tokens_map.json")
    if (source / "tokenizer_config.json").is_file():
        settings = read_json(source / "tokenizer_config.json")
        listed = settings.get("added_tokens_decoder")
        if isinstance(listed, dict):
            # Added tokens that tokenizer.json does not know may be gone.
            present = {trimmed.ids.get(int(number)): row for number, row in listed.items()}
            settings["added_tokens_decoder"] = {
                str(number): row for number, row in present.items() if number is not None
            }
        _save(out / "tokenizer_config.json", settings)
    if (source / "added_tokens.json").is_file():
        listed = read_json(source / "added_tokens.json")
        later = {token: trimmed.ids.get(int(number)) for token, number in listed.items()}
        _save(out / "added_tokens.json", {token: number for token, number in later.items() if number is not None})


def _save(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
