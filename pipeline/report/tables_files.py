"""Tables of the files: what each was held to and what was found, on all texts, by kind of text and by dataset."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.report import wording
from pipeline.report.headline import mean_ms
from pipeline.report.record import Report, TargetReport, VariantReport
from pipeline.report.table import Cell, Column, Part, Row, Table, name, number, verdict, words
from pipeline.verify.record import GateResult, Parity
from pipeline.verify.wording import quantity

_SHORT_TEXT, _LONG_TEXT, _WORST = 60, 120, 3
"""Characters of a text in a row of many columns and in one of few; and how many of the worst texts are shown."""
_SIZE = "max_bytes_per_parameter"
_TASK_DROP = "max_task_drop:"
_UNSCORED = {"not_run": "nothing ran the file", "failed": "no output to score", "passed": "not scored"}


def label(student: str | None, target: TargetReport) -> str:
    """Return what tables and plots call a file."""
    own = f"{target.runtime} {target.scheme}"
    return f"{own}, {student}" if student else own


def simulated(target: TargetReport) -> bool:
    """Return whether a stand-in for the runtime gave the verdict."""
    return target.parity.evaluator_stands_in is not None


# --- every file ------------------------------------------------------------------------------------------------------


def files(report: Report) -> Table:
    """Return a row for each file of each student: every number with its bound, the worst text, and the time."""
    cosine, clock = report.score == "cosine", report.best.clock if report.best else "wall"
    datasets = list(
        dict.fromkeys((row.dataset, row.metric) for _, target in report.files for row in target.parity.datasets)
    )
    columns = [
        Column("File", number=False),
        Column("Verdict", number=False),
        Column("Size", "MB; bytes per parameter"),
        Column("Mean cosine" if cosine else "SQNR"),
        Column(f"Worst {wording.score_name(report.score)}"),
        Column("Worst text", number=False),
        Column("Same decisions"),
        *(Column(dataset, f"{metric}, PyTorch → file; points") for dataset, metric in datasets),
        Column("ms per text", "processor time" if clock == "cpu" else ""),
    ]
    timed = _timed(report)
    parts = [Part([_file(report, target, datasets, timed) for target in report.targets], _own_title(report))]
    for near in report.beside:
        whole = {row.dataset: row for file in near.files for row in file.metrics}
        scores = [
            f"{one.dataset} {wording.fixed(one.unpruned, 4)} → {wording.fixed(one.student, 4)} in PyTorch"
            for one in whole.values()
        ]
        size = f"{wording.millions(near.student.parameters)} parameters"
        rows = [_file(report, file.target, datasets, timed) for file in near.files]
        parts.append(Part(rows, "; ".join([f"{near.recipe}: {near.student.origin}, {size}", *scores])))
    return Table(columns, parts).without_gaps()


def _own_title(report: Report) -> str:
    student = report.student
    return f"{student.origin}, {wording.millions(student.parameters)} parameters" if report.beside else ""


def _timed(report: Report) -> dict[str, tuple[VariantReport, VariantReport | None]]:
    """Return the record of each file at the lowest thread count, with PyTorch's of the same run, by digest."""
    found: dict[str, tuple[VariantReport, VariantReport | None]] = {}
    for one in report.with_threads(report.threads[0]) if report.threads else ():
        references = [other for other in report.variants if other.reference and other.run_id == one.run_id]
        found[one.digest or ""] = one, next(iter(references), None)
    return found


def _file(
    report: Report,
    target: TargetReport,
    datasets: Sequence[tuple[str, str]],
    timed: dict[str, tuple[VariantReport, VariantReport | None]],
) -> Row:
    parity = target.parity
    gates = {gate.name: gate for gate in parity.gates}
    why, measures, kind = _UNSCORED[parity.verdict], parity.measures, parity.score
    if measures is None:
        scores = [Cell(None, why=why)] * 2
        agreement = None
    elif kind == "cosine":
        agreement = None
        scores = [
            _held(measures.mean_score, kind, gates.get("min_mean_cosine")),
            _held(measures.worst_score, kind, gates.get("min_worst_cosine")),
        ]
    else:
        agreement = measures.agreement
        scores = [_held(measures.sqnr_db, kind, gates.get("min_sqnr_db")), _held(measures.worst_score, kind, None)]
    return Row(
        [
            name(f"{target.runtime} {target.scheme}"),
            verdict(parity.verdict, simulated=simulated(target), reasons=parity.reasons),
            _size(target, gates.get(_SIZE)),
            *scores,
            _worst_text(parity, why),
            number(agreement, wording.percent(agreement, 1), why, small=_bound(gates.get("min_agreement"))),
            *(_metric(parity, dataset, gates, why) for dataset, _ in datasets),
            _time(timed.get(target.digest), target, report),
        ]
    )


