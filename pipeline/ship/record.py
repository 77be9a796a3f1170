"""The record of a bundle, `pocketbert.json`, and the check of targets that may be bundled."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.artifact import Artifact, FileEntry
from pipeline.convert.stage import Target
from pipeline.errors import ArtifactError, InputError
from pipeline.formats.signature import Signature
from pipeline.trust.signing import SIGNATURE
from pipeline.verify.record import Parity, Verdict

BUNDLE = "pocketbert.json"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BundledStudent(_Frozen):
    """The checkpoint that every file was made from."""

    origin: str
    licence: str | None
    digest: str
    model_type: str
    parameters: int
    random_weights: bool


class BundledTarget(_Frozen):
    """One target of a bundle; its files lie in the folder of its name."""

    target: str
    backend: str
    scheme: str
    verdict: Verdict
    reasons: list[str]
    thorough: bool
    """Whether `verify --thorough` gave the verdict."""
    evaluator: str | None
    """What ran the file for the verdict."""
    evaluator_stands_in: str | None
    """What the verdict does not cover."""
    digest: str
    """Content digest of the model artifact that was judged."""
    file: str
    minimum_runtime: str
    bytes: int
    """Size of all files in the folder."""


class Bundle(_Frozen):
    """What `pocketbert.json` holds."""

    schema_version: Literal[2] = 2
    pocketbert: str
    """Version that wrote the bundle."""
    recipe: str
    task: str
    student: BundledStudent
    targets: list[BundledTarget]
    left_out: dict[str, str]
    """The recipe's other targets, with the reason."""
    files: list[FileEntry]
    """Every file but this one."""


OTHER_INPUTS = "it was made or verified with other inputs than the recipe has now"


@dataclass(frozen=True)
class VerifiedTarget:
    """A target that may be handed on."""

    target: Target
    model: Artifact
    judged: Artifact
    parity: Parity
    signature: Signature


def read_bundle(place: Path) -> Bundle:
    """Read a bundle's manifest.

    Raises:
        ArtifactError: it is absent or cannot be read.
    """
    try:
        return Bundle.model_validate_json((place / BUNDLE).read_bytes())
    except (OSError, ValidationError) as error:
        raise ArtifactError(
            f"{place / BUNDLE} cannot be read; make the bundle again with `pocketbert push`."
        ) from error


def sizes(place: Path, bundle: Bundle) -> dict[str, int]:
    """Return the bytes of everything that belongs to a bundle, its manifest and signature included, by path."""
    beside = (place / name for name in (BUNDLE, SIGNATURE))
    return {entry.path: entry.bytes for entry in bundle.files} | {
        path.name: path.stat().st_size for path in beside if path.is_file()
    }


def check_thorough(recipe: str, thorough: Mapping[str, bool], done: str) -> None:
    """Refuse targets whose verdict is not thorough; `done` is the participle for the error, such as `signed`.

    Raises:
        InputError: a verdict is not thorough.
    """
    if hasty := [name for name, is_thorough in thorough.items() if not is_thorough]:
        raise InputError(
            f"{', '.join(hasty)}: what is {done} was verified thoroughly, and this was not. Run `pocketbert verify "
            f"{shlex.quote(recipe)} --thorough` first."
        )
