"""Build a recipe's graph of nodes. Files are read, and none is written.

Torch is imported only if a compression stage of the recipe has no finished artifact yet: see `checkpoints`.

The recipes named in `[beside]` and the recipes that this one depends on are further roots of the same graph.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from pipeline import artifact, formats, tasks
from pipeline.artifact import Artifact
from pipeline.benchmark import stage as benchmark
from pipeline.convert import stage as convert
from pipeline.convert.stage import Target
from pipeline.convert.targets import choose_targets
from pipeline.data import calibration
from pipeline.data.corpus import Unlabelled
from pipeline.data.location import locate
from pipeline.data.retrieval import Source
from pipeline.devices import host
from pipeline.devices.table import find_device
from pipeline.errors import InputError, RecipeError
from pipeline.execution.node import Estimate, External, Graph, Input, Log, Node, Scratch, versions
from pipeline.execution.store import Store
from pipeline.execution.worker import tell
from pipeline.metrics import scoring
from pipeline.planning.checkpoints import (
    Branch,
    FinishedCheckpoints,
    StageName,
    branch_for,
    check_names,
    prepare,
    read_other,
)
from pipeline.quantize import policy
from pipeline.quantize import stage as quantize
from pipeline.recipe import loading
from pipeline.recipe.schema import BenchmarkSection, QuantizeSection, QuantizeTraining, Recipe
from pipeline.report import measured
from pipeline.report import stage as report
from pipeline.report.record import VERIFICATION
from pipeline.schemes import SCHEMES, Gates
from pipeline.student import golden, other_head, reference, thresholds
from pipeline.student import stage as student
from pipeline.student.thresholds import Calibration
from pipeline.text.bundled import everyday_sentences
from pipeline.verify import stage as verify

STAGES: tuple[StageName, ...] = get_args(StageName)
"""The stages in their order. `ship` is not one of them, since it writes outside the build folder."""
_EVERY = 10**9
"""A limit above the number of texts of any corpus, for settings without a limit."""


@dataclass
class Request:
    """A request for a graph: the recipe, its targets and the last stage."""

    recipe: Recipe
    file: Path
    last_stage: StageName
    """The last stage."""
    targets: list[Target]
    device: str = "host"
    thorough: bool = False
    """Whether verification tries every sequence length and every token id."""


@dataclass
class _Files:
    """The nodes of one recipe, filled in stage by stage."""

    branch: Branch
    targets: list[Target]
    thorough: bool = False
    student: Node | None = None
    heads: dict[str, Node] = field(default_factory=dict)
    """The checkpoints of the other heads, laid out like a student, by the heads' names."""
    models: dict[Target, Node] = field(default_factory=dict)
    parities: dict[Target, Node] = field(default_factory=dict)
    texts: list[Unlabelled] = field(default_factory=list)
    """The calibration set of `[quantize]`; empty until it is read."""
    training_texts: list[Unlabelled] = field(default_factory=list)
    """The training texts of `[quantize.training]`; empty until they are read."""
    first: tuple[Node, ...] = ()
    """The references, which come before any conversion; none where nothing is verified."""

    @property
    def recipe(self) -> Recipe:
        return self.branch.recipe


def build(request: Request, store: Store | None = None) -> Graph:
    """Return the graph of a request, after all checks that need no artifact to be made.

    Args:
        request: the recipe, and the last stage to build.
        store: compression stages with a finished artifact in it need no trial on the meta device; None: no store.

    Raises:
        PipelineError: the first setting, checkpoint or dataset that cannot work.
    """
    if find_device(request.device).app_system is not None:
        raise InputError(
            f"{request.device} is a phone: `pocketbert benchmark RECIPE --device {request.device}` measures there; the "
            "other verbs measure on this machine."
        )
    depth = STAGES.index(request.last_stage)
    own = _Files(branch_for(request.recipe, request.file), request.targets, request.thorough)
    beside = _beside(request) if depth >= STAGES.index("benchmark") else []
    every = [own, *beside]
    check_names(one for files in every for one in files.branch.every())
    finished = FinishedCheckpoints(store)
    for files in every:
        last_stage = request.last_stage if files is own else "verify"
        prepare(files.branch, last_stage, finished, root=files is own)
        if depth >= STAGES.index("verify"):
            _check_data(files)
    graph = Graph(request.recipe.name)
    for files in every:
        _lay_out(graph, files, depth if files is own else STAGES.index("verify"))
    if depth >= STAGES.index("benchmark"):
        timings = _benchmark(request, every)
        graph.include(timings)
        if depth >= STAGES.index("report"):
            graph.include(_report(request, every, timings, store))
    return graph


