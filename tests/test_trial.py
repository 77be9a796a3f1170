"""A checkpoint on torch's meta device is the one that is loaded with its weights, but for the weights."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import PAIRS, check_trial

from pipeline import tasks
from pipeline.architectures import HEADED
from pipeline.checkpoint import source as student
from pipeline.checkpoint.loading import load_checkpoint
from pipeline.compress.distil.models import begin_student
from pipeline.errors import StudentError
from pipeline.recipe.distillation import DistilSection
from pipeline.train import model as training

TINY = Callable[[str, str], Path]


def source_of(folder: Path) -> student.Source:
    return student.inspect_folder(folder, origin=folder.name, licence=None)


def shapes_of(model: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def written(model: Any, source: Path, out: Path) -> Path:
    out.mkdir()
    training.save(model, source, out)
    shutil.copy(source / "tokenizer.json", out)
    return out


@pytest.mark.parametrize(
    ("architecture", "task"), [pair for pair in PAIRS if pair[1] in ("embedding", "classification")]
)
def test_shapes_are_those_of_the_loaded_checkpoint_and_weights_are_none(
    architecture: str, task: str, tiny_student: TINY, tmp_path: Path
) -> None:
    folder, row = tiny_student(architecture, task), tasks.get(task)
    empty, loaded = (load_checkpoint(one, row) for one in (source_of(folder), folder))
    assert shapes_of(empty) == shapes_of(loaded)
    assert {parameter.device for parameter in empty.parameters()} == {torch.device("meta")}
    check_trial(training.outline(empty, source_of(folder)), written(loaded, folder, tmp_path / "out"))


@pytest.mark.parametrize("architecture", HEADED)
def test_a_new_head_has_its_shapes_and_is_known_as_new(architecture: str, tiny_student: TINY, tmp_path: Path) -> None:
    folder = tiny_student(architecture, "embedding")
    section = DistilSection(losses={"masked_lm": 1.0}, head="masked_lm", texts=("a.txt",))
    (empty, new, _), (loaded, new_tensors, _) = (
        begin_student(one, None, tasks.get("embedding"), section, None) for one in (source_of(folder), folder)
    )
    assert new == new_tensors
    check_trial(training.outline(empty, source_of(folder)), written(loaded, folder, tmp_path / "out"))


def test_a_checkpoint_without_the_head_of_a_task_lacks_tensors_with_weights_or_without(tiny_student: TINY) -> None:
    folder, task = tiny_student("bert", "embedding"), tasks.get("classification")
    for checkpoint in (folder, source_of(folder)):
        with pytest.raises(
            StudentError, match=r"lacks 2 tensors that task classification needs, classifier\.bias first"
        ):
            load_checkpoint(checkpoint, task)


def test_a_config_that_makes_no_sense_is_one_error(tiny_student: TINY, tmp_path: Path) -> None:
    shutil.copytree(tiny_student("bert", "embedding"), tmp_path / "source")
    source = source_of(tmp_path / "source")
    source.config["hidden_size"] = "wide"  # type: ignore[index]  # a dict behind a mapping
    with pytest.raises(StudentError, match="source does not load: ") as caught:
        load_checkpoint(source, tasks.get("embedding"))
    assert "\n" not in str(caught.value)
