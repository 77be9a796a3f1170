"""The contract of an embedding: what an index has to know of the vectors that it stores, to be asked years later.

It stands in `signature.json`, so that an app refuses an index whose vectors another model made. Signatures are read
with this alone, so there is no NumPy here.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Similarity = Literal["cosine", "dot"]
"""How near two vectors are."""
SPACE = "pocketbert_space"
"""Key of config.json for a checkpoint that was fitted to another one's space: that space's id."""
LARGEST_CODE = 127
"""Of an int8 code: -128 is left out, so that a vector and its opposite have opposite codes."""


class Vectors(BaseModel):
    """The contract of the vectors of one student, whatever the format and the scheme of the file that makes them."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    space: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    """Id of the vector space; vectors of two files with one id may be compared with each other."""
    width: Annotated[int, Field(ge=1, le=1 << 16)]
    """Numbers of a whole embedding."""
    unit_length: bool
    """Whether embeddings are scaled to unit length."""
    similarity: Similarity
    """How near two vectors are; for vectors of unit length both are the same number."""
    widths: tuple[int, ...]
    """Numbers of leading dimensions that are worth keeping by themselves, falling; the first is the whole width."""
    scales: tuple[float, ...]
    """For each dimension the number that one step of an int8 code stands for, calibrated on text."""

    @property
    def compared_by(self) -> Similarity:
        """How an index orders its passages; see `compared_by`."""
        return compared_by(self.similarity, unit_length=self.unit_length)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> "Vectors":
        if len(self.scales) != self.width:
            raise ValueError(f"vectors have {self.width} numbers, and there are {len(self.scales)} scales")
        if not all(math.isfinite(scale) and scale > 0 for scale in self.scales):
            raise ValueError("a scale is not a number above zero")
        if not self.widths or self.widths[0] != self.width or list(self.widths) != sorted(set(self.widths))[::-1]:
            raise ValueError(f"widths are {list(self.widths)}; they have to fall from {self.width}")
        if self.widths[-1] < 1:
            raise ValueError(f"widths are {list(self.widths)}; a vector has one number at least")
        return self


def compared_by(similarity: Similarity, *, unit_length: bool) -> Similarity:
    """Return how vectors are compared: of unit length by the cosine, which is their dot product up to rounding."""
    return "cosine" if unit_length else similarity


def declared_space(config: Mapping[str, Any]) -> str | None:
    """Return the id of the space that a checkpoint was fitted to, from config.json; None for its own."""
    found = config.get(SPACE)
    return found if isinstance(found, str) else None
