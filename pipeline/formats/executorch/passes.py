"""Skip work of executorch's passes that a text encoder cannot need. The files are the same, byte for byte.

executorch 1.4.1 runs 17 passes over every partition of a graph. Nearly every one ends by tracing the graph again,
operation by operation with a symbolic length, whether it changed anything or not.
"""

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from pipeline.formats import replaced

_PATTERNS = frozenset({"ConvertToUpsampleBilinear2d", "ConvertToSDPAPass"})
"""XNNPACK's passes that search for a pattern, which they export first: upsampled images, and the decomposition of fused
attention. No graph here has either."""
_NO_HOOKS = frozenset({"call", "_abc_impl"})


@contextmanager
def fewer() -> Iterator[None]:
    """Skip passes for patterns that no graph has, and traces that would reproduce the graph."""
    from executorch.backends.xnnpack import xnnpack_preprocess
    from executorch.exir.pass_base import ExportPass, _ExportPassBase
    from torch.export import ExportedProgram

    hooks = {name for name in vars(_ExportPassBase) | vars(ExportPass) if not name.startswith("__")} - _NO_HOOKS
    trace, decompose = _ExportPassBase.call, ExportedProgram.run_decompositions
    traced: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()

    def call(self: Any, module: Any) -> Any:
        changes = any(getattr(type(self), name) is not getattr(ExportPass, name) for name in hooks)
        if not changes and _same(_content(module), traced.get(module)):
            return _unchanged(module)
        found = trace(self, module)
        traced[found.graph_module] = _content(found.graph_module)
        return found

    def run_decompositions(self: Any, table: Any = None, **options: Any) -> Any:
        # The first of three has an empty table, to remove in-place operations; the second does that too.
        return decompose(self, table, **options) if table is None or _has_any(self, table) else self

    class Manager(xnnpack_preprocess.XNNPACKPassManager):  # type: ignore[misc]  # the library is untyped
        def __init__(self, program: Any, passes: Any = None) -> None:
            super().__init__(program, passes)
            self.passes: list[Any] = [one for one in self.passes if one.__name__ not in _PATTERNS]

    with (
        replaced(_ExportPassBase, "call", call),
        replaced(ExportedProgram, "run_decompositions", run_decompositions),
        replaced(xnnpack_preprocess, "XNNPACKPassManager", Manager),
    ):
        yield


def _content(module: Any) -> list[Any]:
    """Return the parts that a pass would have to replace to change a graph: nodes, their operations and arguments."""
    return [part for node in module.graph.nodes for part in (node, node.target, node.args, node.kwargs)]


def _same(found: list[Any], before: list[Any] | None) -> bool:
    """Return whether two contents are identical objects: arguments are immutable, and == would evaluate symbols."""
    return before is not None and len(found) == len(before) and all(map(operator.is_, found, before))


def _unchanged(module: Any) -> Any:
    from torch.fx.passes.infra.pass_base import PassResult

    return PassResult(module, False)


def _has_any(program: Any, table: Any) -> bool:
    """Return whether a graph has an operation of a table, apart from the symbolic length, which stays."""
    import torch

    targets = {node.target for node in program.graph.nodes if node.op == "call_function"}
    return any(target in table for target in targets - {torch.ops.aten.sym_size.int})
