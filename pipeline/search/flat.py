"""The flat index: a folder of plain files that Python, Kotlin and Swift append to and search exactly.

`files` says what lies in it. `state.json` is replaced after each batch, and that is the commit. What a killed
process appended beyond what it counts is cut off by the next writer.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from pipeline import atomic, strict
from pipeline.errors import ArtifactError, PipelineError
from pipeline.search import about as abouts
from pipeline.search import codes, files
from pipeline.search.about import About
from pipeline.search.codes import DTYPES, Floats, Scan, Score
from pipeline.search.files import OFFSETS, PASSAGES, REMOVED, STATE, VECTORS, State

_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Passage:
    """A text that can be found, and the id by which its owner knows it."""

    id: str
    text: str


@dataclass(frozen=True)
class Hit:
    """A passage that was found."""

    id: str
    text: str
    row: int
    score: int | float
    cosine: float


class FlatIndex:
    """An open flat index."""

    engine: Literal["flat", "usearch"] = "flat"

    def __init__(self, folder: Path, about: About, state: State, lock: FileLock | None) -> None:
        """Use `create` or `open`."""
        self.folder, self.about = folder, about
        self._state, self._lock = state, lock
        self._known: dict[str, tuple[int, int]] | None = None
        """Row and text's hash by id, of rows that are not removed; filled when a writer first asks."""
        self._scan: Scan | None = None
        self._begins: NDArray[np.uint64] | None = None
        self._removed: NDArray[np.uint32] | None = None
        self._text: NDArray[np.uint8] | None = None
        """Of a reader: `passages.jsonl` as the file in memory."""

    @classmethod
    def create(cls, folder: Path, about: About) -> Self:
        """Make an empty index and open it for writing; the folder may exist, and be empty.

        Raises:
            ArtifactError: the disk takes no file, or another process writes there.
        """
        with atomic.writing(folder, advice=files.KEPT):
            folder.mkdir(parents=True, exist_ok=True)
            files.check_plain(folder)
            lock = files.locked(folder)
            files.sweep(folder)
            abouts.write(folder, about)
            atomic.write_text(folder / STATE, files.EMPTY.model_dump_json() + "\n")
        return cls(folder, about, files.EMPTY, lock)

    @classmethod
    def open(cls, folder: Path, *, writing: bool = False) -> Self:
        """Open an index; a writer cuts off what a killed one left behind.

        Raises:
            InputError: there is none.
            ArtifactError: it is damaged, or another process writes.
        """
        while True:
            files.recover(folder)
            found = files.identity(folder)
            try:
                index = cls._written(folder) if writing else cls._read(folder)
            except PipelineError:
                if found == files.identity(folder):
                    raise
                continue
            if writing or found == files.identity(folder):
                return index
            # A compaction put another folder in its place meanwhile.
            index.close()

    @classmethod
    def _written(cls, folder: Path) -> Self:
        files.check_plain(folder)
        about = abouts.read(folder)
        lock = files.locked(folder)
        try:
            state = files.read_state(folder)
            files.check_files(folder, about, state)
            with atomic.writing(folder, advice=files.KEPT):
                files.sweep(folder)
                for name, size in files.sizes(about, state).items():
                    files.cut(folder / name, size)
        except BaseException:
            lock.release()
            raise
        return cls(folder, about, state, lock)

    @classmethod
    def _read(cls, folder: Path) -> Self:
        try:
            files.check_plain(folder)
            about, state = abouts.read(folder), files.read_state(folder)
            files.check_files(folder, about, state)
            index = cls(folder, about, state, None)
            index._hold()
        # NumPy tells of a file that became shorter by a ValueError.
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{folder} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
        return index

    def _hold(self) -> None:
        """Open all that a reader needs: it stays of one state when a compaction puts other files in their place."""
        if self._state.rows:
            self._text = np.memmap(self.folder / PASSAGES, np.uint8, "r", shape=self._state.text_bytes)
            self._begins = self._line_begins()
        self._removed = self.removed_rows()
        self._scan = self.scan()

    def __len__(self) -> int:
        """Return how many passages can be found."""
        return self._state.rows - self._state.removed

    @property
    def rows(self) -> int:
        """How many rows the files have, removed ones included."""
        return self._state.rows

    @property
    def size_bytes(self) -> int:
        """Bytes of the index's files."""
        return sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file())

    def has(self, passage: Passage) -> bool:
        """Return whether a passage is there with this text."""
        _, text = self._ids().get(passage.id, (0, None))
        return text == hash(passage.text)

    def ids(self) -> Sequence[str]:
        """Return the ids of what can be found, in the order of rows."""
        return list(self._ids())

    def add(self, passages: Sequence[Passage], vectors: Floats) -> int:
        """Append passages with their embeddings and commit; one whose id is there takes the old one's place.

        Args:
            passages: with ids that differ from each other.
            vectors: `(passages, whole width)`.

        Returns:
            How many took the place of another.

        Raises:
            ArtifactError: the disk is full or read-only; the index is as it was before.
        """
        known, state = self._ids(), self._state
        replaced = [known[one.id][0] for one in passages if one.id in known]
        lines = [_line(one) for one in passages]
        begins = state.text_bytes + np.cumsum([0, *map(len, lines)], dtype=np.uint64)
        content = {
            VECTORS: codes.encode(vectors, self.about).tobytes(),
            PASSAGES: b"".join(lines),
            OFFSETS: begins[:-1].astype("<u8").tobytes(),
        }
        self._commit(
            content,
            replaced,
            State(rows=state.rows + len(passages), text_bytes=int(begins[-1]), removed=state.removed + len(replaced)),
        )
        for number, one in enumerate(passages):
            known.pop(one.id, None)
            known[one.id] = (state.rows + number, hash(one.text))
        return len(replaced)

    def remove(self, ids: Sequence[str]) -> int:
        """Remove passages by their ids and commit; return how many were there."""
        known = self._ids()
        rows = [known[one][0] for one in dict.fromkeys(ids) if one in known]
        if rows:
            state = self._state
            self._commit({}, rows, state.model_copy(update={"removed": state.removed + len(rows)}))
            for one in ids:
                known.pop(one, None)
        return len(rows)

    def _commit(self, content: Mapping[str, bytes], removed: Sequence[int], state: State) -> None:
        """Append to the files, wait until the disk has them, and only then let them count."""
        assert self._lock is not None, "opened for reading"
        content = {**content, REMOVED: np.array(removed, "<u4").tobytes()}
        ends = files.sizes(self.about, self._state)
        with atomic.writing(self.folder, advice=files.KEPT):
            for name, added in content.items():
                if added:
                    # At the end of what counts: an earlier attempt on a full disk may have left more.
                    files.cut(self.folder / name, ends[name])
                    with (self.folder / name).open("ab") as file:
                        file.write(added)
                        file.flush()
                        os.fsync(file.fileno())
            atomic.write_text(self.folder / STATE, state.model_dump_json() + "\n")
        self._state, self._scan, self._begins = state, None, None

    def finish(self) -> None:
        """Drop the rows of removed passages where they are more than half of all."""
        if self._state.removed * 2 > self._state.rows:
            self.compact()

    def compact(self) -> None:
        """Write the index anew without removed rows; the old one stays until the new one is complete.

        Raises:
            ArtifactError: the disk is full or read-only; the index is as it was before.
        """
        assert self._lock is not None, "opened for reading"
        # Where a link leads: the link itself stays. The process may stand in the folder, which gets another name.
        home = files.real(self.folder)
        new, before = files.beside(home, "new"), files.beside(home, "before")
        with atomic.writing(self.folder, advice=files.KEPT):
            atomic.remove(new)
            atomic.remove(before)
            try:
                new.mkdir()
                state = self._write_kept(new)
                # Whoever opens the new one has to wait for this writer as well.
                lock = files.locked(new)
                home.rename(before)
                new.rename(home)
            except BaseException:
                if not home.exists():
                    before.rename(home)
                # A disk that is full needs the room.
                atomic.remove(new)
                raise
        old, self._lock = self._lock, lock
        self.folder, self._state = home, state
        self._known, self._scan, self._begins = None, None, None
        atomic.remove(before)
        old.release()

    def _write_kept(self, folder: Path) -> State:
        """Write all files of an index without the removed rows; return its state."""
        kept = np.setdiff1d(np.arange(self._state.rows), self.removed_rows())
        stored = self.codes()
        begins, at = [], 0
        with (folder / VECTORS).open("wb") as vectors, (folder / PASSAGES).open("wb") as passages:
            for begin in range(0, len(kept), _ROWS_AT_ONCE):
                vectors.write(stored[kept[begin : begin + _ROWS_AT_ONCE]].tobytes())
            for line in self._lines(kept):
                begins.append(at)
                at += passages.write(line)
        (folder / OFFSETS).write_bytes(np.array(begins, "<u8").tobytes())
        abouts.write(folder, self.about)
        state = State(rows=len(kept), text_bytes=at, removed=0)
        for name in (VECTORS, PASSAGES, OFFSETS):
            atomic.sync(folder / name)
        atomic.write_text(folder / STATE, state.model_dump_json() + "\n")
        return state

    def codes(self) -> NDArray[Any]:
        """Return the stored rows, `(rows, columns)`, as the file in memory."""
        if self._scan is not None:
            return self._scan.codes
        shape = (self._state.rows, codes.columns(self.about))
        if not self._state.rows:
            return np.empty(shape, DTYPES[self.about.storage])
        return np.memmap(self.folder / VECTORS, DTYPES[self.about.storage], "r", shape=shape)

    def removed_rows(self) -> NDArray[np.uint32]:
        """Return the numbers of removed rows."""
        if self._removed is not None:
            return self._removed
        return files.numbers(self.folder / REMOVED, "<u4", self._state.removed)

    def sample(self, count: int) -> tuple[list[Passage], Floats]:
        """Return passages from all over the index, at most `count`, with their vectors as they are stored."""
        kept = np.setdiff1d(np.arange(self._state.rows), self.removed_rows())
        rows = kept[:: max(1, -(-len(kept) // count))]
        return list(self._passages(rows)), codes.decode(self.codes()[rows], self.about)

    def scan(self) -> Scan:
        """Return the exact search over the rows."""
        if self._scan is None:
            self._scan = Scan(self.codes(), self.about, self.removed_rows())
        return self._scan

    def search(self, vector: Floats, top: int) -> list[Hit]:
        """Return the passages nearest to an embedding of whole width, the nearest first."""
        return self.hits(self.scan().top(vector, top))

    def hits(self, scores: Sequence[Score]) -> list[Hit]:
        """Return the passages of scored rows."""
        passages = self._passages([score.row for score in scores])
        return [
            Hit(passage.id, passage.text, score.row, score.score, score.cosine)
            for passage, score in zip(passages, scores, strict=True)
        ]

    def close(self) -> None:
        """Let other processes write."""
        self._scan = self._text = None
        if self._lock:
            self._lock.release()

    def __enter__(self) -> Self:
        """Return the index itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let other processes write."""
        self.close()

    # --- passages ------------------------------------------------------------------------------------------------

    def _ids(self) -> dict[str, tuple[int, int]]:
        if self._known is None:
            kept = np.setdiff1d(np.arange(self._state.rows), self.removed_rows())
            found = zip(kept, self._passages(kept), strict=True)
            self._known = {passage.id: (int(row), hash(passage.text)) for row, passage in found}
            if len(self._known) < len(kept):
                raise self._damage("an id is there twice")
        return self._known

    def _passages(self, rows: Sequence[int] | NDArray[np.integer[Any]]) -> Iterator[Passage]:
        for line in self._lines(rows):
            try:
                one = strict.parse(line)
            except ValueError as error:
                raise self._damage(f"{line[:80]!r} is no passage") from error
            if not (isinstance(one, dict) and isinstance(one.get("id"), str) and isinstance(one.get("text"), str)):
                raise self._damage(f"{line[:80]!r} is no passage")
            yield Passage(one["id"], one["text"])

    def _lines(self, rows: Sequence[int] | NDArray[np.integer[Any]]) -> Iterator[bytes]:
        begins = self._line_begins()
        if not len(rows):
            return
        if self._text is not None:
            for row in rows:
                yield self._text[begins[row] : begins[row + 1]].tobytes()
            return
        with (self.folder / PASSAGES).open("rb") as file:
            for row in rows:
                file.seek(int(begins[row]))
                yield file.read(int(begins[row + 1] - begins[row]))

    def _line_begins(self) -> NDArray[np.uint64]:
        """Return where each row's line begins, and where the last one ends."""
        if self._begins is None:
            begins = np.append(
                files.numbers(self.folder / OFFSETS, "<u8", self._state.rows), np.uint64(self._state.text_bytes)
            )
            if (begins[1:] <= begins[:-1]).any() or begins[0] != 0:
                raise self._damage(f"{OFFSETS} does not rise")
            self._begins = begins
        return self._begins

    def _damage(self, why: str) -> ArtifactError:
        return ArtifactError(
            f"{self.folder} is damaged: {PASSAGES}: {why}. Delete the folder and index the texts again."
        )


def _line(passage: Passage) -> bytes:
    return (json.dumps({"id": passage.id, "text": passage.text}, ensure_ascii=False) + "\n").encode()
