"""Bundles: verified targets, a model card and a manifest in one folder, ready to be handed on.

A bundle is an artifact like any other: made again when a target, its verdict or its times changed, whole or not at all.
`pocketbert.json` lists every file; each target's folder is an artifact of its own, so `pipeline.load` opens it.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import __version__, artifact
from pipeline.artifact import Artifact, FileEntry, Manifest, Spec
from pipeline.convert.stage import Target
from pipeline.convert.targets import finished_model
from pipeline.errors import ArtifactError, GateFailed, PipelineError, no_folder
from pipeline.execution.node import versions
from pipeline.execution.store import Store
from pipeline.formats import signature
from pipeline.recipe.schema import Recipe
from pipeline.ship import card
from pipeline.ship.record import (
    BUNDLE,
    OTHER_INPUTS,
    Bundle,
    BundledStudent,
    BundledTarget,
    VerifiedTarget,
    check_thorough,
    read_bundle,
)
from pipeline.trust import signing
from pipeline.verify import record as parity_record
from pipeline.verify.record import Parity

CARD = "README.md"
FOLDER = "bundle"
BUNDLE_NAME = "bundle"
"""First part of the name under which a bundle is signed; the recipe's name follows."""
VERSION = 4


def make(
    recipe: Recipe,
    folder: Path,
    targets: Sequence[Target],
    repository: str,
    *,
    explicit: bool,
    allow_not_run: bool,
    outdated: Mapping[str, str],
    tell: Callable[[str], None],
    sign: Path | None = None,
) -> tuple[Path, Bundle]:
    """Write the bundle of a recipe's verified targets, or keep the one in place if nothing changed.

    Args:
        recipe: what was asked for.
        folder: the recipe's folder in the build folder.
        targets: of the recipe.
        repository: owner/name; the card's snippets name it.
        explicit: whether `targets` were named: then one that cannot go is an error, and is left out otherwise.
        allow_not_run: accept a verdict of `not_run`, and say so in the bundle.
        outdated: targets of other inputs than the recipe has now, with what changed; they do not go.
        tell: called if another run has to be waited for.
        sign: file with the private key that signs the bundle; then every verdict has to be a thorough one.

    Raises:
        GateFailed: a target that was named, or every target, has no verdict that lets it go.
        ArtifactError: something is absent, half-made or changed, or does not belong together.
    """
    if not folder.is_dir():
        raise ArtifactError(f"{folder} {no_folder(folder)}; make the recipe's targets with `pocketbert run` first.")
    key = signing.read_key(sign) if sign is not None else None
    student = artifact.load(folder / "student")
    if student.manifest.params["task"] != recipe.task:
        made_for = student.manifest.params["task"]
        raise ArtifactError(f"{folder} was made for task {made_for}, the recipe says {recipe.task}; run it again.")
    ready, left_out = _choose(
        recipe, folder, targets, student, explicit=explicit, allow_not_run=allow_not_run, outdated=outdated
    )
    if key is not None:
        check_thorough(recipe.name, {str(one.target): one.parity.thorough for one in ready}, "signed")
    timings = [artifact.load(place) for place in sorted(folder.glob("benchmark-*")) if place.is_dir()]
    spec = _spec(recipe, repository, student, ready, left_out, timings, key)
    fill = partial(_fill, recipe, repository, student, ready, left_out, timings, key)
    view = folder / FOLDER
    waiting = partial(tell, f"another run makes {view}; waiting for it")
    made, _ = Store(folder.parent).get(spec, view, fill, waiting=waiting)
    return view, read_bundle(made.path)


def _choose(
    recipe: Recipe,
    folder: Path,
    targets: Sequence[Target],
    student: Artifact,
    *,
    explicit: bool,
    allow_not_run: bool,
    outdated: Mapping[str, str],
) -> tuple[list[VerifiedTarget], dict[str, str]]:
    """Return the targets that may be bundled, and for each other target, by name, the reason why not."""
    ready: list[VerifiedTarget] = []
    left_out: dict[str, str] = {}
    error: type[PipelineError] = ArtifactError
    for target in targets:
        found = _verified(recipe, folder, target, student)
        obstacle = found if isinstance(found, str) else _obstacle(found.parity, allow_not_run=allow_not_run)
        reason = obstacle
        if reason is None and str(target) in outdated:
            reason = f"{OTHER_INPUTS} ({outdated[str(target)]}); run it again, or push what is there with --stale"
        if isinstance(found, VerifiedTarget) and reason is None:
            ready.append(found)
            continue
        left_out[str(target)] = reason or ""
        # A verdict that does not let the file go is a gate; everything else is an artifact that is not there.
        said = found.parity.reasons[:1] if isinstance(found, VerifiedTarget) and obstacle is not None else None
        error = error if said is None else GateFailed
        if explicit:
            why = "; ".join([str(reason), *(said or [])])
            raise error(f"{target} is not pushed: {why}.")
    if not ready:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise error(f"no target of {recipe.name} can be pushed: {reasons}.")
    return ready, left_out


def _obstacle(parity: Parity, *, allow_not_run: bool) -> str | None:
    """Say why a verdict does not let a file go; the words go into the card, and a reason may hold a path."""
    if parity.verdict == "failed":
        gates = [gate.name for gate in parity.gates if not gate.passed]
        for name, head in parity.heads.items():
            gates += [f"{name}: {gate.name}" for gate in head.gates if not gate.passed]
        return f"its verdict is failed ({', '.join(gates) or 'it does not run'})"
    if parity.verdict == "not_run" and not allow_not_run:
        return "it was not run (--allow-not-run takes it all the same)"
    return None


