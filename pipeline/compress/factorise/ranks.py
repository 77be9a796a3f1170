"""Choose the rank of each matrix: given, by energy, or by a budget of parameters. No toolchain is imported."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import RecipeError
from pipeline.recipe.compression import Rank

Shape = tuple[int, int]
Values = NDArray[np.float64]
"""Singular values in descending order."""
STEP = 8
"""Chosen ranks are multiples of this number, which is the number of columns that runtimes compute at once."""


def factor_parameters(rank: int, shape: Shape) -> int:
    """Return the number of parameters of the two factors of a matrix."""
    return rank * sum(shape)


def saves(rank: int, shape: Shape) -> bool:
    """Return whether the two factors have fewer parameters than the matrix."""
    return factor_parameters(rank, shape) < shape[0] * shape[1]


def least_fraction(shapes: Sequence[Shape]) -> float:
    """Return the fraction of the matrices' parameters that remains if each has the smallest rank, `STEP`."""
    return sum(factor_parameters(STEP, shape) for shape in shapes) / sum(rows * columns for rows, columns in shapes)


def check_ranks(name: str, setting: Rank, shapes: Sequence[Shape]) -> None:
    """Refuse a rank that saves parameters in none of the matrices, or a budget below the smallest ranks.

    Raises:
        RecipeError: the rank is too large or the budget too small.
    """
    if setting.rank is not None and not any(saves(setting.rank, shape) for shape in shapes):
        rows, columns = max(shapes)
        limit = -(-rows * columns // (rows + columns))
        raise RecipeError(
            f"factorise.{name}: rank {setting.rank} saves nothing in {rows} × {columns}; it has to be below {limit}."
        )
    if setting.parameters is not None and least_fraction(shapes) > setting.parameters:
        raise RecipeError(
            f"factorise.{name}: parameters = {setting.parameters} is less than rank {STEP} everywhere takes, "
            f"{least_fraction(shapes):.3f}. Keep more."
        )


def kept_energy(values: Values, rank: int) -> float:
    """Return the energy of a rank, its fraction of the squared singular values; the rest is the relative squared error.

    Source: Eckart and Young 1936.
    """
    squares = values**2
    return float(squares[:rank].sum() / squares.sum())


def rank_by_energy(values: Values, energy: float) -> int:
    """Return the smallest multiple of `STEP` that keeps a fraction of the energy, at most the full rank."""
    running = np.cumsum(values**2)
    needed = int(np.searchsorted(running, energy * running[-1])) + 1
    return min(-(-needed // STEP) * STEP, len(values))


def ranks_by_budget(spectra: Sequence[Values], shapes: Sequence[Shape], fraction: float) -> list[int]:
    """Return ranks within a budget of parameters, chosen greedily by the energy gained per parameter.

    Each further step of a matrix gains less energy than the one before, so the greedy choice is optimal. Energies are
    relative to each matrix, since layers differ in scale.

    Args:
        spectra: singular values of each matrix.
        shapes: shape of each matrix.
        fraction: the budget, as a fraction of all their parameters.
    """
    left = int(fraction * sum(rows * columns for rows, columns in shapes))
    left -= sum(factor_parameters(STEP, shape) for shape in shapes)
    steps = [
        (-(kept_energy(values, rank) - kept_energy(values, rank - STEP)) / factor_parameters(STEP, shape), number, rank)
        for number, (values, shape) in enumerate(zip(spectra, shapes, strict=True))
        for rank in range(2 * STEP, len(values) + 1, STEP)
        if saves(rank, shape)
    ]
    chosen = [STEP] * len(spectra)
    for _, number, rank in sorted(steps):
        if factor_parameters(STEP, shapes[number]) <= left and rank == chosen[number] + STEP:
            chosen[number] = rank
            left -= factor_parameters(STEP, shapes[number])
    return chosen
