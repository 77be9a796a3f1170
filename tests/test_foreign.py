"""`verify FILE --against CHECKPOINT`: right files and wrong ones told apart, and the error named.

A file against a checkpoint that differs in one thing is a file that makes one mistake, without another conversion.
Files of other tools are in `make foreign`.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Outcome, TinyLine
from warm import session

from pipeline.errors import InputError, ToolchainError
from pipeline.foreign import binding, diagnosis
from pipeline.foreign.judge import Request, judge
from pipeline.foreign.record import Judgement, Variant
from pipeline.formats import onnx
from pipeline.formats.ports import Entry, Port
from pipeline.kinds import PoolingMode

# --- files and checkpoints ----------------------------------------------------------------------------------------


def judged(file: Path, checkpoint: Path, pooling: PoolingMode = "mean") -> Judgement:
    with pytest.MonkeyPatch.context() as patch, session().lent(patch):
        return judge(Request(file, str(checkpoint), None, pooling, thorough=False), lambda text: None)


def source(line: TinyLine) -> Path:
    return line.recipe.parent / "source"


def file_of(line: TinyLine, target: str) -> Path:
    return next(path for path in (line.folder / target / "model").iterdir() if path.suffix in (".tflite", ".pte"))


def test_a_file_of_the_checkpoint_is_the_same_model(tiny_line: TinyLine) -> None:
    found = judged(file_of(tiny_line, "litert-fp32"), source(tiny_line))
    assert (found.verdict, found.cause, found.scheme) == ("same", None, "fp32")
    assert set(found.inputs.values()) == {"input_ids", "attention_mask", "token_type_ids"}
    assert found.storage.matched == found.storage.matrices
    assert found.worst is not None
    assert found.worst.score > 0.9999
    assert found.padded > 0


def test_a_rounded_file_is_the_same_model_rounded(tiny_line: TinyLine) -> None:
    found = judged(file_of(tiny_line, "litert-int8_dynamic"), source(tiny_line))
    assert (found.verdict, found.cause, found.scheme) == ("rounded", None, "int8_dynamic")


def test_inputs_without_names_are_found_by_trial(tiny_line: TinyLine) -> None:
    found = judged(file_of(tiny_line, "executorch-fp32"), source(tiny_line))
    assert found.verdict == "same"
    assert list(found.inputs.values()) == ["input_ids", "attention_mask", "token_type_ids"]
    assert any("names of its inputs do not say" in text for text in found.assumed)


def test_another_pooling_is_named(tiny_line: TinyLine) -> None:
    found = judged(file_of(tiny_line, "litert-fp32"), source(tiny_line), "cls")
    assert found.verdict == "another"
    assert found.cause is not None
    assert found.cause.name == "pooling:mean"
    assert found.cause.error_variant is not None
    assert found.cause.error_variant < 1e-4


def edited(checkpoint: Path, place: Path, table: str, edit: Callable[[Any], Any]) -> Path:
    """Copy a checkpoint with one tensor changed."""
    from safetensors.torch import load_file, save_file

    folder = Path(shutil.copytree(checkpoint, place / "edited"))
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith(table))
    tensors[name] = edit(tensors[name]).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


MISTAKES: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    # What the checkpoint has, and so what the file lacks.
    "positions one too high": ("position_embeddings.weight", lambda table: table.roll(1, 0), "positions_off:+1"),
    "ids of a longer vocabulary": (
        "word_embeddings.weight",
        lambda table: table.roll(1, 0),
        "vocabulary_off:+1",
    ),
    "ids of another order": ("word_embeddings.weight", lambda table: table.flip(0), "vocabulary"),
    "a weight of another scale": ("layer.0.intermediate.dense.weight", lambda weight: weight * 4, "weights_scaled"),
}


@pytest.mark.parametrize(
    "mistake", [pytest.param(name, marks=[pytest.mark.full] if number else []) for number, name in enumerate(MISTAKES)]
)
def test_a_mistake_is_named(mistake: str, tiny_line: TinyLine, tmp_path: Path) -> None:
    table, edit, name = MISTAKES[mistake]
    found = judged(file_of(tiny_line, "litert-fp32"), edited(source(tiny_line), tmp_path, table, edit))
    assert found.verdict == "another", found.said
    assert found.cause is not None
    assert found.cause.name == name, found.said


def test_another_tokenizer_beside_the_file_is_said(tiny_line: TinyLine, tmp_path: Path) -> None:
    file = Path(shutil.copy(file_of(tiny_line, "litert-fp32"), tmp_path))
    document = json.loads((source(tiny_line) / "tokenizer.json").read_text(encoding="utf-8"))
    document["normalizer"]["lowercase"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    found = judged(file, source(tiny_line))
    assert found.verdict == "same"
    assert any("tokenizer.json beside it gives other ids" in note for note in found.notes)
    assert any("it keeps capitals, and the checkpoint's lower-cases" in note for note in found.notes)


# --- the command --------------------------------------------------------------------------------------------------


def test_the_command_s_exit_code_is_the_verdict(tiny_line: TinyLine, command_here: Callable[..., Outcome]) -> None:
    file, folder = file_of(tiny_line, "litert-fp32"), source(tiny_line)
    right = command_here("verify", file, "--against", folder, "--pooling", "mean", "--json")
    assert (right.rc, right.document["verdict"], right.document["exit"]) == (0, "same", 0), right.stderr
    wrong = command_here("verify", file, "--against", folder, "--pooling", "max")
    assert wrong.rc == 1
    for said in ("another model", "the pooling is another", "worst text", "input_ids", "relative error"):
        assert said in wrong.stdout


def refused(line: TinyLine, place: Path) -> dict[str, tuple[list[str], int, str]]:
    file, folder = str(file_of(line, "litert-fp32")), str(source(line))
    damaged, text = place / "damaged.tflite", place / "text.tflite"
    damaged.write_bytes(Path(file).read_bytes()[:2000])
    text.write_text("nothing", encoding="utf-8")
    return {
        "no file": (["verify", "none.tflite", "--against", folder], 2, "does not exist"),
        "no model file": (["verify", "minilm", "--against", folder], 2, "none of the files that can be judged"),
        "no checkpoint": (["verify", file, "--against", "none"], 2, "does not exist"),
        "a bare encoder": (["verify", file, "--against", folder], 2, "Say it with --pooling"),
        "another head": (["verify", file, "--against", folder, "--task", "regression"], 2, "needs another head"),
        "no flatbuffer": (["verify", str(text), "--against", folder, "--pooling", "mean"], 2, "is not a .tflite"),
        "half a file": (["verify", str(damaged), "--against", folder, "--pooling", "mean"], 3, "LiteRT cannot open"),
        "a target": (["verify", file, "--against", folder, "--target", "litert"], 2, "--against judges one file"),
        "a recipe's task": (["verify", "minilm", "--task", "embedding"], 2, "belong to --against"),
        "a file alone": (["verify", file], 2, "--against CHECKPOINT"),
    }


def test_what_cannot_be_judged_is_one_line(
    tiny_line: TinyLine, tmp_path: Path, command_here: Callable[..., Outcome]
) -> None:
    for case, (arguments, code, said) in refused(tiny_line, tmp_path).items():
        outcome = command_here(*arguments)
        assert outcome.rc == code, f"{case}: {outcome.stderr}"
        assert said in " ".join(outcome.stderr.split()), f"{case}: {outcome.stderr}"
        assert "Traceback" not in outcome.stderr


def test_onnxruntime_that_is_not_installed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match=r"onnxruntime, which is not installed.*make peers.*\.\[peers\]"):
        onnx.OpenONNX(tmp_path / "model.onnx")


# --- names, outputs, errors ---------------------------------------------------------------------------------------

ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "Hugging Face's": (
        ("input_ids", "attention_mask", "token_type_ids"),
        ("input_ids", "attention_mask", "token_type_ids"),
    ),
    "TensorFlow Hub's": (
        ("input_word_ids", "input_mask", "input_type_ids"),
        ("input_ids", "attention_mask", "token_type_ids"),
    ),
    "a signature's": (
        ("serving_default_segment_ids:0", "serving_default_input_ids:0", "serving_default_input_mask:0"),
        ("token_type_ids", "input_ids", "attention_mask"),
    ),
    "numbers in the order of letters": (
        ("serving_default_args_1:0", "serving_default_args_0:0"),
        ("attention_mask", "input_ids"),
    ),
    "one name that says something": (("x", "input_ids"), ("attention_mask", "input_ids")),
    "ids alone": (("tokens",), ("input_ids",)),
}


@pytest.mark.parametrize("case", ROLES)
def test_the_likeliest_roles_come_first(case: str) -> None:
    names, roles = ROLES[case]
    entry = Entry("main", tuple(Port(name, "int64", (1, None)) for name in names), ())
    ways = list(binding.bindings(entry, takes_types=True))
    assert ways[0].roles == roles
    assert len({way.roles for way in ways}) == len(ways)
    assert ways[0].by_name == (len(ways) == 1)


def test_an_input_that_is_no_row_of_tokens_is_refused() -> None:
    ports = (Port("input_ids", "int64", (1, 8)), Port("mask", "float32", (1, 1, 8, 8)))
    with pytest.raises(InputError, match=r"mask is no row of ids, mask, types or positions"):
        list(binding.bindings(Entry("main", ports, ()), takes_types=True))


def test_the_right_outputs_in_another_form_are_named() -> None:
    random = np.random.default_rng(0)
    right = [random.normal(size=(1, 4)).astype(np.float32) for _ in range(12)]
    turned = [one[:, [1, 2, 3, 0]] for one in right]
    assert [cause.name for cause in diagnosis.causes(right, turned, [], kind="logits")] == ["label_order"]
    cut = [one[:, :2] for one in right]
    assert diagnosis.causes(right, cut, [], kind="embedding")[0].name == "vector_cut"
    assert diagnosis.causes(right, right, [], kind="logits") == []


def test_an_error_has_to_fit_far_better_than_the_reference() -> None:
    random = np.random.default_rng(0)
    right, wrong = ([random.normal(size=(1, 64)).astype(np.float32) for _ in range(12)] for _ in range(2))
    variant = Variant("wrong", "it is wrong", wrong)
    # A file whose rounding is as large as the error is still nearer to the reference.
    noisy = [one + random.normal(scale=0.8, size=one.shape).astype(np.float32) for one in right]
    assert diagnosis.causes(right, noisy, [variant], kind="embedding") == []
    noisy = [one + random.normal(scale=0.3, size=one.shape).astype(np.float32) for one in wrong]
    assert [cause.name for cause in diagnosis.causes(right, noisy, [variant], kind="embedding")] == ["wrong"]


def test_rounding_neither_hides_a_mistake_nor_makes_one() -> None:
    random = np.random.default_rng(0)
    right = [random.normal(size=(1, 64)).astype(np.float32) for _ in range(12)]
    mistake = [random.normal(scale=0.3, size=(1, 64)).astype(np.float32) for _ in right]
    rounding = [random.normal(scale=0.4, size=(1, 64)).astype(np.float32) for _ in right]
    variant = Variant("wrong", "it is wrong", [a + b for a, b in zip(right, mistake, strict=True)])
    rounded = [a + b for a, b in zip(right, rounding, strict=True)]
    assert diagnosis.causes(right, rounded, [variant], kind="embedding") == []
    both = [a + b for a, b in zip(rounded, mistake, strict=True)]
    assert [cause.name for cause in diagnosis.causes(right, both, [variant], kind="embedding")] == ["wrong"]
    # Beside mistakes far smaller than it, rounding has any share by chance.
    small = [
        Variant("small", "it is wrong", [one + random.normal(scale=0.01, size=one.shape) for one in right])
        for _ in range(300)
    ]
    assert diagnosis.causes(right, rounded, small, kind="embedding") == []


@pytest.mark.parametrize(("width", "told"), [(1, []), (64, ["wrong"])])
def test_one_number_a_text_is_too_little_to_tell_a_mistake_from_rounding(width: int, told: list[str]) -> None:
    random = np.random.default_rng(0)
    rows, mistakes, noise = (random.normal(scale=scale, size=(12, 1, width)) for scale in (1.0, 0.3, 0.22))
    found = [row + mistake + one for row, mistake, one in zip(rows, mistakes, noise, strict=True)]
    variant = Variant("wrong", "it is wrong", list(rows + mistakes))
    assert [cause.name for cause in diagnosis.causes(list(rows), found, [variant], kind="value")] == told
