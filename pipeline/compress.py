"""What makes a checkpoint small, in its natural order: one function a section of the recipe. Imports nothing heavy.

Each stage turns a folder in Hugging Face layout into another one, so any of them can be left out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline import factorise, layers, prune, share, student, tasks, vocabulary
from pipeline.artifact import digest_of
from pipeline.corpus import Unlabelled
from pipeline.data import Dataset
from pipeline.distil import checks as distil_checks
from pipeline.distil import material, start_checks
from pipeline.distil import stage as distil
from pipeline.distil.section import UNPRUNED, DistilSection, StartSection
from pipeline.distil.terms import TERMS
from pipeline.errors import RecipeError
from pipeline.prune import calibration
from pipeline.recipe import Recipe
from pipeline.student import Made, Source
from pipeline.training.checks import has_head


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
    made: Made = field(default_factory=dict)
    """By other recipes."""
    texts: dict[str, list[Any]] = field(default_factory=dict)
    """What sections rest on without labels, once it was read: by their names."""


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
    checkpoints: Path | None = None
    """Folder for what a run that was stopped goes on from; it goes when the artifact is whole."""


def _as_it_is(context: Context, source: Source) -> Source:
    return source


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
    expected: Callable[[Context, Source], Source] = _as_it_is
    """The checkpoint as the stage will leave it, as far as checks of later ones can know it before."""
    teaches: bool = False
    """Whether what it makes is the unpruned checkpoint from then on."""


def stages(recipe: Recipe) -> list[Stage]:
    """Return the stages that a recipe asks for, in order."""
    return [stage for stage in STAGES if getattr(recipe, stage.name) is not None]


def after(stage: Stage, source: Source, folder: Path) -> Source:
    """Return what a stage made of a checkpoint."""
    return student.inspect_folder(folder, origin=f"{source.origin}, {stage.said}", licence=source.licence)


def own_data(context: Context) -> Dataset | None:
    """Return the labelled files of one's own that `[distil]` learns on, or None."""
    section = context.recipe.distil
    if section is None or section.train_file is None:
        return None
    return _material(context, section).dataset


# --- one function each -------------------------------------------------------------------------------------------


def _keep_zeros(context: Context, section: str) -> None:
    """Refuse what would fill the zeros of an earlier section."""
    recipe = context.recipe
    made = [name for name, one in (("train", recipe.train), ("prune", recipe.prune)) if one and one.sparse]
    if made and made[0] != section:
        raise RecipeError(
            f"[{section}] gives the linears new numbers, and those that [{made[0]}.sparse] made zero would not stay "
            "zero. Leave one of them out; [distil.sparse] comes after all the others."
        )


def _check_head(context: Context, source: Source) -> None:
    section, task = context.recipe.head, tasks.get(context.recipe.task)
    assert section
    if task.uses_head:
        raise RecipeError(
            f"[head] gives the checkpoint a masked-LM head in the place of the one for {task.name}. Distil on plain "
            "text in a recipe of task embedding first, and let its student be the next recipe's."
        )
    distil_checks.check_head(section, source, material.files(section, context.recipe_file))


def _head(context: Context, source: Source) -> Work:
    section = context.recipe.head
    assert section
    files = material.files(section, context.recipe_file)
    checkpoints = context.folder / "checkpoints-head"
    params = distil.order_params(section, context.recipe.task, material.Material(files))
    arguments = (source.folder, section, files, checkpoints)
    make = distil.make_head
    return Work(distil.VERSION, params, distil.DISTRIBUTIONS, make, arguments, 900, checkpoints=checkpoints)


def _expected_head(context: Context, source: Source) -> Source:
    return replace(source, config={**source.config, "architectures": [material.MASKED_LM]})


def _check_start(context: Context, source: Source) -> None:
    assert context.recipe.start
    start_checks.check(context.recipe.start, source)


def _start(context: Context, source: Source) -> Work:
    section = context.recipe.start
    assert section
    params = {"settings": section.model_dump(mode="json")}
    return Work(start_checks.VERSION, params, ("torch", "transformers"), _make_start, (source.folder, section), 10)


def _expected_start(context: Context, source: Source) -> Source:
    assert context.recipe.start
    return start_checks.expected(context.recipe.start, source)


def _make_start(source: Path, section: StartSection, out: Path) -> dict[str, Any]:
    from pipeline.distil import starts  # torch

    return starts.make(source, section, out)


def _check_vocabulary(context: Context, source: Source) -> None:
    section = context.recipe.vocabulary
    assert section
    vocabulary.check(section, source, tasks.get(context.recipe.task), _corpus(context, section))


