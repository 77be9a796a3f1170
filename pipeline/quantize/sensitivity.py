"""Sensitivity: the error of each linear when it alone has 4 bits, measured in the runtime, and a policy made from it.

Each trial is a converted file: all linears have 8 bits but one, whose 4-bit codes are chosen as if it were the only one
to be rounded. Its outputs on real text are compared with the student's. Linears whose 4 bits cost the most error per
byte saved get 8 bits in the policy, until the bytes that it may add to the file are spent. Then the student is
quantised by the policy, as for a recipe that names it.

Each trial is saved when it ends, so that an interrupted run continues.
"""

import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from pipeline import tasks
from pipeline.artifact import Artifact, digest_of, file_bytes, read_manifest
from pipeline.atomic import write_text
from pipeline.checkpoint.integers import Integers
from pipeline.convert.stage import Target
from pipeline.convert.stage import make as convert
from pipeline.data.corpus import Unlabelled
from pipeline.execution.worker import tell
from pipeline.formats import signature
from pipeline.metrics import measures
from pipeline.quantize import checkpoint as quantised
from pipeline.quantize import stage
from pipeline.recipe.schema import QuantizeSection
from pipeline.schemes import SCHEMES, Gates
from pipeline.student.reference import read as read_reference

VERSION = 2
FILE = "sensitivity.json"
ROWS = 64
"""Verification texts on which files are compared."""
_ROUNDS = 30
"""Rounds in which the final files are timed, one after the other."""


class Trial(BaseModel):
    """The result of a file with one linear at 4 bits and the others at 8."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    linear: str
    """Its path in the Hugging Face model."""
    bytes_saved: int
    multiply_adds: int
    """For each token, over all calls of the linear."""
    error: float
    """Squared error of the outputs relative to the outputs, minus that of the file with all linears at 8 bits."""
    sqnr_db: float
    """SQNR of the outputs against the student's."""
    sqnr_lost_db: float
    """SQNR lost against the file with all linears at 8 bits."""

    @property
    def per_byte(self) -> float:
        """Error for each byte saved."""
        return self.error / self.bytes_saved

    @property
    def per_multiply_add(self) -> float:
        """Error for each multiply-add of a token."""
        return self.error / self.multiply_adds


class ComparedFile(BaseModel):
    """The size, quality and speed of one final file: all linears at 4 bits, all at 8, or mixed by the policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    eight_bits: int
    """Number of linears with 8 bits."""
    file_bytes: int
    sqnr_db: float
    mean_cosine: float
    worst_cosine: float
    milliseconds: float
    """Median time of a full row, files in turns, one thread."""


class Sensitivity(BaseModel):
    """The record of `pocketbert sensitivity` for one target."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    """Digest of everything that decides the trials; trials of another key are not reused."""
    target: str
    length: int
    rows: int
    trials: tuple[Trial, ...] = ()
    eight_bits: tuple[str, ...] = ()
    """Paths of linears that get 8 bits: the policy."""
    compared: tuple[ComparedFile, ...] = ()


@dataclass(frozen=True)
class Study:
    """The inputs of a sensitivity run: student, checkpoints, texts, target and folder."""

    student: Path
    quantised: Path
    """The quantised checkpoint of the target's scheme, with 4 bits for all linears that can have them."""
    task: str
    section: QuantizeSection
    texts: tuple[Unlabelled, ...]
    """The calibration set of the quantised checkpoint."""
    reference: Path
    """Folder of the reference artifact."""
    target: Target
    length: int
    minimum_ios: int | None
    folder: Path
    """Folder for the record and for the files of trials."""

    @property
    def key(self) -> str:
        """Digest of everything that decides the trials."""
        keys = [read_manifest(one).key for one in (self.student, self.quantised, self.reference)]
        return digest_of([VERSION, keys, str(self.target), self.length, self.minimum_ios, ROWS])


