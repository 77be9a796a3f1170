"""Encode text into padded int32 rows, with nothing but the shipped `tokenizer.json`."""

import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from pipeline.errors import ArtifactError, InputError

_SPACE = "▁"
"""SentencePiece's mark for a space."""

Span = tuple[int, int]
"""First character and one past the last, in the original text."""


@dataclass(frozen=True)
class Row:
    """One encoded text or pair, unpadded."""

    ids: tuple[int, ...]
    types: tuple[int, ...]
    """Segment of each token: 0 for the first text, 1 for the second."""
    unpooled: int = 0
    """How many tokens at the start belong to a prompt that an embedding leaves out; their mask is 2."""

    def __len__(self) -> int:
        """Return the number of tokens, special ones included."""
        return len(self.ids)

    def padded(self, names: tuple[str, ...], length: int, *, pad_token_id: int) -> dict[str, NDArray[np.int32]]:
        """Return the named inputs, each int32 `(1, length)`; padding has mask 0 and type 0, see also `unpooled`."""
        tokens = len(self.ids)
        arrays = {
            "input_ids": np.full((1, length), pad_token_id, np.int32),
            "attention_mask": np.zeros((1, length), np.int32),
            "token_type_ids": np.zeros((1, length), np.int32),
        }
        arrays["input_ids"][0, :tokens] = self.ids
        arrays["attention_mask"][0, :tokens] = 1
        arrays["attention_mask"][0, : self.unpooled] = 2
        arrays["token_type_ids"][0, :tokens] = self.types
        return {name: arrays[name] for name in names}


@dataclass(frozen=True)
class Window:
    """A question with a part of a passage."""

    row: Row
    offsets: tuple[Span | None, ...]
    """Span of each token in the passage; None for the question and special tokens."""


class Encoder:
    """A tokenizer and the length to which it truncates."""

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        """Wrap a tokenizer, whose settings change; of two texts the longer one is truncated first."""
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_length)
        self._tokenizer = tokenizer
        self.max_length = max_length

    @classmethod
    def from_folder(cls, folder: Path, max_length: int) -> "Encoder":
        """Read `tokenizer.json` of a model folder.

        Raises:
            ArtifactError: the file is absent or broken.
        """
        path = folder / "tokenizer.json"
        try:
            return cls(Tokenizer.from_file(str(path)), max_length)
        except Exception as error:  # the library raises bare Exception for every fault
            raise ArtifactError(
                f"{path} cannot be read: {error}. Make the target again with `pocketbert run`."
            ) from error

    def shortened(self, max_length: int) -> "Encoder":
        """Return an encoder with the same tokenizer that truncates to another length."""
        return Encoder(Tokenizer.from_str(self._tokenizer.to_str()), max_length)

    def encode(self, first: str, second: str | None = None) -> Row:
        """Encode a text, or a pair of texts; a lone surrogate becomes a question mark."""
        return _row(self._encoding(first, second))

    def encode_prompted(self, prompt: str, text: str, *, pooled: bool = True) -> Row:
        """Encode a text behind a prompt, as one string, as sentence-transformers does.

        Args:
            prompt: the prompt's own text.
            text: the text behind it.
            pooled: whether the prompt's tokens are part of the embedding.
        """
        return self._unpooled(prompt, [self.encode(prompt + text)], pooled)[0]

    def encode_all(self, prompt: str, texts: Sequence[str], *, pooled: bool = True) -> list[Row]:
        """Encode texts behind a prompt as `encode_prompted` does, many at a time, while other threads may run."""
        with _gave_up():
            # Without offsets, which a row has not, that is a sixth of the time less.
            encoded = self._tokenizer.encode_batch_fast([_well_formed(prompt + text) for text in texts])
        return self._unpooled(prompt, [_row(one) for one in encoded], pooled)

    def _unpooled(self, prompt: str, rows: list[Row], pooled: bool) -> list[Row]:
        """Return rows behind a prompt, its tokens marked if an embedding leaves them out."""
        if pooled or not prompt:
            return rows
        alone = self._encoding(prompt, None)
        # The prompt's own end, such as [SEP], is the text's.
        tokens = len(alone.ids) - (1 if alone.special_tokens_mask[-1] else 0)
        return [replace(row, unpooled=min(tokens, len(row))) for row in rows]

    def encode_with_offsets(self, first: str, second: str | None = None) -> tuple[Row, list[Span]]:
        """Encode as `encode` does, and return the span of each token as well.

        Returns:
            The row, and for each token its span in the text that it comes from; (0, 0) for special tokens. Spans leave
            out spaces around a token, and include the accents that belong to its last character.
        """
        encoded = self._encoding(first, second)
        spans = [(0, 0)] * len(encoded.ids)
        for sequence, text in enumerate((first, second)):
            for index, span in _spans(encoded, sequence, text or "").items():
                spans[index] = span
        return _row(encoded), spans

    def truncates(self, first: str, second: str | None = None) -> bool:
        """Return whether a text or a pair is longer than `max_length`."""
        return bool(self._encoding(first, second).overflowing)

    def windows(self, question: str, passage: str, *, stride: int) -> list[Window]:
        """Split a passage into windows that each fit beside the whole question.

        In BERT's run_squad `doc_stride` is how far a window moves on; here `stride` is how much two windows share.

        Args:
            question: never truncated.
            passage: split where needed; an empty one gives one window.
            stride: number of the passage's tokens that each window shares with the one before.

        Raises:
            InputError: the question leaves no room for a token of the passage that the window before lacks.
        """
        self._check_room(question, stride)
        try:
            self._tokenizer.enable_truncation(self.max_length, stride=stride, strategy="only_second")
            encoded = self._encoding(question, passage)
        finally:
            self._tokenizer.enable_truncation(self.max_length)
        return _windows(encoded, passage)

    def tokens(self, row: Row) -> list[str]:
        """Return a row's tokens as the vocabulary spells them."""
        return [self._tokenizer.id_to_token(token) or "" for token in row.ids]

    def document(self) -> str:
        """Return the tokenizer as the text of a tokenizer.json: everything that decides how it encodes."""
        return str(self._tokenizer.to_str())

    def _encoding(self, first: str, second: str | None) -> Encoding:
        with _gave_up():
            return self._tokenizer.encode(_well_formed(first), None if second is None else _well_formed(second))

    def _check_room(self, question: str, stride: int) -> None:
        try:
            self._tokenizer.no_truncation()
            tokens = len(self._tokenizer.encode(_well_formed(question), add_special_tokens=False).ids)
        finally:
            self._tokenizer.enable_truncation(self.max_length)
        room = self.max_length - tokens - self._tokenizer.num_special_tokens_to_add(is_pair=True)
        if room < 1:
            raise InputError(
                f"the question has {tokens} tokens; a row of {self.max_length} has no room for a passage beside it. "
                "Ask a shorter question, or convert with a longer sequence length."
            )
        if not 0 <= stride < room:
            raise InputError(
                f"stride is {stride}; beside this question a row of {self.max_length} takes {room} tokens of a "
                f"passage, so it has to be 0 to {room - 1}."
            )