def _vocabulary(context: Context, source: Source) -> Work:
    section = context.recipe.vocabulary
    assert section
    texts = _corpus(context, section)
    corpus = vocabulary.digests(section, context.recipe_file)
    params = {"settings": section.model_dump(mode="json"), "corpus": corpus}
    arguments = (source.folder, context.recipe.task, section, texts)
    return Work(vocabulary.VERSION, params, vocabulary.DISTRIBUTIONS, vocabulary.make, arguments, 30)


def _corpus(context: Context, section: vocabulary.VocabularySection) -> list[str]:
    """Return the corpus, which the check and the work share."""
    if "vocabulary" not in context.texts:
        context.texts["vocabulary"] = vocabulary.read(section, context.recipe_file)
    return context.texts["vocabulary"]


def _need_head(context: Context, source: Source, section: str) -> None:
    """Refuse a checkpoint without the head that the stage works with."""
    task = tasks.get(context.recipe.task)
    if task.uses_head and not has_head(task, source):
        raise RecipeError(
            f"[{section}] takes a model with its head, and {source.origin} has none for task {task.name}: it is saved "
            f"as {material.saved_as(source)}. Add [train], or a start that keeps the head, or do this in a recipe of "
            "task embedding."
        )


def _check_prune(context: Context, source: Source) -> None:
    assert context.recipe.prune
    _need_head(context, source, "prune")
    if context.recipe.prune.cuts:
        _keep_zeros(context, "prune")
    prune.check(context.recipe.prune, source, tasks.get(context.recipe.task))
    _texts(context, "prune", context.recipe.prune)


def _prune(context: Context, source: Source) -> Work:
    section = context.recipe.prune
    assert section
    texts = _texts(context, "prune", section)
    arguments = (source.folder, context.recipe.task, section, texts)
    params = _calibrated(context, section, texts)
    if section.costs == "latency":
        params["latency"] = prune.LATENCY_VERSION
    return Work(prune.VERSION, params, prune.DISTRIBUTIONS, prune.make, arguments, 90)


def _expected_prune(context: Context, source: Source) -> Source:
    assert context.recipe.prune
    layers, hidden = context.recipe.prune.layers, context.recipe.prune.hidden
    if not context.recipe.prune.cuts:
        return source
    if layers is not None:
        source = start_checks.with_layers(source, layers if isinstance(layers, int) else len(layers))
    if hidden is not None:
        source = start_checks.with_hidden_size(source, hidden)
    # From here on the config does not tell how many heads a layer has.
    return replace(source, config={**source.config, "pocketbert": source.config.get("pocketbert") or {}})


def _check_factorise(context: Context, source: Source) -> None:
    assert context.recipe.factorise
    _need_head(context, source, "factorise")
    if context.recipe.factorise.feed_forward is not None:
        _keep_zeros(context, "factorise")
    factorise.check(context.recipe.factorise, source, tasks.get(context.recipe.task))
    _texts(context, "factorise", context.recipe.factorise)


def _factorise(context: Context, source: Source) -> Work:
    section = context.recipe.factorise
    assert section
    texts = _texts(context, "factorise", section)
    arguments = (source.folder, context.recipe.task, section, texts)
    params = _calibrated(context, section, texts)
    return Work(factorise.VERSION, params, factorise.DISTRIBUTIONS, factorise.make, arguments, 30)


def _texts(context: Context, name: str, section: prune.PruneSection | factorise.FactoriseSection) -> list[Unlabelled]:
    """Return the calibration texts, which the check and the work share; none where none are looked at."""
    count, seed, asked = section.calibration_texts, section.seed, f"{name}.calibration"
    if not section.calibrated:
        if section.calibration:
            raise RecipeError(f"{asked} names texts, and [{name}] as it is set looks at none; leave it out.")
        return []
    if name not in context.texts:
        found = calibration.texts(section.calibration, context.recipe_file, count, seed=seed, asked=asked)
        context.texts[name] = found
    return context.texts[name]


def _calibrated(
    context: Context,
    section: prune.PruneSection | factorise.FactoriseSection,
    texts: list[Unlabelled],
) -> dict[str, Any]:
    settings = section.model_dump(mode="json", exclude={"calibration"})
    return {"task": context.recipe.task, "settings": settings, "texts": digest_of(texts)}


def _check_share(context: Context, source: Source) -> None:
    assert context.recipe.share
    if context.recipe.share.start == "average":
        _keep_zeros(context, "share")
    start, pruned = context.recipe.start, context.recipe.prune
    if start and start.kind in ("albert", "shared"):
        raise RecipeError(f"start.kind = {start.kind!r} ties all layers already; leave [share] out.")
    if pruned and pruned.counts and not pruned.even:
        raise RecipeError(
            "[prune] keeps heads and rows wherever they matter, and layers of different shapes cannot be tied by "
            "[share]. Give prune.even = true, which keeps as many in each layer."
        )
    _need_head(context, source, "share")
    share.check(context.recipe.share, source, tasks.get(context.recipe.task))