def _worst_text(parity: Parity, why: str) -> Cell:
    if not parity.worst:
        return Cell(None, why=why)
    worst = parity.worst[0]
    text = worst.text if worst.second is None else f"{worst.text} | {worst.second}"
    # Some have nothing to see but their kind, such as a text of spaces.
    return Cell(wording.cut(text, _SHORT_TEXT), f"{worst.kind}, {worst.tokens} tokens", long=True)


def _held(value: float, kind: str, gate: GateResult | None) -> Cell:
    return number(value, wording.score(value, kind), "not finite", small=_bound(gate))


def _bound(gate: GateResult | None, factor: float = 1.0) -> str:
    """Return a gate's bound, with its sign where that is known; empty for a gate without one."""
    if gate is None or gate.bound is None:
        return ""
    measured = quantity(gate.name, "embedding")
    return (
        f"{'≥' if measured and measured.least else '≤'} {wording.short(gate.bound * factor, 5 if factor == 1.0 else 3)}"
    )


def _size(target: TargetReport, gate: GateResult | None) -> Cell:
    found = gate.found if gate and gate.found is not None else target.bytes_per_parameter
    per_parameter = f"{wording.fixed(found, 2)} {_bound(gate)}".rstrip()
    return number(target.parity.file_bytes, wording.mb(target.parity.file_bytes), small=per_parameter)


def _metric(parity: Parity, dataset: str, gates: dict[str, GateResult], why: str) -> Cell:
    row = next((row for row in parity.datasets if row.dataset == dataset), None)
    if row is None:
        return Cell(None, why=why)
    said = wording.points(row.drop) or ""
    # Both ends of the interval have a bound; the one that is nearer to its own counts.
    held = [gate for key, gate in gates.items() if key.startswith(f"{_TASK_DROP}{dataset}") and gate.found is not None]
    if held:
        nearest = max(held, key=lambda gate: (_share(gate, parity) or 0.0, gate.found or 0.0))
        worst = wording.fixed((nearest.found or 0.0) * 100, 2)
        said = f"{said.removesuffix(' points')}; at worst {worst} {_bound(nearest, 100)}"
    return number(row.found, f"{wording.fixed(row.reference, 4)} → {wording.fixed(row.found, 4)}", small=said)


def _time(found: tuple[VariantReport, VariantReport | None] | None, target: TargetReport, report: Report) -> Cell:
    if found is None:
        absent = "its runtime is not on this machine" if simulated(target) else "the benchmark holds no record of it"
        return Cell(None, why=absent)
    (one, reference), clock = found, report.best.clock if report.best else "wall"
    mean = mean_ms(one, clock)
    speedup = wording.times(mean_ms(reference, clock) / mean) if reference and mean > 0 else None
    return number(mean, wording.ms(mean), "not measured", small=f"{speedup} PyTorch" if speedup else "")


# --- the gates of one file -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileDetails:
    """One file in detail: its gates in one line and in a table, and the texts it does worst on."""

    label: str
    badge: Cell
    line: str
    measured: str
    """What was run, in a sentence."""
    gates: Table
    worst: Table


def details(report: Report) -> list[FileDetails]:
    """Return each file of each student in detail."""
    return [
        FileDetails(
            label=label(student, target),
            badge=verdict(target.parity.verdict, simulated=simulated(target)),
            line=gates_line(target.parity),
            measured=_measured(target.parity),
            gates=_gates(target.parity),
            worst=_worst(target.parity),
        )
        for student, target in report.files
    ]


