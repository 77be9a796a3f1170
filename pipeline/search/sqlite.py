"""The engines `sqlite` and `sqlite-vec`: an index in one SQLite file.

`passages` has a row's id and text, `vectors` its stored vector as a blob, both by the row's number, which is never used
again. Each batch is a transaction. With `sqlite-vec`, the virtual table `nearest` has the vectors once more, as the
extension compares them: it finds candidates in SQL, which are scored and ordered as the exact scan does it.
"""

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from pipeline import atomic
from pipeline.errors import ArtifactError, ToolchainError
from pipeline.search import about as abouts
from pipeline.search import codes
from pipeline.search.about import About
from pipeline.search.codes import DTYPES, Floats, Scan, Score
from pipeline.search.files import check_plain, locked, sweep
from pipeline.search.flat import Hit, Passage
from pipeline.vectors.storage import StorageName

FILE = "index.sqlite"
SqliteEngine = Literal["sqlite", "sqlite-vec"]
_TABLES = """
create table passages (row integer primary key autoincrement, id text not null unique, text text not null);
create table vectors (row integer primary key, vector blob not null);
"""
_COUNTS = """
select (select count(*) from passages left join vectors using (row) where typeof(id) != 'text'
    or typeof(text) != 'text' or typeof(vector) != 'blob' or length(vector) != ?),
    (select count(*) from passages), (select count(*) from vectors)
"""
"""Passages that are not what they have to be, all passages, and all vectors."""
_COLUMNS: dict[StorageName, tuple[str, str]] = {
    "int8": ("int8[{width}] distance_metric=cosine", "vec_int8(?)"),
    "float32": ("float[{width}] distance_metric=cosine", "?"),
    "float16": ("float[{width}] distance_metric=cosine", "?"),
    "bits": ("bit[{width}]", "vec_bit(?)"),
}
"""By storage: the column of `nearest`, and how a value of it is given. The extension has no float16."""
_MOST_NEAREST = 4096
"""Rows that the extension returns at most, as of sqlite-vec 0.1.9."""
_CANDIDATES_PER_HIT = 10
_FEWEST_CANDIDATES = 100


