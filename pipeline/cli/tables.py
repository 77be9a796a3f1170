"""The results of the verbs on standard output: lines and tables for people."""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from pipeline.cli.inventory import ReadyRecipe
from pipeline.cli.texts import plain, shortened
from pipeline.compat.record import Compat, Verdict
from pipeline.compat.record import Row as CompatRow
from pipeline.convert.model import UNPROMPTED, Prediction
from pipeline.convert.predicting import Answer
from pipeline.execution.executor import Step
from pipeline.mil.listing import Listing
from pipeline.mil.trial import Trial
from pipeline.planning.draft import Draft
from pipeline.recipe.reference import SectionKeys
from pipeline.report import wording
from pipeline.ship.placing import ShippedModel
from pipeline.ship.push import PushedBundle
from pipeline.verify.advice import advice
from pipeline.verify.record import EXEMPT, Parity

_out = Console(highlight=False)
_VERDICT = {"passed": "[green]passed[/green]", "failed": "[red]FAILED[/red]", "not_run": "[yellow]not run[/yellow]"}
_UNCUT = 100_000
"""Characters a line may have that goes into a file or another program."""


def say(text: str) -> None:
    """Print a line on standard output."""
    _out.print(escape(plain(text)), soft_wrap=True)


def show(content: RenderableType) -> None:
    """Print as wide as the terminal is; where there is none, a row or paragraph on one line, however long."""
    for column in content.columns if isinstance(content, Table) else ():
        # Otherwise the end of a long name is cut off in a narrow terminal.
        column.overflow = "fold"
    if _out.file.isatty():
        _out.print(content)
        return
    text = io.StringIO()
    Console(file=text, width=_UNCUT, highlight=False, color_system=None).print(content)
    for line in text.getvalue().splitlines():
        _out.print(line.rstrip(), markup=False, soft_wrap=True)


def print_plan(steps: Sequence[Step], build: Path) -> None:
    """Print a dry run: for each step whether it would run and why, with estimates of time and disk."""
    table = Table("step", "", "why", "time", "disk", box=None, pad_edge=False)
    for step in steps:
        if step.artifact:
            table.add_row(step.name, "[dim]keep[/dim]", "[dim]nothing changed[/dim]", "", "")
        elif not step.made:
            size = f"{step.disk_bytes / 1e6:.0f} MB"
            table.add_row(step.name, "[dim]fetch[/dim]", f"[dim]{escape(step.reason)}[/dim]", "", size)
        else:
            table.add_row(
                step.name,
                "[green]make[/green]",
                escape(step.reason),
                f"~{step.seconds:.0f} s",
                f"~{step.disk_bytes / 1e6:.0f} MB",
            )
    show(table)
    todo = [step for step in steps if step.made]
    seconds, disk = sum(step.seconds for step in todo), sum(step.disk_bytes for step in todo)
    estimate = f"about {seconds / 60:.1f} min of work and {disk / 1e6:.0f} MB, estimated"
    say(f"{len(todo)} of {len(steps)} to make in {build}: {estimate}.")


def print_outcome(folder: Path, steps: Sequence[Step], parities: Mapping[str, Parity]) -> None:
    """Print the verdicts, how much was made, and where the report is."""
    if parities:
        show(_verdicts(parities))
        for name, parity in parities.items():
            if parity.worst and parity.measures:
                score = wording.score(parity.worst[0].score, parity.score)
                say(f"{name}: worst text, {wording.score_name(parity.score)} {score}: {parity.worst[0].short()}")
        for name, parity in parities.items():
            for head, one in parity.heads.items():
                say(f"{name}, head {head}: {wording.of_head(one)}")
        for name, parity in parities.items():
            for reason in parity.reasons:
                # It would read as why a file failed.
                exempt = reason == EXEMPT and parity.verdict == "failed"
                say(f"{name} {'note' if exempt else wording.verdict(parity.verdict)}: {reason}")
            for suggestion in advice(parity):
                say(f"{name} next: {suggestion.sentence}.")
        notes = (f"{one.evaluator}: {one.evaluator_stands_in}" for one in parities.values() if one.evaluator_stands_in)
        for note in dict.fromkeys(notes):
            say(f"Core ML files were run by {note}")
    made = [step for step in steps if step.made]
    say(f"{len(made)} made, {len(steps) - len(made)} kept because nothing changed.")
    if steps and steps[-1].name == "report":
        say(f"report: {folder / 'report' / 'index.html'}")


