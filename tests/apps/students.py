"""The bundled student for all seven tasks and for inference, trained for a minute on the package's own texts.

They are converted and signed. The embedding student is the bundled one as it is, and a table of its space stands beside
it; the others have two of its layers and the tokens of these texts, which makes them faster to convert. They are weak,
and that is no matter: what is compared is whether Kotlin and Swift answer as Python does, in the real runtimes, and an
answer that depends on the text is needed for it.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from conftest import Silent

from apps import toolchains
from pipeline import artifact
from pipeline.artifact import Artifact
from pipeline.convert.targets import choose_targets
from pipeline.execution.store import Store
from pipeline.formats import compute_units, signature
from pipeline.planning import run as running
from pipeline.planning.build import build
from pipeline.planning.request import Request
from pipeline.recipe import loading
from pipeline.ship import placing
from pipeline.ship.placing import ShippedModel
from pipeline.text.bundled import everyday_sentences, verification_texts
from pipeline.trust import signing

FOLDER = toolchains.APPS
TEXTS = toolchains.REPOSITORY / "pipeline" / "text" / "texts"
BACKENDS = ("litert", "executorch")
NAMES = ("near", "mood", "alike", "names", "ask", "infer", "has", "counts")
SCHEME = "int8_dynamic"
TABLE, TWO_SPEEDS = "table", (("near", "executorch"), ("table", "litert"))
"""A static table of `near`'s space fills an index for `near`; both lie apart, in a folder of that name."""
_SOURCE = "bundled:all-MiniLM-L6-v2"
_SHALLOW = {"source": "recipe:shallow.toml"}
_LAYERS = [0, 5]
_TRAITS = ["name", "number"]
_WORDS_OF_TESTS = "food ocean sea"
"""Words of which both apps' tests count on one token each."""
_NUMBERS = {"one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve", "hundred", "half"}


def make(into: Path) -> list[str]:
    """Train and convert the students, what is finished already apart, and put them signed into an app's folder.

    They are not judged: verification is another test's, and takes longer than all of this.

    Returns:
        The keys to trust.
    """
    _recipe("shallow", "embedding", {"start": {"teacher_layers": _LAYERS}, "vocabulary": {"corpus": [_corpus()]}})
    students = [(name, _recipe(name, task, extra)) for name, task, extra in _students()]
    # In a process of its own, since a run steers where all of its process puts temporary files.
    command = [sys.executable, "-m", "apps.students", *(str(recipe) for _, recipe in students)]
    toolchains.run(command, toolchains.REPOSITORY)
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    private, public = signing.new_key(into / "key")
    key = signing.read_key(private)
    private.unlink()
    every = [(name, backend) for name in NAMES for backend in BACKENDS]
    for folder, chosen in (("models", every), ("two-speeds", TWO_SPEEDS)):
        models = [model_of(name, backend) for name, backend in chosen]
        placing.put([(model, _said(model)) for model in models], {name: [into / folder] for name in BACKENDS}, key)
    return [signing.compiled(signing.read_public_key(public))]


def model_of(name: str, backend: str) -> Artifact:
    """Return a converted student."""
    return artifact.load(FOLDER / "students" / name / f"{backend}-{SCHEME}" / "model")


def _said(model: Artifact) -> ShippedModel:
    claimed = signature.read(model.path)
    offered, untried = compute_units(claimed.backend, claimed.scheme)
    return ShippedModel(
        recipe=model.path.parents[1].name,
        target=f"{claimed.backend}-{claimed.scheme}",
        backend=claimed.backend,
        scheme=claimed.scheme,
        task=claimed.task,
        verdict="not_run",
        reasons=["it was made for the end-to-end test of the apps' cores, and is not judged"],
        evaluator=None,
        licence=model.manifest.metrics["licence"],
        digest=model.digest,
        files=model.manifest.files,
        bytes=sum(entry.bytes for entry in model.manifest.files),
        compute_units=offered,
        untried_units=untried,
    )


def _convert(recipes: Sequence[Path]) -> None:
    """Make all that some recipes ask for in one run, whose workers import the toolchains once for all of them.

    Raises:
        PipelineError: a student cannot be made.
    """
    # On the package's own data whether or not the caller has more.
    os.environ.pop("POCKETBERT_DATA", None)
    # Others work beside it: a thread that spins while it waits for its turn takes the core that it waits for.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    store = Store(FOLDER / "students")
    graphs = []
    for file in recipes:
        recipe, _ = loading.read_recipe(str(file))
        graphs.append(build(Request(recipe, file, "convert", choose_targets(recipe, [])), store))
    for graph in graphs[1:]:
        graphs[0].include(*graph.nodes.values())
    running.carry_out(graphs[0], store.build, Silent())


