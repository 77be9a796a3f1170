"""Students that are made of a teacher: fewer layers, less width, other architectures, shared layers."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from conftest import check_trial
from faults import students
from faults.students import few
from pieces import bundled_folder

from pipeline import tasks
from pipeline.architectures import ARCHITECTURES, layers
from pipeline.checkpoint import loading as checkpoint
from pipeline.checkpoint import shapes
from pipeline.checkpoint import source as student
from pipeline.compress.start import kinds
from pipeline.compress.start import stage as starts
from pipeline.errors import PipelineError, RecipeError, StudentError
from pipeline.recipe.compression import StartSection

EMBEDDING = tasks.get("embedding")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("teacher")
    return students.source(few("bert", "embedding"), place)


def load(folder: Path) -> Any:
    return checkpoint.load_checkpoint(folder, EMBEDDING)


def made(source: Path, out: Path, **settings: Any) -> Any:
    out.mkdir()
    section = StartSection.model_validate(settings)
    figures = starts.make(source, section, out)
    check_trial(starts.trial(section, student.inspect_folder(source, origin="teacher", licence=None)), out)
    model = load(out)
    assert figures["layers"] == model.config.num_hidden_layers
    return model


def states(model: Any) -> tuple[torch.Tensor, ...]:
    ids = torch.arange(5, 17)[None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    names = ARCHITECTURES[model.config.model_type].inputs
    with torch.no_grad():
        found: tuple[torch.Tensor, ...] = model(
            **{name: inputs[name] for name in names}, output_hidden_states=True
        ).hidden_states
    return found


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ["bert", "distilbert", "roberta"])
def test_every_other_layer_is_the_teacher_up_to_there(architecture, tmp_path):
    (tmp_path / "teacher").mkdir()
    source = students.source(few(architecture, "classification"), tmp_path / "teacher")
    model = made(source, tmp_path / "out")
    assert len(layers.layers(model)) == 1
    same(states(model)[-1], states(load(source))[1])
    headed = checkpoint.load_checkpoint(tmp_path / "out", tasks.get("classification"))
    assert headed.config.id2label[2] == "positive", "the head comes along"


def test_an_electra_with_tables_as_wide_as_its_layers_gets_both_narrower(tmp_path):
    config = transformers.AutoConfig.for_model(
        "electra", **dict(ARCHITECTURES["electra"].tiny_config) | {"embedding_size": 64}
    )
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path / "teacher")
    shutil.copy(bundled_folder() / "tokenizer.json", tmp_path / "teacher")
    assert config.hidden_size == 64
    model = made(tmp_path / "teacher", tmp_path / "out", kind="width", hidden_size=32)
    assert (model.config.hidden_size, model.config.embedding_size) == (32, 32)
    expected = load(tmp_path / "teacher").get_input_embeddings().weight[:, :32]
    assert torch.equal(model.get_input_embeddings().weight, expected)


def test_chosen_layers_are_kept_in_order(teacher, tmp_path):
    model = made(teacher, tmp_path / "out", teacher_layers=[1])
    expected = layers.layers(load(teacher))[1].get("intermediate").weight
    assert torch.equal(layers.layers(model)[0].get("intermediate").weight, expected)
    assert kinds.kept_layers(StartSection(), 6) == (0, 2, 4)
    assert kinds.kept_layers(StartSection(teacher_layers=(0, 5)), 6) == (0, 5)


def test_a_compressed_teacher_s_layers_keep_their_shapes(teacher, tmp_path):
    model = load(teacher)
    last = layers.layers(model)[1]
    last.put("intermediate", torch.nn.Linear(64, 40))
    last.put("output", torch.nn.Linear(40, 64))
    (tmp_path / "pruned").mkdir()
    shapes.save(model, tmp_path / "pruned")
    (tmp_path / "pruned" / "tokenizer.json").write_bytes((teacher / "tokenizer.json").read_bytes())
    found = made(tmp_path / "pruned", tmp_path / "out", teacher_layers=[1])
    assert layers.layers(found)[0].intermediate_size == 40


def test_width_is_cut_to_whole_heads(teacher, tmp_path):
    found, whole = made(teacher, tmp_path / "out", kind="width", hidden_size=32), load(teacher)
    (first, *_), (wide, *_) = layers.layers(found), layers.layers(whole)
    assert (first.heads, first.head_size, first.intermediate_size) == (2, wide.head_size, wide.intermediate_size // 2)
    assert torch.equal(first.get("query").weight, wide.get("query").weight[:32, :32])
    assert torch.equal(found.get_input_embeddings().weight, whole.get_input_embeddings().weight[:, :32])


def test_a_random_start_has_the_shape_alone(teacher, tmp_path):
    one, again, other = (
        made(teacher, tmp_path / str(number), kind="random", seed=seed) for number, seed in enumerate((1, 1, 2))
    )
    weights = [model.get_input_embeddings().weight for model in (one, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert weights[0].shape == load(teacher).get_input_embeddings().weight.shape


def test_a_random_start_takes_a_shape_of_its_own(teacher, tmp_path):
    shape = {"num_layers": 3, "hidden_size": 48, "attention_heads": 3, "intermediate_size": 80}
    found = made(teacher, tmp_path / "out", kind="random", **shape)
    (first, *_), whole = layers.layers(found), load(teacher)
    assert (len(layers.layers(found)), first.heads, first.head_size, first.intermediate_size) == (3, 3, 16, 80)
    assert found.get_input_embeddings().weight.shape == (whole.config.vocab_size, 48)


def test_a_random_start_needs_equal_heads(teacher, tmp_path):
    with pytest.raises(RecipeError, match="a hidden size of 50 has no 3 equal attention heads"):
        made(teacher, tmp_path / "out", kind="random", hidden_size=50, attention_heads=3)


def test_distilbert_is_the_same_on_single_texts(teacher, tmp_path):
    found = made(teacher, tmp_path / "out", kind="distilbert", teacher_layers=[0, 1])
    assert found.config.model_type == "distilbert"
    for mine, theirs in zip(states(found), states(load(teacher)), strict=True):
        same(mine, theirs)


def test_distilbert_takes_the_masked_lm_head_along(teacher, tmp_path):
    import transformers

    config = transformers.AutoConfig.from_pretrained(teacher)
    torch.manual_seed(0)
    headed = transformers.AutoModelForMaskedLM.from_config(config).eval()
    with torch.no_grad():
        headed.cls.predictions.bias.normal_()
    headed.save_pretrained(tmp_path / "headed")
    (tmp_path / "headed" / "tokenizer.json").write_bytes((teacher / "tokenizer.json").read_bytes())
    made(tmp_path / "headed", tmp_path / "out", kind="distilbert", teacher_layers=[0, 1])
    found = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
    ids = torch.arange(5, 17)[None]
    with torch.no_grad():
        same(found(input_ids=ids).logits, headed(input_ids=ids).logits)


@pytest.mark.parametrize("kind", ["albert", "shared"])
def test_one_layer_serves_all_passes(kind, teacher, tmp_path):
    found = made(teacher, tmp_path / "out", kind=kind, teacher_layers=[1])
    tied = load(teacher)
    first, second = layers.layers(tied)
    for part in ("attention", "feed_forward"):
        shapes.use(first, second, part)
    same(states(found)[-1], states(tied)[-1])
    if kind == "albert":
        assert (found.config.model_type, layers.layers(found)[0].passes) == ("albert", 2)
    else:
        assert shapes.sharing(found) == ((0, 0), (0, 0))


@pytest.mark.numeric
def test_albert_s_smaller_table_is_the_best_of_its_rank(teacher, tmp_path):
    found = made(teacher, tmp_path / "out", kind="albert", teacher_layers=[0], embedding_size=16)
    table = load(teacher).get_input_embeddings().weight.detach()
    near = found.get_input_embeddings().weight @ found.encoder.embedding_hidden_mapping_in.weight.T
    _, singular, _ = torch.linalg.svd(table, full_matrices=False)
    lost = (table - near).square().sum().item()
    assert lost == pytest.approx(singular[16:].square().sum().item(), rel=1e-3)


BAD: dict[str, tuple[dict[str, Any], type[PipelineError], str]] = {
    "no such layer": ({"teacher_layers": [2]}, RecipeError, "names layer 2; the teacher has 0 to 1"),
    "twice": ({"teacher_layers": [1, 1]}, RecipeError, "has to rise, each layer once"),
    "none": ({"teacher_layers": []}, RecipeError, "names no layer; the teacher has 0 to 1"),
    "no width": ({"kind": "width"}, RecipeError, r"needs start\.hidden_size"),
    "half a head": ({"kind": "width", "hidden_size": 24}, RecipeError, "whole heads of 16 columns, up to 64"),
    "wider": ({"kind": "width", "hidden_size": 128}, RecipeError, "whole heads of 16 columns, up to 64"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_start_that_the_teacher_cannot_give_is_refused(case, teacher):
    settings, kind, message = BAD[case]
    source = student.inspect_folder(teacher, origin="teacher", licence=None)
    with pytest.raises(kind, match=message):
        starts.trial(StartSection.model_validate(settings), source)


@pytest.mark.parametrize(
    ("architecture", "message"),
    [("roberta", "is made of bert, and this is roberta"), ("mobilebert", "cannot be compressed here")],
)
def test_a_start_of_another_architecture_is_refused(architecture, message, tmp_path):
    source = students.source(few(architecture, "embedding"), tmp_path)
    with pytest.raises(StudentError, match=message):
        starts.trial(StartSection(kind="albert"), student.inspect_folder(source, origin="teacher", licence=None))
