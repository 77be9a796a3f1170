"""Bad input, through the real command: the exit code, one line that begins with `error:`, and the words it has to hold.

There are many cases, so they call the command's `main` in this process; a sample of them runs `python -m pipeline`.
What fails only after torch was imported is asked of `student_stage.make` itself, and once of the command.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from conftest import LABELS, TINY_TARGETS, Outcome, TinyLine, recipe_file, recipe_values, run_command
from store import kept

from pipeline import artifact
from pipeline.errors import StudentError
from pipeline.formats.signature import SIGNATURE
from pipeline.student import stage as student_stage


@pytest.fixture(autouse=True)
def swept(tmp_path) -> Iterator[None]:
    """Remove what a test copied, since pytest would keep it: a gigabyte in all."""
    yield
    shutil.rmtree(tmp_path)


@dataclass
class Scene:
    """Where a case is set up."""

    tmp: Path
    request: pytest.FixtureRequest

    def recipe(self, **overrides: Any) -> Path:
        return recipe_file(self.tmp, **overrides)

    def text(self, text: str | bytes) -> Path:
        """Write a recipe file of any content."""
        path = self.tmp / "recipe.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def student(
        self, change: Callable[[Path], Any], task: str = "embedding", asked: str | None = None, **overrides: Any
    ) -> Path:
        """Copy the tiny student of a task, change it, and return a recipe that names it, for another task if asked."""
        folder = self.tmp / "student"
        shutil.copytree(self.request.getfixturevalue("tiny_student")("bert", task), folder)
        change(folder)
        return self.recipe(task=asked or task, student={"source": "student", "random_weights": True}, **overrides)

    @property
    def line(self) -> TinyLine:
        """The shared line, to look at only."""
        line: TinyLine = self.request.getfixturevalue("tiny_line")
        return line

    def copied_line(self) -> TinyLine:
        """A copy of the line, to change."""
        return self.line.copy(self.tmp)

    def model(self, change: Callable[[Path], Any]) -> Path:
        """Copy the LiteRT model of the line, change the copy, and return its folder."""
        folder = self.tmp / "model"
        shutil.copytree(self.line.folder / "litert-fp32" / "model", folder)
        change(folder)
        return folder


Arguments = list[str | Path]


@dataclass(frozen=True)
class Bad:
    """One bad input."""

    words: tuple[str, ...]
    """What the line has to say."""
    arguments: Callable[[Scene], Arguments]
    rc: int = 2
    variables: dict[str, str] = field(default_factory=dict)


def check(outcome: Outcome, bad: Bad) -> None:
    """One line of complaint with the right words; steps that were told before it stay."""
    lines = [line for line in outcome.stderr.splitlines() if line.startswith("error:")]
    assert outcome.rc == bad.rc, outcome.stderr
    assert "Traceback" not in outcome.stderr + outcome.stdout
    assert len(lines) == 1, outcome.stderr
    assert outcome.stderr.splitlines()[-1] == lines[0]
    for word in bad.words:
        assert word in lines[0]
    assert lines[0].rstrip().endswith((".", "?"))


def plan_of(*words: str, variables: dict[str, str] | None = None, text: str | bytes | None = None, **overrides: Any):
    """Return the case of a recipe that `plan` refuses, given as what differs from a good one, or as its text."""

    def arguments(scene: Scene) -> Arguments:
        return ["plan", scene.recipe(**overrides) if text is None else scene.text(text)]

    return Bad(words, arguments, variables=variables or {})


def student_of(*words: str, change: Callable[[Path], Any], task: str = "embedding"):
    """Return the case of a student folder that `plan` refuses."""
    return Bad(words, lambda scene: ["plan", scene.student(change, task)])


def put(name: str, content: str | bytes) -> Callable[[Path], Any]:
    """Return a change that writes a file into a folder."""

    def change(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def drop(*names: str, then: Callable[[Path], Any] = lambda folder: None) -> Callable[[Path], Any]:
    """Return a change that removes files from a folder."""

    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()
        then(folder)

    return change


def stretch(name: str) -> Callable[[Path], Any]:
    """Return a change that makes a terabyte of holes of a file."""
    return lambda folder: os.truncate(folder / name, 1 << 40)


def edit_json(name: str, **values: Any) -> Callable[[Path], Any]:
    """Return a change that sets keys of a JSON file; `ABSENT` removes one."""

    def change(folder: Path) -> None:
        document = json.loads((folder / name).read_text()) | values
        (folder / name).write_text(json.dumps({key: value for key, value in document.items() if value is not ABSENT}))

    return change


def truncate(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", (folder / "model.safetensors").stat().st_size // 2)


def flip_last_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def as_it_is(folder: Path) -> None:
    """Change nothing."""


ABSENT = object()
WEIGHTS = "model.safetensors"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ONLY_STSB: dict[str, Any] = {"verify": {"datasets": ["stsb"]}}


animals = edit_json("config.json", id2label={"0": "cat", "1": "dog", "2": "cow"})


def below_a_file(scene: Scene) -> Arguments:
    (scene.tmp / "file").write_text("no folder")
    return ["student", scene.recipe(), "--build", scene.tmp / "file" / "build"]


def piped(scene: Scene) -> Arguments:
    os.mkfifo(scene.tmp / "train.csv")
    student = scene.request.getfixturevalue("tiny_student")("bert", "embedding")
    data = {"train_file": "train.csv", "dev_file": "train.csv"}
    return ["plan", scene.recipe(task="classification", student={"source": str(student)}, train=data)]


def piped_recipe(verb: str) -> Callable[[Scene], Arguments]:
    """Name a pipe to which nobody writes."""

    def arguments(scene: Scene) -> Arguments:
        os.mkfifo(scene.tmp / "pipe.toml")
        return [verb, scene.tmp / "pipe.toml"]

    return arguments


def changed_bundle(scene: Scene) -> Arguments:
    put("all-MiniLM-L6-v2/model.safetensors", b"other bytes")(scene.tmp)
    return ["plan", scene.recipe()]


def stsb_file(content: str) -> Callable[[Scene], Arguments]:
    def arguments(scene: Scene) -> Arguments:
        put("stsb/dev.csv", content)(scene.tmp)
        return ["plan", scene.recipe(**ONLY_STSB)]

    return arguments


RECIPES = {
    "recipe name that is not there": Bad(
        ("'minilmm'", "there are: albert, albert-sst2-bundled, all-mpnet", "'minilm'?"),
        lambda _: ["plan", "minilmm"],
    ),
    "recipe file that is not there": Bad(
        ("nowhere.toml", "does not exist", "minilm"), lambda _: ["run", "nowhere.toml"]
    ),
    "recipe in nobody's home": Bad(
        ("~nobody-here/a.toml", "does not exist"), lambda _: ["plan", "~nobody-here/a.toml"]
    ),
    "recipe that is a folder": Bad(
        ("is a folder, and a file belongs there", "Ready ones"), lambda scene: ["plan", str(scene.tmp) + os.sep]
    ),
    "recipe that is a pipe": Bad(("pipe.toml is no regular file",), piped_recipe("plan")),
    "study that is a pipe": Bad(("pipe.toml is no regular file",), piped_recipe("study")),
    "recipe below a file": Bad(
        ("file/recipe.toml does not exist", "is a file, not a folder"),
        lambda scene: ["plan", Path(below_a_file(scene)[-1]).parent / "recipe.toml"],
    ),
    "not TOML": plan_of("recipe.toml is not valid TOML", "line 1", text="name: tiny\n"),
    "a recipe that fits no memory": Bad(
        ("recipe.toml cannot be read: File too large",),
        lambda scene: [stretch("recipe.toml")(Path(scene.recipe()).parent), "plan", scene.tmp / "recipe.toml"][1:],
    ),
    "not UTF-8": plan_of("recipe.toml is not valid TOML", "utf-8", text=b'name = "\xff\xfe"\n'),
    "TOML nested beyond measure": plan_of("recipe.toml is not valid TOML", text="a = " + "[" * 5000),
    "empty recipe": plan_of("key 'name' is missing", text=""),
    "unknown key at the top": plan_of(
        "recipe.toml", "'tasks' does not exist", "Did you mean 'task'?", tasks="embedding"
    ),
    "unknown key in a section": plan_of(
        "'convert.sequence_length'",
        "keys there: sequence_lengths.",
        "Did you mean 'sequence_lengths'?",
        convert={"sequence_length": [8]},
    ),
    "unknown key in a target": plan_of(
        "'targets.litert.scheme'", "Did you mean 'schemes'?", targets={"litert": {"scheme": ["fp32"]}}
    ),
    "unknown key in Core ML's targets": plan_of(
        "'targets.coreml.minimum_io'",
        "keys there: minimum_ios, minimum_runtime, schemes, sequence_lengths.",
        "Did you mean 'minimum_ios'?",
        targets={"coreml": {"schemes": ["fp32"], "minimum_io": 18}},
    ),
    "Core ML's own key in another backend's targets": plan_of(
        "key 'targets.litert.minimum_ios' does not exist",
        "keys there: minimum_runtime, schemes, sequence_lengths.",
        targets={"litert": {"schemes": ["fp32"], "minimum_ios": 18}},
    ),
    "a key that has moved": plan_of(
        "recipe.toml: convert.minimum_ios was renamed targets.coreml.minimum_ios.", convert={"minimum_ios": 17}
    ),
    "a section of Core ML's that is no table": plan_of(
        "targets.coreml = 'fp32'", "a table", targets={"coreml": "fp32"}
    ),
    "unknown gate": plan_of(
        "'verify.gates.fp32.min_cosine'", "min_mean_cosine", verify={"gates": {"fp32": {"min_cosine": 0.9}}}
    ),
    "missing key": plan_of("key 'task' is missing", task=None),
    "number for a name": plan_of("name = 3", "valid string", name=3),
    "text for a list": plan_of("targets.litert.schemes = 'fp32'", "a list", targets={"litert": {"schemes": "fp32"}}),
    "text for a section": plan_of("student = 'bundled", "a table", student="bundled:all-MiniLM-L6-v2"),
    "fraction for a length": plan_of("sequence_lengths.0 = 8.5", "integer", convert={"sequence_lengths": [8.5]}),
    "no targets": plan_of("targets = {}", "at least 1", targets={}),
    "no schemes": plan_of("targets.litert.schemes", "at least 1", targets={"litert": {"schemes": []}}),
    "a scheme twice": plan_of("targets.litert.schemes", "twice", targets={"litert": {"schemes": ["fp32", "fp32"]}}),
    "unknown backend": plan_of("targets.onnx", "litert, coreml, executorch", targets={"onnx": {"schemes": ["fp32"]}}),
    "unknown scheme": plan_of(
        "targets.litert.schemes", "'int4' does not exist", "int8_dynamic", targets={"litert": {"schemes": ["int4"]}}
    ),
    "gates of an unknown scheme": plan_of("verify.gates.int9", "fp32", verify={"gates": {"int9": {}}}),
    "Core ML without dynamic int8": plan_of(
        "coreml does not support int8_dynamic: Core ML has no activations that are quantised at run time",
        "It supports: fp32, fp16, int8_weight_only, int8_static, int4_weight_only, palettize_6bit, palettize_4bit",
        targets={"coreml": {"schemes": ["int8_dynamic"]}},
    ),
    "ExecuTorch without fp16": plan_of(
        "executorch does not support fp16: layer_norm",
        "It supports: fp32",
        targets={"executorch": {"schemes": ["fp16"]}},
    ),
    "iOS that is too old": plan_of(
        "targets.coreml.minimum_ios = 14",
        "15, 16, 17 or 18",
        targets={"coreml": {"schemes": ["fp32"], "minimum_ios": 14}},
    ),
    "int8 before iOS 16": plan_of(
        "from iOS 16 on, and minimum_ios is 15",
        "It supports: fp32, fp16",
        targets={"coreml": {"schemes": ["int8_weight_only"], "minimum_ios": 15}},
    ),
    "lengths out of order": plan_of("sequence_lengths = [32, 16]", "must rise", convert={"sequence_lengths": [32, 16]}),
    "a length twice": plan_of("sequence_lengths", "each length once", convert={"sequence_lengths": [16, 16]}),
    "a length of one": plan_of(
        "sequence_lengths.0 = 1", "greater than or equal to 2", convert={"sequence_lengths": [1]}
    ),
    "no lengths": plan_of("convert.sequence_lengths", "at least 1", convert={"sequence_lengths": []}),
    "no lengths for a target": plan_of(
        "targets.litert.sequence_lengths",
        "at least 1",
        targets={"litert": {"schemes": ["fp32"], "sequence_lengths": []}},
    ),
    "more than the model's positions": plan_of(
        "recipe.toml", "sequence length 1024 (litert)", "512 positions", convert={"sequence_lengths": [16, 1024]}
    ),
    "unknown task": plan_of("recipe.toml", "'summary' does not exist", "classification, embedding", task="summary"),
    "unknown dataset": plan_of("'glue' does not exist for embedding", "stsb, none", verify={"datasets": ["glue"]}),
    "no dataset, and one beside it": plan_of(
        "verify.datasets: 'none' stands alone, and graded_pairs is there too",
        verify={"datasets": ["none", "graded_pairs"]},
    ),
    "another task's dataset": plan_of("'sst2' does not exist for embedding", verify={"datasets": ["sst2"]}),
    "training without data, before the checkpoint": plan_of(
        "recipe.toml: train has no data", task="classification", student={"source": "missing"}, train={}
    ),
    "distillation without data, before the checkpoint": plan_of(
        "recipe.toml: distil has no data", student={"source": "missing"}, distil={"losses": {"sentence_mse": 1.0}}
    ),
    "an unknown dataset to distil on, before the checkpoint": plan_of(
        "recipe.toml: distil.dataset: 'sst3' does not exist",
        student={"source": "missing"},
        distil={"losses": {"sentence_mse": 1.0}, "dataset": "sst3"},
    ),
    "a dataset's columns to distil on": plan_of(
        "recipe.toml: distil.pair names a column of train_file; dataset stsb has its own",
        student={"source": "missing"},
        distil={"losses": {"sentence_mse": 1.0}, "dataset": "stsb", "pair": "second"},
    ),
    "name that leaves the build folder": plan_of("name = '../x'", "pattern", name="../x"),
    "name of the store's folder": plan_of("name = 'store'", "choose another", name="store"),
    "a build folder that no file system takes": Bad(
        ("--build xxx", "cannot be used: File name too long. Choose another folder"),
        lambda _: ["plan", "minilm", "--build", "x" * 300],
    ),
    "a path that no file system takes": Bad(("does not exist", "Ready ones"), lambda _: ["plan", "a/" * 2500]),
    "name that is hidden": plan_of("name = '.x'", "pattern", name=".x"),
    "name that no file system takes": plan_of("name = 'aaa", "at most 64", name="a" * 300),
    "bound that is not a number": plan_of(
        "verify.gates.fp32.min_sqnr_db = nan",
        "finite",
        text=tomli_w.dumps(recipe_values()) + "[verify.gates.fp32]\nmin_sqnr_db = nan",
    ),
    "bound that could never fire": plan_of(
        "verify.gates.fp32.min_agreement", "embedding", verify={"gates": {"fp32": {"min_agreement": 0.9}}}
    ),
    "target that the recipe lacks": Bad(
        ("'coreml'", "not in recipe tiny", "litert:fp32, litert:int8_dynamic, executorch:fp32"),
        lambda scene: ["plan", scene.recipe(), "--target", "coreml"],
    ),
    "scheme that the recipe lacks": Bad(
        ("'litert:fp16'", "litert:fp32"), lambda scene: ["run", scene.recipe(), "--target", "litert:fp16"]
    ),
    "unknown device": Bad(
        ("'pixel'", "does not exist", "host"), lambda scene: ["run", scene.recipe(), "--dry-run", "--device", "pixel"]
    ),
    "a target's scheme that is empty": Bad(
        ("'litert:'", "is not in recipe tiny", "litert:fp32, litert:int8_dynamic, executorch:fp32"),
        lambda scene: ["plan", scene.recipe(), "--target", "litert:"],
    ),
    "build folder that is a file": Bad(
        ("--build", "recipe.toml is a file, and a folder belongs there"),
        lambda scene: ["plan", "minilm", "--build", scene.recipe()],
    ),
    "build folder below a file": Bad(("cannot be written", "--build"), below_a_file),
    "no data where POCKETBERT_DATA points": plan_of(
        "stsb",
        "POCKETBERT_DATA/stsb/dev.csv does not exist. POCKETBERT_DATA is /nowhere.",
        variables={"POCKETBERT_DATA": "/nowhere"},
        **ONLY_STSB,
    ),
    "no data at all": plan_of("stsb", "POCKETBERT_DATA is not set", **ONLY_STSB),
}

DATA = {
    "too few columns": ("one text,another text\n", "row 1: column 'score' is empty"),
    "too many columns": ("one,two,0.5,six\n", "row 1: more fields than the file has columns (3)"),
    "a score that is no number": ("one,two,0.5\none,two,high\n", "row 2: label 'high' is not a number"),
    "a score that is not finite": ("one,two,nan\n", "row 1: label 'nan' is not a finite number"),
    "nothing in it": ("", "holds no rows"),
}

STUDENTS = {
    "data from a pipe": Bad(("train.csv is no regular file",), lambda scene: piped(scene)),
    "folder that is not there": plan_of("checkpoint folder", "/missing does not exist", student={"source": "missing"}),
    "folder that is a file": plan_of(
        "recipe.toml is a file, and a folder belongs there", student={"source": "recipe.toml"}
    ),
    "folder in nobody's home": plan_of("~nobody-here", "does not exist", student={"source": "~nobody-here/a"}),
    "source that no path can be": plan_of("student.source", "pattern", student={"source": "a\u0000b"}),
    "no config": student_of("student has no config.json", change=drop("config.json")),
    "config that is not JSON": student_of("config.json cannot be read as JSON", change=put("config.json", "{")),
    "config that is a list": student_of("config.json holds a list", change=put("config.json", "[]")),
    "config nested beyond measure": student_of("config.json cannot be read", change=put("config.json", "[" * 99_999)),
    "unknown architecture": student_of(
        "model_type is 'gpt2'", "albert, bert, distilbert", change=edit_json("config.json", model_type="gpt2")
    ),
    "architecture that is a list": student_of("model_type is", change=edit_json("config.json", model_type=["bert"])),
    "no architecture": student_of("model_type is None", change=edit_json("config.json", model_type=ABSENT)),
    "no limit of length": student_of(
        "no whole number 'max_position_embeddings'", change=edit_json("config.json", max_position_embeddings=ABSENT)
    ),
    "no weights": student_of("student has no model.safetensors.", change=drop(WEIGHTS)),
    "only a pickle": student_of(
        "pytorch_model.bin but no model.safetensors",
        "Pickles can run code",
        ".save_pretrained(",
        change=drop(WEIGHTS, then=put("pytorch_model.bin", b"\x80\x04.")),
    ),
    "shards": student_of(
        "lists no safetensors files",
        "Copy the checkpoint again",
        change=drop(WEIGHTS, then=put(f"{WEIGHTS}.index.json", "{}")),
    ),
    "weights cut short": student_of("model.safetensors is corrupt", "Copy it again", change=truncate),
    "weights of noise": student_of("model.safetensors is corrupt", change=put(WEIGHTS, b"\xff" * 4096)),
    "weights without a byte": student_of("model.safetensors is corrupt", change=put(WEIGHTS, b"")),
    "weights without a tensor": student_of("holds no tensors", change=put(WEIGHTS, b"\x02\0\0\0\0\0\0\0{}")),
    "weights of whole numbers": student_of(
        "embeddings.LayerNorm.weight is I32, whole numbers", change=lambda folder: as_integers(folder)
    ),
    "a decoder": student_of("says that it is a decoder", change=edit_json("config.json", is_decoder=True)),
    "relative positions": student_of(
        "position_embedding_type 'relative_key'",
        "absolute positions alone",
        change=edit_json("config.json", position_embedding_type="relative_key"),
    ),
    "a checkpoint that was quantised": student_of(
        "has a quantization_config", change=edit_json("config.json", quantization_config={"quant_method": "gptq"})
    ),
    "an epsilon that is no number": student_of(
        "has layer_norm_eps nan, and it has to be a number between 0 and 1",
        change=edit_json("config.json", layer_norm_eps=float("nan")),
    ),
    "a tokenizer that fits no memory": student_of(
        "tokenizer.json cannot be read: File too large", change=stretch("tokenizer.json")
    ),
    "no tokenizer": student_of("has no tokenizer", "vocab.txt", change=drop("tokenizer.json")),
    "another dataset's labels": Bad(
        ("dataset sentiment does not fit the checkpoint: its labels are negative, positive", "cat, dog, cow", "none"),
        lambda scene: ["plan", scene.student(animals, "classification", verify={"datasets": ["sentiment"]})],
    ),
    "more labels than outputs": student_of(
        "classifier.weight has shape (3, 64), and config.json names 4 outputs (a, b, c, d)",
        "Correct id2label",
        change=edit_json("config.json", id2label={"0": "a", "1": "b", "2": "c", "3": "d"}),
        task="classification",
    ),
    "two labels of one name": student_of(
        "id2label gives ['a', 'a', 'b']",
        change=edit_json("config.json", id2label={"0": "a", "1": "a", "2": "b"}),
        task="classification",
    ),
    "one output for classes": Bad(
        ("has 1 outputs", "Did you mean task 'regression'?"),
        lambda scene: ["plan", scene.student(as_it_is, "regression", asked="classification")],
    ),
    "pooling of another kind": student_of(
        "1_Pooling/config.json asks for pooling median",
        "there are: cls, max, mean",
        change=put("1_Pooling/config.json", '{"pooling_mode": "median"}'),
    ),
    "hub without a commit": plan_of("hub:owner/name is not", "<40-digit commit>", student={"source": "hub:owner/name"}),
    "hub with a branch": plan_of("hub:owner/name@main is not", student={"source": "hub:owner/name@main"}),
    "unknown bundled student": plan_of("'tinybert'", "all-MiniLM-L6-v2", student={"source": "bundled:tinybert"}),
}


def signature_says(backend: str) -> Callable[[Scene], Arguments]:
    """Return the case of a whole model folder whose file belongs to another backend."""

    def arguments(scene: Scene) -> Arguments:
        source = scene.line.folder / "litert-fp32" / "model"
        spec = artifact.Spec("convert", 1, {}, {}, {})

        def make(out: Path) -> dict[str, Any]:
            shutil.copytree(source, out, dirs_exist_ok=True)
            edit_json(SIGNATURE, backend=backend)(out)
            return {}

        return ["predict", kept(scene.tmp / "model", spec, make).path, "hello"]

    return arguments


def predict(*words: str, change: Callable[[Path], Any] = lambda folder: None, text: str = "hello", rc: int = 2):
    return Bad(words, lambda scene: ["predict", scene.model(change), text], rc)


def among(*words: str, content: bytes | None):
    def arguments(scene: Scene) -> Arguments:
        file = scene.tmp / "candidates.txt"
        if content is not None:
            file.write_bytes(content)
        return ["predict", scene.line.folder / "litert-fp32" / "model", "hello", "--among", file]

    return Bad(words, arguments)


PREDICTIONS = {
    "no such path": Bad(
        ("nowhere/model does not exist", "pocketbert run"), lambda _: ["predict", "nowhere/model", "hello"]
    ),
    "a folder that is no model": Bad(
        ("is not a converted model", "signature.json"), lambda scene: ["predict", scene.tmp, "hello"]
    ),
    "an empty text": predict("the text is empty", text=""),
    "a text of white space": predict("the text is empty", "white space", text=" \t\n\u00a0"),
    "an empty second text": Bad(
        ("the text is empty",), lambda s: ["predict", s.line.folder / "litert-fp32", "hello", "--pair", " "]
    ),
    "a model that was changed": predict(
        "changed after it was made",
        "model.tflite has sha256",
        change=lambda folder: flip_last_byte(folder / "model.tflite"),
    ),
    "a tokenizer that was changed": predict(
        "tokenizer.json has 2 bytes, the manifest says", change=put("tokenizer.json", "{}")
    ),
    "a file too many": predict("notes.txt is not in the manifest", change=put("notes.txt", "mine")),
    "a file that is a link": predict("is a link", change=lambda f: (f / WEIGHTS).symlink_to(f / "model.tflite")),
    "no manifest": predict("not a finished artifact", "manifest.json", change=drop("manifest.json")),
    "a manifest of noise": predict("manifest.json cannot be read", change=put("manifest.json", "{}")),
    "a manifest that fits no memory": predict("manifest.json cannot be read", change=stretch("manifest.json")),
    "a model of a terabyte": predict(
        "model.tflite has 1099511627776 bytes, the manifest says", change=stretch("model.tflite")
    ),
    "a half-made folder": predict("model.tflite is missing", change=drop("model.tflite")),
    "a file that is not there": among("candidates.txt does not exist", content=None),
    "candidates without a line": among("candidates.txt has no line of text", content=b" \n\n"),
    "candidates that are not UTF-8": among("candidates.txt is not UTF-8", content=b"\xff\xfe"),
    "candidates that are a folder": Bad(
        ("is a folder, and a file belongs there", "a candidate a line"),
        lambda s: ["predict", s.line.folder / "litert-fp32", "hello", "--among", s.tmp],
    ),
}

if sys.platform != "darwin":
    # Off macOS the interpreter would read the file; on macOS this would be Core ML's own error.
    coreml = Bad(("file: 'model.tflite', where a file of coreml is called", "mlpackage"), signature_says("coreml"))
    PREDICTIONS["a signature of Core ML beside another file"] = coreml


def ship(*words: str, target: str = "litert:fp32", rc: int = 2, change: Callable[[Path], Any] = lambda folder: None):
    """Return the case of a build folder whose target `ship` refuses; nothing may reach the apps."""

    def arguments(scene: Scene) -> Arguments:
        line = scene.copied_line()
        change(line.folder)
        return ["ship", line.recipe, "--target", target, "--build", line.build, "--into", scene.tmp / "apps"]

    return Bad(words, arguments, rc)


def remove(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).unlink()


def swap_models(folder: Path) -> None:
    """Put another target's whole model where a verdict was passed on the first."""
    remove("litert-fp32/model")(folder)
    shutil.copytree(folder / "litert-int8_dynamic" / "model", folder / "litert-fp32" / "model")