def _students() -> Iterator[tuple[str, str, dict[str, Any]]]:
    train = {"learning_rate": 5e-4, "max_length": 128}
    yield "near", "embedding", {}
    rows = _jsonl("sentiment.jsonl")
    files = _files("mood", ".jsonl", *(_lines(rows[n::9] for n in part) for part in (range(8), [8])))
    yield "mood", "classification", {"train": train | files | {"epochs": 6}}
    rows = [
        {"text": row["first"], "pair": row["second"], "label": row["score"]} for row in _jsonl("graded_pairs.jsonl")
    ]
    files = _files("alike", ".jsonl", *(_lines(rows[n::10] for n in part) for part in (range(9), [9])))
    yield "alike", "regression", {"train": train | files | {"epochs": 3, "pair": "pair"}}
    sentences = [_tagged(text) for text in everyday_sentences()]
    split = 9 * len(sentences) // 10
    files = _files("names", ".conll", "\n\n".join(sentences[:split]), "\n\n".join(sentences[split:]))
    yield "names", "token_classification", {"train": train | files | {"epochs": 15}}
    questions = json.loads((TEXTS / "questions.json").read_text(encoding="utf-8"))
    (article,) = questions["data"]
    paragraphs = article["paragraphs"]
    halves = ([one for n, one in enumerate(paragraphs) if n % 4], paragraphs[::4])
    files = _files(
        "ask", ".json", *(json.dumps({**questions, "data": [{**article, "paragraphs": half}]}) for half in halves)
    )
    yield "ask", "question_answering", {"train": train | files | {"epochs": 6}}
    rows = [
        {"text": row["first"], "pair": row["second"], "label": _inferred(row["score"])}
        for row in _jsonl("graded_pairs.jsonl")
    ]
    files = _files("infer", ".jsonl", *(_lines(rows[n::10] for n in part) for part in (range(9), [9])))
    yield "infer", "classification", {"train": train | files | {"epochs": 8, "pair": "pair"}}
    counted = [_counted(text) for text in everyday_sentences()]
    rows = [{"text": row["text"], "label": [label for label in _TRAITS if row[label]]} for row in counted]
    files = _files("has", ".jsonl", *(_lines(rows[n::10] for n in part) for part in (range(9), [9])))
    calibrated = {"thresholds": {"file": files["dev_file"]}}
    yield "has", "multi_label_classification", {"train": train | files | {"epochs": 10}} | calibrated
    files = _files("counts", ".jsonl", *(_lines(counted[n::10] for n in part) for part in (range(9), [9])))
    yield "counts", "multi_regression", {"train": train | files | {"epochs": 4, "labels": ["words", *_TRAITS]}}
    yield TABLE, "embedding", {"static": {"texts": [_corpus()]}, "targets": {"litert": {"schemes": [SCHEME]}}}


def _inferred(score: float) -> str:
    """Return what the second text of a graded pair is to the first, as far as its grade of 0 to 5 tells."""
    return "contradiction" if score < 1.5 else "neutral" if score < 3.5 else "entailment"


def _counted(text: str) -> dict[str, Any]:
    """Return a sentence with its words, and of those the numbers and the names, in tens and fifths."""
    tags = [line.rpartition("-")[2] for line in _tagged(text).splitlines()]
    return {"text": text, "words": len(tags) / 10} | {name: tags.count(name) / 5 for name in _TRAITS}


def _recipe(name: str, task: str, extra: dict[str, Any]) -> Path:
    recipe = {
        "name": name,
        "task": task,
        "student": _SHALLOW if "train" in extra else {"source": _SOURCE},
        "convert": {"sequence_lengths": [32, 128]},
        "targets": {backend: {"schemes": [SCHEME]} for backend in BACKENDS},
    }
    file = FOLDER / "recipes" / f"{name}.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(tomli_w.dumps(recipe | extra), encoding="utf-8")
    return file


def _corpus() -> str:
    """Write all texts that the students are asked or learn from, one a line, and return the file's key in a recipe."""
    questions = json.loads((TEXTS / "questions.json").read_text(encoding="utf-8"))
    paragraphs = [one for article in questions["data"] for one in article["paragraphs"]]
    rows = [*_jsonl("sentiment.jsonl"), *_jsonl("graded_pairs.jsonl"), *(qa for one in paragraphs for qa in one["qas"])]
    texts = [_WORDS_OF_TESTS, *everyday_sentences(), *(one["context"] for one in paragraphs)]
    texts += [part for text in verification_texts() for part in (text.first, text.second) if part]
    texts += [row[key] for row in rows for key in ("text", "first", "second", "question") if key in row]
    file = FOLDER / "recipes" / "data" / "corpus.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{' '.join(text.split())}\n" for text in texts), encoding="utf-8")
    return f"data/{file.name}"


def _files(name: str, suffix: str, train: str, dev: str) -> dict[str, str]:
    """Write both files of a student's data, and return them as the keys of `[train]`."""
    folder = FOLDER / "recipes" / "data"
    folder.mkdir(parents=True, exist_ok=True)
    for part, text in (("train", train), ("dev", dev)):
        (folder / f"{name}-{part}{suffix}").write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    return {f"{part}_file": f"data/{name}-{part}{suffix}" for part in ("train", "dev")}


def _jsonl(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (TEXTS / name).read_text(encoding="utf-8").splitlines()]


def _lines(parts: Iterator[Sequence[dict[str, Any]]]) -> str:
    return "\n".join(json.dumps(row) for part in parts for row in part)


def _tagged(text: str) -> str:
    """Return a sentence with a tag for each word, by rules that a student can learn: numbers, and names."""
    lines = []
    for place, word in enumerate(text.split()):
        plain = re.sub(r"\W", "", word)
        number = plain.lower() in _NUMBERS or plain[:1].isdigit()
        name = place > 0 and plain[:1].isupper() and plain != "I"
        lines.append(f"{word}\t{'B-number' if number else 'B-name' if name else 'O'}")
    return "\n".join(lines)


if __name__ == "__main__":
    _convert([Path(argument) for argument in sys.argv[1:]])
