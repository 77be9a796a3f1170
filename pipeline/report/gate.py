"""The gate for a user's CI: compare a report with a stored baseline, each figure with the recipe's allowed change.

Nothing is run and no file is read here. A figure of the baseline that cannot be compared is `missing`, and fails the
gate unless `allow_missing` is set. Times of two separate runs are shown and never judged; only times that
`pipeline.benchmark.in_turns` measures are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from pipeline.benchmark.in_turns import InTurns
from pipeline.recipe.schema import RegressionSection
from pipeline.report import wording
from pipeline.report.record import VERIFICATION, Report, TargetReport, VariantReport
from pipeline.verify.emulated import Counts
from pipeline.verify.record import Parity, TaskScore

Verdict = Literal["worse", "missing", "same", "better", "not_judged", "new"]
Unit = Literal["verdict", "metric", "cosine", "dB", "bytes", "instructions", "ms"]
_ENOUGH_DB = 90.0
"""SQNR above which differences are rounding of single precision; higher values count as this one."""
_ROUNDING = 1e-9
"""Tolerance for rounding, so that a loss equal to the allowed one passes."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Row(_Frozen):
    """One figure of one target, in the baseline and now."""

    target: str
    quantity: str
    unit: Unit
    baseline: float | str | None = None
    now: float | str | None = None
    change: float | None = None
    """For metrics and scores, the present value minus the baseline; for other units, the growth as a fraction."""
    interval: tuple[float, float] | None = None
    """The 95 % interval of the change; only latency has one."""
    allowed: float | None = None
    """Largest allowed loss or growth, never negative; None for a row that is not judged."""
    verdict: Verdict
    reason: str | None = None
    """The reason why the row is missing, new or not judged, or a remark."""


class Gate(_Frozen):
    """The comparison of a report with a stored one."""

    schema_version: Literal[1] = 1
    recipe: str
    passed: bool
    allow_missing: bool
    """Whether figures that cannot be compared pass."""
    counts: dict[Verdict, int]
    rows: list[Row]
    notes: list[str]
    """Remarks on several rows."""


@dataclass(frozen=True)
class Untimed:
    """The reason why a target's two files were not timed in turns."""

    reason: str
    missing: bool
    """Whether the reason is that the baseline's file is absent."""


Timings = Mapping[str, Sequence[InTurns] | Untimed]
"""Timings in turns by target, for the targets of both baseline and recipe whose file has changed."""


def compare(
    baseline: Report, now: Report, allowed: RegressionSection, *, timings: Timings | None, allow_missing: bool
) -> Gate:
    """Compare a report with a stored one of the same recipe, task and student.

    Args:
        baseline: the stored report.
        now: the one that is judged.
        allowed: how much worse each figure may be.
        timings: times of both reports' files, measured in turns; None if the baseline's files are absent.
        allow_missing: whether figures that cannot be compared pass.
    """
    present = {target.name: target for target in now.targets}
    rows: list[Row] = []
    for before in baseline.targets:
        after = present.get(before.name)
        if after is None:
            reason = (
                "the recipe has no such target any more; take the report of a new run as the baseline if it is meant"
            )
            rows.append(_verdict(before.name, before.parity.verdict, None, "worse", reason))
        else:
            pair = _Pair(before, after, baseline, now, allowed)
            rows += [pair.judged(), *pair.metrics(), *pair.scores(), pair.size(), *pair.instructions()]
            rows += pair.latency_alone() if timings is None else pair.latency(timings)
    known = {target.name for target in baseline.targets}
    rows += [_arrived(target) for target in now.targets if target.name not in known]
    counts: dict[Verdict, int] = dict.fromkeys(("worse", "missing", "same", "better", "not_judged", "new"), 0)
    for row in rows:
        counts[row.verdict] += 1
    return Gate(
        recipe=now.recipe["name"],
        passed=not counts["worse"] and (allow_missing or not counts["missing"]),
        allow_missing=allow_missing,
        counts=counts,
        rows=rows,
        notes=list(_notes(baseline, now)),
    )