SHIPMENTS = {
    "a verdict that failed": ship("litert-int8_dynamic is not shipped", "failed", target="litert:int8_dynamic", rc=1),
    "no verdict": ship("litert-fp32 was not verified", "pocketbert verify", change=remove("litert-fp32/parity")),
    "no model": ship("litert-fp32/model does not exist", change=remove("litert-fp32/model")),
    "a model that was changed": ship(
        "model.tflite has sha256", change=lambda folder: flip_last_byte(folder / "litert-fp32/model/model.tflite")
    ),
    "a verdict that was changed": ship(
        "parity.json has ",
        change=edit_json("litert-int8_dynamic/parity/parity.json", verdict="passed"),
        target="litert:int8_dynamic",
    ),
    "a verdict on another file": ship("litert-fp32 changed after it was verified", change=swap_models),
    "apps that are a file": Bad(
        ("is a file, and a folder belongs there", "--into"),
        lambda s: ["ship", s.line.recipe, "--target", "litert:fp32", "--build", s.line.build, "--into", s.line.recipe],
    ),
}

CLEANING = {
    "no such recipe": Bad(("tiny does not exist", "none"), lambda scene: ["clean", "tiny", "--build", scene.tmp]),
    "a folder that is not ours": Bad(
        ("was not made by pocketbert",), lambda scene: ["clean", "tests", "--build", Path(__file__).parents[1]]
    ),
    "a folder above": Bad(("was not made by pocketbert",), lambda scene: ["clean", "..", "--build", scene.tmp]),
}

