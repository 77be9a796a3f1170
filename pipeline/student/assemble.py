"""A checkpoint as one config and one file of weights, where its folder has shards, or a recipe adds to its head.

It comes before every other stage, so that none of them knows of shards, or of what a recipe adds to a folder.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline import tasks
from pipeline.checkpoint import sentences
from pipeline.checkpoint.source import WEIGHTS, Source, inspect_folder, weight_files
from pipeline.errors import RecipeError
from pipeline.heads.pooling import Pooling
from pipeline.heads.sentence import NAME, SentenceHead
from pipeline.recipe.schema import StudentSection
from pipeline.tasks import Task
from pipeline.text import tokenizers

VERSION = 1


def head_of(source: Source, section: StudentSection) -> SentenceHead:
    """Return the head of a checkpoint with what a recipe says of it: the pooling of a bare encoder, and prompts.

    Raises:
        RecipeError: the default prompt that the recipe names does not exist.
        StudentError: the checkpoint's own head cannot be read.
    """
    head = sentences.settings_of(source.folder, source.config.get(NAME))
    if section.pooling is not None:
        head = SentenceHead(pooling=Pooling(modes=(section.pooling,)))
    changed: dict[str, Any] = {}
    if section.prompts is not None:
        changed = {"prompts": {name: text for name, text in section.prompts.items() if text}, "default_prompt": None}
    if section.default_prompt is not None:
        changed["default_prompt"] = section.default_prompt or None
    head = head.model_copy(update=changed)
    if head.default_prompt not in (None, *head.prompts):
        exist = ", ".join(head.prompts) or "none; student.prompts would name them"
        raise RecipeError(f"student.default_prompt is {head.default_prompt!r}; there are: {exist}.")
    return head


def is_needed(source: Source, task: Task, section: StudentSection) -> bool:
    """Return whether a checkpoint has shards, or a recipe says more of its head than the folder does."""
    if source.tensors is not None:
        return False
    if weight_files(source.folder) != [WEIGHTS]:
        return True
    return not task.uses_head and head_of(source, section) != sentences.settings_of(
        source.folder, source.config.get(NAME)
    )


def expected(source: Source, task: Task, section: StudentSection) -> Source:
    """Return the checkpoint that `make` will write."""
    config = dict(source.config)
    if not task.uses_head:
        config[NAME] = head_of(source, section).model_dump(mode="json")
    return replace(source, config=config, tensors=source.tensor_shapes())


def make(source: Path, task_name: str, section: StudentSection, out: Path) -> dict[str, Any]:
    """Write the checkpoint. Runs in a worker, since it imports torch.

    Args:
        source: a folder that was checked.
        task_name: a row of `tasks.py`.
        section: `[student]` of the recipe.
        out: the artifact's directory.

    Returns:
        The number of files of weights that there were.
    """
    from safetensors.torch import load_file, save_file

    names = weight_files(source)
    if names == [WEIGHTS]:
        shutil.copyfile(source / WEIGHTS, out / WEIGHTS)
    else:
        tensors = {name: tensor for file in names for name, tensor in load_file(source / file).items()}
        save_file(tensors, out / WEIGHTS, metadata={"format": "pt"})
    shutil.copyfile(source / "config.json", out / "config.json")
    if not tasks.get(task_name).uses_head:
        found = inspect_folder(source, origin=source.name, licence=None)
        sentences.fold(source, out, head_of(found, section))
    tokenizers.copy(source, out)
    return {"weight_files": len(names)}
