"""The line: ordinary Python that calls the stages in order, with a loop over targets.

The same walk makes things and tells what it would make (`dry=True`): every step states its order first, and an artifact
whose key and files agree is skipped. Nothing heavy is imported here; toolchains live in workers.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import artifact, backends, benchmark, convert, data, devices, prepare, reference, report, tasks, verify
from pipeline.artifact import Artifact
from pipeline.convert import Target
from pipeline.devices import host
from pipeline.errors import ArtifactError, RecipeError
from pipeline.isolated import Worker
from pipeline.jobs import LazyWorker, Pool
from pipeline.prepare import Prepared
from pipeline.quantize import SCHEMES
from pipeline.recipe import Recipe
from pipeline.steps import Progress, Step, Steps, order_of, versions

STAGES = ("train", "compress", "student", "convert", "verify", "benchmark", "report")
"""In order; `ship` stands apart, since it writes outside the build folder."""
_PARALLEL = 2
"""Conversions and verifications that run beside each other; each may need 2 GB."""


_SECONDS = {"litert": 45.0, "coreml": 20.0, "executorch": 40.0}
"""What a conversion of MiniLM took on two cores; for estimates, and for what to begin first."""

Results = dict[Target, tuple[Artifact | None, Artifact | None]]
"""Model and verdict of each target; None in a dry run where they are not made yet."""


@dataclass
class Line:
    """One walk over a recipe."""

    recipe: Recipe
    recipe_file: Path
    build: Path
    progress: Progress
    targets: list[Target]
    device: str = "host"
    dry: bool = False
    steps: Steps = field(init=False)
    _prepared: Prepared = field(init=False)

    def __post_init__(self) -> None:
        """Begin without a step."""
        self.steps = Steps(self.build / self.recipe.name, self.progress, self.dry)

    @property
    def folder(self) -> Path:
        """The recipe's folder in the build folder."""
        return self.steps.folder

    def run(self, until: str = STAGES[-1]) -> list[Step]:
        """Walk the line up to and including a stage.

        Raises:
            PipelineError: the first thing that went wrong; artifacts finished by then stay.
        """
        devices.get(self.device)
        if self.dry:
            return self._walk(until)
        waiting = partial(self.progress.note, f"another run works in {self.folder}; waiting for it")
        with artifact.only_run(self.folder, waiting=waiting):
            return self._walk(until)

    def _walk(self, until: str) -> list[Step]:
        depth = STAGES.index(until)
        self._prepared = prepare.begin(self.recipe, self.recipe_file, self.steps, until)
        if depth >= STAGES.index("verify"):
            self._check_data()
        made = self._prepared.go(until)
        if depth >= STAGES.index("convert"):
            results = self._targets(made, judge=depth >= STAGES.index("verify"))
        if depth >= STAGES.index("benchmark"):
            timings = self._benchmark(made, results)
        if depth >= STAGES.index("report"):
            self._report(results, timings)
        return self.steps.done

    def _check_data(self) -> None:
        """Read the labelled data now: a missing or malformed file is better known before minutes of conversion."""
        usable, _ = reference.chosen_datasets(tasks.get(self.recipe.task), self._prepared.datasets)
        for dataset in usable:
            dataset.load()

    def parities(self) -> list[verify.Parity]:
        """Return the verdicts that this walk made or found, in the recipe's order."""
        places = [self.folder / str(target) / "parity" for target in self.targets]
        known = {step.place for step in self.steps.done if step.artifact}
        return [verify.read(place) for place in places if place in known]

    def _targets(self, made: Artifact | None, *, judge: bool) -> Results:
        """Convert all targets, backends beside each other and a backend's in one worker, and verify each by itself."""
        by_backend: dict[str, list[Target]] = {}
        for target in self.targets:
            by_backend.setdefault(target.backend, []).append(target)
        # The slowest first, so that the other core is not left idle at the end.
        chains = sorted(by_backend.values(), key=lambda wanted: -_SECONDS[wanted[0].backend] * len(wanted))
        results: Results = {}
        with Pool(1 if self.dry else _PARALLEL, self.steps.stopping) as pool:
            lengths = sorted({self._longest(target) for target in self.targets}) if judge else []
            # First in line, so that no chain waits for a truth that is not begun.
            truths = {length: pool.submit(partial(self._reference, made, length)) for length in lengths}
            for wanted in chains:
                pool.submit(partial(self._chain, made, wanted, truths, results, pool))
            pool.finish()
        return {target: results[target] for target in self.targets}

    def _chain(
        self,
        made: Artifact | None,
        wanted: list[Target],
        truths: Mapping[int, Future[Artifact | None]],
        results: Results,
        pool: Pool,
    ) -> None:
        """Convert one backend's targets in one worker, then have them verified."""
        models = self._convert_backend(made, wanted)
        for target in wanted:
            results[target] = (models[target], None)
            if truths:
                pool.submit(partial(self._judge, target, made, models[target], truths, results))

    def _judge(
        self,
        target: Target,
        made: Artifact | None,
        model: Artifact | None,
        truths: Mapping[int, Future[Artifact | None]],
        results: Results,
    ) -> None:
        truth = truths[self._longest(target)].result()
        results[target] = (model, self._verify_one(target, made, model, truth))

    def _convert_backend(self, made: Artifact | None, wanted: list[Target]) -> dict[Target, Artifact | None]:
        backend = backends.get(wanted[0].backend)
        base_target = Target(wanted[0].backend, backend.BASE_SCHEME) if backend.BASE_SCHEME else None
        ordered = sorted(wanted, key=lambda target: target != base_target)
        if base_target and base_target not in ordered:
            ordered.insert(0, base_target)
        models: dict[Target, Artifact | None] = {}
        with LazyWorker(self.steps.log(f"convert-{wanted[0].backend}")) as worker:
            for target in ordered:
                needs_base = base_target is not None and target != base_target
                base = models[base_target] if base_target and needs_base else None
                models[target] = self._convert_one(made, target, base, worker, needs_base=needs_base)
        return models

    def _convert_one(
        self,
        made: Artifact | None,
        target: Target,
        base: Artifact | None,
        worker: LazyWorker,
        *,
        needs_base: bool,
    ) -> Artifact | None:
        place = self.folder / str(target) / "model"
        inputs: dict[str, Artifact | None] = {"student": made} | ({"base": base} if needs_base else {})
        backend = backends.get(target.backend)
        order = order_of(
            place,
            "convert",
            convert.VERSION,
            convert.order_params(self.recipe, target),
            inputs,
            versions(*backend.DISTRIBUTIONS),
        )

        def make(out: Path) -> Mapping[str, Any]:
            assert made is not None
            lengths = self.recipe.lengths(target.backend)
            gates = self.recipe.gates(target.scheme)
            ios = self.recipe.convert.minimum_ios
            return worker.get().call(convert.make, made, target, lengths, ios, base.path if base else None, gates, out)

        weights = self._prepared.source.weights_bytes
        disk = int(weights / 4 * SCHEMES[target.scheme].weight_bytes)
        return self.steps.take(
            f"convert {target}", place, order, make, seconds=_convert_seconds(weights, target, needs_base), disk=disk
        )

    def _longest(self, target: Target) -> int:
        return self.recipe.lengths(target.backend)[-1]

    def _reference(self, made: Artifact | None, length: int) -> Artifact | None:
        place = self.folder / f"reference-{length}"
        task = tasks.get(self.recipe.task)
        params = reference.order_params(task, self._prepared.datasets, length)
        order = order_of(
            place, "reference", reference.VERSION, params, {"student": made}, versions("torch", "transformers")
        )

        def make(out: Path) -> Mapping[str, Any]:
            assert made is not None
            with Worker(self.steps.log("reference")) as worker:
                return worker.call(reference.make, made.path, task.name, self._prepared.datasets, length, out)

        return self.steps.take("reference", place, order, make, seconds=30, disk=10_000_000)

    def _verify_one(
        self, target: Target, made: Artifact | None, model: Artifact | None, truth: Artifact | None
    ) -> Artifact | None:
        place = self.folder / str(target) / "parity"
        backend = backends.get(target.backend)
        gates = self.recipe.gates(target.scheme)
        random_weights = self.recipe.student.random_weights
        evaluators = [evaluator.name for evaluator in backend.evaluators()]
        params = {"gates": gates.model_dump(), "random_weights": random_weights, "evaluators": evaluators}
        order = order_of(
            place,
            "verify",
            verify.VERSION,
            params,
            {"model": model, "student": made, "reference": truth},
            versions(backend.DISTRIBUTIONS[0]),
        )

        def make(out: Path) -> Mapping[str, Any]:
            assert model is not None
            assert made is not None
            assert truth is not None
            return verify.make(
                model.path,
                model.manifest.metrics,
                made.path,
                truth.path,
                gates,
                out,
                log=self.steps.log(f"verify-{target}"),
                random_weights=random_weights,
            )

        return self.steps.take(f"verify {target}", place, order, make, seconds=20, disk=200_000)

    def _benchmark(self, made: Artifact | None, results: Results) -> Artifact | None:
        """Time all targets that run here in one run, with PyTorch beside them."""
        place = self.folder / f"benchmark-{self.device}"
        runnable = {
            target: model for target, (model, _) in results.items() if not backends.get(target.backend).no_runtime()
        }
        longest = max(self._longest(target) for target in results)
        lengths = [length for length in self.recipe.benchmark.lengths if length < longest] + [longest]
        cores = host.usable_cores()
        threads = [1, cores] if cores > 1 else [1]
        texts = data.everyday_sentences()[: self.recipe.benchmark.texts]
        machine = host.describe()
        params = {
            "settings": self.recipe.benchmark.model_dump(),
            "lengths": lengths,
            "threads": threads,
            "texts": artifact.digest_of(texts),
            "machine": [machine.model_id, machine.cpu_features, machine.os],
        }
        inputs: dict[str, Artifact | None] = {"student": made} | {
            str(target): model for target, model in runnable.items()
        }
        tools = versions("torch", *(backends.get(target.backend).DISTRIBUTIONS[0] for target in runnable))
        order = order_of(place, "benchmark", benchmark.VERSION, params, inputs, tools)

        def make(out: Path) -> Mapping[str, Any]:
            assert made is not None
            variants = [benchmark.of_student(made, lengths[-1])]
            variants += [benchmark.of_target(model) for model in runnable.values() if model]
            tell = self.steps.telling("benchmark")
            return benchmark.make(
                variants,
                lengths,
                texts,
                threads,
                self.recipe.benchmark,
                out,
                log=self.steps.log("benchmark"),
                tell=tell,
            )

        seconds = (
            (len(runnable) + 1)
            * len(threads)
            * (self.recipe.benchmark.rounds * len(lengths) * self.recipe.benchmark.block_ms / 1e3 + 8)
        )
        return self.steps.take("benchmark", place, order, make, seconds=seconds, disk=3_000_000)

    def _report(self, results: Results, timings: Artifact | None) -> Artifact | None:
        place = self.folder / "report"
        inputs: dict[str, Artifact | None] = {"benchmark": timings}
        inputs |= {f"parity {target}": parity for target, (_, parity) in results.items()}
        params = {
            "recipe": self.recipe.model_dump(mode="json"),
            "manifests": {str(target): model.manifest.metrics for target, (model, _) in results.items() if model},
        }
        order = order_of(place, "report", report.VERSION, params, inputs, versions("matplotlib", "jinja2"))

        def make(out: Path) -> Mapping[str, Any]:
            assert timings is not None
            done = {str(target): pair for target, pair in results.items()}
            student_manifest = artifact.read_manifest(self.folder / "student")
            return report.make(self.recipe, student_manifest, done, timings.path, out)

        return self.steps.take("report", place, order, make, seconds=6, disk=2_000_000)