def read(folder: Path) -> Sensitivity:
    """Read a record."""
    return Sensitivity.model_validate_json((folder / FILE).read_text(encoding="utf-8"))


def begin(study: Study) -> Sensitivity:
    """Return the record of a study so far: the saved one if its key is right, otherwise an empty one."""
    if (study.folder / FILE).is_file():
        try:
            found = read(study.folder)
        except ValueError:
            found = None
        if found and found.key == study.key:
            return found
    return Sensitivity(key=study.key, target=str(study.target), length=study.length, rows=ROWS)


def keep(study: Study, record: Sensitivity) -> None:
    """Write the record of a study."""
    write_text(study.folder / FILE, record.model_dump_json(indent=1) + "\n")


def linears(study: Study) -> list[str]:
    """Return the paths of the linears with 4 bits, in the order of the model."""
    from pipeline.checkpoint import integers

    _, record = quantised.read_record(study.quantised)
    assert isinstance(record, integers.Record)
    return [one.name.removesuffix(".weight") for one in record.weights if one.bits == 4 and one.error is not None]


def choose(trials: Sequence[Trial], extra_bytes: float) -> tuple[str, ...]:
    """Return the linears that get 8 bits: by error per byte, as long as their extra bytes fit."""
    chosen, left = [], extra_bytes
    for trial in sorted(trials, key=lambda one: -one.per_byte):
        if trial.error > 0 and trial.bytes_saved <= left:
            chosen.append(trial.linear)
            left -= trial.bytes_saved
    return tuple(chosen)


def policy_text(record: Sensitivity) -> str:
    """Return the policy as a TOML file that `quantize.policy` of a recipe may name."""
    lines = [f"# Written by `pocketbert sensitivity` for {record.target}: linears with 8 bits instead of 4."]
    for one in record.compared:
        lines.append(
            f"# {one.name}: {one.file_bytes / 1e6:.2f} MB, mean and worst cosine {one.mean_cosine:.5f} and "
            f"{one.worst_cosine:.5f} on {record.rows} texts, {one.milliseconds:.2f} ms at {record.length} tokens"
        )
    return "\n".join([*lines, "eight_bits = [", *(f'    "{path}",' for path in record.eight_bits), "]", ""])


# --- in a worker ------------------------------------------------------------------------------------------------------


def try_all(study: Study, extra: float) -> Sensitivity:
    """Run every trial, choose a policy, and compare its file with those of 4 and of 8 bits. Runs in a worker.

    Args:
        study: the inputs.
        extra: bytes that the policy may add to the file, as a share of its size at 4 bits.
    """
    record, names = begin(study), linears(study)
    # Leftovers of a run that was killed.
    shutil.rmtree(study.folder / "files", ignore_errors=True)
    steps, done = len(names) + 4, len(record.trials)
    tell(f"{done} of {len(names)} linears were tried before" if done else "all linears at 8 bits", done / steps)
    mixes = _Mixes(study, names)
    eight = mixes.at_eight_bits()
    left = [name for name in names if all(one.linear != name for one in record.trials)]
    if left:
        tell("choosing codes of 4 bits for each linear alone", done / steps)
        alone = _chosen_alone(study)
    for name in left:
        number = names.index(name) + 1
        tell(f"{name} at 4 bits, {number} of {len(names)}", number / steps)
        one = mixes.at_eight_bits({f"{name}.weight": alone[f"{name}.weight"]})
        shutil.rmtree(one.model_folder)
        trial = Trial(
            linear=name,
            bytes_saved=max(1, eight.file_bytes - one.file_bytes),
            multiply_adds=mixes.multiply_adds(name),
            error=one.error() - eight.error(),
            sqnr_db=_db(one.error()),
            sqnr_lost_db=_db(eight.error()) - _db(one.error()),
        )
        record = record.model_copy(update={"trials": (*record.trials, trial)})
        keep(study, record)
    tell("the policy", (len(names) + 1) / steps)
    four = mixes.convert(study.quantised)
    policy = choose(record.trials, extra * four.file_bytes)
    mixed = mixes.by_policy(policy)
    tell("timing", (len(names) + 3) / steps)
    # Quantised like the policy's file: there, linears compensate the errors of tables and earlier linears.
    every = {"all at 4 bits": four, "policy": mixed, "all at 8 bits": mixes.by_policy(tuple(names))}
    times = _in_turns([one.model_folder for one in every.values()], study.length)
    compared = tuple(
        one.compared(name, count, milliseconds)
        for (name, one), count, milliseconds in zip(every.items(), (0, len(policy), len(names)), times, strict=True)
    )
    record = record.model_copy(update={"eight_bits": policy, "compared": compared})
    keep(study, record)
    shutil.rmtree(study.folder / "files", ignore_errors=True)
    return record