def _beside(request: Request) -> list[_Files]:
    """Return the recipes of `[beside]`, each with the targets that the benchmark and the report show."""
    recipe, found = request.recipe, []
    for name, section in recipe.beside.items():
        parsed, file = read_other(name, request.file)
        if parsed.task != recipe.task or parsed.name == recipe.name:
            fault = "is the recipe itself" if parsed.name == recipe.name else f"is for {parsed.task}"
            raise RecipeError(
                f"{request.file}: beside.{name} {fault}; another recipe for {recipe.task} can stand there."
            )
        targets = choose_targets(parsed, section.targets or ())
        if len(request.targets) < len(convert.targets(recipe)):
            targets = [target for target in targets if target in request.targets]
        if targets:
            found.append(_Files(branch_for(parsed, file), targets))
    return found


def _check_data(files: _Files) -> None:
    """Read the labelled datasets before any work, so that missing or malformed data and other labels fail early."""
    for branch in (files.branch, *files.branch.heads.values()):
        task, choice = tasks.get(branch.recipe.task), branch.datasets
        usable, _ = reference.chosen_datasets(task, choice)
        for dataset in usable:
            misfit = reference.misfit_of(dataset, task, branch.end.source.labels) if choice else None
            if misfit:
                key = "verify.datasets" if branch.head is None else f"heads.{branch.head}.datasets"
                raise InputError(
                    f"dataset {dataset.name} does not fit the checkpoint: {misfit}. Name another one in {key}, "
                    'or ["none"] to go without a task metric.'
                )
            dataset.load()
        for collection in branch.collections[0]:
            collection.load()


def _lay_out(graph: Graph, files: _Files, depth: int) -> None:
    """Add a recipe's nodes up to the stage at index `depth` of `STAGES`."""
    end = files.branch.trained if depth == STAGES.index("train") else files.branch.end
    if end and end.node:
        needed = end.node.ancestors()
        # Nodes of other recipes stand first in the plan.
        others = [one.end.node for one in files.branch.before.values()]
        graph.include(*(node for node in others if node and node.identity in needed), end.node)
    if depth < STAGES.index("student"):
        return
    files.student = _student(files.branch)
    files.heads = {name: _other_head(head, files.student) for name, head in files.branch.heads.items()}
    graph.include(files.student, *files.heads.values())
    if depth < STAGES.index("convert"):
        return
    if depth >= STAGES.index("verify"):
        # A student at chance is known after PyTorch alone, and no conversion begins before.
        longest = {files.recipe.lengths(target.backend)[-1] for target in files.targets}
        files.first = tuple(node for length in sorted(longest) for node in _references(files, length).values())
    for target in files.targets:
        files.models[target] = _convert(files, target)
        graph.include(files.models[target])
    if depth < STAGES.index("verify"):
        return
    for target in files.targets:
        files.parities[target] = _verify(files, target)
        graph.include(files.parities[target])


# --- student, reference, files, verdicts -----------------------------------------------------------------------------


def _student(branch: Branch) -> Node:
    recipe, end = branch.recipe, branch.end
    calibration = thresholds.find(recipe, branch.file, end.source, branch.trained_on)
    params = student.order_params(recipe, end.source, calibration)
    return Node(
        recipe=recipe.name,
        name="student",
        place="student",
        stage="student",
        version=student.VERSION,
        params=params,
        inputs={"source": end.input},
        tools=versions("transformers", "tokenizers", "torch"),
        function=make_student,
        arguments=(Input("source"), recipe.task, params["published"], calibration),
        estimate=_estimate(branch, 10),
        inexact_files=(golden.GOLDEN,),
    )


def make_student(
    source: Path, task: str, says_what_it_is: bool, calibration: Calibration | None, out: Path
) -> dict[str, Any]:
    """Lay a student out; the function of a `student` node. See `student.make`."""
    return student.make(source, task, says_what_it_is, out, calibration)


