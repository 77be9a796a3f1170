"""Checks that a distillation's settings, data and checkpoints fit each other. No toolchain is imported."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.architectures.layers import Layer, width
from pipeline.checkpoint import sentences
from pipeline.checkpoint.source import Source
from pipeline.compress.distil import dataset
from pipeline.compress.distil.dataset import DistilData
from pipeline.compress.distil.masked_lm import check_enough_text
from pipeline.compress.prune.structure import layer_sequence
from pipeline.errors import RecipeError, StudentError
from pipeline.heads import sentence
from pipeline.recipe.distillation import DEFAULT_TEMPERATURE, DistilSection, HeadSection
from pipeline.recipe.fields import Updates
from pipeline.recipe.losses import EQUAL_HIDDEN_SIZES, LOSSES, OF_VECTORS, WITHIN_UPDATE
from pipeline.tasks import Task
from pipeline.text import tokenizers
from pipeline.train.checks import check_precision, class_of, has_head, has_masked_lm_head


def check(
    section: DistilSection,
    source: Source,
    task: Task,
    teacher: Source | None,
    data: DistilData,
    own: Source | None = None,
) -> None:
    """Refuse a distillation that cannot succeed.

    Args:
        section: the settings.
        source: the student to begin with.
        task: decides the head and the metric.
        teacher: None if no loss needs one.
        data: what the student is trained on.
        own: the checkpoint before compression, for `space = "own"`.

    Raises:
        RecipeError: losses and data do not fit each other or a checkpoint; `check_models` tells whether shapes do.
        InputError: texts or labels are absent or malformed.
        StudentError: the teacher has another vocabulary, or lacks the head that is compared.
    """
    check_precision(section, "distil")
    _check_kinds(section, source, teacher)
    _check_losses(section, task)
    dataset.check_data(section, task, data)
    lines = dataset.unlabelled_texts(data)
    _check_lengths(section, "distil", [source] if teacher is None else [source, teacher])
    if section.head == "masked_lm" and data.has_texts:
        check_enough_text(tokenizers.load_tokenizer(source.folder), lines, length=section.max_length)
    if teacher is None and needs_teacher(section):
        raise RecipeError("distil.losses compare with a teacher, and there is none. Name one in distil.teacher.")
    if section.space == "own":
        _check_own(section, teacher, own)
    elif own is not None:
        raise RecipeError(f"--own {own.origin} is for distil.space = 'own', and the settings have no such space.")
    if teacher is not None:
        _check_tokens(section, task, source, teacher)
        _check_heads(section, task, source, teacher)
    # A user's own labels evaluate the student even if it is not trained on them.
    uses_labels = section.alpha > 0 or section.train_file is not None
    if uses_labels and data.dataset is not None and task.has_labels:
        dataset.check_labels(source, task, teacher, data.dataset)


def check_head(section: HeadSection, source: Source, files: Sequence[Path]) -> None:
    """Refuse training of a masked-LM head that cannot succeed; see `check`."""
    check_precision(section, "head")
    lines = dataset.plain_lines(files)
    _check_passes(section, "head")
    _check_lengths(section, "head", [source])
    _mask_token(source)
    check_enough_text(tokenizers.load_tokenizer(source.folder), lines, length=section.max_length)


def needs_teacher(section: DistilSection) -> bool:
    """Return whether a loss compares with a teacher."""
    return any(LOSSES[name].needs_teacher for name in section.losses)


def map_layers(section: DistilSection, student_layers: int, teacher_layers: int) -> tuple[int, ...]:
    """Return the teacher's layer, from 0, for each of the student's.

    Raises:
        RecipeError: the numbers of layers do not fit.

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
        loss = LOSSES[name]
        if section.head not in loss.heads:
            raise RecipeError(f"distil.losses.{name} needs distil.head = {loss.heads[0]!r}.")
        if section.head == "task" and task.output_kind not in loss.kinds:
            able = ", ".join(one for one, row in LOSSES.items() if task.output_kind in row.kinds and row.needs_teacher)
            raise RecipeError(f"distil.losses.{name} does not fit task {task.name}; there are: {able}.")
        if name in WITHIN_UPDATE and section.gradient_accumulation > 1:
            raise RecipeError(
                f"distil.losses.{name} compares the rows of an update with each other; set "
                "distil.gradient_accumulation = 1."
            )
        if name in WITHIN_UPDATE and section.batch_size == 1:
            raise RecipeError(f"distil.losses.{name} compares the rows of an update, and distil.batch_size is 1.")
    if section.teacher_layers != "uniform" and not any(LOSSES[name].maps_layers for name in section.losses):
        able = ", ".join(name for name, loss in LOSSES.items() if loss.maps_layers)
        raise RecipeError(
            f"distil.teacher_layers maps layers, and none of the losses compares layers; those that do: {able}."
        )
    if section.relation_heads is not None and "relations" not in section.losses:
        raise RecipeError("distil.relation_heads is for losses.relations, which is not in distil.losses.")
    # The default, and the 1 of `prediction`, contradict nothing.
    if section.temperature not in (1.0, DEFAULT_TEMPERATURE) and "soft_targets" not in section.losses:
        raise RecipeError(
            f"distil.temperature = {section.temperature:g} is for losses.soft_targets, which is not in distil.losses."
        )
    if section.space == "teacher" and not any(name in section.losses for name in OF_VECTORS):
        raise RecipeError(
            "distil.space = 'teacher' is for embeddings that become the teacher's, and none of distil.losses compares "
            f"them number by number; those that do: {', '.join(OF_VECTORS)}."
        )
    if section.neighbours is not None:
        _check_neighbours(section)
    _check_passes(section, "distil")
    if section.alpha == 1:
        raise RecipeError("distil.alpha = 1 leaves no weight for distil.losses. Give less than 1, or use [train].")


