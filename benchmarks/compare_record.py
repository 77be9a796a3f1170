"""What `make compare` keeps: a cell for each file, with its base's record of the same run; and a pass over STS-B."""

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from benchmarks.compare_cases import RESULTS
from pipeline.artifact import digest_of
from pipeline.atomic import write_aside
from pipeline.benchmark.paired import Ratio, ratio
from pipeline.benchmark.record import BenchmarkRecord, LengthTiming
from pipeline.convert import stage as convert
from pipeline.convert.stage import Target
from pipeline.devices import host
from pipeline.recipe.schema import BenchmarkSection, Recipe

SETTINGS = BenchmarkSection(lengths=(128, 384), rounds=12, block_ms=0.0, runs_per_block=3, texts=100, text_passes=4)
"""36 runs a length; every round has as many, so that rounds can be paired."""
_TOOLS = ("torch", "transformers", "ai-edge-litert", "litert-torch", "executorch", "coremltools", "torchao")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Cell(_Frozen):
    """One file of one model on one device."""

    schema_version: Literal[1] = 1
    key: str
    """A digest of the recipe, the settings and the tools: a cell of another key is stale."""
    model: str
    target: str
    trained: bool
    parameters: int
    file_bytes: int
    texts: str
    """Where the real sentences come from."""
    worst_sqnr_db: float
    """Worst of some texts, against fp32 PyTorch of the same weights."""
    record: BenchmarkRecord | None
    """None where the device cannot run the file."""
    beside: BenchmarkRecord | None
    """The base's file, timed in turns in the same run; None for the base itself."""

    def at(self, seq_len: int) -> LengthTiming:
        """Return the runs at a length."""
        assert self.record is not None
        return next(one for one in self.record.timing.lengths if one.seq_len == seq_len)

    def against(self, seq_len: int) -> Ratio | None:
        """Return how many times faster than the base it is at a length, or None for the base itself."""
        if self.beside is None:
            return None
        base = next(one for one in self.beside.timing.lengths if one.seq_len == seq_len)
        return ratio(base.latencies_ms, self.at(seq_len).latencies_ms, rounds=SETTINGS.rounds)

    def against_on_texts(self, *, tokenised: bool) -> Ratio | None:
        """Return the same over real texts, with or without tokenisation; paired by text and pass."""
        if self.record is None or self.beside is None:
            return None
        sums = []
        for one in (self.beside.timing.texts, self.record.timing.texts):
            extra = one.tokenise_ms if tokenised else [0.0] * len(one.tokenise_ms)
            sums.append([a + b for a, b in zip(one.latencies_ms, extra, strict=True)])
        return ratio(sums[0], sums[1], rounds=len(sums[0]))


class Pass(_Frozen):
    """One variant's time for all pairs of STS-B dev, one after the other."""

    variant: str
    padded_to: int | None
    """None: each pair at the smallest length that fits."""
    pairs: int
    tokens: int
    seconds: float
    """Inference alone."""
    tokenise_seconds: float


class Passes(_Frozen):
    """All of them, in one run, in turns."""

    schema_version: Literal[1] = 1
    key: str
    machine: host.Machine
    started_utc: str
    passes: list[Pass]


def key_of(recipe: Recipe, target: Target | None) -> str:
    """Return the sha256 of what decides a cell."""
    versions = {}
    for name in _TOOLS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "absent"
    said = recipe.model_dump(mode="json")
    # Where it lies on this machine says nothing.
    said["student"]["source"] = Path(said["student"]["source"]).name
    return digest_of(
        {
            "recipe": said,
            "target": str(target) if target else None,
            "settings": SETTINGS.model_dump(mode="json"),
            "convert": convert.VERSION,
            "tools": versions,
        }
    )


def folder_of(machine: host.Machine) -> Path:
    """Return where a machine's cells are kept; what int8 gains depends on its features."""
    words = [machine.model_id, machine.abi, *(one for one in machine.cpu_features if one in _TELLING)]
    return RESULTS / "-".join("".join(letter if letter.isalnum() else "_" for letter in word) for word in words)


_TELLING = ("avx512_vnni", "avx_vnni", "amx_int8", "dotprod", "i8mm")


Kept = TypeVar("Kept", bound=BaseModel)


def read(kind: type[Kept], place: Path) -> Kept | None:
    """Return what is kept at a place; None where it is absent, or of another form."""
    try:
        return kind.model_validate_json(place.read_bytes())
    except (OSError, ValidationError):
        return None


def write(kept: BaseModel, place: Path) -> None:
    """Keep something, in one rename."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with write_aside(place) as aside:
        aside.write_text(kept.model_dump_json(indent=0) + "\n", encoding="utf-8")


def machines() -> Sequence[Path]:
    """Return the folders of all machines that have cells."""
    return sorted(place for place in RESULTS.glob("*") if place.is_dir())
