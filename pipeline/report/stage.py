"""Report stage: one page that a team can pass round, the same as typed JSON, and tables for a README.

Records are joined by content digest, never by name. `record.py` is what is written down, `page.py` fills the templates
with values spelled by `wording.py` and figures drawn by `plots.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np

from pipeline import formats
from pipeline.artifact import Artifact, Manifest
from pipeline.benchmark.record import HOT, BenchmarkRecord, LengthTiming, TextTiming, mean_of_medians, read_all
from pipeline.benchmark.sustained import energy
from pipeline.devices.host import Machine
from pipeline.errors import ArtifactError
from pipeline.formats import signature
from pipeline.quantize import checkpoint as quantised
from pipeline.quantize import costs
from pipeline.recipe.schema import Recipe
from pipeline.report import measured
from pipeline.report.headline import choose_best, disturbances, ratio, recommend
from pipeline.report.record import (
    Clock,
    Conversion,
    FileBeside,
    LengthSummary,
    PhoneReport,
    QuantisedReport,
    Report,
    StudentBeside,
    StudentInfo,
    StudentMetric,
    TargetReport,
    TextSummary,
    VariantReport,
)
from pipeline.schemes import SCHEMES
from pipeline.verify import record as parity_record
from pipeline.verify.record import Verdict

VERSION = 7
_QUANTILES = 20
_WORST = 5
"""Linears that are shown of a quantised checkpoint."""


FinishedTargets = Mapping[str, tuple[Artifact | None, Artifact | None]]
"""Target name -> model artifact and parity artifact."""
Owners = dict[str, tuple[str | None, TargetReport]]
"""Owner of a file by its content digest: the other student's recipe (None for the report's own) and the target."""


@dataclass(frozen=True)
class RecipeResults:
    """A recipe with its student and its finished targets."""

    recipe: Recipe
    student: Manifest
    targets: FinishedTargets
    texts: Mapping[str, str] = field(default_factory=dict)
    """See `Report.texts`."""
    named: str | None = None
    """The recipe as a command names it; None: by its name."""
    quantised: Mapping[str, Path] = field(default_factory=dict)
    """Folders of the quantised checkpoints that the targets are made of, by scheme."""


def make(
    results: RecipeResults,
    others: Sequence[RecipeResults],
    timings: Path,
    out: Path,
    beside: Mapping[str, Path] | None = None,
) -> dict[str, Any]:
    """Write `index.html`, `report.json` and `RESULTS.md`; equal records give equal bytes.

    Args:
        results: the recipe that was asked for, its student and its finished targets.
        others: those beside it.
        timings: the benchmark artifact's directory.
        out: the artifact's directory.
        beside: measurements that the run does not make, see `measured.find`.

    Returns:
        How many files passed, failed and were not run, and the best of them.

    Raises:
        ArtifactError: a target is not finished, or a record cannot be read.
    """
    # Drawing and templates are imported by the one stage that needs them.
    from pipeline.report import page

    report = collect(results, others, timings, beside)
    files = {
        "report.json": report.model_dump_json(indent=1) + "\n",
        "index.html": page.html(report),
        "RESULTS.md": page.markdown(report),
    }
    for name, text in files.items():
        (out / name).write_bytes(text.encode("utf-8"))
    best = report.best.target if report.best else None
    return {**{str(verdict): count for verdict, count in report.counts.items()}, "best": best}


def collect(
    results: RecipeResults,
    others: Sequence[RecipeResults],
    timings: Path,
    beside: Mapping[str, Path] | None = None,
) -> Report:
    """Read every record and set them side by side.

    Args:
        results: what the report is about; its student is the reference.
        others: students beside it.
        timings: the benchmark artifact's directory.
        beside: measurements that the run does not make, see `measured.find`.

    Raises:
        ArtifactError: a target has no finished artifact, or a record cannot be read.
    """
    records = read_all(timings)
    bare = _targets(results)
    found = measured.read(beside or {}, [target.digest for target in bare])
    targets = [target.model_copy(update={"emulated": found.emulated.get(target.digest)}) for target in bare]
    near = {other.recipe.name: _targets(other) for other in others}
    owners: Owners = {target.digest: (None, target) for target in targets}
    owners |= {target.digest: (name, target) for name, files in near.items() for target in files}
    variants = _variants(records, owners, results.student.digest)
    machines = _machines(records)
    phones = [_phone(device, rows, owners) for device, rows in found.phones.items()]
    least = min((one.threads for one in variants), default=1)
    clock: Clock = "cpu" if disturbances([one for one in variants if one.threads == least], machines) else "wall"
    best, absent = choose_best(targets, variants, clock)
    name = results.recipe.name
    every = [*targets, *(target for files in near.values() for target in files)]
    tools = [results.student.tools, *(target.tools for target in every), *(record.app for record in records)]
    return Report(
        recipe=results.recipe.model_dump(mode="json"),
        student=_student(results),
        score=targets[0].parity.score if targets else "cosine",
        counts={verdict: sum(one.parity.verdict == verdict for one in every) for verdict in get_args(Verdict)},
        best=best,
        best_absent=absent,
        recommendations=recommend(results.named or name, name, targets, variants, phones, clock),
        targets=targets,
        beside=[
            StudentBeside(
                recipe=other.recipe.name,
                student=_student(other),
                files=[_beside(target, targets, variants) for target in near[other.recipe.name]],
            )
            for other in others
        ],
        variants=variants,
        disturbances=disturbances(variants, machines),
        machines=machines,
        phones=phones,
        left_out=found.left_out,
        fronts=found.fronts,
        quantised=[_quantised(scheme, folder) for scheme, folder in results.quantised.items()],
        versions=_versions(tools),
        texts=dict(results.texts),
    )


def _phone(device: str, records: list[BenchmarkRecord], owners: Owners) -> PhoneReport:
    """Return a phone's records, without a reference: the host's times of the student are no reference for a phone."""
    variants = [_variant(record, owners.get(record.model.sha256 or ""), None) for record in records]
    return PhoneReport(device=device, machines=_machines(records), variants=variants)


def _quantised(scheme: str, folder: Path) -> QuantisedReport:
    _, found = quantised.read_record(folder)
    ranked = costs.costs(found)
    return QuantisedReport(
        scheme=scheme,
        texts=found.texts,
        linears=sum(len(cost.paths) for cost in ranked),
        worst=ranked[:_WORST],
        training=found.training,
    )


def _targets(results: RecipeResults) -> list[TargetReport]:
    return [_target(name, model, parity) for name, (model, parity) in results.targets.items()]


def _beside(target: TargetReport, targets: list[TargetReport], variants: list[VariantReport]) -> FileBeside:
    """Set a file of another student against the same target of the report's own."""
    same = next((one for one in targets if one.name == target.name), None)
    mine = _timed(target, variants)
    theirs = _timed(same, variants) if same else None
    together = mine and theirs and mine.run_id == theirs.run_id
    references = {row.dataset: row.reference for one in targets for row in one.parity.datasets}
    return FileBeside(
        target=target,
        own_bytes=same.parity.file_bytes if same else None,
        threads=mine.threads if mine else None,
        mean_ms=mine.texts.mean_ms if mine else None,
        own_mean_ms=theirs.texts.mean_ms if theirs and together else None,
        metrics=[
            StudentMetric(
                dataset=row.dataset,
                metric=row.metric,
                unpruned=references[row.dataset],
                student=row.reference,
                found=row.found,
            )
            for row in target.parity.datasets
            if row.dataset in references
        ],
    )


