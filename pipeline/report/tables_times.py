"""Tables of times, and of where operations run: this machine, phones, and processors that an emulator plays."""

from collections.abc import Iterable

from pipeline.benchmark.record import Percentiles
from pipeline.report import wording
from pipeline.report.record import LengthSummary, PhoneReport, Report, VariantReport
from pipeline.report.table import Cell, Column, Part, Row, Table, name, number, verdict, words
from pipeline.report.tables_files import label


def _few(found: Percentiles) -> str:
    return f"{found.n} runs are too few: fewer than two lie beyond this percentile"


def _percentile(found: Percentiles, value: float | None, *, small: str = "") -> Cell:
    return number(value, wording.ms(value), _few(found), small=small)


def _of_variant(one: VariantReport) -> Cell:
    small = "reference" if one.reference else wording.verdict("failed") if one.verdict == "failed" else ""
    return name(one.label, small)


def _memory(one: VariantReport) -> Cell:
    return number(one.model_bytes, wording.mb(one.model_bytes), "the system does not tell")


def texts(report: Report) -> Table:
    """Return each variant's times over real texts, a part for each thread count."""
    columns = [
        *(Column("Variant", number=False), Column("Mean", "ms per text"), Column("× PyTorch"), Column("p50")),
        *(Column("p90"), Column("p99"), Column("CPU", "mean ms"), Column("Mean", "with tokenisation")),
        *(Column("Ran at", "tokens, mean"), Column("Load"), Column("First", "inference"), Column("Memory", "MB")),
    ]
    parts = [
        Part([_texts(one) for one in report.with_threads(threads)], wording.threads(threads))
        for threads in report.threads
    ]
    return Table(columns, parts).without_gaps()


def _texts(one: VariantReport) -> Row:
    t = one.texts
    return Row(
        [
            _of_variant(one),
            number(t.mean_ms, wording.ms(t.mean_ms)),
            number(t.speedup, wording.times(t.speedup), "PyTorch was not timed in this run"),
            *(_percentile(t.wall, value) for value in (t.wall.p50, t.wall.p90, t.wall.p99)),
            number(t.mean_cpu_ms, wording.ms(t.mean_cpu_ms), "not measured"),
            number(t.mean_with_tokenisation_ms, wording.ms(t.mean_with_tokenisation_ms)),
            number(t.mean_ran_at, wording.fixed(t.mean_ran_at, 1)),
            number(one.load_ms, wording.ms(one.load_ms)),
            number(one.first_inference_ms, wording.ms(one.first_inference_ms)),
            _memory(one),
        ],
        reference=one.reference,
    )


def full_rows(report: Report) -> Table:
    """Return each variant's p50 at each fixed length, a part for each thread count."""
    columns = [
        Column("Variant", number=False),
        *(Column(f"{length} tokens", "p50 ms, × PyTorch") for length in report.seq_lens),
    ]
    parts = [
        Part(
            [
                Row([_of_variant(one), *_lengths(one.lengths, report.seq_lens)], reference=one.reference)
                for one in report.with_threads(threads)
            ],
            wording.threads(threads),
        )
        for threads in report.threads
    ]
    return Table(columns, parts).without_gaps()


def _lengths(found: Iterable[LengthSummary], lengths: Iterable[int]) -> list[Cell]:
    rows = {row.seq_len: row for row in found}
    return [
        _percentile(row.wall, row.wall.p50, small=wording.times(row.speedup) or "")
        if (row := rows.get(length))
        else Cell(None, why="not measured")
        for length in lengths
    ]


# --- phones ----------------------------------------------------------------------------------------------------------


def phone(found: PhoneReport) -> Table:
    """Return what was measured on one phone."""
    columns = [
        *(Column("File", number=False), Column("Threads"), Column("Units", number=False)),
        *(Column(f"{length} tokens", "p50, p90") for length in found.seq_lens),
        *(Column("Mean", "per text"), Column("p50", "texts"), Column("p90", "texts"), Column("p99", "texts")),
        *(Column("Mean", "with tokenisation"), Column("Runs", "texts"), Column("Load"), Column("First", "inference")),
        *(Column("Memory", "MB"), Column("Warmth", number=False)),
    ]
    return Table(columns, [Part([_on_phone(one, found.seq_lens) for one in found.variants])]).without_gaps()


