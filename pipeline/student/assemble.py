"""A checkpoint as one config and one file of weights, if its folder has shards or a recipe names its pooling.

It comes before every other stage, so that none of them knows of shards, or of what a recipe adds to a folder.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.checkpoint import sentences
from pipeline.checkpoint.files import read_json
from pipeline.checkpoint.source import WEIGHTS, Source, weight_files
from pipeline.heads.pooling import Pooling
from pipeline.heads.sentence import DEFAULT, NAME, SentenceHead
from pipeline.recipe.schema import StudentSection
from pipeline.text import tokenizers

VERSION = 1


def head_of(section: StudentSection) -> SentenceHead:
    """Return the head that a recipe names for a bare encoder; the default one if it names none."""
    return DEFAULT if section.pooling is None else SentenceHead(pooling=Pooling(modes=(section.pooling,)))


def is_needed(source: Source, section: StudentSection) -> bool:
    """Return whether a checkpoint has shards, or a recipe names another pooling than the mean."""
    return source.tensors is None and (head_of(section) != DEFAULT or weight_files(source.folder) != [WEIGHTS])


def expected(source: Source, section: StudentSection) -> Source:
    """Return the checkpoint that `make` will write."""
    return replace(source, config=_config(source.config, section), tensors=source.tensor_shapes())


def make(source: Path, section: StudentSection, out: Path) -> dict[str, Any]:
    """Write the checkpoint. Runs in a worker, since it imports torch.

    Args:
        source: a folder that was checked.
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
    text = json.dumps(_config(read_json(source / "config.json"), section), indent=2, sort_keys=True)
    (out / "config.json").write_text(text + "\n", encoding="utf-8")
    sentences.fold(source, out)
    tokenizers.copy(source, out)
    return {"weight_files": len(names)}


def _config(config: Mapping[str, Any], section: StudentSection) -> dict[str, Any]:
    head = head_of(section)
    return dict(config) if head == DEFAULT else {**config, NAME: head.model_dump(mode="json")}
