"""Several heads on one encoder in one file: its weights stored once, and each head judged like a file of its own.

One tiny encoder has an embedding, a classifier and a tagger; beside their file, each is converted alone.
"""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Outcome, recipe_file, recipe_values, run_command_here, seed_of, write_student
from damage import edited_bytes, edited_litert
from numpy.typing import NDArray
from warm import session

import pipeline
from pipeline import artifact, formats, tasks
from pipeline.architectures import ARCHITECTURES
from pipeline.convert.stage import Target
from pipeline.errors import ArtifactError, InputError, RecipeError
from pipeline.foreign.judge import Request, judge
from pipeline.formats import signature
from pipeline.formats.signature import HEADS, SIGNATURE
from pipeline.recipe import loading as recipes
from pipeline.schemes import SCHEMES, Gates
from pipeline.student import other_head
from pipeline.verify import companions
from pipeline.verify import stage as verify
from pipeline.verify.record import HeadToVerify, Parity, VerifyRequest, read_parity

SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1}
"""An encoder of 1.0 MB in single precision, before which graphs are small."""
TASKS = {"main": "embedding", "topic": "classification", "tags": "token_classification"}
OTHERS = ("topic", "tags")
TARGETS: dict[str, dict[str, Any]] = {
    "litert": {"schemes": ["fp32", "int8_dynamic"]},
    "coreml": {"schemes": ["fp32", "int8_weight_only"]},
    "executorch": {"schemes": ["fp32", "int8_dynamic"]},
}
SLOW = ("executorch-int8_dynamic", "coreml-fp32")
"""Half a minute for each head, and a format whose rounded file says more."""
NAMES = [
    pytest.param(name, marks=[pytest.mark.full] if name in SLOW else [])
    for backend, section in TARGETS.items()
    for name in (f"{backend}-{scheme}" for scheme in section["schemes"])
]
SINGLE = [f"{backend}-fp32" for backend in TARGETS]
BESIDE = ("main", "executorch-fp32")
"""A head of a file that is made anyway, outside of LiteRT."""
ASKED = VerifyRequest(Target("litert", "fp32"), Gates(), random_weights=True)
GRAPH_BYTES = 25_000
"""Most bytes that one more function of a layer costs beside its head's weights; docs/formats.md says so."""
TEXTS = ("A man is playing a guitar.", "Ana Sørensen wrote a letter in 1907.", "Thanks!")
NO_DATA = {"datasets": ["none"]}


# --- students and files ------------------------------------------------------------------------------------------


def write_heads(folder: Path, names: dict[str, str], architecture: str = "bert") -> dict[str, Path]:
    """Write a random checkpoint for each head; all have the encoder of the first."""
    import torch
    import transformers

    found: dict[str, Path] = {}
    encoder: dict[str, Any] = {}
    for name, task in names.items():
        sizes = SIZES if architecture == "bert" else {}
        found[name] = write_student(folder / name, architecture, task, **sizes)
        model = getattr(transformers, tasks.get(task).auto_class).from_pretrained(found[name])
        encoder = encoder or {key: one for key, one in model.base_model.state_dict().items() if "pooler" not in key}
        model.base_model.load_state_dict(encoder, strict=False)
        torch.manual_seed(seed_of(name))
        if isinstance(classifier := getattr(model, "classifier", None), torch.nn.Linear):
            # Else two heads of one task would be equal.
            classifier.reset_parameters()
        model.save_pretrained(found[name])
    return found


def recipe_of(folder: Path, students: dict[str, Path], **overrides: Any) -> Path:
    """Write a recipe whose student is the first head, and whose other heads are the rest."""
    main, *others = students
    values: dict[str, Any] = {
        "task": TASKS[main],
        "student": {"source": str(students[main]), "random_weights": True},
        "heads": {name: {"checkpoint": str(students[name]), "task": TASKS[name]} | NO_DATA for name in others} or None,
        "convert": {"sequence_lengths": [32]},
        "targets": TARGETS,
        "verify": NO_DATA,
    }
    return recipe_file(folder, **(values | overrides))


