"""Draft a recipe for a checkpoint from its files: choose task, lengths and schemes, and give the reasons.

No toolchain is imported.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline import formats, tasks
from pipeline.atomic import write_text
from pipeline.checkpoint.inspection import Summary, check_pooling, find_cached, resolve, summarise
from pipeline.checkpoint.sentences import SETTINGS
from pipeline.checkpoint.source import at, find
from pipeline.data.datasets import DATASETS
from pipeline.errors import InputError, StudentError
from pipeline.kinds import KINDS, PoolingMode
from pipeline.planning.assumed import assumptions
from pipeline.planning.own_data import OwnData, inspect, relative
from pipeline.recipe.loading import checked
from pipeline.recipe.schema import ConvertSection, CoreMLSection, Recipe, StudentSection, TargetSection
from pipeline.schemes import BACKENDS, SCHEMES

TEMPLATE = "recipe.toml.j2"
_OTHERS_TOKENIZER = 0.9
"""Least fraction of the embedding table's rows that the model's own tokenizer fills.

Tables are padded to a multiple of 64 or so; a tokenizer with far fewer tokens belongs to another model.
"""
_LADDER = (16, 32, 64, 128, 256)
_LONGEST = {"question_answering": 384}
"""A question with a window of its passage. Source: Devlin et al. 2019, SQuAD fine-tuning with windows of 384 tokens."""
_USUAL_LONGEST = 128
_NAME_LENGTH = 64


@dataclass(frozen=True)
class Draft:
    """A drafted recipe and the reasons for its choices."""

    file: Path
    name: str
    checkpoint: Summary
    task: str
    why: str
    """Why this task."""
    lengths: list[int]
    schemes: dict[str, list[str]]
    datasets: list[str]
    assumed: dict[str, str]
    """What was taken for granted and which file or option says it, by what it is about."""
    notes: list[str]
    """Warnings for the user before the first run."""
    next: str
    """The command to run now."""


def draft(
    checkpoint: str,
    output: Path,
    *,
    name: str | None,
    task: str | None,
    pooling: PoolingMode | None = None,
    train: Path | None = None,
    columns: Mapping[str, str] = MappingProxyType({}),
    force: bool,
    tell: Callable[[str], None],
) -> Draft:
    """Write a recipe for a checkpoint.

    Args:
        checkpoint: as `inspection.resolve` takes it.
        output: the recipe's file.
        name: name of the recipe; None makes one from the checkpoint's.
        task: a row of `tasks.py`; None reads it from the checkpoint's model class.
        pooling: of an encoder that comes without modules.json, for which it has to be given.
        train: labelled files of the user, on which the student is fine-tuned first; see `own_data.inspect`.
        columns: columns of them that the user named.
        force: whether a file that exists is replaced.
        tell: called before a download.

    Raises:
        StudentError: the checkpoint does not exist, is unsafe or broken, or has no head for the task.
        RecipeError: the name or the task cannot stand in a recipe.
        InputError: the file exists, or cannot be written.
    """
    _check_output(output, force=force)
    if task is not None:
        tasks.get(task)
    source = resolve(checkpoint, output, tell)
    probe = _probe(find_cached(source) or source)
    if probe.student.source.startswith("hub:"):
        tell(f"{source} is not in the local hub cache; downloading it")
    checkpoint_source = at(probe.student.source, output)
    summary = summarise(checkpoint_source, source)
    bare_table = checkpoint_source.architecture.states_are_rows
    chosen, why, notes = choose_task(summary, task, trained=train is not None)
    own = inspect(train, tasks.get(chosen), dict(columns), output) if train is not None else None
    if own is None and columns:
        raise InputError(f"--{min(columns)} names a column of --train, which is not given.")
    check_pooling(summary, tasks.get(chosen), pooling)
    values: dict[str, Any] = {
        "name": name if name is not None else plain_name(summary.origin),
        "summary": summary,
        "pooling": pooling,
        "task": chosen,
        "why": why,
        "lengths": lengths_for(chosen, summary),
        "own": own,
        "files": {key: relative(file, output) for key, file in (("train", own.train), ("dev", own.dev))} if own else {},
        "new_head": own is not None and _needs_new_head(own, chosen, summary),
        "limit_reason": _limit_reason(summary),
        # A first run makes a file for Android and one for iOS, and a line of the recipe adds more.
        "drafted": _drafted(target=True),
        "suggested": _drafted(target=False),
        "schemes": {backend: _schemes(backend, bare_table=bare_table) for backend in BACKENDS},
        "bare_table": bare_table,
        "titles": {backend: formats.get(backend).TITLE for backend in BACKENDS},
        "minimum_ios": CoreMLSection.model_fields["minimum_ios"].default,
    }
    values["thresholds"] = KINDS[tasks.get(chosen).output_kind].decision == "each"
    values["datasets"], values["datasets_reason"] = ([], "") if own else choose_datasets(chosen, summary)
    text = render(values)
    parsed = checked(tomllib.loads(text), output)
    # The whole recipe is checked against the checkpoint where it lies, which is not looked up again.
    student = parsed.student.model_copy(update={"source": str(checkpoint_source.folder)})
    local = parsed.model_copy(update={"student": student})
    find(local, output)
    if own:
        own.write()
    _write(output, text)
    # A head that is trained anew has the labels of the data.
    told = replace(summary, labels=list(own.labels)) if own and own.labels else summary
    return Draft(
        file=output,
        name=parsed.name,
        checkpoint=summary,
        task=chosen,
        why=why,
        lengths=values["lengths"],
        schemes={backend: list(section.schemes) for backend, section in parsed.targets.items()},
        datasets=values["datasets"],
        assumed=(own.said if own else {}) | assumptions(told, chosen, pooling, values["lengths"][-1]),
        notes=notes,
        next=f"make run RECIPE={shlex.quote(str(output))}",
    )


def _drafted(*, target: bool) -> dict[str, str]:
    """Return each format's scheme in a drafted recipe: as a target, or in a comment that suggests it."""
    rows = {name: formats.get(name).DRAFTED for name in BACKENDS}
    return {name: scheme for name, (scheme, is_target) in rows.items() if is_target == target}


