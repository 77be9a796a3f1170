"""Folders of sentence-transformers: the library's own vectors for each module that is read; others are refused."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import branch_of, recipe_file, run_command_here

from pipeline import tasks
from pipeline.checkpoint import loading, sentences, source
from pipeline.errors import PipelineError, RecipeError, StudentError
from pipeline.formats import signature
from pipeline.recipe import loading as recipes
from pipeline.student import assemble, golden, library, stage
from pipeline.text.encoding import Encoder

MEAN = {
    "word_embedding_dimension": 64,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": True,
    "pooling_mode_max_tokens": False,
}
CLS = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
MODULES = (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
SETTINGS, PROMPTS = "sentence_bert_config.json", "config_sentence_transformers.json"
TASK = tasks.get("embedding")


def stack(*modules: Any, **settings: Any) -> Callable[[Path, Path], None]:
    """Return what writes a folder with the library itself: an encoder, modules behind it, and settings of the model."""

    def write(encoder: Path, out: Path) -> None:
        import torch
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.base.modules import Dense, Transformer
        from sentence_transformers.base.modules.normalize import Normalize
        from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling

        torch.manual_seed(7)
        kinds = {"Pooling": Pooling, "Dense": Dense, "LayerNorm": LayerNorm, "Normalize": Normalize}
        made = []
        for kind, options in modules:
            given = dict(options)
            if "activation_function" in given:
                given["activation_function"] = getattr(torch.nn, given["activation_function"])()
            made.append(kinds[kind](**given))
        for one in made:
            for name, tensor in one.named_parameters():
                # A fresh norm has weights of one and biases of zero, which would hide that they are left out.
                tensor.data = tensor.data + 0.3 * torch.randn_like(tensor) if "norm" in name else tensor.data
        encoded = Transformer(str(encoder), max_seq_length=48)
        SentenceTransformer(modules=[encoded, *made], device="cpu", **settings).save(str(out))

    return write


NORMALIZE: tuple[str, Mapping[str, Any]] = ("Normalize", {})


def pooling(*modes: str, **options: Any) -> tuple[str, Mapping[str, Any]]:
    return "Pooling", {"embedding_dimension": 64, "pooling_mode": modes, **options}


def dense(wide: int, narrow: int, **options: Any) -> tuple[str, Mapping[str, Any]]:
    return "Dense", {"in_features": wide, "out_features": narrow, **options}


QUERIES = {"query": "query: ", "passage": "passage: of a document, "}
STACKS: dict[str, Callable[[Path, Path], None]] = {
    "minilm": stack(pooling("mean"), NORMALIZE),
    "bge": stack(pooling("cls"), NORMALIZE),
    "without_normalize": stack(pooling("mean"), prompts=QUERIES, default_prompt_name="query"),
    "distiluse": stack(pooling("mean"), dense(64, 24)),
    "leaf": stack(pooling("mean"), dense(64, 96, activation_function="Identity"), NORMALIZE, prompts=QUERIES),
    "ettin": stack(
        pooling("cls"),
        dense(64, 48, activation_function="GELU"),
        ("LayerNorm", {"dimension": 48}),
        dense(48, 16, activation_function="ReLU", bias=False),
    ),
    "residual": stack(
        pooling("lasttoken"),
        dense(64, 64, activation_function="SiLU", use_residual=True),
        dense(64, 32, activation_function="Sigmoid", use_residual=True),
    ),
    "joined": stack(pooling("mean", "cls", "max"), NORMALIZE),
    "max": stack(pooling("max")),
    "root": stack(pooling("mean_sqrt_len_tokens")),
    "weighted": stack(pooling("weightedmean"), NORMALIZE),
    "instructor": stack(
        pooling("mean", "cls", "weightedmean", "lasttoken", "max", include_prompt=False), NORMALIZE, prompts=QUERIES
    ),
}


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


def find(folder: Path, task: str = "embedding", **student: Any) -> source.Source:
    values = {"student": {"source": str(folder), "random_weights": True, **student}}
    return source.find(*recipes.read_recipe(str(recipe_file(folder.parent, task=task, **values))))


def refused(folder: Path, words: str, kind: type[PipelineError] = StudentError) -> None:
    with pytest.raises(kind, match=words) as caught:
        find(folder)
    assert "\n" not in str(caught.value)


def lose_lower_case(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["normalizer"]["lowercase"] = False
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
    put(folder, {"tokenizer.json": tokenizer, "tokenizer_config.json": settings})


def make(folder: Path, out: Path) -> dict[str, Any]:
    out.mkdir()
    return stage.make(folder, "embedding", False, out)


# --- what the library computes -----------------------------------------------------------------------------------


@pytest.fixture
def stacked(tiny_student: Callable[[str, str], Path], tmp_path: Path) -> Callable[[str], Path]:
    def write(name: str) -> Path:
        STACKS[name](tiny_student("bert", "embedding"), tmp_path / name)
        return tmp_path / name

    return write


@pytest.mark.parametrize("name", STACKS)
def test_reference_and_graph_are_the_library_s(name: str, stacked: Callable[[str], Path], tmp_path: Path) -> None:
    """The stage compares the reference with the library; the padded graph is compared with that reference here."""
    import torch

    folder = stacked(name)
    find(folder)
    metrics = make(folder, tmp_path / "out")
    document = golden.read(tmp_path / "out")
    rows, length = document.rows, document.max_length
    assert length == 48, "that of the folder's max_seq_length"
    assert {row.prompt for row in rows} == {None, *metrics["prompts"]}
    graph = loading.export_graph(tmp_path / "out", TASK)
    head = sentences.read(folder)
    encoder = Encoder.from_folder(tmp_path / "out", length)
    padding = graph(*(torch.zeros((1, length), dtype=torch.int32) for _ in range(3)))
    assert padding.abs().max() == 0, "a row of padding is zero"
    for row in rows:
        encoded = golden.encode(encoder, row, head.wanted)
        assert encoded.unpooled == 0 or not head.pooling.include_prompt
        names = ("input_ids", "attention_mask", "token_type_ids")
        inputs = [torch.from_numpy(array) for array in encoded.padded(names, length, pad_token_id=0).values()]
        with torch.no_grad():
            found = graph(*inputs)[0].numpy()
        size = np.sqrt(np.mean(np.square(row.output)))
        assert np.abs(found - np.array(row.output)).max() < 1e-4 * size, row.first[:20]


@pytest.mark.parametrize(("name", "other"), [("minilm", CLS), ("bge", MEAN), ("max", {"pooling_mode": "lasttoken"})])
def test_the_gate_fires_where_another_pooling_was_read(
    name: str, other: dict[str, Any], stacked: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = stacked(name)
    make(folder, tmp_path / "out")
    put(folder, {"1_Pooling/config.json": {"word_embedding_dimension": 64} | other})
    with pytest.raises(StudentError, match="sentence-transformers gives another embedding for 'Thanks!'"):
        library.check(folder, golden.read(tmp_path / "out"), TASK, sentences.read(folder))


def test_the_gate_fires_where_a_prompt_is_another(stacked: Callable[[str], Path], tmp_path: Path) -> None:
    folder = stacked("leaf")
    make(folder, tmp_path / "out")
    put(folder, {PROMPTS: {"prompts": QUERIES | {"query": "question: "}}})
    with pytest.raises(StudentError, match="behind the prompt 'query'"):
        library.check(folder, golden.read(tmp_path / "out"), TASK, sentences.read(folder))


def test_capitals_are_lowered_where_the_folder_says_so(folder: Path, tmp_path: Path) -> None:
    lose_lower_case(folder)
    put(folder, {SETTINGS: {"max_seq_length": 16, "do_lower_case": True}})
    make(folder, tmp_path / "out")
    rows = {row.first: row for row in golden.read(tmp_path / "out").rows}
    encoder = Encoder.from_folder(tmp_path / "out", 16)
    assert encoder.encode("A MAN IS PLAYING A GUITAR.").ids == tuple(rows["A man is playing a guitar."].input_ids)


def test_a_checkpoint_that_was_made_of_a_stack_keeps_it(stacked: Callable[[str], Path], tmp_path: Path) -> None:
    from pipeline.checkpoint import shapes

    folder = stacked("leaf")
    model = loading.load_checkpoint(folder, TASK)
    (tmp_path / "saved").mkdir()
    shapes.save(model, tmp_path / "saved")
    again = loading.load_checkpoint(tmp_path / "saved", TASK)
    assert {name: tensor.shape for name, tensor in again.named_parameters()} == {
        name: tensor.shape for name, tensor in model.named_parameters()
    }
    for name, tensor in model.named_parameters():
        assert (again.get_parameter(name) == tensor).all(), name
    assert again.sentence_head.settings == sentences.read(folder)


@pytest.mark.parametrize("name", ["ettin", "leaf"])
def test_a_file_with_the_weights_of_its_head_is_verified(
    name: str, stacked: Callable[[str], Path], command_here: Any, tmp_path: Path
) -> None:
    """int8 rounds the Dense of the head too, and the control has to know: dense layers, a norm folded into the next."""
    file = recipe_file(
        tmp_path,
        student={"source": str(stacked(name)), "random_weights": True},
        convert={"sequence_lengths": [16]},
        targets={"litert": {"schemes": ["int8_dynamic"]}},
        verify={"datasets": ["none"]},
    )
    outcome = command_here("verify", file)
    assert outcome.rc == 0, outcome.stdout + outcome.stderr
    folder = tmp_path / "build" / "tiny" / "litert-int8_dynamic" / "model"
    head = sentences.read(stacked(name))
    said = signature.read(folder)
    assert (said.prompts, said.include_prompt) == (head.prompts, head.pooling.include_prompt)
    assert said.functions[0].outputs[0].shape == (1, head.width(64))


def test_a_hidden_size_that_the_head_does_not_take_is_refused_by_the_plan(
    stacked: Callable[[str], Path], tmp_path: Path
) -> None:
    student = {"source": str(stacked("leaf")), "random_weights": True}
    file = recipe_file(tmp_path, student=student, prune={"hidden_size": 32, "max_length": 16, "calibration_texts": 48})
    with pytest.raises(StudentError, match="its Dense takes 64 numbers, and what comes before it gives 32"):
        branch_of(file)


# --- configs of every version ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "modes"),
    [
        (MEAN, ("mean",)),
        (CLS, ("cls",)),
        ({"embedding_dimension": 64, "pooling_mode": "mean", "include_prompt": True}, ("mean",)),
        ({"embedding_dimension": 64, "pooling_mode": ["mean"]}, ("mean",)),
        ({"embedding_dimension": 64, "pooling_mode": ["mean", "max"]}, ("mean", "max")),
        ({"word_embedding_dimension": 64}, ("mean",)),
        (MEAN | {"pooling_mode_cls_token": True}, ("cls", "mean")),
        (MEAN | {"pooling_mode": "mean"}, ("mean",)),
        (MEAN | {"include_prompt": False}, ("mean",)),
    ],
)
def test_every_spelling_of_a_pooling(config: dict[str, Any], modes: tuple[str, ...], folder: Path) -> None:
    put(folder, {"1_Pooling/config.json": config})
    find(folder)
    assert sentences.read(folder).pooling.modes == modes


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"pooling_mode_mean_tokens": False}, "asks for pooling by no mode"),
        ({"pooling_mode": "median"}, "asks for pooling median; there are: cls, max"),
        ({"pooling_mode_median_tokens": True}, "asks for pooling pooling_mode_median_tokens"),
        ({"pooling_mode": 3}, "asks for pooling 3"),
        (MEAN | {"pooling_mode": "max"}, "has pooling_mode 'max' for newer releases"),
        (CLS | {"pooling_mode": "mean"}, "has pooling_mode 'mean' for newer releases.*and for older ones cls"),
        ([], "holds a list, not an object"),
    ],
)
@pytest.mark.parametrize("place", ["1_Pooling", "pool"])
def test_a_pooling_that_does_not_exist_is_refused(place: str, config: Any, words: str, folder: Path) -> None:
    put(folder, modules(("Transformer", ""), ("Pooling", place)), {f"{place}/config.json": config})
    refused(folder, rf"{place}/config\.json {words}")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"in_features": 64, "out_features": 8, "activation_function": "torch.nn.Softplus"},
            "'torch.nn.Softplus'; there",
        ),
        ({"in_features": 64, "out_features": 8, "activation_function": "mine.Tanh"}, "'mine.Tanh'; there are"),
        ({"in_features": 64, "out_features": 0}, "has out_features 0"),
        ({"in_features": 64, "out_features": 8, "module_input_name": "token_embeddings"}, "module_input_name"),
        ({"in_features": 64, "out_features": 8}, r"2_Dense has no model\.safetensors"),
    ],
)
def test_a_dense_that_is_not_carried_out_is_refused(config: dict[str, Any], words: str, folder: Path) -> None:
    put(folder, modules(*MODULES[:2], ("Dense", "2_Dense")), {"2_Dense/config.json": config})
    with pytest.raises(StudentError, match=words):
        loading.load_checkpoint(find(folder).folder, TASK)


def test_pickled_weights_of_a_dense_are_refused(stacked: Callable[[str], Path]) -> None:
    folder = stacked("distiluse")
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(StudentError, match="is a pickle, which can run code"):
        loading.load_checkpoint(folder, TASK)


def test_a_dense_of_another_encoder_is_refused(stacked: Callable[[str], Path], tmp_path: Path) -> None:
    folder = stacked("distiluse")
    config = json.loads((folder / "2_Dense" / "config.json").read_text(encoding="utf-8"))
    put(folder, {"2_Dense/config.json": config | {"in_features": 32}})
    with pytest.raises(StudentError, match=r"2_Dense.*asks for .*\(24, 32\)"):
        loading.load_checkpoint(folder, TASK)
    put(folder, {"2_Dense/config.json": config, "1_Pooling/config.json": MEAN | {"pooling_mode_cls_token": True}})
    with pytest.raises(StudentError, match="Dense takes 64 numbers, and what comes before it gives 128"):
        loading.load_checkpoint(folder, TASK)


def test_unknown_modules_are_named(folder: Path) -> None:
    put(folder, modules(*MODULES[:2], ("LSTM", "2_LSTM")))
    refused(folder, "names the module LSTM")
    put(folder, modules(("Transformer", ""), ("Normalize", "1_Normalize"), ("Pooling", "1_Pooling")))
    refused(folder, "the second the Pooling")
    put(folder, modules(*MODULES, ("Dropout", "3_Dropout")))
    find(folder)


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


def test_prompts_are_read_and_empty_ones_left_out(folder: Path) -> None:
    put(folder, {PROMPTS: {"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": "document"}})
    head = sentences.read(folder)
    assert (head.prompts, head.default_prompt) == ({"query": "query: "}, None)
    put(folder, {PROMPTS: {"prompts": {"query": "query: "}, "default_prompt_name": "query"}})
    assert sentences.read(folder).default_prompt == "query"
    put(folder, {PROMPTS: {"prompts": {"query": "query: "}, "default_prompt_name": "clustering"}})
    refused(folder, "has default_prompt_name 'clustering'; there are: query")
    put(folder, {PROMPTS: {"prompts": ["query: "]}})
    refused(folder, "it has to be a table of texts by name")


# --- what a recipe says ------------------------------------------------------------------------------------------


def test_a_bare_encoder_s_pooling_is_asked_for(tiny_student: Callable[[str, str], Path], tmp_path: Path) -> None:
    bare = Path(shutil.copytree(tiny_student("bert", "embedding"), tmp_path / "student"))
    with pytest.raises(RecipeError, match=r"is a bare encoder.*student\.pooling = 'mean', or another of cls, max"):
        find(bare, pooling=None)
    find(bare, pooling="cls")


def test_a_recipe_names_the_pooling_and_the_prompts(tiny_student: Callable[[str, str], Path], tmp_path: Path) -> None:
    """What the library computes for the same modules, where the checkpoint's folder has none."""
    encoder = tiny_student("bert", "embedding")
    put(tmp_path, {"config.json": {}})
    named = {"pooling": "cls", "prompts": {"query": "query: ", "none": ""}, "default_prompt": "query"}
    file = recipe_file(tmp_path, student={"source": str(encoder), "random_weights": True, **named})
    branch = branch_of(file, "student")
    assert branch.named is not None
    assert branch.named.node is not None
    assert branch.named.node.place == "assembled"
    out = tmp_path / "assembled"
    out.mkdir()
    assemble.make(encoder, "embedding", branch.recipe.student, out)
    assert source.inspect_folder(out, origin="", licence=None).config == branch.named.source.config
    made = tmp_path / "made"
    metrics = make(out, made)
    assert (metrics["prompts"], metrics["default_prompt"]) == ({"query": "query: "}, "query")
    STACKS["bge"](encoder, tmp_path / "library")
    rows = {row.first: row for row in golden.read(made).rows if row.prompt is None}
    make(tmp_path / "library", tmp_path / "other")
    others = {row.first: row for row in golden.read(tmp_path / "other").rows}
    short = "A man is playing a guitar."
    assert np.allclose(rows[short].output, others[short].output, atol=1e-6)
    with pytest.raises(RecipeError, match=r"student\.default_prompt is 'other'; there are: query"):
        branch_of(
            recipe_file(tmp_path, student={"source": str(encoder), **named, "default_prompt": "other"}), "student"
        )