def _other_head(branch: Branch, main: Node) -> Node:
    """Return the node of another head's checkpoint, which has to have the student's encoder."""
    recipe, end = branch.recipe, branch.end
    assert branch.head
    params = student.order_params(recipe, end.source)
    node = Node(
        recipe=recipe.name,
        name="student",
        place="student",
        stage="head",
        version=student.VERSION + other_head.VERSION,
        params=params | {"head": branch.head},
        inputs={"student": main, "source": end.input},
        tools=main.tools,
        function=other_head.make,
        arguments=(Input("student"), branch.head, Input("source"), recipe.task, params["published"]),
        estimate=_estimate(branch, 12),
        inexact_files=(golden.GOLDEN,),
    )
    return _placed(branch, node)


def _placed(branch: Branch, node: Node) -> Node:
    """Return a node with the name and the place that it has for another head."""
    return replace(node, name=branch.label(node.name), place=branch.place(node.place))


def reference_node(
    recipe: Recipe,
    laid_out: Node,
    datasets: reference.DatasetChoice,
    length: int,
    *,
    exempt: bool,
    collections: tuple[Sequence[Source], Mapping[str, str]] = ((), MappingProxyType({})),
) -> Node:
    """Return the node of the reference: fp32 PyTorch's outputs, for converted files up to a sequence length.

    Args:
        recipe: whose reference it is.
        laid_out: the node of the student.
        datasets: those of the task metric.
        length: tokens at which rows are truncated.
        exempt: whether the student may be at chance.
        collections: by which embeddings are judged in search, and those that are absent, with the reason.
    """
    found, absent = collections
    return Node(
        recipe=recipe.name,
        name=f"reference {length}",
        place=f"reference-{length}",
        stage="reference",
        version=reference.VERSION,
        params=reference.order_params(tasks.get(recipe.task), datasets, length, found),
        inputs={"student": laid_out},
        tools=versions("torch", "transformers"),
        function=make_reference,
        arguments=(Input("student"), recipe.task, datasets, length, exempt, list(found), dict(absent)),
        estimate=Estimate(30, 10_000_000, size_bytes=laid_out.estimate.size_bytes),
        inexact_files=(reference.OUTPUTS,),
    )


def make_reference(
    laid_out: Path,
    task: str,
    datasets: reference.DatasetChoice,
    length: int,
    exempt: bool,
    collections: Sequence[Source],
    absent: Mapping[str, str],
    out: Path,
) -> dict[str, Any]:
    """Run the student over all texts; the function of a `reference` node. See `reference.make`."""
    return reference.make(laid_out, task, datasets, length, out, exempt=exempt, collections=collections, absent=absent)


def _quantise(files: _Files, scheme: str) -> Node | None:
    """Return the node of the quantised checkpoint that a scheme's files are converted from.

    None if they are converted from the student itself.
    """
    recipe = files.recipe
    section = quantize.section_for(recipe.quantize, scheme)
    bare_table = files.branch.end.source.architecture.states_are_rows
    # SmoothQuant's scales stand around linears; where there are none, the student is what they would leave.
    if section is None or (bare_table and not SCHEMES[scheme].calibrated):
        return None
    assert files.student
    if not files.texts:
        files.texts += quantize.calibration_set(section, files.branch.file, files.branch.judged)
    settings = section.model_dump(mode="json", exclude={"calibration", "training", "policy"})
    eight = _eight_bits(files, section)
    node = Node(
        recipe=recipe.name,
        name=f"quantize {scheme}",
        place=f"quantised-{scheme}",
        stage="quantize",
        version=quantize.version(scheme),
        params={
            "task": recipe.task,
            "scheme": scheme,
            "settings": settings,
            "eight_bits": eight,
            "texts": artifact.digest_of(files.texts),
        },
        inputs={"student": files.student},
        tools=versions(*quantize.DISTRIBUTIONS),
        function=quantize.make,
        arguments=(Input("student"), recipe.task, scheme, section, eight, files.texts),
        estimate=_estimate(files.branch, _quantise_seconds(files.branch, scheme), kind=scheme),
    )
    settings_of_training = quantize.trained(scheme, section)
    return node if settings_of_training is None else _train_quantised(files, node, scheme, settings_of_training)


def _quantise_seconds(branch: Branch, scheme: str) -> float:
    """Estimate the seconds of a calibration; to choose each number on text takes ten times as long as ranges do."""
    return 10.0 + (240.0 if SCHEMES[scheme].chosen else 15.0) * branch.end.source.weights_bytes / 90e6