def _arrived(target: TargetReport) -> Row:
    """Return the row of a target that the baseline lacks; a file that failed its verification is worse."""
    reason = _why(target.parity) or "the baseline has no such target"
    verdict: Verdict = "worse" if target.parity.verdict == "failed" else "new"
    return _verdict(target.name, None, target.parity.verdict, verdict, reason)


def _verdict(target: str, then: str | None, here: str | None, verdict: Verdict, reason: str | None) -> Row:
    return Row(
        target=target, quantity="verdict", unit="verdict", baseline=then, now=here, verdict=verdict, reason=reason
    )


def _why(parity: Parity) -> str | None:
    return "; ".join(parity.reasons) or None if parity.verdict != "passed" else None


def _notes(baseline: Report, now: Report) -> Iterator[str]:
    """Yield the notes that concern more than one target."""
    if baseline.student.digest != now.student.digest:
        yield "the student is not the baseline's: weights, tokenizer or config are others, or what it was read with."
    if not baseline.texts:
        yield (
            "the baseline is of an earlier version and does not tell which texts it is of; they were compared by their "
            "number."
        )
    skipped = {
        name: reason
        for target in now.targets
        for name, reason in target.parity.datasets_skipped.items()
        if any(name in one.parity.datasets_skipped for one in baseline.targets)
    }
    for name, reason in skipped.items():
        yield f"dataset {name} was scored neither in the baseline nor now: {reason}."
    for said in now.left_out:
        yield f"left out of the report: {said}."
    if now.beside or baseline.beside:
        names = dict.fromkeys(one.recipe for one in (*baseline.beside, *now.beside))
        yield f"students beside it are judged by gates of their own recipes: {', '.join(names)}."