def _convert_seconds(weights_bytes: int, target: Target, needs_base: bool) -> float:
    """Estimate from what MiniLM took on two cores: it grows with the parameters."""
    return (8.0 if needs_base else _SECONDS[target.backend]) * max(0.5, weights_bytes / 91e6)


def choose_targets(recipe: Recipe, wanted: Sequence[str]) -> list[Target]:
    """Return the recipe's targets, or those that `--target backend[:scheme]` asks for.

    Raises:
        RecipeError: the recipe has no such target.
    """
    every = convert.targets(recipe)
    if not wanted:
        return every
    chosen: list[Target] = []
    for text in wanted:
        backend, _, scheme = text.partition(":")
        found = [target for target in every if target.backend == backend and scheme in ("", target.scheme)]
        if not found:
            exist = ", ".join(f"{target.backend}:{target.scheme}" for target in every)
            raise RecipeError(f"target {text!r} is not in recipe {recipe.name}; there are: {exist}.")
        chosen += [target for target in found if target not in chosen]
    return chosen


def finished_model(folder: Path, target: Target) -> Artifact:
    """Return a target's checked model artifact.

    Raises:
        ArtifactError: it is absent, half-made or was changed.
    """
    place = folder / str(target) / "model"
    if not place.exists():
        raise ArtifactError(f"{place} does not exist; make it with `pocketbert run`.")
    return artifact.load(place)