def gates_line(parity: Parity) -> str:
    """Return how many gates passed, and the one that came closest to its bound; of a failed file those that broke."""
    passed = sum(gate.passed for gate in parity.gates)
    said = f"{passed} of {len(parity.gates)} passed"
    failed = [gate.name for gate in parity.gates if not gate.passed]
    if failed:
        return f"{said}; failed: {', '.join(failed)}"
    if parity.verdict != "passed":
        return f"{said}: all that need no run"
    # A size is known before anything runs, and is close to its bound by design.
    held = [
        (share, gate) for gate in parity.gates if gate.name != _SIZE and (share := _share(gate, parity)) is not None
    ]
    if not held:
        return said
    share, gate = max(held, key=lambda one: one[0])
    measured = quantity(gate.name, parity.output_kind)
    assert measured
    found = (
        measured.of(float(wording.fixed(gate.found, 1) or 0)) if measured.unit == "dB" else wording.short(gate.found)
    )
    least = "at least" if measured.least else "at most"
    bound = measured.of(gate.bound or 0.0)
    return (
        f"{said}; closest to its bound: {measured.name} {found}, {least} {bound} "
        f"({wording.percent(share)} of the allowed error)"
    )


def _share(gate: GateResult, parity: Parity) -> float | None:
    measured = quantity(gate.name, parity.output_kind)
    if measured is None or gate.found is None or gate.bound is None:
        return None
    return measured.share(gate.found, gate.bound)


def _gates(parity: Parity) -> Table:
    rows = []
    for gate in parity.gates:
        measured, share = quantity(gate.name, parity.output_kind), _share(gate, parity)
        rows.append(
            Row(
                [
                    name(gate.name),
                    words(", ".join(filter(None, (measured.name, measured.unit))) if measured else None, "yes or no"),
                    number(gate.found, wording.short(gate.found), "yes or no"),
                    Cell(_bound(gate) or None, why="yes or no"),
                    number(share, wording.percent(share), "yes or no"),
                    verdict("passed" if gate.passed else "failed"),
                    Cell(None if gate.passed else gate.detail or None, long=True),
                ]
            )
        )
    columns = [
        *(Column("Gate", number=False), Column("What it measures", number=False), Column("Found"), Column("Bound")),
        *(Column("Share of it"), Column("Verdict", number=False), Column("What is to blame", number=False)),
    ]
    return Table(columns, [Part(rows)]).without_gaps()


def _measured(parity: Parity) -> str:
    x = parity.measures
    if x is None:
        return "; ".join(parity.reasons) or "Nothing was scored."
    said = [
        f"Run by {parity.evaluator}: {x.rows} texts, {x.padded_rows} of them again with padding, {x.all_pad_rows} rows "
        f"of padding alone, and {x.repeated_rows} runs in fresh sessions."
    ]
    if x.kl is not None:
        said.append(f"Mean Kullback-Leibler divergence {wording.short(x.kl, 3)} nats.")
    for other in parity.other_evaluators:
        said.append(f"{other.evaluator}, {other.rows} runs: SQNR to PyTorch {wording.score(other.sqnr_db, 'sqnr_db')}.")
    for head, one in parity.heads.items():
        said.append(f"Head {head}: {wording.of_head(one)}.")
    return " ".join(said)


def _worst(parity: Parity) -> Table:
    rows = [
        Row(
            [
                number(one.score, wording.score(one.score, parity.score), "not finite"),
                Cell(_pair(one.text, one.second), long=True),
                words(one.kind),
                number(one.tokens, f"{one.tokens}", small=f"at {one.length}"),
            ]
        )
        for one in parity.worst[:_WORST]
    ]
    columns = [
        Column(wording.score_name(parity.score)),
        *(Column("It does worst on", number=False), Column("Kind", number=False), Column("Tokens")),
    ]
    return Table(columns, [Part(rows)]).without_gaps()


def _pair(text: str, second: str | None) -> str:
    first = wording.cut(text, _LONG_TEXT)
    return first if second is None else f"{first} | {wording.cut(second, _LONG_TEXT)}"


# --- all files beside each other -------------------------------------------------------------------------------------


