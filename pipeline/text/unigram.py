"""SentencePiece unigram models as fast tokenizers that give the same ids as the sentencepiece library.

transformers' own conversion does not: from `spiece.model` alone, transformers 5.23 registers the model's user-defined
symbols (ALBERT's are `( ) " - . – £ €`) as added tokens. The text is then cut at each of them before anything else, and
every part gets a word mark of its own: `second-hand` becomes `▁second - ▁hand` where sentencepiece says
`▁second - hand`, and `"i` loses the mark before its quote. Here such symbols are ordinary pieces with a high score.
transformers also keeps ALBERT's pieces of a digit and a comma (`▁2010,`, see `albert_commas`), strips marks that
Python's `combining` keeps, and deletes controls that ALBERT's `split()` takes for spaces.

The model's own character map is applied grapheme by grapheme by the tokenizers library, so that a sequence longer than
one character is missed or cut short; NFKC in front of it composes such sequences first. What stays different: marks in
an order that Unicode calls non-canonical, characters newer than the library's NFKC tables (Unicode 12), and ties:
sentencepiece adds scores up in single precision over the whole text, and its rounding decides between `oo oooo` and
`oooo oo`.

Source: google/sentencepiece, unigram_model.cc and normalizer.cc; google-research/albert, tokenization.py.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import Unigram

from pipeline.errors import StudentError

SPACE = "▁"
"""SentencePiece's mark for a space."""
_NUMBER_AND_COMMA = re.compile(rf"{SPACE}(\d+),")

FINAL_SIGMA = r"Σ(?<=\p{Cased}\p{Case_Ignorable}{0,8}Σ)(?!\p{Case_Ignorable}*\p{Cased})"
"""A capital sigma at the end of a word, which `str.lower` turns into ς; one character at a time cannot know."""

_TILDE, _NOT_A_CHARACTER = "\uff5e", "\ufdd0"
"""The full-width tilde is the one character that SentencePiece's usual map (nmt_nfkc) keeps and NFKC replaces."""

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_KINDS = {_NORMAL: "normal", _UNKNOWN: "unknown", _CONTROL: "control", _USER_DEFINED: "user defined"}
_UNIGRAM = 1


@dataclass(frozen=True)
class Model:
    """The parts of a SentencePiece file that decide its ids."""

    path: Path
    pieces: tuple[tuple[str, float, int], ...]
    """Spelling, score and kind of each id."""
    charsmap: bytes
    dummy_prefix: bool

    @property
    def segmentable(self) -> list[str]:
        """The pieces that a text can be split into."""
        return self.spelled(_NORMAL, _USER_DEFINED)

    def spelled(self, *kinds: int) -> list[str]:
        """Return the pieces of some kinds."""
        return [piece for piece, _, kind in self.pieces if kind in kinds]

    def scores(self) -> list[tuple[str, float]]:
        """Return the vocabulary with the scores that the library uses when it splits a text.

        Raises:
            StudentError: a symbol's score would change the penalty of an unknown character.
        """
        normal = [score for _, score, kind in self.pieces if kind == _NORMAL]
        lowest, highest = min(normal), max(normal)
        scored = []
        for piece, score, kind in self.pieces:
            value = len(piece.encode()) * highest - 0.1 if kind == _USER_DEFINED else score
            if kind == _USER_DEFINED and value < lowest:
                raise StudentError(
                    f"{self.path}: the symbol {piece!r} is too long to be scored like sentencepiece does."
                )
            scored.append((piece, value if kind in (_NORMAL, _USER_DEFINED) else 0.0))
        return scored


def read(path: Path) -> Model:
    """Read a SentencePiece file.

    Raises:
        StudentError: the file is broken, or no fast tokenizer here is equal to it.
    """
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2 as messages

    proto = cast(Any, messages).ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except (DecodeError, OSError) as error:
        raise StudentError(f"{path} is not a SentencePiece model: {error}. Copy it again.") from error
    if not any(piece.type == _NORMAL for piece in proto.pieces):
        raise StudentError(f"{path} is not a SentencePiece model: it has no pieces. Copy it again.")
    trainer, spec = proto.trainer_spec, proto.normalizer_spec
    reasons = {
        "it is not a unigram model": trainer.model_type != _UNIGRAM,
        "it has bytes or unused pieces": any(piece.type not in _KINDS for piece in proto.pieces),
        "it marks spaces behind words": trainer.treat_whitespace_as_suffix,
        "it keeps extra spaces": not (spec.remove_extra_whitespaces and spec.escape_whitespaces),
    }
    for reason, found in reasons.items():
        if found:
            raise StudentError(
                f"{path} cannot be made a fast tokenizer: {reason}. Save tokenizer.json beside the model."
            )
    pieces = tuple((piece.piece, piece.score, piece.type) for piece in proto.pieces)
    return Model(path, pieces, spec.precompiled_charsmap, spec.add_dummy_prefix)


