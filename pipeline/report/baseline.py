"""A stored report and the files that it is of, checked before anything is compared with them."""

import os
from pathlib import Path

from pipeline import artifact, strict
from pipeline.artifact import Artifact, check_size
from pipeline.errors import InputError, no_file, no_folder
from pipeline.recipe.schema import Recipe
from pipeline.report.record import SCHEMA_VERSION, Report, StudentInfo


def read(file: Path) -> Report:
    """Read a `report.json` of anybody's.

    Raises:
        InputError: there is none, it is no report, or one that another version of PocketBERT wrote.
    """
    if not os.path.isfile(file):
        raise InputError(f"{file} {no_file(file)}; name a report.json, as `pocketbert report` writes it.")
    try:
        check_size(file)
        content = file.read_bytes()
        document = strict.parse(content)
        version = document.get("schema_version") if isinstance(document, dict) else None
        if type(version) is int and version != SCHEMA_VERSION and "targets" in document:
            older = version < SCHEMA_VERSION
            todo = "make it again with `pocketbert report`" if older else "it is newer: update PocketBERT"
            raise InputError(
                f"{file} is a report of schema {version}, and this version reads {SCHEMA_VERSION}; {todo}."
            )
        return strict.read(Report, content)
    except (ValueError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"{file} is no readable report ({reason}); name a whole report.json as `pocketbert report` writes it."
        ) from error


def check_recipe(baseline: Report, file: Path, recipe: Recipe) -> None:
    """Refuse a report that is of something else, before anything is made.

    Raises:
        InputError: it is of another recipe or task, or holds no target.
    """
    for what, theirs, ours in (
        ("recipe", baseline.recipe.get("name"), recipe.name),
        ("task", baseline.student.task, recipe.task),
    ):
        if theirs != ours:
            raise InputError(
                f"{file} is of {what} {theirs}, and {ours} is asked for; a report is compared with one of the same "
                f"{what} only. Name a report.json of {recipe.name}."
            )
    if not baseline.targets:
        raise InputError(f"{file} holds no target, so nothing can be compared with it; name a report of a whole run.")


def check_student(baseline: Report, file: Path, now: StudentInfo) -> None:
    """Refuse a report of another student; a retrained student, or another commit of it, is accepted.

    Raises:
        InputError: the students have different origins.
    """
    theirs, ours = (one.origin.partition("@")[0] for one in (baseline.student, now))
    if theirs != ours:
        raise InputError(
            f"{file} is of student {theirs}, and the recipe has {ours} now, so their figures are of different models. "
            "Take the report of a run with the new student as the baseline."
        )


def open_models(folder: Path, baseline: Report, file: Path) -> dict[str, Artifact]:
    """Return the model artifacts of a report's targets that lie in a folder, as `<folder>/<target>/model`.

    Every byte of them is checked against its manifest, and the whole against the report.

    Args:
        folder: a recipe's folder of an earlier build, or a copy of what is needed of it.
        baseline: the report.
        file: where it was read.

    Raises:
        InputError: there is no such folder, it holds none of the files, or one that the report is not of.
        ArtifactError: a file was changed after it was made.
    """
    if not os.path.isdir(folder):
        raise InputError(f"--baseline-models {folder} {no_folder(folder)}; name a folder with TARGET/model in it.")
    found = {}
    for target in baseline.targets:
        place = folder / target.name / "model"
        if not os.path.isdir(place):
            continue
        model = artifact.load(place)
        if model.digest != target.digest:
            raise InputError(
                f"{place} has the digest {model.digest[:12]}, and {file} is of {target.digest[:12]}: another file. "
                "Name the folder of the build that wrote the report."
            )
        found[target.name] = model
    if not found:
        names = ", ".join(target.name for target in baseline.targets)
        raise InputError(f"--baseline-models {folder} holds none of {names}; each belongs in TARGET/model below it.")
    return found