@dataclass(frozen=True)
class _Pair:
    """One target in both reports."""

    before: TargetReport
    after: TargetReport
    baseline: Report
    now: Report
    allowed: RegressionSection

    # --- the verdict ------------------------------------------------------------------------------------------------

    def judged(self) -> Row:
        """Compare the parity verdicts; a file that fails now is worse, even if it failed in the baseline as well."""
        then, here = self.before.parity.verdict, self.after.parity.verdict
        reason = _why(self.after.parity)
        if here == "failed":
            also = " (it failed in the baseline as well, and no gate lets a failed file through)"
            return _verdict(self.before.name, then, here, "worse", f"{reason}{also if then == 'failed' else ''}")
        if here == "not_run" and then != "not_run":
            return _verdict(self.before.name, then, here, "missing", reason or "nothing could run the file")
        return _verdict(self.before.name, then, here, "same" if then == here else "better", reason)

    # --- metrics and scores -----------------------------------------------------------------------------------------

    def metrics(self) -> Iterator[Row]:
        """Compare the task metric of each dataset."""
        found = {row.dataset: row for row in self.after.parity.datasets}
        for theirs in self.before.parity.datasets:
            ours = found.pop(theirs.dataset, None)
            quantity = f"{theirs.metric} on {theirs.dataset}"
            skipped = self.after.parity.datasets_skipped.get(theirs.dataset)
            if ours is None:
                reason = f"scored in the baseline and not now: {skipped or _why(self.after.parity) or 'it is left out'}"
                yield self._row(quantity, "metric", theirs.found, None, "missing", reason)
            elif other := self._other_data(theirs, ours):
                yield self._row(quantity, "metric", theirs.found, ours.found, "missing", other)
            elif self.baseline.student.random_weights and self.now.student.random_weights:
                reason = "the weights are declared random, so the metric means nothing"
                yield self._row(quantity, "metric", theirs.found, ours.found, "not_judged", reason)
            else:
                yield self._drop(quantity, "metric", theirs.found, ours.found, self.allowed.max_metric_drop)
        for row in found.values():
            reason = "not scored in the baseline"
            yield self._row(f"{row.metric} on {row.dataset}", "metric", None, row.found, "new", reason)

    def _other_data(self, theirs: TaskScore, ours: TaskScore) -> str | None:
        """Return the reason why two scores of one dataset cannot be compared, or None."""
        if theirs.metric != ours.metric:
            return f"cannot be compared: the metric is {ours.metric} now"
        if theirs.rows != ours.rows:
            return f"cannot be compared: {theirs.rows} rows in the baseline, {ours.rows} now"
        return self._other_texts(theirs.dataset)

    def _other_texts(self, name: str) -> str | None:
        then, here = self.baseline.texts.get(name), self.now.texts.get(name)
        if then is None or then == here:
            return None
        return (
            f"cannot be compared: the texts are others (digest {then[:8]} in the baseline, {(here or 'none')[:8]} now)"
        )

    def scores(self) -> Iterator[Row]:
        """Compare the scores of the outputs against PyTorch."""
        then, here = self.before.parity.measures, self.after.parity.measures
        if then is None:
            return
        kind: Unit = "cosine" if self.before.parity.score == "cosine" else "dB"
        name, most = (
            ("cosine", self.allowed.max_cosine_drop) if kind == "cosine" else ("SQNR", self.allowed.max_sqnr_drop_db)
        )
        figures: list[tuple[str, Unit, float, float | None, float]] = [
            (f"mean {name}", kind, then.mean_score, here.mean_score if here else None, most),
            (f"worst {name}", kind, then.worst_score, here.worst_score if here else None, most),
            ("SQNR of all rows", "dB", then.sqnr_db, here.sqnr_db if here else None, self.allowed.max_sqnr_drop_db),
        ]
        other = self._other_texts(VERIFICATION)
        if here is not None and then.rows != here.rows:
            other = f"cannot be compared: {then.rows} verification rows in the baseline, {here.rows} now"
        for quantity, unit, theirs, ours, bound in figures:
            if ours is None or other:
                reason = other or f"measured in the baseline and not now: {_why(self.after.parity) or 'nothing ran'}"
                yield self._row(quantity, unit, theirs, ours, "missing", reason)
            else:
                yield self._drop(quantity, unit, theirs, ours, bound)

    def _drop(self, quantity: str, unit: Unit, then: float, here: float, allowed: float) -> Row:
        cut = _ENOUGH_DB if unit == "dB" else float("inf")
        loss = min(then, cut) - min(here, cut)
        row = self._row(quantity, unit, then, here, _judge(loss, allowed), self._runners())
        # Not `-loss`, which is minus zero where nothing changed.
        return row.model_copy(update={"change": 0.0 - loss, "allowed": allowed})

    def _runners(self) -> str | None:
        """Return a remark if the file ran in another runtime or version than the baseline's; else None."""
        then, here = self.before.parity.evaluator, self.after.parity.evaluator
        return None if then == here else f"run by {then} in the baseline, by {here} now"

    # --- size and instructions --------------------------------------------------------------------------------------

    def size(self) -> Row:
        """Compare the files' sizes."""
        return self._growth(
            "size", "bytes", self.before.parity.file_bytes, self.after.parity.file_bytes, self.allowed.max_size_growth
        )

    def instructions(self) -> Iterator[Row]:
        """Compare counts on each emulated processor at each length."""
        then, here = self.before.instructions, self.after.instructions
        if then is None:
            if here is not None:
                yield self._row("instructions", "instructions", None, None, "new", "not counted in the baseline")
            return
        ours = {one.cpu: one for one in here.counts} if here else {}
        two_runtimes = here and here.runtime != then.runtime
        reason = f"counted by {then.runtime} in the baseline, by {here.runtime} now" if here and two_runtimes else None
        for counts in then.counts:
            found = ours.get(counts.cpu)
            for length, number in counts.instructions.items():
                quantity = f"instructions, {counts.cpu}, {length} tokens"
                ran_at = self._ran_at(length, found)
                count = found.instructions.get(ran_at) if found and ran_at else None
                if found is None or count is None:
                    todo = f"not counted of this file; `pocketbert arm64 {self.now.recipe['name']}` counts them"
                    why = todo if ran_at else "the file takes no row of so many tokens any more"
                    yield self._row(quantity, "instructions", number, None, "missing", why)
                elif found.page_size != counts.page_size:
                    pages = f"pages of {counts.page_size >> 10} KB in the baseline, of {found.page_size >> 10} KB now"
                    yield self._row(quantity, "instructions", number, count, "missing", f"cannot be compared: {pages}")
                else:
                    row = self._growth(quantity, "instructions", number, count, self.allowed.max_instruction_growth)
                    padded = f"such a row runs at {ran_at} tokens now" if ran_at != length else None
                    yield row.model_copy(update={"reason": "; ".join(filter(None, (padded, reason))) or None})

    def _ran_at(self, length: int, counts: Counts | None) -> int | None:
        """Return the length at which the new file runs a row of `length` tokens; None if it takes no such row."""
        if counts and length in counts.instructions:
            return length
        # A function that takes a range of lengths runs the row as it is.
        fitting = ((least, most) for least, most in self.after.lengths if most >= length)
        return min((most if least == most else max(least, length) for least, most in fitting), default=None)

    def _growth(self, quantity: str, unit: Unit, then: float, here: float, allowed: float) -> Row:
        growth = here / then - 1 if then else float(here > 0)
        row = self._row(quantity, unit, then, here, _judge(growth, allowed), None)
        return row.model_copy(update={"change": growth, "allowed": allowed})

    # --- latency ----------------------------------------------------------------------------------------------------

    def latency_alone(self) -> Iterator[Row]:
        """Yield the latencies of both reports, not judged, since they were measured in two runs."""
        then, here = (_timed(report, self.before.name) for report in (self.baseline, self.now))
        either = then or here
        if either is None:
            return
        reason = "timed in two runs, which cannot be compared; --baseline-models has both files timed in turns"
        if self.before.digest == self.after.digest:
            reason = "the file is the same, so what differs is the machine and what else it did"
        figures = (then.texts.mean_ms if then else None, here.texts.mean_ms if here else None)
        quantity = f"latency per text, {wording.threads(either.threads)}"
        yield self._row(quantity, "ms", *figures, "not_judged", reason)

    def latency(self, timings: Timings) -> Iterator[Row]:
        """Judge files that were timed in turns: worse if the whole interval lies beyond the allowed growth."""
        if self.before.digest == self.after.digest:
            yield self._row("latency", "ms", None, None, "same", "the file is the same, byte for byte")
            return
        found = timings[self.before.name]
        if isinstance(found, Untimed):
            yield self._row("latency", "ms", None, None, "missing" if found.missing else "not_judged", found.reason)
            return
        for one in found:
            verdict, reason = _judge_interval(one, self.allowed.max_latency_growth)
            row = self._row(f"latency, {one.seq_len} tokens", "ms", one.before_ms, one.now_ms, verdict, reason)
            growth = one.growth
            update = {"change": growth.value - 1, "interval": (growth.low - 1, growth.high - 1)}
            yield row.model_copy(update={**update, "allowed": self.allowed.max_latency_growth})

    def _row(
        self, quantity: str, unit: Unit, then: float | None, here: float | None, verdict: Verdict, reason: str | None
    ) -> Row:
        return Row(
            target=self.before.name,
            quantity=quantity,
            unit=unit,
            baseline=then,
            now=here,
            verdict=verdict,
            reason=reason,
        )


def _judge(loss: float, allowed: float) -> Verdict:
    """Judge a loss or growth; NaN counts as worse."""
    if not loss <= allowed + _ROUNDING:
        return "worse"
    return "better" if loss < -allowed - _ROUNDING else "same"


def _judge_interval(one: InTurns, allowed: float) -> tuple[Verdict, str | None]:
    """Judge two files timed in turns."""
    growth, most = one.growth, 1 + allowed
    if growth.low > most:
        return "worse", None
    if growth.high < 1 / most:
        return "better", None
    if not growth.high <= most:
        return "not_judged", "the interval reaches beyond what is allowed and below it; more `benchmark.rounds` decide"
    return "same", None


def _timed(report: Report, target: str) -> VariantReport | None:
    """Return a target's times with the fewest threads."""
    found = [one for one in report.own if one.target == target]
    return min(found, key=lambda one: one.threads, default=None)