def tokenizer(
    model: Model,
    vocabulary: list[tuple[str, float]],
    *,
    unknown: int,
    before: Sequence[Any] = (),
    commas: Sequence[str] = (),
) -> Tokenizer:
    """Return the fast tokenizer without special tokens.

    Args:
        model: the file.
        vocabulary: pieces with scores in the order of the checkpoint's ids.
        unknown: id of the unknown piece.
        before: normalizers that run before the model's own.
        commas: patterns of commas to split at, see `albert_commas`.
    """
    fast = Tokenizer(Unigram(vocabulary, unk_id=unknown, byte_fallback=False))
    fast.normalizer = normalizers.Sequence([*before, *_normalizers(model)])
    fast.pre_tokenizer = pre_tokenizers.Sequence(_cuts(model, commas))
    fast.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always" if model.dummy_prefix else "never")
    for symbol in model.spelled(_USER_DEFINED):
        plain = normalizers.Sequence([*before, *_charsmap(model)]).normalize_str(symbol)
        if plain != symbol:
            raise StudentError(
                f"{model.path}: the symbol {symbol!r} would be normalised to {plain!r}; it is kept there."
            )
    return fast


def _charsmap(model: Model) -> list[Any]:
    if not model.charsmap:
        return []
    own = normalizers.Precompiled(model.charsmap)
    if own.normalize_str(_TILDE) != _TILDE:
        return [normalizers.NFKC(), own]
    hide, show = normalizers.Replace(_TILDE, _NOT_A_CHARACTER), normalizers.Replace(_NOT_A_CHARACTER, _TILDE)
    return [hide, normalizers.NFKC(), show, own]


def _normalizers(model: Model) -> list[Any]:
    """The model's character map, then its treatment of spaces."""
    steps = [
        *_charsmap(model),
        normalizers.Replace(Regex(r"\A +"), ""),
        normalizers.Replace(Regex(" +"), SPACE),
    ]
    if model.dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
    return [*steps, normalizers.Replace(Regex(rf"{SPACE}+\z"), "")]


def _cuts(model: Model, commas: Sequence[str]) -> list[Any]:
    """Return splits that no piece crosses, so that the best path stays the best."""
    normal = model.segmentable
    cuts: list[Any] = []
    if not any(SPACE in piece[1:] for piece in normal):
        cuts.append(pre_tokenizers.Split(SPACE, "merged_with_next"))
    if commas:
        cuts.append(pre_tokenizers.Split(Regex("|".join(commas)), "isolated"))
    guards = [guard for piece in model.spelled(_CONTROL, _UNKNOWN) if (guard := _guard(piece, normal))]
    if guards:
        cuts.append(pre_tokenizers.Split(Regex("|".join(guards)), "merged_with_previous"))
    return cuts


def _guard(control: str, normal: list[str]) -> str | None:
    """Return a pattern that splits a control piece which normalised text may spell, as full-width signs do."""
    for at in range(len(control) - 1, 0, -1):
        if not any(control[at - 1 : at + 1] in piece for piece in normal):
            return f"(?<={_escape(control[: at - 1])}){_escape(control[at - 1])}(?={_escape(control[at:])})"
    return None


def _escape(text: str) -> str:
    return "".join(re.escape(character) for character in text)


def albert_preprocessing(*, lower_case: bool, keep_accents: bool) -> list[Any]:
    """Return ALBERT's `preprocess_text` as normalizers."""
    steps: list[Any] = [
        normalizers.Replace(Regex(r"[\x0b\x0c\x1c-\x1f\x85\s]+"), " "),
        normalizers.Replace("``", '"'),
        normalizers.Replace("''", '"'),
    ]
    if not keep_accents:
        steps += [normalizers.NFKD(), normalizers.Replace(Regex(_combining()), "")]
    if lower_case:
        steps += [normalizers.Replace(Regex(FINAL_SIGMA), "ς"), normalizers.Lowercase()]
    return steps


