"""[head] and [distil]: what each refuses, its work, and what it will leave."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline import tasks
from pipeline.checkpoint import layers
from pipeline.checkpoint.source import Source, inspect_folder
from pipeline.compress.distil import checks, dataset
from pipeline.compress.distil import stage as distil
from pipeline.compress.distil.dataset import DistilData
from pipeline.compress.prune.structure import head_count, stored_shape
from pipeline.compress.smaller import SOURCE, corpus_of
from pipeline.compress.stage import Context, Stage, Work
from pipeline.compress.vocabulary.trimming import trim
from pipeline.data.datasets import Dataset
from pipeline.errors import RecipeError
from pipeline.graph.node import Input, Scratch
from pipeline.recipe.compression import UNPRUNED, DistilSection
from pipeline.recipe.losses import LOSSES
from pipeline.recipe.schema import Recipe
from pipeline.text import tokenizers
from pipeline.text.encoding import Encoder
from pipeline.train.checks import MASKED_LM_SUFFIX

_SMALLER = ("start", "vocabulary", "prune", "factorise", "share")
"""Sections that give a student something to learn again."""


def own_data(context: Context) -> Dataset | None:
    """Return the labelled files of one's own that `[distil]` learns on, or None."""
    section = context.recipe.distil
    if section is None or section.train_file is None:
        return None
    return _data(context, section).dataset


