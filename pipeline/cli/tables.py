"""What the command prints; the rest of the package returns values."""

import dataclasses
import json
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from pipeline.cli.inventory import Ready
from pipeline.compat.record import Compat, Verdict
from pipeline.compat.record import Row as CompatRow
from pipeline.convert.model import Prediction
from pipeline.convert.neighbours import Neighbour
from pipeline.graph.executor import Step
from pipeline.mil.listing import Listing
from pipeline.mil.trial import Trial
from pipeline.recipe.init import Draft
from pipeline.recipe.reference import Listed
from pipeline.ship.apps import Shipped
from pipeline.ship.push import Pushed
from pipeline.verify.record import Parity

_out = Console(highlight=False)
_err = Console(stderr=True, highlight=False)
_VERDICT = {"passed": "[green]passed[/green]", "failed": "[red]FAILED[/red]", "not_run": "[yellow]not run[/yellow]"}


_LINE_EVERY_S = 30.0
"""Without a terminal: seconds after which a step under way prints a line, although it is still in the same tenth."""


class Progress:
    """A line for each step, and bars for those under way where the terminal can show them."""

    def __init__(self, *, quiet: bool) -> None:
        """Show nothing if `quiet`; what is shown goes to standard error."""
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
        self._quiet = quiet
        self._bars = Bars(*columns, console=_err, transient=True, disable=quiet or not _err.is_terminal)
        self._tasks: dict[str, TaskID] = {}
        self._lines: dict[str, tuple[int, float]] = {}
        """For each step under way the tenth and the time of its last line, where no terminal shows bars."""
        # Steps run side by side in threads.
        self._lock = threading.Lock()

    def started(self, step: str) -> None:
        """Show a step as under way."""
        with self._lock:
            self._tasks[step] = self._bars.add_task(escape(step), total=None)
            self._lines[step] = (0, time.monotonic())
            if not _err.is_terminal:
                self._say(f"  …    {step}")

    def advanced(self, step: str, what: str, fraction: float) -> None:
        """Show how far a step is; without a terminal, print a line at each tenth of the way and every 30 seconds."""
        with self._lock:
            if step in self._tasks:
                self._bars.update(
                    self._tasks[step], description=escape(f"{step}: {what}"), total=1.0, completed=fraction
                )
            if not _err.is_terminal:
                self._line(step, what, fraction)

    def _line(self, step: str, what: str, fraction: float) -> None:
        now, tenth = time.monotonic(), int(10 * fraction)
        last_tenth, last_time = self._lines.setdefault(step, (0, now))
        if tenth > last_tenth or now - last_time >= _LINE_EVERY_S:
            self._lines[step] = (tenth, now)
            self._say(f"  {100 * fraction:2.0f} %  {escape(step)}: {escape(what)}")

    def finished(self, step: Step) -> None:
        """Turn a step into a line."""
        with self._lock:
            if step.name in self._tasks:
                self._bars.remove_task(self._tasks.pop(step.name))
            self._lines.pop(step.name, None)
            if step.artifact is None:
                return
            if step.made:
                self._say(f"  [green]made[/green] {escape(step.name)}  {step.seconds:.1f} s  {escape(_summary(step))}")
            else:
                self._say(f"  [dim]kept {escape(step.name)}: nothing changed[/dim]")

    def note(self, text: str) -> None:
        """Show a line that is worth reading."""
        with self._lock:
            self._say(f"  [yellow]note[/yellow] {escape(text)}")

    def _say(self, text: str) -> None:
        if not self._quiet:
            self._bars.console.print(text, soft_wrap=True)

    def __enter__(self) -> Self:
        """Start drawing."""
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop drawing, whatever happened."""
        self._bars.stop()


def _summary(step: Step) -> str:
    """Return the one or two figures that a person wants from a finished step."""
    metrics = step.artifact.manifest.metrics if step.artifact else {}
    parts = []
    if "file_bytes" in metrics:
        parts.append(f"{metrics['file_bytes'] / 1e6:.1f} MB")
    if isinstance(metrics.get("zeros"), str):
        parts.append(f"zeros: {metrics['zeros']}")
    if metrics.get("sparsity") is not None:
        parts.append(f"{metrics['sparsity']:.1%} zeros")
    if metrics.get("dev") is not None:
        before = "" if metrics.get("before") is None else f"{metrics['before']:.4f} to "
        where = metrics.get("dataset") or "held-out text"
        parts.append(f"{metrics['metric']} {before}{metrics['dev']:.4f} on {where}")
    if "verdict" in metrics:
        parts.append(str(metrics["verdict"]))
    if metrics.get("mean_score") is not None:
        parts.append(f"mean {metrics['mean_score']:.5f}, worst {metrics['worst_score']:.5f}")
    return ", ".join(parts)


def say(text: str) -> None:
    """Print a line on standard output."""
    _out.print(escape(text), soft_wrap=True)


def print_error(kind: str, message: str, code: int, *, as_json: bool) -> None:
    """Print an error as one line, or as a JSON document on standard output."""
    message = " ".join(message.split())
    if as_json:
        print_json({"error": {"kind": kind, "message": message}, "exit": code})
    else:
        _err.print(f"[red]error:[/red] {escape(message)}", soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a JSON document, unstyled."""
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n")