def _share(context: Context, source: Source) -> Work:
    section = context.recipe.share
    assert section
    params = {"task": context.recipe.task, "settings": section.model_dump(mode="json")}
    arguments = (source.folder, context.recipe.task, section)
    return Work(share.VERSION, params, share.DISTRIBUTIONS, share.make, arguments, 20)


def _teacher(context: Context, section: DistilSection) -> Source | None:
    return distil.teacher_of(section, context.unpruned, context.recipe_file, context.made)


def _material(context: Context, section: DistilSection) -> material.Material:
    task = tasks.get(context.recipe.task)
    return material.find(section, task, context.unpruned, context.recipe_file, context.made)


def _check_distil(context: Context, source: Source) -> None:
    section = context.recipe.distil
    assert section
    if section.sparse is not None:
        layers.layout_of(source.architecture.model_type)
    task = tasks.get(context.recipe.task)
    if section.head == "masked_lm" and task.uses_head:
        raise RecipeError(
            f"distil.head = 'masked_lm' leaves a student without a head for {task.name}. Distil on plain text in a "
            "recipe of task embedding first, and let its student be the next recipe's."
        )
    if section.head == "masked_lm" and context.recipe.vocabulary and distil_checks.needs_teacher(section):
        raise RecipeError(
            "distil.head = 'masked_lm' needs one vocabulary for student and teacher, and [vocabulary] trims the "
            "student's before. Distil first, and trim in a recipe of its own."
        )
    factorised, pruned = context.recipe.factorise, context.recipe.prune
    if section.head == "masked_lm" and factorised and factorised.embedding is not None:
        raise RecipeError(
            "distil.head = 'masked_lm' is tied to the table of words, which factorise.embedding puts into two factors "
            "before. Distil first, and factorise in a recipe of its own."
        )
    if "attention" in section.losses and section.teacher == UNPRUNED and pruned and pruned.heads is not None:
        raise RecipeError(
            "distil.losses.attention compares head by head, and prune.heads leaves the student fewer than the "
            "unpruned checkpoint has. losses.relations does without equal heads."
        )
    teacher, found = _teacher(context, section), _material(context, section)
    distil_checks.check(section, source, task, teacher, found)
    if teacher is context.unpruned and not _learns_more(context.recipe, section):
        smaller = ", ".join(f"[{stage.name}]" for stage in STAGES if not stage.teaches and stage.name != "distil")
        raise RecipeError(
            "[distil] would have the student learn from itself: distil.teacher is the recipe's own checkpoint, and "
            f"nothing makes it smaller first. Name a teacher, or add one of {smaller}."
        )


def _learns_more(recipe: Recipe, section: DistilSection) -> bool:
    """Return whether a student that learns from the recipe's own checkpoint has anything to learn."""
    changed = any(not stage.teaches and stage.name != "distil" for stage in stages(recipe))
    alone = section.alpha == 0 and section.sparse is None and all(TERMS[name].teacher for name in section.losses)
    return changed or not alone


def _distil(context: Context, source: Source) -> Work:
    section, task = context.recipe.distil, tasks.get(context.recipe.task)
    assert section
    teacher, found = _teacher(context, section), _material(context, section)
    checkpoints = context.folder / "checkpoints-distil"
    arguments = (source.folder, teacher.folder if teacher else None, task.name, section, found, checkpoints)
    params = distil.order_params(section, task.name, found)
    return Work(distil.VERSION, params, distil.DISTRIBUTIONS, distil.make, arguments, 900, teacher, checkpoints)


def _expected_distil(context: Context, source: Source) -> Source:
    """A student gets the head that it learns with."""
    section, task = context.recipe.distil, tasks.get(context.recipe.task)
    assert section
    if section.head == "masked_lm":
        return replace(source, config={**source.config, "architectures": [material.MASKED_LM]})
    learnt: dict[str, Any] = {"architectures": [task.head_suffix]}
    if task.has_labels:
        names = material.labels(source, task, _teacher(context, section), _material(context, section).dataset)
        learnt["id2label"] = {str(number): name for number, name in enumerate(names)}
    return replace(source, config={**source.config, **learnt})


STAGES = (
    Stage("head", "headed", "with a masked-LM head", _check_head, _head, _expected_head, teaches=True),
    Stage("start", "started", "begun smaller", _check_start, _start, _expected_start),
    Stage("vocabulary", "trimmed", "its vocabulary trimmed", _check_vocabulary, _vocabulary),
    Stage("prune", "pruned", "pruned", _check_prune, _prune, _expected_prune),
    Stage("factorise", "factorised", "factorised", _check_factorise, _factorise),
    Stage("share", "shared", "its layers shared", _check_share, _share),
    Stage("distil", "distilled", "distilled", _check_distil, _distil, _expected_distil),
)
"""In their order: a teacher's head first; what is cut out need not be decomposed, and what was lost is learnt again at
the end."""
