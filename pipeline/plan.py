"""The line: ordinary Python that calls the stages in order, with a loop over targets.

The same walk makes things and tells what it would make (`dry=True`): every step states its order first, and an artifact
whose key and files agree is skipped. Nothing heavy is imported here; toolchains live in workers.
"""

import importlib.metadata
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pipeline import (
    artifact,
    backends,
    benchmark,
    convert,
    data,
    devices,
    finetune,
    reference,
    report,
    student,
    tasks,
    verify,
)
from pipeline.artifact import Artifact, Order
from pipeline.convert import Target
from pipeline.devices import host
from pipeline.errors import ArtifactError, RecipeError
from pipeline.isolated import Worker
from pipeline.jobs import LazyWorker, Pool
from pipeline.quantize import SCHEMES
from pipeline.recipe import Recipe
from pipeline.training.job import Job

STAGES = ("train", "student", "convert", "verify", "benchmark", "report")
"""In order; `ship` stands apart, since it writes outside the build folder."""
_PARALLEL = 2
"""Conversions and verifications that run beside each other; each may need 2 GB."""


_SECONDS = {"litert": 45.0, "coreml": 20.0, "executorch": 40.0}
"""What a conversion of MiniLM took on two cores; for estimates, and for what to begin first."""

Results = dict[Target, tuple[Artifact | None, Artifact | None]]
"""Model and verdict of each target; None in a dry run where they are not made yet."""


class Progress(Protocol):
    """What the line tells while it works."""

    def started(self, step: str) -> None:
        """A step began."""

    def advanced(self, step: str, what: str, fraction: float) -> None:
        """A long step came so far."""

    def finished(self, step: "Step") -> None:
        """A step was made, or skipped because it was there."""

    def note(self, text: str) -> None:
        """Something worth a line."""


