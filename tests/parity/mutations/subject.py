"""What is damaged: the converted file of a tiny student in one format, as one row of bytes."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from faults import line
from faults.line import Line
from faults.students import Student
from faults.workers import Workers
from numpy.typing import NDArray

from mutations import fields
from pipeline import artifact, formats
from pipeline.convert.stage import Target

SCHEMES = {"litert": "int8_dynamic", "executorch": "int8_dynamic", "coreml": "int8_weight_only"}
"""What people ship."""


@dataclass(frozen=True)
class Part:
    """One file of a model: a package has several."""

    path: str
    """In the model folder."""
    start: int
    """Where it begins in the row of all parts."""
    size: int


@dataclass(frozen=True)
class Subject:
    """A clean model folder and what it was made from."""

    name: str
    folder: Path
    student: Path
    reference: Path
    digest: str

    @classmethod
    def make(cls, name: str, opened: Line, workers: Workers) -> "Subject":
        """Convert, or find it converted."""
        model = opened.convert(Target(name, SCHEMES[name]), workers)
        return cls(name, model.path, opened.student.path, opened.reference.path, model.digest)

    @property
    def scheme(self) -> str:
        """The scheme of the file."""
        return SCHEMES[self.name]

    @property
    def file(self) -> Path:
        """The model file or package."""
        return self.folder / formats.get(self.name).FILE

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The files of the model in their order."""
        files = sorted(path for path in self.file.rglob("*") if path.is_file()) if self.file.is_dir() else [self.file]
        sizes = [path.stat().st_size for path in files]
        starts = [sum(sizes[:number]) for number in range(len(sizes))]
        return tuple(
            Part(str(path.relative_to(self.folder)), start, size)
            for path, start, size in zip(files, starts, sizes, strict=True)
        )

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(part.size for part in self.parts)

    def part_at(self, place: int) -> Part:
        """Return the part in which a byte lies."""
        return next(part for part in self.parts if place < part.start + part.size)

    @cached_property
    def rest(self) -> NDArray[np.int64]:
        """The places of all bytes that are no weights."""
        kept = np.ones(self.size, bool)
        for part in self.parts:
            for start, end in fields.weights(self.name, self.folder / part.path):
                kept[part.start + start : part.start + end] = False
        return np.flatnonzero(kept)

    def copy(self, folder: Path) -> Path:
        """Copy the model folder to a place where its files can be written over."""
        shutil.copytree(self.folder, folder)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)
        return folder


def make_whole(folder: Path) -> None:
    """Write the hashes of what lies in a model folder into its manifest, as somebody does who means it."""
    manifest = artifact.read_manifest(folder).model_copy(update={"files": artifact.list_files(folder)})
    (folder / artifact.MANIFEST).write_text(manifest.model_dump_json())


def subjects(names: tuple[str, ...], workers: Workers, which: Student) -> Iterator[Subject]:
    """Yield a student's clean files in some formats."""
    opened = line.open_line(which, workers)
    for name in names:
        yield Subject.make(name, opened, workers)
