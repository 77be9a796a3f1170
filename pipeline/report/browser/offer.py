"""Which files a browser is offered: those that passed verification and that have a runtime for browsers."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from pipeline import formats
from pipeline.artifact import Artifact
from pipeline.convert.stage import Target
from pipeline.convert.targets import finished_model
from pipeline.errors import ArtifactError
from pipeline.formats import signature
from pipeline.formats.browsers import BrowserRuntime
from pipeline.schemes import BACKENDS
from pipeline.student.golden import GOLDEN
from pipeline.verify.record import verdict_on

MODEL = "model"
"""Name of the converted file on the page, whatever its name is here."""
TOKENIZER = "tokenizer.json"
_READ = (signature.SIGNATURE, GOLDEN, TOKENIZER)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class OfferedFile(_Frozen):
    """One file that the page can open."""

    target: str
    folder: str
    """Where the page finds it, relative to the page."""
    model_bytes: int
    sha256: str
    random_weights: bool
    """Whether nobody trained the weights: latency and golden rows count, and the answers mean nothing."""


class AbsentFile(_Frozen):
    """A target of the recipe that the page does not offer."""

    target: str
    reason: str


class Offer(_Frozen):
    """The content of `offer.json`, from which the page makes its choices."""

    schema_version: Literal[1] = 1
    recipe: str
    runtime: str
    files: list[OfferedFile]
    absent: list[AbsentFile]


@dataclass(frozen=True)
class ServedFile:
    """A file of a model artifact, with what its manifest says of it."""

    path: Path
    sha256: str

    def read(self) -> bytes:
        """Return the bytes, if they are the verified ones.

        Raises:
            ArtifactError: the file is gone, or was changed.
        """
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise ArtifactError(f"{self.path.name} cannot be read: {error.strerror}.") from error
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise ArtifactError(f"{self.path.name} was changed after it was verified. Make it again.")
        return content


def runtime() -> BrowserRuntime:
    """Return the runtime for browsers; the page knows one."""
    (found,) = (one for name in BACKENDS if (one := formats.get(name).BROWSER_RUNTIME) is not None)
    return found


def make(
    recipe: str, folder: Path, targets: Sequence[Target], outdated: Mapping[str, str]
) -> tuple[Offer, dict[str, ServedFile]]:
    """Return what the page offers, and the files behind it by their paths on the page.

    Args:
        recipe: its name.
        folder: the recipe's folder in the build folder.
        targets: which of its targets to offer.
        outdated: targets of other inputs than the recipe has now, with what changed; they are not offered.

    Raises:
        ArtifactError: no target can be offered; the message has the reason of the first.
    """
    offered: list[OfferedFile] = []
    absent: list[AbsentFile] = []
    files: dict[str, ServedFile] = {}
    for target in targets:
        try:
            model, random_weights = _verified(folder, target, outdated)
        except ArtifactError as error:
            absent.append(AbsentFile(target=str(target), reason=str(error)))
            continue
        place = f"files/{len(offered)}"
        content = dict(_content(model))
        files |= {f"{place}/{name}": file for name, file in content.items()}
        offered.append(
            OfferedFile(
                target=str(target),
                folder=place,
                model_bytes=content[MODEL].path.stat().st_size,
                sha256=content[MODEL].sha256,
                random_weights=random_weights,
            )
        )
    if not offered:
        raise ArtifactError(f"there is no file to try: {absent[0].target}: {absent[0].reason}")
    return Offer(recipe=recipe, runtime=runtime().name, files=offered, absent=absent), files


def _verified(folder: Path, target: Target, outdated: Mapping[str, str]) -> tuple[Artifact, bool]:
    """Return a target's model and whether its weights are random, if a browser can run it and it passed.

    Raises:
        ArtifactError: it cannot be offered; the message is the reason.
    """
    if formats.get(target.backend).BROWSER_RUNTIME is None:
        raise ArtifactError("there is no runtime for browsers that reads such files.")
    if str(target) in outdated:
        raise ArtifactError(f"it is of other inputs than the recipe has now ({outdated[str(target)]}).")
    model = finished_model(folder, target)
    parity = verdict_on(model, folder, target)
    if parity.verdict != "passed":
        raise ArtifactError(f"its verdict is {parity.verdict} ({parity.reasons[0]}).")
    claimed = signature.read(model.path)
    if not all(function.fixed for function in claimed.functions):
        raise ArtifactError("it takes rows of any length, and the page runs fixed lengths.")
    return model, parity.random_weights


def _content(model: Artifact) -> Iterator[tuple[str, ServedFile]]:
    """Yield the files that the page reads, by their names there."""
    hashes = {entry.path: entry.sha256 for entry in model.manifest.files}
    named = {MODEL: signature.read(model.path).file, **{name: name for name in _READ}}
    for name, path in named.items():
        if path not in hashes:
            raise ArtifactError(f"{model.path} has no {path}; make it again with `pocketbert run`.")
        yield name, ServedFile(model.path / path, hashes[path])
