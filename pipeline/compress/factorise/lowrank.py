"""Low-rank factors of a matrix that minimise the error on its inputs, or on weighted rows; all in float64."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_LEAST_SPREAD = 1e-8
"""Least eigenvalue of the covariance, as a fraction of the largest, so that the whitening is always invertible."""


@dataclass(frozen=True)
class Spectrum:
    """A matrix as `left @ diag(values) @ right`, the largest value first."""

    left: torch.Tensor
    """(rows, k); its columns are orthonormal in the weighted norm of the error."""
    values: torch.Tensor
    """(k,), descending; the squared error of rank r is the sum of the squares from r on."""
    right: torch.Tensor
    """(k, columns)."""

    def factors(self, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the factors `(rank, columns)` and `(rows, rank)` of the best approximation of that rank.

        The singular values are split evenly between the two.
        """
        root = self.values[:rank].sqrt()
        return root[:, None] * self.right[:rank], self.left[:, :rank] * root


def decompose_linear(weight: torch.Tensor, covariance: torch.Tensor | None) -> Spectrum:
    """Decompose a linear's weight so that each rank minimises E||(W - AB)(x - mean)||² over factors A, B.

    With C = S S' the covariance of the inputs, the error is ||(W - AB) S||², so W S is cut off, and B takes S back out.

    Args:
        weight: (out, in).
        covariance: of the inputs, (in, in); None for the plain decomposition, ||W - AB||².

    Source: Chen et al. 2021 (DRONE), theorem 1; Wang et al. 2024 (SVD-LLM), truncation-aware whitening.
    """
    weight = weight.double()
    if covariance is None:
        return Spectrum(*torch.linalg.svd(weight, full_matrices=False))
    spread, directions = torch.linalg.eigh(covariance.double())
    root = spread.clamp(min=_LEAST_SPREAD * float(spread[-1])).sqrt()
    left, values, right = torch.linalg.svd(weight @ (directions * root), full_matrices=False)
    return Spectrum(left, values, (right / root) @ directions.T)


def decompose_table(table: torch.Tensor, weights: torch.Tensor | None) -> Spectrum:
    """Decompose an embedding table so that each rank minimises Σ over rows of weight · ||row - its approximation||².

    Scaled rows D E = U S V'; the factors are E V and V', so that every row is projected onto the same directions.

    Args:
        table: (vocabulary, columns).
        weights: a positive weight for each row, (vocabulary,); None for equal weights.

    Source: Srebro and Jaakkola 2003 (weights of rows alone); Hsu et al. 2022 (FWSVD), with Fisher's weights.
    """
    table = table.double()
    scale = torch.ones(len(table), 1).double() if weights is None else weights.double().sqrt()[:, None]
    squares, directions = torch.linalg.eigh((table * scale).T @ (table * scale))
    values, directions = squares.flip(0).clamp(min=0).sqrt(), directions.flip(1)
    lengths = values.clamp(min=torch.finfo(torch.float64).tiny)
    return Spectrum(table @ directions / lengths, values, directions.T)


def table_pair(spectrum: Spectrum, rank: int, padding: int | None) -> nn.Sequential:
    """Return a narrow embedding table and a linear, which together replace an embedding table."""
    right, left = spectrum.factors(rank)
    table = nn.Embedding(left.shape[0], rank, padding_idx=padding)
    widen = nn.Linear(rank, right.shape[1], bias=False)
    table.weight = nn.Parameter(left.float().contiguous())
    widen.weight = nn.Parameter(right.T.float().contiguous())
    return nn.Sequential(table, widen)


def linear_pair(spectrum: Spectrum, rank: int, bias: torch.Tensor) -> nn.Sequential:
    """Return two linears that together replace one; the second has the bias."""
    right, left = spectrum.factors(rank)
    first, second = nn.Linear(right.shape[1], rank, bias=False), nn.Linear(rank, left.shape[0])
    first.weight, second.weight = nn.Parameter(right.float().contiguous()), nn.Parameter(left.float().contiguous())
    second.bias = nn.Parameter(bias.float().contiguous())
    return nn.Sequential(first, second)


def dense(linear: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weight and bias of a linear or a norm; for a pair of factors, those of the equivalent single linear."""
    if isinstance(linear, nn.Sequential):
        first, second = map(nn.Module.get_parameter, linear, ("weight", "weight"))
        return (second.double() @ first.double()).detach(), linear[1].get_parameter("bias").detach()
    return linear.weight.detach(), linear.bias.detach()
