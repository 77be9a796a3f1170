"""A ready index for the demo apps, beside the models that are shipped to them."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from pipeline import atomic
from pipeline.errors import ArtifactError
from pipeline.search import about
from pipeline.search.files import LOCK

FOLDER = "index"
"""Where both apps look for an index, in the folder with their models."""


def place(index: Path, roots: Sequence[Path]) -> list[Path]:
    """Copy a flat index into the model folders of apps, in the place of an earlier one; return the copies.

    Args:
        index: the index, which nobody writes meanwhile.
        roots: the apps' folders of models.

    Raises:
        ArtifactError: something else lies there, or the disk takes no more; earlier copies are whole.
    """
    places = [root / FOLDER for root in roots]
    for one in places:
        if one.exists() and not (one / about.ABOUT).is_file():
            raise ArtifactError(f"{one} is no search index; move it away, and the index goes there.")
    for one in places:
        with atomic.writing(one):
            one.parent.mkdir(parents=True, exist_ok=True)
            with atomic.write_aside(one) as aside:
                shutil.copytree(index, aside, ignore=shutil.ignore_patterns(LOCK))
    return places
