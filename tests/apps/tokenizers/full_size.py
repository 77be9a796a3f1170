"""A tokenizer of XLM-R's kind and size, as multilingual MiniLM and E5 have it under a `bert` encoder.

The published one is not at hand here. This one has its form: SentencePiece's character map, words cut at spaces and
marked with `▁`, the ids `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, the mask as the last of 250,037. Its first pieces are
trained on the project's own texts, the next are parts of their words, and the rest are words that nobody wrote, drawn
from the letters of two dozen scripts: as many pieces as the published one has, about as long, and of no language.
"""

import itertools
import random
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram

PIECES = 250_037
"""Rows of the published encoders' table of words."""
_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
_MASK = "<mask>"
_TRAINED = 8_000
_LONGEST_PIECE = 16
"""SentencePiece's own limit, in characters."""
_LONGEST_STEM = 6
_IDEOGRAPHS = 1000
"""Letters from which on a script has a letter for a syllable or a word."""
_PARTS = 40_000
_LOWEST = -18.0
"""Score of the last piece; the published one's are down to -17."""
_SCRIPTS = (
    (0x61, 0x7A, 46), (0xDF, 0x17F, 10), (0x400, 0x45F, 12), (0x4E00, 0x9FA5, 8), (0x3041, 0x30FF, 4),
    (0xAC00, 0xD7A3, 4), (0x620, 0x64A, 6), (0x5D0, 0x5EA, 2), (0x370, 0x3CE, 3), (0x531, 0x587, 1),
    (0x10D0, 0x10FA, 1),
    (0x905, 0x94D, 4), (0x985, 0x9CD, 2), (0xA05, 0xA4D, 1), (0xA85, 0xACD, 1), (0xB05, 0xB4D, 1), (0xB85, 0xBCD, 2),
    (0xC05, 0xC4D, 1), (0xC85, 0xCCD, 1), (0xD05, 0xD4D, 1), (0xE01, 0xE4E, 3), (0xE81, 0xECD, 1), (0x1000, 0x103F, 1),
    (0x1200, 0x135A, 1), (0x1780, 0x17D2, 1), (0xD85, 0xDCA, 1),
)  # fmt: skip
"""First and last letter, and of a hundred words about how many are of the script."""


def make(texts: Sequence[str], *, pieces: int = PIECES) -> Tokenizer:
    """Return the tokenizer.

    Args:
        texts: what the first pieces are trained on.
        pieces: ids, special tokens included.
    """
    trained, character_map = _train(texts)
    room = pieces - len(_SPECIALS) - 1
    fill = itertools.islice(_distinct(_parts(texts), _drawn(), known=trained), room - len(trained))
    scored = [*sorted(trained.items(), key=lambda row: -row[1])][:room]
    lowest = scored[-1][1]
    spelled = list(fill)
    # Single precision, as SentencePiece's file has them.
    falling = np.linspace(lowest, min(lowest, _LOWEST), len(spelled) + 1, dtype=np.float32)[1:]
    scored += [(piece, float(score)) for piece, score in zip(spelled, falling, strict=True)]
    vocabulary = [*((token, 0.0) for token in _SPECIALS), *scored, (_MASK, 0.0)]
    assert len(vocabulary) == pieces, f"{len(vocabulary):,} pieces and not {pieces:,}"
    return _around(vocabulary, character_map)


def _train(texts: Sequence[str]) -> tuple[dict[str, float], bytes]:
    """Return pieces with scores, and SentencePiece's own map of characters."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as messages

    file = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(" ".join(text.split()) for text in texts), model_writer=file, vocab_size=_TRAINED,
        character_coverage=1.0, model_type="unigram", hard_vocab_limit=False, minloglevel=2, num_threads=1,
    )  # fmt: skip
    model: Any = messages.ModelProto()  # type: ignore[attr-defined]
    model.ParseFromString(file.getvalue())
    normal = 1
    pieces = {piece.piece: piece.score for piece in model.pieces if piece.type == normal}
    return pieces, model.normalizer_spec.precompiled_charsmap


def _distinct(*sources: Iterable[str], known: Iterable[str]) -> Iterator[str]:
    seen = {*known, *_SPECIALS, _MASK}
    for piece in itertools.chain(*sources):
        if piece not in seen:
            seen.add(piece)
            yield piece


def _parts(texts: Sequence[str]) -> list[str]:
    """Return parts of the texts' words, those that save most first."""
    words = Counter(f"▁{word}" for text in texts for word in unicodedata.normalize("NFKC", text).split())
    counts: Counter[str] = Counter()
    for word, times in words.items():
        for first in range(len(word)):
            for end in range(first + 1, min(len(word), first + _LONGEST_PIECE) + 1):
                counts[word[first:end]] += times
    return sorted(counts, key=lambda part: (-counts[part] * len(part), part))[:_PARTS]


def _drawn() -> Iterator[str]:
    """Yield words of letters of one script, without end; most go on where an earlier one ends, as real ones do."""
    draw = random.Random(0)
    alphabets = [
        [chr(code) for code in range(first, last + 1) if unicodedata.category(chr(code))[0] in "LM"]
        for first, last, _ in _SCRIPTS
    ]
    shares = list(itertools.accumulate(share for _, _, share in _SCRIPTS))
    # Few letters are most of any text.
    orders = [list(itertools.accumulate(1 / (place + 1) for place in range(len(letters)))) for letters in alphabets]
    for letters in alphabets:
        draw.shuffle(letters)
    words: list[list[str]] = [["▁", ""] for _ in alphabets]
    while True:
        (which,) = draw.choices(range(len(alphabets)), cum_weights=shares)
        before = draw.choice(words[which])
        word = before + "".join(draw.choices(alphabets[which], cum_weights=orders[which], k=draw.randint(1, 3)))
        if len(word) <= (_LONGEST_STEM if len(alphabets[which]) < _IDEOGRAPHS else 2):
            words[which].append(word)
        yield word


def _around(vocabulary: list[tuple[str, float]], character_map: bytes) -> Tokenizer:
    """Return the tokenizer with the steps that the published tokenizer.json has."""
    tokenizer = Tokenizer(Unigram(vocabulary, unk_id=_SPECIALS.index("<unk>"), byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Precompiled(character_map), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")]
    )
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.add_special_tokens(list(_SPECIALS))
    tokenizer.add_special_tokens([AddedToken(_MASK, lstrip=True, normalized=False, special=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s>:0 $A:0 </s>:0",
        pair="<s>:0 $A:0 </s>:0 </s>:0 $B:0 </s>:0",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")],
    )
    return tokenizer
