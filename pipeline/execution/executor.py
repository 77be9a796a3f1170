"""Carry out a graph: look up finished artifacts, hand the other nodes to an executor, and report each outcome.

An executor runs single nodes: `local` on this machine's cores, `ray` on a cluster. It knows neither views nor the order
of nodes, and no stage knows which executor runs it.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pipeline.artifact import Artifact, Manifest, Spec, digest_of, read_manifest
from pipeline.errors import ArtifactError
from pipeline.execution.node import External, Graph, Node, resolve
from pipeline.execution.pace import Pace
from pipeline.execution.store import Store

_PATIENCE_SECONDS = 0.5
_NAMED = 3
FETCHED = "in the remote store"


class Progress(Protocol):
    """The callbacks of a running graph."""

    def started(self, step: str) -> None:
        """Called when a node begins."""

    def advanced(self, step: str, what: str, fraction: float) -> None:
        """Called when a long node has finished a fraction of its work."""

    def finished(self, step: "Step") -> None:
        """Called when a node is made, or skipped because its artifact exists."""

    def note(self, text: str) -> None:
        """Called with a message for the user."""


@dataclass
class Step:
    """The outcome of a node; in a plan, the expected one."""

    name: str
    place: Path
    """The view through which people find it."""
    made: bool
    """Whether the artifact had to be made; in a plan, whether it has to be."""
    reason: str
    """Why it had to be made; empty if it existed."""
    seconds: float
    """Seconds that the node took; in a plan, the estimate."""
    disk_bytes: int
    """Estimated size on disk, in a plan; 0 otherwise."""
    artifact: Artifact | None = None
    key: str | None = None
    """Key of the artifact; None in a plan if an input is not made yet."""


@dataclass(frozen=True)
class Job:
    """A node that is ready to run, with everything that an executor hands to a process."""

    name: str
    place: Path
    """Its folder in the store."""
    spec: Spec
    function: Callable[..., Mapping[str, Any]]
    arguments: list[Any]
    node: Node
    log: Path


class Executor(Protocol):
    """The protocol of an executor, which runs nodes."""

    @property
    def here(self) -> bool:
        """Whether nodes run on this machine, so that what they took tells of its pace."""

    def has_room(self, node: Node) -> bool:
        """Return whether the node may begin now, beside the running nodes."""

    def submit(self, job: Job, tell: Callable[[str, float], None]) -> Future[Manifest]:
        """Begin a node; wherever it runs, `store.make` fills its folder in the store."""

    def stop(self) -> None:
        """End all running nodes at once."""

    def close(self) -> None:
        """Release the worker processes; called when no node runs any more."""


@dataclass
class Outcome:
    """The outcome of a graph: steps in the order in which they finished, and the artifacts."""

    graph: Graph
    steps: list[Step] = field(default_factory=list)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    """The artifacts by the identity of their nodes; in a plan, the existing ones."""

    def artifact(self, node: Node | None) -> Artifact | None:
        """Return a node's artifact, or None if it is not made."""
        return self.artifacts.get(node.identity) if node else None

    def at(self, recipe: str, place: str) -> Artifact | None:
        """Return the artifact behind a recipe's view, or None."""
        return self.artifact(self.graph.at(recipe, place))


def plan(graph: Graph, store: Store, pace: Pace | None = None) -> Outcome:
    """Return the expected outcome of a graph: for each node, whether it would be made and why. Nothing is written.

    Args:
        graph: the nodes.
        store: the artifacts that exist.
        pace: corrects the estimated seconds; None leaves them.
    """
    outcome = Outcome(graph)
    known: dict[str, Artifact] = {}
    for identity, node in graph.nodes.items():
        spec = spec_of(node, known)
        found = store.lookup(spec) if spec else None
        elsewhere = store.elsewhere(spec) if spec and found is None else None
        if found:
            outcome.artifacts[identity] = found
        if there := found or elsewhere:
            known[identity] = there
        estimate = node.estimate
        step = Step(
            graph.name(node),
            store.build / graph.place(node),
            there is None,
            FETCHED if elsewhere else "" if found else _reason(node, spec, outcome, store),
            0.0 if there else pace.seconds(node) if pace else estimate.seconds,
            sum(one.bytes for one in elsewhere.manifest.files) if elsewhere else 0 if found else estimate.disk_bytes,
            found,
            spec.key if spec else None,
        )
        outcome.steps.append(step)
    return outcome


def carry_out(graph: Graph, store: Store, executor: Executor, progress: Progress, pace: Pace | None = None) -> Outcome:
    """Make every node of a graph without a finished artifact, as many in parallel as the executor has room for.

    Args:
        graph: the nodes.
        store: the artifacts that exist, and where new ones go.
        executor: runs the nodes.
        progress: called when nodes begin and finish.
        pace: takes down what the nodes took; None where they run on other machines than this.

    Raises:
        BaseException: the first error of any node. Nodes that run beside it finish first, unless it is Ctrl-C.
    """
    run = _Run(graph, store, executor, progress)
    try:
        run.go()
    except KeyboardInterrupt:
        executor.stop()
        raise
    finally:
        run.let_go()
        executor.close()
        if pace:
            pace.record(run.took)
    return run.outcome


