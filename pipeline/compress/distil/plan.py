"""The stages of `[head]` and `[distil]`: for each, the checks, the work of its node, and the trial."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline import tasks
from pipeline.architectures import layers
from pipeline.checkpoint.source import Source, inspect_folder
from pipeline.compress.common import SOURCE, Context, Stage, Work, updates_seconds
from pipeline.compress.distil import checks, dataset
from pipeline.compress.distil import stage as distil
from pipeline.compress.distil.dataset import DistilData
from pipeline.compress.vocabulary.stage import corpus_of, prompts_of
from pipeline.compress.vocabulary.trimming import trim
from pipeline.data.datasets import Dataset
from pipeline.data.retrieval import judged_texts
from pipeline.errors import RecipeError
from pipeline.execution.node import Cache, Input, Scratch
from pipeline.recipe.distillation import UNPRUNED, DistilSection
from pipeline.recipe.losses import LOSSES
from pipeline.recipe.schema import Recipe
from pipeline.text import tokenizers
from pipeline.text.encoding import Encoder
from pipeline.train.checks import has_masked_lm_head

_SMALLER = ("start", "vocabulary", "prune", "factorise", "share")
"""Sections behind which a student differs from the checkpoint."""


def labelled_data(context: Context) -> Dataset | None:
    """Return the user's labelled files that `[distil]` trains on, or None."""
    section = context.recipe.distil
    if section is None or section.train_file is None:
        return None
    return _data(context, section).dataset


def _check_head(context: Context, source: Source) -> None:
    section, task = context.recipe.head, tasks.get(context.recipe.task)
    assert section
    if task.uses_head:
        raise RecipeError(
            f"[head] gives the checkpoint a masked-LM head instead of the one for {task.name}. Distil on plain "
            "text in a recipe of task embedding first, and let its student be the next recipe's."
        )
    behind = [name for name in ("prune", "factorise", "share") if getattr(context.recipe, name) is not None]
    learns = context.recipe.distil
    if behind and not (learns and (learns.head == "masked_lm" or learns.augment)):
        raise RecipeError(
            f"[{behind[0]}] leaves the head behind that [head] trains, and no [distil] learns from it. Leave [head] "
            "out, or distil with head = 'masked_lm'."
        )
    checks.check_head(section, source, dataset.text_files(section, context.recipe_file))


def _head(context: Context) -> Work:
    section = context.recipe.head
    assert section
    files = dataset.text_files(section, context.recipe_file)
    params = distil.order_params(section, context.recipe.task, DistilData(files))
    arguments = (SOURCE, section, files, Scratch())
    seconds = updates_seconds(section, unless_known=900)
    return Work(distil.VERSION, params, distil.DISTRIBUTIONS, distil.make_head, arguments, seconds, trains=True)


def _try_head(context: Context, source: Source) -> Source:
    """Load the checkpoint with the head that is trained, on torch's meta device."""
    from pipeline.compress.distil.models import load_masked_lm
    from pipeline.train.model import outline

    section = context.recipe.head
    assert section
    model, _ = load_masked_lm(source, keeps_head=has_masked_lm_head(source), seed=section.seed)
    return outline(model, source)


def _teacher(context: Context, section: DistilSection) -> Source | None:
    return distil.teacher_of(section, context.unpruned, context.recipe_file, context.made)


def _data(context: Context, section: DistilSection) -> DistilData:
    task = tasks.get(context.recipe.task)
    data = dataset.find_data(section, task, context.unpruned, context.recipe_file, context.made)
    return replace(data, judged=judged_texts(context.recipe.verify.retrieval, context.recipe_file))


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
    if section.head == "masked_lm" and context.recipe.vocabulary and checks.needs_teacher(section):
        raise RecipeError(
            "distil.head = 'masked_lm' needs one vocabulary for student and teacher, and [vocabulary] trims the "
            "student's before. Distil first, and trim in a recipe of its own."
        )
    teacher, data = _teacher(context, section), _data(context, section)
    checks.check(section, source, task, teacher, data, context.unpruned if section.space == "own" else None)
    if teacher is not None and checks.token_losses(section, task):
        _check_trimmed(context, section, source, teacher, data)
    if teacher is context.unpruned and not _learns_more(context.recipe, section):
        smaller = ", ".join(f"[{name}]" for name in _SMALLER)
        raise RecipeError(
            "[distil] would have the student learn from itself: distil.teacher is the recipe's own checkpoint, and "
            f"nothing makes it smaller first. Name a teacher, or add one of {smaller}."
        )


