"""Quantise linears with GPTQ on the calibration set: each column compensates rounding errors of those before it.

Linears are taken in the order of their first call, and each reads the activations of the model with its earlier
weights quantised. Before a linear is rounded, its weight is moved so that its outputs come near the student's: later
linears compensate the errors of earlier ones.

Source: Frantar et al. 2023 (GPTQ), https://arxiv.org/abs/2210.17323, for the rounding; Li et al. 2025 (GPTAQ),
https://arxiv.org/abs/2504.02692, for the student's outputs as the target, here by least squares.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pipeline.checkpoint.parameters import model_structure
from pipeline.checkpoint.ranges import SMALLEST_QUANTISED
from pipeline.compress.prune.activations import batch_tensors
from pipeline.data.calibration import Batches
from pipeline.quantize.activations import of_tokens, reading_alike

Numbers = NDArray[np.floating[Any]]
Rounds = Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]
"""`(values, column) -> (codes, numbers)`, all `(rows,)`: rounds a column to codes and dequantises them."""
DAMPING = 0.01
"""Share of the inputs' mean square that is added to each column's, as in GPTQ."""
_MOVED = 0.75
"""Share of the step that moves a weight: calibration text is not all text. All of it and half are worse (LOG.md)."""
_HELD = 0.1
"""Share of the inputs' mean square that is added to each column's to keep a moved weight near its start."""
_AT_ONCE = 128
"""Columns per block, after which their errors are added to the remaining columns at once."""


class QuantisedWeight(Protocol):
    """A quantised weight: a palette or integers."""

    def dense(self) -> NDArray[np.float32]:
        """Return the dequantised weight, `(rows, columns)`."""


H = TypeVar("H", bound=QuantisedWeight)


@dataclass(frozen=True)
class WeightWithError(Generic[H]):
    """A quantised weight with its rounding error."""

    weight: H
    error_nearest: float | None = None
    """Squared error of a linear's outputs relative to the outputs, if each number is rounded to the nearest."""
    error: float | None = None
    """The same error with GPTQ; None for a table."""

    @classmethod
    def of_linear(cls, target: torch.Tensor, products: torch.Tensor, nearest: H, with_gptq: H) -> "WeightWithError[H]":
        """Return a linear's quantised weight with its errors.

        Args:
            target: the weight to approximate, `(rows, columns)`.
            products: see `products_read`.
            nearest: the target with each number rounded to the nearest.
            with_gptq: the target quantised with GPTQ.
        """
        before, after = (output_error(target, one.dense(), products) for one in (nearest, with_gptq))
        return cls(with_gptq, before, after)


@torch.no_grad()
def choose(
    model: Any,
    batches: Batches,
    of_table: Callable[[nn.Embedding], H],
    of_linear: Callable[[str, torch.Tensor, torch.Tensor, torch.Tensor], WeightWithError[H]],
    *,
    alone: bool = False,
) -> dict[str, WeightWithError[H]]:
    """Quantise a model's tables and linears, and put the dequantised weights into the model.

    Position tables stay in floats: a converter folds them into the graph, a part for each length.

    Args:
        model: a Hugging Face model; its weights are changed.
        batches: the calibration set.
        of_table: quantises a table.
        of_linear: `(path, weight, target, products)`, see `products_read`: quantises a linear with the student's weight
            so that it approximates `target`.
        alone: quantise each linear as if it were the only one, and leave the linears' weights unchanged.

    Returns:
        Quantised weights by parameter name, tables first, then linears in the order of their first call.
    """
    structure = model_structure(model)
    student = model if alone else copy.deepcopy(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found: dict[str, WeightWithError[H]] = {}

    def put(name: str, weight: torch.Tensor, one: WeightWithError[H]) -> None:
        found[name] = one
        weight.copy_(torch.from_numpy(one.weight.dense()))

    for table in (one for one in model.modules() if isinstance(one, nn.Embedding)):
        name = names[id(table.weight)]
        if name not in structure["positions"] and name not in found and table.weight.numel() >= SMALLEST_QUANTISED:
            put(name, table.weight, WeightWithError(of_table(table)))
    calls = Counter(name for name, _ in structure["calls"])
    for paths, linears in reading_alike(model, batch_tensors(batches, 0)):
        products, cross = products_read(
            model, batches, linears[0], calls[paths[0]], student, student.get_submodule(paths[0])
        )
        for path, linear in zip(paths, linears, strict=True):
            name = names[id(linear.weight)]
            if name in found or linear.weight.numel() < SMALLEST_QUANTISED:
                continue
            if alone:
                found[name] = of_linear(path, linear.weight, linear.weight, products)
            else:
                target = _moved(linear.weight, products, cross)
                put(name, linear.weight, of_linear(path, linear.weight, target, products))
    return found


def _moved(weight: torch.Tensor, products: torch.Tensor, cross: torch.Tensor) -> torch.Tensor:
    """Return a weight, moved so that its outputs on the quantised model's inputs come nearer to the student's outputs.

    Args:
        weight: the student's, `(rows, columns)`.
        products: sum over tokens of x xᵀ, with x the input of the linear in the quantised model.
        cross: sum over tokens of y xᵀ, with y the input of the student's linear for the same tokens.
    """
    exact = weight.double()
    way = torch.linalg.solve(_damped(products, _HELD), (exact @ (cross - products)).T).T
    target: torch.Tensor = (exact + _MOVED * way).to(weight.dtype)
    return target


def round_columns(weight: torch.Tensor, products: torch.Tensor, rounded: Rounds) -> torch.Tensor:
    """Round columns in turn, those with the largest inputs first, and add each one's error to the remaining columns.

    Args:
        weight: the weight to quantise, `(rows, columns)`, double.
        products: see `products_read`.
        rounded: rounds one column.

    Returns:
        Codes, `(rows, columns)`.
    """
    order = torch.argsort(products.diagonal(), descending=True, stable=True)
    upper = _inverse_factor(products[order][:, order])
    left = weight[:, order]
    found = torch.empty(weight.shape, dtype=torch.int64)
    for start in range(0, left.shape[1], _AT_ONCE):
        end = min(start + _AT_ONCE, left.shape[1])
        errors = torch.empty(len(left), end - start, dtype=torch.float64)
        for column in range(start, end):
            values = left[:, column]
            codes, numbers = rounded(values, int(order[column]))
            found[:, order[column]] = codes
            error = (values - numbers) / upper[column, column]
            errors[:, column - start] = error
            left[:, column + 1 : end] -= error[:, None] * upper[column, column + 1 : end]
        left[:, end:] -= errors @ upper[start:end, end:]
    return found


def _inverse_factor(products: torch.Tensor) -> torch.Tensor:
    """Return the upper Cholesky factor of the inverse of `products`, damped so that it exists."""
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(_damped(products, DAMPING)))
    upper: torch.Tensor = torch.linalg.cholesky(inverse, upper=True)
    return upper


