"""From text to padded int32 rows, by the shipped `tokenizer.json` alone."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pipeline.errors import ArtifactError


@dataclass(frozen=True)
class Row:
    """One encoded text or pair, unpadded."""

    ids: tuple[int, ...]
    types: tuple[int, ...]
    """Segment of each token: 0 for the first text, 1 for the second."""

    def __len__(self) -> int:
        """Return the number of tokens, special ones included."""
        return len(self.ids)

    def padded(self, names: tuple[str, ...], length: int, *, pad_token_id: int) -> dict[str, NDArray[np.int32]]:
        """Return the named inputs, each int32 `(1, length)`; padding has mask 0 and type 0."""
        tokens = len(self.ids)
        arrays = {
            "input_ids": np.full((1, length), pad_token_id, np.int32),
            "attention_mask": np.zeros((1, length), np.int32),
            "token_type_ids": np.zeros((1, length), np.int32),
        }
        arrays["input_ids"][0, :tokens] = self.ids
        arrays["attention_mask"][0, :tokens] = 1
        arrays["token_type_ids"][0, :tokens] = self.types
        return {name: arrays[name] for name in names}


class Encoder:
    """A tokenizer and the length to which it truncates."""

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        """Take a tokenizer over; of two texts the longer one is cut first."""
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_length)
        self._tokenizer = tokenizer
        self.max_length = max_length

    @classmethod
    def from_folder(cls, folder: Path, max_length: int) -> "Encoder":
        """Read `tokenizer.json` of a model folder.

        Raises:
            ArtifactError: there is none, or it is broken.
        """
        path = folder / "tokenizer.json"
        try:
            return cls(Tokenizer.from_file(str(path)), max_length)
        except Exception as error:  # the library raises bare Exception for every fault
            raise ArtifactError(
                f"{path} cannot be read: {error}. Make the target again with `pocketbert run`."
            ) from error

    def encode(self, first: str, second: str | None = None) -> Row:
        """Encode a text, or a pair of texts; lone surrogates become the replacement character, as in UTF-8 input."""
        encoded = self._tokenizer.encode(_well_formed(first), None if second is None else _well_formed(second))
        return Row(tuple(encoded.ids), tuple(encoded.type_ids))

    def tokens(self, row: Row) -> list[str]:
        """Return the vocabulary's spelling of a row."""
        return [self._tokenizer.id_to_token(token) or "" for token in row.ids]


def _well_formed(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