def _check_neighbours(section: DistilSection) -> None:
    """Refuse neighbours without a loss that compares them, or without embeddings by which they are found."""
    if not any(name in section.losses for name in WITHIN_UPDATE):
        raise RecipeError(
            "distil.neighbours brings texts that are near each other into one update, and none of distil.losses "
            f"compares the texts of an update; those that do: {', '.join(WITHIN_UPDATE)}."
        )
    others = _not_of_embeddings(section)
    if others:
        raise RecipeError(
            "distil.neighbours are found by the teacher's embeddings of all texts, which are not kept beside what "
            f"distil.losses.{others[0]} compares. Leave one of them out."
        )


def _not_of_embeddings(section: DistilSection) -> list[str]:
    """Return the losses that compare anything but embeddings of whole texts."""
    return [name for name in section.losses if LOSSES[name].outputs != ("sentence",)]


def _check_passes(section: Updates, name: str) -> None:
    if section.epochs is not None and section.steps is not None:
        raise RecipeError(f"{name} has epochs and steps; give one of them.")


def _check_lengths(section: Updates, name: str, sources: Sequence[Source]) -> None:
    for source in sources:
        if section.max_length > source.max_length:
            limit = f"{source.origin}'s limit of {source.max_length} positions"
            raise RecipeError(f"{name}.max_length = {section.max_length} is beyond {limit}.")


def token_losses(section: DistilSection, task: Task) -> list[str]:
    """Return the losses that compare token by token, so that both models need the same tokens."""
    alignments = ["token"]
    if section.head == "masked_lm" or task.output_kind in ("token_logits", "spans"):
        alignments.append("head")
    return [name for name in section.losses if LOSSES[name].alignment in alignments]


def _vocabulary(source: Source) -> dict[str, int]:
    vocabulary: dict[str, int] = tokenizers.load_tokenizer(source.folder).get_vocab()
    return vocabulary


def _check_own(section: DistilSection, teacher: Source | None, own: Source | None) -> None:
    """Refuse `space = "own"` where there are no two sets of embeddings, or a loss that asks for more than those."""
    if own is None:
        raise RecipeError(
            "distil.space = 'own' needs the checkpoint before compression, and there is none. Name its folder by --own."
        )
    if teacher is not None and teacher.digest == own.digest:
        raise RecipeError(
            f"distil.space = 'own' learns from {own.origin} and from a better teacher, and distil.teacher is the same "
            "checkpoint. Name another, or leave space out."
        )
    others = _not_of_embeddings(section)
    if others:
        raise RecipeError(
            f"distil.space = 'own' makes targets for embeddings, and not for distil.losses.{others[0]}. Leave one of "
            "them out."
        )


