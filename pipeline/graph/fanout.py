"""One student to many files: converted backend by backend, and each file judged by itself, as jobs of a pool."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import backends, tasks
from pipeline.artifact import Artifact
from pipeline.convert import stage as convert
from pipeline.convert.stage import Target
from pipeline.graph.pool import LazyWorker, Pool, share_of_cores
from pipeline.graph.prepare import Prepared
from pipeline.graph.steps import Steps, order_of, versions
from pipeline.graph.worker import Worker
from pipeline.metrics import scoring
from pipeline.recipe.schema import Recipe
from pipeline.schemes import SCHEMES
from pipeline.student import reference
from pipeline.verify import stage as verify

_SECONDS = {"litert": 45.0, "coreml": 20.0, "executorch": 40.0}
"""What a conversion of MiniLM took on two cores; for estimates, and for what to begin first."""

Results = dict[Target, tuple[Artifact | None, Artifact | None]]
"""Model and verdict of each target; None in a dry run where they are not made yet."""


@dataclass
class FanOut:
    """The targets of one recipe."""

    recipe: Recipe
    steps: Steps
    prepared: Prepared
    targets: list[Target]

    def submit(self, made: Artifact | None, pool: Pool, *, judge: bool) -> Results:
        """Have all targets converted, a backend's in one worker, and each verified by itself.

        Returns:
            What is filled until the pool has finished.
        """
        by_backend: dict[str, list[Target]] = {}
        for target in self.targets:
            by_backend.setdefault(target.backend, []).append(target)
        # The slowest first, so that the other core is not left idle at the end.
        chains = sorted(by_backend.values(), key=lambda wanted: -_SECONDS[wanted[0].backend] * len(wanted))
        # In the order of the targets, whichever is done first.
        results: Results = dict.fromkeys(self.targets, (None, None))
        lengths = sorted({self.longest(target) for target in self.targets}) if judge else []
        # First in line, so that no chain waits for a truth that is not begun.
        truths = {
            length: pool.submit(
                partial(take_reference, self.steps, self.recipe.task, self.prepared.datasets, made, length)
            )
            for length in lengths
        }
        for wanted in chains:
            pool.submit(partial(self._chain, made, wanted, truths, results, pool))
        return results

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
        truth = truths[self.longest(target)].result()
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
        place = self.steps.folder / str(target) / "model"
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

        weights = self.prepared.source.weights_bytes
        disk = int(weights / 4 * SCHEMES[target.scheme].weight_bytes)
        return self.steps.take(
            f"convert {target}", place, order, make, seconds=_convert_seconds(weights, target, needs_base), disk=disk
        )

    def longest(self, target: Target) -> int:
        """Return the longest sequence of a target's file."""
        return self.recipe.lengths(target.backend)[-1]

    def _metrics(self) -> dict[str, int]:
        """Return the version of each metric that files are judged by."""
        usable, _ = reference.chosen_datasets(tasks.get(self.recipe.task), self.prepared.datasets)
        return {dataset.metric: scoring.METRICS[dataset.metric].version for dataset in usable}

    def _verify_one(
        self, target: Target, made: Artifact | None, model: Artifact | None, truth: Artifact | None
    ) -> Artifact | None:
        place = self.steps.folder / str(target) / "parity"
        backend = backends.get(target.backend)
        gates = self.recipe.gates(target.scheme)
        random_weights = self.recipe.student.random_weights
        evaluators = [evaluator.name for evaluator in backend.evaluators()]
        params = {
            "gates": gates.model_dump(),
            "random_weights": random_weights,
            "evaluators": evaluators,
            "metrics": self._metrics(),
        }
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


def take_reference(
    steps: Steps, task: str, datasets: reference.Wanted, made: Artifact | None, length: int
) -> Artifact | None:
    """Take fp32 PyTorch's outputs, the truth for files of a length."""
    place = steps.folder / f"reference-{length}"
    params = reference.order_params(tasks.get(task), datasets, length)
    order = order_of(
        place, "reference", reference.VERSION, params, {"student": made}, versions("torch", "transformers")
    )

    def make(out: Path) -> Mapping[str, Any]:
        assert made is not None
        with Worker(steps.log("reference"), threads=share_of_cores()) as worker:
            return worker.call(reference.make, made.path, task, datasets, length, out)

    return steps.take("reference", place, order, make, seconds=30, disk=10_000_000)


def _convert_seconds(weights_bytes: int, target: Target, needs_base: bool) -> float:
    """Estimate from what MiniLM took on two cores: it grows with the parameters."""
    return (8.0 if needs_base else _SECONDS[target.backend]) * max(0.5, weights_bytes / 91e6)
