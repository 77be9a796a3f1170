"""A table of measured costs: what layers, multiply-adds and activations take in a runtime, for estimates of latency.

Encoders of a few shapes, made of copies of the student's layers, are converted and timed in turns; the costs of their
parts follow by least squares without negative numbers. The table is made once a machine and runtime.
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from pipeline import formats
from pipeline.convert.stage import Target
from pipeline.devices import host
from pipeline.errors import ToolchainError
from pipeline.execution.node import Estimate, External, Input, Node, versions
from pipeline.fronts.parts import Parts, count
from pipeline.recipe.schema import Recipe
from pipeline.schemes import SCHEMES

VERSION = 1
TABLE = "costs.json"
_SHAPES = ((1, 1.0, 1.0), (2, 1.0, 1.0), (4, 1.0, 1.0), (2, 0.5, 1.0), (2, 1.0, 0.5), (2, 0.5, 0.25), (4, 0.25, 0.25))
"""Layers, and fractions of the heads and of the intermediate neurons."""


class Shape(BaseModel):
    """One timed encoder."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    parts: Parts
    measured_ms: float
    estimated_ms: float
    """By the table itself."""


class Table(BaseModel):
    """Costs of parts in one runtime on one machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    target: str
    timed_as: str
    """The scheme of the timed files: that of the target, or one that needs no calibration."""
    length: int
    costs_ms: tuple[float, ...]
    """Milliseconds per unit of each of `Parts.features`."""
    shapes: list[Shape]

    def estimate_ms(self, parts: Parts) -> float:
        """Return the estimated latency of an encoder, in milliseconds."""
        return float(np.dot(self.costs_ms, parts.features))

    @property
    def misfit(self) -> float:
        """The largest error on the timed encoders, as a fraction."""
        return max(abs(one.estimated_ms / one.measured_ms - 1) for one in self.shapes)


def can_be_timed(target: Target) -> str | None:
    """Say why files of a target cannot be timed on this machine, or return None."""
    return formats.get(target.backend).no_runtime()


def node(recipe: Recipe, checkpoint: Node | External, target: Target, *, length: int) -> Node:
    """Return the node of a cost table.

    Args:
        recipe: the study's base recipe.
        checkpoint: its student.
        target: format and scheme.
        length: tokens of a row.
    """
    machine = host.describe()
    return Node(
        recipe=recipe.name,
        name=f"costs of {target}",
        place=f"costs-{target}",
        stage="costs",
        version=VERSION,
        params={
            "task": recipe.task,
            "target": str(target),
            "length": length,
            "machine": [machine.model_id, machine.cpu_features, machine.os],
        },
        inputs={"checkpoint": checkpoint},
        tools=versions("torch", "transformers", *formats.get(target.backend).DISTRIBUTIONS),
        function=measure,
        arguments=(Input("checkpoint"), target, length),
        estimate=Estimate(90.0, 100_000, kind=str(target)),
        needs="quiet",
        worker=f"convert-{target.backend}",
    )


def measure(folder: Path, target: Target, length: int, out: Path) -> Mapping[str, Any]:
    """Make a cost table; the function of a `costs` node.

    Raises:
        StudentError: the student's layers cannot be taken apart.
        ToolchainError: a file of more layers did not take longer.
    """
    from scipy.optimize import nnls

    from pipeline import tasks
    from pipeline.checkpoint.loading import load_checkpoint
    from pipeline.convert import timing

    scheme = _timed_as(target)
    model = load_checkpoint(folder, tasks.get("embedding"))
    models = [_of_shape(model, *shape) for shape in _SHAPES]
    parts = [Parts(**count(one, length=length)) for one in models]
    with TemporaryDirectory() as name:
        files = [
            timing.convert(one, target.backend, scheme, length=length, parent=Path(name, str(number)))
            for number, one in enumerate(models)
        ]
        took = timing.fastest_ms(files)
    if took[1] <= took[0]:
        raise ToolchainError(
            f"an encoder of two layers took {took[1]:.3f} ms and one of one layer {took[0]:.3f}: measure on a quiet "
            "machine, or leave latency_ms out of the study."
        )
    features = np.array([one.features for one in parts])
    # Relative errors: the smallest encoder counts as much as the largest.
    weights = 1 / np.array(took)
    costs, _ = nnls(features * weights[:, None], np.array(took) * weights)
    shapes = [
        Shape(parts=one, measured_ms=ms, estimated_ms=float(np.dot(costs, one.features)))
        for one, ms in zip(parts, took, strict=True)
    ]
    table = Table(
        target=str(target), timed_as=scheme, length=length, costs_ms=tuple(float(one) for one in costs), shapes=shapes
    )
    (out / TABLE).write_text(table.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return {"misfit": table.misfit, "timed_as": scheme}


def _timed_as(target: Target) -> str:
    """Return the target's scheme, or the smallest one of its format that needs no calibration."""
    if not SCHEMES[target.scheme].calibrated:
        return target.scheme
    able = [name for name in formats.get(target.backend).CONVERTS if not SCHEMES[name].calibrated]
    return min(sorted(able), key=lambda name: (SCHEMES[name].weight_bytes, SCHEMES[name].activations == "float"))


def read(folder: Path) -> Table:
    """Read a cost table."""
    return Table.model_validate_json((folder / TABLE).read_text(encoding="utf-8"))


def _of_shape(model: Any, depth: int, heads: float, neurons: float) -> Any:
    """Return a bare encoder of some layers, with fractions of their heads and neurons and a small vocabulary."""
    import torch
    from torch import nn

    from pipeline.architectures.layers import layout_of, put
    from pipeline.compress.prune.removal import keep_structures
    from pipeline.compress.prune.structure import sublayers
    from pipeline.convert.timing import keep_few_tokens

    base: Any = copy.deepcopy(model.base_model)
    layout = layout_of(base.config.model_type)
    if not layout.inner:
        every = list(base.get_submodule(layout.stack))
        put(base, layout.stack, nn.ModuleList(copy.deepcopy(every[number % len(every)]) for number in range(depth)))
    # Where layers share their weights, there are more passes.
    base.config.num_hidden_layers = depth
    keep_few_tokens(base)
    parts = sublayers(base)
    kept = [
        np.arange(max(1, round(part.shape.size * (heads if part.shape.kind == "attention" else neurons))))
        for part in parts
    ]
    with torch.no_grad():
        keep_structures(base, parts, kept)
    return base