@dataclass(frozen=True)
class Line:
    """A recipe whose files are made when a test first asks for them."""

    recipe: Path
    verb: str = "verify"
    made: set[str] = field(default_factory=set)

    @property
    def folder(self) -> Path:
        """The recipe's folder of what was made."""
        return self.recipe.parent / "build" / "tiny"

    def model(self, target: str) -> Path:
        """Return a target's model folder."""
        if target not in self.made:
            outcome = self.run(self.verb, "--target", target.replace("-", ":", 1))
            assert outcome.rc == 0, outcome.stdout[-3000:] + outcome.stderr[-3000:]
            self.made.add(target)
        return self.folder / target / "model"

    def parity(self, target: str) -> Parity:
        """Return the verdict on a target's file."""
        return read_parity(self.model(target).parent / "parity")

    def run(self, verb: str, *options: str) -> Outcome:
        """Run a verb of the command on the recipe."""
        return run_command_here(verb, self.recipe, "--build", self.folder.parent, *options, cwd=self.recipe.parent)


@pytest.fixture(scope="module")
def students(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_heads(tmp_path_factory.mktemp("heads"), TASKS)


@pytest.fixture(scope="module")
def line(students: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Line:
    """Verified files of three heads."""
    return Line(recipe_of(tmp_path_factory.mktemp("line"), students))


@pytest.fixture(scope="module")
def alone(students: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Line]:
    """Files of each head alone."""
    return {name: Line(recipe_of(tmp_path_factory.mktemp(name), {name: students[name]}), "convert") for name in TASKS}


def folder_of(model: Path, head: str) -> Path:
    return model if head == "main" else model / HEADS / head


# --- what a file with several heads is ---------------------------------------------------------------------------


@pytest.mark.toolchain
@pytest.mark.numeric
@pytest.mark.parametrize("name", NAMES)
def test_each_head_is_judged_by_the_gates_of_its_task(name: str, line: Line) -> None:
    parity = line.parity(name)
    assert set(parity.heads) == set(OTHERS)
    assert "heads" in {gate.name for gate in parity.gates}
    bounds = SCHEMES[parity.scheme].gates
    for head, one in {"main": parity, **parity.heads}.items():
        assert (one.verdict, one.task) == ("passed", TASKS[head])
        assert one.control is not None
        gates = {gate.name: gate for gate in one.gates}
        assert {"weights", "constants", "wiring", "tokenizer", "golden", "signature", "labels"} <= set(gates)
        assert gates["min_sqnr_db"].bound == bounds[one.output_kind].min_sqnr_db
        assert ("min_mean_cosine" in gates) == (head == "main")


@pytest.mark.toolchain
@pytest.mark.parametrize("name", NAMES)
def test_the_encoder_is_stored_once(name: str, line: Line, alone: dict[str, Line]) -> None:
    backend, scheme = name.split("-")
    model = line.model(name)
    size, own = (artifact.file_bytes(one / formats.get(backend).FILE) for one in (model, alone["main"].model(name)))
    facts = artifact.read_manifest(model).metrics["heads"]
    added = sum(one["own_parameters"] for one in facts.values())
    assert added == (128 * 128 + 128) + 2 * (128 * 3 + 3)
    functions = sum(len(signature.read(folder_of(model, head)).functions) for head in OTHERS)
    # Rows of int8 have a scale each, and biases stay in floats.
    weights = added * SCHEMES[scheme].weight_bytes * (1.0 if scheme == "fp32" else 1.25)
    assert size < own + weights + functions * GRAPH_BYTES
    encoder = artifact.read_manifest(line.folder / "student").metrics["parameters"] * SCHEMES[scheme].weight_bytes
    assert size < 2 * encoder
    if name == "litert-fp32":
        others = [artifact.file_bytes(alone[head].model(name) / formats.get(backend).FILE) for head in OTHERS]
        assert own + sum(others) > 2.5 * size


@pytest.mark.toolchain
@pytest.mark.numeric
@pytest.mark.parametrize(
    ("name", "head"),
    [
        pytest.param(name, head, marks=[pytest.mark.full] if name != "litert-fp32" and (head, name) != BESIDE else [])
        for name in SINGLE
        for head in TASKS
    ],
)
def test_a_head_gives_what_its_file_alone_gives(name: str, head: str, line: Line, alone: dict[str, Line]) -> None:
    option = () if head == "main" else ("--head", head)
    found, expected = vectors(line.model(name), *option), vectors(alone[head].model(name))
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert np.abs(one - other).max() < 1e-5 * np.sqrt(np.mean(other**2))


def vectors(model: Path, *options: str) -> list[NDArray[np.float64]]:
    outcome = run_command_here("predict", model, *TEXTS, *options, "--json", cwd=model.parent)
    assert outcome.rc == 0, outcome.stderr
    return [np.array(row["vector"]) for row in outcome.document["predictions"]]


@pytest.mark.toolchain
@pytest.mark.parametrize("name", NAMES)
def test_functions_have_their_head_s_name_in_front(name: str, line: Line) -> None:
    model = line.model(name)
    own = {head: [one.name for one in signature.read(folder_of(model, head)).functions] for head in TASKS}
    assert own["topic"] == [f"topic_{one}" for one in own["main"]]
    assert own["tags"] == [f"tags_{one}" for one in own["main"]]
    claimed = signature.read(model)
    every = [one.name for one in formats.get(claimed.backend).inspect(model / claimed.file)]
    assert sorted(every) == sorted(name for names in own.values() for name in names)


@pytest.mark.toolchain
def test_a_head_is_opened_by_its_name(line: Line, alone: dict[str, Line]) -> None:
    model = line.model("litert-fp32")
    with pipeline.load(model, head="topic", isolated=False) as opened:
        (found,) = opened.predict(["It was late again."])
        assert opened.signature.task == "classification"
        assert found.scores is not None
        assert set(found.scores) == {"negative", "neutral", "positive"}
    with pipeline.load(model / HEADS / "tags", isolated=False) as opened:
        assert opened.signature.task == "token_classification"
    with pytest.raises(InputError, match=r"no head 'topics'; there are: tags, topic"):
        pipeline.load(model, head="topics")
    with pytest.raises(InputError, match=r"holds heads \(tags, topic\); name one"):
        pipeline.load(model / HEADS)
    with pytest.raises(InputError, match="none but the student's own"):
        pipeline.load(alone["main"].model("litert-fp32"), head="topic")


@pytest.mark.toolchain
def test_the_command_tells_each_head_s_verdict(line: Line) -> None:
    assert line.model("litert-fp32").is_dir()
    outcome = line.run("verify", "--target", "litert:fp32")
    assert outcome.rc == 0
    assert "litert-fp32, head topic: classification, passed, SQNR " in outcome.stdout
    assert "litert-fp32, head tags: token_classification, passed, SQNR " in outcome.stdout


# --- what is refused ---------------------------------------------------------------------------------------------


def edited_student(source: Path, place: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    from safetensors.numpy import load_file, save_file

    shutil.copytree(source, place)
    tensors = load_file(place / "model.safetensors")
    change(tensors)
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
    return place


def refused(folder: Path, students: dict[str, Path]) -> str:
    outcome = Line(recipe_of(folder, students)).run("student")
    assert outcome.rc == 2, outcome.stdout + outcome.stderr
    return outcome.stderr


@pytest.mark.toolchain
def test_a_head_on_another_encoder_is_refused(students: dict[str, Path], tmp_path: Path) -> None:
    def train_a_little(tensors: dict[str, Any]) -> None:
        tensors["bert.encoder.layer.0.output.dense.weight"][3, 5] += 0.25

    other = edited_student(students["topic"], tmp_path / "topic", train_a_little)
    said = refused(tmp_path, {"main": students["main"], "topic": other})
    assert "head topic: encoder.layer.0.output.dense.weight differs by up to 0.25 in 1 of 32768 elements" in said
    assert "a recipe of its own" in said


@pytest.mark.toolchain
@pytest.mark.parametrize("architecture", [name for name, row in ARCHITECTURES.items() if not row.headless])
def test_an_encoder_is_known_again_under_each_task(architecture: str, tmp_path: Path) -> None:
    names = {task: task for task in ("embedding", "regression", "token_classification", "question_answering")}
    found = write_heads(tmp_path, names, architecture)
    encoders = {task: other_head.encoder_tensors(found[task], tasks.get(task)) for task in names}
    main = encoders["embedding"]
    assert len(main) > 20
    assert [other_head.difference(main, one) for one in encoders.values()] == [None] * len(names)
    last = list(main)[-1]
    changed = main | {last: main[last] + np.float32(0.5)}
    assert f"{last} differs by up to 0.5 in {main[last].size} of" in str(other_head.difference(main, changed))
    fewer = {name: values for name, values in main.items() if name != last}
    assert other_head.difference(main, fewer) == f"{last} is in only the student's encoder"
    assert other_head.difference(fewer, main) == f"{last} is in only the head's encoder"


@pytest.mark.toolchain
def test_a_head_with_another_tokenizer_is_refused(students: dict[str, Path], tmp_path: Path) -> None:
    other = Path(shutil.copytree(students["tags"], tmp_path / "tags"))
    place = other / "tokenizer.json"
    document = json.loads(place.read_text(encoding="utf-8"))
    ids = document["model"]["vocab"]
    one, another = list(ids)[-2:]
    ids[one], ids[another] = ids[another], ids[one]
    place.write_text(json.dumps(document), encoding="utf-8")
    said = refused(tmp_path, {"main": students["main"], "tags": other})
    assert "head tags: tokenizer.json in" in said
    assert "is not the student's" in said


HEAD = {"topic": {"checkpoint": "topic", "task": "classification"}}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prune": {"attention_heads": 0.5}}, r"\[prune\] and \[heads\]: it changes the student's encoder"),
        ({"train": {"dataset": "stsb"}}, r"\[train\] and \[heads\]"),
        ({"distil": {"preset": "distilbert-task", "teacher": "teacher"}}, r"\[distil\] and \[heads\]"),
        ({"targets": {"litert": {"schemes": ["int8_static"]}}}, r"targets\.litert\.schemes: int8_static and \[heads\]"),
        ({"targets": {"coreml": {"schemes": ["palettize_4bit"]}}}, "palettize_4bit and .* Take a scheme of fp32, fp16"),
        ({"quantize": {}}, r"int8_dynamic and \[heads\]: it is calibrated.* Take a scheme without \[quantize\]"),
        (
            {"targets": {"coreml": {"schemes": ["fp16"], "minimum_ios": 17}}},
            r"targets\.coreml\.minimum_ios = 17 and \[heads\]: a package has one function below iOS 18",
        ),
        (
            {"heads": {"topic": {"checkpoint": "topic", "task": "sorting"}}},
            "heads.topic: task 'sorting' does not exist",
        ),
        (
            {"heads": {"topic": HEAD["topic"] | {"gates": {"fp32": {"min_mean_cosine": 0.9}}}}},
            "heads.topic: verify.gates.fp32.min_mean_cosine: task classification gives logits",
        ),
        ({"heads": {"My head": HEAD["topic"]}}, "heads"),
        ({"heads": {"topic": HEAD["topic"] | {"pooling": "cls"}}}, "heads.topic.pooling: it is for embeddings"),
        (
            {"heads": {"topic": HEAD["topic"] | {"gates": {"fp32": {"max_bytes_per_parameter": 9.0}}}}},
            "heads share a file, whose size is judged once. Bound it in verify.gates.fp32",
        ),
    ],
)
def test_what_cannot_be_with_several_heads_is_told(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    merged = recipe_values(**({"heads": HEAD} | values))
    with pytest.raises(RecipeError, match=message):
        recipes.checked(merged, tmp_path / "recipe.toml")


def test_what_a_folder_does_not_say_of_an_embedding_is_said_for_each_head(tmp_path: Path) -> None:
    keys = {"pooling": "cls", "prompts": {"query": "query: "}, "default_prompt": "query", "max_seq_length": 64}
    head = {"checkpoint": "search", "task": "embedding"} | keys
    recipe = recipes.checked(recipe_values(heads={"search": head}), tmp_path / "recipe.toml")
    student = recipe.of_head("search").student
    assert {key: getattr(student, key) for key in keys} == keys
    assert student.source == "search"


@pytest.mark.toolchain
def test_cleaning_leaves_nothing_of_other_heads(students: dict[str, Path], tmp_path: Path) -> None:
    line = Line(recipe_of(tmp_path, {name: students[name] for name in ("main", "topic")}))
    assert line.run("student").rc == 0
    assert (line.folder / HEADS / "topic" / "student").is_symlink()
    outcome = run_command_here("clean", "tiny", "--build", line.folder.parent, cwd=tmp_path)
    assert (outcome.rc, line.folder.exists()) == (0, False), outcome.stdout + outcome.stderr


@pytest.mark.toolchain
def test_a_file_is_judged_as_another_tool_s_by_the_student_s_own_head(line: Line, students: dict[str, Path]) -> None:
    file = line.model("litert-fp32") / formats.get("litert").FILE
    with pytest.MonkeyPatch.context() as patch, session().lent(patch):
        found = judge(Request(file, str(students["main"]), None, "mean", thorough=False), lambda text: None)
    assert found.verdict == "same"
    assert "other entry points: tags_serving_default, topic_serving_default" in "; ".join(found.assumed)


# --- verdicts fire -----------------------------------------------------------------------------------------------


def copied(line: Line, target: str, place: Path) -> Path:
    """Return a copy of a model folder that may be changed."""
    folder = Path(shutil.copytree(line.model(target), place / "model"))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def judged(line: Line, target: str, model: Path, out: Path, head: str | None = None) -> Parity:
    """Judge a model folder as the line does, or the functions of one other head alone."""
    recipe, _ = recipes.read_recipe(str(line.recipe))
    backend, scheme = target.split("-")
    request = VerifyRequest(Target(backend, scheme), recipe.gates(scheme), random_weights=True)

    def of_head(name: str) -> HeadToVerify:
        own = line.folder / HEADS / name
        gates = recipe.of_head(name).gates(scheme)
        return HeadToVerify(name, own / "student", own / "reference-32", replace(request, gates=gates))

    out.mkdir()
    with session().one(out / "log") as worker:
        if head is None:
            heads = [of_head(name) for name in recipe.heads]
            student, reference = line.folder / "student", line.folder / "reference-32"
            worker.call(verify.make, model, student, None, reference, None, request, out, heads)
        else:
            one = of_head(head)
            place = model / HEADS / head
            worker.call(verify.make, place, one.student, None, one.reference, None, one.request, out)
    return read_parity(out)


def failed(parity: Parity) -> set[str]:
    return {gate.name for gate in parity.gates if not gate.passed}


def exchanged(folder: Path, one: Path, other: Path) -> None:
    """Exchange what two signatures say of functions."""
    said = [json.loads((place / SIGNATURE).read_text(encoding="utf-8")) for place in (one, other)]
    for place, mine, theirs in ((one, *said), (other, *said[::-1])):
        (place / SIGNATURE).write_text(json.dumps(mine | {"functions": theirs["functions"]}), encoding="utf-8")


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Line:
    """A LiteRT file of two classifiers, whose functions nothing but their weights tells apart."""
    folder = tmp_path_factory.mktemp("twins")
    found = write_heads(folder, {"topic": "classification", "mood": "classification"})
    heads = {"mood": {"checkpoint": str(found["mood"]), "task": "classification"} | NO_DATA}
    return Line(recipe_of(folder, {"topic": found["topic"]}, heads=heads, convert={"sequence_lengths": [8, 32]}))


@pytest.mark.toolchain
def test_functions_of_two_heads_that_changed_places_fail_both(twins: Line, tmp_path: Path) -> None:
    model = copied(twins, "litert-fp32", tmp_path / "file")

    def exchange(found: Any, contents: Any) -> None:
        named = {one.signatureKey: one for one in found.signatureDefs}
        for name in (b"serving_default", b"seq_8"):
            one, other = named[name], named[b"mood_" + name]
            one.signatureKey, other.signatureKey = other.signatureKey, one.signatureKey

    changed = edited_litert(model / "model.tflite", exchange, tmp_path / "changed.tflite")
    shutil.move(changed, model / "model.tflite")
    in_file = judged(twins, "litert-fp32", model, tmp_path / "in_file")
    model = copied(twins, "litert-fp32", tmp_path / "signature")
    exchanged(model, model, model / HEADS / "mood")
    in_signatures = judged(twins, "litert-fp32", model, tmp_path / "in_signatures")
    for parity in (in_file, in_signatures):
        assert parity.verdict == parity.heads["mood"].verdict == "failed"
        for one in (parity, parity.heads["mood"]):
            assert {"weights", "constants", "min_sqnr_db"} <= failed(one)
        assert any(reason.startswith("head mood: classifier.weight [3, 128]") for reason in parity.reasons)


@pytest.mark.toolchain
@pytest.mark.parametrize("name", SINGLE)
def test_signatures_of_two_tasks_that_changed_places_are_refused(name: str, line: Line, tmp_path: Path) -> None:
    model = copied(line, name, tmp_path)
    exchanged(model, model / HEADS / "topic", model / HEADS / "tags")
    parity = judged(line, name, model, tmp_path / "out", "topic")
    assert parity.verdict == "failed"
    assert re.search(r"and classification gives \d+ of width 3: they are another head's", parity.reasons[0])


@pytest.mark.toolchain
@pytest.mark.parametrize("name", SINGLE)
def test_one_head_s_damaged_weights_fail_that_head(name: str, line: Line, students: Any, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    weights = load_file(students["topic"] / "model.safetensors")["classifier.weight"]
    damaged = weights.copy()
    damaged[1, 7] += 0.5
    model = copied(line, name, tmp_path)
    file = next(path for path in model.rglob("*") if path.is_file() and weights.tobytes() in path.read_bytes())
    shutil.move(edited_bytes(file, weights.tobytes(), damaged.tobytes(), tmp_path / "changed"), file)
    found = judged(line, name, model, tmp_path / "topic", "topic")
    assert "weights" in failed(found)
    assert any("classifier.weight: 1 of 384 elements are not the checkpoint's" in reason for reason in found.reasons)
    assert judged(line, name, model, tmp_path / "tags", "tags").verdict == "passed"
    if name.startswith("litert"):
        whole = judged(line, name, model, tmp_path / "whole")
        assert (whole.verdict, whole.heads["tags"].verdict) == ("failed", "passed")
        assert not failed(whole)
        assert any(reason.startswith("head topic: ") for reason in whole.reasons)


@pytest.mark.toolchain
def test_a_tensor_that_is_stored_for_each_head_fails(line: Line) -> None:
    """No toolchain here writes such a file, so the copy is made in what was read of one."""
    model = line.model("litert-fp32")
    claimed, stored = signature.read(model), formats.get("litert").structure(model / "model.tflite")
    heads = [HeadToVerify(name, line.folder / HEADS / name / "student", model, ASKED) for name in OTHERS]
    made = artifact.read_manifest(model)
    assert companions._wrong_heads(model, claimed, stored, made, heads) is None
    table = max(stored.constants, key=lambda one: one.values.size)
    again = replace(stored, constants=(*stored.constants, replace(table, name="again")))
    said = companions._wrong_heads(model, claimed, again, made, heads)
    assert said == f"{table.name} is stored 2 times; heads share what is equal"
    fewer = replace(stored, uses=stored.uses[1:])
    assert "2 graphs that read constants, for 3 functions" in str(
        companions._wrong_heads(model, claimed, fewer, made, heads)
    )


@pytest.mark.toolchain
def test_a_manifest_that_says_something_else_of_a_head_and_a_head_too_many_fail(line: Line, tmp_path: Path) -> None:
    model = copied(line, "litert-fp32", tmp_path)
    manifest = artifact.read_manifest(model)
    said = manifest.metrics | {"heads": manifest.metrics["heads"] | {"tags": {"task": "classification"}}}
    artifact.write_manifest(model, manifest.model_copy(update={"metrics": said}))
    shutil.copytree(model / HEADS / "topic", model / HEADS / "spare")
    parity = judged(line, "litert-fp32", model, tmp_path / "out")
    assert {"companions", "heads"} <= failed(parity)
    assert any("heads/spare is nothing that belongs to a model" in reason for reason in parity.reasons)


@pytest.mark.toolchain
def test_a_file_with_a_function_of_no_head_is_not_opened(line: Line, tmp_path: Path) -> None:
    model = copied(line, "litert-fp32", tmp_path)
    shutil.rmtree(model / HEADS / "tags")
    manifest = artifact.read_manifest(model)
    artifact.write_manifest(model, manifest.model_copy(update={"files": artifact.list_files(model)}))
    with pytest.raises(ArtifactError, match=r"functions: .*and the file has .*'tags_serving_default'"):
        pipeline.load(model, head="topic", isolated=False)


def test_the_file_of_a_head_is_found_from_within_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = tmp_path / "model" / HEADS / "topic"
    head.mkdir(parents=True)
    (tmp_path / "model" / SIGNATURE).touch()
    monkeypatch.chdir(head)
    assert signature.root(Path()) == signature.root(head) == tmp_path / "model"
    monkeypatch.chdir(tmp_path)
    assert signature.root(Path("model")) == Path("model")