def document(recipe: str, steps: Iterable[Step], parities: Mapping[str, Parity], code: int) -> dict[str, Any]:
    """Return what `--json` prints for a walk."""
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
    return {"recipe": recipe, "steps": rows, "verdicts": verdicts, "evaluators": evaluators, "exit": code}


def print_plan(steps: Sequence[Step], build: Path) -> None:
    """Print a dry run: stages, what is cached, estimates of time and disk."""
    table = Table("step", "", "why", "time", "disk", box=None, pad_edge=False)
    for step in steps:
        if step.artifact:
            table.add_row(step.name, "[dim]keep[/dim]", "[dim]nothing changed[/dim]", "", "")
        else:
            table.add_row(
                step.name,
                "[green]make[/green]",
                escape(step.reason),
                f"~{step.seconds:.0f} s",
                f"~{step.disk_bytes / 1e6:.0f} MB",
            )
    _out.print(table)
    todo = [step for step in steps if not step.artifact]
    seconds, disk = sum(step.seconds for step in todo), sum(step.disk_bytes for step in todo)
    estimate = f"about {seconds / 60:.1f} min of work and {disk / 1e6:.0f} MB, estimated"
    say(f"{len(todo)} of {len(steps)} to make in {build}: {estimate}.")


def print_outcome(folder: Path, steps: Sequence[Step], parities: Mapping[str, Parity]) -> None:
    """Print verdicts, what was skipped, and where to look."""
    if parities:
        table = Table(box=None, pad_edge=False)
        for title in ("target", "verdict", "MB", "mean", "worst"):
            table.add_column(title, no_wrap=True)
        table.add_column("why")
        for name, parity in parities.items():
            found = parity.measures
            table.add_row(
                name,
                _VERDICT[parity.verdict],
                f"{parity.file_bytes / 1e6:.1f}",
                f"{found.mean_score:.5f}" if found else "—",
                f"{found.worst_score:.5f}" if found else "—",
                escape("; ".join(parity.reasons)),
            )
        _out.print(table)
        notes = (f"{one.evaluator}: {one.evaluator_stands_in}" for one in parities.values() if one.evaluator_stands_in)
        for note in dict.fromkeys(notes):
            say(f"Core ML files were run by {note}")
    made = [step for step in steps if step.made]
    say(f"{len(made)} made, {len(steps) - len(made)} kept because nothing changed.")
    if steps and steps[-1].name == "report":
        say(f"report: {folder / 'report' / 'index.html'}")


def print_predictions(predictions: Sequence[Prediction], near: Sequence[Sequence[Neighbour]] | None) -> None:
    """Print labels or neighbours of each text."""
    for number, prediction in enumerate(predictions):
        say(f"{prediction.text}{' | ' + prediction.second if prediction.second else ''}")
        if prediction.scores:
            for label, share in sorted(prediction.scores.items(), key=lambda item: -item[1]):
                say(f"  {share:6.1%}  {label}")
        elif prediction.answer:
            answer = (prediction.second or "")[prediction.answer.start : prediction.answer.end]
            say(f"  {answer}  (logits {prediction.answer.score:.2f}, {prediction.windows} windows)")
        elif prediction.entities is not None:
            for entity in prediction.entities:
                say(f"  {entity.score:6.1%}  {entity.kind:16} {prediction.text[entity.start : entity.end]}")
            if not prediction.entities:
                say("  nothing tagged")
        elif prediction.vector.size == 1:
            say(f"  {float(prediction.vector[0]):.4f}")
        for neighbour in near[number] if near else ():
            say(f"  {neighbour.cosine:6.3f}  {neighbour.text}")