def _verified(recipe: Recipe, folder: Path, target: Target, student: Artifact) -> VerifiedTarget | str:
    """Return a target with the verdict on exactly this file, or say that it was never made.

    Raises:
        ArtifactError: what is there does not belong together.
    """
    place = folder / str(target)
    if not (place / "model").exists():
        return "it was not made; run `pocketbert run`"
    if not (place / "parity").exists():
        return "it was not verified; run `pocketbert verify`"
    model, judged = finished_model(folder, target), artifact.load(place / "parity")
    if judged.manifest.inputs.get("model") != model.digest:
        raise ArtifactError(f"{target} changed after it was verified; run `pocketbert verify` again.")
    if judged.manifest.inputs.get("student") != student.digest:
        raise ArtifactError(f"{target} was judged against another student; run `pocketbert verify` again.")
    if judged.manifest.params.get("gates") != recipe.gates(target.scheme).model_dump(mode="json"):
        raise ArtifactError(f"{target} was judged by other gates than the recipe's; run `pocketbert verify` again.")
    return VerifiedTarget(target, model, judged, parity_record.read_parity(judged.path), signature.read(model.path))


def _spec(
    recipe: Recipe,
    repository: str,
    student: Artifact,
    ready: Sequence[VerifiedTarget],
    left_out: Mapping[str, str],
    timings: Sequence[Artifact],
    key: signing.PrivateKey | None,
) -> Spec:
    inputs = {"student": student.digest}
    inputs |= {f"model {one.target}": one.model.digest for one in ready}
    inputs |= {f"parity {one.target}": one.judged.digest for one in ready}
    inputs |= {timing.path.name: timing.digest for timing in timings}
    params = {
        "recipe": recipe.model_dump(mode="json"),
        "repository": repository,
        "left_out": dict(left_out),
        "student": {"params": student.manifest.params, "metrics": student.manifest.metrics},
        "manifests": {str(one.target): one.model.manifest.metrics for one in ready},
        "signed_by": signing.fingerprint(key.public_key()) if key else None,
        "template": artifact.sha256_file(card.TEMPLATES / card.TEMPLATE),
    }
    return Spec("bundle", VERSION, params, inputs, {"pocketbert": __version__} | versions("jinja2"))


def _fill(
    recipe: Recipe,
    repository: str,
    student: Artifact,
    ready: Sequence[VerifiedTarget],
    left_out: Mapping[str, str],
    timings: Sequence[Artifact],
    key: signing.PrivateKey | None,
    out: Path,
) -> dict[str, Any]:
    """Copy the targets, write the card, and list everything in the manifest."""
    members = [_copy(one, out / str(one.target)) for one in ready]
    made = student.manifest
    bundle = Bundle(
        pocketbert=__version__,
        recipe=recipe.name,
        task=recipe.task,
        student=BundledStudent(
            origin=made.params["origin"],
            licence=made.params["licence"],
            digest=student.digest,
            model_type=made.metrics["model_type"],
            parameters=made.metrics["parameters"],
            random_weights=made.params["random_weights"],
        ),
        targets=members,
        left_out=dict(left_out),
        files=[],
    )
    text = card.render(recipe, bundle, repository, made, ready, [timing.path for timing in timings])
    (out / CARD).write_bytes(text.encode("utf-8"))
    bundle = bundle.model_copy(update={"files": _every_file(out)})
    (out / BUNDLE).write_text(bundle.model_dump_json(indent=1) + "\n", encoding="utf-8")
    if key is not None:
        signing.sign(out, f"{BUNDLE_NAME}/{recipe.name}", key, ignored=[artifact.MANIFEST])
    return {"targets": [member.target for member in members], "bytes": sum(entry.bytes for entry in bundle.files)}


def _every_file(folder: Path) -> list[FileEntry]:
    """Return every file below a folder, the targets' manifests included."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [
        FileEntry(
            path=path.relative_to(folder).as_posix(), sha256=artifact.sha256_file(path), bytes=path.stat().st_size
        )
        for path in paths
    ]


def _copy(one: VerifiedTarget, place: Path) -> BundledTarget:
    """Copy a target's model folder and its verdict, check every byte, and make the copy an artifact of its own."""
    place.mkdir()
    for source in (one.model, one.judged):
        for entry in source.manifest.files:
            path = place / entry.path
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.path / entry.path, path)
            if artifact.sha256_file(path) != entry.sha256:
                raise ArtifactError(
                    f"{source.path / entry.path} changed while it was copied; run `pocketbert run` again."
                )
    files = artifact.list_files(place)
    manifest = Manifest(
        schema_version=artifact.SCHEMA_VERSION,
        stage="bundle",
        stage_version=VERSION,
        key=one.model.manifest.key,
        inputs={"model": one.model.digest, "parity": one.judged.digest},
        params=one.model.manifest.params,
        metrics=one.model.manifest.metrics,
        tools=one.model.manifest.tools,
        files=files,
    )
    artifact.write_manifest(place, manifest)
    return BundledTarget(
        target=str(one.target),
        backend=one.target.backend,
        scheme=one.target.scheme,
        verdict=one.parity.verdict,
        reasons=one.parity.reasons,
        thorough=one.parity.thorough,
        evaluator=one.parity.evaluator,
        evaluator_stands_in=one.parity.evaluator_stands_in,
        digest=one.model.digest,
        file=one.signature.file,
        minimum_runtime=one.signature.minimum_runtime,
        bytes=sum(entry.bytes for entry in files) + (place / artifact.MANIFEST).stat().st_size,
    )
