"""The line: ordinary Python that calls the stages in order, with a loop over targets.

The same walk makes things and tells what it would make (`dry=True`): every step states its order first, and an artifact
whose key and files agree is skipped. Nothing heavy is imported here; toolchains live in workers.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import artifact, backends, devices, tasks
from pipeline.artifact import Artifact
from pipeline.benchmark import stage as benchmark
from pipeline.convert import stage as convert
from pipeline.convert.stage import Target
from pipeline.data import datasets as data
from pipeline.devices import host
from pipeline.errors import ArtifactError, PipelineError, RecipeError
from pipeline.graph import prepare, prior
from pipeline.graph.fanout import FanOut, Results
from pipeline.graph.pool import PARALLEL, Pool, share_of_cores
from pipeline.graph.prepare import Prepared
from pipeline.graph.steps import Progress, Step, Steps, order_of, versions
from pipeline.recipe.schema import Recipe
from pipeline.report import stage as report
from pipeline.report.stage import Member
from pipeline.student import reference
from pipeline.verify import stage as verify

STAGES = ("train", "compress", "student", "convert", "verify", "benchmark", "report")
"""In order; `ship` stands apart, since it writes outside the build folder."""


@dataclass
class Line:
    """One walk over a recipe, and over those that it names beside it."""

    recipe: Recipe
    recipe_file: Path
    build: Path
    progress: Progress
    targets: list[Target]
    device: str = "host"
    dry: bool = False
    steps: Steps = field(init=False)
    beside: "list[Line]" = field(init=False, default_factory=list)
    """The recipes beside it: each is walked up to its verdicts, timed in the same run, and shown in the same report."""
    prior: "dict[str, Line]" = field(init=False, default_factory=dict)
    """Recipes whose checkpoints it begins with or learns from, by the places that name them: walked before it."""
    _prepared: Prepared = field(init=False)
    _made: Artifact | None = field(init=False, default=None)
    _results: Results = field(init=False, default_factory=dict)

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
        if STAGES.index(until) >= STAGES.index("benchmark"):
            near = [self._neighbour(name) for name in self.recipe.beside]
            # `--target` may leave nothing of one.
            self.beside = [line for line in near if line.targets]
        for line in (self, *self.beside):
            line._find_prior({}, self.steps.threads)
        prior.check_names((line.recipe, line.recipe_file) for line in self._every())
        if self.dry:
            return self._walk(until)
        with self._only_run():
            return self._walk(until)

    def _neighbour(self, name: str) -> "Line":
        """Return the line of a recipe beside this one; its steps are counted with this one's."""
        parsed, file = prior.near(name, self.recipe_file)
        if parsed.task != self.recipe.task or parsed.name == self.recipe.name:
            fault = "is the recipe itself" if parsed.name == self.recipe.name else f"is for {parsed.task}"
            raise RecipeError(
                f"{self.recipe_file}: beside.{name} {fault}; another recipe for {self.recipe.task} can stand there."
            )
        wanted = choose_targets(parsed, self.recipe.beside[name].targets or ())
        if len(self.targets) < len(convert.targets(self.recipe)):
            wanted = [target for target in wanted if target in self.targets]
        return self._joined(parsed, file, wanted, threads=share_of_cores())

    def _joined(self, parsed: Recipe, file: Path, targets: list[Target], *, threads: int | None) -> "Line":
        """Return another recipe's line, whose steps are counted with this one's."""
        line = Line(parsed, file, self.build, self.progress, targets, self.device, self.dry)
        line.steps = replace(self.steps, folder=self.build / parsed.name, prefix=f"{parsed.name}: ", threads=threads)
        return line

    def _find_prior(self, after: Mapping[Path, str], threads: int | None) -> None:
        """Find the recipes that this one waits for, and those that they wait for."""
        waiting = {**after, self.recipe_file.resolve(): self.recipe.name}
        for place in prior.named(self.recipe):
            line = self._joined(*prior.read(place, self.recipe_file, waiting), [], threads=threads)
            line._find_prior(waiting, threads)
            self.prior[place] = line

    def _beside_too(self, until: str) -> "list[tuple[Line, str]]":
        """Return this line and those beside it, each with the last stage that it is walked to."""
        return [(self, until), *((line, "verify") for line in self.beside)]

    def _every(self) -> "Iterator[Line]":
        """Yield this line, those beside it, and what all of them wait for."""
        yield self
        for line in (*self.beside, *self.prior.values()):
            yield from line._every()

    @contextmanager
    def _only_run(self) -> Iterator[None]:
        """Hold all folders, in the order of their names, so that no two runs wait for each other."""
        with ExitStack() as stack:
            for folder in sorted({line.folder for line in self._every()}):
                waiting = partial(self.progress.note, f"another run works in {folder}; waiting for it")
                stack.enter_context(artifact.only_run(folder, waiting=waiting))
            yield

    def _walk(self, until: str) -> list[Step]:
        depth = STAGES.index(until)
        self._begin(until)
        for line in self.beside:
            line._begin_named("verify")
        self._go(until)
        if depth >= STAGES.index("benchmark"):
            timings = self._benchmark()
        if depth >= STAGES.index("report"):
            self._report(timings)
        return self.steps.done

    def _begin(self, until: str) -> None:
        """Refuse what cannot be carried out, before anything is made."""
        expected = {}
        for place, line in self.prior.items():
            line._begin_named(prior.until(line.recipe))
            expected[place] = line._prepared.expected
        self._prepared = prepare.begin(self.recipe, self.recipe_file, self.steps, until, expected)
        if STAGES.index(until) >= STAGES.index("verify"):
            self._check_data()

    def _begin_named(self, until: str) -> None:
        """Begin as part of another line, whose user is told which recipe is meant."""
        try:
            self._begin(until)
        except PipelineError as error:
            raise type(error)(f"recipe {self.recipe.name}: {error}") from error

    def _make_prior(self, until: str) -> None:
        """Make what this line begins with and learns from, and look at it again as it is."""
        made = {place: line._prepared.expected for place, line in self.prior.items()}
        # Training asks for no teacher.
        needed = made.keys() if until != "train" else made.keys() & {self.recipe.student.source}
        lacks = set()
        for place in needed:
            line = self.prior[place]
            last = prior.until(line.recipe)
            line._make_prior(last)
            found = line._prepared.checkpoint(last)
            if found:
                made[place] = found
            else:
                lacks.add(place)
        if needed:
            again = prepare.begin(self.recipe, self.recipe_file, self.steps, until, made)
            self._prepared = replace(again, lacks=frozenset(lacks))

    def _go(self, until: str) -> None:
        """Make the students and their files, as far as asked for."""
        with Pool(1 if self.dry else PARALLEL, self.steps.stopping) as pool:
            # One after the other: two lines may wait for the same recipe.
            for line, stage in self._beside_too(until):
                pool.submit(partial(line._make_prior, stage))
                pool.finish()
            # Each line's student is a job too: while this one's is laid out, another is pruned.
            for line, stage in self._beside_too(until):
                pool.submit(partial(line._submit, stage, pool))
                if self.dry:
                    # A plan tells one line after the other.
                    pool.finish()
            pool.finish()

    def _submit(self, until: str, pool: Pool) -> None:
        """Make the student, and have its files made."""
        depth = STAGES.index(until)
        self._made = self._prepared.go(until)
        if depth >= STAGES.index("convert"):
            files = FanOut(self.recipe, self.steps, self._prepared, self.targets)
            self._results = files.submit(self._made, pool, judge=depth >= STAGES.index("verify"))

    def _check_data(self) -> None:
        """Read the labelled data now: a missing or malformed file is better known before minutes of conversion."""
        usable, _ = reference.chosen_datasets(tasks.get(self.recipe.task), self._prepared.datasets)
        for dataset in usable:
            dataset.load()

    def parities(self) -> dict[str, verify.Parity]:
        """Return the verdicts that this walk made or found, by target, in the recipe's order; those beside it after."""
        places = {str(target): self.folder / str(target) / "parity" for target in self.targets}
        known = {step.place for step in self.steps.done if step.artifact}
        found = {name: verify.read(place) for name, place in places.items() if place in known}
        for line in self.beside:
            found |= {f"{line.recipe.name}/{name}": parity for name, parity in line.parities().items()}
        return found

    def _runnable(self) -> dict[str, Artifact | None]:
        """Return the models that something here can run, by target."""
        pairs = {target: model for target, (model, _) in self._results.items()}
        return {str(target): model for target, model in pairs.items() if not backends.get(target.backend).no_runtime()}

    def _benchmark(self) -> Artifact | None:
        """Time all targets that run here in one run, with PyTorch and the students beside it."""
        place = self.folder / f"benchmark-{self.device}"
        section = self.recipe.benchmark
        runnable = {("", name): model for name, model in self._runnable().items()}
        for line in self.beside:
            runnable |= {(line.recipe.name, name): model for name, model in line._runnable().items()}
        longest = max(self.recipe.lengths(target.backend)[-1] for target in self.targets)
        lengths = [length for length in section.lengths if length < longest] + [longest]
        cores = host.usable_cores()
        threads = [1, cores] if cores > 1 else [1]
        texts = data.everyday_sentences()[: section.texts]
        machine = host.describe()
        params = {
            "settings": section.model_dump(),
            "lengths": lengths,
            "threads": threads,
            "texts": artifact.digest_of(texts),
            "machine": [machine.model_id, machine.cpu_features, machine.os],
        }
        inputs: dict[str, Artifact | None] = {"student": self._made}
        inputs |= {"/".join(filter(None, key)): model for key, model in runnable.items()}
        used = sorted({target.backend for line in (self, *self.beside) for target in line.targets})
        tools = versions("torch", *(backends.get(name).DISTRIBUTIONS[0] for name in used))
        order = order_of(place, "benchmark", benchmark.VERSION, params, inputs, tools)

        def make(out: Path) -> Mapping[str, Any]:
            assert self._made is not None
            variants = [benchmark.of_student(self._made, lengths[-1])]
            variants += [benchmark.of_target(model, student) for (student, _), model in runnable.items() if model]
            log, tell = self.steps.log("benchmark"), self.steps.telling("benchmark")
            return benchmark.make(variants, lengths, texts, threads, section, out, log=log, tell=tell)

        seconds = (len(runnable) + 1) * len(threads) * (section.rounds * len(lengths) * section.block_ms / 1e3 + 8)
        return self.steps.take("benchmark", place, order, make, seconds=seconds, disk=3_000_000)

    def _report(self, timings: Artifact | None) -> Artifact | None:
        lines = {"": self} | {f"{line.recipe.name}/": line for line in self.beside}
        results = {f"{name}{target}": pair for name, line in lines.items() for target, pair in line._results.items()}
        inputs: dict[str, Artifact | None] = {"benchmark": timings}
        inputs |= {f"parity {name}": parity for name, (_, parity) in results.items()}
        params = {
            "recipe": [line.recipe.model_dump(mode="json") for line in lines.values()],
            "manifests": {name: model.manifest.metrics for name, (model, _) in results.items() if model},
        }
        place = self.folder / "report"
        order = order_of(place, "report", report.VERSION, params, inputs, versions("matplotlib", "jinja2"))

        def make(out: Path) -> Mapping[str, Any]:
            assert timings is not None
            own, *others = (line._member() for line in lines.values())
            return report.make(own, others, timings.path, out)

        return self.steps.take("report", place, order, make, seconds=6, disk=2_000_000)

    def _member(self) -> Member:
        """Return what the report shows of this line."""
        done = {str(target): pair for target, pair in self._results.items()}
        return Member(self.recipe, artifact.read_manifest(self.folder / "student"), done)


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
