"""Model cards: README.md of a bundle, from typed records alone."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pipeline import formats
from pipeline.artifact import Manifest
from pipeline.data import datasets as data
from pipeline.devices.host import Machine
from pipeline.formats.signature import Function
from pipeline.recipe.schema import Recipe
from pipeline.report import wording
from pipeline.report.headline import disturbances
from pipeline.report.record import VariantReport
from pipeline.report.stage import RecipeResults, collect
from pipeline.schemes import SCHEMES
from pipeline.ship.record import Bundle, VerifiedTarget
from pipeline.student.golden import TEXTS

TEMPLATES = Path(__file__).parent / "templates"
TEMPLATE = "card.md.j2"
PIPELINE_TAGS = {
    "embedding": "sentence-similarity",
    "classification": "text-classification",
    "multi_label_classification": "text-classification",
    "regression": "text-classification",
    "multi_regression": "text-classification",
    "token_classification": "token-classification",
    "question_answering": "question-answering",
}
"""The Hub's pipeline tag of each task. Source: huggingface.co/tasks."""
_REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)(?:@([0-9a-f]{40}))?(?:, .*)?")
"""An origin from the Hub; the stages that changed it follow after a comma."""
_SOURCES = {
    "host": "on a computer, not on a phone",
    "device": "on a device",
    "simulator": "in a simulator, not on a phone",
    "emulated-arm64": "on an emulated processor, so that only counts mean anything",
}
"""The words for a benchmark record's source."""
_TYPICAL_LENGTH = 32
"""Length at which the snippets call a file; a signature near it is chosen."""


@dataclass(frozen=True)
class Times:
    """The latencies of one benchmark that are about files of the bundle."""

    where: list[str]
    """For each machine, the words for its kind: phone, computer, simulator or emulated processor."""
    machines: list[Machine]
    variants: list[VariantReport]
    disturbances: list[str]

    @property
    def longest(self) -> int | None:
        """The longest fixed length that was timed."""
        return max((row.seq_len for variant in self.variants for row in variant.lengths), default=None)


def render(
    recipe: Recipe,
    bundle: Bundle,
    repository: str,
    student: Manifest,
    ready: Sequence[VerifiedTarget],
    timings: Sequence[Path],
) -> str:
    """Return the card of a bundle.

    Args:
        recipe: what was asked for.
        bundle: the manifest, its list of files apart.
        repository: owner/name, for the snippets.
        student: manifest of the student artifact.
        ready: the bundle's targets.
        timings: benchmark artifacts of the recipe; times of files that are not in the bundle are left out.
    """
    base = _REPOSITORY.fullmatch(bundle.student.origin)
    times = [found for place in timings if (found := _times(recipe, student, ready, place)) is not None]
    datasets = dict.fromkeys((row.dataset, row.metric) for one in ready for row in one.parity.datasets)
    return (
        _environment()
        .get_template(TEMPLATE)
        .render(
            front=Markup(front_matter(bundle)),
            bundle=bundle,
            repository=repository,
            base=base.group(1) if base else None,
            commit=base.group(2) if base else None,
            labels=student.metrics["labels"],
            ready=ready,
            titles={name: formats.get(name).TITLE for name in formats.NAMES},
            summaries={name: scheme.summary for name, scheme in SCHEMES.items()},
            datasets=list(datasets),
            bundled_data=[name for name, row in data.DATASETS.items() if row.bundled],
            skipped=sorted({name for one in ready for name in one.parity.datasets_skipped}),
            evaluators=_evaluators(ready),
            calls={one.target.backend: (one, call(one.signature.functions)) for one in smallest(ready)},
            times=times,
            golden_rows=len(TEXTS),
            pair=bundle.task in ("question_answering",),
        )
    )