def prediction_document(
    predictions: Sequence[Prediction], near: Sequence[Sequence[Neighbour]] | None
) -> dict[str, Any]:
    """Return what `--json` prints for predictions."""
    rows = []
    for number, prediction in enumerate(predictions):
        row: dict[str, Any] = {"text": prediction.text, "second": prediction.second, "tokens": prediction.tokens}
        row |= {"length": prediction.length, "vector": prediction.vector.tolist()}
        if prediction.scores:
            row["labels"] = prediction.scores
        if prediction.entities is not None:
            row["entities"] = [dataclasses.asdict(entity) for entity in prediction.entities]
        if prediction.answer:
            row |= {"answer": dataclasses.asdict(prediction.answer), "windows": prediction.windows}
        if near:
            row["neighbours"] = [{"text": item.text, "cosine": item.cosine} for item in near[number]]
        rows.append(row)
    return {"predictions": rows, "exit": 0}


def print_draft(draft: Draft) -> None:
    """Print what was found in a checkpoint, what was chosen for it, and what to do next."""
    found = draft.found
    size = [
        f"{found.parameters / 1e6:.1f} M parameters ({', '.join(found.dtypes)}, {found.weights_bytes / 1e6:.1f} MB)"
    ]
    size += [f"{found.layers} layers"] if found.layers else []
    size += [f"{found.hidden_size} wide"] if found.hidden_size else []
    vocabulary = f", {found.vocabulary:,} tokens" if found.vocabulary else ""
    schemes = "; ".join(f"{backend} {', '.join(names)}" for backend, names in draft.schemes.items())
    rows = {
        "checkpoint": f"{found.source} ({found.licence or 'no licence stated'})",
        "architecture": f"{found.model_type}, {found.class_name or 'no class named'}",
        "size": ", ".join(size),
        "tokenizer": f"{found.tokenizer}{vocabulary}",
        "task": f"{draft.task}: {draft.why}",
        "labels": ", ".join(found.labels[:8]) + (" …" if len(found.labels) > 8 else ""),
        "limit": f"{found.max_length} tokens; lengths {', '.join(map(str, draft.lengths))}",
        "schemes": schemes,
        "data": ", ".join(draft.datasets),
    }
    for title, text in rows.items():
        if text:
            say(f"{title:13}{text}")
    for note in draft.notes:
        say(f"{'note':13}{note}")
    say(f"wrote {draft.file}; next: {draft.next}")


def print_shipped(shipped: Iterable[Shipped]) -> None:
    """Print where models went."""
    for item in shipped:
        say(f"{item.target} ({item.verdict}) → {item.place}  {item.bytes / 1e6:.1f} MB")


_COMPAT = {
    "right": "[green]right[/green]",
    "wrong": "[red]WRONG[/red]",
    "refused": "[yellow]refused[/yellow]",
    "crashed": "[red]CRASHED[/red]",
    "not_tried": "[dim]not tried[/dim]",
}


def print_compat(found: Compat) -> None:
    """Print what each runtime makes of each file, and what is promised for the files that were not run."""
    if found.rows:
        table = Table(box=None, pad_edge=False)
        for title in ("runtime", ""):
            table.add_column(title, no_wrap=True)
        for title in ("cosine", "SQNR", "p50 ms", "at"):
            table.add_column(title, justify="right", no_wrap=True)
        for target in dict.fromkeys(row.target for row in found.rows):
            table.add_row(f"[bold]{escape(target)}[/bold]")
            for row in (row for row in found.rows if row.target == target):
                table.add_row(f"  {row.runtime}", _COMPAT[row.verdict.status], *_compat_figures(row.verdict))
        _out.print(table)
        say("cosine: of the worst golden row; SQNR: of all, in dB; p50: one thread, at that many tokens, not judged.")
    for line in dict.fromkeys(map(_compat_reason, found.rows)):
        if line:
            say(line)
    for file in found.executorch:
        say(f"{file.target}: made with ExecuTorch {file.made_with}; promised on {', '.join(file.promised_on)}.")
    for promise in dict.fromkeys(f"{file.promise} ({file.policy})." for file in found.executorch):
        say(promise)
    if found.unfinished:
        say(f"not made yet, and left out: {', '.join(found.unfinished)}.")
    if found.minimum_runtime:
        failed = ", ".join(f"{row.target} {row.verdict.status.replace('_', ' ')}" for row in found.below_floor)
        kept = "every LiteRT file is right on it" if not failed else f"not proven on it: {failed}"
        say(f"minimum runtime {found.minimum_runtime}: {kept}.")
    if not found.tried:
        say("nothing could be tried: no runtime is there. --install downloads them.")


def _compat_reason(row: CompatRow) -> str:
    """Return why a runtime's verdict is not `right`; the same for every file where nothing could be tried."""
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


