"""Folders of sentence-transformers: what the embedding task does not carry out is refused, never passed over."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import recipe_file

from pipeline.checkpoint import source
from pipeline.errors import StudentError
from pipeline.recipe import loading

MEAN = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}
CLS = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
MODULES = (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
SETTINGS, PROMPTS = "sentence_bert_config.json", "config_sentence_transformers.json"


@pytest.fixture
def folder(tiny_student: Callable[[str, str], Path], tmp_path: Path) -> Path:
    """A folder that is carried out in full; tests change one thing in it."""
    made = Path(shutil.copytree(tiny_student("bert", "embedding"), tmp_path / "student"))
    put(made, modules(*MODULES), {"1_Pooling/config.json": MEAN})
    return made


def modules(*rows: tuple[str, str]) -> dict[str, Any]:
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(rows)
    ]
    return {"modules.json": listed}


def put(folder: Path, *files: dict[str, Any]) -> None:
    for name, content in {name: content for one in files for name, content in one.items()}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content), encoding="utf-8")


def find(folder: Path, task: str = "embedding") -> None:
    values = {"student": {"source": str(folder), "random_weights": True}}
    source.find(*loading.read_recipe(str(recipe_file(folder.parent, task=task, **values))))


def refused(folder: Path, words: str) -> None:
    with pytest.raises(StudentError, match=words) as caught:
        find(folder)
    assert "\n" not in str(caught.value)


def lose_lower_case(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["normalizer"]["lowercase"] = False
    put(folder, {"tokenizer.json": tokenizer})


@pytest.mark.parametrize(
    "config",
    [
        MEAN,
        {"embedding_dimension": 64, "pooling_mode": "mean", "include_prompt": True},
        {"embedding_dimension": 64, "pooling_mode": ["mean"]},
        {"word_embedding_dimension": 64},
        MEAN | {"pooling_mode": "mean"},
        MEAN | {"include_prompt": False},
    ],
)
def test_a_mean_is_taken_in_every_spelling(config: dict[str, Any], folder: Path) -> None:
    put(folder, {"1_Pooling/config.json": config})
    find(folder)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (CLS, "asks for pooling_mode_cls_token"),
        (MEAN | {"pooling_mode_cls_token": True}, "asks for pooling_mode_cls_token, pooling_mode_mean_tokens"),
        ({"pooling_mode_mean_tokens": False}, "asks for no pooling"),
        ({"pooling_mode": "cls"}, "asks for pooling_mode 'cls'"),
        ({"pooling_mode": ["mean", "max"]}, "asks for pooling_mode"),
        ({"pooling_mode": None}, "asks for pooling_mode None"),
        (MEAN | {"pooling_mode": "max"}, "asks for pooling_mode 'max'"),
        (CLS | {"pooling_mode": "mean"}, "asks for pooling_mode_cls_token"),
        ([], "holds a list, not an object"),
    ],
)
@pytest.mark.parametrize("place", ["1_Pooling", "pool"])
def test_another_pooling_is_refused_wherever_it_lies(place: str, config: Any, words: str, folder: Path) -> None:
    put(folder, modules(("Transformer", ""), ("Pooling", place)), {f"{place}/config.json": config})
    refused(folder, rf"{place}/config\.json {words}")


def test_a_pooling_of_which_nothing_is_known_is_refused(folder: Path) -> None:
    for place in ("2_Pooling", ""):
        put(folder, modules(("Transformer", ""), ("Pooling", place)))
        refused(folder, r"config\.json is no Pooling's config")
    put(folder, modules(("Transformer", ""), ("Pooling", "../1_Pooling")))
    refused(folder, "it has to be a folder beside it")


def test_two_poolings_and_a_transformer_that_is_not_read_are_refused(folder: Path) -> None:
    put(folder, modules(*MODULES, ("Pooling", "2_Pooling")), {"2_Pooling/config.json": MEAN})
    refused(folder, "names the module Pooling twice")
    put(folder, modules(("Transformer", "0_Transformer"), *MODULES[1:]))
    refused(folder, "has the Transformer in 0_Transformer")


@pytest.mark.parametrize("pooled", [True, False])
def test_a_default_prompt_is_refused(pooled: bool, folder: Path) -> None:
    put(folder, {"1_Pooling/config.json": MEAN | {"include_prompt": pooled}})
    prompts = {"query": "query: ", "document": ""}
    for name in (None, "document"):
        put(folder, {PROMPTS: {"prompts": prompts, "default_prompt_name": name}})
        find(folder)
    put(folder, {PROMPTS: {"prompts": prompts, "default_prompt_name": "query"}})
    refused(folder, "puts the prompt 'query: '")


@pytest.mark.parametrize("name", [SETTINGS, "sentence_roberta_config.json"])
def test_lower_case_beside_a_cased_tokenizer_is_refused(name: str, folder: Path) -> None:
    put(folder, {name: {"max_seq_length": 16, "do_lower_case": True}})
    find(folder)
    lose_lower_case(folder)
    refused(folder, f"{name} has do_lower_case True")
    put(folder, {name: {"max_seq_length": 16, "do_lower_case": False}})
    find(folder)


def test_none_of_it_concerns_a_task_with_a_head(tiny_student: Callable[[str, str], Path], tmp_path: Path) -> None:
    made = Path(shutil.copytree(tiny_student("bert", "classification"), tmp_path / "student"))
    put(made, {PROMPTS: {"prompts": {"a": "b"}, "default_prompt_name": "a"}, "1_Pooling/config.json": CLS})
    find(made, "classification")


def test_several_labels_at_once_are_no_classification(tiny_student: Callable[[str, str], Path], tmp_path: Path) -> None:
    made = Path(shutil.copytree(tiny_student("bert", "classification"), tmp_path / "student"))
    config = json.loads((made / "config.json").read_text(encoding="utf-8"))
    put(made, {"config.json": config | {"problem_type": "single_label_classification"}})
    find(made, "classification")
    put(made, {"config.json": config | {"problem_type": "multi_label_classification"}})
    with pytest.raises(StudentError, match="problem_type 'multi_label_classification', where each label"):
        find(made, "classification")
    find(made, "embedding")
