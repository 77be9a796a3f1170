"""A recipe's graph as data: each node is an artifact to make, each edge one of its inputs. No toolchain is imported.

A node's key is known once its inputs are made, since it counts their content: if an input is made again with the same
content, the artifacts that depend on it stay valid. A node's `identity` is known before anything is made, so that two
recipes that begin alike share their nodes.
"""

import importlib.metadata
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pipeline.artifact import Spec, digest_of

Needs = Literal["core", "machine", "quiet"]
"""The share of a machine that a node needs: some cores; all cores (and the GPU, if there is one); or a machine that
runs nothing else, since latency is measured."""


@dataclass(frozen=True)
class External:
    """Files outside the build folder that a node reads, known by their content."""

    path: Path
    digest: str
    names: tuple[str, ...] = ()
    """The files that count, where the path is a folder."""


@dataclass(frozen=True)
class Input:
    """A placeholder argument for the folder of an input; the executor replaces it by a `Path`."""

    name: str


@dataclass(frozen=True)
class Scratch:
    """A placeholder argument for a folder that survives a stopped run and is removed once the artifact is complete."""


@dataclass(frozen=True)
class Cache:
    """A placeholder argument for the store's cache: what several nodes use, in a folder named by its content's key."""


@dataclass(frozen=True)
class Log:
    """A placeholder argument for the log file, for the processes that a node starts itself."""


@dataclass(frozen=True)
class Estimate:
    """A rough estimate of a node's time, disk and memory for MiniLM on two cores, for plans and scheduling."""

    seconds: float
    disk_bytes: int
    memory_bytes: int = 1_500_000_000
    kind: str = ""
    """What work of the stage it is, such as a format with a scheme, where that decides the time."""
    size_bytes: int = 0
    """Size of the checkpoint that is worked on."""


@dataclass(frozen=True, eq=False)
class Node:
    """One artifact to make, and the function that makes it."""

    recipe: str
    """The recipe whose folder has the view of it."""
    name: str
    """The name in plans and progress."""
    place: str
    """Path of the view, relative to the recipe's folder."""
    stage: str
    version: int
    params: Mapping[str, Any]
    """The parameters that decide the content; they are part of the key."""
    inputs: "Mapping[str, Node | External]"
    tools: Mapping[str, str]
    """Versions of the distributions that decide the content, by name; they are part of the key."""
    function: Callable[..., Mapping[str, Any]]
    """A module-level function that fills the artifact's directory, its last argument, and returns its metrics."""
    arguments: tuple[Any, ...]
    """The arguments before the directory; `Input`, `Scratch`, `Cache` and `Log` are replaced by paths."""
    estimate: Estimate
    needs: Needs = "core"
    worker: str = "torch"
    """Kind of worker process: nodes of one kind may share a process, which then imports its libraries once."""
    threads: int | None = None
    """Threads that the process's numerical libraries take; None: its share of the cores."""
    when_it_dies: Callable[..., Mapping[str, Any]] | None = None
    """Function that runs in a new process if the first one died, with the error text as its first argument.

    None: the death is an error.
    """
    after: "tuple[Node, ...]" = ()
    """Nodes that have to succeed first, though nothing of them is read: a check that saves the work of this one."""
    counts_manifest: bool = False
    """Whether the content depends on the inputs' metrics, parameters and tools as well as on their files."""
    copied: bool = False
    """Whether its view is a copy, which can be handed on, instead of a link."""
    inexact_files: tuple[str, ...] = ()
    """Files whose last digits depend on the processor, see `Manifest.digest`."""

    @cached_property
    def identity(self) -> str:
        """The sha256 over everything that decides the content, with the inputs' own identities."""
        inputs = {name: one.digest if isinstance(one, External) else one.identity for name, one in self.inputs.items()}
        return digest_of([self.stage, self.version, self.params, inputs, self.tools])

    @property
    def parents(self) -> "Iterator[Node]":
        """The nodes among the inputs."""
        return (one for one in self.inputs.values() if isinstance(one, Node))

    def ancestors(self) -> set[str]:
        """Return the identities of all nodes that this one depends on."""
        found = {parent.identity for parent in self.parents}
        return found.union(*(parent.ancestors() for parent in self.parents))

    def spec(self, digests: Mapping[str, str]) -> Spec:
        """Return what this node's artifact is made from.

        Args:
            digests: content digest of each node among the inputs, by identity.
        """
        inputs = {
            name: one.digest if isinstance(one, External) else digests[one.identity]
            for name, one in self.inputs.items()
        }
        return Spec(self.stage, self.version, self.params, inputs, self.tools, self.inexact_files)


