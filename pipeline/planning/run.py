"""Plan or run a recipe: build its graph, and carry it out on this machine or on another executor."""

from dataclasses import replace
from pathlib import Path

from pipeline import atomic
from pipeline.execution import executor as execution
from pipeline.execution import store as stores
from pipeline.execution.executor import Executor, Outcome, Progress
from pipeline.execution.local import Local
from pipeline.execution.node import Graph
from pipeline.execution.pace import Pace
from pipeline.execution.store import Store
from pipeline.planning import places
from pipeline.planning.build import build
from pipeline.planning.request import Request
from pipeline.verify import stage as verify


def plan(request: Request, folder: Path) -> Outcome:
    """Return the expected outcome of a run: for each node, whether it would be made and why. Nothing is written.

    Args:
        request: the recipe, its targets and the last stage.
        folder: the build folder.
    """
    store = Store(folder)
    return execution.plan(build(request, store), store, Pace())


def run(request: Request, folder: Path, progress: Progress, executor: Executor | None = None) -> Outcome:
    """Make the artifacts of a request that the build folder lacks.

    Args:
        request: the recipe, its targets and the last stage.
        folder: the build folder.
        progress: called when nodes begin and finish.
        executor: runs the nodes; None for this machine's cores.

    Raises:
        PipelineError: the first node's error; artifacts finished by then stay.
    """
    graph = build(request, Store(folder))
    try:
        return carry_out(graph, folder, progress, executor)
    finally:
        places.remember(request.recipe, request.file, folder)


def carry_out(graph: Graph, folder: Path, progress: Progress, executor: Executor | None = None) -> Outcome:
    """Make the artifacts of a graph that the build folder lacks; see `run`."""
    store, limit = Store(folder), stores.limit_bytes()
    with atomic.writing(folder), store.running():
        for place in graph.views:
            store.check_place(folder / place)
        _tell_of_old_folders(graph, folder, progress)
        executor = executor or Local()
        pace = Pace() if executor.here else None
        outcome = execution.carry_out(graph, store, executor, progress, pace)
        removed = store.evict(limit_bytes=limit)
    if removed:
        progress.note(f"the store was beyond its limit of {limit / 1e9:g} GB; removed {len(removed)} unused artifacts")
    return outcome


def parities(outcome: Outcome, recipe: str) -> dict[str, verify.Parity]:
    """Return the parity records that exist, by target; targets of other recipes have their recipe's name in front."""
    found = {}
    for place, node in outcome.graph.views.items():
        made = outcome.artifact(node)
        if node.stage == "verify" and made:
            name = place.parts[1] if place.parts[0] == recipe else f"{place.parts[0]}/{place.parts[1]}"
            found[name] = verify.read_parity(made.path)
    return found


def outdated(request: Request, folder: Path) -> dict[str, str]:
    """Return the targets whose file or verdict was made from other inputs than the recipe has now, with the change."""
    changed = _changed(request, folder)
    if not changed or request.thorough:
        return changed
    # A thorough verdict includes the checks of the usual one.
    still = _changed(replace(request, thorough=True), folder)
    return {target: reason for target, reason in changed.items() if target in still}


def _changed(request: Request, folder: Path) -> dict[str, str]:
    store = Store(folder)
    changed: dict[str, str] = {}
    for step in plan(request, folder).steps:
        recipe, target, *part = step.place.relative_to(folder).parts
        shown = store.in_view(step.place)
        if recipe == request.recipe.name and part in (["model"], ["parity"]) and shown and shown.key != step.key:
            # Where the newer one is says nothing about what changed.
            reason = "" if step.reason == execution.FETCHED else step.reason
            changed.setdefault(target, reason or "its folder shows another artifact")
    return changed


def _tell_of_old_folders(graph: Graph, folder: Path, progress: Progress) -> None:
    """Note once that artifacts of versions without a store will be made again."""
    old = [
        place
        for place, node in graph.views.items()
        if not node.copied and (folder / place).is_dir() and not (folder / place).is_symlink()
    ]
    if old:
        recipes = ", ".join(dict.fromkeys(str(folder / place.parts[0]) for place in old))
        progress.note(f"{recipes} was made by an earlier version, without a store; what it holds is made again")
