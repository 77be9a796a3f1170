"""Text that a recipe names, to be learnt from without labels: plain files, and the training texts of data sets."""

import os
from collections.abc import Sequence
from pathlib import Path

from pipeline.artifact import sha256_file
from pipeline.data import datasets as data
from pipeline.data import places
from pipeline.data.datasets import Labelled
from pipeline.data.files import ENDINGS
from pipeline.errors import InputError

Unlabelled = str | tuple[str, str]
"""A text, or a pair that is read as one row."""
PLAIN = {"wikitext2": "lm/wikitext2-valid.txt", "war-and-peace": "lm/war-and-peace.txt"}
"""Plain text in the folder that `POCKETBERT_DATA` names, by what a recipe calls it."""
_TABLES = {ending for endings in ENDINGS.values() for ending in endings}
"""Of labelled files: learnt from as prose, they would teach commas and column names."""


def texts(names: Sequence[str], recipe_file: Path, asked: str) -> list[Unlabelled]:
    """Return the texts that a recipe names, each once, in order, pairs as pairs.

    Args:
        names: `.txt` files, rows of `PLAIN`, and data sets.
        recipe_file: relative files are meant from there.
        asked: the recipe's key that names them, for errors.

    Raises:
        InputError: a file or data set is absent, malformed, or holds nothing.
    """
    found: dict[Unlabelled, None] = {}
    for name in names:
        if _is_plain(name):
            found |= dict.fromkeys(lines(plain_file(name, recipe_file, asked), asked))
        else:
            rows = _rows(name, asked)
            found |= dict.fromkeys((row.first, row.second) if row.second else row.first for row in rows)
    return list(found)


def digests(names: Sequence[str], recipe_file: Path, asked: str) -> dict[str, str | None]:
    """Return the sha256 of what `texts` reads, by the name that the recipe gives it."""
    return {
        name: sha256_file(plain_file(name, recipe_file, asked))
        if _is_plain(name)
        else data.DATASETS[name].digest("train")
        for name in names
    }


def plain_file(name: str, recipe_file: Path, asked: str) -> Path:
    """Return the file of plain text that a recipe names: a row of `PLAIN`, a path from the recipe, or a hub's file.

    Raises:
        InputError: a row of `PLAIN`, and `POCKETBERT_DATA` is not set; or the hub's file cannot be had.
    """
    if name not in PLAIN:
        return places.find(name, recipe_file)
    root = os.environ.get(data.DATA_VARIABLE)
    if not root:
        where = f"{PLAIN[name]} of the folder that {data.DATA_VARIABLE} names"
        raise InputError(f"{asked}: {name!r} is {where}; it is not set.")
    return Path(root) / PLAIN[name]


def lines(path: Path, asked: str) -> list[str]:
    """Return the lines of a plain text file that hold something, as they are.

    Raises:
        InputError: the file is absent, a table, not UTF-8, or holds nothing.
    """
    if path.suffix.lower() in _TABLES:
        raise InputError(f"{asked}: {path} is a table, not plain text; save its texts as .txt, one a line.")
    try:
        every = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError as error:
        raise InputError(f"{asked}: {path} does not exist; it names plain text files.") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{asked}: {path} is not UTF-8: {error.reason} at byte {error.start}. Save it as UTF-8."
        ) from error
    except OSError as error:
        raise InputError(f"{asked}: {path} cannot be read: {error.strerror}.") from error
    found = [line for line in every if line.strip()]
    if not found:
        raise InputError(f"{asked}: {path} holds no text.")
    return found


def _is_plain(name: str) -> bool:
    return name in PLAIN or name.endswith(".txt")


def _rows(name: str, asked: str) -> list[Labelled]:
    if name not in data.DATASETS:
        known = f"plain text: {', '.join(PLAIN)}; data sets: {', '.join(data.DATASETS)}"
        raise InputError(f"{asked}: {name!r} is no .txt file and no data set; {known}.")
    dataset = data.DATASETS[name]
    if dataset.train is None:
        # A student that was fitted to them would be judged too well.
        able = ", ".join(one for one, row in data.DATASETS.items() if row.train)
        raise InputError(
            f"{asked}: {name} has no training texts; students are judged by all that it holds. Name a .txt file, or "
            f"one of {able}."
        )
    return dataset.load("train")
