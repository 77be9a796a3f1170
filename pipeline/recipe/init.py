"""Draft a recipe for a checkpoint: look at its files, choose what fits, and say why. Nothing heavy is imported."""

import json
import re
import shlex
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import backends, tasks
from pipeline.artifact import write_aside
from pipeline.checkpoint import source as student
from pipeline.checkpoint.inspection import Summary, find_cached, resolve, summarise
from pipeline.data.datasets import DATASETS
from pipeline.errors import InputError, StudentError
from pipeline.recipe import loading
from pipeline.recipe.schema import ConvertSection, CoreMLSection, Recipe, StudentSection, TargetSection
from pipeline.schemes import BACKENDS, SCHEMES

TEMPLATE = "recipe.toml.j2"
_LADDER = (16, 32, 64, 128, 256)
_LONGEST = {"question_answering": 384}
"""A question with a window of its passage. Source: Devlin et al. 2019, SQuAD fine-tuning with windows of 384 tokens."""
_USUAL_LONGEST = 128
_NAME_LENGTH = 64


@dataclass(frozen=True)
class Draft:
    """A recipe that was written, and what it rests on."""

    file: Path
    name: str
    checkpoint: Summary
    task: str
    why: str
    """Why this task."""
    lengths: list[int]
    schemes: dict[str, list[str]]
    datasets: list[str]
    notes: list[str]
    """What a person should know before the first run."""
    next: str
    """The command to run now."""


def draft(
    checkpoint: str,
    output: Path,
    *,
    name: str | None,
    task: str | None,
    force: bool,
    tell: Callable[[str], None],
) -> Draft:
    """Write a recipe for a checkpoint.

    Args:
        checkpoint: a folder, `bundled:<name>`, `hub:owner/name@<commit>`, or `owner/name` from the local hub cache.
        output: the recipe's file.
        name: of the recipe; made from the checkpoint's where it is None.
        task: a row of `tasks.py`; read off the checkpoint's class where it is None.
        force: replace a file that is there.
        tell: called before a download.

    Raises:
        StudentError: there is no such checkpoint, it is unsafe or broken, or has no head for the task.
        RecipeError: what was asked for cannot stand in a recipe.
        InputError: the file is there already, or cannot be written.
    """
    _check_output(output, force=force)
    if task is not None:
        tasks.get(task)
    source = resolve(checkpoint, output)
    probe = _probe(find_cached(source) or source)
    if probe.student.source.startswith("hub:"):
        tell(f"{source} is not in the local hub cache; downloading it")
    checked = student.find(probe, output)
    found = summarise(checked, source)
    chosen, why, notes = choose_task(found, task)
    values: dict[str, Any] = {
        "name": name if name is not None else plain_name(found.origin),
        "found": found,
        "task": chosen,
        "why": why,
        "lengths": lengths_for(chosen, found),
        "limit_reason": _limit_reason(found),
        "targets": {backend: _schemes(backend) for backend in BACKENDS},
        "titles": {backend: backends.get(backend).TITLE for backend in BACKENDS},
        "minimum_ios": CoreMLSection.model_fields["minimum_ios"].default,
    }
    values["datasets"], values["datasets_reason"] = choose_datasets(chosen, found)
    text = render(values)
    parsed = loading.checked(tomllib.loads(text), output)
    at_hand = parsed.model_copy(update={"student": StudentSection(source=str(checked.folder))})
    student.find(at_hand, output)
    _write(output, text)
    return Draft(
        file=output,
        name=parsed.name,
        checkpoint=found,
        task=chosen,
        why=why,
        lengths=values["lengths"],
        schemes={backend: list(section.schemes) for backend, section in parsed.targets.items()},
        datasets=values["datasets"],
        notes=notes,
        next=f"make run RECIPE={shlex.quote(str(output))}",
    )


def _probe(source: str) -> Recipe:
    """Return the least recipe that a checkpoint can be looked up with: it asks for two tokens and for no pooling."""
    headed = next(row.name for row in tasks.TASKS.values() if row.uses_head)
    return Recipe(
        name="probe",
        task=headed,
        student=StudentSection(source=source),
        convert=ConvertSection(sequence_lengths=(2,)),
        targets={BACKENDS[0]: TargetSection(schemes=("fp32",))},
    )


def choose_task(found: Summary, wanted: str | None) -> tuple[str, str, list[str]]:
    """Return the task, why, and what has to be said about it.

    Raises:
        StudentError: the checkpoint's head is another one, or there is no task for it.
    """
    fitting = [row.name for row in tasks.TASKS.values() if row.uses_head and _fits(row, found)]
    if found.numbers == 1 or found.problem_type == "regression":
        fitting = [name for name in fitting if name == "regression"] or fitting
    else:
        fitting = [name for name in fitting if name != "regression"]
    bare = found.is_bare or (found.sentence_transformers and not fitting)
    natural = "embedding" if bare else fitting[0] if fitting else None
    if wanted is None and natural is not None:
        return natural, _why(natural, found), _notes(found)
    if wanted is not None and wanted == natural:
        return wanted, _why(wanted, found), _notes(found)
    if found.class_name is None and wanted is not None:
        return wanted, "asked for; config.json names no class, so the weights have to tell", _notes(found)
    if wanted == "embedding" and natural is None:
        note = f"{found.class_name}'s head is left out; the mean over tokens was not trained to compare texts"
        return wanted, "asked for; the bare encoder is taken", [note, *_notes(found)]
    raise StudentError(_no_task(found, natural, wanted))


def _fits(row: tasks.Task, found: Summary) -> bool:
    return found.class_name is not None and found.class_name.endswith(row.head_suffix)


