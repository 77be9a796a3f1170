"""The texts that people have: JSON Lines, CSV and TSV, a folder of notes, a plain text; read as passages with ids."""

import csv
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from pipeline.errors import InputError
from pipeline.search.flat import Passage

NOTES = (".txt", ".md")
"""Endings of files that are read from a folder."""
_TEXT, _IDS = "text", ("id", "_id")
_LONGEST_LINE_BYTES = 1 << 26
_SHOWN_COLUMNS = 12
csv.field_size_limit(_LONGEST_LINE_BYTES)


@dataclass(frozen=True)
class Source:
    """What `pocketbert index` was given to read, and how."""

    paths: Sequence[Path]
    text: str | None = None
    """Name of the column with the text; None for `text`, or the only one."""
    id: str | None = None
    """Name of the column with the id; None for `id` or `_id` where there is one, else the number of the row."""
    window: int | None = None
    """Words of a passage, into which longer texts are cut; None leaves texts whole."""

    def __iter__(self) -> Iterator[Passage]:
        """Yield the passages; those without a visible character are left out.

        A text is a row of a table, a file of a folder, or a line of a plain text. With `window` it is a file where it
        was a line, and ids are those of texts with `#0`, `#1` … behind them.

        Raises:
            InputError: a file is absent, of no known kind, not UTF-8, malformed, or has no such column.
        """
        for path in self.paths:
            for id_, text in self._read(path):
                yield from self._passages(id_, text)

    @cached_property
    def total(self) -> int:
        """How many passages there are; everything is read once for it.

        Raises:
            InputError: there are none, two have the same id, or see `__iter__`.
        """
        seen: set[str] = set()
        for passage in self:
            if passage.id in seen:
                raise InputError(
                    f"the id {passage.id[:80]!r} is there twice. Ids tell passages apart: name another column with "
                    "--id, or give files of different names."
                )
            seen.add(passage.id)
        if not seen:
            raise InputError(f"{', '.join(map(str, self.paths))}: there is no text. Give files that have some.")
        return len(seen)

    def _passages(self, id_: str, text: str) -> Iterator[Passage]:
        if self.window is None:
            if text.strip():
                yield Passage(_clean(id_), _clean(text))
            return
        words = text.split()
        for number, begin in enumerate(range(0, len(words), self.window)):
            yield Passage(_clean(f"{id_}#{number}"), _clean(" ".join(words[begin : begin + self.window])))

    def _read(self, path: Path) -> Iterator[tuple[str, str]]:
        """Yield ids and texts of a file or folder."""
        if os.path.isdir(path):
            yield from self._folder(path)
            return
        if not os.path.isfile(path):
            what = "is no regular file" if os.path.exists(path) else "does not exist"
            raise InputError(f"{path} {what}; give a .jsonl, .csv, .tsv, .txt or .md file, or a folder of notes.")
        readers: dict[str, Callable[[Path], Iterator[tuple[str, str]]]] = {
            ".jsonl": self._jsonl,
            ".csv": self._table,
            ".tsv": self._table,
            **dict.fromkeys(NOTES, self._plain),
        }
        if path.suffix.lower() not in readers:
            raise InputError(f"{path} is of no known kind; there are: {', '.join(readers)}, and folders of notes.")
        try:
            yield from readers[path.suffix.lower()](path)
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}.") from error
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}.") from error

    def _folder(self, path: Path) -> Iterator[tuple[str, str]]:
        """Yield a folder's notes, each a text, by their path in the folder; hidden ones are passed over."""
        files = []
        for place, folders, names in os.walk(path, onerror=_not_listed):
            folders[:] = [name for name in folders if not name.startswith(".")]
            found = (Path(place, name) for name in names if not name.startswith("."))
            files += [file for file in found if file.suffix.lower() in NOTES and file.is_file()]
        if not files:
            raise InputError(f"{path} has no file that ends with {' or '.join(NOTES)}.")
        for file in sorted(files):
            yield file.relative_to(path).as_posix(), _content(file)

    def _plain(self, path: Path) -> Iterator[tuple[str, str]]:
        if self.text or self.id:
            raise InputError(f"{path} is plain text and has no columns; leave --text and --id out.")
        if self.window:
            yield path.name, _content(path)
            return
        for number, line in enumerate(_content(path).splitlines(), 1):
            yield f"{path.name}:{number}", line.strip()

    def _jsonl(self, path: Path) -> Iterator[tuple[str, str]]:
        with path.open("rb") as file:
            for number, line in enumerate(_lines(file, path), 1):
                if line.strip():
                    where = f"{path}, line {number}"
                    yield self._fields(_object(line, where), f"{path.name}:{number}", where)

    def _table(self, path: Path) -> Iterator[tuple[str, str]]:
        # Editors on Windows begin a file with a byte order mark, which is no part of the first column's name.
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
            try:
                names = list(rows.fieldnames or ())
                for name in (self.text or _TEXT, *((self.id,) if self.id else _IDS)):
                    if names.count(name) > 1:
                        raise InputError(f"{path}: its header names column {name!r} twice.")
                only = names[0] if len(names) == 1 else None
                for number, row in enumerate(rows, 1):
                    where = f"{path}, row {number}"
                    if None in row:
                        raise InputError(f"{where}: it has more fields than the header has columns.")
                    yield self._fields(row, f"{path.name}:{number}", where, only)
            except csv.Error as error:
                raise InputError(f"{path}, line {rows.line_num}: {error}.") from error

    def _fields(self, row: dict[str, Any], place: str, where: str, only: str | None = None) -> tuple[str, str]:
        """Return the id and the text of a row; the id is its place where it has none.

        Args:
            row: the fields by their columns.
            place: the file and the number of the row in it.
            where: the same for messages.
            only: the one column of a table that has no other.
        """
        column = self.text or (_TEXT if only is None else only)
        text = _field(row, column, where, "--text")
        named = self.id or next((one for one in _IDS if one in row and one != column), None)
        if named is None:
            return place, text
        id_ = _field(row, named, where, "--id")
        if not id_.strip():
            raise InputError(f"{where}: the id in column {named!r} is empty. Name another column with --id.")
        return id_, text


