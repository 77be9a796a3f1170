"""A checkpoint as one config and one file of weights, where its folder is another layout or a recipe adds to it.

Shards are joined, a published table of static embeddings becomes a checkpoint, and the pooling, the prompts and the
width that a recipe names go into the head. It comes before every other stage, so that none of them knows of any of
that; what it writes is no folder of sentence-transformers any more, so the comparison with the library is made here.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline import architectures, tasks
from pipeline.checkpoint import sentences, tables
from pipeline.checkpoint.files import read_json
from pipeline.checkpoint.source import Source
from pipeline.checkpoint.weights import WEIGHTS, weight_files
from pipeline.errors import RecipeError
from pipeline.heads import sentence
from pipeline.heads.pooling import Pooling
from pipeline.heads.sentence import DEFAULT, NAME, SentenceHead
from pipeline.heads.steps import Truncate
from pipeline.recipe.schema import StudentSection
from pipeline.student import golden, library
from pipeline.tasks import Task
from pipeline.text import tokenizers

VERSION = 2


def is_needed(source: Source, task: Task, section: StudentSection) -> bool:
    """Return whether a checkpoint is in another layout, or a recipe says more of its head than the folder does."""
    if section.width is not None:
        return True
    folder = source.folder
    if source.tensors is None and (weight_files(folder) != [WEIGHTS] or sentences.table_folder(folder) is not None):
        return True
    own = source.config.get(NAME)
    return not task.uses_head and head_of(folder, own, section) != sentences.settings_of(folder, own)


def head_of(folder: Path, stored: Mapping[str, Any] | None, section: StudentSection) -> SentenceHead:
    """Return the head of a checkpoint with what a recipe says of it: the pooling of a bare encoder, and prompts.

    Args:
        folder: the checkpoint.
        stored: the head in its config.json, or None.
        section: `[student]` of the recipe.

    Raises:
        RecipeError: the default prompt that the recipe names does not exist.
        StudentError: the checkpoint's own head cannot be read.
    """
    head = sentences.settings_of(folder, stored)
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


def expected(source: Source, task: Task, section: StudentSection) -> Source:
    """Return the checkpoint that `make` will write."""
    folder, shapes = source.folder, source.tensor_shapes()
    if task.uses_head:
        return replace(source, tensors=shapes)
    head = head_of(folder, source.config.get(NAME), section)
    if source.tensors is None and (place := sentences.table_folder(folder)) is not None:
        folder, shapes = place, tables.read(place, shapes).tensors
    config = dict(source.config)
    if section.width is not None:
        head, columns = _cut(head, str(config["model_type"]), section.width)
        if columns:
            config["hidden_size"], shapes = columns, tables.cut_shapes(shapes, columns)
    return replace(source, folder=folder, config=_with_head(config, head), tensors=shapes)


def make(source: Path, task_name: str, section: StudentSection, out: Path) -> dict[str, Any]:
    """Write the checkpoint. Runs in a worker, since it imports torch.

    Args:
        source: a folder that was checked.
        task_name: a row of `tasks.py`.
        section: `[student]` of the recipe.
        out: the artifact's directory.

    Returns:
        The number of files of weights that there were.

    Raises:
        StudentError: the folder cannot be read, or sentence-transformers gives other outputs for it.
    """
    task = tasks.get(task_name)
    names, place = weight_files(source), sentences.table_folder(source)
    if place is None:
        _join(source, names, out)
    else:
        tables.write(place, out)
    if task.uses_head:
        return {"weight_files": len(names)}
    config = read_json(out / "config.json")
    # The folder's own, since the modules are in it; a table's config is written anew and has none.
    sentences.fold(source, out, head_of(source, config.get(NAME), section))
    if section.width is not None:
        _narrow(out, section.width)
    if sentences.has_modules(source):
        _compare(source, out, task, section)
    return {"weight_files": len(names)}


def _with_head(config: Mapping[str, Any], head: SentenceHead) -> dict[str, Any]:
    """Return a config with a head; the default one is not written."""
    rest = {key: value for key, value in config.items() if key != NAME}
    return rest if head == DEFAULT else rest | {NAME: head.model_dump(mode="json")}


def _cut(head: SentenceHead, model_type: str, width: int) -> tuple[SentenceHead, int | None]:
    """Return the head of a narrower embedding, and to how many columns the table is cut instead, if it can be."""
    cut = head.cut(width)
    first, *rest = cut.steps
    if isinstance(first, Truncate) and architectures.get(model_type).states_are_rows:
        # The mean of cut rows is the cut mean.
        return cut.model_copy(update={"steps": tuple(rest)}), width
    return cut, None


def _join(source: Path, names: Sequence[str], out: Path) -> None:
    """Write config, tokenizer, and the shards as one file."""
    from safetensors.torch import load_file, save_file

    if names == [WEIGHTS]:
        shutil.copyfile(source / WEIGHTS, out / WEIGHTS)
    else:
        tensors = {name: tensor for file in names for name, tensor in load_file(source / file).items()}
        save_file(tensors, out / WEIGHTS, metadata={"format": "pt"})
    shutil.copyfile(source / "config.json", out / "config.json")
    tokenizers.copy(source, out)


def _narrow(out: Path, width: int) -> None:
    """Cut the embedding of a checkpoint."""
    config = read_json(out / "config.json")
    head, columns = _cut(sentences.settings_of(out, config.get(NAME)), str(config["model_type"]), width)
    if columns:
        config["hidden_size"] = columns
        tables.cut(out, columns)
    _write(out, _with_head(config, head))


def _write(out: Path, config: Mapping[str, Any]) -> None:
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _compare(source: Path, out: Path, task: Task, section: StudentSection) -> None:
    """Compare the checkpoint with sentence-transformers on the folder that it was made of."""
    from pipeline.checkpoint.loading import load_checkpoint

    model = load_checkpoint(out, task)
    head = sentence.settings(model)
    rows = golden.make(model, task, tokenizers.load_tokenizer(out), head)
    library.check(source, rows, task, head, width=section.width, prompts=section.prompts)