def test_a_folder_that_says_its_pooling_takes_no_other(folder: Path) -> None:
    with pytest.raises(RecipeError, match=r"student\.pooling is for an encoder without modules"):
        find(folder, pooling="cls")


def test_a_length_beyond_the_library_s_truncation_is_refused(folder: Path) -> None:
    put(folder, {SETTINGS: {"max_seq_length": 16}})
    refused(folder, "sequence length 32 .* is beyond max_seq_length 16", RecipeError)
    find(folder, max_seq_length=32)


def test_none_of_it_concerns_a_task_with_a_head(tiny_student: Callable[[str, str], Path], tmp_path: Path) -> None:
    made = Path(shutil.copytree(tiny_student("bert", "classification"), tmp_path / "student"))
    put(made, {PROMPTS: {"prompts": ["a"], "default_prompt_name": "a"}, "1_Pooling/config.json": CLS})
    find(made, "classification")


def test_several_labels_at_once_are_no_classification(tiny_student: Callable[[str, str], Path], tmp_path: Path) -> None:
    made = Path(shutil.copytree(tiny_student("bert", "classification"), tmp_path / "student"))
    config = json.loads((made / "config.json").read_text(encoding="utf-8"))
    put(made, {"config.json": config | {"problem_type": "single_label_classification"}})
    find(made, "classification")
    put(made, {"config.json": config | {"problem_type": "multi_label_classification"}})
    with pytest.raises(StudentError, match="which is task multi_label_classification; the recipe says classification"):
        find(made, "classification")
    find(made, "multi_label_classification")
    find(made, "embedding")
    put(made, {"config.json": config | {"problem_type": "regression"}})
    with pytest.raises(StudentError, match=r"which is task multi_regression; .* decides each label by a sigmoid"):
        find(made, "multi_label_classification")