def _not_listed(error: OSError) -> None:
    """Refuse a folder that cannot be read: `--sync` would take its passages for removed ones."""
    raise InputError(f"{error.filename} cannot be read: {error.strerror}.") from error


def _field(row: dict[str, Any], column: str, where: str, option: str) -> str:
    if column not in row:
        names = list(row)
        more = f" and {len(names) - _SHOWN_COLUMNS} more" if len(names) > _SHOWN_COLUMNS else ""
        exist = ", ".join(map(repr, names[:_SHOWN_COLUMNS])) or "none"
        raise InputError(f"{where}: there is no column {column!r}; there are: {exist}{more}. Name one with {option}.")
    value = row[column]
    # A row of CSV that ends early has None; ids of JSON are often whole numbers.
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError(f"{where}: column {column!r} holds {str(value)[:40]!r}, which is no text.")
    return str(value)


def _lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    while line := file.readline(_LONGEST_LINE_BYTES):
        if len(line) == _LONGEST_LINE_BYTES:
            raise InputError(f"{path} has a line of more than {_LONGEST_LINE_BYTES / 1e6:.0f} MB; a line is a passage.")
        yield line


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: it is no JSON: {error}.") from error
    if isinstance(found, str):
        return {_TEXT: found}
    if not isinstance(found, dict):
        raise InputError(f'{where}: it is no JSON object with a text, such as {{"id": "7", "text": "…"}}.')
    return found


def _content(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}.") from error
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from error


def _clean(text: str) -> str:
    """Join surrogate pairs, and replace lone surrogates, which JSON may name and UTF-8 cannot hold."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
