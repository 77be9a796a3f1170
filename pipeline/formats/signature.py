"""Signatures: inputs, outputs and metadata of a converted file, read back from it and kept in `signature.json`."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from pipeline import strict, tasks
from pipeline.artifact import check_size
from pipeline.errors import ArtifactError, InputError
from pipeline.kinds import KINDS, OutputKind
from pipeline.schemes import BACKENDS, SCHEMES
from pipeline.text.prompts import Prompts
from pipeline.vectors.contract import Vectors

SIGNATURE = "signature.json"
HEADS = "heads"
"""Folder in a model folder with a folder for each other head of the file: its signature, golden rows and labels."""
_LARGEST_BYTES = 1 << 20
_LONGEST = 1 << 16
"""Most tokens of a row; encoders of today take 8,192."""
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""Every input that a file may take; the first two it must."""
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VERSION = re.compile(r"\d+(\.\d+)+")


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
    prompts: dict[str, str] = {}
    """Texts that an embedding model wants before a text, by name, as sentence-transformers' folders name them."""
    default_prompt: str | None = None
    """The prompt of a text that is embedded without naming one; None for no prompt."""
    include_prompt: bool = True
    """Whether the prompt's tokens are pooled. If not, `attention_mask` is 2 for them: attended to, not pooled."""
    activation: Literal["identity", "sigmoid"] = "identity"
    """Applied to the output of a regression, such as a reranker's score, after the file has computed it."""
    thresholds: tuple[float, ...] | None = None
    """For several labels at once: the probability of each from which on it is given, above 0 and below 1; None for one
    half."""
    vectors: Vectors | None = None
    """The contract of an embedding's vectors; None for every other output, and in a folder of an older release."""
    functions: tuple[Function, ...]
    """From shortest to longest."""
    parameters: int
    """Unique parameters of the exported graph."""

    @property
    def wanted(self) -> Prompts:
        """The prompts as an encoder takes them."""
        return Prompts(self.prompts, self.default_prompt, self.include_prompt)

    @property
    def max_length(self) -> int:
        """Longest row that the file takes, special tokens included."""
        return max(function.max_length for function in self.functions)

    def choose(self, tokens: int) -> tuple[Function, int]:
        """Return the smallest function that fits a row, and the length in tokens at which it runs.

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


def prefixed(name: str, head: str | None) -> str:
    """Return the name of a head's function in a file; the student's own head, None, has the plain name."""
    return name if head is None else f"{head}_{name}"


def root(folder: Path) -> Path:
    """Return the folder with the file and the tokenizer: the model folder, also where `folder` is a head's in it."""
    # A relative folder may say nothing of where it lies, such as `.` does.
    heads = Path(os.path.abspath(folder)).parent
    return heads.parent if heads.name == HEADS and (heads.parent / SIGNATURE).is_file() else folder


def head_folders(model: Path) -> dict[str, Path]:
    """Return the folders of the other heads of a model folder, by the heads' names."""
    place = model / HEADS
    return {one.name: one for one in sorted(place.iterdir()) if one.is_dir()} if place.is_dir() else {}


def read(folder: Path) -> Signature:
    """Read `signature.json` of a model folder.

    Raises:
        ArtifactError: there is none, it cannot be read, or a field is impossible for a converted file.
    """
    path = folder / SIGNATURE
    try:
        check_size(path, _LARGEST_BYTES)
        signature = strict.read(Signature, path.read_bytes())
    except OSError as error:
        raise ArtifactError(
            f"{path} cannot be read: {error.strerror}. Make the target again with `pocketbert run`."
        ) from error
    except ValueError as error:
        raise ArtifactError(f"{path} is not a signature: {error}. Make the target again.") from error
    problem = next(_problems(signature), None)
    if problem is not None:
        raise ArtifactError(f"{path} is not a signature: {problem}. Make the target again.")
    return signature