def _timed(target: TargetReport, variants: list[VariantReport]) -> VariantReport | None:
    """Return a file's times at the lowest thread count."""
    found = [one for one in variants if one.digest == target.digest]
    return min(found, key=lambda one: one.threads, default=None)


def _student(results: RecipeResults) -> StudentInfo:
    recipe, manifest = results.recipe, results.student
    metrics = manifest.metrics
    return StudentInfo(
        name=recipe.student.source,
        origin=manifest.params["origin"],
        licence=manifest.params["licence"],
        digest=manifest.digest,
        task=recipe.task,
        model_type=metrics["model_type"],
        parameters=metrics["parameters"],
        layers=metrics["layers"],
        hidden_size=metrics["hidden_size"],
        random_weights=recipe.student.random_weights,
    )


def _target(name: str, model: Artifact | None, parity: Artifact | None) -> TargetReport:
    if model is None or parity is None:
        missing = "model" if model is None else "parity record"
        raise ArtifactError(f"target {name} has no finished {missing}; make it with `pocketbert run`.")
    verdict = parity_record.read_parity(parity.path)
    claimed = signature.read(model.path)
    return TargetReport(
        name=name,
        file=claimed.file,
        runtime=formats.get(verdict.backend).TITLE,
        scheme=verdict.scheme,
        scheme_summary=SCHEMES[verdict.scheme].summary,
        digest=model.digest,
        bytes_per_parameter=verdict.file_bytes / verdict.parameters,
        lengths=[(function.min_length, function.max_length) for function in claimed.functions],
        minimum_runtime=claimed.minimum_runtime,
        conversion=Conversion.model_validate(model.manifest.metrics),
        parity=verdict,
        tools=model.manifest.tools,
    )


