"""Rounding that hands errors on: each column of a weight makes up for those that were rounded before it.

Linears are taken in the order of their first call, and each reads what the model computes whose earlier weights are
rounded already, so that later ones make up for earlier ones' errors, too.

Source: Frantar et al. 2023 (GPTQ), https://arxiv.org/abs/2210.17323.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pipeline.compress.prune.activations import batch_tensors
from pipeline.data.calibration import Batches
from pipeline.quantize.activations import of_tokens

Numbers = NDArray[np.floating[Any]]
Rounds = Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]
"""`(values, column) -> (codes, numbers)`, all `(rows,)`: a column's codes, and the numbers that they stand for."""
DAMPING = 0.01
"""Share of the mean square of inputs that is added to each column's, as in GPTQ."""
_AT_ONCE = 128
"""Columns whose errors are handed on to the rest at once."""


def hand_errors_on(weight: torch.Tensor, products: torch.Tensor, rounded: Rounds) -> torch.Tensor:
    """Round columns in turn, those with the largest inputs first, and hand each one's error on to the rest.

    Args:
        weight: `(rows, columns)`, double.
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
    """Return the upper Cholesky factor of the inverse, of products that are damped so that there is one."""
    damped = products + (DAMPING * products.diagonal().mean() + 1e-12) * torch.eye(len(products), dtype=products.dtype)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    upper: torch.Tensor = torch.linalg.cholesky(inverse, upper=True)
    return upper


def output_error(weight: torch.Tensor, rounded: Numbers, products: torch.Tensor) -> float:
    """Return the squared error of a linear's outputs over all tokens, relative to the outputs.

    Args:
        weight: `(rows, columns)`.
        rounded: what became of it.
        products: see `products_read`.
    """
    difference = torch.from_numpy(rounded).double() - weight.double()
    squares = [float(((one @ products) * one).sum()) for one in (difference, weight.double())]
    return squares[0] / max(squares[1], 1e-300)


# --- what is read -----------------------------------------------------------------------------------------------------


class _Enough(Exception):
    """Ends a forward pass of which the rest tells nothing more."""


def products_read(model: Any, batches: Batches, linear: nn.Module, calls: int) -> torch.Tensor:
    """Return the sum over tokens of x xᵀ of what a linear reads in all its calls, `(columns, columns)`, double."""
    found: list[torch.Tensor] = []
    for number in range(len(batches)):
        tensors = batch_tensors(batches, number)
        with _read_by(linear, calls) as read:
            model(**tensors)
        for one in read:
            tokens = of_tokens(one, tensors["attention_mask"] > 0)
            found.append((tokens.T @ tokens).double())
    return torch.stack(found).sum(0)


def counts_read(model: Any, batches: Batches, table: nn.Embedding) -> NDArray[np.float64]:
    """Return how often each row of a table is looked up, `(rows,)`, and once more, so that none counts for nothing."""
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
    """Collect what a module reads, and end the forward pass at its last call."""
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