def _verdicts(parities: Mapping[str, Parity]) -> Table:
    """Return the table of verdicts: what the task's user asks for first, then the closeness of the outputs."""
    table = Table(box=None, pad_edge=False)
    # Every target of a recipe has its task, and so the same measures.
    first = next(iter(parities.values()))
    score = wording.score_name(first.score)
    kept = [title for title in _KEPT if any(_KEPT[title](parity) for parity in parities.values())]
    datasets = list(dict.fromkeys((row.dataset, row.metric) for parity in parities.values() for row in parity.datasets))
    for title in ("target", "verdict"):
        table.add_column(title)
    scores = [f"{metric} on {dataset}" for dataset, metric in datasets]
    for title in ("MB", *scores, *kept, f"mean {score}", f"worst {score}"):
        table.add_column(title, justify="right")
    for name, parity in parities.items():
        found = {(row.dataset, row.metric): f"{row.reference:.4f} → {row.found:.4f}" for row in parity.datasets}
        measures = parity.measures
        values = [measures.mean_score, measures.worst_score] if measures else [None, None]
        table.add_row(
            name,
            _VERDICT[parity.verdict],
            f"{parity.file_bytes / 1e6:.1f}",
            *(found.get(key, wording.GAP) for key in datasets),
            *(_KEPT[title](parity) or wording.GAP for title in kept),
            *((wording.score(value, parity.score) if measures else None) or wording.GAP for value in values),
        )
    return table


def _agreement(parity: Parity) -> str | None:
    """Return how many decisions are the reference's, of a task that decides."""
    agreement = parity.measures.agreement if parity.measures else None
    return None if agreement is None else f"{agreement:.1%}"


def _order(parity: Parity) -> str | None:
    """Return how alike the file orders the texts, of a task whose answer is a number."""
    tau = parity.measures.kendall_tau if parity.measures else None
    return None if tau is None else f"{tau:.3f}"


def _difference(parity: Parity) -> str | None:
    """Return the largest error of a number, beside the range of the reference's numbers."""
    measures = parity.measures
    if measures is None or measures.value_range is None:
        return None
    return f"{measures.max_abs_error * measures.unit:.2g} of {measures.value_range:.3g}"


_KEPT: Mapping[str, Callable[[Parity], str | None]] = {
    "same decision": _agreement,
    "Kendall's τ": _order,
    "largest error of the range": _difference,
}
"""Measures over the verification texts that tell a user more than decibels, by the title of their column."""


def print_answers(answers: Sequence[Answer], *, first: bool = True) -> None:
    """Print a model's answer to each text, with the nearest candidates of an embedding.

    Args:
        answers: of one batch.
        first: whether they are the first of their kind, so that a note on all of them belongs here.
    """
    for answer in answers:
        found = answer.prediction or answer.scores
        assert found is not None
        second = answer.prediction.second if answer.prediction else None
        say(shortened(f"{answer.text}{' | ' + second if second else ''}"))
        if found.truncated:
            say(f"  truncated: only the first {found.tokens} tokens were read, the most that the file takes")
        for line in _answer_lines(answer):
            say(f"  {line}")
    unprompted = next((one.prediction.unprompted for one in answers if one.prediction), ())
    if first and unprompted:
        say(f"{UNPROMPTED} {', '.join(unprompted)}: choose one with --prompt")


def _answer_lines(answer: Answer) -> Iterator[str]:
    if answer.prediction is not None:
        yield from _prediction_lines(answer.prediction)
    for label, share in (answer.scores or {}).items():
        yield f"{share:6.1%}  {shortened(label)}"
    for neighbour in answer.near or ():
        yield f"{neighbour.cosine:6.3f}  {shortened(neighbour.text)}"


def _prediction_lines(prediction: Prediction) -> Iterator[str]:
    """Yield the lines of a prediction: labels, tags, an answer or numbers; none for an embedding."""
    if prediction.scores:
        for label, share in sorted(prediction.scores.items(), key=lambda item: -item[1]):
            yield f"{share:6.1%}  {label}{'  given' if label in (prediction.given or ()) else ''}"
    elif prediction.answer:
        answer = (prediction.second or "")[prediction.answer.start : prediction.answer.end]
        yield f"{shortened(answer)}  (logits {prediction.answer.score:.2f}, {prediction.windows} windows)"
    elif prediction.entities is not None:
        for entity in prediction.entities:
            tagged = shortened(prediction.text[entity.start : entity.end])
            yield f"{entity.score:6.1%}  {entity.kind:16} {tagged}"
        if not prediction.entities:
            yield "nothing tagged"
    elif prediction.values is not None:
        yield from (f"{value:9.4f}  {name}" for name, value in prediction.values.items())
    elif prediction.value is not None:
        yield f"{prediction.value:.4f}"


