"""From a text to an answer in both cores, on the real student in the real runtimes; Python says what is right.

The files are the same and the runtimes too, so outputs have to be equal to the last bit, and answers as well.
"""

import json
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps import runtime_server, students
from pipeline import artifact, strict
from pipeline.benchmark.record import BenchmarkRecord, percentiles, texts_digest
from pipeline.convert import zero_shot
from pipeline.convert.model import Model, Prediction
from pipeline.devices.headless import FINAL, RECORD, REQUEST, STATUS, BenchmarkRequest, BenchmarkStatus
from pipeline.formats import signature
from pipeline.search import about
from pipeline.search.flat import FlatIndex, Passage
from pipeline.text.bundled import everyday_sentences, verification_texts

FOLDER = students.FOLDER / "endtoend"
SOCKET = students.FOLDER / "runtime.sock"
_TEXTS, _ASKED = 60, 33
_LEAST_FOUND = 20
_FOUND = 10
"""Passages that a screen shows."""
_QUESTIONS = (
    "When does the shop close?", "Somebody plays music.", "What is the weather like?", "a long journey by train",
    "Who is at home?", "42", "Zürich — Crème brûlée", "It is cheap.",
)  # fmt: skip
_PREMISES = 16
_TOPICS = (
    ("travel", "food", " weather ", "money", "food"),
    ("Zürich", "a very old house with a garden where somebody who is at home today waits", "caf\u00e9", "cafe\u0301"),
)
"""Labels of one's own: with white space around one, one of them twice, and two that differ in code points alone."""
_TEMPLATES = (zero_shot.TEMPLATE, "😀 In this text, {} is the topic.")
_TRAPS = (
    "I\u0307stanbul'da 3 Ana met two Bobs.",
    "Zürich — Crème brûlée for 12,5 € 👩‍👩‍👧 and Pelé!",
    "今天天气很好\uff0c我们去公园吧。 See you at 9 in Paris.",
    "\u00a0 Ann\u200b  walked seven  miles \t to Łódź.",
)
"""Where a position in UTF-16 is not one in code points, and white space is of many kinds."""


def write(folder: Path = FOLDER) -> int:
    """Make the students, and write what Python answers; return the number of answers."""
    keys = students.make(folder)
    rows = [row for name, backend in _models() for row in _answers(name, backend)]
    # Lists without an entity are equal whoever wrote them.
    found = [row for row in rows if row["model"].startswith("names/") and row["answer"]]
    assert len(found) >= _LEAST_FOUND, f"{len(found)} texts have an entity: train the student longer"
    given = {
        (label, is_given) for row in rows if row["model"].startswith("has/") for label, _, is_given in row["answer"]
    }
    assert len(given) == 4, f"a label is given to each text, or to none: {given}; train the student longer"
    own = [row for backend in students.BACKENDS for row in _zero_shot(backend)]
    searches = _searches(folder / "index")
    fast = _two_speeds()
    document = {"keys": keys, "rows": rows, "zero_shot": own, "searches": searches, "two_speeds": fast, "runs": _runs()}
    document |= runtime_server.versions()
    (folder / "cases.json").write_text(json.dumps(document), encoding="utf-8")
    return len(rows) + len(own) + len(searches) + len(fast["searches"])


def has_students() -> bool:
    """Return whether students and answers are there."""
    return (FOLDER / "cases.json").is_file()


@contextmanager
def serving() -> Iterator[None]:
    """Serve the real runtimes to the apps' tests; without students there is nothing to serve."""
    if not has_students():
        yield
        return
    served = {*_models(), *students.TWO_SPEEDS}
    models = {f"{name}/{backend}-{students.SCHEME}": students.model_of(name, backend) for name, backend in served}
    with runtime_server.serving(SOCKET, models):
        yield


def _models() -> Iterator[tuple[str, str]]:
    for name in students.NAMES:
        for backend in students.BACKENDS:
            yield name, backend


# --- answers -------------------------------------------------------------------------------------------------------


def _answers(name: str, backend: str) -> Iterator[dict[str, Any]]:
    folder = students.model_of(name, backend).path
    with Model(folder) as model:
        inputs = list(_inputs("regression" if name == "infer" else model.signature.task))
        # One by one: what a text is answered does not depend on the others.
        for first, second in inputs:
            (found,) = model.predict([first if second is None else (first, second)])
            yield {
                "model": f"{name}/{backend}-{students.SCHEME}",
                "first": first,
                "second": second,
                "tokens": found.tokens,
                "length": found.length,
                "answer": _answer(model.signature.output_kind, found),
            }


