"""Signatures: what a converted file takes and gives, read back from the file and kept in `signature.json`."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.errors import ArtifactError, InputError
from pipeline.schemes import OutputKind

SIGNATURE = "signature.json"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Tensor(_Frozen):
    """One input or output. A shape's None is the length, free between the function's bounds."""

    name: str
    dtype: Literal["int32", "int64", "float32", "float16"]
    shape: tuple[int | None, ...]


class Function(_Frozen):
    """One entry point: a LiteRT signature, a `.pte` method, a Core ML function."""

    name: str
    min_length: int
    max_length: int
    """Equal to `min_length` where the length is fixed."""
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def fixed(self) -> bool:
        """Whether the function runs at one length only."""
        return self.min_length == self.max_length


class Signature(_Frozen):
    """What an app needs to know to call a converted file."""

    schema_version: Literal[1] = 1
    backend: str
    scheme: str
    task: str
    output_kind: OutputKind
    file: str
    """Name of the model file or package in the same folder."""
    minimum_runtime: str
    pad_token_id: int
    labels: tuple[str, ...] | None
    """Names of the logits in order; None for an embedding."""
    functions: tuple[Function, ...]
    """From shortest to longest."""
    parameters: int
    """Unique parameters of the exported graph."""

    @property
    def max_length(self) -> int:
        """The longest row that the file takes, special tokens included."""
        return max(function.max_length for function in self.functions)

    def choose(self, tokens: int) -> tuple[Function, int]:
        """Return the function and the length, in tokens, for a row: the smallest that fits.

        Raises:
            InputError: the row is longer than every function.
        """
        for function in self.functions:
            if tokens <= function.max_length:
                return function, max(tokens, function.min_length)
        raise InputError(
            f"a row of {tokens} tokens does not fit; {self.file} takes at most {self.max_length}. Truncate it."
        )

    def at_length(self, length: int) -> Function | None:
        """Return the function that runs at exactly this length, or None."""
        fitting = (f for f in self.functions if f.min_length <= length <= f.max_length)
        return next(fitting, None)


def read(folder: Path) -> Signature:
    """Read `signature.json` of a model folder.

    Raises:
        ArtifactError: there is none, or it cannot be read.
    """
    path = folder / SIGNATURE
    try:
        return Signature.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ArtifactError(
            f"{path} cannot be read: {error.strerror}. Make the target again with `pocketbert run`."
        ) from error
    except ValidationError as error:
        raise ArtifactError(f"{path} is not a signature: {error.errors()[0]['msg']}. Make the target again.") from error
