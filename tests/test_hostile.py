"""Checkpoints and model folders that are not what they say: each is refused in one line, and nothing hangs."""

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from conftest import Outcome, TinyLine, recipe_file, recipe_values
from pieces import bundled_folder

import pipeline
from pipeline import artifact, formats
from pipeline.checkpoint import plausible, source
from pipeline.checkpoint.weights import WEIGHTS
from pipeline.convert import opening
from pipeline.convert.isolated import IsolatedModel
from pipeline.convert.model import Model
from pipeline.convert.predicting import read_candidates
from pipeline.convert.targets import choose_targets
from pipeline.errors import ArtifactError, RecipeError, StudentError, ToolchainError, WorkerDied
from pipeline.formats import signature
from pipeline.formats.executorch.reader import _Program
from pipeline.recipe import loading

# --- model folders -----------------------------------------------------------------------------------------------


@pytest.fixture
def model(tiny_line: TinyLine, tmp_path: Path) -> Path:
    """A converted model that the test may change."""
    return copied_model(tiny_line.folder / "litert-fp32" / "model", tmp_path / "model")


def copied_model(original: Path, folder: Path) -> Path:
    shutil.copytree(original, folder)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    return folder


def make_whole(folder: Path) -> None:
    """Write the hashes of what lies in a folder into its manifest, as somebody does who means it."""
    manifest = artifact.read_manifest(folder).model_copy(update={"files": artifact.list_files(folder)})
    (folder / artifact.MANIFEST).write_text(manifest.model_dump_json())


def edit_signature(folder: Path, **fields: Any) -> None:
    path = folder / signature.SIGNATURE
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    make_whole(folder)