def print_draft(draft: Draft) -> None:
    """Print the checkpoint's summary, the choices made for it, and the next command."""
    checkpoint = draft.checkpoint
    megabytes = checkpoint.weights_bytes / 1e6
    size = [f"{checkpoint.parameters / 1e6:.1f} M parameters ({', '.join(checkpoint.dtypes)}, {megabytes:.1f} MB)"]
    size += [f"{checkpoint.layers} layers"] if checkpoint.layers else []
    size += [f"hidden size {checkpoint.hidden_size}"] if checkpoint.hidden_size else []
    vocabulary = f", {checkpoint.vocabulary:,} tokens" if checkpoint.vocabulary else ""
    lines = {
        "checkpoint": f"{checkpoint.source} ({checkpoint.licence or 'no licence stated'})",
        "architecture": f"{checkpoint.model_type}, {checkpoint.class_name or 'no class named'}",
        "size": ", ".join(size),
        "tokenizer": f"{checkpoint.tokenizer}{vocabulary}",
        "task": f"{draft.task}: {draft.why}",
        **draft.assumed,
        "lengths": ", ".join(map(str, draft.lengths)),
        "schemes": "; ".join(f"{backend} {', '.join(names)}" for backend, names in draft.schemes.items()),
        "datasets": ", ".join(draft.datasets),
    }
    for title, text in lines.items():
        if text:
            say(f"{title:13}{text}")
    for note in draft.notes:
        say(f"{'note':13}{note}")
    say(f"wrote {draft.file}; next: {draft.next}")


def print_shipped(shipped: Iterable[tuple[ShippedModel, list[Path]]]) -> None:
    """Print each shipped model with the folders that it was copied to."""
    for item, places in shipped:
        say(f"{item.target} ({item.verdict}) → {', '.join(map(str, places))}  {item.bytes / 1e6:.1f} MB")


_COMPAT = {
    "right": "[green]right[/green]",
    "wrong": "[red]WRONG[/red]",
    "refused": "[yellow]refused[/yellow]",
    "crashed": "[red]CRASHED[/red]",
    "not_tried": "[dim]not tried[/dim]",
}


def print_compat(compat: Compat) -> None:
    """Print the verdict of each runtime on each file, and ExecuTorch's promise for its files, which are not run."""
    if compat.rows:
        table = Table(box=None, pad_edge=False)
        for title in ("runtime", ""):
            table.add_column(title)
        for title in ("cosine", "SQNR", "p50 ms", "at"):
            table.add_column(title, justify="right")
        for target in dict.fromkeys(row.target for row in compat.rows):
            table.add_row(f"[bold]{escape(target)}[/bold]")
            for row in (row for row in compat.rows if row.target == target):
                table.add_row(f"  {row.runtime}", _COMPAT[row.verdict.status], *_compat_figures(row.verdict))
        show(table)
        say("cosine: of the worst golden row; SQNR: of all, in dB; p50: one thread, at that many tokens, not judged.")
    for line in dict.fromkeys(filter(None, map(_compat_reason, compat.rows))):
        say(line)
    for line in _compat_notes(compat):
        say(line)


def _compat_notes(compat: Compat) -> Iterator[str]:
    for file in compat.executorch:
        yield f"{file.target}: made with ExecuTorch {file.made_with}; promised on {', '.join(file.promised_on)}."
    yield from dict.fromkeys(f"{file.promise} ({file.policy})." for file in compat.executorch)
    if compat.unfinished:
        yield f"not made yet and left out: {', '.join(compat.unfinished)}."
    if compat.minimum_runtime:
        failed = ", ".join(f"{row.target} {row.verdict.status.replace('_', ' ')}" for row in compat.below_floor)
        kept = "every LiteRT file is right on it" if not failed else f"not proven on it: {failed}"
        yield f"minimum runtime {compat.minimum_runtime}: {kept}."
    if not compat.tried:
        yield "nothing could be tried: no runtime is installed. --install downloads them."


def _compat_reason(row: CompatRow) -> str:
    """Return why a verdict is not `right`; where the runtime is missing, the line is the same for every file."""
    verdict = row.verdict
    if verdict.status == "right":
        return ""
    if verdict.status == "not_tried":
        return f"{row.runtime} not tried: {verdict.reason}."
    return f"{row.target} on {row.runtime} {verdict.status}: {verdict.reason}."


def _compat_figures(verdict: Verdict) -> tuple[str, ...]:
    figures = ((verdict.worst_cosine, ".5f"), (verdict.sqnr_db, ".1f"), (verdict.p50_ms, ".1f"))
    shown = tuple("—" if figure is None else format(figure, spec) for figure, spec in figures)
    return (*shown, "—" if verdict.timed_length is None else str(verdict.timed_length))