def _inputs(task: str) -> Iterator[tuple[str, str | None]]:
    every = [text for text in verification_texts() if text.first.strip()]
    if task == "regression":
        pairs = [text for text in every if text.second and text.second.strip()]
        yield from ((text.first, text.second) for text in pairs[:_TEXTS])
    elif task == "question_answering":
        questions = json.loads((students.TEXTS / "questions.json").read_text(encoding="utf-8"))
        asked = [
            (one["question"], paragraph["context"])
            for article in questions["data"]
            for paragraph in article["paragraphs"]
            for one in paragraph["qas"]
        ]
        yield from asked[:_ASKED]
        # Passages that need several windows, with characters outside the basic plane in front of the answer.
        long = "😀 ".join(dict.fromkeys(context for _, context in asked))
        yield from ((question, long[: 900 * (1 + number % 3)]) for number, (question, _) in enumerate(asked[::4]))
    else:
        texts = [text.first for text in every if text.second is None]
        draw = random.Random(0)
        yield from ((text, None) for text in (*draw.sample(texts, _TEXTS - len(_TRAPS)), *_TRAPS))


def _answer(kind: str, found: Prediction) -> Any:
    """Return an answer as the cores' tests read it; positions are UTF-16 code units."""
    if kind == "logits":
        assert found.scores is not None
        return sorted(found.scores.items(), key=lambda pair: -pair[1])
    if kind == "multi_label":
        assert found.scores is not None
        assert found.given is not None
        ranked = sorted(found.scores.items(), key=lambda pair: -pair[1])
        return [[label, share, label in found.given] for label, share in ranked]
    if kind == "values":
        assert found.values is not None
        return list(found.values.items())
    if kind == "token_logits":
        assert found.entities is not None
        return [[*_utf16(found.text, one.start, one.end), one.score, one.kind] for one in found.entities]
    if kind == "spans":
        assert found.answer is not None
        return [*_utf16(found.second or "", found.answer.start, found.answer.end), found.answer.score]
    return found.vector.ravel().tolist()


