"""Build a recipe's graph of nodes. Files are read, and none is written.

Torch is imported only if a compression stage of the recipe has no finished artifact yet: see `checkpoints`.

The recipes named in `[beside]` and the recipes that this one depends on are further roots of the same graph.
"""

from typing import get_args

from pipeline import tasks
from pipeline.convert import stage as convert
from pipeline.convert.targets import choose_targets
from pipeline.devices.table import find_device
from pipeline.errors import InputError, RecipeError
from pipeline.execution.node import Graph
from pipeline.execution.store import Store
from pipeline.planning.branches import StageName, branch_for, check_names, read_other
from pipeline.planning.checkpoints import FinishedCheckpoints, prepare
from pipeline.planning.conversion import convert_node
from pipeline.planning.reporting import benchmark_node, report_node
from pipeline.planning.request import RecipeFiles, Request
from pipeline.planning.students import other_head_node, reference_nodes, student_node
from pipeline.planning.verification import verify_node
from pipeline.student import reference

STAGES: tuple[StageName, ...] = get_args(StageName)
"""The stages in their order. `ship` is not one of them, since it writes outside the build folder."""


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
    own = RecipeFiles(branch_for(request.recipe, request.file), request.targets, request.thorough)
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
        timings = benchmark_node(request, every)
        graph.include(timings)
        if depth >= STAGES.index("report"):
            graph.include(report_node(request, every, timings, store))
    return graph


def _beside(request: Request) -> list[RecipeFiles]:
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
            found.append(RecipeFiles(branch_for(parsed, file), targets))
    return found


def _check_data(files: RecipeFiles) -> None:
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


def _lay_out(graph: Graph, files: RecipeFiles, depth: int) -> None:
    """Add a recipe's nodes up to the stage at index `depth` of `STAGES`."""
    end = files.branch.trained if depth == STAGES.index("train") else files.branch.end
    if end and end.node:
        needed = end.node.ancestors()
        # Nodes of other recipes stand first in the plan.
        others = [one.end.node for one in files.branch.before.values()]
        graph.include(*(node for node in others if node and node.identity in needed), end.node)
    if depth < STAGES.index("student"):
        return
    files.student = student_node(files.branch)
    files.heads = {name: other_head_node(head, files.student) for name, head in files.branch.heads.items()}
    graph.include(files.student, *files.heads.values())
    if depth < STAGES.index("convert"):
        return
    if depth >= STAGES.index("verify"):
        # A student at chance is known after PyTorch alone, and no conversion begins before.
        longest = {files.recipe.lengths(target.backend)[-1] for target in files.targets}
        files.first = tuple(node for length in sorted(longest) for node in reference_nodes(files, length).values())
    for target in files.targets:
        files.models[target] = convert_node(files, target)
        graph.include(files.models[target])
    if depth < STAGES.index("verify"):
        return
    for target in files.targets:
        files.parities[target] = verify_node(files, target)
        graph.include(files.parities[target])