USAGE = {
    "unknown verb": Bad(("No such command 'fly'", "--help"), lambda _: ["fly"]),
    "unknown option": Bad(("No such option: --fast", "run --help"), lambda _: ["run", "--fast"]),
    "no file": Bad(("Missing argument", "predict --help"), lambda _: ["predict"]),
    "no threads": Bad(
        ("--threads", "greater than or equal to 1"), lambda _: ["predict", "model", "hello", "--threads", "0"]
    ),
    "neighbours in words": Bad(("--top", "valid integer"), lambda _: ["predict", "model", "hello", "--top", "three"]),
}

TABLE: dict[str, Bad] = {
    f"{group}: {name}": bad
    for group, rows in {
        "recipe": RECIPES,
        "student": STUDENTS,
        "predict": PREDICTIONS,
        "ship": SHIPMENTS,
        "clean": CLEANING,
        "usage": USAGE,
        "data": {
            name: Bad(("stsb", "dev.csv", reason), stsb_file(content)) for name, (content, reason) in DATA.items()
        },
    }.items()
    for name, bad in rows.items()
}


# Students are made with torch.
NAMES = [pytest.param(name, marks=pytest.mark.toolchain) if name.startswith("student:") else name for name in TABLE]


@pytest.mark.parametrize("name", NAMES)
def test_bad_input_is_one_line_and_the_right_exit_code(name, tmp_path, request, command_here):
    bad = TABLE[name]
    arguments = bad.arguments(Scene(tmp_path, request))
    where = {"POCKETBERT_DATA": str(tmp_path)} if name.startswith("data:") else {}
    check(command_here(*arguments, **where, **bad.variables), bad)
    assert not (tmp_path / "build" / "tiny" / "student").exists() or name.startswith("ship:")
    assert not list(tmp_path.glob("apps/**/*.tflite"))