def _on_phone(one: VariantReport, lengths: list[int]) -> Row:
    t, rows = one.texts, {row.seq_len: row for row in one.lengths}
    warmth = f"{wording.fixed(one.temperature_before_c, 1)} to {wording.fixed(one.temperature_after_c, 1)} °C"
    told = one.temperature_before_c is not None and one.temperature_after_c is not None
    return Row(
        [
            _of_variant(one),
            number(one.threads, f"{one.threads}"),
            words(one.compute_units, "the runtime's default"),
            *(
                _percentile(row.wall, row.wall.p50, small=wording.ms(row.wall.p90) or "")
                if (row := rows.get(length))
                else Cell(None, why="not measured")
                for length in lengths
            ),
            number(t.mean_ms, wording.ms(t.mean_ms)),
            *(_percentile(t.wall, value) for value in (t.wall.p50, t.wall.p90, t.wall.p99)),
            number(t.mean_with_tokenisation_ms, wording.ms(t.mean_with_tokenisation_ms)),
            number(t.wall.n, f"{t.wall.n}"),
            number(one.load_ms, wording.ms(one.load_ms)),
            number(one.first_inference_ms, wording.ms(one.first_inference_ms)),
            _memory(one),
            Cell(
                f"throttled: {one.thermal_after}" if one.throttled else one.thermal_after,
                warmth if told else "",
                why="the phone does not tell",
                badge="failed" if one.throttled else "",
            ),
        ]
    )


def sustained(found: PhoneReport) -> Table:
    """Return a phone's runs without a pause: how much slower it becomes, and the energy."""
    rows = []
    for one in found.variants:
        if one.sustained is None:
            continue
        first, last = one.sustained.parts[0], one.sustained.parts[-1]
        slower = last.p50_ms / first.p50_ms if first.p50_ms and last.p50_ms else None
        if one.energy:
            step = wording.fixed(one.energy.resolution_millijoules, 2)
            energy = Cell(wording.fixed(one.energy.millijoules, 1), f"to {step}", long=True)
        else:
            energy = Cell(f"not measured: {one.energy_absent}", long=True)
        rows.append(
            Row(
                [
                    _of_variant(one),
                    number(one.sustained.seq_len, f"{one.sustained.seq_len}"),
                    number(last.begins_s, wording.fixed((last.begins_s + last.seconds) / 60, 1)),
                    number(0, f"{sum(part.runs for part in one.sustained.parts)}"),
                    *(number(part.p50_ms, wording.ms(part.p50_ms), "too few runs in a part") for part in (first, last)),
                    number(slower, wording.times(slower), "too few runs in a part"),
                    energy,
                ]
            )
        )
    columns = [
        *(Column("Without a pause", number=False), Column("Tokens"), Column("Minutes"), Column("Inferences")),
        *(Column("p50", "first part"), Column("p50", "last part"), Column("Slower by")),
        Column("Energy", "mJ per inference, whole phone", number=False),
    ]
    return Table(columns, [Part(rows)]).without_gaps()


# --- emulated processors ---------------------------------------------------------------------------------------------


def emulated(report: Report) -> Table:
    """Return the verdict on each file on each emulated ARM64 processor."""
    rows = []
    for target in report.targets:
        for row in target.emulated.processors if target.emulated else ():
            bound = target.emulated.bound if target.emulated else None
            rows.append(
                Row(
                    [
                        name(label(None, target)),
                        name(row.cpu, row.has),
                        verdict(row.verdict, reasons=[row.reason] if row.reason else []),
                        number(row.score, wording.score(row.score, report.score), "not scored"),
                        number(bound, wording.score(bound, report.score), "none"),
                    ]
                )
            )
    columns = [
        *(Column("File", number=False), Column("Processor", number=False), Column("Verdict", number=False)),
        *(Column("Worst row" if report.score == "cosine" else "All rows"), Column("Bound")),
    ]
    runtimes = dict.fromkeys(target.emulated.runtime for target in report.targets if target.emulated)
    return Table(columns, [Part(rows)], [f"Run by {'; '.join(runtimes)}."] if rows else []).without_gaps()