def front_matter(bundle: Bundle) -> str:
    """Return the model card's YAML metadata for the Hub; unknown values are left out."""
    from huggingface_hub import ModelCardData

    base = _REPOSITORY.fullmatch(bundle.student.origin)
    quantised = any(SCHEMES[member.scheme].weights != "float32" for member in bundle.targets)
    names = list(dict.fromkeys(member.backend for member in bundle.targets))
    kind = PIPELINE_TAGS[bundle.task]
    data_ = ModelCardData(
        license=bundle.student.licence.lower() if bundle.student.licence else None,
        base_model=base.group(1) if base else None,
        base_model_relation="quantized" if base and quantised else None,
        library_name="pocketbert",
        pipeline_tag=kind,
        tags=["pocketbert", *names, bundle.student.model_type, "on-device", "parity-checked"],
    )
    return str(data_.to_yaml())


def smallest(ready: Sequence[VerifiedTarget]) -> list[VerifiedTarget]:
    """Return each format's target whose scheme is the first to ship."""
    ordered = sorted(ready, key=lambda one: SCHEMES[one.target.scheme].shipping_rank)
    backend_order = dict.fromkeys(one.target.backend for one in ready)
    return [next(one for one in ordered if one.target.backend == backend) for backend in backend_order]


def call(functions: Sequence[Function]) -> tuple[Function, int]:
    """Return a function that suits a short text, and the length to call it at."""
    chosen = next((one for one in functions if one.max_length >= _TYPICAL_LENGTH), functions[-1])
    return chosen, max(chosen.min_length, min(_TYPICAL_LENGTH, chosen.max_length))


def _evaluators(ready: Sequence[VerifiedTarget]) -> dict[str, dict[str, Any]]:
    """Return for each runtime that verified files: its targets, and the gap that its verdict leaves."""
    found: dict[str, dict[str, Any]] = {}
    for one in ready:
        if one.parity.evaluator:
            row = found.setdefault(one.parity.evaluator, {"targets": [], "gap": one.parity.evaluator_stands_in})
            row["targets"].append(str(one.target))
    return found


def _times(recipe: Recipe, student: Manifest, ready: Sequence[VerifiedTarget], place: Path) -> Times | None:
    """Return the times of exactly the bundle's files, joined by content digest; None if there are none."""
    targets = {str(one.target): (one.model, one.judged) for one in ready}
    report = collect(RecipeResults(recipe, student, targets), [], place)
    runs = {variant.run_id for variant in report.variants if variant.target}
    ours = [one for one in report.variants if one.target or (one.reference and one.run_id in runs)]
    if not runs:
        return None
    where = list(dict.fromkeys(_SOURCES.get(one.source, one.source) for one in ours))
    return Times(where, report.machines, ours, disturbances(ours, report.machines))


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_for_markdown,
    )
    words = (
        *(wording.ms, wording.mb, wording.gib, wording.millions, wording.fixed, wording.score, wording.score_name),
        *(wording.times, wording.percent, wording.threads, wording.verdict, wording.lengths),
    )
    environment.filters.update({word.__name__: word for word in words})
    environment.filters |= {"bounds": attrgetter("min_length", "max_length"), "camel": _camel, "kotlin": _kotlin_zeros}
    # Inside a code block nothing is escaped; what comes there was read back from a converted file or is a checked name.
    environment.filters["code"] = lambda value: Markup(wording.visible(str(value)).replace("`", "'"))
    return environment


def _camel(name: str) -> str:
    """Return a tensor's name as Kotlin and Swift write variables."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _kotlin_zeros(shape: Sequence[int | None], length: int) -> str:
    """Return an expression for a nested float array of a tensor's shape; a free dimension is the length."""
    *outer, last = [length if size is None else size for size in shape]
    text = f"FloatArray({last})"
    for size in reversed(outer):
        text = f"Array({size}) {{ {text} }}"
    return text


def _for_markdown(value: Any) -> str:
    """Escape a value for Markdown, unless a template has made it."""
    return str(value) if isinstance(value, Markup) else wording.for_markdown(value)