def _problems(signature: Signature) -> Iterator[str]:
    """Yield the errors in the fields, each alone and in combination.

    Verification judges whether they are true of the file; here no field may lead out of the folder or into a traceback.
    """
    if not _PLAIN.fullmatch(signature.file):
        yield f"file: {signature.file[:80]!r} is not a plain name of a file in this folder"
    if signature.backend not in BACKENDS:
        yield f"backend: {signature.backend!r} is not known; there are: {', '.join(BACKENDS)}"
    elif signature.scheme not in SCHEMES or SCHEMES[signature.scheme].support[signature.backend].reason is not None:
        yield f"scheme: {signature.scheme!r} is none that {signature.backend} supports"
    if signature.task not in tasks.TASKS:
        yield f"task: {signature.task!r} is not known; there are: {', '.join(tasks.TASKS)}"
        return
    task = tasks.get(signature.task)
    if signature.output_kind != task.output_kind:
        yield f"output_kind: {signature.output_kind!r}, where task {task.name} gives {task.output_kind!r}"
    if signature.backend != "coreml" and not _VERSION.fullmatch(signature.minimum_runtime):
        yield f"minimum_runtime: {signature.minimum_runtime!r} is not a version, such as 1.2.0"
    if signature.pad_token_id < 0 or signature.parameters < 1:
        yield "pad_token_id and parameters: they cannot be negative"
    lengths = [function.max_length for function in signature.functions]
    if not lengths or lengths != sorted(set(lengths)):
        yield f"functions: their lengths are {lengths}, and have to rise"
    for function in signature.functions:
        yield from (
            f"functions: {function.name}: {problem}" for problem in _wrong_function(function, task.output_names)
        )
    yield from _wrong_labels(signature, has_labels=task.has_labels)
    yield from _wrong_thresholds(signature)
    of_embeddings = {"prompts": signature.prompts, "vectors": signature.vectors}
    if signature.output_kind != "embedding":
        yield from (f"{field}: task {task.name} has none" for field, said in of_embeddings.items() if said)
    if signature.default_prompt is not None and signature.default_prompt not in signature.prompts:
        yield f"default_prompt: {signature.default_prompt[:80]!r} is none of {sorted(signature.prompts)}"


def _wrong_function(function: Function, output_names: tuple[str, ...]) -> Iterator[str]:
    if not 1 <= function.min_length <= function.max_length <= _LONGEST:
        yield f"it takes {function.min_length} to {function.max_length} tokens"
    names = [tensor.name for tensor in function.inputs]
    if len(set(names)) < len(names) or not set(INPUTS[:2]) <= set(names) <= set(INPUTS):
        yield f"its inputs are {names}; a file takes {', '.join(INPUTS[:2])}, and {INPUTS[2]} or not"
    outputs = [tensor.name for tensor in function.outputs]
    if sorted(outputs) != sorted(output_names):
        yield f"its outputs are {outputs}; the task has {list(output_names)}"
    length = function.max_length if function.fixed else None
    for tensor in function.inputs:
        if tensor.dtype != "int32" or tensor.shape != (1, length):
            yield f"{tensor.name} is {tensor.dtype} {list(tensor.shape)}; it has to be int32 {[1, length]}"
    for tensor in function.outputs:
        if not tensor.shape or tensor.shape[0] != 1 or any(size is not None and size < 1 for size in tensor.shape):
            yield f"{tensor.name} has shape {list(tensor.shape)}; one row is computed at a time"


def _wrong_thresholds(signature: Signature) -> Iterator[str]:
    labels, thresholds = len(signature.labels or ()), signature.thresholds
    if thresholds is None:
        return
    if KINDS[signature.output_kind].decision != "each":
        yield f"thresholds: task {signature.task} has none"
    elif len(thresholds) != labels:
        yield f"thresholds: there are {len(thresholds)} for {labels} labels"
    # Written so that NaN does not pass.
    elif not all(0.0 < one < 1.0 for one in thresholds):
        yield f"thresholds: {list(thresholds)} are not all above 0 and below 1"


def _wrong_labels(signature: Signature, *, has_labels: bool) -> Iterator[str]:
    if not has_labels:
        if signature.labels is not None:
            yield f"labels: task {signature.task} has none"
        return
    for function in signature.functions:
        width = function.outputs[0].shape[-1]
        if width != len(signature.labels or ()):
            yield f"labels: there are {len(signature.labels or ())} for {width} outputs of {function.name}"