@dataclass
class Step:
    """One artifact of the line and what became of it."""

    name: str
    place: Path
    made: bool
    reason: str
    """Why it has to be made; empty if it was there."""
    seconds: float
    """Spent, or in a dry run estimated."""
    disk_bytes: int
    """Estimated, in a dry run."""
    artifact: Artifact | None = None


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
    steps: list[Step] = field(default_factory=list)
    _training: Job | None = None
    """Of a recipe with `[train]`, once its data were read."""
    _stopping: threading.Event = field(default_factory=threading.Event)
    """Set by Ctrl-C: nothing that ends after it counts as made, since its worker may have been killed."""

    @property
    def folder(self) -> Path:
        """The recipe's folder in the build folder."""
        return self.build / self.recipe.name

    def _log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

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
        if until == "train":
            finetune.section(self.recipe)
        source = student.find(self.recipe, self.recipe_file)
        if self.recipe.train:
            self._training = finetune.job(self.recipe, self.recipe_file, source, self.folder / "checkpoints")
        if depth >= STAGES.index("verify"):
            self._check_data()
        trained = self._train(source, self._training) if self._training else None
        if depth < STAGES.index("student"):
            return self.steps
        made = self._student(source, trained)
        if depth >= STAGES.index("convert"):
            results = self._targets(source, made, judge=depth >= STAGES.index("verify"))
        if depth >= STAGES.index("benchmark"):
            timings = self._benchmark(made, results)
        if depth >= STAGES.index("report"):
            self._report(results, timings)
        return self.steps

    def _datasets(self) -> reference.Wanted:
        """Return the data for the task metric: after training, those of its dev split unless the recipe names some."""
        if self.recipe.verify.datasets is None and self._training:
            return (self._training.dataset,)
        return self.recipe.verify.datasets

    def _check_data(self) -> None:
        """Read the labelled data now: a missing or malformed file is better known before minutes of conversion."""
        usable, _ = reference.chosen_datasets(tasks.get(self.recipe.task), self._datasets())
        for dataset in usable:
            dataset.load()

    def parities(self) -> list[verify.Parity]:
        """Return the verdicts that this walk made or found, in the recipe's order."""
        places = [self.folder / str(target) / "parity" for target in self.targets]
        known = {step.place for step in self.steps if step.artifact}
        return [verify.read(place) for place in places if place in known]

    def step(
        self,
        name: str,
        place: Path,
        ready: Order | None,
        make: Callable[[Path], Mapping[str, Any]],
        *,
        seconds: float,
        disk: int,
    ) -> Artifact | None:
        """Make, skip or foretell one artifact.

        Args:
            name: what people read.
            place: where it goes.
            ready: the order, or None where an input is not made yet, which happens in a dry run only.
            make: fills the directory.
            seconds: estimate of the time.
            disk: estimate of the size in bytes.
        """
        found, reason = artifact.lookup(ready) if ready else (None, "an input is new")
        if found or self.dry or ready is None:
            step = Step(name, place, found is None, reason, 0.0 if found else seconds, 0 if found else disk, found)
        else:
            if reason not in ("new", "changed inputs or settings"):
                self.progress.note(f"{name}: {reason}; made again")
            self.progress.started(name)
            started = time.perf_counter()
            result, made = artifact.build(ready, partial(self._unless_stopping, make))
            step = Step(name, place, made, reason, time.perf_counter() - started, 0, result)
        self.steps.append(step)
        self.progress.finished(step)
        return step.artifact

    def _unless_stopping(self, make: Callable[[Path], Mapping[str, Any]], out: Path) -> Mapping[str, Any]:
        metrics = make(out)
        if self._stopping.is_set():
            raise KeyboardInterrupt
        return metrics

    def _train(self, source: student.Source, job: Job) -> Artifact | None:
        place = self.folder / "trained"
        params = finetune.order_params(self.recipe, job.dataset)
        tools = versions(*finetune.DISTRIBUTIONS)
        order = Order(place, "train", finetune.VERSION, params, {"source": source.digest}, tools)

        def make(out: Path) -> Mapping[str, Any]:
            with Worker(self._log("train"), partial(self.progress.advanced, "train")) as worker:
                return worker.call(finetune.make, job, out)

        result = self.step("train", place, order, make, seconds=600, disk=source.weights_bytes)
        if result and not self.dry:
            # Only now: a run that was stopped before its artifact was whole goes on from them.
            shutil.rmtree(job.checkpoints, ignore_errors=True)
        return result

    def _student(self, source: student.Source, trained: Artifact | None) -> Artifact | None:
        place = self.folder / "student"
        if self._training and trained:
            source = student.trained(source, trained.path, self._training.dataset.name)
        order = Order(
            place,
            "student",
            student.VERSION,
            student.order_params(self.recipe, source),
            {"source": source.digest},
            versions("transformers", "tokenizers", "torch"),
        )
        ready = None if self._training and not trained else order

        def make(out: Path) -> Mapping[str, Any]:
            with Worker(self._log("student")) as worker:
                return worker.call(student.make, source.folder, self.recipe.task, out)

        return self.step("student", place, ready, make, seconds=10, disk=source.weights_bytes)

    def _targets(self, source: student.Source, made: Artifact | None, *, judge: bool) -> Results:
        """Convert all targets, backends beside each other and a backend's in one worker, and verify each by itself."""
        by_backend: dict[str, list[Target]] = {}
        for target in self.targets:
            by_backend.setdefault(target.backend, []).append(target)
        # The slowest first, so that the other core is not left idle at the end.
        chains = sorted(by_backend.values(), key=lambda wanted: -_SECONDS[wanted[0].backend] * len(wanted))
        results: Results = {}
        with Pool(1 if self.dry else _PARALLEL, self._stopping) as pool:
            lengths = sorted({self._longest(target) for target in self.targets}) if judge else []
            # First in line, so that no chain waits for a truth that is not begun.
            truths = {length: pool.submit(partial(self._reference, made, length)) for length in lengths}
            for wanted in chains:
                pool.submit(partial(self._chain, source, made, wanted, truths, results, pool))
            pool.finish()
        return {target: results[target] for target in self.targets}

    def _chain(
        self,
        source: student.Source,
        made: Artifact | None,
        wanted: list[Target],
        truths: Mapping[int, Future[Artifact | None]],
        results: Results,
        pool: Pool,
    ) -> None:
        """Convert one backend's targets in one worker, then have them verified."""
        models = self._convert_backend(source, made, wanted)
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

    def _convert_backend(
        self, source: student.Source, made: Artifact | None, wanted: list[Target]
    ) -> dict[Target, Artifact | None]:
        backend = backends.get(wanted[0].backend)
        base_target = Target(wanted[0].backend, backend.BASE_SCHEME) if backend.BASE_SCHEME else None
        ordered = sorted(wanted, key=lambda target: target != base_target)
        if base_target and base_target not in ordered:
            ordered.insert(0, base_target)
        models: dict[Target, Artifact | None] = {}
        with LazyWorker(self._log(f"convert-{wanted[0].backend}")) as worker:
            for target in ordered:
                needs_base = base_target is not None and target != base_target
                base = models[base_target] if base_target and needs_base else None
                models[target] = self._convert_one(source, made, target, base, worker, needs_base=needs_base)
        return models

    def _convert_one(
        self,
        source: student.Source,
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
        order = _order(
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

        disk = int(source.weights_bytes / 4 * SCHEMES[target.scheme].weight_bytes)
        return self.step(
            f"convert {target}", place, order, make, seconds=_convert_seconds(source, target, needs_base), disk=disk
        )

    def _longest(self, target: Target) -> int:
        return self.recipe.lengths(target.backend)[-1]

    def _reference(self, made: Artifact | None, length: int) -> Artifact | None:
        place = self.folder / f"reference-{length}"
        task = tasks.get(self.recipe.task)
        params = reference.order_params(task, self._datasets(), length)
        order = _order(
            place, "reference", reference.VERSION, params, {"student": made}, versions("torch", "transformers")
        )

        def make(out: Path) -> Mapping[str, Any]:
            assert made is not None
            with Worker(self._log("reference")) as worker:
                return worker.call(reference.make, made.path, task.name, self._datasets(), length, out)

        return self.step("reference", place, order, make, seconds=30, disk=10_000_000)

    def _verify_one(
        self, target: Target, made: Artifact | None, model: Artifact | None, truth: Artifact | None
    ) -> Artifact | None:
        place = self.folder / str(target) / "parity"
        backend = backends.get(target.backend)
        gates = self.recipe.gates(target.scheme)
        random_weights = self.recipe.student.random_weights
        evaluators = [evaluator.name for evaluator in backend.evaluators()]
        params = {"gates": gates.model_dump(), "random_weights": random_weights, "evaluators": evaluators}
        order = _order(
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
                log=self._log(f"verify-{target}"),
                random_weights=random_weights,
            )

        return self.step(f"verify {target}", place, order, make, seconds=20, disk=200_000)

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
        order = _order(place, "benchmark", benchmark.VERSION, params, inputs, tools)

        def make(out: Path) -> Mapping[str, Any]:
            assert made is not None
            variants = [benchmark.of_student(made, lengths[-1])]
            variants += [benchmark.of_target(model) for model in runnable.values() if model]
            tell = partial(self.progress.advanced, "benchmark")
            return benchmark.make(
                variants, lengths, texts, threads, self.recipe.benchmark, out, log=self._log("benchmark"), tell=tell
            )

        seconds = (
            (len(runnable) + 1)
            * len(threads)
            * (self.recipe.benchmark.rounds * len(lengths) * self.recipe.benchmark.block_ms / 1e3 + 8)
        )
        return self.step("benchmark", place, order, make, seconds=seconds, disk=3_000_000)

    def _report(self, results: Results, timings: Artifact | None) -> Artifact | None:
        place = self.folder / "report"
        inputs: dict[str, Artifact | None] = {"benchmark": timings}
        inputs |= {f"parity {target}": parity for target, (_, parity) in results.items()}
        params = {
            "recipe": self.recipe.model_dump(mode="json"),
            "manifests": {str(target): model.manifest.metrics for target, (model, _) in results.items() if model},
        }
        order = _order(place, "report", report.VERSION, params, inputs, versions("matplotlib", "jinja2"))

        def make(out: Path) -> Mapping[str, Any]:
            assert timings is not None
            done = {str(target): pair for target, pair in results.items()}
            student_manifest = artifact.read_manifest(self.folder / "student")
            return report.make(self.recipe, student_manifest, done, timings.path, out)

        return self.step("report", place, order, make, seconds=6, disk=2_000_000)


def _order(
    place: Path,
    stage: str,
    version: int,
    params: Mapping[str, Any],
    inputs: Mapping[str, Artifact | None],
    tools: Mapping[str, str],
) -> Order | None:
    """Return an order, or None where an input is not there yet (in a dry run)."""
    digests = {name: value.digest for name, value in inputs.items() if value is not None}
    return Order(place, stage, version, params, digests, tools) if len(digests) == len(inputs) else None


def _convert_seconds(source: student.Source, target: Target, needs_base: bool) -> float:
    """Estimate from what MiniLM took on two cores: it grows with the parameters."""
    return (8.0 if needs_base else _SECONDS[target.backend]) * max(0.5, source.weights_bytes / 91e6)


def versions(*distributions: str) -> dict[str, str]:
    """Return the versions of distributions from their metadata; nothing is imported."""
    found = {}
    for name in distributions:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


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