@dataclass(frozen=True)
class _ConvertedFile:
    """A converted file in which some linears have 8 bits, with its outputs and the student's."""

    model_folder: Path
    file_bytes: int
    outputs: list[NDArray[np.float64]]
    true: list[NDArray[np.float64]]

    def error(self) -> float:
        """Return the squared error of the outputs relative to the outputs."""
        off = sum(float(((got - true) ** 2).sum()) for got, true in zip(self.outputs, self.true, strict=True))
        return off / sum(float((true**2).sum()) for true in self.true)

    def compared(self, name: str, eight: int, milliseconds: float) -> ComparedFile:
        """Return the file's row of the final table."""
        pairs = zip(self.true, self.outputs, strict=True)
        cosines = [float(measures.cosine(true.ravel(), got.ravel())) for true, got in pairs]
        return ComparedFile(
            name=name,
            eight_bits=eight,
            file_bytes=self.file_bytes,
            sqnr_db=_db(self.error()),
            mean_cosine=float(np.mean(cosines)),
            worst_cosine=float(np.min(cosines)),
            milliseconds=milliseconds,
        )


def _chosen_alone(study: Study) -> Mapping[str, Integers]:
    """Return 4-bit integers for each linear, quantised as if it were the only one."""
    from pipeline.checkpoint.loading import load_checkpoint
    from pipeline.compress.common import calibration_batches
    from pipeline.quantize.integers import round_weights

    model = load_checkpoint(study.student, tasks.get(study.task))
    batches = calibration_batches(model, study.student, study.texts, stage.LENGTH)
    block = SCHEMES[study.target.scheme].block
    assert block
    found = round_weights(model, batches, block=block, table_bits=study.section.table_bits, alone=True)
    return {name: one.weight for name, one in found.items()}


