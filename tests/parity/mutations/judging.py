"""Whether verify tells a file with one flipped bit from the clean one."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from mutations.loading import damaged
from mutations.mutation import Mutation
from mutations.subject import Subject, make_whole
from pipeline import formats
from pipeline.convert.model import Model
from pipeline.convert.stage import Target
from pipeline.errors import PipelineError
from pipeline.formats import signature
from pipeline.formats.structure import Structure
from pipeline.schemes import SCHEMES
from pipeline.student import reference
from pipeline.verify import measure
from pipeline.verify import stage as verify

FAILED, REFUSED, BY_RUNTIME, CRASHED, HUNG, NOT_RUN, HARMLESS, MISSED = (
    "failed by a gate",
    "refused by the reader",
    "refused by the runtime",
    "crashed",
    "timed out",
    "not run",
    "harmless",
    "missed",
)
OUTCOMES = (FAILED, REFUSED, BY_RUNTIME, CRASHED, HUNG, NOT_RUN, HARMLESS, MISSED)
_PADDED_EVERY = 3


@dataclass(frozen=True)
class Judged:
    """What verify made of one file."""

    outcome: str
    said: str
    """The gate that failed first, the error, or what differs although it passed."""


@dataclass(frozen=True)
class _Held:
    """What is compared where a file passed."""

    functions: Any
    structure: Structure
    outputs: list[bytes]


_clean: dict[str, _Held] = {}
"""In a worker: what the clean files hold and give."""


def judge(subject: Subject, mutation: Mutation) -> Judged:
    """Let verify judge a damaged file with the default gates. Runs in a worker, which may go down with it."""
    if subject.name not in _clean:
        _clean[subject.name] = _held(subject, subject.folder)
    gates = SCHEMES[subject.scheme].gates["embedding"]
    asked = verify.VerifyRequest(Target(subject.name, subject.scheme), gates, random_weights=True)
    with damaged(subject, mutation) as folder, TemporaryDirectory() as scratch:
        make_whole(folder)
        fired = _fired_at_rest(folder, subject, asked)
        if fired:
            return Judged(FAILED, fired)
        out = Path(scratch)
        verify.make(folder, subject.student, None, subject.reference, None, asked, out)
        parity = verify.read_parity(out)
        if parity.verdict == "not_run":
            return Judged(NOT_RUN, parity.reasons[0])
        if parity.verdict == "failed":
            if parity.measures is None:
                said = parity.reasons[0]
                return Judged(REFUSED if "is damaged" in said or "is not a ." in said else BY_RUNTIME, said)
            return Judged(FAILED, next(gate.name for gate in parity.gates if not gate.passed))
        try:
            found = _held(subject, folder)
        except PipelineError as error:
            return Judged(MISSED, f"passed, and is not read again: {error}")
        difference = _difference(_clean[subject.name], found)
        return Judged(MISSED, difference) if difference else Judged(HARMLESS, "")


def _fired_at_rest(folder: Path, subject: Subject, asked: verify.VerifyRequest) -> str | None:
    """Return the first gate that fails before anything is run: verify cannot pass such a file, whatever it gives.

    Most flipped bits lie in a weight, and running these files too would take two thirds of the campaign.
    """
    truth = reference.read(subject.reference)
    try:
        with Model(folder) as model:
            gates, _ = measure._static_gates(model, subject.student, None, truth, asked)
    except Exception:
        # Verify says of what does not load how it is to be called.
        return None
    return next((gate.name for gate in gates if not gate.passed), None)


def _held(subject: Subject, folder: Path) -> _Held:
    """Read a file back, and run it over every row of the reference."""
    backend = formats.get(subject.name)
    file = folder / signature.read(folder).file
    truth = reference.read(subject.reference)
    with Model(folder) as model:
        longest = model.signature.max_length
        outputs = [model.run(row).tobytes() for row in truth.rows]
        outputs += [model.run(row, length=longest).tobytes() for row in truth.rows[::_PADDED_EVERY]]
    return _Held(backend.inspect(file), backend.structure(file), outputs)


def _difference(clean: _Held, found: _Held) -> str:
    """Return what differs, nothing where all is equal."""
    said = []
    if found.functions != clean.functions:
        said.append("the functions that are read back")
    rows = sum(one != other for one, other in zip(clean.outputs, found.outputs, strict=True))
    if rows:
        values = [np.frombuffer(one, np.float32) for one in (b"".join(clean.outputs), b"".join(found.outputs))]
        said.append(f"{rows} of {len(clean.outputs)} outputs, by {np.abs(values[0] - values[1]).max():.3g} at most")
    said += _of_structure(clean.structure, found.structure)
    return "; ".join(said)


def _of_structure(clean: Structure, found: Structure) -> list[str]:
    said = []
    for name in ("epsilons", "activations", "uses", "numbers", "arithmetic", "static_scales", "denied"):
        if getattr(clean, name) != getattr(found, name):
            said.append(f"{name} that are read back")
    if len(clean.constants) != len(found.constants):
        return [*said, "the number of constants"]
    for one, other in zip(clean.constants, found.constants, strict=True):
        same = one.values.shape == other.values.shape and one.values.tobytes() == other.values.tobytes()
        if not same or (one.stored, one.sparse) != (other.stored, other.sparse):
            said.append(f"constant {one.name}")
    return said
