"""The JSON documents that `--json` prints on standard output. Each holds `exit`, the command's exit code."""

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.texts import error_line
from pipeline.convert.predicting import Answer
from pipeline.errors import EXIT_DONE
from pipeline.execution.executor import Step
from pipeline.mil.listing import Listing
from pipeline.mil.trial import Trial
from pipeline.search.about import About
from pipeline.search.asking import Found
from pipeline.search.indexing import Outcome
from pipeline.verify.record import Parity

if TYPE_CHECKING:
    # They import SciPy.
    from pipeline.fronts.recommending import Recommendation
    from pipeline.fronts.record import Record
    from pipeline.study.estimate import Plan

_GIVEN_BACK_CHARACTERS = 10_000
"""The caller has the text anyway; offsets of entities and answers are into the text that was given."""


_NUMBER = r"(?:-?[0-9.eE+-]+|NaN|-?Infinity)"
_NUMBERS = re.compile(rf"\[\n\s*({_NUMBER}(?:,\n\s*{_NUMBER})*)\n\s*\]")
"""A list of numbers as `json` indents it."""

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


def show(as_json: bool, document: Mapping[str, Any], print_text: Callable[[], None], code: int = EXIT_DONE) -> None:
    """Print a verb's result, either as a JSON document or as text."""
    if as_json:
        print_document(document, code)
    else:
        print_text()


def print_document(content: Mapping[str, Any], code: int = EXIT_DONE) -> None:
    """Print one JSON document, unstyled.

    Args:
        content: everything but the exit code.
        code: the exit code that the command ends with.
    """
    text = json.dumps({**content, "exit": code}, indent=1, ensure_ascii=False, default=str)
    # A vector is one line; no string has a line break of its own in JSON.
    text = _NUMBERS.sub(lambda found: f"[{' '.join(found.group(1).split())}]", text)
    sys.stdout.write(text + "\n")


def print_lines(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print documents of one line each."""
    for row in rows:
        sys.stdout.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")


def error_document(kind: str, message: str) -> dict[str, Any]:
    """Return the document of an error; the message becomes one line."""
    return {"error": {"kind": kind, "message": error_line(message)}}


def run_document(recipe: str, steps: Iterable[Step], parities: Mapping[str, Parity]) -> dict[str, Any]:
    """Return the JSON document of a recipe's steps, made or planned, and of its verdicts."""
    rows = [
        {
            "name": step.name,
            "place": str(step.place),
            "made": step.made,
            "reason": step.reason,
            "seconds": round(step.seconds, 2),
            "metrics": step.artifact.manifest.metrics if step.artifact else None,
        }
        for step in steps
    ]
    verdicts = {name: parity.verdict for name, parity in parities.items()}
    evaluators = {name: parity.evaluator for name, parity in parities.items()}
    return {"recipe": recipe, "steps": rows, "verdicts": verdicts, "evaluators": evaluators}


def answers_document(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return the JSON document of a model's answers."""
    return {"predictions": [answer_row(one) for one in answers]}


def answer_row(answer: Answer) -> dict[str, Any]:
    """Return the JSON values of one answer: a prediction with its neighbours, or the scores of the user's labels."""
    if answer.scores is not None:
        scores = answer.scores
        cut = {"tokens": scores.tokens, "truncated": scores.truncated}
        return _given("text", answer.text) | cut | {"labels": dict(scores)}
    prediction = answer.prediction
    assert prediction is not None
    row = _given("text", prediction.text) | _given("second", prediction.second) | {"tokens": prediction.tokens}
    row |= {"truncated": prediction.truncated, "length": prediction.length, "vector": prediction.vector.tolist()}
    if prediction.value is not None:
        row["value"] = prediction.value
    if prediction.unprompted:
        row["unprompted"] = list(prediction.unprompted)
    if prediction.scores:
        row["labels"] = prediction.scores
    if prediction.given is not None:
        row["given"] = list(prediction.given)
    if prediction.values is not None:
        row["values"] = prediction.values
    if prediction.entities is not None:
        row["entities"] = [dataclasses.asdict(entity) for entity in prediction.entities]
    if prediction.answer:
        row |= {"answer": dataclasses.asdict(prediction.answer), "windows": prediction.windows}
    if answer.near:
        row["neighbours"] = [_given("text", item.text) | {"cosine": item.cosine} for item in answer.near]
    return row


def _given(key: str, text: str | None) -> dict[str, Any]:
    """Return a user's text under `key`; a long one is cut, and `<key>_characters` has its full length."""
    if text is None or len(text) <= _GIVEN_BACK_CHARACTERS:
        return {key: text}
    return {key: text[:_GIVEN_BACK_CHARACTERS], f"{key}_characters": len(text)}


def trial_document(trial: Trial) -> dict[str, Any]:
    """Return the document of a Core ML program that was run; arrays go to `--outputs` instead."""
    document = dataclasses.asdict(trial)
    del document["outputs"], document["rows"]
    return document | {"outputs": [dataclasses.asdict(row) for row in trial.rows]}


def listing_document(listing: Listing) -> dict[str, Any]:
    """Return the document of a Core ML package's operations and weights."""
    totals = {"weight_bytes": listing.weight_bytes, "duplicate_bytes": listing.duplicate_bytes}
    return dataclasses.asdict(listing) | totals


def index_document(outcome: Outcome) -> dict[str, Any]:
    """Return the document of an index that was made or continued; what `index.json` says stands beside the counts."""
    document = dataclasses.asdict(outcome)
    return document | {"about": _about(outcome.about)}


def found_document(found: Found) -> dict[str, Any]:
    """Return the document of a question's answers, the nearest passage first."""
    hits = [
        {"rank": rank, "id": hit.id, "cosine": hit.cosine, "score": hit.score, "row": hit.row}
        | _given("text", hit.text)
        for rank, hit in enumerate(found.hits, 1)
    ]
    head = {"index": found.index, "engine": found.engine, "about": _about(found.about)}
    return _given("question", found.question) | {"truncated": found.truncated} | head | {"hits": hits}


def _about(about: About) -> dict[str, Any]:
    """Return what an index says of itself; its scales are for who reads the vectors."""
    return about.model_dump(exclude={"schema_version", "scales"})


def study_plan_document(found: "Plan") -> dict[str, Any]:
    """Return the document of what a study would do."""
    return dataclasses.asdict(found)


def study_document(record: "Record") -> dict[str, Any]:
    """Return the document of a study: its answer, and every trial."""
    return record.model_dump(mode="json")


def recommendation_document(found: "Recommendation", text: str) -> dict[str, Any]:
    """Return the document of a recommendation: the trial, what it does not keep, and its recipe."""
    return {
        "study": found.record.study.name,
        "fits": found.fits,
        "beyond": {name: {"found": value, "bound": bound} for name, (value, bound) in found.beyond.items()},
        "unmeasured": list(found.unmeasured),
        "latency_judged": not found.elsewhere,
        "ready": {one.choice["recipe"]: one.model_dump(mode="json") for one in found.ready},
        "trial": found.trial.model_dump(mode="json"),
        "recipe": text,
    }