def with_function(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        functions = json.loads((folder / signature.SIGNATURE).read_text())["functions"]
        change(functions[0])
        edit_signature(folder, functions=functions)

    return edit


NONSENSE: dict[str, tuple[Callable[[Path], None], str]] = {
    "file outside": (lambda f: edit_signature(f, file="../outside.tflite"), "file: '../outside.tflite' is not a plain"),
    "absolute file": (lambda f: edit_signature(f, file="/etc/hostname"), "file: '/etc/hostname' is not a plain name"),
    "hidden file": (lambda f: edit_signature(f, file=".DS_Store"), "file: '.DS_Store' is not a plain name"),
    "backend": (lambda f: edit_signature(f, backend="evil"), "backend: 'evil' is not known; there are: litert"),
    "scheme": (lambda f: edit_signature(f, scheme="evil"), "scheme: 'evil' is none that litert supports"),
    "task": (lambda f: edit_signature(f, task="evil"), "task: 'evil' is not known; there are: embedding"),
    "kind": (lambda f: edit_signature(f, output_kind="value"), "output_kind: 'value', where task embedding gives"),
    "labels": (lambda f: edit_signature(f, labels=["a", "b"]), "labels: task embedding has none"),
    "runtime": (lambda f: edit_signature(f, minimum_runtime="soon"), "minimum_runtime: 'soon' is not a version"),
    "padding": (lambda f: edit_signature(f, pad_token_id=-5), "pad_token_id and parameters: they cannot be negative"),
    "no functions": (lambda f: edit_signature(f, functions=[]), r"functions: their lengths are \[\]"),
    "no number": (lambda f: edit_signature(f, parameters="many"), "parameters: Input should be a valid integer"),
    "another field": (lambda f: edit_signature(f, more=1), "more: Extra inputs are not permitted"),
    "inputs": (with_function(lambda one: one["inputs"].pop(0)), "its inputs are .* a file takes input_ids"),
    "input name": (with_function(lambda one: one["inputs"][0].update(name="evil")), "its inputs are .*evil"),
    "input shape": (with_function(lambda one: one["inputs"][0].update(shape=[1, 9])), "it has to be int32 .1, 8."),
    "outputs": (with_function(lambda one: one.update(outputs=[])), r"its outputs are \[\]; the task has"),
    "lengths": (with_function(lambda one: one.update(min_length=99)), "it takes 99 to 8 tokens"),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_a_signature_of_nonsense_is_told_by_its_field(model: Path, case: str) -> None:
    edit, message = NONSENSE[case]
    edit(model)
    with pytest.raises(ArtifactError, match=message) as raised:
        pipeline.load(model)
    assert "\n" not in str(raised.value)


def test_the_field_is_told_by_the_command(model: Path, command_here: Callable[..., Outcome]) -> None:
    shutil.copyfile(model / "model.tflite", model.parent / "outside.tflite")
    edit_signature(model, file="../outside.tflite")
    outcome = command_here("predict", model, "hello")
    assert (outcome.rc, outcome.stdout) == (2, "")
    assert "not a plain name of a file in this folder" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_labels_have_to_be_as_many_as_outputs() -> None:
    tensor = signature.Tensor(name="logits", dtype="float32", shape=(1, 3))
    inputs = tuple(signature.Tensor(name=name, dtype="int32", shape=(1, 8)) for name in signature.INPUTS)
    one = signature.Function(name="seq_8", min_length=8, max_length=8, inputs=inputs, outputs=(tensor,))
    fields: dict[str, Any] = {"backend": "litert", "scheme": "fp32", "task": "classification", "output_kind": "logits"}
    fields |= {"file": "model.tflite", "minimum_runtime": "1.2.0", "pad_token_id": 0, "parameters": 9}
    for labels, problems in (
        (("a", "b", "c"), []),
        (("a", "b"), ["labels: there are 2 for 3 outputs of seq_8"]),
        (None, ["labels: there are 0 for 3 outputs of seq_8"]),
    ):
        made = signature.Signature(**fields, labels=labels, functions=(one,))
        assert list(signature._problems(made)) == problems


UNFIT: dict[str, tuple[Callable[[Path], None], str]] = {
    "function name": (with_function(lambda one: one.update(name="evil")), r"functions: \['evil'.*, and the file has "),
    "no function name": (with_function(lambda one: one.update(name="")), r"functions: \[''.*, and the file has "),
    "huge padding": (lambda f: edit_signature(f, pad_token_id=10**30), "pad_token_id: 10+, where config.json has voca"),
    "padding beyond": (lambda f: edit_signature(f, pad_token_id=1000), "pad_token_id: 1000, where config.json has v"),
    "free output": (
        with_function(lambda one: one["outputs"][0].update(shape=[1, None])),
        r"outputs: .*\(1, any\), and",
    ),
    "wide output": (with_function(lambda one: one["outputs"][0].update(shape=[1, 65])), r"outputs: .*\(1, 65\), and"),
    "half output": (
        with_function(lambda one: one["outputs"][0].update(dtype="float16")),
        "outputs: .* float16 .*, and",
    ),
    "later runtime": (lambda f: edit_signature(f, minimum_runtime="999.0"), "minimum_runtime: '999.0', where"),
    "no runtime": (lambda f: edit_signature(f, minimum_runtime=""), "minimum_runtime: ''"),
    "long file": (lambda f: edit_signature(f, file="x" * 5000), r"file: 'x{79}… \(5,002 characters\), where a file of"),
    "another file": (
        lambda f: edit_signature(f, file="config.json"),
        "file: 'config.json', where a file of .* is called",
    ),
    "parameters": (lambda f: edit_signature(f, parameters=10**30), "parameters: 10+, which a file of .* cannot hold"),
    "turned inputs": (
        with_function(lambda one: one["inputs"].reverse()),
        "inputs: token_type_ids int32 .*, and the file",
    ),
}


@pytest.mark.parametrize("target", ["litert-fp32", "executorch-fp32"])
def test_a_signature_that_is_not_the_file_s_is_told_by_its_field(
    target: str, tiny_line: TinyLine, tmp_path: Path
) -> None:
    original = tiny_line.folder / target / "model"
    for number, (case, (edit, message)) in enumerate(UNFIT.items()):
        folder = copied_model(original, tmp_path / str(number))
        edit(folder)
        with pytest.raises(ArtifactError, match=message) as raised:
            pipeline.load(folder, isolated=False)
        assert "\n" not in str(raised.value), case
        assert len(str(raised.value)) < 600, case
        shutil.rmtree(folder)


def test_an_isolated_model_s_signature_is_compared_as_well(model: Path) -> None:
    edit_signature(model, pad_token_id=1000)
    with pytest.raises(ArtifactError, match="pad_token_id: 1000, where"):
        pipeline.load(model, isolated=True)


@pytest.mark.parametrize("claimed", ["999.0", "", "iOS 99 / macOS 99"])
def test_core_ml_s_runtime_is_compared_although_it_is_no_version(claimed: str) -> None:
    backend = formats.get("coreml")
    one = signature.Signature.model_construct(backend="coreml", scheme="fp16", minimum_runtime=claimed)
    assert list(opening._wrong_runtime(one)) == [
        f"minimum_runtime: {claimed!r}, where a file of coreml says {backend.MINIMUM_RUNTIME!r}"
    ]
    right = one.model_copy(update={"minimum_runtime": backend.MINIMUM_RUNTIME})
    assert list(opening._wrong_runtime(right)) == []


def test_verification_judges_what_does_not_open(model: Path) -> None:
    # Its own gates say what differs; here a folder only has to be opened without them.
    with_function(lambda one: one["outputs"][0].update(shape=[1, 65]))(model)
    Model(model).close()


def test_a_pipe_in_a_model_folder_is_refused(model: Path) -> None:
    os.mkfifo(model / "pipe")
    with pytest.raises(ArtifactError, match="pipe is a device, pipe or socket"):
        pipeline.load(model)


# --- damaged files in a process of their own ---------------------------------------------------------------------


def test_an_isolated_model_predicts_what_the_model_does(model: Path) -> None:
    texts = ["Where is my parcel?", "It rains."]
    with pipeline.load(model) as here, pipeline.load(model, isolated=True) as apart:
        for one, other in zip(here.predict(texts), apart.predict(texts), strict=True):
            assert one.vector.tobytes() == other.vector.tobytes()
        assert apart.signature == here.signature


def test_a_file_that_crashes_its_runtime_ends_its_own_process_alone(tiny_line: TinyLine, tmp_path: Path) -> None:
    """A kernel of ExecuTorch aborts on an argument of another type; nobody asked for a process of its own here."""
    folder = copied_model(tiny_line.folder / "executorch-fp32" / "model", tmp_path / "model")
    content = bytearray((folder / "model.pte").read_bytes())
    for plan in _Program.read(memoryview(content)).table["execution_plan"]:
        for chain in plan["chains"]:
            for instruction in chain["instructions"]:
                if instruction.member("instr_args") == "KernelCall":
                    arguments = instruction["instr_args"]["args"]
                    arguments[:] = arguments[::-1].copy()
    (folder / "model.pte").write_bytes(content)
    make_whole(folder)
    with pipeline.load(folder) as apart, pytest.raises(WorkerDied, match="its process was ended by SIGABRT"):
        apart.predict(["Where is my parcel?"])


@pytest.mark.parametrize("size", [1000, 50_000])
def test_a_file_that_is_cut_off_is_refused(model: Path, size: int) -> None:
    file = model / "model.tflite"
    file.write_bytes(file.read_bytes()[:size])
    make_whole(model)
    with pytest.raises((ArtifactError, ToolchainError, WorkerDied), match=r"model\.tflite"):
        pipeline.load(model)


def test_a_file_of_another_format_is_refused_by_its_first_bytes(model: Path) -> None:
    (model / "model.tflite").write_bytes(b"PK\x03\x04 a zip file")
    make_whole(model)
    with pytest.raises(ArtifactError, match=r"is not a \.tflite: it has b' a z' at byte 4, not b'TFL3'"):
        pipeline.load(model, isolated=False)


def test_a_crash_of_the_runtime_is_an_error_of_its_caller(model: Path) -> None:
    with pipeline.load(model, isolated=True) as apart:
        assert isinstance(apart, IsolatedModel)
        os.kill(apart._worker._process.pid, signal.SIGSEGV)
        with pytest.raises(WorkerDied, match="its process was ended by SIGSEGV"):
            apart.predict(["Where is my parcel?"])


def test_a_text_that_is_cut_is_said_to_be_cut(model: Path, command_here: Callable[..., Outcome]) -> None:
    long = "parcel " * 10_000
    outcome = command_here("predict", model, long, "Where is my parcel?")
    assert outcome.rc == 0, outcome.stderr
    assert len(outcome.stdout) < 2000
    assert "… (70,000 characters)" in outcome.stdout
    assert outcome.stdout.count("truncated: only the first 32 tokens were read") == 1


def test_candidates_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "faq.txt").write_bytes("\ufeffWhere is it?\n".encode())
    assert read_candidates(tmp_path / "faq.txt") == ["Where is it?"]


def test_a_target_with_a_colon_and_no_scheme_is_refused() -> None:
    recipe, _ = loading.read_recipe("minilm")
    assert len(choose_targets(recipe, ["litert"])) == 2
    with pytest.raises(RecipeError, match="target 'litert:' is not in recipe minilm; there are: litert:fp32"):
        choose_targets(recipe, ["litert:"])


def test_a_process_that_hangs_is_ended(model: Path) -> None:
    with pytest.raises(WorkerDied, match=r"said nothing for 0\.01 s and was ended"):
        IsolatedModel(model, patience_seconds=0.01)


# --- checkpoints -------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tiny_student: Callable[[str, str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_student("bert", "classification"), tmp_path / "checkpoint"))


def edit_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def load(folder: Path, task: str) -> Any:
    from pipeline import tasks
    from pipeline.checkpoint.loading import load_checkpoint

    return load_checkpoint(folder, tasks.get(task))


def test_a_config_that_forgets_a_layer_is_refused(checkpoint: Path) -> None:
    edit_config(checkpoint, num_hidden_layers=1)
    for task in ("classification", "embedding"):
        with pytest.raises(StudentError, match=r"holds 16 tensors that \w+ has no place for, .*layer\.1\.") as raised:
            load(checkpoint, task)
        assert "Does config.json count its layers right" in str(raised.value)


def test_the_head_of_another_task_is_refused_though_its_tensors_fit(checkpoint: Path) -> None:
    with pytest.raises(StudentError, match="was saved as BertForSequenceClassification, and task token_classification"):
        load(checkpoint, "token_classification")


@pytest.mark.parametrize("field", ["intermediate_size", "vocab_size"])
def test_a_config_of_other_sizes_is_refused_with_both_shapes(checkpoint: Path, field: str) -> None:
    edit_config(checkpoint, **{field: 200})
    with pytest.raises(
        StudentError, match=r"\w+\.(weight|bias) has shape \(.*\), and config.json asks for \(.*200.*\)"
    ):
        load(checkpoint, "classification")


def test_heads_and_buffers_may_be_left_over(checkpoint: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(checkpoint / WEIGHTS)
    more = ("cls.predictions.bias", "bert.pooler.dense.weight", "fit_dense.weight", "bert.embeddings.position_ids")
    save_file(tensors | {name: torch.ones(3) for name in more if name not in tensors}, checkpoint / WEIGHTS)
    load(checkpoint, "embedding")
    save_file(tensors | {"adapter.weight": torch.ones(3)}, checkpoint / WEIGHTS)
    with pytest.raises(StudentError, match=r"adapter\.weight first"):
        load(checkpoint, "embedding")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "modules.json", WEIGHTS])