def _check_tokens(section: DistilSection, task: Task, source: Source, teacher: Source) -> None:
    """Refuse losses token by token if the student's vocabulary is not part of the teacher's."""
    by_token = token_losses(section, task)
    if not by_token:
        return
    mine, theirs = _vocabulary(source), _vocabulary(teacher)
    if mine == theirs:
        return
    sizes = f"the student has {len(mine)} tokens and {teacher.origin} has {len(theirs)}"
    if section.head == "masked_lm":
        raise StudentError(
            f"the teacher has another vocabulary ({sizes}), and head = 'masked_lm' needs the same for both. Distil "
            "first, and trim the vocabulary afterwards."
        )
    # A trimmed vocabulary splits the texts it was trimmed on as before; encoding the rows checks that it does.
    if not mine.keys() <= theirs.keys():
        able = ", ".join(name for name, loss in LOSSES.items() if loss.alignment == "row" and loss.needs_teacher)
        raise StudentError(
            f"the teacher has another vocabulary ({sizes}), so losses.{by_token[0]} has no tokens to compare. "
            f"Losses of whole texts need no common vocabulary: {able}."
        )


def _check_kinds(section: DistilSection, source: Source, teacher: Source | None) -> None:
    """Refuse a masked-LM head where none goes, and a teacher that is no checkpoint yet."""
    for one in (source, *([teacher] if teacher else [])):
        if section.head == "masked_lm" and one.architecture.headless:
            raise StudentError(
                f"distil.head = 'masked_lm' is for encoders with heads, and {one.origin} is "
                f"{one.architecture.model_type}: {one.architecture.headless}."
            )
    if teacher is not None and teacher.tensors is None and sentences.table_folder(teacher.folder) is not None:
        raise StudentError(
            f"the teacher {teacher.origin} is a table of static embeddings as it is published; such a table can be a "
            "student. As the teacher name the encoder that it was made of."
        )


def _check_heads(section: DistilSection, task: Task, source: Source, teacher: Source) -> None:
    if section.head == "masked_lm":
        _mask_token(source)
        compared = [name for name in section.losses if "logits" in LOSSES[name].outputs and LOSSES[name].needs_teacher]
        if compared:
            check_trained_head(teacher)
        return
    if not task.uses_head or not any("logits" in LOSSES[name].outputs for name in section.losses):
        return
    if not has_head(task, teacher):
        raise StudentError(
            f"the teacher {teacher.origin} has no head for {task.name}: it was saved as {class_of(teacher)}."
        )
    mine, theirs = source.labels, teacher.labels
    if not task.fits(len(theirs)):
        raise StudentError(
            f"the head of the teacher {teacher.origin} has {len(theirs)} outputs; task {task.name} has {task.widths}."
        )
    if has_head(task, source) and mine != theirs:
        raise StudentError(
            f"the student's labels are {', '.join(mine)}, and those of {teacher.origin} are {', '.join(theirs)}."
        )


def check_trained_head(teacher: Source) -> None:
    """Refuse a teacher that was saved without a masked-LM head."""
    if not has_masked_lm_head(teacher):
        saved = class_of(teacher)
        raise StudentError(
            f"the teacher {teacher.origin} has no trained masked-LM head: it was saved as {saved}. "
            "Train one on plain text first, by the recipe's [head], or use losses of hidden states: cosine, hidden, "
            "relations."
        )


def _mask_token(source: Source) -> None:
    if mask_token_id(source.folder) is None:
        raise StudentError(f"the vocabulary of {source.origin} has no mask token, [MASK] or <mask>.")


def mask_token_id(folder: Path) -> int | None:
    """Return the id of the mask token, or None if the vocabulary has none."""
    tokenizer = tokenizers.load_tokenizer(folder)
    ids = [tokenizer.token_to_id(name) for name in ("[MASK]", "<mask>")]
    return next((number for number in ids if number is not None), None)