def print_pushed(pushed: PushedBundle) -> None:
    """Print the contents of the bundle, and the place to which it was uploaded or would be."""
    for item in pushed.targets:
        say(f"{item.target} ({item.verdict})  {item.bytes / 1e6:.1f} MB")
    for name, reason in pushed.left_out.items():
        say(f"{name} left out: {reason}")
    say(f"bundle: {pushed.folder}, {len(pushed.files)} files, {pushed.bytes / 1e6:.1f} MB; read its README.md first")
    if pushed.commit_url is None:
        say(f"dry run: nothing was uploaded to {pushed.place}; --no-dry-run uploads it in one commit")
    else:
        deleted = f", {len(pushed.deleted)} files of earlier bundles deleted" if pushed.deleted else ""
        say(f"uploaded to {pushed.place}{deleted}: {pushed.commit_url}")


def print_inventory(tables: Mapping[str, Mapping[str, str]]) -> None:
    """Print the tables of `pocketbert list`."""
    for title, rows in tables.items():
        table = Table(title, "", box=None, pad_edge=False, header_style="bold")
        for name, text in rows.items():
            table.add_row(escape(name), escape(text))
        show(table)
        _out.print()


def print_sections(sections: Iterable[SectionKeys]) -> None:
    """Print the purpose of each section of a recipe."""
    table = Table("section", "", box=None, pad_edge=False, header_style="bold")
    for section in sections:
        table.add_row(escape(section.name), escape(section.meaning))
    show(table)


def print_keys(section: SectionKeys) -> None:
    """Print each key of a section with its accepted values, its default and its meaning."""
    show(f"[bold]{escape(f'[{section.name}]')}[/bold] {escape(section.meaning)}")
    for key in section.keys:
        default = "required" if key.default is None else f"default: {key.default}" if key.default else ""
        head = "; ".join(part for part in (key.accepts, default) if part)
        show(f"[bold]{escape(key.name)}[/bold]  [dim]{escape(head)}[/dim]")
        if key.meaning:
            show(Padding(escape(key.meaning), (0, 0, 0, 4)))


def print_recipes(recipes: Iterable[ReadyRecipe]) -> None:
    """Print the ready recipes, a block each."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column()
    for recipe in recipes:
        stages = " → ".join(["train" if stage == "train" else f"[{stage}]" for stage in recipe.stages])
        summary = f"{recipe.task} by {recipe.student}" + (f", {stages}" if stages else "")
        table.add_row(f"[bold]{escape(recipe.name)}[/bold]", escape(f"{summary}, {len(recipe.targets)} targets"))
        for need in recipe.needs:
            table.add_row("", f"[yellow]needs[/yellow] {escape(need)}")
        if recipe.twin:
            table.add_row("", f"without it: {escape(recipe.twin)}, the same with the bundled student")
    show(table)


def print_trial(trial: Trial) -> None:
    """Print the outputs of a Core ML program that was run, and the first value that is not finite."""
    table = Table("shape", "type", "min", "max", "mean", "not finite", box=None, pad_edge=False)
    table.add_column("output")
    for row in trial.rows:
        figures = ("—" if figure is None else f"{figure:.6g}" for figure in (row.min, row.max, row.mean))
        table.add_row(str(row.shape), row.dtype, *figures, str(row.non_finite), escape(row.name))
    show(table)
    for name, value in trial.labels.items():
        say(f"{name}: {value}")
    first = trial.not_finite
    if first:
        say(f"first not finite: {first.kind} {first.name}: {first.infinite} infinite, {first.nan} NaN of {first.size}")
    say(f"function {trial.function}, {trial.precision}, {trial.values} values computed.")


def print_listing(listing: Listing) -> None:
    """Print a package's operations and weights."""
    for function in listing.functions:
        say(f"{function.name} ({function.opset})")
        table = Table(box=None, pad_edge=False, show_header=False)
        for row in function.operations:
            table.add_row(f"  {row.count}", escape(row.kind), row.dtypes)
        show(table)
    table = Table("shape", "type", "stored as", "bytes", "ops", "functions", box=None, pad_edge=False)
    table.add_column("weight")
    for weight in listing.weights:
        counts = (f"{weight.bytes:,}", str(weight.readers), str(weight.functions))
        table.add_row(str(weight.shape), weight.dtype, weight.stored, *counts, escape(weight.name))
    show(table)
    for twice in listing.duplicates:
        say(f"stored {twice.copies} times, {twice.bytes:,} bytes each: {', '.join(twice.names)}")
    total = f"{len(listing.weights)} weights, {listing.weight_bytes:,} bytes"
    say(f"{total}; {listing.duplicate_bytes:,} of them are stored twice.")