def _eight_bits(files: _Files, section: QuantizeSection) -> tuple[str, ...]:
    """Return the names of the linears that the recipe's policy quantises to eight bits."""
    return policy.read(locate(section.policy, files.branch.file)).eight_bits if section.policy else ()


def _quantise_request(files: _Files, scheme: str) -> quantize.QuantiseRequest:
    """Return the properties that verification expects of a scheme's quantised checkpoint."""
    section = quantize.section_for(files.recipe.quantize, scheme)
    assert section
    trained = quantize.trained(scheme, files.recipe.quantize) is not None
    return quantize.QuantiseRequest(trained, _eight_bits(files, section), section.table_bits)


def _train_quantised(files: _Files, quantised: Node, scheme: str, settings: QuantizeTraining) -> Node:
    """Return the node of quantisation-aware training, which starts from a quantised checkpoint."""
    recipe = files.recipe
    assert files.student
    assert recipe.quantize
    if not files.training_texts:
        names, key = settings.texts or recipe.quantize.calibration, "quantize.training.texts"
        count = settings.max_rows or _EVERY
        files.training_texts += calibration.texts(
            names,
            files.branch.file,
            count,
            seed=settings.seed,
            key=key,
            default=calibration.texts_of_many_kinds,
            judged=files.branch.judged,
        )
    texts = files.training_texts
    return Node(
        recipe=recipe.name,
        name=f"train {scheme}",
        place=f"trained-{scheme}",
        stage="quantize-training",
        version=quantize.VERSION,
        params={"task": recipe.task, "scheme": scheme, **quantize.training_params(settings, texts)},
        inputs={"student": files.student, "quantised": quantised},
        tools=versions(*quantize.DISTRIBUTIONS, "accelerate"),
        function=quantize.train,
        arguments=(Input("student"), Input("quantised"), recipe.task, scheme, settings, texts, Scratch()),
        estimate=_estimate(files.branch, 1500, kind=scheme),
        needs="machine",
    )


def _convert(files: _Files, target: Target) -> Node:
    recipe, backend = files.recipe, formats.get(target.backend)
    assert files.student
    inputs: dict[str, Node] = {"student": files.student, **_by_head(files.heads)}
    quantised = _quantise(files, target.scheme)
    if quantised:
        inputs["quantised"] = quantised
    elif backend.BASE_SCHEME not in (None, target.scheme):
        base = Target(target.backend, str(backend.BASE_SCHEME))
        inputs["base"] = files.models.get(base) or _convert(files, base)
    weights = files.branch.end.source.weights_bytes
    arguments = (
        Input("student"),
        target,
        recipe.lengths(target.backend),
        recipe.minimum_ios(target.backend),
        Input("base") if "base" in inputs else None,
        Input("quantised") if "quantised" in inputs else None,
        recipe.gates(target.scheme),
        [
            (name, Input(_BY_HEAD.format(name)), branch.recipe.gates(target.scheme))
            for name, branch in files.branch.heads.items()
        ],
    )
    sources = {name: branch.end.source for name, branch in files.branch.heads.items()}
    return Node(
        recipe=recipe.name,
        name=f"convert {target}",
        place=f"{target}/model",
        stage="convert",
        version=convert.VERSION,
        params=convert.order_params(recipe, target, files.branch.end.source, sources),
        inputs=inputs,
        tools=versions(*backend.DISTRIBUTIONS),
        function=convert_file,
        arguments=arguments,
        estimate=Estimate(
            _convert_seconds(weights, target, made_from_base="base" in inputs) * (1 + len(sources)),
            _file_bytes(files, target),
            2_000_000_000 + 4 * weights,
            f"{target} of its base" if "base" in inputs else str(target),
            weights,
        ),
        worker=f"convert-{target.backend}",
        after=files.first,
    )


_BY_HEAD = "student of {}"
"""Name of an input that is another head's checkpoint, by the head's name."""


def _by_head(heads: Mapping[str, Node]) -> dict[str, Node]:
    """Return checkpoints of other heads as the inputs of a node."""
    return {_BY_HEAD.format(name): node for name, node in heads.items()}


def _convert_again(files: _Files, target: Target) -> Node:
    """Return a node that repeats a conversion; thorough verification compares the two files."""
    first = _convert(files, target)
    inputs = dict(first.inputs)
    if "base" in inputs:
        inputs["base"] = _convert_again(files, Target(target.backend, str(formats.get(target.backend).BASE_SCHEME)))
    place = f"{target}/again"
    return replace(
        first, name=f"convert {target} again", place=place, params=dict(first.params) | {"again": True}, inputs=inputs
    )


