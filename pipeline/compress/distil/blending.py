"""Targets of `space = "own"`: a checkpoint's own embeddings, moved towards what a better teacher knows.

A teacher's vectors lie in another space. An orthogonal map turns them towards the checkpoint's own, and leaves their
cosines; the mean of both is what the student learns. So a student begins near its targets, stays in the checkpoint's
space, and takes over the teacher's similarities. On STS-B the mean of MiniLM and bge-small is better than either
(LOG.md).
"""

import numpy as np
from numpy.typing import NDArray

from pipeline.compress.space import fitting

_MEAN_TAKEN_OFF = 0.5
"""Part of the teacher's mean vector that is taken off first: many encoders leave their vectors in a narrow cone, and a
constant that all targets share says nothing of a text."""


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
