"""Measurements that a run does not make by itself: records of phones, counts of emulated processors, studies.

The first two lie in a recipe's build folder, beside what the run makes: `benchmark-<device>/` and
`<target>/emulated.json`. Studies lie in `studies/` of the build folder, and one comes with the package.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline import strict
from pipeline.benchmark.record import BenchmarkRecord, unfit
from pipeline.errors import ArtifactError
from pipeline.fronts import front as fronts
from pipeline.fronts import record as studies
from pipeline.fronts.front import Front
from pipeline.fronts.page import RECIPES
from pipeline.verify.emulated import RECORD, EmulatedRuns

_RECORDS, _PREFIX = "records.json", "benchmark-"
_STUDY = "study "


@dataclass
class Measurements:
    """The measurements that were found, and the ones that are left out with the reason."""

    emulated: dict[str, EmulatedRuns] = field(default_factory=dict)
    """By content digest of the file."""
    phones: dict[str, list[BenchmarkRecord]] = field(default_factory=dict)
    """By device, in the order in which they are listed."""
    fronts: list[Front] = field(default_factory=list)
    """Of studies that began with the report's student."""
    left_out: list[str] = field(default_factory=list)


def find(folder: Path, host: str) -> dict[str, Path]:
    """Return the files of a recipe's build folder that hold such measurements, by their paths in it.

    Args:
        folder: the recipe's.
        host: the device whose benchmark is an artifact of the run.
    """
    found = sorted(folder.glob(f"*/{RECORD}"))
    for listed in sorted(folder.glob(f"{_PREFIX}*/{_RECORDS}")):
        if listed.parent.name != _PREFIX + host:
            found += [listed.parent / name for name in _names(listed) if (listed.parent / name).is_file()]
    return {str(file.relative_to(folder)): file for file in found}


def find_studies(build: Path | None, task: str, source: str, base: Path) -> dict[str, Path]:
    """Return the records of studies that began with a student, by name; of one name, the build folder's own.

    Args:
        build: the build folder; None means those that come with the package alone.
        task: the student's task.
        source: its checkpoint, as `student.source` names it.
        base: where a relative path of `source` starts.
    """
    found: dict[str, Path] = {}
    for record, file in studies.known(build, (), lambda _: None):
        if record.task == task and studies.began_with(record, file.parent, source, base):
            found.setdefault(_STUDY + record.study.name, file)
    return found


def _names(listed: Path) -> list[str]:
    try:
        names = json.loads(listed.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    # A list that leads out of its folder is not followed.
    return [name for name in names if isinstance(name, str) and "/" not in name] if isinstance(names, list) else []


def read(files: Mapping[str, Path], digests: Sequence[str]) -> Measurements:
    """Read the files of `find`; unreadable records, and records that are no latency or of another file, are left out.

    Args:
        files: by their paths in the recipe's folder.
        digests: content digests of the files that are reported.
    """
    measured = Measurements()
    for name, file in files.items():
        folder = name.partition("/")[0]
        try:
            if name.startswith(_STUDY):
                measured.fronts.append(fronts.of(studies.read(file), file.parent, file.parent / RECIPES))
                continue
            if file.name == RECORD:
                emulated = strict.read(EmulatedRuns, file.read_bytes())
                if emulated.digest in digests:
                    measured.emulated[emulated.digest] = emulated
                else:
                    measured.left_out.append(f"{name} is of an earlier file; run `pocketbert arm64` again")
                continue
            record = strict.read(BenchmarkRecord, file.read_bytes())
        # A record's trials may lack what its study compares them by.
        except (OSError, ValueError, LookupError, ArtifactError) as error:
            measured.left_out.append(f"{name} cannot be read: {str(error).splitlines()[0]}")
            continue
        reason = unfit(record, throttled=True)
        if reason is None and record.model.sha256 not in digests:
            reason = "it is of an earlier file; measure again"
        if reason:
            measured.left_out.append(f"{name}: {reason}")
        else:
            measured.phones.setdefault(folder.removeprefix(_PREFIX), []).append(record)
    return measured
