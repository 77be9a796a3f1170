"""What an index says of itself in `index.json`: the space of its vectors, their width and how they are stored."""

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from pipeline import atomic, strict
from pipeline.artifact import check_size
from pipeline.errors import ArtifactError, InputError, no_folder
from pipeline.vectors.contract import Similarity, Vectors
from pipeline.vectors.storage import StorageName

ABOUT = "index.json"
_LARGEST_BYTES = 1 << 20
_WIDEST = 1 << 16


class About(BaseModel):
    """`index.json`: written once when an index is made, and never changed."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: Literal[1] = 1
    space: str
    """Id of the vector space, see `Vectors.space`: a model of another space cannot ask this index."""
    width: int
    """How many first numbers of an embedding are kept."""
    storage: StorageName
    """Apps read int8 and float32."""
    scales: tuple[float, ...] | None
    """For int8: the step of each number; None elsewhere."""
    unit_length: bool
    similarity: Similarity = "cosine"
    """How passages are ordered: `dot` only where the model says so and its embeddings are not of unit length."""
    document_prompt: str | None
    """Name of the prompt that was put before each passage; None for the model's default one."""
    query_prompt: str | None
    made_by: str
    """Format and scheme of the file that made the first vectors, such as `litert-int8_dynamic`."""


def of(
    vectors: Vectors, storage: StorageName, *, width: int | None, prompts: tuple[str | None, str | None], made_by: str
) -> About:
    """Return what a new index says of itself.

    Args:
        vectors: the contract of the model.
        storage: how vectors are stored.
        width: how many first numbers to keep; None for all.
        prompts: names of the document's and the query's prompt.
        made_by: format and scheme of the model's file.

    Raises:
        InputError: the first numbers of such embeddings are not worth keeping alone, or bits do not fill bytes.
    """
    kept = vectors.width if width is None else width
    if kept not in vectors.widths:
        widths = ", ".join(map(str, vectors.widths))
        raise InputError(f"--width {kept}: this model's embeddings can be cut to {widths}. Choose one of them.")
    if storage == "bits" and kept % 8:
        raise InputError(f"--storage bits: {kept} bits do not fill whole bytes. Choose int8, or another --width.")
    return About(
        space=vectors.space,
        width=kept,
        storage=storage,
        scales=vectors.scales[:kept] if storage == "int8" else None,
        unit_length=vectors.unit_length,
        similarity=vectors.compared_by,
        document_prompt=prompts[0],
        query_prompt=prompts[1],
        made_by=made_by,
    )


def read(folder: Path) -> About:
    """Read `index.json` of an index.

    Raises:
        InputError: there is no index in that folder.
        ArtifactError: the file cannot be read, or a field is impossible.
    """
    path = folder / ABOUT
    if not os.path.isfile(path):
        why = f"has no {ABOUT}" if os.path.isdir(folder) else no_folder(folder)
        raise InputError(f"{folder} is no index: it {why}. `pocketbert index` makes one.")
    try:
        check_size(path, _LARGEST_BYTES)
        about = strict.read(About, path.read_bytes())
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ArtifactError(f"{path} does not describe an index: {error}. Make the index again.") from error
    if problem := _problem(about):
        raise ArtifactError(f"{path} does not describe an index: {problem}. Make the index again.")
    return about


def _problem(about: About) -> str | None:
    """Return what no index can say of itself, or None."""
    if not 1 <= about.width <= _WIDEST:
        return f"width: {about.width}"
    if about.storage == "bits" and about.width % 8:
        return f"width: {about.width}, which is no whole number of bytes of bits"
    if (about.storage == "int8") != (about.scales is not None):
        return f"scales: they belong to int8, and the storage is {about.storage}"
    if about.similarity == "dot" and about.unit_length:
        return "similarity: dot, and of unit length the cosine is the same"
    # Written so that NaN does not pass.
    if about.scales is not None and not (
        len(about.scales) == about.width and all(0.0 < scale < float("inf") for scale in about.scales)
    ):
        return f"scales: {about.width} positive numbers belong there"
    return None


def write(folder: Path, about: About) -> None:
    """Write `index.json` of a new index."""
    atomic.write_text(folder / ABOUT, about.model_dump_json() + "\n")


def check_space(folder: Path, about: About, vectors: Vectors, model: str) -> None:
    """Refuse an index that was made in another space than a model's.

    Args:
        folder: the index, for the message.
        about: what the index says.
        vectors: the model's contract.
        model: the model, for the message.

    Raises:
        InputError: the spaces, or what is said of their vectors, differ.
    """
    if about.space != vectors.space:
        raise InputError(
            f"{folder} holds vectors of space {about.space}, made by {about.made_by}, and {model} gives vectors of "
            f"space {vectors.space}: between two spaces a cosine means nothing. Index the texts again with this model "
            "in another folder (--out), or ask `pocketbert compatible` whether the old vectors may stay."
        )
    said = about.unit_length, about.similarity
    if about.width not in vectors.widths or said != (vectors.unit_length, vectors.compared_by):
        raise ArtifactError(
            f"{folder / ABOUT} has the space of {model}, but says width {about.width}, unit_length {about.unit_length} "
            f"and similarity {about.similarity}, where the model says {list(vectors.widths)}, {vectors.unit_length} "
            f"and {vectors.compared_by}. Make the index again."
        )
