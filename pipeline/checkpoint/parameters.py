"""The structure of a checkpoint's model: its parameters by content, and the order in which its modules run.

It takes torch to find out, and is recorded beside the reference, so that a converted file is compared without torch.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline import architectures
from pipeline.heads import sentence

if TYPE_CHECKING:
    import torch

_ACTIVATIONS = {
    "GELUActivation": "gelu",
    "NewGELUActivation": "gelu_tanh",
    "GELUTanh": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
    "AccurateGELUActivation": "gelu_tanh",
    "ReLU": "relu",
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
}
"""Names by class; any other class of these modules goes by its own name."""
_FUNCTIONS = {"tanh": "tanh", "relu": "relu", "sigmoid": "sigmoid", "silu": "silu", "gelu": "gelu"}
"""Names by function."""
_AFFINE = (*architectures.PLAIN_NORMS, "Gain")
"""Names of module classes with only a weight and a bias: norms, and `checkpoint.smoothquant.Gain`."""
_ACTIVATION_MODULES = ("torch.nn.modules.activation", "transformers.activations")


def model_structure(model: Any) -> dict[str, Any]:
    """Return the structure that a converted file has to agree with, as JSON can hold it.

    Args:
        model: from `load_checkpoint`, without an export's patches.

    Returns:
        `parameters`: shape and sha256 of the float32 content, by name, tied ones once.
        `positions`: names of the tables of which a file may hold the first rows only.
        `epsilons`, `activations`: those of one forward pass, in its order; a shared module counts as often as it runs.
        `feeds`: for each linear, the layer norms and linears whose output is its input.
            A converter may multiply a norm's weight into the linears behind it.
        `calls`: the modules with parameters in the order in which they run, each as its name and the numbers of the
            earlier calls whose outputs it reads, with no other call between; a shared module is called several times.
    """
    trace = _Trace({id(module): name for name, module in model.named_modules()})
    trace.run(model)
    parameters = {
        name: {"shape": list(parameter.shape), "sha256": content_digest(parameter.detach().numpy())}
        for name, parameter in model.named_parameters()
    }
    return {
        "parameters": parameters,
        "positions": trace.positions,
        "epsilons": trace.epsilons,
        "activations": trace.activations,
        "feeds": trace.feeds,
        "calls": trace.calls,
    }


def is_called(module: Any) -> bool:
    """Return whether each run of a module is one of `calls`: it is a linear, a table, or a norm."""
    import torch

    kinds = (torch.nn.LayerNorm, torch.nn.Linear, torch.nn.Embedding)
    return isinstance(module, kinds) or type(module).__name__ in _AFFINE


def content_digest(values: Any) -> str:
    """Return the sha256 of an array's numbers as float32."""
    return hashlib.sha256(np.ascontiguousarray(values, np.float32).data).hexdigest()


@contextlib.contextmanager
def _functions_watched(watch: Callable[[Any, Any, Any], None]) -> Iterator[None]:
    """Call `watch` with every torch function that runs, its arguments, and its result."""
    from torch.overrides import TorchFunctionMode

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            watch(func, (args, kwargs), result)
            return result

    with Watch():
        yield


class _Trace:
    """The trace of one forward pass. It uses torch's global hooks, since some models create activations as they run."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self._outputs: list[tuple[str, Any]] = []
        """Modules by name with their outputs, which are kept alive so that no other tensor gets the same address."""
        self.positions: list[str] = []
        self.epsilons: list[float] = []
        self.activations: list[str] = []
        self.feeds: dict[str, list[str]] = {}
        self.calls: list[tuple[str, list[int]]] = []
        self._sources: dict[int, frozenset[int]] = {}
        """For each tensor by its identity, the last calls on the way to it."""
        self._alive: list[Any] = []
        """Tensors of `_sources`, so that no other one gets their identity."""
        self._inside = 0
        """How many activation modules are running."""

    def run(self, model: Any) -> None:
        """Run three equal tokens through a model."""
        import torch

        ones = torch.ones((1, 3), dtype=torch.int64)
        tensors = {"input_ids": ones, "attention_mask": ones, "token_type_ids": torch.zeros_like(ones)}
        names = architectures.get(model.config.model_type).inputs
        hooks = [
            torch.nn.modules.module.register_module_forward_pre_hook(self._calling),
            torch.nn.modules.module.register_module_forward_hook(self._called),
        ]
        try:
            with torch.no_grad(), _functions_watched(self._function):
                output = model(**{name: tensors[name] for name in names})
                if hasattr(model, sentence.NAME):
                    modules, mask = getattr(model, sentence.NAME), ones.float()
                    modules.settings.outputs(modules, output.last_hidden_state, mask)
        finally:
            for hook in hooks:
                hook.remove()

    def _function(self, function: Any, arguments: Any, result: Any) -> None:
        """Record the calls that a function's result depends on, and activations called as functions (RoBERTa head)."""
        self._mark(result, self._sources_of(arguments) | self._sources_of(result))
        name = _FUNCTIONS.get(getattr(function, "__name__", ""))
        if name and not self._inside:
            self.activations.append(name)

    def _sources_of(self, values: Any) -> frozenset[int]:
        return frozenset().union(*(self._sources.get(id(one), frozenset()) for one in _tensors(values)))

    def _mark(self, values: Any, sources: frozenset[int]) -> None:
        for one in _tensors(values):
            self._sources[id(one)] = sources
            self._alive.append(one)

    def _calling(self, module: "torch.nn.Module", inputs: tuple[Any, ...]) -> None:
        self._inside += type(module).__module__ in _ACTIVATION_MODULES

    def _called(self, module: "torch.nn.Module", inputs: tuple[Any, ...], output: Any) -> None:
        import torch

        name = self._names.get(id(module), "")
        kind = type(module).__name__
        self._inside -= type(module).__module__ in _ACTIVATION_MODULES
        if is_called(module):
            self.calls.append((name, sorted(self._sources_of(inputs))))
            self._mark(output, frozenset([len(self.calls) - 1]))
        if isinstance(module, torch.nn.LayerNorm):
            self.epsilons.append(module.eps)
            self._outputs.append((name, output))
        elif isinstance(module, torch.nn.Linear) or kind in _AFFINE:
            self._add_feed(name, inputs[0])
            self._outputs.append((name, output))
        elif isinstance(module, torch.nn.GELU):
            self.activations.append("gelu_tanh" if module.approximate == "tanh" else "gelu")
        elif isinstance(module, torch.nn.Embedding):
            # Three equal tokens: only their positions are 0, 1, 2.
            if inputs[0].flatten().tolist() == [0, 1, 2] and f"{name}.weight" not in self.positions:
                self.positions.append(f"{name}.weight")
        elif type(module).__module__ in _ACTIVATION_MODULES and not isinstance(module, torch.nn.Softmax):
            self.activations.append(_ACTIVATIONS.get(kind, kind))

    def _add_feed(self, name: str, source: Any) -> None:
        makers = [maker for maker, output in self._outputs if output.data_ptr() == source.data_ptr()]
        known = self.feeds.setdefault(name, [])
        known += [maker for maker in makers[-1:] if maker not in known]


def _tensors(values: Any) -> "Iterator[torch.Tensor]":
    """Yield the tensors in nested tuples, lists and dictionaries."""
    import torch

    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, dict):
        for one in values.values():
            yield from _tensors(one)
    elif isinstance(values, tuple | list):
        for one in values:
            yield from _tensors(one)