def _check_head(context: Context, source: Source) -> None:
    section, task = context.recipe.head, tasks.get(context.recipe.task)
    assert section
    if task.uses_head:
        raise RecipeError(
            f"[head] gives the checkpoint a masked-LM head in the place of the one for {task.name}. Distil on plain "
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


def _head(context: Context, source: Source) -> Work:
    section = context.recipe.head
    assert section
    files = dataset.text_files(section, context.recipe_file)
    params = distil.order_params(section, context.recipe.task, DistilData(files))
    arguments = (SOURCE, section, files, Scratch())
    return Work(distil.VERSION, params, distil.DISTRIBUTIONS, distil.make_head, arguments, 900, trains=True)


def _expected_head(context: Context, source: Source) -> Source:
    return source.foretold(architectures=[MASKED_LM_SUFFIX])


def _teacher(context: Context, section: DistilSection) -> Source | None:
    return distil.teacher_of(section, context.unpruned, context.recipe_file, context.made)


def _data(context: Context, section: DistilSection) -> DistilData:
    task = tasks.get(context.recipe.task)
    return dataset.find_data(section, task, context.unpruned, context.recipe_file, context.made)


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
    factorised, pruned = context.recipe.factorise, context.recipe.prune
    if section.head == "masked_lm" and factorised and factorised.embedding is not None:
        raise RecipeError(
            "distil.head = 'masked_lm' is tied to the embedding table, which factorise.embedding splits into two "
            "factors before. Distil first, and factorise in a recipe of its own."
        )
    teacher, data = _teacher(context, section), _data(context, section)
    loses_heads = [name for name in ("attention_heads", "compute") if pruned and getattr(pruned, name) is not None]
    if loses_heads and teacher is not None:
        _check_fewer_heads(section, context.unpruned, teacher, loses_heads[0])
    checks.check(section, source, task, teacher, data)
    if teacher is not None and checks.token_losses(section, task):
        _check_trimmed(context, section, source, teacher, data)
    if teacher is context.unpruned and not _learns_more(context.recipe, section):
        smaller = ", ".join(f"[{name}]" for name in _SMALLER)
        raise RecipeError(
            "[distil] would have the student learn from itself: distil.teacher is the recipe's own checkpoint, and "
            f"nothing makes it smaller first. Name a teacher, or add one of {smaller}."
        )


def _check_fewer_heads(section: DistilSection, unpruned: Source, teacher: Source, asked: str) -> None:
    """Refuse losses by heads that need not go with as many as pruning will leave."""
    mine, theirs = head_count(unpruned.config), head_count(teacher.config)
    # A teacher of fewer heads, or a pruned one, may happen to have those; that is seen when both models are there.
    plain = teacher is unpruned or teacher.config.get("pocketbert") is None
    if "attention" in section.losses and plain and theirs >= mine:
        raise RecipeError(
            f"distil.losses.attention compares head by head, and prune.{asked} leaves the student fewer than "
            f"{_called(teacher, unpruned)} has. losses.relations does without equal heads, if relation_heads divides "
            "the size of one."
        )
    if "relations" not in section.losses:
        return
    size = stored_shape(unpruned).head_size
    if size % (section.relation_heads or theirs):
        said = "the teacher's heads" if section.relation_heads is None else f"relation_heads = {section.relation_heads}"
        raise RecipeError(
            f"distil.losses.relations: {said} need not divide the features that prune.{asked} leaves. Give a "
            f"distil.relation_heads that divides the {size} features of a head, such as {size // 2 or 1}."
        )


def _called(teacher: Source, unpruned: Source) -> str:
    return "the unpruned checkpoint" if teacher is unpruned else teacher.origin


def _check_trimmed(context: Context, section: DistilSection, source: Source, teacher: Source, data: DistilData) -> None:
    """Refuse losses token by token on texts that the trimmed vocabulary will cut otherwise than the teacher's.

    The stage itself finds out when it encodes its rows, which may be hours later.
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
    cut = trim(source.folder, trims.kept_size, corpus).tokenizer
    mine, theirs = (
        Encoder(tokenizer, section.max_length) for tokenizer in (cut, tokenizers.load_tokenizer(teacher.folder))
    )
    # Labels do not matter here.
    unlabelled = section.model_copy(update={"alpha": 0.0})
    both = [dataset.encode(one, unlabelled, task, None, texts, labels=()) for one in (mine, theirs)]
    dataset.check_same_tokens(mine, theirs, zip(*both, strict=True))


def _learns_more(recipe: Recipe, section: DistilSection) -> bool:
    """Return whether a student that learns from the recipe's own checkpoint has anything to learn."""
    changed = any(getattr(recipe, name) is not None for name in _SMALLER)
    alone = section.alpha == 0 and section.sparse is None and all(LOSSES[name].needs_teacher for name in section.losses)
    return changed or not alone


def _distil(context: Context, source: Source) -> Work:
    section, task = context.recipe.distil, tasks.get(context.recipe.task)
    assert section
    teacher, data = _teacher(context, section), _data(context, section)
    # The model that replaces words may not be made yet: it is an input, and not one of the parameters.
    known = replace(data, augmenter=None)
    learns_from: dict[str, str | None] = {}
    if teacher:
        learns_from["teacher"] = None if section.teacher == UNPRUNED else section.teacher
    if section.augment and data.augmenter:
        learns_from["augmenter"] = None if section.augment.model == UNPRUNED else section.augment.model
    folders = [Input(name) if name in learns_from else None for name in ("teacher", "augmenter")]
    arguments = (SOURCE, *folders, task.name, section, known, Scratch())
    params = distil.order_params(section, task.name, known)
    return Work(distil.VERSION, params, distil.DISTRIBUTIONS, _make_distil, arguments, 900, learns_from, trains=True)


def _make_distil(
    source: Path,
    teacher: Path | None,
    augmenter: Path | None,
    task_name: str,
    section: DistilSection,
    known: DistilData,
    scratch: Path,
    out: Path,
) -> dict[str, Any]:
    """Distil, as a node does it; see `distil.make`."""
    if augmenter:
        known = replace(known, augmenter=inspect_folder(augmenter, origin=augmenter.name, licence=None))
    return distil.make(source, teacher, task_name, section, known, scratch, out)


def _expected_distil(context: Context, source: Source) -> Source:
    """A student gets the head that it learns with."""
    section, task = context.recipe.distil, tasks.get(context.recipe.task)
    assert section
    if section.head == "masked_lm":
        return source.foretold(architectures=[MASKED_LM_SUFFIX])
    learnt: dict[str, Any] = {"architectures": [task.head_suffix]}
    if task.has_labels:
        names = dataset.head_labels(source, task, _teacher(context, section), _data(context, section).dataset)
        learnt["id2label"] = {str(number): name for number, name in enumerate(names)}
    return source.foretold(**learnt)


HEAD = Stage("head", "headed", "with a masked-LM head", _check_head, _head, _expected_head, teaches=True)
DISTIL = Stage("distil", "distilled", "distilled", _check_distil, _distil, _expected_distil)
