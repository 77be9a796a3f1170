"""The bundled student for all five tasks, trained for a minute on the package's own texts, converted and signed.

They are weak, and that is no matter: what is compared is whether Kotlin and Swift answer as Python does, in the real
runtimes, and an answer that depends on the text is needed for it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tomli_w

from apps import toolchains
from pipeline import artifact
from pipeline.artifact import Artifact
from pipeline.backends import signature
from pipeline.ship import placing, signing
from pipeline.ship.placing import Shipped
from pipeline.text.bundled import everyday_sentences

FOLDER = toolchains.APPS
TEXTS = toolchains.REPOSITORY / "pipeline" / "text" / "texts"
BACKENDS = ("litert", "executorch")
SCHEME = "int8_dynamic"
_AT_ONCE = 2
_NUMBERS = {"one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve", "hundred", "half"}


def make(into: Path) -> list[str]:
    """Train and convert the five students, what is finished already apart, and put them signed into an app's folder.

    They are not judged: verification is another test's, and takes longer than all of this.

    Returns:
        The keys to trust.
    """
    students = [(name, _recipe(name, task, extra)) for name, task, extra in _students()]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(_convert, [recipe for _, recipe in students]))
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    private, public = signing.new_key(into / "key")
    models = [model_of(name, backend) for name, _ in students for backend in BACKENDS]
    key = signing.read_key(private)
    private.unlink()
    placing.put([(model, _said(model)) for model in models], {backend: [into / "models"] for backend in BACKENDS}, key)
    return [signing.compiled(signing.read_public_key(public))]


def model_of(name: str, backend: str) -> Artifact:
    """Return a converted student."""
    return artifact.load(FOLDER / "students" / name / f"{backend}-{SCHEME}" / "model")


def _said(model: Artifact) -> Shipped:
    claimed = signature.read(model.path)
    return Shipped(
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
    )


def _convert(recipe: Path) -> None:
    _pocketbert("convert", recipe, "--build", FOLDER / "students")


def _pocketbert(*arguments: Any) -> None:
    # On the package's own data whether or not the caller has more.
    environment = {name: value for name, value in os.environ.items() if name != "POCKETBERT_DATA"}
    command = [sys.executable, "-m", "pipeline", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=toolchains.REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        print(done.stdout[-10_000:], flush=True)
        done.check_returncode()


def _students() -> Iterator[tuple[str, str, dict[str, Any]]]:
    train = {"learning_rate": 2e-4, "max_length": 128}
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
    yield "names", "token_classification", {"train": train | files | {"epochs": 3}}
    questions = json.loads((TEXTS / "questions.json").read_text(encoding="utf-8"))
    (article,) = questions["data"]
    paragraphs = article["paragraphs"]
    halves = ([one for n, one in enumerate(paragraphs) if n % 4], paragraphs[::4])
    files = _files(
        "ask", ".json", *(json.dumps({**questions, "data": [{**article, "paragraphs": half}]}) for half in halves)
    )
    yield "ask", "question_answering", {"train": train | files | {"epochs": 10}}


def _recipe(name: str, task: str, extra: dict[str, Any]) -> Path:
    recipe = {
        "name": name,
        "task": task,
        "student": {"source": "bundled:all-MiniLM-L6-v2"},
        "convert": {"sequence_lengths": [32, 128]},
        "targets": {backend: {"schemes": [SCHEME]} for backend in BACKENDS},
    }
    file = FOLDER / "recipes" / f"{name}.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(tomli_w.dumps(recipe | extra), encoding="utf-8")
    return file


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
