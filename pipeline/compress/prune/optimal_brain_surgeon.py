"""Structured optimal brain surgeon: the loss of removing a structure when the other weights compensate for it.

Of two redundant structures either one is cheap to remove, but not both, which a sum of single importances does not
show. Here each removal updates the inverse Hessian, a Kronecker product of input covariance and output gradients.
"""

import torch

DAMPING = 1e-2
"""Fraction of the mean variance that is added to the diagonal: with fewer tokens than columns C is singular."""
_STEP = 16
"""Number of single-column structures that are removed between two updates of the whole inverse."""
_CANDIDATES = 4
"""Number of candidates in a step, as a multiple of the structures that it removes."""


def removal_losses(
    covariance: torch.Tensor, weight: torch.Tensor, metric: torch.Tensor, *, size: int, damping: float = DAMPING
) -> torch.Tensor:
    """Return the loss of each structure when they are removed one after the other, the cheapest first, `(structures,)`.

    Removing columns S of W costs ½ tr(W_Sᵀ G W_S ([C⁻¹]_SS)⁻¹), and the other columns compensate for it by
    W −= W_S ([C⁻¹]_SS)⁻¹ [C⁻¹]_S.

    Args:
        covariance: C, of the linear's inputs, `(columns, columns)`.
        weight: W, `(outputs, columns)`.
        metric: G, mean product of the loss's gradients at the linear's outputs, `(outputs, outputs)`.
        size: columns of a structure.
        damping: see `DAMPING`.

    Returns:
        Losses per token, non-decreasing in the order of removal; the structure that is removed last costs the most.

    Source: Hassibi and Stork 1993 (optimal brain surgeon); Kurtic et al. 2023 (ZipLM) for structures; Wang et al.
    2019 (EigenDamage) and van der Ouderaa et al. 2023 (LLM Surgeon) for the factor G.
    """
    columns = len(covariance)
    ridge = damping * float(covariance.diagonal().mean()) + 1e-12
    inverse = torch.linalg.inv(covariance.double() + ridge * torch.eye(columns, dtype=torch.float64))
    # With G = LᵀL the loss of W is the squared norm of L W.
    values, vectors = torch.linalg.eigh(metric.double())
    scaled = (values.clamp(min=0).sqrt()[:, None] * vectors.T) @ weight.double()
    return _remove_all(inverse, scaled, size)


def _remove_all(inverse: torch.Tensor, scaled: torch.Tensor, size: int) -> torch.Tensor:
    count = len(inverse) // size
    step = _STEP if size == 1 else 1
    losses = torch.zeros(count, dtype=torch.float64)
    remaining = torch.arange(count)
    highest = 0.0
    while len(remaining):
        scores = _scores(inverse, scaled, size)
        candidates = scores.argsort(stable=True)[: _CANDIDATES * step]
        chosen, costs = _cheapest(inverse, scaled, candidates, min(step, len(remaining)), size)
        for structure, cost in zip(chosen, costs, strict=True):
            highest = max(highest, cost)
            losses[remaining[structure]] = highest
        inverse, scaled = _without(inverse, scaled, torch.tensor(chosen), size)
        keep = torch.ones(len(remaining), dtype=torch.bool)
        keep[chosen] = False
        remaining = remaining[keep]
    return losses


def _scores(inverse: torch.Tensor, scaled: torch.Tensor, size: int) -> torch.Tensor:
    if size == 1:
        return scaled.square().sum(0) / inverse.diagonal() / 2
    count = len(inverse) // size
    squares = inverse.reshape(count, size, count, size).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    columns = scaled.reshape(-1, count, size).permute(1, 2, 0)  # (structures, size, outputs)
    scores: torch.Tensor = (columns * torch.linalg.solve(squares, columns)).sum((1, 2)) / 2
    return scores


def _cheapest(
    inverse: torch.Tensor, scaled: torch.Tensor, candidates: torch.Tensor, step: int, size: int
) -> tuple[list[int], list[float]]:
    """Return `step` of the candidates, each chosen after the ones before it are removed, and their costs."""
    columns = columns_of(candidates, size)
    small, part = inverse[columns][:, columns], scaled[:, columns]
    left = candidates.clone()
    chosen, costs = [], []
    for _ in range(step):
        scores = _scores(small, part, size)
        best = int(scores.argmin())
        chosen.append(int(left[best]))
        costs.append(float(scores[best]))
        small, part = _without(small, part, torch.tensor([best]), size)
        left = torch.cat([left[:best], left[best + 1 :]])
    return chosen, costs


def columns_of(structures: torch.Tensor, size: int) -> torch.Tensor:
    """Return the column numbers of structures that have `size` columns each."""
    return (structures[:, None] * size + torch.arange(size)).flatten()


def _without(
    inverse: torch.Tensor, scaled: torch.Tensor, structures: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inverse and scaled weight after structures are removed and the other columns compensate for them."""
    removed = columns_of(structures, size)
    keep = torch.ones(len(inverse), dtype=torch.bool)
    keep[removed] = False
    share = torch.linalg.solve(inverse[removed][:, removed], inverse[removed][:, keep])  # (removed, kept)
    return inverse[keep][:, keep] - inverse[keep][:, removed] @ share, scaled[:, keep] - scaled[:, removed] @ share