def convert_file(
    laid_out: Path,
    target: Target,
    lengths: tuple[int, ...],
    ios: int | None,
    base: Path | None,
    quantised: Path | None,
    gates: Gates,
    heads: Sequence[tuple[str, Path, Gates]],
    out: Path,
) -> dict[str, Any]:
    """Convert one target; the function of a `convert` node. See `convert.make`."""
    others = [convert.HeadToConvert(name, opened(folder), of_head) for name, folder, of_head in heads]
    return convert.make(opened(laid_out), target, lengths, ios, base, quantised, gates, out, others)


def opened(folder: Path) -> Artifact:
    """Return the artifact in a folder without checking its files: the executor has checked them."""
    return Artifact(folder, artifact.read_manifest(folder))


def _convert_seconds(weights: int, target: Target, *, made_from_base: bool) -> float:
    """Estimate the seconds of a conversion, from the time measured for MiniLM (90 MB of weights).

    Half of it is the toolchain's start and the graph, which the smallest student has as well.
    """
    return (3.0 if made_from_base else formats.get(target.backend).CONVERT_SECONDS) * (0.5 + 0.5 * weights / 90e6)


def _file_bytes(files: _Files, target: Target) -> int:
    """Estimate the size of a converted file."""
    source = files.branch.end.source
    sizes = [(shape, math.prod(shape)) for shape in source.tensor_shapes().values()]
    rows = source.config.get("vocab_size")
    table = max((size for shape, size in sizes if len(shape) == 2 and shape[0] == rows), default=0)
    bits = files.recipe.quantize.table_bits if files.recipe.quantize else QuantizeSection().table_bits
    return SCHEMES[target.scheme].file_bytes(table, sum(size for _, size in sizes) - table, bits)


def _estimate(branch: Branch, seconds: float, *, kind: str = "") -> Estimate:
    """Return the estimate of a node that writes a checkpoint."""
    weights = branch.end.source.weights_bytes
    return Estimate(seconds, weights, kind=kind, size_bytes=weights)


def _metric_versions(branch: Branch) -> dict[str, int]:
    """Return the versions of the metrics by which a checkpoint's datasets are scored."""
    usable, _ = reference.chosen_datasets(tasks.get(branch.recipe.task), branch.datasets)
    return {dataset.metric: scoring.METRICS[dataset.metric].version for dataset in usable}


def _gates_of_head(branch: Branch, target: Target) -> Gates:
    """Return the bounds of another head; the file's size is judged once, with the student's own."""
    return branch.recipe.gates(target.scheme).model_copy(update={"max_bytes_per_parameter": None})


def _references(files: _Files, length: int) -> dict[str | None, Node]:
    """Return the nodes of the references up to a length: the student's own at None, other heads' at their names."""
    assert files.student
    every: dict[str | None, tuple[Branch, Node]] = {None: (files.branch, files.student)}
    every |= {name: (branch, files.heads[name]) for name, branch in files.branch.heads.items()}
    found: dict[str | None, Node] = {}
    for name, (branch, laid_out) in every.items():
        exempt = files.recipe.student.random_weights
        node = reference_node(
            branch.recipe, laid_out, branch.datasets, length, exempt=exempt, collections=branch.collections
        )
        found[name] = node if name is None else _placed(branch, node)
    return found


