"""The record of a student's file in a scheme, one JSON a file, and when it counts.

A record is of this code, or of older code with the same recipe, which the page marks; one of another recipe is stale.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from safetensors import safe_open

from benchmarks import records
from benchmarks.records import State, Strict
from pipeline import artifact, formats
from pipeline.artifact import digest_of
from pipeline.checkpoint.weights import WEIGHTS
from pipeline.convert import stage as convert
from pipeline.convert.stage import Target
from pipeline.quantize import stage as quantize
from pipeline.report.record import Report
from pipeline.student import reference
from pipeline.student import stage as student_stage
from pipeline.verify import stage as verify
from pipeline.verify.record import Parity
from pipeline.verify.retrieval import ALL
from pipeline.verify.stage import Verdict

RECIPES = Path(__file__).parent / "schemes"
RECORDS = records.RESULTS / "schemes"
LENGTH = 128
"""Tokens of the rows that are timed."""
_TIMES = "times.json"


class FileRecord(Strict):
    """One file of one student."""

    schema_version: Literal[1] = 1
    student: str
    """Name of its recipe."""
    origin: str
    backend: str
    scheme: str
    recipe: str
    """Digest of the recipe, see `asked`."""
    code: dict[str, int]
    """Version of each stage that made or judged it."""
    model: str | None
    """Digest of the file's artifact; None of one whose figures were only on the page."""
    file_bytes: int
    mean_cosine: float | None
    worst_cosine: float | None
    spearman: float | None
    recall_at_1: tuple[float, float, float] | None
    """With the 95 % interval of its difference to fp32 PyTorch."""
    recall_at_10_kept: float | None
    integers: float
    """Share of the linears' multiply-adds whose both factors are integers."""
    verdict: Verdict


class Times(Strict):
    """One run in which files took turns: medians of full rows on one thread, by the digest of the file's artifact."""

    schema_version: Literal[1] = 1
    machine: str
    milliseconds: dict[str, float]


# --- what counts -------------------------------------------------------------------------------------------------


def asked(student: str) -> str:
    """Return the digest of what a recipe asks for, but for the list of targets and the collections of search."""
    values: dict[str, Any] = tomllib.loads((RECIPES / f"{student}.toml").read_text(encoding="utf-8"))
    policy = values.get("quantize", {}).get("policy")
    kept = {name: value for name, value in values.items() if name not in ("targets", "benchmark", "beside")}
    kept["verify"] = {"datasets": values["verify"]["datasets"]}
    return digest_of([kept, (RECIPES / policy).read_text(encoding="utf-8") if policy else None])


def code(backend: str) -> dict[str, int]:
    """Return the versions of the stages that make and judge a format's files."""
    return {
        "student": student_stage.VERSION,
        "reference": reference.VERSION,
        "quantize": quantize.VERSION,
        "convert": convert.VERSION,
        backend: formats.get(backend).VERSION,
        "verify": verify.VERSION,
    }


def read(student: str, target: Target) -> tuple[FileRecord | None, State]:
    """Return a file's record with its state, or None where there is none or it is of another recipe.

    Raises:
        ArtifactError: it cannot be read.
    """
    found = records.read(FileRecord, _place(student, target))
    if found is None:
        return None, "not run"
    if found.recipe != asked(student):
        return None, "stale"
    return found, "there" if found.code == code(target.backend) else "older"


def times() -> Times | None:
    """Return the run that was timed last, if there is one."""
    return records.read(Times, RECORDS / _TIMES)


def _place(student: str, target: Target) -> Path:
    return RECORDS / f"{student}-{target}.json"


# --- what was made -----------------------------------------------------------------------------------------------


def write(student: str, line: Path, targets: Sequence[Target]) -> None:
    """Record the files of a student.

    Args:
        student: name of the recipe.
        line: its folder in the build folder.
        targets: files that were verified there.

    Raises:
        ValueError: a file's linears are not the student's.
    """
    origin = artifact.read_manifest(line / "student").params["origin"]
    for target in targets:
        parity = verify.read_parity(line / str(target) / "parity")
        found = FileRecord(
            student=student,
            origin=origin,
            backend=target.backend,
            scheme=target.scheme,
            recipe=asked(student),
            code=code(target.backend),
            model=artifact.read_manifest(line / str(target) / "model").digest,
            file_bytes=parity.file_bytes,
            mean_cosine=parity.measures.mean_score if parity.measures else None,
            worst_cosine=parity.measures.worst_score if parity.measures else None,
            spearman=next((one.found for one in parity.datasets if one.dataset == "stsb"), None),
            **_search(parity),
            integers=_integers(line, target),
            verdict=parity.verdict,
        )
        records.write(_place(student, target), found)


def _search(parity: Parity) -> dict[str, Any]:
    found = next((one for one in parity.retrieval if one.collection == ALL and one.storage == "float32"), None)
    if found is None:
        return {"recall_at_1": None, "recall_at_10_kept": None}
    first = found.metrics["recall_at_1"]
    return {"recall_at_1": (first.found, first.low, first.high), "recall_at_10_kept": found.recall_kept}


def write_times(report: Report, own: str, build: Path) -> None:
    """Record what a report's run timed.

    Args:
        report: it.
        own: name of its recipe.
        build: the folder in which the files lie.
    """
    found: dict[str, float] = {}
    for variant in report.variants:
        if variant.threads != 1 or variant.reference:
            continue
        backend = next(name for name in formats.NAMES if variant.runtime == formats.get(name).TITLE)
        model = build / (variant.student or own) / f"{backend}-{variant.scheme}" / "model"
        digest = artifact.read_manifest(model).digest
        median = next(row.wall.p50 for row in variant.lengths if row.seq_len == LENGTH)
        if median is not None:
            found[digest] = median
    said = "; ".join(f"{one.model_id}, {one.cores} cores, {one.os}" for one in report.machines)
    records.write(RECORDS / _TIMES, Times(machine=said, milliseconds=found))


# --- a file's arithmetic -----------------------------------------------------------------------------------------


def _integers(line: Path, target: Target) -> float:
    """Return the share of the linears' multiply-adds that a file does in integers.

    Raises:
        ValueError: the file's linears are not the student's.
    """
    backend = formats.get(target.backend)
    kinds = backend.structure(line / str(target) / "model" / backend.FILE).arithmetic
    sizes = _linear_sizes(line / "student")
    functions, left = divmod(len(kinds), len(sizes))
    if left or not functions:
        raise ValueError(f"{target} has {len(kinds)} linears, and the student {len(sizes)}.")
    weighed = list(zip(kinds, sizes * functions, strict=True))
    return sum(size for kind, size in weighed if kind != "float") / sum(size for _, size in weighed)


def _linear_sizes(student: Path) -> list[int]:
    """Return the multiply-adds for a token of each linear of the student's layers, in the order in which they run."""
    with safe_open(student / WEIGHTS, "np") as weights:
        shapes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
    inner = ("query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense")
    layers = {name.split(".")[2] for name in shapes if name.startswith("encoder.layer.")}
    found = []
    for layer in sorted(layers, key=int):
        for part in inner:
            kind = f"attention.self.{part}" if part in ("query", "key", "value") else part
            rows, columns = shapes[f"encoder.layer.{layer}.{kind}.weight"]
            found.append(rows * columns)
    return found