class _Mixes:
    """Converts mixes of the quantised checkpoint and linears at 8 bits, and runs the files on the texts."""

    def __init__(self, study: Study, linears: Sequence[str]) -> None:
        from safetensors.torch import load_file

        from pipeline.checkpoint import integers
        from pipeline.checkpoint.weights import WEIGHTS
        from pipeline.quantize.integers import nearest_by_row

        self._study = study
        self._integers, self._weights = integers.read(study.quantised), load_file(study.quantised / WEIGHTS)
        original = load_file(study.student / WEIGHTS)
        self._eight = {name: nearest_by_row(original[name]) for name in (f"{path}.weight" for path in linears)}
        self._calls = Counter(name for name, _ in quantised.structure(study.quantised)["calls"])
        known = read_reference(study.reference)
        numbers = [at for at in range(known.checked) if len(known.rows[at]) <= study.length]
        chosen = [numbers[at] for at in np.linspace(0, len(numbers) - 1, min(ROWS, len(numbers))).astype(int)]
        self._rows = [known.rows[at] for at in chosen]
        self._true = [np.asarray(one, np.float64) for one in known.outputs.take(chosen)]

    def multiply_adds(self, linear: str) -> int:
        """Return the multiply-adds of a linear for each token, over all its calls."""
        return self._calls[linear] * self._weights[f"{linear}.weight"].numel()

    def at_eight_bits(self, but: Mapping[str, Integers] | None = None) -> _ConvertedFile:
        """Convert the student with its linears rounded to the nearest 8-bit integers, with a scale per row.

        Args:
            but: other integers for some weights, by name.
        """
        import torch
        from safetensors.torch import save_file

        from pipeline.checkpoint import integers
        from pipeline.checkpoint.weights import WEIGHTS

        rounded = self._eight | dict(but or {})
        weights = {name: torch.from_numpy(one.dense()) for name, one in rounded.items()}
        checkpoint = self._fresh("mixed")
        save_file(self._weights | weights, checkpoint / WEIGHTS, metadata={"format": "pt"})
        integers.write(self._integers | rounded, checkpoint)
        for name in ("config.json", quantised.STRUCTURE):
            shutil.copyfile(self._study.quantised / name, checkpoint / name)
        return self._convert_once(checkpoint)

    def by_policy(self, eight: tuple[str, ...]) -> _ConvertedFile:
        """Quantise the student like the stage, with 8 bits for some linears, and convert it."""
        study, checkpoint = self._study, self._fresh("policy")
        stage.make(study.student, study.task, study.target.scheme, study.section, eight, study.texts, checkpoint)
        return self._convert_once(checkpoint)

    def _convert_once(self, checkpoint: Path) -> _ConvertedFile:
        """Convert a checkpoint, and remove it: it is as large as the student."""
        made = self.convert(checkpoint)
        shutil.rmtree(checkpoint)
        return made

    def convert(self, checkpoint: Path) -> _ConvertedFile:
        """Convert a checkpoint, and run the file on the texts."""
        from pipeline.convert.model import Model

        study, folder = self._study, self._fresh("model")
        student = Artifact(study.student, read_manifest(study.student))
        convert(student, study.target, (study.length,), study.minimum_ios, None, checkpoint, Gates(), folder)
        with Model(folder) as model:
            outputs = [np.asarray(model.run(row, length=study.length), np.float64) for row in self._rows]
        true = [one.reshape(got.shape) for one, got in zip(self._true, outputs, strict=True)]
        return _ConvertedFile(folder, file_bytes(folder / signature.read(folder).file), outputs, true)

    def _fresh(self, kind: str) -> Path:
        self._study.folder.joinpath("files").mkdir(parents=True, exist_ok=True)
        return Path(mkdtemp(prefix=f"{kind}-", dir=self._study.folder / "files"))


def _in_turns(folders: Sequence[Path], length: int) -> list[float]:
    """Return the median milliseconds of a full row in each file; files take turns, on one thread."""
    from pipeline.convert.model import Model

    models = [Model(folder) for folder in folders]
    times: list[list[float]] = [[] for _ in folders]
    try:
        inputs = [_full_row(model, length) for model in models]
        for number in range(_ROUNDS + 3):
            for model, (function, arrays), found in zip(models, inputs, times, strict=True):
                started = time.perf_counter()
                model.run_padded(function, arrays)
                if number >= 3:
                    found.append(1e3 * (time.perf_counter() - started))
    finally:
        for model in models:
            model.close()
    return [float(np.median(one)) for one in times]


def _full_row(model: Any, length: int) -> tuple[Any, Mapping[str, NDArray[np.int32]]]:
    function = model.signature.at_length(length)
    arrays = {tensor.name: np.ones((1, length), np.int32) for tensor in function.inputs}
    return function, arrays


def _db(error: float) -> float:
    return float(-10 * np.log10(max(error, 1e-12)))


def document(record: Sensitivity) -> dict[str, Any]:
    """Return a record as a JSON document, the most sensitive linear first."""
    found = record.model_dump(mode="json")
    found["trials"] = [
        one.model_dump() | {"error_per_byte": one.per_byte, "error_per_multiply_add": one.per_multiply_add}
        for one in sorted(record.trials, key=lambda one: -one.per_byte)
    ]
    return found
