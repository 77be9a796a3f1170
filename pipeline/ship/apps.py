"""Ship stage: copy verified targets into the demo apps, whole or not at all."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from pipeline import artifact
from pipeline.artifact import Artifact
from pipeline.convert.stage import Target
from pipeline.convert.targets import finished_model
from pipeline.errors import ArtifactError, GateFailed
from pipeline.recipe.schema import Recipe
from pipeline.schemes import SCHEMES
from pipeline.verify import record as parity_record
from pipeline.verify.record import Parity

SHIPPED = "shipped.json"
DESTINATIONS = {
    "litert": ("android-demo/app/src/main/assets/model", "ios-demo/App/Resources/Model"),
    "executorch": ("android-demo/app/src/main/assets/model", "ios-demo/App/Resources/Model"),
    "coreml": ("ios-demo/App/Resources/Model",),
}
"""Apps that can run a backend's files; a target gets a folder of its own below."""


class Shipped(BaseModel):
    """What `shipped.json` says beside a shipped model: an app can check every file against it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    target: str
    verdict: str
    reasons: list[str]
    evaluator: str | None
    """What ran the file for the verdict."""
    licence: str | None
    digest: str
    files: list[artifact.FileEntry]
    bytes: int
    place: str


def choose(recipe: Recipe, targets: Sequence[Target], *, explicit: bool) -> list[Target]:
    """Return what to ship: what was asked for, or the smallest scheme of each backend."""
    if explicit:
        return list(targets)
    chosen = []
    for backend in recipe.targets:
        own = [target for target in targets if target.backend == backend]
        chosen.append(min(own, key=lambda target: SCHEMES[target.scheme].shipping_rank))
    return chosen


def ship(folder: Path, targets: Sequence[Target], into: Path, *, allow_not_run: bool) -> list[Shipped]:
    """Copy targets into the apps that can run them; all are checked before the first is copied.

    Args:
        folder: the recipe's folder in the build folder.
        targets: backends and schemes.
        into: project with `android-demo/` and `ios-demo/`.
        allow_not_run: accept a verdict of `not_run`, and say so in what is shipped.

    Raises:
        GateFailed: a verdict is not `passed`.
        ArtifactError: a model or its verdict is absent, half-made, changed, or belongs to another file.
    """
    models = [finished_model(folder, target) for target in targets]
    places = [[into / place / str(target) for place in DESTINATIONS[target.backend]] for target in targets]
    shipped = [
        _checked(folder, target, model, own, allow_not_run=allow_not_run)
        for target, model, own in zip(targets, models, places, strict=True)
    ]
    for model, own, record in zip(models, places, shipped, strict=True):
        for place in own:
            _copy(model, record, place)
    return shipped


def _checked(folder: Path, target: Target, model: Artifact, places: list[Path], *, allow_not_run: bool) -> Shipped:
    """Return what will be said of a model beside its copies, if its verdict lets it go."""
    parity = _verdict(folder, target, model)
    if parity.verdict == "failed":
        raise GateFailed(f"{target} is not shipped: its verdict is failed ({parity.reasons[0]}).")
    if parity.verdict == "not_run" and not allow_not_run:
        why = f"it was not run here ({parity.reasons[0]})"
        raise GateFailed(f"{target} is not shipped: {why}. --allow-not-run ships it all the same.")
    return Shipped(
        target=str(target),
        verdict=parity.verdict,
        reasons=parity.reasons,
        evaluator=parity.evaluator,
        licence=model.manifest.metrics["licence"],
        digest=model.digest,
        files=model.manifest.files,
        bytes=sum(entry.bytes for entry in model.manifest.files),
        place=", ".join(map(str, places)),
    )


def _verdict(folder: Path, target: Target, model: Artifact) -> Parity:
    """Return the verdict on exactly this model."""
    place = folder / str(target) / "parity"
    if not place.exists():
        raise ArtifactError(f"{target} was not verified: {place} does not exist. Run `pocketbert verify` first.")
    judged = artifact.load(place)
    if judged.manifest.inputs.get("model") != model.digest:
        raise ArtifactError(f"{target} changed after it was verified; run `pocketbert verify` again.")
    return parity_record.read(place)


def _copy(model: Artifact, shipped: Shipped, place: Path) -> None:
    """Copy into a hidden folder, check every byte, and rename it into place."""
    try:
        with artifact.write_aside(place) as aside:
            for entry in model.manifest.files:
                (aside / entry.path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(model.path / entry.path, aside / entry.path)
                if artifact.sha256_file(aside / entry.path) != entry.sha256:
                    raise ArtifactError(
                        f"{model.path / entry.path} changed while it was copied; run `pocketbert run` again."
                    )
            (aside / SHIPPED).write_text(shipped.model_dump_json(indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ArtifactError(f"{place} cannot be written: {error.strerror or error}.") from error