def kinds(report: Report) -> Table:
    """Return the worst and the mean score by kind of text, a column for each file."""
    scored = [(student, target) for student, target in report.files if target.parity.groups]
    found = sorted({kind for _, target in scored for kind in target.parity.groups})
    rows = []
    for kind in found:
        cells = [name(kind)]
        for _, target in scored:
            group = target.parity.groups.get(kind)
            worst, mean = (
                wording.score(value, report.score)
                for value in ((group.worst_score, group.mean_score) if group else (None, None))
            )
            cells.append(number(group.worst_score if group else None, worst, "not scored", small=f"mean {mean}"))
        rows.append(Row(cells))
    columns = [Column("Kind of text", number=False), *(Column(label(*one), "worst") for one in scored)]
    return Table(columns, [Part(rows)])


def metrics(report: Report) -> Table:
    """Return each file's task metrics with their intervals."""
    rows = [
        Row(
            [
                name(label(student, target)),
                *(words(row.dataset), words(row.metric), number(row.rows, f"{row.rows}")),
                number(row.chance, wording.fixed(row.chance, 3)),
                number(row.reference, wording.fixed(row.reference, 4), "not finite"),
                number(row.found, wording.fixed(row.found, 4), "not finite"),
                words(wording.points(row.drop)),
                words(f"{wording.points(row.drop_low)} to {wording.points(row.drop_high)}"),
                number(row.worst_score, wording.score(row.worst_score, target.parity.score), "not finite"),
            ]
        )
        for student, target in report.files
        for row in target.parity.datasets
    ]
    columns = [
        *(Column("File", number=False), Column("Dataset", number=False), Column("Metric", number=False)),
        *(Column("Rows"), Column("Chance"), Column("PyTorch"), Column("File"), Column("Change", number=False)),
        *(Column("95 % interval", number=False), Column(f"Worst {wording.score_name(report.score)}")),
    ]
    return Table(columns, [Part(rows)])


def conversions(report: Report) -> Table:
    """Return how each file was made: its lengths, its oldest runtime, and what the conversion took."""
    rows = [
        Row(
            [
                name(label(student, target)),
                Cell(wording.lengths(target.lengths), long=True),
                words(target.minimum_runtime),
                number(
                    target.conversion.convert_seconds, wording.fixed(target.conversion.convert_seconds, 1), "not told"
                ),
                number(target.conversion.peak_rss_bytes, wording.mb(target.conversion.peak_rss_bytes), "not told"),
                words(target.digest[:16]),
            ]
        )
        for student, target in report.files
    ]
    columns = [
        *(Column("File", number=False), Column("Lengths", "tokens", number=False)),
        *(
            Column("Oldest runtime", number=False),
            Column("Conversion", "s"),
            Column("Peak memory", "MB, all before too"),
        ),
        Column("Content digest", number=False),
    ]
    return Table(columns, [Part(rows)]).without_gaps()


def quantised(report: Report) -> Table:
    """Return the linears of each quantised checkpoint that lose most, with what they read."""
    rows = []
    for one in report.quantised:
        for cost in one.worst:
            read = cost.input
            edges = (read.low, read.high, read.lowest, read.highest) if read else (None,) * 4
            rows.append(
                Row(
                    [
                        name(wording.linear(cost.label), one.scheme),
                        number(cost.error_before, wording.short(cost.error_before, 3), "not written down"),
                        number(cost.error, wording.short(cost.error, 3), "not finite"),
                        number(cost.largest_channel, wording.short(cost.largest_channel, 3), "weights alone"),
                        *(number(edge, wording.short(edge, 3), "each token has its own range") for edge in edges),
                    ]
                )
            )
    columns = [
        *(Column("Linear", number=False), Column("Error before"), Column("Error after")),
        *(Column("Largest channel", "over the median"), Column("int8 covers", "from"), Column("int8 covers", "to")),
        *(Column("Values", "from"), Column("Values", "to")),
    ]
    return Table(columns, [Part(rows)], [_of_checkpoint(report)] if rows else []).without_gaps()


def _of_checkpoint(report: Report) -> str:
    said = []
    for one in report.quantised:
        text = f"{one.scheme}: {one.linears} linears, {one.texts} calibration texts"
        if one.training:
            before, after = (wording.short(x, 3) for x in (one.training.distance_before, one.training.distance))
            text += f"; training took the distance of its outputs to the student's from {before} to {after}"
        said.append(text)
    return f"{'; '.join(said)}."
