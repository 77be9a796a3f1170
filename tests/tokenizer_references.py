"""Plain tokenizers written from what their authors published, slow and independent of pipeline/text/tokenizers.py.

Sources: google-research/bert and google-research/albert, tokenization.py; openai/gpt-2, encoder.py; fairseq's ids of
XLM-R as in Hugging Face's first XLMRobertaTokenizer. Special tokens that a text spells out are cut out first, as there.
"""

import functools
import itertools
import json
import os
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import regex
import sentencepiece
from tokenizers import ByteLevelBPETokenizer

from pipeline.data.datasets import DATA_VARIABLE
from pipeline.text.bundled import FOLDER

SPACE = "▁"

TRAPS = (
    "",
    " ",
    "\n\t \u3000",
    "Cafe\u0301 na\u00efve a\u0302\u0300 \u1ea7 \u00c5ngstro\u0308m \u212b",
    "I\u0307stanbul'da \u0131l\u0131k; İ I \u0131 i DIŞ",
    "ΟΔΟΣ Σ ΑΣ'Σ ΟΔΌΣ. Σίσυφος",
    "今天天气很好\uff0c我们去公园吧。 東京タワー ｶﾞｷﾞ \U0002b820\U0002b91f",
    "한국어 \u1112\u1161\u11ab",
    "مرحبا بالعالم مُحَمَّد",
    "हिन्दी में क्षत्रिय ไทยภาษา",
    "👩\u200d👩\u200d👧 🇫🇷 👍🏽 ☺\ufe0f 1\ufe0f\u20e3 🤣🥰",
    "zero\u200bwidth\u200cjoin\u200der soft\u00adhyphen \ufeffbom a\u00a0b",
    "bell\u0007 null\u0000 vt\u000bx us\u001fx nel\u0085x ls\u2028ps\u2029x",
    "private \ue000 and replacement \ufffd",
    "x" * 100 + " " + "y" * 101 + " " + "donaudampfschiff" * 30,
    "in 2010,000 of 1,000 and 12,500, the 1,299.99 £5,000 (€3,50) \"quoted\" ``old'' 9,9 - – 7,",
    "$1,5 1,450 1,000,000 1,270,000 2,000 300,000, 10, 11,12 1917,1918",
    "▁under ▁ score ▁",
    "9\uff5e10 \uff5e \uff01\uff21",
    "end of text<s>and</s> [MASK] here [SEP]. <mask> x <unk>",
    "\uff1c/s\uff1e \uff1cunk\uff1e",
    "don't we'll I'M they'RE  two  spaces   three ",
)


@functools.cache
def project_texts() -> tuple[str, ...]:
    """Return every text of the package, and the traps."""
    rows = [
        json.loads(line) for file in sorted(FOLDER.glob("*.jsonl")) for line in file.read_text("utf-8").splitlines()
    ]
    return tuple(dict.fromkeys([*TRAPS, *(value for row in rows for value in row.values() if isinstance(value, str))]))


def data_file(*parts: str) -> Path:
    """Return a real file of the data folder, or skip with the reason."""
    if DATA_VARIABLE not in os.environ:
        pytest.skip(f"{DATA_VARIABLE} is not set: {'/'.join(parts)} is not at hand")
    return Path(os.environ[DATA_VARIABLE], *parts)


# --- WordPiece ------------------------------------------------------------------------------------------------------