class SqliteIndex:
    """An open index in a SQLite file."""

    def __init__(
        self, folder: Path, about: About, connection: sqlite3.Connection, engine: SqliteEngine, lock: FileLock | None
    ) -> None:
        """Use `create` or `open`."""
        self.folder, self.about, self.engine = folder, about, engine
        self._connection, self._lock = connection, lock
        self._scan: tuple[Scan, NDArray[np.int64]] | None = None
        """The search over all rows, and their numbers in the file."""
        self._version = 0
        """SQLite's number of the state that the search is over; another one says that another process wrote."""

    @classmethod
    def create(cls, folder: Path, about: About, engine: SqliteEngine) -> Self:
        """Make an empty index and open it for writing; the folder may exist, and be empty.

        Raises:
            ToolchainError: sqlite-vec is asked for, and cannot be loaded.
            ArtifactError: the disk takes no file.
            InputError: another process writes there.
        """
        with _told(folder), atomic.writing(folder):
            if engine == "sqlite-vec":
                with contextlib.closing(sqlite3.connect(":memory:")) as trial:
                    _load_extension(trial)
            folder.mkdir(parents=True, exist_ok=True)
            check_plain(folder)
            lock = locked(folder)
            sweep(folder)
            abouts.write(folder, about)
            # Renamed when it is complete, so that there never is a file without its tables.
            with atomic.write_aside(folder / FILE) as aside, contextlib.closing(sqlite3.connect(aside)) as connection:
                connection.executescript(_TABLES)
                if engine == "sqlite-vec":
                    _load_extension(connection)
                    column = _COLUMNS[about.storage][0].format(width=about.width)
                    connection.execute(f"create virtual table nearest using vec0(vector {column})")
                connection.commit()
            connection = _connected(folder / FILE, engine, writing=True)
        return cls(folder, about, connection, engine, lock)

    @classmethod
    def open(cls, folder: Path, *, writing: bool = False) -> Self:
        """Open an index.

        Raises:
            InputError: there is none, or another process writes.
            ToolchainError: it was made with sqlite-vec, which cannot be loaded.
            ArtifactError: it is damaged.
        """
        check_plain(folder)
        about = abouts.read(folder)
        lock = locked(folder) if writing else None
        try:
            with _told(folder):
                engine = _engine(folder / FILE)
                connection = _connected(folder / FILE, engine, writing=writing)
        except BaseException:
            if lock:
                lock.release()
            raise
        return cls(folder, about, connection, engine, lock)

    def __len__(self) -> int:
        """Return how many passages can be found."""
        with _told(self.folder):
            return int(self._connection.execute("select count(*) from passages").fetchone()[0])

    @property
    def rows(self) -> int:
        """How many rows there are; removed ones leave the file."""
        return len(self)

    @property
    def size_bytes(self) -> int:
        """Bytes of the index's files."""
        return sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file())

    def has(self, passage: Passage) -> bool:
        """Return whether a passage is there with this text."""
        with _told(self.folder):
            found = self._connection.execute("select text from passages where id = ?", (passage.id,)).fetchone()
        return bool(found and found[0] == passage.text)

    def ids(self) -> Sequence[str]:
        """Return the ids of what can be found, in the order of rows."""
        with _told(self.folder):
            return [one for (one,) in self._connection.execute("select id from passages order by row")]

    def add(self, passages: Sequence[Passage], vectors: Floats) -> int:
        """Add passages with their embeddings in one transaction, see `FlatIndex.add`."""
        stored = codes.encode(vectors, self.about)
        with self._written():
            replaced = self._removed([one.id for one in passages])
            for passage, code in zip(passages, stored, strict=True):
                row = self._connection.execute(
                    "insert into passages (id, text) values (?, ?)", (passage.id, passage.text)
                ).lastrowid
                self._connection.execute("insert into vectors values (?, ?)", (row, code.tobytes()))
                if self.engine == "sqlite-vec":
                    value = self._comparable(code[None])
                    self._connection.execute(
                        f"insert into nearest (rowid, vector) values (?, {_COLUMNS[self.about.storage][1]})",
                        (row, value),
                    )
        return replaced

    def remove(self, ids: Sequence[str]) -> int:
        """Remove passages by their ids in one transaction; return how many were there."""
        with self._written():
            return self._removed(ids)

    def _removed(self, ids: Sequence[str]) -> int:
        tables = ["passages", "vectors", *(["nearest"] if self.engine == "sqlite-vec" else [])]
        rows = [self._connection.execute("select row from passages where id = ?", (one,)).fetchone() for one in ids]
        found = [row for row in rows if row]
        for table in tables:
            key = "rowid" if table == "nearest" else "row"
            self._connection.executemany(f"delete from {table} where {key} = ?", found)
        return len(found)

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        """Carry out a transaction: all of it, or nothing."""
        self._scan = None
        with _told(self.folder), self._connection:
            yield

    def finish(self) -> None:
        """Nothing is left to do: what is committed is complete."""

    def sample(self, count: int) -> tuple[list[Passage], Floats]:
        """Return passages from all over the index with their vectors, see `FlatIndex.sample`."""
        every = max(1, -(-len(self) // count))
        asked = (
            "select id, text, vector from (select *, row_number() over (order by row) - 1 as place from passages "
            "join vectors using (row)) where place % ? = 0 order by row"
        )
        with self._snapshot(), _told(self.folder):
            self._check_rows()
            found = self._connection.execute(asked, (every,)).fetchall()
        stored = np.frombuffer(b"".join(blob for _, _, blob in found), DTYPES[self.about.storage])
        vectors = stored.reshape(len(found), codes.columns(self.about))
        return [Passage(id_, text) for id_, text, _ in found], codes.decode(vectors, self.about)

    def scan(self) -> Scan:
        """Return the exact search over all rows."""
        return self._all()[0]

    def _check_rows(self) -> None:
        """Refuse a file with a passage without its vector, a vector of another width, or the like."""
        with _told(self.folder):
            wrong, passages, vectors = self._connection.execute(_COUNTS, (codes.row_bytes(self.about),)).fetchone()
        if wrong or passages != vectors:
            raise ArtifactError(
                f"{self.folder / FILE} is damaged: not each of its {passages:,} passages has a text and a vector of "
                f"width {self.about.width}. Delete the folder and index the texts again."
            )

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Read one state of the file, whatever another process writes meanwhile."""
        with _told(self.folder):
            self._connection.execute("begin")
        try:
            with _told(self.folder):
                (version,) = self._connection.execute("pragma data_version").fetchone()
            if version != self._version:
                self._scan, self._version = None, version
            yield
        finally:
            self._connection.rollback()

    def _all(self) -> tuple[Scan, NDArray[np.int64]]:
        if self._scan is None:
            self._check_rows()
            rows, blobs = [], bytearray()
            with _told(self.folder):
                for row, blob in self._connection.execute("select row, vector from vectors order by row"):
                    rows.append(row)
                    blobs += blob
            columns = codes.columns(self.about)
            stored = np.frombuffer(bytes(blobs), DTYPES[self.about.storage]).reshape(len(rows), columns)
            self._scan = Scan(stored, self.about), np.array(rows, np.int64)
        return self._scan

    def search(self, vector: Floats, top: int) -> list[Hit]:
        """Return the passages nearest to an embedding of whole width, the nearest first."""
        with self._snapshot():
            return self._search(vector, top)

    def _search(self, vector: Floats, top: int) -> list[Hit]:
        scan, rows = self._all()
        if self.engine == "sqlite":
            return self._hits(scan.top(vector, top), rows)
        wanted = min(_MOST_NEAREST, max(_FEWEST_CANDIDATES, _CANDIDATES_PER_HIT * top))
        query = self._comparable(codes.comparable_query(vector, self.about)[None], coded=True)
        value = _COLUMNS[self.about.storage][1]
        with _told(self.folder):
            found = self._connection.execute(
                f"select rowid from nearest where vector match {value} and k = ?", (query, wanted)
            ).fetchall()
        places = np.searchsorted(rows, np.array([row for (row,) in found], np.int64))
        return self._hits(scan.ranked(vector, places, top), rows)

    def _comparable(self, stored: NDArray[Any], *, coded: bool = False) -> bytes:
        numbers = stored if coded else codes.comparable(stored, self.about)
        return (numbers.astype(np.float32) if self.about.storage == "float16" else numbers).tobytes()

    def _hits(self, scores: Sequence[Score], rows: NDArray[np.int64]) -> list[Hit]:
        hits = []
        with _told(self.folder):
            for score in scores:
                row = int(rows[score.row])
                id_, text = self._connection.execute("select id, text from passages where row = ?", (row,)).fetchone()
                hits.append(Hit(id_, text, row, score.score, score.cosine))
        return hits

    def close(self) -> None:
        """Close the file, and let other processes write."""
        self._connection.close()
        if self._lock:
            self._lock.release()

    def __enter__(self) -> Self:
        """Return the index itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file, and let other processes write."""
        self.close()


def _connected(file: Path, engine: SqliteEngine, *, writing: bool) -> sqlite3.Connection:
    # For readers too: what a killed writer left in the journal is taken back by whoever opens the file next, and a
    # connection of mode `ro` cannot. A file that is write-protected is opened for reading all the same.
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True)
    if not writing:
        connection.execute("pragma query_only = on")
    # Views and triggers of a file that was tampered with may call nothing.
    connection.execute("pragma trusted_schema = off")
    # What is removed is overwritten, not only let go.
    connection.execute("pragma secure_delete = on")
    if engine == "sqlite-vec":
        _load_extension(connection)
    return connection


def _engine(file: Path) -> SqliteEngine:
    """Return which engine made a file, by its tables.

    Raises:
        ArtifactError: none did.
    """
    with contextlib.closing(_connected(file, "sqlite", writing=False)) as connection:
        tables = {name for (name,) in connection.execute("select name from sqlite_master")}
    if not {"passages", "vectors"} <= tables:
        raise ArtifactError(f"{file} has no passages. Delete the folder and index the texts again.")
    return "sqlite-vec" if "nearest" in tables else "sqlite"


def can_load_extensions() -> bool:
    """Return whether this Python's sqlite3 was built with extensions that can be loaded; many are not."""
    return hasattr(sqlite3.Connection, "enable_load_extension")


def _load_extension(connection: sqlite3.Connection) -> None:
    """Load sqlite-vec.

    Raises:
        ToolchainError: it is not installed, or this Python's sqlite3 loads no extensions.
    """
    try:
        import sqlite_vec
    except ImportError as error:
        raise ToolchainError(
            "--engine sqlite-vec: the package sqlite-vec is not installed. It is in the extra `search`: "
            "`pip install -e '.[search]'` in PocketBERT's folder; --engine sqlite needs no package."
        ) from error
    if not can_load_extensions():
        raise ToolchainError(
            "--engine sqlite-vec: this Python's sqlite3 was built without extensions that can be loaded. Use "
            "--engine sqlite, whose vectors are plain blobs, or another build of Python."
        )
    connection.enable_load_extension(True)
    sqlite_vec.load(connection)
    connection.enable_load_extension(False)


@contextlib.contextmanager
def _told(folder: Path) -> Iterator[None]:
    """Turn SQLite's errors into one that names the file.

    Raises:
        ArtifactError: the file is damaged or in use, or the disk full or read-only.
    """
    try:
        yield
    except sqlite3.Error as error:
        said, advice = str(error), "Delete the folder and index the texts again."
        if any(word in said for word in ("full", "readonly", "locked", "disk I/O")):
            advice = "What was committed is kept: make room, or wait for who else uses it, and run the command again."
        raise ArtifactError(f"{folder / FILE} cannot be used: {said}. {advice}") from error