# --- shapes ----------------------------------------------------------------------------------------------------------


def check_models(section: DistilSection, student: Any, teacher: Any) -> tuple[int, ...]:
    """Refuse losses that do not fit two models, with their weights or on torch's meta device.

    Args:
        section: the settings.
        student: with the head that is compared.
        teacher: with the same head.

    Returns:
        The teacher's layer, from 0, for each of the student's; empty where layers are not compared.

    Raises:
        RecipeError: numbers of layers, heads, columns or outputs do not fit.
        StudentError: queries and keys are compared, and the layers of a model are unknown here.
    """
    mapped: tuple[int, ...] = ()
    if any(LOSSES[name].maps_layers for name in section.losses):
        for one in (student.config, teacher.config):
            if not one.num_hidden_layers:
                raise RecipeError(
                    f"distil.losses compare layers, and {one.model_type} has none. Losses of whole texts need none: "
                    "similarity, sentence_mse, sentence_cosine."
                )
        mapped = map_layers(section, int(student.config.num_hidden_layers), int(teacher.config.num_hidden_layers))
    mine, theirs = int(student.config.hidden_size), int(teacher.config.hidden_size)
    for name in EQUAL_HIDDEN_SIZES:
        if name in section.losses and mine != theirs:
            raise RecipeError(
                f"distil.losses.{name} needs equal hidden sizes; the student has {mine} and the teacher {theirs}. "
                "losses.hidden, relations and similarity need none."
            )
    widths = [sentence.settings(one).width(sentence.hidden_size(one.config)) for one in (student, teacher)]
    for name in OF_VECTORS:
        if name in section.losses and widths[0] != widths[1] and section.space != "own":
            raise RecipeError(
                f"distil.losses.{name} needs embeddings of one width; the student's have {widths[0]} numbers and the "
                f"teacher's {widths[1]}. Set distil.space = 'teacher', or use losses.similarity."
            )
    _check_logits(section, student.config, teacher.config)
    if any("projections" in LOSSES[name].outputs for name in section.losses):
        _check_projections(section, layer_sequence(student), layer_sequence(teacher), mapped)
    return mapped


def _check_logits(section: DistilSection, student: Any, teacher: Any) -> None:
    for name in section.losses:
        if "logits" not in LOSSES[name].outputs or not LOSSES[name].needs_teacher:
            continue
        if section.head == "masked_lm" and student.vocab_size != teacher.vocab_size:
            raise StudentError(
                f"distil.losses.{name} compares masked-LM logits, and the student's vocab_size in config.json is "
                f"{student.vocab_size} where that of the teacher is {teacher.vocab_size}. Both embedding tables need "
                "the same number of rows."
            )
        if section.head == "task" and student.num_labels != teacher.num_labels:
            raise RecipeError(
                f"distil.losses.{name}: the student has {student.num_labels} outputs and the teacher "
                f"{teacher.num_labels}."
            )


def _check_projections(
    section: DistilSection, student: Sequence[Layer], teacher: Sequence[Layer], mapped: tuple[int, ...]
) -> None:
    if "attention" in section.losses:
        for number, (layer, of_teacher) in enumerate(zip(student, mapped, strict=True)):
            mine, theirs = layer.heads, teacher[of_teacher].heads
            if mine != theirs:
                raise RecipeError(
                    f"distil.losses.attention compares head by head, and layer {number} of the student has {mine} "
                    f"where the teacher's layer {of_teacher} has {theirs}. losses.relations needs no equal numbers of "
                    "heads."
                )
    if "relations" in section.losses:
        heads = section.relation_heads or teacher[-1].heads
        for model, last in (("student", student[-1]), ("teacher", teacher[-1])):
            features = width(last.get("query"))
            if features % heads:
                unless = "" if section.relation_heads else ", which are the teacher's heads,"
                raise RecipeError(
                    f"distil.relation_heads = {heads}{unless} does not divide the {features} features of the "
                    f"{model}'s last layer. Give a number that divides those of both models."
                )
