"""What cannot go well between a student and a teacher, found before anything heavy is imported."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.checkpoint import layers
from pipeline.checkpoint.source import Source
from pipeline.compress.distil import masked, material
from pipeline.compress.distil.material import Material
from pipeline.compress.distil.terms import EQUAL_WIDTHS, TERMS, WHOLE_UPDATES
from pipeline.compress.prune.parts import head_count, hidden_size, layer_count
from pipeline.errors import RecipeError, StudentError
from pipeline.recipe.compression import DEFAULT_TEMPERATURE, DistilSection, HeadSection
from pipeline.recipe.fields import Updates
from pipeline.tasks import Task
from pipeline.text import tokenizers
from pipeline.train.checks import check_precision, checkpoint_labels, class_of, has_head, has_masked_lm_head


def check(section: DistilSection, source: Source, task: Task, teacher: Source | None, found: Material) -> None:
    """Refuse a distillation that cannot go well.

    Args:
        section: the settings.
        source: the student to begin with.
        task: decides the head and the metric.
        teacher: None where no loss compares with one.
        found: what is learnt on.

    Raises:
        RecipeError: losses, layers or data that do not go together, or do not fit a checkpoint.
        InputError: texts or labels that are absent or malformed.
        StudentError: a teacher of another vocabulary, or without the head that is asked for.
    """
    check_precision(section, "distil")
    _check_losses(section, task)
    material.check(section, task, found)
    lines = material.plain(found.files)
    _check_lengths(section, "distil", [source] if teacher is None else [source, teacher])
    if section.head == "masked_lm" and found.files:
        masked.check_enough(tokenizers.load_tokenizer(source.folder), lines, length=section.max_length)
    if teacher is None and needs_teacher(section):
        raise RecipeError("distil.losses compare with a teacher, and there is none; name one in distil.teacher.")
    if teacher is not None:
        _check_tokens(section, task, source, teacher)
        _check_heads(section, task, source, teacher)
        _check_layers(section, source, teacher)
        _check_widths(section, source, teacher)
    # Labels of one's own files judge the student even where it learns nothing from them.
    asked = section.alpha > 0 or section.train_file is not None
    if asked and found.dataset is not None and task.has_labels:
        material.check_labels(source, task, teacher, found.dataset)


def check_head(section: HeadSection, source: Source, files: Sequence[Path]) -> None:
    """Refuse to train a masked-LM head where it cannot be done; see `check`."""
    check_precision(section, "head")
    lines = material.plain(files)
    _check_passes(section, "head")
    _check_lengths(section, "head", [source])
    _mask_token(source)
    masked.check_enough(tokenizers.load_tokenizer(source.folder), lines, length=section.max_length)


def needs_teacher(section: DistilSection) -> bool:
    """Return whether a loss compares with a teacher."""
    return any(TERMS[name].teacher for name in section.losses)


def mapping(section: DistilSection, student_layers: int, teacher_layers: int) -> tuple[int, ...]:
    """Return the teacher's layer, from 0, for each of the student's.

    Raises:
        RecipeError: they do not map.

    Source: Jiao et al. 2020 (TinyBERT), section 4.1, the uniform strategy g(m) = m · N / M, with layers from 1.
    """
    if section.teacher_layers == "uniform":
        if teacher_layers % student_layers:
            raise RecipeError(
                f"distil.teacher_layers = 'uniform': the teacher's {teacher_layers} layers do not divide by the "
                f"student's {student_layers}. Name one of the teacher's layers for each, such as teacher_layers = "
                f"{_some_layers(student_layers, teacher_layers)}."
            )
        each = teacher_layers // student_layers
        return tuple(each * (number + 1) - 1 for number in range(student_layers))
    named = section.teacher_layers
    if len(named) != student_layers:
        raise RecipeError(f"distil.teacher_layers names {len(named)} layers, and the student has {student_layers}.")
    beyond = [number for number in named if number >= teacher_layers]
    if beyond:
        raise RecipeError(f"distil.teacher_layers names layer {beyond[0]}; the teacher has 0 to {teacher_layers - 1}.")
    return named


def _some_layers(student_layers: int, teacher_layers: int) -> list[int]:
    if student_layers > teacher_layers:
        return [min(number, teacher_layers - 1) for number in range(student_layers)]
    return [round((number + 1) * teacher_layers / student_layers) - 1 for number in range(student_layers)]


def _check_losses(section: DistilSection, task: Task) -> None:
    for name in section.losses:
        if name not in TERMS:
            raise RecipeError(f"distil.losses.{name} does not exist; there are: {', '.join(TERMS)}.")
        term = TERMS[name]
        if section.head not in term.heads:
            raise RecipeError(f"distil.losses.{name} needs distil.head = {term.heads[0]!r}.")
        if section.head == "task" and task.output_kind not in term.kinds:
            able = ", ".join(one for one, row in TERMS.items() if task.output_kind in row.kinds and row.teacher)
            raise RecipeError(f"distil.losses.{name} does not fit task {task.name}; there are: {able}.")
        if name in WHOLE_UPDATES and section.gradient_accumulation > 1:
            raise RecipeError(
                f"distil.losses.{name} compares the rows of an update with each other; distil.gradient_accumulation "
                "has to be 1."
            )
        if name in WHOLE_UPDATES and section.batch_size == 1:
            raise RecipeError(f"distil.losses.{name} compares the rows of an update; distil.batch_size = 1 has one.")
    if section.teacher_layers != "uniform" and not any(TERMS[name].by_layer for name in section.losses):
        able = ", ".join(name for name, term in TERMS.items() if term.by_layer)
        raise RecipeError(
            f"distil.teacher_layers maps layers, and none of the losses compares any; those that do: {able}."
        )
    if section.relation_heads is not None and "relations" not in section.losses:
        raise RecipeError("distil.relation_heads is for losses.relations, which is not asked for.")
    # Both the default and 1, which `prediction` has, say nothing else than what is done.
    if section.temperature not in (1.0, DEFAULT_TEMPERATURE) and "soft_targets" not in section.losses:
        raise RecipeError(
            f"distil.temperature = {section.temperature:g} is for losses.soft_targets, which is not asked for."
        )
    _check_passes(section, "distil")
    if section.alpha == 1:
        raise RecipeError("distil.alpha = 1 leaves nothing of the losses; that is [train]. Give less than 1.")


def _check_passes(section: Updates, name: str) -> None:
    if section.epochs is not None and section.steps is not None:
        raise RecipeError(f"{name} has epochs and steps; give one of them.")


def _check_lengths(section: Updates, name: str, sources: Sequence[Source]) -> None:
    for source in sources:
        if section.max_length > source.max_length:
            limit = f"{source.origin}'s limit of {source.max_length} positions"
            raise RecipeError(f"{name}.max_length = {section.max_length} is beyond {limit}.")


def token_losses(section: DistilSection, task: Task) -> list[str]:
    """Return the losses that compare token by token, so that both sides need the same tokens."""
    levels = ["token"]
    if section.head == "masked_lm" or task.output_kind in ("token_logits", "spans"):
        levels.append("head")
    return [name for name in section.losses if TERMS[name].level in levels]


def same_vocabulary(source: Source, teacher: Source) -> bool:
    """Return whether both give each piece the same id."""
    return _vocabulary(source) == _vocabulary(teacher)


def _vocabulary(source: Source) -> dict[str, int]:
    found: dict[str, int] = tokenizers.load_tokenizer(source.folder).get_vocab()
    return found


def _check_tokens(section: DistilSection, task: Task, source: Source, teacher: Source) -> None:
    """Refuse token by token losses between vocabularies of which one is not a part of the other."""
    by_token = token_losses(section, task)
    if not by_token:
        return
    mine, theirs = _vocabulary(source), _vocabulary(teacher)
    if mine == theirs:
        return
    sizes = f"the student has {len(mine)} pieces and {teacher.origin} has {len(theirs)}"
    if section.head == "masked_lm":
        raise StudentError(
            f"the teacher has another vocabulary ({sizes}); on masked tokens both need the same. Distil first, and "
            "trim the vocabulary then."
        )
    # A trimmed vocabulary cuts a text that it was trimmed on as before; that it did is seen when the rows are encoded.
    if not mine.keys() <= theirs.keys():
        able = ", ".join(name for name, term in TERMS.items() if term.level == "row" and term.teacher)
        raise StudentError(
            f"the teacher has another vocabulary ({sizes}), so losses.{by_token[0]} has no tokens to compare. "
            f"Losses over whole texts need no common vocabulary: {able}."
        )


def _check_heads(section: DistilSection, task: Task, source: Source, teacher: Source) -> None:
    if section.head == "masked_lm":
        _mask_token(source)
        compared = [name for name in section.losses if "logits" in TERMS[name].needs and TERMS[name].teacher]
        if compared:
            check_trained_head(teacher)
            _check_rows_of_tables(compared[0], source, teacher)
        return
    if not task.uses_head or not any("logits" in TERMS[name].needs for name in section.losses):
        return
    if not has_head(task, teacher):
        saved = class_of(teacher)
        raise StudentError(f"the teacher {teacher.origin} has no head for {task.name}: it was saved as {saved}.")
    mine, theirs = checkpoint_labels(source), checkpoint_labels(teacher)
    if not task.fits(len(theirs)):
        raise StudentError(
            f"the head of the teacher {teacher.origin} gives {len(theirs)} numbers; task {task.name} has {task.widths}."
        )
    if has_head(task, source) and mine != theirs:
        raise StudentError(
            f"the student's labels are {', '.join(mine)}, and those of {teacher.origin} are {', '.join(theirs)}."
        )


def _check_rows_of_tables(name: str, source: Source, teacher: Source) -> None:
    mine, theirs = source.vocab_size, teacher.vocab_size
    if mine != theirs:
        raise StudentError(
            f"distil.losses.{name} compares masked-LM logits, and the student's table has {mine} rows (vocab_size in "
            f"config.json) where that of {teacher.origin} has {theirs}. Give both as many."
        )


def check_trained_head(teacher: Source) -> None:
    """Refuse a teacher that was saved without a masked-LM head."""
    if not has_masked_lm_head(teacher):
        saved = class_of(teacher)
        raise StudentError(
            f"the teacher {teacher.origin} has no trained masked-LM head: it was saved as {saved}. "
            "Train one on plain text first, by the recipe's [head], or distil states: cosine, hidden, relations."
        )


def _mask_token(source: Source) -> None:
    if mask_token_id(source.folder) is None:
        raise StudentError(f"the vocabulary of {source.origin} has no mask token, [MASK] or <mask>.")


def mask_token_id(folder: Path) -> int | None:
    """Return the id of the mask token, or None where there is none."""
    tokenizer = tokenizers.load_tokenizer(folder)
    found = [tokenizer.token_to_id(name) for name in ("[MASK]", "<mask>")]
    return next((number for number in found if number is not None), None)


def _check_layers(section: DistilSection, source: Source, teacher: Source) -> None:
    if any(TERMS[name].by_layer for name in section.losses):
        mapping(section, layer_count(source), layer_count(teacher))
    if not any("scores" in TERMS[name].needs for name in section.losses):
        return
    for one in (source, teacher):
        layers.layout_of(one.architecture.model_type)
    # Compressed layers have other numbers of heads than the config says; those are compared when both models are there.
    if any(one.config.get("pocketbert") is not None for one in (source, teacher)):
        return
    if "attention" in section.losses:
        refuse_heads(0, head_count(source.config), 0, head_count(teacher.config))
    if "relations" in section.losses:
        for one, whose in ((source, "student"), (teacher, "teacher")):
            refuse_columns(section.relation_heads or head_count(teacher.config), hidden_size(one), whose)


def refuse_heads(layer: int, mine: int, at: int, theirs: int) -> None:
    """Refuse to compare the attention of two layers head by head where they have different numbers of heads.

    Raises:
        RecipeError: with both numbers.
    """
    if mine != theirs:
        raise RecipeError(
            f"distil.losses.attention compares head by head, and layer {layer} of the student has {mine} where the "
            f"teacher's layer {at} has {theirs}. losses.relations does without equal heads."
        )


def refuse_columns(heads: int, columns: int, whose: str) -> None:
    """Refuse to split columns into heads that do not divide them.

    Raises:
        RecipeError: with both numbers.
    """
    if columns % heads:
        raise RecipeError(
            f"distil.relation_heads = {heads} does not divide the {columns} columns of the {whose}'s last layer; "
            "give a number that divides those of both."
        )


def _check_widths(section: DistilSection, source: Source, teacher: Source) -> None:
    """Refuse losses without a projection between states of different sizes."""
    mine, theirs = hidden_size(source), hidden_size(teacher)
    for name in EQUAL_WIDTHS:
        if name in section.losses and mine != theirs:
            raise RecipeError(
                f"distil.losses.{name} needs equal hidden sizes; the student has {mine} and the teacher {theirs}. "
                "hidden, relations and similarity do without."
            )
