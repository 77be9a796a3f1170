"""Compare `signature.json` with the file and the config beside it, before a model folder of anybody's is opened.

Hashes show that nothing was changed since the manifest was written, not who wrote it. A runtime that is asked for a
function which the file lacks, or given ids beyond its table, raises errors of its own or ends the process; here the
field that is wrong is named. Whether the file is the right model, `pipeline.verify` says, which opens folders without
this: there the same differences are a verdict.
"""

import json
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from pipeline import formats
from pipeline.artifact import check_size, file_bytes
from pipeline.errors import ArtifactError
from pipeline.formats import signature
from pipeline.formats.signature import Function, Signature, Tensor
from pipeline.runtimes import version_numbers

_SHOWN_CHARACTERS = 80
_PARAMETERS_PER_BYTE = 8
"""More than any file holds: a zero that is left out costs a bit."""


def check(folder: Path) -> None:
    """Refuse a model folder whose signature is not that of its file.

    Raises:
        ArtifactError: a field of `signature.json` says something else than the file, or than config.json.
    """
    claimed = signature.read(folder)
    problem = next(_problems(folder, claimed), None)
    if problem is not None:
        raise ArtifactError(
            f"{folder / signature.SIGNATURE} does not fit what is beside it: {problem}. Make the target again."
        )


def _problems(folder: Path, claimed: Signature) -> Iterator[str]:
    """Yield the differences between the folder of a model or a head and its signature, the cheapest checks first."""
    root = signature.root(folder)
    backend = formats.get(claimed.backend)
    if claimed.file != backend.FILE:
        yield f"file: {_short(claimed.file)}, where a file of {claimed.backend} is called {backend.FILE!r}"
    yield from _wrong_runtime(claimed)
    yield from _wrong_padding(folder, claimed.pad_token_id)
    file = root / claimed.file
    if not file.exists():
        yield f"file: {claimed.file} does not exist"
    found = backend.inspect(file)
    yield from _without_head(root, found)
    names = [function.name for function in claimed.functions]
    yield from _differences(claimed.functions, tuple(one for one in found if one.name in names))
    held = file_bytes(file)
    if claimed.parameters > _PARAMETERS_PER_BYTE * held:
        yield f"parameters: {_short(claimed.parameters)}, which a file of {held:,} bytes cannot hold"


def _wrong_runtime(claimed: Signature) -> Iterator[str]:
    """Yield an error for a minimum runtime that is malformed, or newer than this version of PocketBERT writes."""
    asked, known = claimed.minimum_runtime, formats.minimum_runtime(claimed.backend, claimed.scheme)
    if asked == known:
        return
    if not version_numbers(known):
        # Core ML's is no version but a line about systems.
        yield f"minimum_runtime: {_short(asked)}, where a file of {claimed.backend} says {known!r}"
        return
    if not version_numbers(asked) or version_numbers(asked) > version_numbers(known):
        later = "this version of PocketBERT knows none later than"
        yield f"minimum_runtime: {_short(asked)}, where {later} {known}; a later one may have made the file"


def _wrong_padding(folder: Path, padding: int) -> Iterator[str]:
    """Yield a padding id that is no row of the table of tokens: runtimes read beyond the table, or crash."""
    path = folder / "config.json"
    try:
        check_size(path)
        rows = json.loads(path.read_bytes()).get("vocab_size")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ArtifactError(f"{path} cannot be read: {why}. Make the target again.") from error
    if not isinstance(rows, int) or padding >= rows:
        yield f"pad_token_id: {_short(padding)}, where config.json has vocab_size {_short(rows)}"


def _without_head(root: Path, found: tuple[Function, ...]) -> Iterator[str]:
    """Yield a function of the file that the signature of no head has, or of several."""
    known = [one.name for one in signature.read(root).functions]
    known += [one.name for place in signature.head_folders(root).values() for one in signature.read(place).functions]
    if sorted(known) != sorted(one.name for one in found):
        yield f"functions: {_short(known)}, and the file has {_short([one.name for one in found])}"


def _differences(claimed: tuple[Function, ...], found: tuple[Function, ...]) -> Iterator[str]:
    """Yield the differences between the claimed functions and the functions read back from the file."""
    names = [[function.name for function in functions] for functions in (claimed, found)]
    if names[0] != names[1]:
        yield f"functions: {_short(names[0])}, and the file has {_short(names[1])}"
        return
    for one, other in zip(claimed, found, strict=True):
        lengths = [(function.min_length, function.max_length) for function in (one, other)]
        if lengths[0] != lengths[1]:
            lengths_text = " and the file ".join("{} to {}".format(*pair) for pair in lengths)
            yield f"functions: {one.name}: it takes {lengths_text} tokens"
        for kind in ("inputs", "outputs"):
            for mine, theirs in zip_longest(getattr(one, kind), getattr(other, kind)):
                if mine != theirs:
                    yield f"functions: {one.name}: {kind}: {_described(mine)}, and the file has {_described(theirs)}"


def _described(tensor: Tensor | None) -> str:
    if tensor is None:
        return "none"
    shape = ", ".join("any" if size is None else str(size) for size in tensor.shape)
    return _short(f"{tensor.name} {tensor.dtype} ({shape})", quoted=False)


def _short(value: object, *, quoted: bool = True) -> str:
    """Return a value as text, shortened to fit into an error's line."""
    text = repr(value) if quoted else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}… ({len(text):,} characters)"
