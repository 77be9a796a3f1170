"""Write the kit: real and trained tokenizers, each with its rows. `python -m apps.tokenizers.kit FOLDER`."""

import argparse
import csv
import itertools
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from apps.tokenizers import full_size, vectors
from apps.tokenizers.vectors import Pair
from pipeline.checkpoint import source
from pipeline.compress.vocabulary.selection import Vocabulary
from pipeline.compress.vocabulary.trimming import compare, count_tokens
from pipeline.recipe.compression import VocabularySection
from pipeline.text import binary, tokenizers
from pipeline.text.bundled import verification_texts

STRINGS = 25_000
"""Generated for each tokenizer, beside those that hold every character."""
_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
_REAL = ("xquad/dev.json", "stsb/dev.csv", "sst2/dev.tsv", "rte/dev.tsv", "cola/train.tsv")
"""Files of POCKETBERT_DATA: questions with passages, and sentences in tables."""


def write(home: Path, *, strings: int) -> list[str]:
    """Write every tokenizer of the kit, and return a line about each."""
    shutil.rmtree(home, ignore_errors=True)
    texts = [(text.first, text.second) for text in verification_texts()]
    real = [*texts, *_data()]
    lines = []
    for seed, (name, make) in enumerate(TOKENIZERS.items()):
        began = time.monotonic()
        with TemporaryDirectory() as scratch:
            tokenizer = make(Path(scratch), [text for pair in texts for text in pair if text])
        generated = itertools.chain(
            vectors.every_character(), vectors.strings(sorted(tokenizer.get_vocab()), count=strings, seed=seed)
        )
        written = vectors.write(home / name, tokenizer, real, generated, seed=seed)
        document = json.loads((home / name / "tokenizer.json").read_bytes())
        if document["model"]["type"] in binary.KINDS:
            (home / name / binary.BINARY).write_bytes(binary.pack(document))
        seconds = time.monotonic() - began
        lines.append(f"{name}: {written.rows:,} rows, {written.tokens:,} tokens, written in {seconds:.0f} s")
        print(lines[-1], flush=True)
    return lines


def _data() -> Iterator[Pair]:
    """Yield sentences and questions of POCKETBERT_DATA, where it is set."""
    home = os.environ.get("POCKETBERT_DATA")
    for name in _REAL if home else ():
        path = Path(str(home)) / name
        if not path.is_file():
            continue
        if path.suffix == ".json":
            for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
                for paragraph in article["paragraphs"]:
                    yield from ((qa["question"], paragraph["context"]) for qa in paragraph["qas"])
        else:
            with path.open(encoding="utf-8", newline="") as file:
                tabs: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {}
                yield from ((cell, None) for row in csv.reader(file, **tabs) for cell in row if len(cell.split()) > 1)


def _bundled(scratch: Path, texts: list[str]) -> Tokenizer:
    """The bundled student's own tokenizer.json."""
    folder = source.at("bundled:all-MiniLM-L6-v2", scratch / "recipe.toml").folder
    return tokenizers.load_tokenizer(folder)


def _vocabulary(*, lower: bool) -> Callable[[Path, list[str]], Tokenizer]:
    """The bundled student's vocabulary as BERT's `vocab.txt`, with the steps that the pipeline gives it."""

    def make(scratch: Path, texts: list[str]) -> Tokenizer:
        vocabulary = _bundled(scratch, texts).get_vocab()
        (scratch / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=lambda word: vocabulary[word])), "utf-8")
        (scratch / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
        return tokenizers.load_tokenizer(scratch)

    return make


def _byte_level(*, spaced: bool) -> Callable[[Path, list[str]], Tokenizer]:
    """A byte-level BPE, as RoBERTa's."""

    def make(scratch: Path, texts: list[str]) -> Tokenizer:
        fresh = Tokenizer(models.BPE())
        fresh.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        fresh.train_from_iterator(
            texts,
            trainers.BpeTrainer(
                vocab_size=3000, special_tokens=_SPECIAL, initial_alphabet=alphabet, show_progress=False
            ),
        )
        fresh.model.save(str(scratch))
        (scratch / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": spaced}))
        return tokenizers.load_tokenizer(scratch)

    return make


def _sentence_piece(file: str, special: dict[str, Any]) -> Callable[[Path, list[str]], Tokenizer]:
    """A SentencePiece unigram model, as ALBERT's or XLM-RoBERTa's."""

    def make(scratch: Path, texts: list[str]) -> Tokenizer:
        import sentencepiece

        (scratch / "texts.txt").write_text("\n".join(" ".join(text.split()) for text in texts), encoding="utf-8")
        with (scratch / file).open("wb") as model:
            sentencepiece.SentencePieceTrainer.train(
                input=str(scratch / "texts.txt"), model_writer=model, vocab_size=4000, character_coverage=0.98,
                model_type="unigram", hard_vocab_limit=False, minloglevel=2, num_threads=1, **special,
            )  # fmt: skip
        return tokenizers.load_tokenizer(scratch)

    return make


def _full_size(scratch: Path, texts: list[str]) -> Tokenizer:
    """XLM-R's kind at its size, as multilingual encoders of the type `bert` have it."""
    return full_size.make(texts)


def _trimmed(scratch: Path, texts: list[str]) -> Tokenizer:
    """The one before, trimmed to the 40,000 tokens that these texts need most and those of three languages."""
    vocabulary = Vocabulary(full_size.make(texts), scratch)
    section = VocabularySection(corpus=("texts.txt",), languages=("en", "de", "ru"), size=40_000)
    kept, whole = vocabulary.keep(section, {0}, texts, (), count_tokens(vocabulary, texts))
    tokenizer, ids = vocabulary.restrict(kept)
    changes = compare(vocabulary, tokenizer, ids, texts)
    assert whole, "40,000 tokens are not enough for the project's texts"
    assert not changes.texts_changed, f"{changes.texts_changed} of the texts have other tokens"
    return tokenizer


_ALBERT: dict[str, Any] = {
    "pad_id": 0,
    "unk_id": 1,
    "bos_id": -1,
    "eos_id": -1,
    "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
    "user_defined_symbols": [",", "(", ")", '"', "-", ".", "–", "£", "€"],
}
TOKENIZERS: dict[str, Callable[[Path, list[str]], Tokenizer]] = {
    "wordpiece": _bundled,
    "wordpiece_uncased": _vocabulary(lower=True),
    "wordpiece_cased": _vocabulary(lower=False),
    "unigram_albert": _sentence_piece("spiece.model", _ALBERT),
    "unigram_xlm_roberta": _sentence_piece("sentencepiece.bpe.model", {"unk_id": 0, "bos_id": 1, "eos_id": 2}),
    "unigram_full_size": _full_size,
    "unigram_trimmed": _trimmed,
    "byte_level": _byte_level(spaced=False),
    "byte_level_spaced": _byte_level(spaced=True),
}
"""By name: how each is made, from nothing but what the package brings."""


def main(arguments: Iterable[str] | None = None) -> int:
    """Write the kit into a folder."""
    parser = argparse.ArgumentParser(prog="python -m apps.tokenizers.kit", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the tokenizers and rows go; it is made anew")
    parser.add_argument("--strings", type=int, default=STRINGS, help="generated strings for each tokenizer")
    options = parser.parse_args(None if arguments is None else list(arguments))
    write(options.folder, strings=options.strings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