def print_pushed(pushed: Pushed) -> None:
    """Print what is in a bundle and where it went or would go."""
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


def print_inventory(found: Mapping[str, Mapping[str, str]]) -> None:
    """Print the tables of `list`."""
    for title, rows in found.items():
        table = Table(title, "", box=None, pad_edge=False, header_style="bold")
        for name, text in rows.items():
            table.add_row(escape(name), escape(text))
        _out.print(table)
        _out.print()


def print_keys(found: Sequence[Listed], *, whole: bool) -> None:
    """Print sections: each key of them, or only what each is for."""
    if not whole:
        table = Table("section", "", box=None, pad_edge=False, header_style="bold")
        for one in found:
            table.add_row(escape(one.name), escape(one.said))
        _out.print(table)
        return
    for one in found:
        _out.print(f"[bold]{escape(f'[{one.name}]')}[/bold] {escape(one.said)}")
        for key in one.keys:
            default = "needed" if key.default is None else f"unless given: {key.default}" if key.default else ""
            head = "; ".join(part for part in (key.values, default) if part)
            _out.print(f"[bold]{escape(key.name)}[/bold]  [dim]{escape(head)}[/dim]")
            if key.said:
                _out.print(Padding(escape(key.said), (0, 0, 0, 4)))


def print_recipes(rows: Iterable[Ready]) -> None:
    """Print the ready recipes, a block each."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for row in rows:
        made = " → ".join(["train" if stage == "train" else f"[{stage}]" for stage in row.stages])
        facts = f"{row.task} by {row.student}" + (f", {made}" if made else "") + f", {len(row.targets)} targets"
        table.add_row(f"[bold]{escape(row.name)}[/bold]", escape(facts))
        for need in row.needs:
            table.add_row("", f"[yellow]needs[/yellow] {escape(need)}")
        if row.twin:
            table.add_row("", f"the same with what is here: {escape(row.twin)}")
    _out.print(table)


def print_trial(trial: Trial) -> None:
    """Print the outputs of a program that was run, and where it first left the finite numbers."""
    table = Table("shape", "type", "min", "max", "mean", "not finite", box=None, pad_edge=False)
    table.add_column("output", overflow="fold")
    for row in trial.rows:
        figures = ("—" if figure is None else f"{figure:.6g}" for figure in (row.min, row.max, row.mean))
        table.add_row(str(row.shape), row.dtype, *figures, str(row.non_finite), escape(row.name))
    _out.print(table)
    for name, value in trial.labels.items():
        say(f"{name}: {value}")
    bad = trial.not_finite
    if bad:
        say(f"first not finite: {bad.kind} {bad.name}: {bad.infinite} infinite, {bad.nan} NaN of {bad.size}")
    say(f"function {trial.function}, {trial.precision}, {trial.values} values computed.")


def trial_document(trial: Trial) -> dict[str, Any]:
    """Return what `--json` prints for a program that was run."""
    document = dataclasses.asdict(trial)
    # Arrays are for --outputs.
    del document["outputs"], document["rows"]
    return document | {"outputs": [dataclasses.asdict(row) for row in trial.rows], "exit": 0}


def listing_document(listing: Listing) -> dict[str, Any]:
    """Return what `--json` prints for a package's content."""
    totals = {"weight_bytes": listing.weight_bytes, "duplicate_bytes": listing.duplicate_bytes}
    return dataclasses.asdict(listing) | totals | {"exit": 0}


def print_listing(listing: Listing) -> None:
    """Print a package's operations and weights."""
    for function in listing.functions:
        say(f"{function.name} ({function.opset})")
        table = Table(box=None, pad_edge=False, show_header=False)
        for row in function.operations:
            table.add_row(f"  {row.count}", escape(row.kind), row.dtypes)
        _out.print(table)
    table = Table("shape", "seen as", "stored as", "bytes", "ops", "functions", box=None, pad_edge=False)
    table.add_column("weight", overflow="fold")
    for weight in listing.weights:
        counts = (f"{weight.bytes:,}", str(weight.readers), str(weight.functions))
        table.add_row(str(weight.shape), weight.dtype, weight.stored, *counts, escape(weight.name))
    _out.print(table)
    for twice in listing.duplicates:
        say(f"stored {twice.copies} times, {twice.bytes:,} bytes each: {', '.join(twice.names)}")
    total = f"{len(listing.weights)} weights, {listing.weight_bytes:,} bytes"
    say(f"{total}; {listing.duplicate_bytes:,} of them are stored twice.")
