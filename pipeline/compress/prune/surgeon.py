"""What is lost by a unit once the rest has made up for it: structured optimal brain surgery, with a Kronecker Fisher.

Units that say the same are cheap one after the other only until the last of them is left, which no sum of single
importances can tell.
"""

import torch

DAMPING = 1e-2
"""Of the mean variance, added to each: a covariance of fewer tokens than columns has no inverse."""
_STEP = 16
"""Single columns that leave between two updates of the whole inverse."""
_CANDIDATES = 4
"""Steps' worth of columns that are looked at for a step."""


def removal_losses(
    covariance: torch.Tensor, weight: torch.Tensor, metric: torch.Tensor, *, size: int, damping: float = DAMPING
) -> torch.Tensor:
    """Return what each unit costs at its turn, when units leave cheapest first and the rest is refitted, `(units,)`.

    A unit of columns S of W costs ½ tr(W_Sᵀ G W_S ([C⁻¹]_SS)⁻¹), and the others take over by
    W −= W_S ([C⁻¹]_SS)⁻¹ [C⁻¹]_S.

    Args:
        covariance: C, of what enters the linear, `(columns, columns)`.
        weight: W, `(outputs, columns)`.
        metric: G, mean product of the loss's gradients at what leaves it, `(outputs, outputs)`.
        size: columns of a unit.
        damping: see `DAMPING`.

    Returns:
        Losses per token, never falling in the order in which units leave; the last one is left the dearest.

    Source: Hassibi and Stork 1993 (optimal brain surgeon); Kurtic et al. 2023 (ZipLM) for structures; Wang et al.
    2019 (EigenDamage) and van der Ouderaa et al. 2023 (LLM Surgeon) for the factor G.
    """
    columns = len(covariance)
    held = damping * float(covariance.diagonal().mean()) + 1e-12
    inverse = torch.linalg.inv(covariance.double() + held * torch.eye(columns, dtype=torch.float64))
    # With G = LᵀL the loss of W is the squared norm of L W.
    values, vectors = torch.linalg.eigh(metric.double())
    energy = (values.clamp(min=0).sqrt()[:, None] * vectors.T) @ weight.double()
    return _leave(inverse, energy, size)


def _leave(inverse: torch.Tensor, energy: torch.Tensor, size: int) -> torch.Tensor:
    units = len(inverse) // size
    step = _STEP if size == 1 else 1
    losses = torch.zeros(units, dtype=torch.float64)
    alive = torch.arange(units)
    dearest = 0.0
    while len(alive):
        scores = _scores(inverse, energy, size)
        looked_at = scores.argsort(stable=True)[: _CANDIDATES * step]
        chosen, costs = _cheapest(inverse, energy, looked_at, min(step, len(alive)), size)
        for unit, cost in zip(chosen, costs, strict=True):
            dearest = max(dearest, cost)
            losses[alive[unit]] = dearest
        inverse, energy = _without(inverse, energy, torch.tensor(chosen), size)
        keep = torch.ones(len(alive), dtype=torch.bool)
        keep[chosen] = False
        alive = alive[keep]
    return losses


def _scores(inverse: torch.Tensor, energy: torch.Tensor, size: int) -> torch.Tensor:
    if size == 1:
        return energy.square().sum(0) / inverse.diagonal() / 2
    units = len(inverse) // size
    squares = inverse.reshape(units, size, units, size).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    columns = energy.reshape(-1, units, size).permute(1, 2, 0)  # (units, size, outputs)
    scores: torch.Tensor = (columns * torch.linalg.solve(squares, columns)).sum((1, 2)) / 2
    return scores


def _cheapest(
    inverse: torch.Tensor, energy: torch.Tensor, looked_at: torch.Tensor, step: int, size: int
) -> tuple[list[int], list[float]]:
    """Return so many units of those looked at, each chosen after the ones before it have left, and their costs."""
    places = _columns(looked_at, size)
    small, part = inverse[places][:, places], energy[:, places]
    left = looked_at.clone()
    chosen, costs = [], []
    for _ in range(step):
        scores = _scores(small, part, size)
        at = int(scores.argmin())
        chosen.append(int(left[at]))
        costs.append(float(scores[at]))
        small, part = _without(small, part, torch.tensor([at]), size)
        left = torch.cat([left[:at], left[at + 1 :]])
    return chosen, costs


def _columns(units: torch.Tensor, size: int) -> torch.Tensor:
    return (units[:, None] * size + torch.arange(size)).flatten()


def _without(
    inverse: torch.Tensor, energy: torch.Tensor, units: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inverse and energy after units have left and the others have taken over."""
    gone = _columns(units, size)
    keep = torch.ones(len(inverse), dtype=torch.bool)
    keep[gone] = False
    share = torch.linalg.solve(inverse[gone][:, gone], inverse[gone][:, keep])  # (gone, kept)
    return inverse[keep][:, keep] - inverse[keep][:, gone] @ share, energy[:, keep] - energy[:, gone] @ share