def _combining() -> str:
    """Return a regex class of the characters for which `unicodedata.combining` is not 0.

    The library's own StripAccents takes all marks.
    """
    codes = [code for code in range(0x1F000) if unicodedata.combining(chr(code))]
    starts = [code for code in codes if not unicodedata.combining(chr(code - 1))]
    ends = [code for code in codes if not unicodedata.combining(chr(code + 1))]
    return "[" + "".join(rf"\x{{{first:X}}}-\x{{{last:X}}}" for first, last in zip(starts, ends, strict=True)) + "]"


# --- ALBERT's rule for numbers -----------------------------------------------------------------------------------


def albert_commas(pieces: list[str], vocabulary: list[tuple[str, float]], *, unknown: int, file: object) -> list[str]:
    """Return patterns of the commas at which ALBERT's rule for numbers splits a text.

    The rule (google-research/albert, `encode_pieces`): the best path may use pieces such as `▁2010,`; each piece that
    ends in a digit and a comma is then split again without its comma. A fast tokenizer cannot split twice, so it splits
    before it looks for pieces:

    - at a comma that no digit follows: no piece goes on behind it, so both ways give the same pieces;
    - behind `▁N` where `▁N,` is a piece and a digit follows, unless a piece over the comma (`2,000`) makes a better
      path. The digits for which it does are found by running the model: up to three, with each tail that a piece has.

    Four and more digits without a comma behind such a number (`1,2345`) are not covered.

    Args:
        pieces: those that a text can be split into.
        vocabulary: all pieces with their scores.
        unknown: id of the unknown piece.
        file: the model's file, for messages.

    Raises:
        StudentError: a piece holds a comma in a way for which these splits are not the rule.
    """
    ruled = [match.group(1) for piece in pieces if (match := _NUMBER_AND_COMMA.fullmatch(piece))]
    over = [piece for piece in pieces if "," in piece and piece != "," and not _NUMBER_AND_COMMA.fullmatch(piece)]
    strange = [piece for piece in over if not re.fullmatch(r"[^,]*(,\d+)+", piece)]
    if strange or "," not in pieces:
        raise StudentError(
            f"{file} has {f'the piece {strange[0]!r}' if strange else 'no comma'}; ALBERT's rule for numbers cannot be "
            "applied here. Save tokenizer.json beside the model."
        )
    path = Tokenizer(Unigram(vocabulary, unk_id=unknown, byte_fallback=False))
    tails = sorted({"", *_tails(pieces)})
    alike: dict[str, list[str]] = {}
    for number in ruled:
        kept = "|".join(_kept(path, number, _behind(over, number), tails))
        alike.setdefault(f"(?!{kept})" if kept else "", []).append(rf"\A{SPACE}{number}")
    rules = [rf"(?<={'|'.join(numbers)}),(?=\d){unless}" for unless, numbers in alike.items()]
    return [r",(?!\d)", *rules]


def _tails(pieces: list[str]) -> Iterator[str]:
    """Yield what follows up to three digits in a piece, such as `%` and `,000`."""
    for piece in pieces:
        if match := re.fullmatch(r"\d{1,3}([^\d].*)|(,.+)", piece):
            yield match.group(1) or match.group(2)


def _behind(over: list[str], number: str) -> tuple[str, ...]:
    """Return what follows the comma in pieces that could take the end of a number and its comma."""
    parts = (piece.partition(",") for piece in over)
    return tuple({after.split(",")[0][:3] for before, _, after in parts if number.endswith(before.removeprefix(SPACE))})


def _kept(path: Tokenizer, number: str, starts: tuple[str, ...], tails: list[str]) -> Iterator[str]:
    """Yield patterns of what follows a number and its comma where the best path goes over the comma."""
    for width in (1, 2, 3):
        for digits in (f"{value:0{width}d}" for value in range(10**width)):
            if digits.startswith(starts):
                yield from _kept_tails(path, number, digits, tails)


def _kept_tails(path: Tokenizer, number: str, digits: str, tails: list[str]) -> Iterator[str]:
    ruled = f"{SPACE}{number},"
    over = {tail: path.encode(ruled + digits + tail).tokens[0] != ruled for tail in tails}
    for tail in tails:
        longer = [other for other in tails if other.startswith(tail) and over[other] != over[tail]]
        implied = [other for other in tails if other != tail and tail.startswith(other) and over[other] == over[tail]]
        if over[tail] and not implied:
            unless = "|".join(re.escape(other[len(tail) :]) for other in longer)
            yield re.escape(digits + tail) + r"(?!\d)" + (f"(?!{unless})" if unless else "")
