"""The steps behind a pooling: a dense layer with its activation, a layer norm, a cut, scaling to unit length.

Each has its settings, its graph in torch, and a reference in NumPy that shares no code with it. The names of a module's
tensors are those of sentence-transformers' module of that kind.

Source: sentence-transformers 6.2, `Dense`, `LayerNorm`, `Normalize`, and `truncate_dim` for the cut.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    import torch

Vectors = NDArray[np.float64]
Tensors = Mapping[str, NDArray[np.float32]]
_LAYER_NORM_EPSILON = 1e-5
"""`torch.nn.LayerNorm`'s own; the module's config has none."""


class _Step(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @property
    def takes(self) -> int | None:
        """The width of the vectors that the step takes; None for any."""
        return None

    def fits(self, before: int) -> bool:
        """Return whether the step takes vectors of a width."""
        return self.takes in (None, before)

    def width(self, before: int) -> int:
        """Return the width of the vectors behind the step."""
        return before


class Dense(_Step):
    """A linear with an activation, and with the input added if it is residual."""

    kind: Literal["Dense"] = "Dense"
    in_features: int
    out_features: int
    bias: bool = True
    activation: str = "Tanh"
    """Name of a class of `torch.nn`, one of `ACTIVATIONS`."""
    residual: bool = False

    @property
    def takes(self) -> int | None:
        """The number of input features."""
        return self.in_features

    def width(self, before: int) -> int:
        """Return the number of output features."""
        return self.out_features

    @property
    def keeps_zero(self) -> bool:
        """Whether a vector of zeros stays one."""
        return not self.bias and self.activation not in _NOT_ZERO_AT_ZERO

    def module(self) -> "torch.nn.Module":
        """Return the step as a module whose tensors are uninitialised."""
        import torch

        module: Any = torch.nn.Module()
        module.linear = torch.nn.Linear(self.in_features, self.out_features, bias=self.bias)
        if self.residual and self.in_features != self.out_features:
            module.residual = torch.nn.Linear(self.in_features, self.out_features, bias=False)
        module.activation = getattr(torch.nn, self.activation)()
        result: torch.nn.Module = module
        return result

    def outputs(self, module: Any, vectors: "torch.Tensor") -> "torch.Tensor":
        """Return the step's output, `(batch, out_features)`."""
        result: torch.Tensor = module.activation(module.linear(vectors))
        if not self.residual:
            return result
        return result + (vectors if self.in_features == self.out_features else module.residual(vectors))

    def reference(self, tensors: Tensors, vectors: Vectors) -> Vectors:
        """Return the step's output in float64."""
        result = vectors @ tensors["linear.weight"].astype(np.float64).T
        if self.bias:
            result = result + tensors["linear.bias"]
        result = ACTIVATIONS[self.activation](result)
        if not self.residual:
            return result
        same = self.in_features == self.out_features
        return result + (vectors if same else vectors @ tensors["residual.weight"].astype(np.float64).T)


class LayerNorm(_Step):
    """A layer norm of the pooled vector."""

    kind: Literal["LayerNorm"] = "LayerNorm"
    dimension: int
    keeps_zero: ClassVar[bool] = False

    @property
    def takes(self) -> int | None:
        """The width of the vectors."""
        return self.dimension

    def module(self) -> "torch.nn.Module":
        """Return the step as a module."""
        import torch

        module: Any = torch.nn.Module()
        module.norm = torch.nn.LayerNorm(self.dimension, eps=_LAYER_NORM_EPSILON)
        result: torch.nn.Module = module
        return result

    def outputs(self, module: Any, vectors: "torch.Tensor") -> "torch.Tensor":
        """Return the normalised vectors, `(batch, dimension)`."""
        result: torch.Tensor = module.norm(vectors)
        return result

    def reference(self, tensors: Tensors, vectors: Vectors) -> Vectors:
        """Return the step's output in float64."""
        centred = vectors - vectors.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        unit = centred / np.sqrt(variance + _LAYER_NORM_EPSILON)
        result: Vectors = unit * tensors["norm.weight"] + tensors["norm.bias"]
        return result


class Truncate(_Step):
    """The first numbers of a vector alone, which a model that was trained for it (Matryoshka) puts the most into.

    Source: Kusupati et al. 2022 (Matryoshka representation learning).
    """

    kind: Literal["Truncate"] = "Truncate"
    dimension: int
    """How many numbers are left."""
    keeps_zero: ClassVar[bool] = True

    @property
    def takes(self) -> int | None:
        """The least width of the vectors."""
        return self.dimension

    def fits(self, before: int) -> bool:
        """Return whether vectors of a width have so many numbers."""
        return before >= self.dimension

    def width(self, before: int) -> int:
        """Return how many numbers are left."""
        return self.dimension

    def module(self) -> "torch.nn.Module":
        """Return a module without tensors."""
        import torch

        return torch.nn.Module()

    def outputs(self, module: Any, vectors: "torch.Tensor") -> "torch.Tensor":
        """Return the first numbers, `(batch, dimension)`."""
        return vectors[:, : self.dimension]

    def reference(self, tensors: Tensors, vectors: Vectors) -> Vectors:
        """Return the first numbers in float64."""
        return vectors[..., : self.dimension]


class Normalize(_Step):
    """Scaling to unit length."""

    kind: Literal["Normalize"] = "Normalize"
    keeps_zero: ClassVar[bool] = True

    def module(self) -> "torch.nn.Module":
        """Return a module without tensors."""
        import torch

        return torch.nn.Module()

    def outputs(self, module: Any, vectors: "torch.Tensor") -> "torch.Tensor":
        """Return vectors of unit length; zero stays zero."""
        import torch

        unit: torch.Tensor = vectors * torch.rsqrt((vectors * vectors).sum(1, keepdim=True).clamp(min=1e-12))
        return unit

    def reference(self, tensors: Tensors, vectors: Vectors) -> Vectors:
        """Return the step's output in float64."""
        result: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
        return result


Step = Annotated[Dense | LayerNorm | Truncate | Normalize, Field(discriminator="kind")]


def _erf(values: Vectors) -> Vectors:
    from scipy.special import erf

    result: Vectors = erf(values)
    return result


def _sigmoid(values: Vectors) -> Vectors:
    from scipy.special import expit

    result: Vectors = expit(values)
    return result


ACTIVATIONS: Mapping[str, Callable[[Vectors], Vectors]] = {
    "GELU": lambda values: values * 0.5 * (1.0 + _erf(values / np.sqrt(2.0))),
    "Identity": lambda values: values,
    "ReLU": lambda values: np.maximum(values, 0.0),
    "SiLU": lambda values: values * _sigmoid(values),
    "Sigmoid": _sigmoid,
    "Tanh": np.tanh,
}
"""The activations that a dense layer may have, by the name of their class in `torch.nn`."""
_NOT_ZERO_AT_ZERO = ("Sigmoid",)