def _damped(products: torch.Tensor, share: float) -> torch.Tensor:
    """Return products with a share of their mean diagonal added to the diagonal."""
    return products + (share * products.diagonal().mean() + 1e-12) * torch.eye(len(products), dtype=products.dtype)


def output_error(weight: torch.Tensor, rounded: Numbers, products: torch.Tensor) -> float:
    """Return the squared error of a linear's outputs over all tokens, relative to the outputs.

    Args:
        weight: `(rows, columns)`.
        rounded: the dequantised weight.
        products: see `products_read`.
    """
    difference = torch.from_numpy(rounded).double() - weight.double()
    squares = [float(((one @ products) * one).sum()) for one in (difference, weight.double())]
    return squares[0] / max(squares[1], 1e-300)


# --- inputs -----------------------------------------------------------------------------------------------------------


class _Enough(Exception):
    """Ends a forward pass after the last call of interest."""


def products_read(
    model: Any, batches: Batches, linear: nn.Module, calls: int, student: Any, twin: nn.Module
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return second moments of a linear's inputs, and cross moments with the student's, `(columns, columns)`, double.

    Tokens of short texts weigh more, see `_weighed`.

    Args:
        model: the model with its earlier weights quantised.
        batches: the calibration set.
        linear: one of its linears.
        calls: number of its calls in a forward pass.
        student: the model before quantisation; the same object where it was not changed.
        twin: the same linear in the student.

    Returns:
        Sum of x xᵀ, with x the linear's input, and of y xᵀ, with y the input of its twin.
    """
    products, cross = [], []
    for number in range(len(batches)):
        tensors = batch_tensors(batches, number)
        with _read_by(linear, calls) as read:
            model(**tensors)
        true = read
        if student is not model:
            with _read_by(twin, calls) as true:
                student(**tensors)
        for one, other in zip(read, true, strict=True):
            x, y = (_weighed(part, tensors["attention_mask"] > 0) for part in (one, other))
            products.append((x.T @ x).double())
            cross.append((y.T @ x).double())
    return torch.stack(products).sum(0), torch.stack(cross).sum(0)


def _weighed(read: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """Return a linear's input per token, weighted so that a text counts with the square root of its length.

    Without weights long texts would decide, and the shortest ones have the largest errors.
    """
    tokens = of_tokens(read, present)
    lengths = present.sum(1, keepdim=True).expand_as(present)[present]
    # An input that is pooled per text has one vector for each.
    return tokens * lengths[:, None] ** -0.25 if len(tokens) == len(lengths) else tokens


def counts_read(model: Any, batches: Batches, table: nn.Embedding) -> NDArray[np.float64]:
    """Return how often each row of a table is looked up, `(rows,)`, plus one, so that no row has weight zero."""
    counts = torch.ones(table.num_embeddings, dtype=torch.float64)
    for number in range(len(batches)):
        tensors = batch_tensors(batches, number)
        with _read_by(table, calls=1) as read:
            model(**tensors)
        for ids in read:
            counts += torch.bincount(of_tokens(ids, tensors["attention_mask"] > 0).flatten(), minlength=len(counts))
    return counts.numpy()


@contextmanager
def _read_by(module: nn.Module, calls: int) -> Iterator[list[torch.Tensor]]:
    """Collect a module's inputs, and end the forward pass at its last call."""
    read: list[torch.Tensor] = []

    def keep(_: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        read.append(given[0])
        if len(read) == calls:
            raise _Enough

    hook = module.register_forward_pre_hook(keep)
    try:
        yield read
    except _Enough:
        pass
    finally:
        hook.remove()
