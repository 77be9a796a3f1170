"""Text that a recipe names, to be learnt from without labels: plain files, and the training texts of datasets."""

import os
from collections.abc import Sequence
from pathlib import Path

from pipeline.data import readers
from pipeline.data.datasets import DATA_VARIABLE, DATASETS, Labelled
from pipeline.data.location import locate
from pipeline.errors import InputError
from pipeline.execution import planned

Unlabelled = str | tuple[str, str]
"""A text, or a pair that is read as one row."""
PLAIN = {
    "wikitext2": "lm/wikitext2-valid.txt",
    "war-and-peace": "lm/war-and-peace.txt",
    # The user's: what a ready recipe trims a multilingual vocabulary to.
    "own-text": "lm/own-text.txt",
}
"""Plain text in the folder that `POCKETBERT_DATA` names, by the name that a recipe gives it."""
_WORDS_PER_TOKEN = 0.75
"""A little less than English has, so that a passage is hardly ever truncated."""
_LABELLED = {*readers.TABLES, readers.TAGGED, readers.QUESTIONS}
"""Endings of labelled files: learnt from as prose, they would teach commas and column names."""


def texts(names: Sequence[str], recipe_file: Path, key: str) -> list[Unlabelled]:
    """Return the texts that a recipe names, each once, in order, pairs as pairs.

    Args:
        names: `.txt` files, rows of `PLAIN`, and datasets.
        recipe_file: relative paths start at its folder.
        key: the recipe's key that names them, for errors.

    Raises:
        InputError: a file or dataset is absent, malformed, or holds nothing.
    """
    unique: dict[Unlabelled, None] = {}
    for name in names:
        if _is_plain(name):
            unique |= dict.fromkeys(lines(plain_file(name, recipe_file, key), key))
        else:
            rows = training_rows(name, key)
            unique |= dict.fromkeys((row.first, row.second) if row.second else row.first for row in rows)
    return list(unique)


def passages(texts: Sequence[str], tokens: int) -> list[str]:
    """Return texts of about so many tokens, each joined of texts in a row, which often have one subject."""
    found: list[str] = []
    waiting: list[str] = []
    count = 0
    for text in texts:
        waiting.append(text)
        count += len(text.split())
        if count >= _WORDS_PER_TOKEN * tokens:
            found.append(" ".join(waiting))
            waiting, count = [], 0
    return found


def digests(names: Sequence[str], recipe_file: Path, key: str) -> dict[str, str | None]:
    """Return the sha256 of what `texts` reads, by the name that the recipe gives it."""
    return {
        name: planned.digest(plain_file(name, recipe_file, key)) if _is_plain(name) else DATASETS[name].digest("train")
        for name in names
    }


def plain_file(name: str, recipe_file: Path, key: str) -> Path:
    """Return the file of plain text that a recipe names: a row of `PLAIN`, a path from the recipe, or a hub's file.

    Raises:
        InputError: the name is a row of `PLAIN` and `POCKETBERT_DATA` is not set, or the hub's file cannot be had.
    """
    if name not in PLAIN:
        return locate(name, recipe_file)
    root = os.environ.get(DATA_VARIABLE)
    if not root:
        where = f"{PLAIN[name]} of the folder that {DATA_VARIABLE} names"
        raise InputError(f"{key}: {name!r} is {where}; it is not set.")
    return Path(root) / PLAIN[name]


def absent_plain(name: str) -> str | None:
    """Say why a row of `PLAIN` cannot be read now, or return None."""
    root = os.environ.get(DATA_VARIABLE)
    if not root:
        return f"{DATA_VARIABLE} is not set"
    return None if (Path(root) / PLAIN[name]).is_file() else f"{DATA_VARIABLE}/{PLAIN[name]} does not exist"


def lines(path: Path, key: str) -> list[str]:
    """Return the lines of a plain text file that are not blank, as they are.

    Raises:
        InputError: the file is absent, a table, not UTF-8, or holds nothing.
    """
    if path.suffix.lower() in _LABELLED:
        raise InputError(f"{key}: {path} is a table, not plain text; save its texts as .txt, one a line.")
    planned.check_regular(path)
    planned.check(path)
    try:
        every = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError as error:
        raise InputError(f"{key}: {path} does not exist; it names plain text files.") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{key}: {path} is not UTF-8: {error.reason} at byte {error.start}. Save it as UTF-8."
        ) from error
    except OSError as error:
        raise InputError(f"{key}: {path} cannot be read: {error.strerror}.") from error
    lines = [line for line in every if line.strip()]
    if not lines:
        raise InputError(f"{key}: {path} holds no text.")
    return lines


def _is_plain(name: str) -> bool:
    return name in PLAIN or name.endswith(".txt")


def training_rows(name: str, key: str) -> list[Labelled]:
    """Return the training rows of a dataset that a recipe names among texts.

    Raises:
        InputError: it does not exist, is absent or malformed, or has no rows to train on.
    """
    if name not in DATASETS:
        known = f"plain text: {', '.join(PLAIN)}; datasets: {', '.join(DATASETS)}"
        raise InputError(f"{key}: {name!r} is no .txt file and no dataset; {known}.")
    dataset = DATASETS[name]
    if dataset.train is None:
        # Students are judged by all its rows: one fitted to them would be judged too well.
        able = ", ".join(other for other, row in DATASETS.items() if row.train)
        raise InputError(
            f"{key}: {name} has no training texts; students are judged by all that it holds. Name a .txt file, or "
            f"one of {able}."
        )
    return dataset.load("train")