def test_a_pipe_in_a_checkpoint_does_not_hang(checkpoint: Path, name: str) -> None:
    (checkpoint / name).unlink(missing_ok=True)
    os.mkfifo(checkpoint / name)
    with pytest.raises(StudentError, match=f"{name} is no regular file"):
        source.inspect_folder(checkpoint, origin="tiny", licence=None)


@pytest.mark.parametrize("padding", [-5, 10**6, "0"])
def test_a_padding_id_beyond_the_table_is_refused(checkpoint: Path, padding: Any) -> None:
    edit_config(checkpoint, pad_token_id=padding)
    with pytest.raises(StudentError, match="it has to be the number of a row of the table"):
        source.inspect_folder(checkpoint, origin="tiny", licence=None)


def sentence_transformers(folder: Path, *modules: str) -> None:
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Dense": "2_Dense"}
    rows = [
        {"idx": number, "path": paths.get(name, name), "type": f"sentence_transformers.models.{name}"}
        for number, name in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')


def test_a_module_that_is_not_carried_out_is_refused(tiny_student: Callable[[str, str], Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_student("bert", "embedding"), tmp_path / "student"))
    sentence_transformers(folder, "Transformer", "Pooling", "Normalize")
    recipe = pipeline_recipe(tmp_path, folder)
    source.find(*recipe)
    sentence_transformers(folder, "Transformer", "Pooling", "LSTM")
    with pytest.raises(StudentError, match=r"names the module LSTM \(Transformer → Pooling → LSTM\)"):
        source.find(*recipe)
    (folder / "modules.json").write_text("[1]")
    with pytest.raises(StudentError, match="is no list of modules"):
        source.find(*recipe)


def pipeline_recipe(folder: Path, student: Path) -> Any:
    return loading.read_recipe(str(recipe_file(folder, student={"source": str(student), "random_weights": True})))


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "modules.json"])
def test_every_file_of_the_bundled_student_is_pinned(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "students" / "all-MiniLM-L6-v2"
    shutil.copytree(bundled_folder(), folder, copy_function=os.link)
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    (folder / name).write_bytes(content + b" ")
    monkeypatch.setenv("POCKETBERT_STUDENTS", str(folder.parent))
    (tmp_path / "recipe.toml").write_text(tomli_w.dumps(recipe_values()))
    with pytest.raises(StudentError, match=rf"{name} has sha256 .*not the published all-MiniLM-L6-v2"):
        source.at("bundled:all-MiniLM-L6-v2", tmp_path / "recipe.toml")


def test_a_file_of_the_hub_s_cache_is_compared_with_its_commit_s_hash(tmp_path: Path) -> None:
    content = b'{"model_type": "bert"}'
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "commit"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    # The first is what `git hash-object` says of these bytes.
    for blob in ("46332c50668921e90868a1d44a2550bb60ffdb1d", hashlib.sha256(content).hexdigest()):
        (blobs / blob).write_bytes(content)
        (snapshot / "config.json").unlink(missing_ok=True)
        (snapshot / "config.json").symlink_to(Path("../../blobs") / blob)
        source._check_cache(snapshot)
        (blobs / blob).write_bytes(content + b" ")
        with pytest.raises(StudentError, match=r"config\.json is not the file of that commit"):
            source._check_cache(snapshot)


# --- config.json against the header of the weights ---------------------------------------------------------------

IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "layers": ({"num_hidden_layers": 10**9}, "num_hidden_layers 1000000000, and the weights have 2 layers"),
    "no layers": ({"num_hidden_layers": 0}, "num_hidden_layers 0, and it has to be a whole number from 1 on"),
    "activation": ({"hidden_act": "evil"}, "hidden_act 'evil', which is no activation; there are: gelu, "),
    "width": ({"hidden_size": 128}, r"hidden_size 128, and .*word_embeddings\.weight has shape \(1000, 64\)"),
    "heads": ({"num_attention_heads": 5}, "num_attention_heads 5, which does not divide hidden_size 64"),
    "no heads": ({"num_attention_heads": 0}, "num_attention_heads 0, and it has to be a whole number from 1 on"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_a_config_that_cannot_be_that_of_the_weights_is_refused_at_once(checkpoint: Path, case: str) -> None:
    fields, message = IMPOSSIBLE[case]
    edit_config(checkpoint, **fields)
    with pytest.raises(StudentError, match=f"config.json has {message}"):
        source.inspect_folder(checkpoint, origin="tiny", licence=None)


def test_layers_that_share_their_tensors_are_not_built_without_end(
    tiny_student: Callable[[str, str], Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_student("albert", "embedding"), tmp_path / "albert"))
    edit_config(folder, num_hidden_layers=12)
    source.inspect_folder(folder, origin="tiny", licence=None)
    for key in ("num_hidden_layers", "num_hidden_groups", "inner_group_num"):
        edit_config(folder, **{"num_hidden_layers": 2, key: 10**9})
        with pytest.raises(StudentError, match=f"config.json has {key} 1000000000, and .*at most 1000 are taken"):
            source.inspect_folder(folder, origin="tiny", licence=None)
        edit_config(folder, **{key: 1})


@pytest.mark.toolchain
def test_the_activations_are_those_of_transformers() -> None:
    from transformers.activations import ACT2FN

    assert sorted(ACT2FN) == sorted(plausible.ACTIVATIONS)
