"""Ship stage: which models go into which demo app, and whether their verdicts let them go."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline import formats
from pipeline.artifact import Artifact
from pipeline.convert.stage import Target
from pipeline.convert.targets import finished_model
from pipeline.errors import ArtifactError, GateFailed, InputError, no_folder
from pipeline.formats import signature
from pipeline.recipe.schema import Recipe
from pipeline.schemes import BACKENDS, SCHEMES
from pipeline.ship import placing
from pipeline.ship.placing import ShippedModel
from pipeline.ship.record import OTHER_INPUTS, check_thorough
from pipeline.trust import signing
from pipeline.verify.record import verdict_on

ANDROID, IOS = "android-demo/app/src/main/assets/model", "ios-demo/App/Resources/Model"
PLACES = {"android": ANDROID, "ios": IOS}
DESTINATIONS = {name: tuple(PLACES[app] for app in formats.get(name).APPS) for name in BACKENDS}
"""Where the apps that run a format's files look for models."""


def choose(recipe: Recipe, targets: Sequence[Target], *, explicit: bool) -> list[Target]:
    """Return the targets to ship: the given ones if the user named them, else each format's smallest scheme."""
    if explicit:
        return list(targets)
    chosen = []
    for backend in recipe.targets:
        own = [target for target in targets if target.backend == backend]
        chosen.append(min(own, key=lambda target: SCHEMES[target.scheme].shipping_rank))
    return chosen


def ship(
    recipe: Recipe,
    build: Path,
    targets: Sequence[Target],
    into: Path,
    *,
    allow_not_run: bool,
    outdated: Mapping[str, str],
    named: str,
    sign: Path | None = None,
) -> list[tuple[ShippedModel, list[Path]]]:
    """Copy targets into the apps that can run them: all are checked before the first is copied, and all or none is.

    Args:
        recipe: whose models they are.
        build: the build folder.
        targets: formats and schemes.
        into: project with `android-demo/` and `ios-demo/`.
        allow_not_run: accept a verdict of `not_run`, and say so in what is shipped.
        outdated: targets of other inputs than the recipe has now, with what changed; they are refused.
        named: the recipe as the user named it, for the command that an error suggests.
        sign: file with the private key that signs every copy; then a verdict has to be a thorough one.

    Returns:
        What is said of each target, and the folders that it was copied to.

    Raises:
        InputError: `into` is no folder.
        GateFailed: a verdict is not `passed`.
        ArtifactError: a model or its verdict is absent, half-made, changed, or belongs to another file; or a place in
            an app holds something else.
    """
    if into.exists() and not into.is_dir():
        raise InputError(f"--into {into} {no_folder(into)}; name the project with android-demo/ and ios-demo/.")
    key = signing.read_key(sign) if sign is not None else None
    folder = build / recipe.name
    models = [finished_model(folder, target) for target in targets]
    shipped = [
        checked(recipe, folder, target, model, allow_not_run=allow_not_run, thorough=named if key else None)
        for target, model in zip(targets, models, strict=True)
    ]
    for target in targets:
        if str(target) in outdated:
            raise ArtifactError(
                f"{target} is not shipped: {OTHER_INPUTS} ({outdated[str(target)]}). Make it again with "
                f"`pocketbert run {shlex.quote(named)}`, or ship the present file with --stale."
            )
    roots = {backend: [into / place for place in places] for backend, places in DESTINATIONS.items()}
    placing.put(list(zip(models, shipped, strict=True)), roots, key)
    return [(one, [root / one.recipe / one.target for root in roots[one.backend]]) for one in shipped]


def checked(
    recipe: Recipe, folder: Path, target: Target, model: Artifact, *, allow_not_run: bool, thorough: str | None
) -> ShippedModel:
    """Return the content of a model's `shipped.json`, if the model's verdict allows shipping.

    `thorough` names the recipe for the command that an error suggests, where only a thorough verdict will do.
    """
    parity = verdict_on(model, folder, target)
    if parity.verdict == "failed":
        raise GateFailed(f"{target} is not shipped: its verdict is failed ({parity.reasons[0]}).")
    if parity.verdict == "not_run" and not allow_not_run:
        why = f"it was not run here ({parity.reasons[0]})"
        raise GateFailed(f"{target} is not shipped: {why}. --allow-not-run ships it all the same.")
    if thorough is not None:
        check_thorough(thorough, {str(target): parity.thorough}, "signed")
    offered, untried = formats.compute_units(target.backend, target.scheme)
    return ShippedModel(
        recipe=recipe.name,
        target=str(target),
        backend=target.backend,
        scheme=target.scheme,
        task=signature.read(model.path).task,
        verdict=parity.verdict,
        reasons=parity.reasons,
        evaluator=parity.evaluator,
        random_weights=parity.random_weights,
        licence=model.manifest.metrics["licence"],
        digest=model.digest,
        files=model.manifest.files,
        bytes=sum(entry.bytes for entry in model.manifest.files),
        compute_units=offered,
        untried_units=untried,
    )