def _no_task(found: Summary, natural: str | None, wanted: str | None) -> str:
    """Say why no task, or not the one that was asked for, can be had."""
    exist = ", ".join(tasks.TASKS)
    if wanted is not None and natural is not None:
        what = f"{found.class_name or 'a sentence-transformers folder'}, which is {natural}"
        if found.numbers is not None and natural in ("classification", "regression"):
            what += f" with {found.numbers} output{'s' if found.numbers != 1 else ''}"
        return f"{found.origin} is {what}; --task {wanted} needs another head. Leave --task out, or fine-tune it first."
    if found.class_name is None:
        return f"{found.origin}: config.json names no class in `architectures`; say with --task what it is: {exist}."
    if wanted is None:
        return (
            f"{found.origin} is {found.class_name}, and no task here has that head; tasks: {exist}. "
            "--task embedding takes the bare encoder and leaves the head out."
        )
    known = f"{found.origin} is {found.class_name}, which has no head for --task {wanted}"
    return f"{known}; --task embedding takes the bare encoder."


def _why(task: str, found: Summary) -> str:
    if task == "embedding" and found.sentence_transformers:
        return "modules.json makes it a sentence-transformers model"
    if task == "embedding":
        return f"{found.class_name} is a bare encoder, without a head"
    if task == "regression":
        return f"{found.class_name} with {found.numbers} output" + (
            f", problem_type {found.problem_type}" if found.problem_type else ""
        )
    if task == "classification":
        return f"{found.class_name} with {found.numbers} labels"
    return f"{found.class_name}"


def _notes(found: Summary) -> list[str]:
    notes = []
    if found.problem_type == "multi_label_classification":
        notes.append("problem_type is multi_label_classification, and `predict` shows the shares of one softmax")
    if found.licence is None:
        notes.append("no licence was found beside the checkpoint; look it up before files are handed on")
    return notes


def lengths_for(task: str, found: Summary) -> list[int]:
    """Return sequence lengths, ascending, that the model and the task can use."""
    longest = min(_LONGEST.get(task, _USUAL_LONGEST), found.max_length, found.trained_length or found.max_length)
    return [length for length in _LADDER if length < longest] + [longest]


def _limit_reason(found: Summary) -> str:
    reason = f"The model takes {found.max_length} tokens at most"
    if found.position_rows != found.max_length:
        reason += (
            f" ({found.position_rows - found.max_length} of its {found.position_rows} position rows are for padding)"
        )
    if found.trained_length and found.trained_length < found.max_length:
        reason += f"; sentence_bert_config.json cuts texts at {found.trained_length}"
    return reason


def _schemes(backend: str) -> tuple[list[str], dict[str, str]]:
    """Return what a backend supports, and why not the rest."""
    reasons = {name: scheme.refusal(backend) for name, scheme in SCHEMES.items()}
    refused = {name: " ".join(reason.split()) for name, reason in reasons.items() if reason is not None}
    return [name for name in SCHEMES if name not in refused], refused


def choose_datasets(task: str, found: Summary) -> tuple[list[str], str]:
    """Return the labelled data that the checkpoint can be judged by, and why."""
    row = tasks.get(task)
    names = list(row.datasets)
    if row.output_kind == "value":
        return [
            "none"
        ], f"What the number means is not known here. If it grades how alike two texts are: {_listed(names)}"
    if row.has_labels:
        generic = [f"LABEL_{number}" for number in range(len(found.labels))]
        if found.labels == generic:
            return ["none"], "The labels have no names of their own, so no data set is known to be theirs"
        names = [name for name in names if not isinstance(DATASETS[name].label_ids(found.labels), str)]
    if not names:
        return ["none"], f"No data set here has the labels {_listed(found.labels[:6])}"
    usable = [name for name in names if DATASETS[name].bundled or DATASETS[name].absent() is None]
    if not usable:
        return ["none"], f"With POCKETBERT_DATA set: {_listed(names)}"
    outside = [name for name in names if not DATASETS[name].bundled]
    return names, f"Used where POCKETBERT_DATA has it: {_listed(outside)}" if outside else "Comes with the package"


def _listed(names: list[str]) -> str:
    return ", ".join(" ".join(name.split()) for name in names)


def plain_name(origin: str) -> str:
    """Return a recipe name made from a checkpoint's: small letters, digits, dot, dash and underscore."""
    last = origin.split("@")[0].rstrip("/").rsplit("/", 1)[-1].lower()
    plain = re.sub(r"[^a-z0-9._-]+", "-", last).strip("._-")[:_NAME_LENGTH]
    return plain or "student"


def render(values: dict[str, Any]) -> str:
    """Fill the recipe's template."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["toml"] = toml_value
    environment.filters["comment"] = _comment
    return environment.get_template(TEMPLATE).render(**values)


def toml_value(value: Any) -> str:
    """Return a string, number or list as TOML; JSON's are TOML's as well, but for the delete character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(text: str) -> str:
    """Return text that stays on its comment's line."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _check_output(output: Path, *, force: bool) -> None:
    if output.suffix != ".toml":
        raise InputError(f"{output} does not end in .toml; recipes do. Name another file with --output.")
    if output.is_dir():
        raise InputError(f"{output} is a folder; name a file with --output.")
    if output.exists() and not force:
        raise InputError(f"{output} exists already; name another file with --output, or replace it with --force.")
    if not output.parent.is_dir():
        raise InputError(f"{output.parent} does not exist; make the folder first, or name another file with --output.")


def _write(output: Path, text: str) -> None:
    try:
        with write_aside(output) as aside:
            aside.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{output} cannot be written: {error.strerror or error}.") from error
