"""Checks of a distillation's settings, data and checkpoints that run before anything heavy is imported."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.checkpoint import layers
from pipeline.checkpoint.source import Source
from pipeline.compress.distil import dataset
from pipeline.compress.distil.dataset import DistilData
from pipeline.compress.distil.masked_lm import check_enough_text
from pipeline.compress.prune.structure import head_count, hidden_size, layer_count
from pipeline.errors import RecipeError, StudentError
from pipeline.recipe.compression import DEFAULT_TEMPERATURE, DistilSection, HeadSection
from pipeline.recipe.fields import Updates
from pipeline.recipe.losses import EQUAL_HIDDEN_SIZES, LOSSES, WITHIN_UPDATE
from pipeline.tasks import Task
from pipeline.text import tokenizers
from pipeline.train.checks import check_precision, checkpoint_labels, class_of, has_head, has_masked_lm_head


def check(section: DistilSection, source: Source, task: Task, teacher: Source | None, data: DistilData) -> None:
    """Refuse a distillation that cannot succeed.

    Args:
        section: the settings.
        source: the student to begin with.
        task: decides the head and the metric.
        teacher: None if no loss needs one.
        data: what the student is trained on.

    Raises:
        RecipeError: losses, layers or data do not fit each other or a checkpoint.
        InputError: texts or labels are absent or malformed.
        StudentError: the teacher has another vocabulary, or lacks the head that is compared.
    """
    check_precision(section, "distil")
    _check_losses(section, task)
    dataset.check_data(section, task, data)
    lines = dataset.plain_lines(data.text_files)
    _check_lengths(section, "distil", [source] if teacher is None else [source, teacher])
    if section.head == "masked_lm" and data.text_files:
        check_enough_text(tokenizers.load_tokenizer(source.folder), lines, length=section.max_length)
    if teacher is None and needs_teacher(section):
        raise RecipeError("distil.losses compare with a teacher, and there is none. Name one in distil.teacher.")
    if teacher is not None:
        _check_tokens(section, task, source, teacher)
        _check_heads(section, task, source, teacher)
        _check_layers(section, source, teacher)
        _check_hidden_sizes(section, source, teacher)
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
    _check_passes(section, "distil")
    if section.alpha == 1:
        raise RecipeError("distil.alpha = 1 leaves no weight for distil.losses. Give less than 1, or use [train].")


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


def _check_heads(section: DistilSection, task: Task, source: Source, teacher: Source) -> None:
    if section.head == "masked_lm":
        _mask_token(source)
        compared = [name for name in section.losses if "logits" in LOSSES[name].outputs and LOSSES[name].needs_teacher]
        if compared:
            check_trained_head(teacher)
            _check_vocab_sizes(compared[0], source, teacher)
        return
    if not task.uses_head or not any("logits" in LOSSES[name].outputs for name in section.losses):
        return
    if not has_head(task, teacher):
        raise StudentError(
            f"the teacher {teacher.origin} has no head for {task.name}: it was saved as {class_of(teacher)}."
        )
    mine, theirs = checkpoint_labels(source), checkpoint_labels(teacher)
    if not task.fits(len(theirs)):
        raise StudentError(
            f"the head of the teacher {teacher.origin} has {len(theirs)} outputs; task {task.name} has {task.widths}."
        )
    if has_head(task, source) and mine != theirs:
        raise StudentError(
            f"the student's labels are {', '.join(mine)}, and those of {teacher.origin} are {', '.join(theirs)}."
        )


def _check_vocab_sizes(name: str, source: Source, teacher: Source) -> None:
    mine, theirs = source.vocab_size, teacher.vocab_size
    if mine != theirs:
        raise StudentError(
            f"distil.losses.{name} compares masked-LM logits, and the student's vocab_size in config.json is {mine} "
            f"where that of {teacher.origin} is {theirs}. Both embedding tables need the same number of rows."
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


def _check_layers(section: DistilSection, source: Source, teacher: Source) -> None:
    if any(LOSSES[name].maps_layers for name in section.losses):
        map_layers(section, layer_count(source), layer_count(teacher))
    if not any("projections" in LOSSES[name].outputs for name in section.losses):
        return
    for one in (source, teacher):
        layers.layout_of(one.architecture.model_type)
    # Compressed layers have other numbers of heads than the config says; they are checked once both models are loaded.
    if any(one.config.get("pocketbert") is not None for one in (source, teacher)):
        return
    if "attention" in section.losses:
        check_equal_heads(0, head_count(source.config), 0, head_count(teacher.config))
    if "relations" in section.losses:
        for one, model in ((source, "student"), (teacher, "teacher")):
            check_relation_heads(section.relation_heads or head_count(teacher.config), hidden_size(one), model)


def check_equal_heads(layer: int, mine: int, teacher_layer: int, theirs: int) -> None:
    """Refuse to compare the attention of two layers that have different numbers of heads.

    Raises:
        RecipeError: with both numbers.
    """
    if mine != theirs:
        raise RecipeError(
            f"distil.losses.attention compares head by head, and layer {layer} of the student has {mine} where the "
            f"teacher's layer {teacher_layer} has {theirs}. losses.relations needs no equal numbers of heads."
        )


def check_relation_heads(heads: int, features: int, model: str) -> None:
    """Refuse to split the features of a model's last layer into a number of heads that does not divide them.

    Raises:
        RecipeError: with both numbers.
    """
    if features % heads:
        raise RecipeError(
            f"distil.relation_heads = {heads} does not divide the {features} features of the {model}'s last layer. "
            "Give a number that divides those of both models."
        )


def _check_hidden_sizes(section: DistilSection, source: Source, teacher: Source) -> None:
    """Refuse losses without a projection between models of different hidden sizes."""
    mine, theirs = hidden_size(source), hidden_size(teacher)
    for name in EQUAL_HIDDEN_SIZES:
        if name in section.losses and mine != theirs:
            raise RecipeError(
                f"distil.losses.{name} needs equal hidden sizes; the student has {mine} and the teacher {theirs}. "
                "losses.hidden, relations and similarity need none."
            )
