"""Student stage: lay a checkpoint out with its tokenizer and golden rows, after it was loaded into the task's class."""

import shutil
from pathlib import Path
from typing import Any

from pipeline import architectures, tasks
from pipeline.architectures.architecture import Architecture
from pipeline.checkpoint import sentences
from pipeline.checkpoint.source import TOKENIZER_FILES, Source
from pipeline.checkpoint.weights import WEIGHTS
from pipeline.errors import StudentError
from pipeline.heads import sentence
from pipeline.heads.labels import activation_of
from pipeline.heads.sentence import DEFAULT, SentenceHead
from pipeline.recipe.schema import Recipe
from pipeline.student import golden, library, thresholds, vectors
from pipeline.student.outputs import check_names, label_names
from pipeline.student.thresholds import Calibration
from pipeline.tasks import Task
from pipeline.text import published, tokenizers

VERSION = 8
_HEADS = ("classifier.weight", "classifier.out_proj.weight", "qa_outputs.weight")
"""Last matrices of the heads of all architectures here, a row an output."""
_NEAR = {
    "classification": ("regression",),
    "regression": ("classification", "multi_regression"),
    "multi_regression": ("regression",),
}
"""Tasks with a head of the same class and another number of outputs."""
_PUBLISHED = ("bundled:", "hub:")
"""Sources that say what they are; a folder of the user's may hold a tokenizer that was changed on purpose."""


def order_params(recipe: Recipe, source: Source, calibration: Calibration | None = None) -> dict[str, Any]:
    """Return the parameters that determine the student artifact's content."""
    calibrated = {"thresholds": calibration.params} if calibration else {}
    return {
        **calibrated,
        "task": recipe.task,
        "origin": source.origin,
        "licence": source.licence,
        "random_weights": recipe.student.random_weights,
        "published": recipe.student.source.startswith(_PUBLISHED),
    }


def make(
    source_folder: Path, task_name: str, says_what_it_is: bool, out: Path, calibration: Calibration | None = None
) -> dict[str, Any]:
    """Lay the student out: config, weights, tokenizer, golden rows. Runs in a worker, since it imports torch.

    Args:
        source_folder: a folder that `inspect_folder` accepted.
        task_name: a row of `tasks.py`.
        says_what_it_is: whether the tokenizer is a published one, whose ids are known where its vocabulary is.
        out: the artifact's directory.
        calibration: the texts that the labels' thresholds are calibrated on; None for one half each.

    Returns:
        Parameter counts, labels and padding id.

    Raises:
        StudentError: the checkpoint does not load into the task's class, its head does not fit the task, or its
            tokenizer has ids or types beyond the tables, or other ids than it was published with.
    """
    for name in ("config.json", WEIGHTS):
        shutil.copyfile(source_folder / name, out / name)
    task = tasks.get(task_name)
    if not task.uses_head:
        sentences.fold(source_folder, out)
    model = _load(out, task, source_folder)
    head = DEFAULT if task.uses_head else sentence.settings(model)
    architecture = architectures.get(model.config.model_type)
    tokenizer = tokenizer_of(source_folder, head, architecture)
    tokenizers.check_size(tokenizer, source_folder, vocab_size=model.config.vocab_size)
    if "token_type_ids" in architecture.inputs:
        tokenizers.check_types(tokenizer, source_folder, type_vocab_size=model.config.type_vocab_size)
    framed = architecture.special_tokens
    vocabulary = published.check(tokenizer, source_folder, special_tokens=framed) if says_what_it_is else None
    tokenizer.save(str(out / "tokenizer.json"))
    for name in TOKENIZER_FILES[1:]:
        if (source_folder / name).is_file():
            shutil.copyfile(source_folder / name, out / name)
    check_outputs(model.config.num_labels, task, source_folder)
    labels = label_names(model.config) if task.has_labels else None
    rows = golden.make(model, task, tokenizer, head)
    (out / golden.GOLDEN).write_text(rows.model_dump_json(indent=1) + "\n", encoding="utf-8")
    library.check(source_folder, rows, task, head)
    calibrated = thresholds.calibrate(model, out, task, calibration, out) if calibration else None
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "labels": labels,
        "prompts": head.prompts,
        "default_prompt": head.default_prompt,
        "include_prompt": head.pooling.include_prompt,
        "activation": activation_of(model.config) if task.output_kind == "value" else "identity",
        "thresholds": calibrated and calibrated["thresholds"],
        "calibration": calibrated and {name: calibrated[name] for name in ("texts", "calibrated", "at_half")},
        "vectors": None if task.uses_head else vectors.contract(model, out, head).model_dump(mode="json"),
        "pad_token_id": int(model.config.pad_token_id or 0),
        "model_type": model.config.model_type,
        "published_vocabulary": vocabulary,
        "layers": int(model.config.num_hidden_layers),
        "hidden_size": int(model.config.hidden_size),
    }


def tokenizer_of(source_folder: Path, head: SentenceHead, architecture: Architecture) -> Any:
    """Return a checkpoint's tokenizer as a student has it: what its head and its encoder ask of it is part of it."""
    tokenizer = tokenizers.load_tokenizer(source_folder)
    if head.lower_case:
        tokenizer = tokenizers.lower_cased(tokenizer)
    return tokenizer if architecture.special_tokens else tokenizers.without_special_tokens(tokenizer)


def _load(folder: Path, task: Task, source_folder: Path) -> Any:
    """Load the copied checkpoint; errors name the folder that it was copied from."""
    from pipeline.checkpoint.loading import load_checkpoint

    try:
        return load_checkpoint(folder, task)
    except StudentError as error:
        raise StudentError(str(error).replace(str(folder), str(source_folder))) from error
    except Exception as error:  # transformers raises many classes for a config that makes no sense
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise StudentError(f"{source_folder} does not load as {task.auto_class}: {reason}") from error


def check_outputs(count: int, task: Task, source_folder: Path) -> None:
    """Refuse a head that has too few or too many outputs for the task.

    Raises:
        StudentError: it has.
    """
    if task.fits(count):
        return
    near = _NEAR.get(task.name, ())
    fitting = [name for name in near if tasks.get(name).fits(count)]
    hint = f" Did you mean task {' or '.join(map(repr, fitting))}?" if fitting else ""
    raise StudentError(
        f"the head in {source_folder} has {count} outputs (id2label); task {task.name} needs {task.widths}.{hint}"
    )


def check_head(source: Source, task: Task, *, stored: bool) -> None:
    """Refuse a head whose outputs, or whose labels, cannot be the task's, from the files' headers alone.

    Args:
        source: a checkpoint that was saved with a head of the task.
        task: which needs a head.
        stored: whether the weights are there; those of a checkpoint that is still to be made are not looked at.

    Raises:
        StudentError: there are too many or too few, or their names are not.
    """
    labels = source.labels
    shapes = source.tensor_shapes() if stored else {}
    for name in (name for name in _HEADS if name in shapes and shapes[name][0] != len(labels)):
        raise StudentError(
            f"{source.folder}: {name} has shape {shapes[name]}, and config.json names {len(labels)} outputs "
            f"({', '.join(labels[:8])}). Correct id2label, or take the config that belongs to the weights."
        )
    check_outputs(len(labels), task, source.folder)
    if task.has_labels:
        check_names(labels)