def _verify(files: _Files, target: Target) -> Node:
    recipe, backend = files.recipe, formats.get(target.backend)
    assert files.student
    quantised = files.models[target].inputs.get("quantised")
    request = verify.VerifyRequest(
        target,
        recipe.gates(target.scheme),
        random_weights=recipe.student.random_weights,
        thorough=files.thorough,
        checkpoint=_quantise_request(files, target.scheme) if quantised else quantize.QuantiseRequest(),
    )
    params = {
        "gates": request.gates.model_dump(),
        "random_weights": request.random_weights,
        "thorough": request.thorough,
        "checkpoint": asdict(request.checkpoint),
        "evaluators": [evaluator.name for evaluator in backend.evaluators()],
        "metrics": _metric_versions(files.branch),
    }
    longest = recipe.lengths(target.backend)[-1]
    heads = {
        name: replace(request, gates=_gates_of_head(branch, target)) for name, branch in files.branch.heads.items()
    }
    if heads:
        params["heads"] = {
            name: {"gates": of_head.gates.model_dump(), "metrics": _metric_versions(files.branch.heads[name])}
            for name, of_head in heads.items()
        }
    references = _references(files, longest)
    again = {"again": _convert_again(files, target)} if files.thorough else {}
    return Node(
        recipe=recipe.name,
        name=f"verify {target}",
        place=f"{target}/parity",
        stage="verify",
        version=verify.VERSION,
        params=params,
        inputs={
            "model": files.models[target],
            "student": files.student,
            "reference": references.pop(None),
            **({"quantised": quantised} if quantised else {}),
            **again,
            **_by_head(files.heads),
            **{_REFERENCE_BY_HEAD.format(name): node for name, node in references.items()},
        },
        tools=versions(backend.DISTRIBUTIONS[0]),
        function=verify_file,
        arguments=(
            Input("model"),
            Input("student"),
            Input("quantised") if quantised else None,
            Input("reference"),
            Input("again") if again else None,
            request,
            [
                (name, Input(_BY_HEAD.format(name)), Input(_REFERENCE_BY_HEAD.format(name)), of_head)
                for name, of_head in heads.items()
            ],
        ),
        estimate=Estimate(
            20 * (1 + len(heads)),
            200_000,
            kind=f"{target} thorough" if files.thorough else str(target),
            size_bytes=files.branch.end.source.weights_bytes,
        ),
        worker=f"verify-{target.backend}",
        threads=1,
        when_it_dies=record_crash,
    )


_REFERENCE_BY_HEAD = "reference of {}"
_HeadInputs = Sequence[tuple[str, Path, Path, verify.VerifyRequest]]


def verify_file(
    model: Path,
    laid_out: Path,
    quantised: Path | None,
    reference_folder: Path,
    again: Path | None,
    request: verify.VerifyRequest,
    heads: _HeadInputs,
    out: Path,
) -> dict[str, Any]:
    """Judge one target; the function of a `verify` node. See `verify.make`."""
    others = [verify.HeadToVerify(*one) for one in heads]
    return verify.make(model, laid_out, quantised, reference_folder, again, request, out, others)


def record_crash(
    crash: str,
    model: Path,
    laid_out: Path,
    quantised: Path | None,
    reference_folder: Path,
    again: Path | None,
    request: verify.VerifyRequest,
    heads: _HeadInputs,
    out: Path,
) -> dict[str, Any]:
    """Judge a target whose file took its process down. See `verify.record_crash`."""
    others = [verify.HeadToVerify(*one) for one in heads]
    return verify.record_crash(crash, model, laid_out, quantised, reference_folder, again, request, out, others)


# --- times and the report -----------------------------------------------------------------------------------------


def _benchmark(request: Request, every: Sequence[_Files]) -> Node:
    """Return the node that times all runnable targets of all recipes in one run, beside PyTorch."""
    recipe, (own, *_) = request.recipe, every
    assert own.student
    section = recipe.benchmark
    inputs: dict[str, Node] = {"student": own.student}
    variants: list[tuple[Input, str]] = []
    for files in every:
        whose = "" if files is own else files.recipe.name
        for target, model in files.models.items():
            if not formats.get(target.backend).no_runtime():
                name = "/".join(filter(None, (whose, str(target))))
                inputs[name] = model
                variants.append((Input(name), whose))
    longest = max(recipe.lengths(target.backend)[-1] for target in own.targets)
    lengths = [length for length in section.lengths if length < longest] + [longest]
    cores = host.usable_cores()
    threads = [1, cores] if cores > 1 else [1]
    texts = everyday_sentences()[: section.texts]
    machine = host.describe()
    used = sorted({target.backend for files in every for target in files.targets})
    seconds = (len(variants) + 1) * len(threads) * (section.rounds * len(lengths) * section.block_ms / 1e3 + 8)
    return Node(
        recipe=recipe.name,
        name="benchmark",
        place=f"benchmark-{request.device}",
        stage="benchmark",
        version=benchmark.VERSION,
        params={
            "settings": section.model_dump(),
            "lengths": lengths,
            "threads": threads,
            "texts": artifact.digest_of(texts),
            "machine": [machine.model_id, machine.cpu_features, machine.os],
        },
        inputs=inputs,
        tools=versions("torch", *(formats.get(name).DISTRIBUTIONS[0] for name in used)),
        function=time_files,
        arguments=(Input("student"), variants, lengths, texts, threads, section, Log()),
        estimate=Estimate(seconds, 3_000_000, size_bytes=own.student.estimate.size_bytes),
        needs="quiet",
        worker="benchmark",
    )