@contextmanager
def _gave_up() -> Iterator[None]:
    """Turn a tokenizer's panic into an error.

    Raises:
        ArtifactError: it panicked.
    """
    try:
        yield
    except BaseException as error:
        # A pattern of tokenizer.json that takes too many steps is no `Exception`, so callers would not catch it.
        if type(error).__name__ != "PanicException":
            raise
        raise ArtifactError(f"tokenizer.json gave up on a text: {str(error)[:200]}. Copy the model again.") from error


def _row(encoded: Encoding) -> Row:
    return Row(tuple(encoded.ids), tuple(encoded.type_ids))


def _windows(encoded: Encoding, passage: str) -> list[Window]:
    # tokenizers 0.23 ignores a template that gives the second text type 0 (XLM-R's) in the overflowing windows.
    kinds = [kind for kind, sequence in zip(encoded.type_ids, encoded.sequence_ids, strict=True) if sequence == 1]
    windows = []
    for part in (encoded, *encoded.overflowing):
        spans = _spans(part, 1, passage)
        types = tuple(kinds[0] if index in spans else kind for index, kind in enumerate(part.type_ids))
        windows.append(Window(Row(tuple(part.ids), types), tuple(spans.get(index) for index in range(len(part.ids)))))
    return windows


def _spans(encoded: Encoding, sequence: int, text: str) -> dict[int, Span]:
    """Return the span of each token that comes from one of the two texts, by the token's index in the row."""
    indices = [index for index, number in enumerate(encoded.sequence_ids) if number == sequence]
    # Each access makes a list of all tokens.
    offsets, tokens = encoded.offsets, encoded.tokens
    spans = [offsets[index] for index in indices]
    for position, (start, end) in enumerate(spans):
        # The space that SentencePiece puts in front of a text has no character there.
        if tokens[indices[position]] == _SPACE and text[start:end] != _SPACE:
            spans[position] = (start, start)
    return dict(zip(indices, _tidy(spans, text), strict=True))


def _tidy(spans: Sequence[Span], text: str) -> list[Span]:
    """Leave out spaces around tokens, and include accents that were stripped behind a token."""
    tidy = []
    for index, (start, end) in enumerate(spans):
        following = spans[index + 1][0] if index + 1 < len(spans) else len(text)
        while start < end and text[start].isspace():
            start += 1
        while start < end and text[end - 1].isspace():
            end -= 1
        while start < end < following and unicodedata.category(text[end]) == "Mn":
            end += 1
        tidy.append((start, end))
    return tidy


def _well_formed(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