class _Run:
    """The state of one run through a graph."""

    def __init__(self, graph: Graph, store: Store, executor: Executor, progress: Progress) -> None:
        self.outcome = Outcome(graph)
        self._graph, self._store, self._executor, self._progress = graph, store, executor, progress
        self._waiting = dict(graph.nodes)
        self._absent: dict[str, Spec] = {}
        """Specs of the nodes whose inputs are made and whose own artifact is not, by identity."""
        self._running: dict[Future[Manifest], tuple[Node, Spec, str, float]] = {}
        self._held: dict[str, ExitStack] = {}
        self._noted: set[str] = set()
        self._urgency = graph.urgency()
        self.took: list[tuple[Node, float]] = []
        """The nodes that were made from their beginning, with the seconds that each took."""
        self._continued: set[str] = set()
        """Keys of nodes that go on where a stopped run was, which says little of their time."""

    def go(self) -> None:
        """Make all nodes.

        Raises:
            BaseException: the first error, raised once no node runs any more.
        """
        failed: BaseException | None = None
        while self._running or (failed is None and (self._waiting or self._absent)):
            if failed is None:
                self._look_up()
                self._begin()
            if not self._running:
                if self._absent:
                    # Another run makes the next artifact.
                    time.sleep(_PATIENCE_SECONDS)
                continue
            done, _ = wait(self._running, timeout=_PATIENCE_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                try:
                    self._finish(future)
                except BaseException as error:
                    if isinstance(error, KeyboardInterrupt):
                        raise
                    failed = failed or error
        if failed is not None:
            raise failed

    def _look_up(self) -> None:
        """Look up the artifacts of all waiting nodes whose inputs are made."""
        for identity, node in list(self._waiting.items()):
            spec = spec_of(node, self.outcome.artifacts)
            if spec is None or any(one.identity not in self.outcome.artifacts for one in node.after):
                continue
            del self._waiting[identity]
            found = self._store.lookup(spec)
            if found:
                self._take(node, found, Step(self._graph.name(node), Path(), False, "", 0.0, 0), spec)
            else:
                self._absent[identity] = spec

    def _begin(self) -> None:
        """Submit the nodes that may begin now, those with the longest remaining path first."""
        for identity in sorted(self._absent, key=self._turn):
            node, spec = self._graph.nodes[identity], self._absent[identity]
            if not self._executor.has_room(node):
                # A node with large needs would wait for ever if smaller ones overtook it.
                return
            if not self._hold(node, spec):
                continue
            del self._absent[identity]
            found = self._store.lookup_and_hold(spec)
            if found:
                self._release(spec)
                self._take(node, found, Step(self._graph.name(node), Path(), False, "", 0.0, 0), spec)
                return
            self._submit(node, spec)

    def _turn(self, identity: str) -> tuple[bool, float]:
        """Return the sort key of a node: quiet ones last, then the longest remaining path first."""
        return self._graph.nodes[identity].needs == "quiet", -self._urgency[identity]

    def _hold(self, node: Node, spec: Spec) -> bool:
        """Hold a node's key and return True; if another run holds it, note that once and return False."""
        stack = ExitStack()
        if not stack.enter_context(self._store.making(spec.key)):
            if spec.key not in self._noted:
                self._noted.add(spec.key)
                self._progress.note(f"another run makes {self._graph.name(node)}; waiting for it")
            return False
        self._held[spec.key] = stack
        return True

    def _release(self, spec: Spec) -> None:
        self._held.pop(spec.key).close()

    def _check_room(self, node: Node) -> None:
        """Refuse to begin a node if the disk is too small for the estimated size of all artifacts still to be made.

        Raises:
            ArtifactError: there is too little room.
        """
        left = [node, *(self._graph.nodes[identity] for identity in (*self._waiting, *self._absent))]
        needed = sum(one.estimate.disk_bytes for one in left)
        free = shutil.disk_usage(self._store.root).free
        if needed > free:
            raise ArtifactError(
                f"no space left on {self._store.build}: {self._graph.name(node)} and what follows need about "
                f"{needed / 1e6:.0f} MB, and {free / 1e6:.0f} MB are free. Free about {(needed - free) / 1e6:.0f} MB, "
                "or choose another folder with --build. Finished artifacts stay."
            )

    def _submit(self, node: Node, spec: Spec) -> None:
        self._check_room(node)
        name = self._graph.name(node)
        damage = self._store.damage(spec)
        reason = damage or _reason(node, spec, self.outcome, self._store)
        if damage:
            self._progress.note(f"{name}: {damage}; made again")
        self._progress.started(name)
        kept = self._graph.nodes[node.identity]
        # Absolute, for processes whose working folder is another one.
        log = self._store.root.parent / kept.recipe / "logs" / f"{kept.name.replace(' ', '-')}.log"
        inputs = {
            label: one.path if isinstance(one, External) else self.outcome.artifacts[one.identity].path
            for label, one in node.inputs.items()
        }
        scratch = self._store.scratch(spec.key)
        if scratch.exists():
            self._continued.add(spec.key)
        arguments = resolve(node.arguments, inputs, scratch, self._store.cache, log)
        job = Job(name, self._store.place(spec.key), spec, node.function, arguments, node, log)

        def tell(what: str, fraction: float) -> None:
            self._progress.advanced(name, what, fraction)

        self._running[self._executor.submit(job, tell)] = (node, spec, reason, time.perf_counter())

    def _finish(self, future: Future[Manifest]) -> None:
        node, spec, reason, began = self._running.pop(future)
        try:
            future.result()
            self._store.finished(spec.key)
            # Of what another machine made, the remote store may have had an earlier one, with other last digits.
            manifest = read_manifest(self._store.place(spec.key))
        except BaseException:
            self._store.abandon(spec.key)
            raise
        finally:
            self._release(spec)
        seconds = time.perf_counter() - began
        if spec.key not in self._continued:
            self.took.append((node, seconds))
        step = Step(self._graph.name(node), Path(), True, reason, seconds, 0)
        self._take(node, Artifact(self._store.place(spec.key), manifest), step, spec)

    def _take(self, node: Node, found: Artifact, step: Step, spec: Spec) -> None:
        """Record a node's artifact and step, and let its views show it."""
        self.outcome.artifacts[node.identity] = found
        show = self._store.copy if node.copied else self._store.link
        for place in self._graph.places(node):
            show(self._store.build / place, spec.key)
        step.artifact, step.key, step.place = found, spec.key, self._store.build / self._graph.place(node)
        self.outcome.steps.append(step)
        self._progress.finished(step)

    def let_go(self) -> None:
        """Release the keys that are still held, and remove their half-made folders."""
        for key, stack in self._held.items():
            self._store.abandon(key)
            with contextlib.suppress(OSError):
                stack.close()
        self._held.clear()


def spec_of(node: Node, artifacts: Mapping[str, Artifact]) -> Spec | None:
    """Return what a node's artifact is made from, or None if an input is not made yet."""
    digests = {}
    for parent in node.parents:
        found = artifacts.get(parent.identity)
        if found is None:
            return None
        digests[parent.identity] = counted(node, found.manifest)
    return node.spec(digests)


def counted(node: Node, found: Manifest) -> str:
    """Return the digest by which a node's key counts an input."""
    said = [found.metrics, found.params, found.tools]
    return digest_of([found.digest, *said]) if node.counts_manifest else found.digest


def _reason(node: Node, spec: Spec | None, outcome: Outcome, store: Store) -> str:
    """Return the reason why a node has to be made, compared with the artifact that its view shows."""
    shown = store.in_view(store.build / outcome.graph.place(node))
    if shown is None or shown.stage != node.stage:
        return "new"
    if spec is None:
        again = [name for name, one in node.inputs.items() if isinstance(one, Node) and not outcome.artifact(one)]
        more = f" and {len(again) - _NAMED} more" if len(again) > _NAMED else ""
        return f"what it is made from is made again first: {', '.join(again[:_NAMED])}{more}"
    if shown.key == spec.key:
        return store.damage(spec) or "new"
    return "; ".join(differences(shown, spec)[:3]) or "new"


def differences(shown: Manifest, spec: Spec) -> list[str]:
    """Return the changes of an artifact's version, params, tools and inputs, each as `name: old → new`."""
    told = []
    if shown.stage_version != spec.stage_version:
        told.append(f"stage version {shown.stage_version} → {spec.stage_version}")
    for label, before, now in (("", shown.params, spec.params), ("tools.", shown.tools, spec.tools)):
        told += [f"{key}: {old} → {new}" for key, old, new in _changed(before, now, label)]
    for name in sorted(shown.inputs.keys() | spec.inputs.keys()):
        old, new = shown.inputs.get(name), spec.inputs.get(name)
        if old != new:
            told.append(f"input {name}: {(old or 'none')[:8]} → {(new or 'none')[:8]}")
    return told


def _changed(before: Any, now: Any, label: str) -> list[tuple[str, str, str]]:
    """Return the path, old value and new value of each difference."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        keys = [*before, *(key for key in now if key not in before)]
        return [row for key in keys for row in _changed(before.get(key), now.get(key), f"{label}{key}.")]
    if before == now or list_equal(before, now):
        return []
    return [(label.rstrip("."), _short(before), _short(now))]


def list_equal(before: Any, now: Any) -> bool:
    """Return whether a list read back from JSON, which has no tuples, equals a list or tuple."""
    return isinstance(before, list) and isinstance(now, list | tuple) and before == list(now)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else "none" if value is None else str(value)
    # Digests tell nothing beyond their first characters.
    return f"{text[:8]}…" if len(text) == 64 and text.isalnum() else text if len(text) <= 40 else f"{text[:37]}…"