def _probe(source: str) -> Recipe:
    """Return the smallest recipe that finds a checkpoint: two tokens, no pooling, no labels."""
    if not source.isprintable():
        raise StudentError(f"{source!r} cannot be named in a recipe: it has control characters. Rename the folder.")
    headed = next(row.name for row in tasks.TASKS.values() if row.uses_head and not row.has_labels)
    return Recipe(
        name="probe",
        task=headed,
        student=StudentSection(source=source),
        convert=ConvertSection(sequence_lengths=(2,)),
        targets={BACKENDS[0]: TargetSection(schemes=("fp32",))},
    )


def _needs_new_head(own: OwnData, task: str, summary: Summary) -> bool:
    """Return whether the checkpoint has a head for the task whose labels are not the data's."""
    headed = summary.class_name is not None and summary.class_name.endswith(tasks.get(task).head_suffix)
    return headed and bool(own.labels) and sorted(map(str.lower, summary.labels)) != sorted(map(str.lower, own.labels))


def choose_task(summary: Summary, requested: str | None, *, trained: bool = False) -> tuple[str, str, list[str]]:
    """Return the task, the reason for it, and warnings for the user.

    Args:
        summary: the checkpoint's summary.
        requested: the task of `--task`, or None.
        trained: whether the student is trained for it first, so that it needs no head yet.

    Raises:
        StudentError: the checkpoint has another head than the requested task needs, or no task fits it.
    """
    fitting = [
        row.name
        for row in tasks.TASKS.values()
        if row.uses_head and summary.class_name and summary.class_name.endswith(row.head_suffix)
    ]
    said = _of_problem_type(fitting, summary)
    bare = summary.is_bare or (summary.sentence_transformers and not said)
    natural = "embedding" if bare else said[0] if said else None
    if trained and requested is not None:
        return requested, "given by --task; [train] teaches it", _notes(summary)
    if requested is None and natural is not None:
        return natural, _why(natural, summary), _notes(summary)
    if requested is not None and requested == natural:
        return requested, _why(requested, summary), _notes(summary)
    if not bare and requested in fitting and summary.problem_type is None and _counts(requested, summary):
        return requested, f"given by --task; {summary.class_name} has no problem_type that would tell", _notes(summary)
    if summary.class_name is None and requested is not None:
        return requested, "given by --task; config.json names no class, so the weights have to tell", _notes(summary)
    if requested == "embedding" and natural is None:
        note = f"{summary.class_name}'s head is left out; the mean over tokens was not trained to compare texts"
        return requested, "given by --task; the bare encoder is used", [note, *_notes(summary)]
    raise StudentError(_no_task(summary, natural, requested))


def _of_problem_type(fitting: list[str], summary: Summary) -> list[str]:
    """Return the tasks of a checkpoint's class that its problem type and its number of outputs leave, likeliest first.

    A config that says nothing, or what its number of outputs belies, is of the plainest task: one output is a number,
    and several are classes.
    """
    plain = "regression" if summary.numbers == 1 else "single_label_classification"
    alike = [name for name in fitting if tasks.get(name).problem_type is not None]
    for said in (summary.problem_type, plain):
        told = [name for name in alike if tasks.get(name).problem_type == said and _counts(name, summary)]
        if told:
            return told
    return fitting


def _counts(task: str, summary: Summary) -> bool:
    """Return whether the head has as many outputs as the task needs."""
    return summary.numbers is None or tasks.get(task).fits(summary.numbers)


