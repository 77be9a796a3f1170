"""What makes a checkpoint small, in its natural order: one function a section of the recipe. Imports nothing heavy.

Each stage turns a folder in Hugging Face layout into another one, so any of them can be left out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import factorise, prune, share, student, tasks, vocabulary
from pipeline.artifact import digest_of
from pipeline.distil import stage as distil
from pipeline.distil import start_checks
from pipeline.distil.section import StartSection
from pipeline.prune import calibration
from pipeline.recipe import Recipe
from pipeline.student import Source


@dataclass(frozen=True)
class Context:
    """What stages need to know besides the checkpoint before them."""

    recipe: Recipe
    recipe_file: Path
    """Relative files are meant from there."""
    unpruned: Source
    """The checkpoint before anything made it smaller, which may be the teacher."""
    folder: Path
    """The recipe's folder in the build folder."""


@dataclass(frozen=True)
class Work:
    """One stage, ready to be carried out."""

    version: int
    params: Mapping[str, Any]
    """What decides the result, besides the inputs."""
    distributions: tuple[str, ...]
    make: Callable[..., dict[str, Any]]
    """Fills the artifact's directory, its last argument; runs in a worker."""
    arguments: tuple[Any, ...]
    """The others."""
    seconds: float
    """Estimate, for MiniLM on two cores."""
    teacher: Source | None = None


@dataclass(frozen=True)
class Stage:
    """One row of the order."""

    name: str
    """Of the step, and of the recipe's section."""
    folder: str
    said: str
    """What it adds to the student's origin."""
    check: Callable[[Context, Source], None]
    """Refuses what cannot be carried out."""
    ready: Callable[[Context, Source], Work]


def stages(recipe: Recipe) -> list[Stage]:
    """Return the stages that a recipe asks for, in order."""
    return [stage for stage in STAGES if getattr(recipe, stage.name) is not None]


def after(stage: Stage, source: Source, folder: Path) -> Source:
    """Return what a stage made of a checkpoint."""
    return student.inspect_folder(folder, origin=f"{source.origin}, {stage.said}", licence=source.licence)


# --- one function each -------------------------------------------------------------------------------------------


def _check_start(context: Context, source: Source) -> None:
    assert context.recipe.start
    start_checks.check(context.recipe.start, source)


def _start(context: Context, source: Source) -> Work:
    section = context.recipe.start
    assert section
    params = {"settings": section.model_dump(mode="json")}
    return Work(1, params, ("torch", "transformers"), _make_start, (source.folder, section), 10)


def _make_start(source: Path, section: StartSection, out: Path) -> dict[str, Any]:
    from pipeline.distil import starts  # torch

    return starts.make(source, section, out)


def _check_vocabulary(context: Context, source: Source) -> None:
    section = context.recipe.vocabulary
    assert section
    texts = vocabulary.read(section, context.recipe_file)
    vocabulary.check(section, source, tasks.get(context.recipe.task), texts)


def _vocabulary(context: Context, source: Source) -> Work:
    section = context.recipe.vocabulary
    assert section
    texts = vocabulary.read(section, context.recipe_file)
    corpus = vocabulary.digests(section, context.recipe_file)
    params = {"settings": section.model_dump(mode="json"), "corpus": corpus}
    arguments = (source.folder, context.recipe.task, section, texts)
    return Work(vocabulary.VERSION, params, vocabulary.DISTRIBUTIONS, vocabulary.make, arguments, 30)


def _check_prune(context: Context, source: Source) -> None:
    assert context.recipe.prune
    prune.check(context.recipe.prune, source, tasks.get(context.recipe.task))


def _prune(context: Context, source: Source) -> Work:
    section = context.recipe.prune
    assert section
    texts = calibration.default_texts(section.calibration_texts, seed=section.seed)
    arguments = (source.folder, context.recipe.task, section, texts)
    return Work(prune.VERSION, _calibrated(context, section, texts), prune.DISTRIBUTIONS, prune.make, arguments, 90)


def _check_factorise(context: Context, source: Source) -> None:
    assert context.recipe.factorise
    factorise.check(context.recipe.factorise, source, tasks.get(context.recipe.task))


def _factorise(context: Context, source: Source) -> Work:
    section = context.recipe.factorise
    assert section
    texts = calibration.default_texts(section.calibration_texts, seed=section.seed)
    arguments = (source.folder, context.recipe.task, section, texts)
    params = _calibrated(context, section, texts)
    return Work(factorise.VERSION, params, factorise.DISTRIBUTIONS, factorise.make, arguments, 30)


def _calibrated(
    context: Context,
    section: prune.PruneSection | factorise.FactoriseSection,
    texts: list[calibration.Calibration],
) -> dict[str, Any]:
    return {"task": context.recipe.task, "settings": section.model_dump(mode="json"), "texts": digest_of(texts)}


def _check_share(context: Context, source: Source) -> None:
    assert context.recipe.share
    share.check(context.recipe.share, source, tasks.get(context.recipe.task))


def _share(context: Context, source: Source) -> Work:
    section = context.recipe.share
    assert section
    params = {"task": context.recipe.task, "settings": section.model_dump(mode="json")}
    arguments = (source.folder, context.recipe.task, section)
    return Work(share.VERSION, params, share.DISTRIBUTIONS, share.make, arguments, 20)


def _check_distil(context: Context, source: Source) -> None:
    section = context.recipe.distil
    assert section
    teacher = distil.teacher_of(section, context.unpruned, context.recipe_file)
    files = distil.files_of(section, context.recipe_file)
    distil.check(section, source, tasks.get(context.recipe.task), teacher, files)


def _distil(context: Context, source: Source) -> Work:
    section = context.recipe.distil
    assert section
    teacher = distil.teacher_of(section, context.unpruned, context.recipe_file)
    files = distil.files_of(section, context.recipe_file)
    arguments = (
        source.folder,
        teacher.folder if teacher else None,
        context.recipe.task,
        section,
        files,
        context.folder / "checkpoints-distil",
    )
    params = distil.order_params(section, context.recipe.task, files)
    return Work(distil.VERSION, params, distil.DISTRIBUTIONS, distil.make, arguments, 900, teacher)


STAGES = (
    Stage("start", "started", "begun smaller", _check_start, _start),
    Stage("vocabulary", "trimmed", "its vocabulary trimmed", _check_vocabulary, _vocabulary),
    Stage("prune", "pruned", "pruned", _check_prune, _prune),
    Stage("factorise", "factorised", "factorised", _check_factorise, _factorise),
    Stage("share", "shared", "its layers shared", _check_share, _share),
    Stage("distil", "distilled", "distilled", _check_distil, _distil),
)
"""In their order: what is cut out need not be decomposed, and what was lost is learnt again at the end."""