def time_files(
    laid_out: Path,
    models: Sequence[tuple[Path, str]],
    lengths: Sequence[int],
    texts: Sequence[str],
    threads: Sequence[int],
    section: BenchmarkSection,
    log: Path,
    out: Path,
) -> Mapping[str, Any]:
    """Time converted files; the function of the `benchmark` node. See `benchmark.make`."""
    variants = [benchmark.of_student(opened(laid_out), lengths[-1])]
    variants += [benchmark.of_target(opened(model), whose) for model, whose in models]
    return benchmark.make(variants, lengths, texts, threads, section, out, log=log, tell=tell)


def _report(request: Request, every: Sequence[_Files], timings: Node, store: Store | None) -> Node:
    inputs: dict[str, Node | External] = {"benchmark": timings}
    # Records of phones and emulated processors are included if they exist; a run does not make them.
    beside = measured.find(store.root.parent / request.recipe.name, request.device) if store else {}
    inputs |= {name: External(file, artifact.sha256_file(file)) for name, file in beside.items()}
    members, texts = [], []
    # No path of this machine: who reads the report has the recipe elsewhere.
    named = request.recipe.name if request.file.parent == loading.RECIPES else request.file.name
    for number, files in enumerate(every):
        whose = "" if number == 0 else f"{files.recipe.name}/"
        assert files.student
        inputs[f"{whose}student"] = files.student
        targets = {}
        for target in files.targets:
            inputs[f"{whose}{target}"], inputs[f"{whose}{target} parity"] = files.models[target], files.parities[target]
            targets[str(target)] = f"{whose}{target}"
        names = [(target, Input(name), Input(f"{name} parity")) for target, name in targets.items()]
        texts.append(_texts(files))
        # Of students beside it, files alone are shown.
        quantised = _quantised(files) if number == 0 else {}
        inputs |= {f"quantised {scheme}": node for scheme, node in quantised.items()}
        found = [(scheme, Input(f"quantised {scheme}")) for scheme in quantised]
        members.append((files.recipe, Input(f"{whose}student"), names, texts[-1], found))
    return Node(
        recipe=every[0].recipe.name,
        name="report",
        place="report",
        stage="report",
        version=report.VERSION,
        params={"recipe": [files.recipe.model_dump(mode="json") for files in every], "texts": texts, "named": named},
        inputs=inputs,
        tools=versions("matplotlib", "jinja2"),
        function=write_report,
        arguments=(named, members, Input("benchmark"), [(name, Input(name)) for name in beside]),
        estimate=Estimate(6, 2_000_000, 500_000_000),
        worker="report",
        counts_manifest=True,
        copied=True,
    )


def _quantised(files: _Files) -> dict[str, Node]:
    """Return the nodes of the quantised checkpoints that targets are converted from, by scheme."""
    made = {target.scheme: model.inputs.get("quantised") for target, model in files.models.items()}
    return {scheme: node for scheme, node in made.items() if isinstance(node, Node)}


def _texts(files: _Files) -> dict[str, str]:
    """Return the digests of the verification texts and datasets, by name; they are the same for every length."""
    longest = files.recipe.lengths(files.targets[0].backend)[-1]
    collections, _ = files.branch.collections
    params = reference.order_params(tasks.get(files.recipe.task), files.branch.datasets, longest, collections)
    return {VERIFICATION: artifact.digest_of(params["texts"]), **params["datasets"], **params.get("collections", {})}


def write_report(
    named: str,
    members: Sequence[
        tuple[Recipe, Path, Sequence[tuple[str, Path, Path]], Mapping[str, str], Sequence[tuple[str, Path]]]
    ],
    timings: Path,
    beside: Sequence[tuple[str, Path]],
    out: Path,
) -> Mapping[str, Any]:
    """Write the report; the function of the `report` node. See `report.make`."""
    own, *others = (
        report.RecipeResults(
            recipe,
            artifact.read_manifest(laid_out),
            {target: (opened(model), opened(parity)) for target, model, parity in targets},
            texts,
            named if number == 0 else None,
            dict(quantised),
        )
        for number, (recipe, laid_out, targets, texts, quantised) in enumerate(members)
    )
    return report.make(own, others, timings, out, dict(beside))