def _no_task(summary: Summary, natural: str | None, requested: str | None) -> str:
    """Return why no task fits the checkpoint, or why the requested one does not."""
    exist = ", ".join(tasks.TASKS)
    if requested is not None and natural is not None:
        what = f"{summary.class_name or 'a sentence-transformers folder'}, which is {natural}"
        if summary.numbers is not None and tasks.get(natural).problem_type is not None:
            what += f" with {summary.numbers} output{'s' if summary.numbers != 1 else ''}"
        way_out = f"--task {requested} needs another head. Leave --task out, or fine-tune it first."
        return f"{summary.origin} is {what}; {way_out}"
    if summary.class_name is None:
        return f"{summary.origin}: config.json names no class in `architectures`; say with --task what it is: {exist}."
    if requested is None:
        return (
            f"{summary.origin} is {summary.class_name}, and no task here has that head; tasks: {exist}. "
            "--task embedding takes the bare encoder and leaves the head out."
        )
    known = f"{summary.origin} is {summary.class_name}, which has no head for --task {requested}"
    return f"{known}; --task embedding takes the bare encoder."


def _why(task: str, summary: Summary) -> str:
    if task == "embedding" and summary.sentence_transformers:
        return "modules.json makes it a sentence-transformers model"
    if task == "embedding":
        return f"{summary.class_name} is a bare encoder, without a head"
    if tasks.get(task).problem_type is not None:
        one = "label" if KINDS[tasks.get(task).output_kind].decision else "output"
        said = f", problem_type {summary.problem_type}" if summary.problem_type else ""
        return f"{summary.class_name} with {summary.numbers} {one}{'s' if summary.numbers != 1 else ''}{said}"
    return f"{summary.class_name}"


def _notes(summary: Summary) -> list[str]:
    notes = []
    if summary.vocabulary and summary.rows and summary.vocabulary < _OTHERS_TOKENIZER * summary.rows:
        tokens = (
            f"the tokenizer has {summary.vocabulary:,} tokens, and the model's table of words {summary.rows:,} rows"
        )
        notes.append(f"{tokens}; it may belong to another model")
    if summary.unread:
        notes.append(
            f"{SETTINGS} says {'; '.join(summary.unread)}, which nothing here carries out: vectors are as without it"
        )
    if summary.licence is None:
        notes.append("no licence was found beside the checkpoint; look it up before files are handed on")
    return notes


def lengths_for(task: str, summary: Summary) -> list[int]:
    """Return sequence lengths, ascending, that the model and the task can use."""
    longest = min(_LONGEST.get(task, _USUAL_LONGEST), summary.limit)
    return [length for length in _LADDER if length < longest] + [longest]


def _limit_reason(summary: Summary) -> str:
    reason = f"The model takes {summary.max_length} tokens at most"
    padding = summary.position_rows - summary.max_length
    if padding:
        reason += f" ({padding} of its {summary.position_rows} position rows are for padding)"
    if summary.trained_length and summary.trained_length < summary.max_length:
        reason += f"; sentence-transformers truncates texts at {summary.trained_length}"
    return reason


def _schemes(backend: str, *, bare_table: bool) -> tuple[list[str], dict[str, str]]:
    """Return the names of the schemes that a format supports, and for each other scheme the reason why not.

    Args:
        backend: one of `BACKENDS`.
        bare_table: whether the encoder has a table alone, and no linears.
    """
    reasons = {name: scheme.refusal(backend) for name, scheme in SCHEMES.items()}
    if bare_table:
        reasons |= {name: reason or SCHEMES[name].refusal_of_table(8) for name, reason in reasons.items()}
    refused = {name: " ".join(reason.split()) for name, reason in reasons.items() if reason is not None}
    return [name for name in SCHEMES if name not in refused], refused


def choose_datasets(task: str, summary: Summary) -> tuple[list[str], str]:
    """Return the datasets that fit the checkpoint's labels, and a sentence about them."""
    row = tasks.get(task)
    names = list(row.datasets)
    if row.output_kind == "value":
        return [
            "none"
        ], f"What the number means is not known here. If it grades how alike two texts are: {_listed(names)}"
    if row.has_labels:
        generic = [f"LABEL_{number}" for number in range(len(summary.labels))]
        if summary.labels == generic:
            return ["none"], "The labels have no names of their own, so no dataset is known to be theirs"
        names = [name for name in names if not isinstance(DATASETS[name].label_ids(summary.labels), str)]
    if not names:
        return ["none"], f"No dataset here has the labels {_listed(summary.labels[:6])}"
    usable = [name for name in names if DATASETS[name].bundled or DATASETS[name].absent() is None]
    if not usable:
        return ["none"], f"With POCKETBERT_DATA set: {_listed(names)}"
    outside = [name for name in names if not DATASETS[name].bundled]
    return names, f"Used where POCKETBERT_DATA has it: {_listed(outside)}" if outside else "Comes with the package"


def _listed(names: list[str]) -> str:
    return ", ".join(" ".join(name.split()) for name in names)


def plain_name(origin: str) -> str:
    """Return a checkpoint's name as a recipe name: lower-case letters, digits, dot, dash and underscore."""
    last = origin.split("@", maxsplit=1)[0].rstrip("/").rsplit("/", 1)[-1].lower()
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
    """Return a string, number or list as TOML, which differs from JSON only in the delete character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(text: str) -> str:
    """Return a text with every unprintable character, such as a line break, replaced by `?`."""
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
        write_text(output, text)
    except OSError as error:
        raise InputError(f"{output} cannot be written: {error.strerror or error}.") from error