def test_shards_are_read(tiny_student: Callable[[str, str], Path], tmp_path: Path) -> None:
    import transformers

    whole = tiny_student("bert", "embedding")
    sharded = Path(shutil.copytree(whole, tmp_path / "sharded"))
    (sharded / "model.safetensors").unlink()
    transformers.AutoModel.from_pretrained(whole).save_pretrained(sharded, max_shard_size="100KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    found = find(sharded)
    section = recipes.read_recipe(str(tmp_path / "recipe.toml"))[0].student
    assert assemble.is_needed(found, TASK, section)
    (tmp_path / "out").mkdir()
    assemble.make(sharded, "embedding", section, tmp_path / "out")
    mine, theirs = (loading.load_checkpoint(one, TASK).state_dict() for one in (tmp_path / "out", whole))
    assert mine.keys() == theirs.keys()
    assert all((mine[name] == theirs[name]).all() for name in mine)
    next(iter(sharded.glob("*.safetensors"))).unlink()
    refused(sharded, r"which model\.safetensors\.index\.json lists")


def test_an_adapter_is_refused_with_the_lines_that_merge_it(folder: Path) -> None:
    put(folder, {"adapter_config.json": {"peft_type": "LORA"}})
    with pytest.raises(StudentError, match=r"AutoPeftModelForFeatureExtraction.*merge_and_unload"):
        find(folder)


@pytest.mark.toolchain
def test_a_cross_encoder_that_was_pruned_is_no_longer_the_library_s(
    tiny_student: Callable[..., Path], tmp_path: Path
) -> None:
    """Its layers have shapes that the library cannot load, and its scores are others than the folder's by design."""
    from pipeline.checkpoint import shapes

    folder = Path(shutil.copytree(tiny_student("bert", "regression"), tmp_path / "student"))
    config = json.loads((folder / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (folder / "config.json").write_text(json.dumps(config))
    recipe = recipe_file(
        tmp_path,
        task="regression",
        student={"source": "student", "random_weights": True},
        prune={"intermediate_size": 0.5, "calibration_texts": 16, "max_length": 16},
    )
    outcome = run_command_here("student", recipe, "--build", tmp_path / "build", cwd=tmp_path)
    assert outcome.rc == 0, outcome.stderr
    made = json.loads((tmp_path / "build" / "tiny" / "student" / "config.json").read_text())
    assert shapes.KEY in made
    assert "sentence_transformers" in made