_CHINESE = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *((0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)


def _is_punctuation(character: str) -> bool:
    return character in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~" or unicodedata.category(character).startswith("P")


def basic_words(text: str, *, lower: bool, chinese: bool, strip: bool) -> list[str]:
    """BasicTokenizer."""
    clean = ""
    for character in text:
        if character in "\0\ufffd":
            continue
        if character in " \t\n\r" or unicodedata.category(character) == "Zs":
            clean += " "
        elif unicodedata.category(character) not in ("Cc", "Cf"):
            is_chinese = chinese and any(first <= ord(character) <= last for first, last in _CHINESE)
            clean += f" {character} " if is_chinese else character
    words = []
    for word in clean.split():
        word = word.lower() if lower else word
        if strip:
            word = "".join(c for c in unicodedata.normalize("NFD", word) if unicodedata.category(c) != "Mn")
        words += "".join(f" {c} " if _is_punctuation(c) else c for c in word).split()
    return words


def wordpieces(word: str, vocabulary: dict[str, int], longest: int = 100) -> list[int]:
    """WordpieceTokenizer, for one word."""
    pieces, start = [], 0
    while start < len(word) <= longest:
        mark = "##" if start else ""
        end = next((end for end in range(len(word), start, -1) if mark + word[start:end] in vocabulary), None)
        if end is None:
            return [vocabulary["[UNK]"]]
        pieces.append(vocabulary[mark + word[start:end]])
        start = end
    return pieces if len(word) <= longest else [vocabulary["[UNK]"]]


# --- SentencePiece --------------------------------------------------------------------------------------------------


def albert_text(text: str, *, lower: bool = True, keep_accents: bool = False) -> str:
    """preprocess_text."""
    text = " ".join(text.strip().split()).replace("``", '"').replace("''", '"')
    if not keep_accents:
        text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return text.lower() if lower else text


def albert_pieces(model: sentencepiece.SentencePieceProcessor, text: str) -> list[str]:
    """encode_pieces."""
    pieces = []
    for piece in model.encode(text, out_type=str):
        if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
            again = model.encode(piece[:-1].replace(SPACE, ""), out_type=str)
            if piece[0] != SPACE and again[0][0] == SPACE:
                again = again[1:] if len(again[0]) == 1 else [again[0][1:], *again[1:]]
            pieces += [*again, piece[-1]]
        else:
            pieces.append(piece)
    return pieces


# --- byte-level BPE -------------------------------------------------------------------------------------------------

_GPT2 = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


@functools.cache
def bytes_to_unicode() -> dict[int, str]:
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    moved = [byte for byte in range(256) if byte not in kept]
    return {byte: chr(byte) for byte in kept} | {byte: chr(256 + place) for place, byte in enumerate(moved)}


def bpe_pieces(text: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """GPT-2's encoder: split by the expression, spell the bytes, merge the pair of the lowest rank, and again."""
    pieces = []
    for word in _GPT2.findall(text):
        parts = [bytes_to_unicode()[byte] for byte in word.encode()]
        while len(parts) > 1:
            first, second = min(itertools.pairwise(parts), key=lambda pair: ranks.get(pair, len(ranks)))
            if (first, second) not in ranks:
                break
            merged, index = [], 0
            while index < len(parts):
                both = parts[index : index + 2] == [first, second]
                merged.append(first + second if both else parts[index])
                index += 2 if both else 1
            parts = merged
        pieces += parts
    return pieces


# --- a family: its files, and its reference -------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """A checkpoint's tokenizer folder and what its ids have to be."""

    folder: Path
    plain: Callable[[str], list[int]]
    """Ids of a text that spells no special token out."""
    specials: dict[str, int]
    pair: Callable[[Sequence[int], Sequence[int]], tuple[list[int], list[int]]]
    """Ids and types of two rows of ids."""
    single: Callable[[Sequence[int]], list[int]]
    strips_mask: bool = False

    def ids(self, text: str) -> list[int]:
        """Return ids without the frame; special tokens that are spelled out stand for themselves."""
        pattern = "|".join(
            (r"\s*" if self.strips_mask and token == "<mask>" else "") + re.escape(token) for token in self.specials
        )
        ids, at = [], 0
        for found in re.finditer(pattern, text):
            ids += [*self.plain(text[at : found.start()]), self.specials[found.group().strip()]]
            at = found.end()
        return ids + self.plain(text[at:])


def bert_frame(cls: int, sep: int) -> dict[str, Callable[..., object]]:
    return {
        "single": lambda a: [cls, *a, sep],
        "pair": lambda a, b: ([cls, *a, sep, *b, sep], [0] * (len(a) + 2) + [1] * (len(b) + 1)),
    }


def roberta_frame(cls: int, sep: int) -> dict[str, Callable[..., object]]:
    return {
        "single": lambda a: [cls, *a, sep],
        "pair": lambda a, b: ([cls, *a, sep, sep, *b, sep], [0] * (len(a) + len(b) + 4)),
    }


def wordpiece_family(
    folder: Path, vocab: Path, *, lower: bool = True, chinese: bool = True, strip: bool | None = None
) -> Family:
    """Lay `vocab.txt` and its settings out."""
    folder.mkdir(parents=True)
    text = vocab.read_text(encoding="utf-8")
    (folder / "vocab.txt").write_text(text, encoding="utf-8")
    settings = {"do_lower_case": lower, "tokenize_chinese_chars": chinese, "strip_accents": strip}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    ids = {token: index for index, token in enumerate(text.removesuffix("\n").split("\n"))}

    def plain(text: str) -> list[int]:
        words = basic_words(text, lower=lower, chinese=chinese, strip=lower if strip is None else strip)
        return [piece for word in words for piece in wordpieces(word, ids)]

    specials = {token: ids[token] for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")}
    return Family(folder, plain, specials, **bert_frame(ids["[CLS]"], ids["[SEP]"]))  # type: ignore[arg-type]


def albert_family(folder: Path, model: Path, *, lower: bool = True, keep_accents: bool = False) -> Family:
    """Lay `spiece.model` and its settings out."""
    folder.mkdir(parents=True)
    (folder / "spiece.model").write_bytes(model.read_bytes())
    settings = {"do_lower_case": lower, "keep_accents": keep_accents}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))

    def plain(text: str) -> list[int]:
        pieces = albert_pieces(processor, albert_text(text, lower=lower, keep_accents=keep_accents))
        return [processor.piece_to_id(piece) for piece in pieces]

    names = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
    specials = {name: processor.piece_to_id(name) for name in names}
    return Family(folder, plain, specials, **bert_frame(specials["[CLS]"], specials["[SEP]"]))  # type: ignore[arg-type]


def train_sentencepiece(path: Path, texts: Sequence[str], **options: Any) -> Path:
    """Train a small unigram model."""
    corpus = path.with_suffix(".txt")
    corpus.write_text("\n".join(" ".join(text.replace("\0", "").split()) for text in texts), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(path.with_suffix("")),
        hard_vocab_limit=False,
        character_coverage=0.995,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    return path.with_suffix(".model")


def xlm_roberta_family(folder: Path) -> Family:
    """Train `sentencepiece.bpe.model`; the ids are fairseq's."""
    folder.mkdir(parents=True)
    model = train_sentencepiece(folder / "sentencepiece.bpe.model", project_texts(), vocab_size=1500)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    specials = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": processor.get_piece_size() + 1}

    def plain(text: str) -> list[int]:
        return [index + 1 if index else 3 for index in processor.encode(text)]

    return Family(folder, plain, specials, **roberta_frame(0, 2))  # type: ignore[arg-type]


def bpe_family(folder: Path) -> Family:
    """Train `vocab.json` and `merges.txt`."""
    folder.mkdir(parents=True)
    trained = ByteLevelBPETokenizer()
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(project_texts(), vocab_size=1200, show_progress=False, special_tokens=names)
    trained.save_model(str(folder))
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()[1:]
    ranks = {tuple(line.split(" ")): rank for rank, line in enumerate(lines)}

    def plain(text: str) -> list[int]:
        return [vocabulary[piece] for piece in bpe_pieces(text, ranks)]  # type: ignore[arg-type]

    specials = {name: vocabulary[name] for name in names}
    frame = roberta_frame(specials["<s>"], specials["</s>"])
    return Family(folder, plain, specials, **frame, strips_mask=True)  # type: ignore[arg-type]