@dataclass
class Graph:
    """The nodes that one or more recipes need, each once."""

    root: str
    """Name of the requested recipe; names of other recipes' nodes get their recipe's name in front."""
    nodes: dict[str, Node] = field(default_factory=dict)
    """The nodes by identity, in an order in which they can be made."""
    views: dict[PurePosixPath, Node] = field(default_factory=dict)
    """The nodes by the path of their view, relative to the build folder."""

    def include(self, *nodes: Node) -> None:
        """Add nodes and all nodes that they depend on; of equal nodes the first is kept, with the views of all."""
        for node in nodes:
            self.include(*node.parents, *node.after)
            kept = self.nodes.setdefault(node.identity, node)
            self.views.setdefault(PurePosixPath(node.recipe, node.place), kept)

    def at(self, recipe: str, place: str) -> Node | None:
        """Return the node behind a recipe's view, or None."""
        return self.views.get(PurePosixPath(recipe, place))

    def name(self, node: Node) -> str:
        """Return a node's name for people, with its recipe's name in front if that is not the requested one."""
        kept = self.nodes[node.identity]
        return kept.name if kept.recipe == self.root else f"{kept.recipe}: {kept.name}"

    def place(self, node: Node) -> PurePosixPath:
        """Return a node's own view."""
        kept = self.nodes[node.identity]
        return PurePosixPath(kept.recipe, kept.place)

    def places(self, node: Node) -> list[PurePosixPath]:
        """Return all views of a node."""
        return [place for place, shown in self.views.items() if shown.identity == node.identity]

    def urgency(self) -> dict[str, float]:
        """Return the estimated seconds of the longest path that starts at each node, by identity."""
        behind: dict[str, float] = {}
        for identity, node in reversed(self.nodes.items()):
            behind[identity] = behind.get(identity, 0.0) + node.estimate.seconds
            for parent in (*node.parents, *node.after):
                behind[parent.identity] = max(behind.get(parent.identity, 0.0), behind[identity])
        return behind

    def mermaid(self) -> str:
        """Return the graph as a Mermaid flowchart, one box a node."""
        numbers = {identity: f"n{number}" for number, identity in enumerate(self.nodes)}
        lines = ["flowchart LR"]
        for identity, node in self.nodes.items():
            lines.append(f"  {numbers[identity]}[{json.dumps(self.name(node))}]")
            for name, one in node.inputs.items():
                if isinstance(one, Node):
                    lines.append(f"  {numbers[one.identity]} -- {json.dumps(name)} --> {numbers[identity]}")
        return "\n".join(lines) + "\n"

    def document(self) -> list[dict[str, Any]]:
        """Return the nodes as JSON values, in an order in which they can be made."""
        return [
            {
                "name": self.name(node),
                "stage": node.stage,
                "version": node.version,
                "identity": identity,
                "inputs": {
                    name: {"files": one.digest} if isinstance(one, External) else {"node": one.identity}
                    for name, one in node.inputs.items()
                },
                "params": node.params,
                "tools": dict(node.tools),
                "needs": node.needs,
                "seconds": node.estimate.seconds,
                "disk_bytes": node.estimate.disk_bytes,
                "memory_bytes": node.estimate.memory_bytes,
                "places": [str(place) for place in self.places(node)],
            }
            for identity, node in self.nodes.items()
        ]


def versions(*distributions: str) -> dict[str, str]:
    """Return the installed versions of distributions, read from their metadata without importing them."""
    installed = {}
    for name in distributions:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed[name] = "absent"
    return installed


def resolve(arguments: Sequence[Any], inputs: Mapping[str, Path], scratch: Path, cache: Path, log: Path) -> list[Any]:
    """Return a node's arguments with all placeholders replaced by paths, in nested tuples and lists too."""
    found: list[Any] = []
    for one in arguments:
        if isinstance(one, Input):
            found.append(inputs[one.name])
        elif isinstance(one, Scratch):
            found.append(scratch)
        elif isinstance(one, Cache):
            found.append(cache)
        elif isinstance(one, Log):
            found.append(log)
        elif type(one) in (tuple, list):
            found.append(type(one)(resolve(one, inputs, scratch, cache, log)))
        else:
            found.append(one)
    return found