@pytest.mark.parametrize("name", ["recipe: not UTF-8", "recipe: ExecuTorch without fp16", "student: only a pickle"])
def test_a_process_of_its_own_says_the_same(name, tmp_path, request, pocketbert):
    check(pocketbert(*TABLE[name].arguments(Scene(tmp_path, request))), TABLE[name])


def test_a_hub_student_offline(tmp_path, pocketbert):
    source = {"source": f"hub:owner/name@{COMMIT}"}
    bad = Bad((f"owner/name@{COMMIT[:8]}", "offline", "local folder"), lambda _: [])
    check(pocketbert("plan", recipe_file(tmp_path, student=source), HF_HOME=str(tmp_path / "hub")), bad)


def test_bundled_bytes_that_changed_are_refused(tmp_path, pocketbert, request):
    bad = Bad(("model.safetensors has sha256", "not the published all-MiniLM-L6-v2"), changed_bundle)
    arguments = bad.arguments(Scene(tmp_path, request))
    check(pocketbert(*arguments, POCKETBERT_STUDENTS=str(tmp_path)), bad)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_a_build_folder_that_nobody_can_write(tmp_path, command_here):
    outcome = command_here("student", recipe_file(tmp_path), "--build", "/proc/pocketbert")
    check(outcome, Bad(("/proc/pocketbert cannot be written", "--build"), lambda _: []))


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere; below_a_file and /proc stand in for it")
def test_a_build_folder_without_permission(tmp_path, pocketbert):
    (tmp_path / "build").mkdir(mode=0o500)
    outcome = pocketbert("student", recipe_file(tmp_path))
    check(outcome, Bad(("cannot be written", "ermission"), lambda _: []))