def _variants(records: list[BenchmarkRecord], owners: Owners, student_digest: str) -> list[VariantReport]:
    """Compare each record with the student's own of the same run, since only these two took turns."""
    references = {record.run_id: record for record in records if record.model.sha256 == student_digest}
    return [
        _variant(record, owners.get(record.model.sha256 or ""), references.get(record.run_id)) for record in records
    ]


def _variant(
    record: BenchmarkRecord, owner: tuple[str | None, TargetReport] | None, reference: BenchmarkRecord | None
) -> VariantReport:
    student, target = owner or (None, None)
    timing, used = record.timing, energy(record)
    theirs = {row.seq_len: row for row in reference.timing.lengths} if reference else {}
    return VariantReport(
        id=record.model.id,
        digest=record.model.sha256,
        target=target.name if target else None,
        student=student,
        reference=record is reference,
        verdict=target.parity.verdict if target else None,
        runtime=record.backend.runtime,
        scheme=record.model.scheme,
        delegate=record.backend.delegate,
        threads=record.backend.threads,
        file_bytes=record.model.bytes,
        load_ms=timing.load_ms,
        first_inference_ms=timing.first_inference_ms,
        baseline_bytes=record.memory.baseline_bytes,
        model_bytes=record.memory.model_bytes,
        lengths=[_length(row, theirs.get(row.seq_len)) for row in timing.lengths],
        texts=_texts(timing.texts, reference.timing.texts if reference else None),
        errors=record.errors,
        source=record.source,
        run_id=record.run_id,
        started_utc=record.started_utc,
        clock=timing.clock,
        warmup_runs=timing.warmup_runs,
        busy_before_fraction=record.conditions.busy_before_fraction,
        load_average_before=record.conditions.load_average_before,
        load_average_after=record.conditions.load_average_after,
        compute_units=record.backend.compute_units,
        ops_delegated=record.backend.ops_delegated,
        ops_total=record.backend.ops_total,
        ops_by_unit=record.backend.ops_by_unit,
        memory_kind=record.memory.kind,
        turns=record.turns,
        thermal_after=record.conditions.thermal_after,
        temperature_before_c=record.conditions.temperature_before_c,
        temperature_after_c=record.conditions.temperature_after_c,
        throttled=record.conditions.thermal_after in HOT,
        sustained=timing.sustained,
        energy=None if isinstance(used, str) else used,
        energy_absent=used if isinstance(used, str) else None,
    )


def _length(row: LengthTiming, reference: LengthTiming | None) -> LengthSummary:
    wall = row.wall
    return LengthSummary(
        seq_len=row.seq_len,
        ran_at=row.ran_at,
        wall=wall,
        cpu=row.cpu,
        speedup=ratio(reference.wall.p50 if reference else None, wall.p50),
        quantiles=_quantiles(row.latencies_ms),
    )


def _texts(row: TextTiming, reference: TextTiming | None) -> TextSummary:
    together = [a + b for a, b in zip(row.latencies_ms, row.tokenise_ms, strict=True)]
    return TextSummary(
        texts=row.texts,
        passes=row.passes,
        mean_tokens=sum(row.tokens) / len(row.tokens),
        mean_ran_at=sum(row.ran_at) / len(row.ran_at),
        mean_ms=row.mean_ms_per_text,
        mean_cpu_ms=row.mean_cpu_ms_per_text,
        mean_with_tokenisation_ms=mean_of_medians(together, row.passes),
        wall=row.wall,
        wall_with_tokenisation=row.wall_with_tokenisation,
        speedup=ratio(reference.mean_ms_per_text if reference else None, row.mean_ms_per_text),
        quantiles=_quantiles(row.latencies_ms),
    )


def _quantiles(samples: Sequence[float]) -> list[float]:
    if not samples:
        return []
    found = np.quantile(np.asarray(samples, np.float64), np.linspace(0, 1, _QUANTILES + 1))
    return [round(float(value), 4) for value in found]


def _machines(records: list[BenchmarkRecord]) -> list[Machine]:
    found: list[Machine] = []
    for record in records:
        if record.device not in found:
            found.append(record.device)
    return found


def _versions(tools: list[dict[str, str]]) -> dict[str, list[str]]:
    """Merge the versions in artifacts and records, by distribution."""
    found: dict[str, set[str]] = {}
    for versions in tools:
        for name, version in versions.items():
            found.setdefault(name, set()).add(version)
    return {name: sorted(found[name]) for name in sorted(found)}
