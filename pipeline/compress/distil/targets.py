"""Embeddings that a student learns: those of `space = "own"`, and which texts are near each other by them.

With `space = "own"` a checkpoint's own embeddings are moved towards what a better teacher knows. A teacher's vectors
lie in another space. An orthogonal map turns them towards the checkpoint's own, and leaves their cosines; the mean of
both is what the student learns. So a student begins near its targets, stays in the checkpoint's space, and takes over
the teacher's similarities. On STS-B the mean of MiniLM and bge-small is better than either (LOG.md).
"""

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.compress.space import fitting

_MEAN_TAKEN_OFF = 0.5
"""Part of the teacher's mean vector that is taken off first: many encoders leave their vectors in a narrow cone, and a
constant that all targets share says nothing of a text."""
_COMPARED = 2**15
"""Texts among which a text's neighbours are looked for: time grows with the number of texts, not with its square."""
_AT_ONCE = 1024
"""Texts whose neighbours are looked for in one product."""


def blend(own: NDArray[np.floating], theirs: NDArray[np.floating], weight: float) -> NDArray[np.float32]:
    """Return the unit vectors of own + weight · R theirs, with R the orthogonal map that brings theirs nearest to own.

    Args:
        own: unit vectors of the texts by the checkpoint, `(texts, width)`.
        theirs: the teacher's, `(texts, its width)`; where it is wider, R keeps the columns that are nearest to `own`.
        weight: of the teacher's vectors beside the own ones.
    """
    mine = np.asarray(own, np.float64)
    teacher = np.asarray(theirs, np.float64)
    teacher = fitting.unit(teacher - _MEAN_TAKEN_OFF * teacher.mean(0))
    width = mine.shape[1]
    aims = np.pad(mine, ((0, 0), (0, max(0, teacher.shape[1] - width))))
    turned = fitting.orthogonal(teacher, aims)(teacher)[:, :width]
    return fitting.unit(mine + weight * turned).astype(np.float32)


def nearest(vectors: NDArray[np.float32], count: int, *, seed: int) -> NDArray[np.int64]:
    """Return the numbers of the texts with the highest cosines to each text, itself left out, highest first.

    Args:
        vectors: unit vectors, `(texts, width)`.
        count: of neighbours, or as many as there are.
        seed: decides which texts are compared with each other, where there are too many for all.

    Returns:
        `(texts, count)`.
    """
    parts = max(1, round(len(vectors) / _COMPARED))
    count = min(count, len(vectors) // parts - 1)
    found = np.empty((len(vectors), count), np.int64)
    for part in np.array_split(np.random.default_rng(seed).permutation(len(vectors)), parts):
        among = torch.from_numpy(vectors[part])
        for start in range(0, len(part), _AT_ONCE):
            cosines = among[start : start + _AT_ONCE] @ among.T
            mine = torch.arange(len(cosines))
            cosines[mine, mine + start] = -torch.inf
            found[part[start : start + _AT_ONCE]] = part[cosines.topk(count).indices.numpy()]
    return found