def _check_trimmed(context: Context, section: DistilSection, source: Source, teacher: Source, data: DistilData) -> None:
    """Refuse losses token by token on texts that the trimmed vocabulary splits otherwise than the teacher's.

    The stage itself notices when it encodes its rows, which may be hours later.
    """
    trims, task = context.recipe.vocabulary, tasks.get(context.recipe.task)
    if trims is None:
        return
    if section.augment is not None:
        raise RecipeError(
            f"distil.losses.{checks.token_losses(section, task)[0]} compares token by token, and the words that "
            "[distil.augment] puts in need not be in the vocabulary that [vocabulary] keeps. Trim in a recipe of its "
            "own, or leave one of them out."
        )
    corpus = corpus_of(context, trims)
    texts = dataset.training_texts(section, task, data)
    known = set(corpus) if trims.kept_size(source.vocab_size) is None else set()
    if all({row.first, row.second or row.first} <= known for row in texts):
        # Every text of the corpus keeps its tokens.
        return
    tokenizer, whole = (tokenizers.load_tokenizer(one.folder) for one in (source, context.unpruned))
    if tokenizer.get_vocab_size() == whole.get_vocab_size():
        # A trial leaves the tokenizer as it is; once [vocabulary] is made, its artifact has the trimmed one.
        tokenizer = trim(source.folder, trims, corpus, prompts_of(source, task.name)).tokenizer
    mine, theirs = (Encoder(one, section.max_length) for one in (tokenizer, tokenizers.load_tokenizer(teacher.folder)))
    # Labels do not matter here.
    unlabelled = section.model_copy(update={"alpha": 0.0})
    both = [dataset.encode(one, unlabelled, task, None, texts, labels=()) for one in (mine, theirs)]
    dataset.check_same_tokens(mine, theirs, zip(*both, strict=True))


def _learns_more(recipe: Recipe, section: DistilSection) -> bool:
    """Return whether a student of the recipe's checkpoint has anything to learn from that checkpoint."""
    changed = any(getattr(recipe, name) is not None for name in _SMALLER)
    alone = section.alpha == 0 and section.sparse is None and all(LOSSES[name].needs_teacher for name in section.losses)
    return changed or not alone


def _distil(context: Context) -> Work:
    section, task = context.recipe.distil, tasks.get(context.recipe.task)
    assert section
    teacher, data = _teacher(context, section), _data(context, section)
    # The model that replaces words may not be made yet: it is an input, and not one of the parameters.
    known = replace(data, augmenter=None)
    others: dict[str, str | None] = {}
    if teacher:
        others["teacher"] = None if section.teacher == UNPRUNED else section.teacher
    if section.augment and data.augmenter:
        others["augmenter"] = None if section.augment.model == UNPRUNED else section.augment.model
    if section.space == "own":
        others["own"] = None
    folders = [Input(name) if name in others else None for name in ("teacher", "augmenter", "own")]
    arguments = (SOURCE, *folders, task.name, section, known, Scratch(), Cache())
    params = distil.order_params(section, task.name, known)
    seconds = updates_seconds(section, unless_known=900)
    return Work(distil.VERSION, params, distil.DISTRIBUTIONS, _make_distil, arguments, seconds, others, trains=True)


def _make_distil(
    source: Path,
    teacher: Path | None,
    augmenter: Path | None,
    own: Path | None,
    task_name: str,
    section: DistilSection,
    known: DistilData,
    scratch: Path,
    cache: Path,
    out: Path,
) -> dict[str, Any]:
    """Distil, as a node does it; see `distil.make`."""
    if augmenter:
        known = replace(known, augmenter=inspect_folder(augmenter, origin=augmenter.name, licence=None))
    return distil.make(source, teacher, task_name, section, known, scratch, out, own, cache)


def _try_distil(context: Context, source: Source) -> Source:
    """Load both models on torch's meta device, and compare their shapes."""
    from pipeline.compress.distil.models import begin_student, load_teacher
    from pipeline.train.model import outline

    section, task = context.recipe.distil, tasks.get(context.recipe.task)
    assert section
    teacher, data = _teacher(context, section), _data(context, section)
    student, _, _ = begin_student(source, teacher, task, section, data.dataset)
    if teacher is not None:
        checks.check_models(section, student, load_teacher(teacher, task, section))
    return outline(student, source)


HEAD = Stage(
    "head",
    folder="headed",
    origin="with a masked-LM head",
    check=_check_head,
    work=_head,
    trial=_try_head,
    teaches=True,
)
DISTIL = Stage("distil", folder="distilled", origin="distilled", check=_check_distil, work=_distil, trial=_try_distil)
