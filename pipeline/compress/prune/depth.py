"""Which layers are kept, where a recipe gives their number: the ones without which the results change most."""

from collections.abc import Sequence
from typing import Any

import torch

from pipeline.compress.prune import walk
from pipeline.compress.prune.parts import sequence
from pipeline.compress.prune.walk import State
from pipeline.data.calibration import Batches
from pipeline.graph.worker import tell


def chosen(model: Any, batches: Batches, wanted: int | Sequence[int]) -> list[int]:
    """Return the numbers of the layers that are kept, ascending.

    Args:
        model: a Hugging Face model.
        batches: calibration rows.
        wanted: the numbers themselves; or how many, and then layers leave one by one, each time the one without which
            the last hidden states change least in cosine.

    Source: Kim et al. 2024 (Shortened LLaMA): a layer's worth is measured by leaving it out.
    """
    found = sequence(model)
    if not isinstance(wanted, int):
        return sorted(wanted)
    kept = list(range(len(found)))
    if all(layer.module is found[0].module for layer in found):
        return kept[:wanted]
    with torch.no_grad():
        start = walk.begin(model, batches)
        truth = _through(model, start, kept)
        while len(kept) > wanted:
            tell("layers", 0.1 * (len(found) - len(kept)) / (len(found) - wanted))
            changes, before = {}, start
            for place, number in enumerate(kept):
                changes[number] = walk.distance(truth, _through(model, before, kept[place + 1 :]))
                before = _through(model, before, [number])
            kept.remove(min(kept, key=lambda number: changes[number]))
    return kept


def _through(model: Any, states: Sequence[State], numbers: Sequence[int]) -> list[State]:
    found = sequence(model)
    result = []
    for state in states:
        for number in numbers:
            state = walk.through(found[number], state)
        result.append(state)
    return result