@pytest.mark.parametrize(
    "name",
    [
        "recipe: not TOML",
        pytest.param("student: no weights", marks=pytest.mark.toolchain),
        "predict: no such path",
        "ship: a verdict that failed",
        "usage: no file",
    ],
)
def test_with_json_the_same_error_is_a_document(name, tmp_path, request, command_here):
    bad = TABLE[name]
    outcome = command_here(*bad.arguments(Scene(tmp_path, request)), "--json")
    assert (outcome.rc, outcome.document["exit"]) == (bad.rc, bad.rc)
    assert outcome.stderr == ""
    assert set(outcome.document["error"]) == {"kind", "message"}
    for word in bad.words:
        assert word in outcome.document["error"]["message"]


# --- what is found only once torch has loaded the checkpoint ------------------------------------------------------


def poison(folder: Path) -> None:
    """Put a NaN into one weight."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / WEIGHTS)
    tensors["embeddings.LayerNorm.weight"][3] = float("nan")
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def overflow(folder: Path) -> None:
    """Make all weights so large that no output is a number, though each of them is one."""
    from safetensors.numpy import load_file, save_file

    tensors = {name: np.full_like(tensor, 1e38) for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def forget_words(folder: Path) -> None:
    """Leave the tokenizer its added tokens alone; the unknown one is not among them."""
    found = json.loads((folder / "tokenizer.json").read_text())
    found["model"]["vocab"] = {}
    found["added_tokens"] = []
    (folder / "tokenizer.json").write_text(json.dumps(found | {"post_processor": None}))


def as_integers(folder: Path) -> None:
    """Say of one weight that its bytes are whole numbers."""
    path = folder / WEIGHTS
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["embeddings.LayerNorm.weight"]["dtype"] = "I32"
    new = json.dumps(header).encode()
    path.write_bytes(len(new).to_bytes(8, "little") + new + content[8 + size :])


CHECKPOINTS: dict[str, tuple[str, Callable[[Path], Any], tuple[str, ...]]] = {
    "NaN weights": ("embedding", poison, ("NaN or infinite weights",)),
    "weights that overflow": ("embedding", overflow, ("embedding of a plain text is NaN or infinite",)),
    "broken tokenizer": ("embedding", put("tokenizer.json", "{"), ("the tokenizer in", "does not load")),
    "a tokenizer without words": ("embedding", forget_words, ("cannot encode a text", "Missing [UNK]")),
    "tokenizer of a larger vocabulary": (
        "embedding",
        edit_json("config.json", vocab_size=900),
        ("word_embeddings.weight has shape (1000, 64), and config.json asks for (900, 64)",),
    ),
    "another width": (
        "embedding",
        edit_json("config.json", hidden_size=128),
        ("has shape (64,), and config.json asks",),
    ),
    "a width in words": ("embedding", edit_json("config.json", hidden_size="wide"), ("does not load as AutoModel",)),
    "more layers than weights": (
        "embedding",
        edit_json("config.json", num_hidden_layers=3),
        ("lacks 16 tensors", "encoder.layer.2"),
    ),
    "two classes of one name": (
        "classification",
        edit_json("config.json", id2label={"0": "no", "1": "no", "2": "yes"}),
        ("id2label", "name of its own"),
    ),
    "a class of two lines": (
        "classification",
        edit_json("config.json", id2label={"0": "no", "1": "perhaps\nnot", "2": "yes"}),
        ("id2label", "on one line"),
    ),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_that_does_not_load(name, tmp_path, tiny_student):
    task, change, words = CHECKPOINTS[name]
    folder = Path(shutil.copytree(tiny_student("bert", task), tmp_path / "student"))
    change(folder)
    (tmp_path / "out").mkdir()
    with pytest.raises(StudentError) as caught:
        student_stage.make(folder, task, False, tmp_path / "out")
    for word in words:
        assert word in str(caught.value)
    assert str(tmp_path / "out") not in str(caught.value)


def test_a_bare_encoder_is_no_classifier(tmp_path, tiny_student, command_here):
    source = {"source": str(tiny_student("bert", "embedding")), "random_weights": True}
    outcome = command_here("student", recipe_file(tmp_path, task="classification", student=source))
    words = ("lacks 2 tensors that task classification needs, classifier.bias first", "BertModel", "fine-tune")
    check(outcome, Bad(words, lambda _: []))
    left = [path.name for path in (tmp_path / "build" / "tiny").iterdir()]
    assert left == ["logs"]


def test_a_tokenizer_with_more_types_than_the_model_has_rows(tmp_path, tiny_student):
    from safetensors.numpy import load_file, save_file

    folder = Path(shutil.copytree(tiny_student("bert", "embedding"), tmp_path / "student"))
    tensors = load_file(folder / WEIGHTS)
    name = next(name for name in tensors if name.endswith("token_type_embeddings.weight"))
    save_file(tensors | {name: tensors[name][:1].copy()}, folder / WEIGHTS, metadata={"format": "pt"})
    edit_json("config.json", type_vocab_size=1)(folder)
    (tmp_path / "out").mkdir()
    with pytest.raises(StudentError, match="second text of a pair type 1, and the model's type_vocab_size is 1"):
        student_stage.make(folder, "embedding", False, tmp_path / "out")


def test_a_tokenizer_with_more_tokens_than_the_model_has_rows(tmp_path, tiny_student):
    folder = Path(shutil.copytree(tiny_student("bert", "embedding"), tmp_path / "student"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["onewordtoomany"] = 1000
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "out").mkdir()
    with pytest.raises(StudentError, match="has 1001 tokens, and the model's vocab_size is 1000"):
        student_stage.make(folder, "embedding", False, tmp_path / "out")


# --- what is not an error -----------------------------------------------------------------------------------------


def test_a_long_text_is_truncated_and_predicted(tiny_line, command_here):
    model = tiny_line.folder / "litert-fp32" / "model"
    text = "a text that goes on and on " * 200
    outcome = command_here("predict", model, text, "--json")
    assert outcome.rc == 0, outcome.stderr
    row = outcome.document["predictions"][0]
    assert (row["tokens"], row["length"]) == (32, 32)
    assert row["text"] == text
    assert len(row["neighbours"]) == 3


def test_bytes_that_are_not_text_are_read_as_replacement_characters(tiny_line, tmp_path, command_here):
    """In a process of its own, which decodes what it is given; its document is the same here."""
    arguments = ("predict", tiny_line.folder / "litert-fp32" / "model", os.fsdecode(b"caf\xe9"))
    for outcome in (run_command(*arguments, cwd=tmp_path), command_here(*arguments, "--json")):
        assert outcome.rc == 0, outcome.stderr
        assert "caf" in outcome.stdout


def test_a_byte_order_mark_is_no_error(tmp_path, command_here):
    path = recipe_file(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    outcome = command_here("plan", path)
    assert outcome.rc == 0, outcome.stderr


def test_labels_of_the_tiny_classifier_are_kept_in_order(tiny_student, tmp_path):
    (tmp_path / "out").mkdir()
    facts = student_stage.make(tiny_student("bert", "classification"), "classification", False, tmp_path / "out")
    assert facts["labels"] == list(LABELS)


def test_the_good_recipe_behind_the_table_is_good(tmp_path, command_here):
    outcome = command_here("plan", recipe_file(tmp_path), "--json")
    assert outcome.rc == 0, outcome.stderr
    steps = sum(len(section["schemes"]) for section in TINY_TARGETS.values())
    assert len(outcome.document["steps"]) == 2 * steps + 4