def _zero_shot(backend: str) -> Iterator[dict[str, Any]]:
    """Yield texts with labels of one's own, and the probability of each; tokens are those of the longest row."""
    texts = [text.first for text in verification_texts() if text.first.strip() and text.second is None]
    premises = [*random.Random(1).sample(texts, _PREMISES - len(_TRAPS)), *_TRAPS]
    with Model(students.model_of("infer", backend).path) as model:
        for number, text in enumerate(premises):
            labels, template = _TOPICS[number % 2], _TEMPLATES[number // 2 % 2]
            for multi_label in (False, True):
                answer = model.zero_shot(text, labels, template, multi_label=multi_label)
                rows = [model.encoder.encode(text, template.replace("{}", label)) for label in answer]
                tokens = max(len(row) for row in rows)
                yield {
                    "model": f"infer/{backend}-{students.SCHEME}",
                    "text": text,
                    "labels": labels,
                    "template": template,
                    "multi_label": multi_label,
                    "tokens": tokens,
                    "length": model.signature.choose(tokens)[1],
                    "answer": list(answer.items()),
                }


def _searches(folder: Path) -> list[dict[str, Any]]:
    """Index the package's sentences with one file, and return what questions find there, to that file and the other."""
    texts = list(
        dict.fromkeys([*everyday_sentences(), *(one.first for one in verification_texts() if one.first.strip())])
    )
    _index(folder, texts, "near", "executorch")
    return asked(folder, _QUESTIONS)


def _two_speeds() -> dict[str, Any]:
    """Index texts with the static table, and return them with what questions find, to the transformer of that space.

    There are more texts than an app keeps in memory, and none that two languages cut in two ways.
    """
    sentences = dict.fromkeys(everyday_sentences())
    texts = [f"{said}{text}" for said in ("", "Yesterday: ", "They say: ") for text in sentences]
    (_, asks), (table, fills) = students.TWO_SPEEDS
    with tempfile.TemporaryDirectory() as place:
        _index(Path(place) / "index", texts, table, fills)
        return {"texts": texts, "searches": asked(Path(place) / "index", _QUESTIONS, [asks])}


def _index(folder: Path, texts: Sequence[str], name: str, backend: str) -> None:
    """Write an index of the embedding student's space, as the student itself would, with the vectors of a file."""
    shutil.rmtree(folder, ignore_errors=True)
    with Model(students.model_of(name, backend).path) as model:
        vectors = np.stack([one.vector for one in model.predict(texts)])
    contract = signature.read(students.model_of("near", "executorch").path).vectors
    assert contract is not None
    says = about.of(contract, "int8", width=None, prompts=(None, None), made_by=f"{backend}-{students.SCHEME}")
    with FlatIndex.create(folder, says) as index:
        index.add([Passage(str(number), text) for number, text in enumerate(texts)], vectors)


def asked(folder: Path, questions: Sequence[str], backends: Sequence[str] = students.BACKENDS) -> list[dict[str, Any]]:
    """Return what questions find in an index, to the embedding student's files."""
    rows = []
    with FlatIndex.open(folder) as index:
        for backend in backends:
            with Model(students.model_of("near", backend).path) as model:
                for question in questions:
                    (one,) = model.predict([question])
                    found = [[hit.row, hit.text, hit.cosine] for hit in index.search(one.vector, _FOUND)]
                    rows.append({"model": f"near/{backend}-{students.SCHEME}", "question": question, "found": found})
    return rows


def _utf16(text: str, start: int, end: int) -> tuple[int, int]:
    first, last = (len(text[:at].encode("utf-16-le")) // 2 for at in (start, end))
    return first, last


# --- headless benchmarks -------------------------------------------------------------------------------------------


def _runs() -> list[dict[str, Any]]:
    """Write the requests of headless runs, and return how each has to end.

    `expected` is the last state and a piece of its message; `does` is what the test does meanwhile.
    """
    texts = list(everyday_sentences()[:12])
    good: dict[str, Any] = {
        "run_id": "good", "model": "near/litert-int8_dynamic", "compute_units": None, "threads": 1,
        "lengths": [32, 128], "texts": texts, "rounds": 2, "runs_per_round": 3, "round_ms": 1.0, "text_passes": 2,
        "time_limit_s": 120.0, "start_below_c": None, "sustained_s": 0.0, "sustained_part_s": 60.0,
    }  # fmt: skip
    cases: list[tuple[str, dict[str, Any], str, str | None, str]] = [
        ("litert", {}, "finished", None, ""),
        ("executorch", {"model": "mood/executorch-int8_dynamic", "threads": 2}, "finished", None, ""),
        ("spans", {"model": "ask/litert-int8_dynamic"}, "finished", None, ""),
        ("sustained", {"sustained_s": 1.0, "sustained_part_s": 0.4}, "finished", None, ""),
        ("cooled", {"start_below_c": 36.0}, "finished", None, "cools"),
        ("no_such_model", {"model": "near/litert-fp32"}, "refused", "near/litert-fp32 was not shipped; there are", ""),
        ("too_long", {"lengths": [32, 256]}, "refused", "length 256 does not fit", ""),
        ("too_short", {"lengths": [2]}, "refused", "lengths is [2]", ""),
        ("no_threads", {"threads": 0}, "refused", "threads is 0; it has to be 1 or more", ""),
        ("no_texts", {"texts": []}, "refused", "texts is empty", ""),
        ("no_units", {"compute_units": "npu"}, "refused", "npu", ""),
        ("newer", {"schema_version": 2}, "refused", "its schema_version is 2, and this version reads 1", ""),
        ("other_run", {"run_id": "another"}, "refused", "request.json is of run another", ""),
        ("leads_out", {"run_id": "../good"}, "refused", "run_id is ../good", ""),
        ("no_request", {}, "refused", "request.json: it is missing", "no request"),
        ("cut_request", {}, "refused", "request.json: it cannot be read", "cut request"),
        ("cancelled", {"rounds": 1000}, "cancelled", "it was cancelled", "cancels"),
        ("out_of_time", {"rounds": 100_000, "time_limit_s": 1.0}, "out_of_time", "the time limit passed", ""),
        ("too_hot", {"start_below_c": 20.0, "time_limit_s": 1.5}, "too_hot", "it did not cool down to 20", ""),
        ("runtime_gone", {"rounds": 1000}, "failed", "the connection", "hangs up"),
        ("no_room", {}, "failed", "a file cannot be written", "no room"),
    ]  # fmt: skip
    rows = []
    for name, changes, state, message, does in cases:
        request = BenchmarkRequest.model_validate(good).model_dump(mode="json") | {"run_id": name} | changes
        text = json.dumps(request)
        rows.append(
            {
                "run": name,
                "request": None if does == "no request" else text[:100] if does == "cut request" else text,
                "state": state,
                "message": message,
                "does": does,
            }
        )
    return rows


def check_runs(language: str, folder: Path = FOLDER) -> int:
    """Check the statuses and records that a core wrote; return how many records are valid.

    Raises:
        AssertionError: one is not what the contract says.
    """
    document = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    records = 0
    for case in document["runs"]:
        run = folder / f"runs-{language}" / case["run"]
        status = strict.read(BenchmarkStatus, (run / STATUS).read_bytes())
        assert status.state in FINAL, status
        assert (status.run_id, status.state) == (case["run"], case["state"]), status
        assert (case["message"] or "") in (status.message or ""), status
        assert (run / RECORD).is_file() == (status.state == "finished"), run
        if status.state == "finished":
            assert status.done == 1.0
            request = strict.read(BenchmarkRequest, (run / REQUEST).read_bytes())
            _check_record(strict.read(BenchmarkRecord, (run / RECORD).read_bytes()), request)
            records += 1
    return records


def _check_record(record: BenchmarkRecord, request: BenchmarkRequest) -> None:
    """Compare a record with what Python knows of the model, the texts and the request."""
    name, target = request.model.split("/")
    model = students.model_of(name, target.partition("-")[0])
    claimed = signature.read(model.path)
    assert (record.run_id, record.model.sha256) == (request.run_id, model.digest)
    assert record.model.file_sha256 == artifact.sha256_file(model.path / claimed.file)
    assert record.timing.texts_sha256 == texts_digest(request.texts)
    assert (record.backend.threads, record.backend.compute_units) == (request.threads, request.compute_units)
    assert record.backend.version == runtime_server.versions()[claimed.backend]
    with Model(model.path) as opened:
        tokens = [len(opened.encoder.encode(text)) for text in request.texts]
        ran_at = [opened.signature.choose(count)[1] for count in tokens]
    texts = record.timing.texts
    assert (texts.tokens, texts.ran_at) == (tokens, ran_at)
    samples = request.text_passes * len(request.texts)
    assert [len(texts.latencies_ms), len(texts.tokenise_ms), len(texts.cpu_ms or [])] == [samples] * 3
    assert [one.seq_len for one in record.timing.lengths] == request.lengths
    for one in record.timing.lengths:
        assert one.ran_at == claimed.choose(one.seq_len)[1]
        assert len(one.latencies_ms) >= request.rounds * request.runs_per_round
        assert min(one.latencies_ms) > 0
    _check_sustained(record, request)
    assert record.source == "host"
    if sys.platform == "linux":
        assert (record.memory.pss_open_bytes or 0) > 0
    assert (record.memory.baseline_bytes or 0) > 0
    assert (record.memory.retained_bytes or 0) > 0


def _check_sustained(record: BenchmarkRecord, request: BenchmarkRequest) -> None:
    """Parts follow each other without a gap, and last as long as was asked for."""
    if request.sustained_s == 0:
        assert record.timing.sustained is None
        return
    found = record.timing.sustained
    assert found is not None
    assert found.seq_len == max(request.lengths)
    parts = found.parts
    ends = [one.begins_s + one.seconds for one in parts]
    assert [one.begins_s for one in parts] == pytest.approx([0.0, *ends[:-1]])
    assert ends[-1] >= request.sustained_s > parts[-1].begins_s
    assert all(one.seconds >= request.sustained_part_s for one in parts[:-1])
    for one in parts:
        assert one.runs > 0
        # Which percentiles are told depends on the number of runs alone, which a busy machine lowers.
        told = percentiles([1.0] * one.runs)
        assert (one.p50_ms is None, one.p90_ms is None) == (told.p50 is None, told.p90 is None), one
        found_ms = [ms for ms in (one.p50_ms, one.p90_ms) if ms is not None]
        assert found_ms == sorted(found_ms), one
        assert all(ms > 0 for ms in found_ms), one