def instructions(report: Report) -> Table:
    """Return the instructions of an inference, counted on emulated processors."""
    counted = [
        (label(student, target), counts)
        for student, target in report.files
        if target.instructions
        for counts in target.instructions.counts
    ]
    lengths = sorted({length for _, counts in counted for length in counts.instructions})
    rows = [
        Row(
            [
                name(file, f"{counts.cpu}, pages of {counts.page_size // 1024} KB"),
                *(
                    number(found, wording.in_millions(found), "not counted at this length")
                    for found in (counts.instructions.get(length) for length in lengths)
                ),
                number(counts.spread, f"{wording.fixed(counts.spread * 100, 2)} %"),
            ]
        )
        for file, counts in counted
    ]
    columns = [
        Column("File, emulated processor", number=False),
        *(Column(f"{length} tokens", "million") for length in lengths),
        Column("Runs differ by", "at most"),
    ]
    return Table(columns, [Part(rows)]).without_gaps()


# --- where operations run --------------------------------------------------------------------------------------------


_UNITS = ("Neural Engine", "GPU", "CPU")


def placement(report: Report) -> Table:
    """Return where each file's operations run: here, as the runtime told when it loaded the file, and on each phone."""
    delegates = {one.digest: one.delegate for one in report.variants}
    rows = [
        _placement(label(student, one), "this machine", delegates.get(one.digest), one.parity.ops_delegated,
                   one.parity.ops_total, None)
        for student, one in report.files
    ]  # fmt: skip
    for found in report.phones:
        for variant in found.variants:
            file = ", ".join(filter(None, (variant.label, variant.compute_units)))
            counts = variant.ops_delegated, variant.ops_total, variant.ops_by_unit
            rows.append(_placement(file, found.device, variant.delegate, *counts))
    columns = [
        *(Column("File", number=False), Column("On", number=False), Column("Delegate", number=False)),
        *(Column("Delegated"), Column("All"), Column("Share")),
        *(Column(unit) for unit in _UNITS),
    ]
    return Table(columns, [Part(rows)]).without_gaps()


def _placement(
    file: str, place: str, delegate: str | None, delegated: int | None, total: int | None, units: dict[str, int] | None
) -> Row:
    share = delegated / total if delegated is not None and total else None

    def count(value: int | None, why: str) -> Cell:
        return number(value, None if value is None else f"{value}", why)

    return Row(
        [
            *(name(file), words(place), words(delegate, "none, or not told")),
            count(delegated, "decided by the runtime when it loads the file"),
            count(total, "not counted"),
            number(share, wording.percent(share), "not known"),
            *(count((units or {}).get(unit), "told by Core ML on a phone alone") for unit in _UNITS),
        ]
    )  # fmt: skip


def runs(report: Report) -> Table:
    """Return when and under what load each variant was timed."""
    rows = [
        Row(
            [
                name(one.label),
                number(one.threads, f"{one.threads}"),
                words(one.started_utc),
                words(one.run_id),
                words(one.source),
                number(one.load_average_before, wording.fixed(one.load_average_before, 2), "the system does not tell"),
                number(one.load_average_after, wording.fixed(one.load_average_after, 2), "the system does not tell"),
            ]
        )
        for one in report.variants
    ]
    columns = [
        *(Column("Variant", number=False), Column("Threads"), Column("Started (UTC)", number=False)),
        *(Column("Run", number=False), Column("Where", number=False), Column("Load before"), Column("Load after")),
    ]
    return Table(columns, [Part(rows)]).without_gaps()
