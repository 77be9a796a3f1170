"""Compare a file's own graph in single precision with the checkpoint, on real texts and on rows of every length.

The rounding of int8 hides faults: an attention temperature off by 5 %, one head with another scale, a mask that is too
weak. So the file's graph runs with its own weights and without rounding of activations. The reference is the checkpoint
in PyTorch with the file's weights. Without a fault they agree to about 110 dB, whatever the scheme.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline import architectures, formats
from pipeline.convert.model import Model
from pipeline.formats import Evaluator, Session
from pipeline.formats import signature as signature_of
from pipeline.formats.signature import Function, Signature
from pipeline.formats.structure import Structure
from pipeline.schemes import SCHEMES
from pipeline.student.reference import Reference
from pipeline.text.encoding import Encoder
from pipeline.verify import file_weights, probes
from pipeline.verify.probes import Probe, Probes, Vocabulary
from pipeline.verify.record import Control
from pipeline.verify.weights import Expected
from pipeline.verify.wiring import MatchedFunction

_TEXTS_EVERY = 16
"""Stride over the verification texts: every 16th is tried, at its own length and at the longest."""
_OWN_EVERY = 8
"""Stride over token counts: in a file of fixed lengths, every 8th is tried with the file's own arithmetic too."""
_EXACT_DB = 999.0


@dataclass(frozen=True)
class Subject:
    """A converted file with its checkpoint, its reference, and the results of reading its structure."""

    folder: Path
    """The model folder."""
    evaluator: Evaluator
    """The evaluator that gives the verdict."""
    student: Path
    reference: Reference
    expected: Expected
    stored: Structure
    followed: Sequence[MatchedFunction]


def run(subject: Subject, *, thorough: bool) -> Control:
    """Run the file's graph in single precision, and the file itself on the rows of every length.

    Args:
        subject: a file whose constants have passed the static gates.
        thorough: run every length, every id and every text.
    """
    reference, signature = subject.reference, signature_of.read(subject.folder)
    vocabulary = _vocabulary(subject.folder, signature)
    made = probes.make(signature, vocabulary, thorough=thorough)
    texts = _texts(signature, reference, every=1 if thorough else _TEXTS_EVERY)
    every = [*texts, *made.of_lengths, *made.of_ids]
    rows = list(dict.fromkeys(probe.row for probe in every))
    known = file_weights.outputs(
        subject.student, reference.task, subject.expected, subject.stored, subject.followed, rows
    )
    number = {row: place for place, row in enumerate(rows)}
    true = [known[number[probe.row]] for probe in every]
    unit = float(np.sqrt(np.mean(np.square(known.values, dtype=np.float64)))) or 1.0
    with tempfile.TemporaryDirectory() as scratch:

        def load(file: Path, signature: Signature, threads: int) -> Session:
            return formats.get(signature.backend).load_control(file, signature, Path(scratch))

        with Model(subject.folder, evaluator=Evaluator("control", load, uses_threads=False)) as single:
            errors = _errors(single, every, true)
            masked = _masked(single, subject.folder, made, vocabulary)
    chosen = [n for n, probe in enumerate(made.of_lengths) if thorough or _is_run_by_itself(probe, signature)]
    lengths, places = [made.of_lengths[n] for n in chosen], [len(texts) + n for n in chosen]
    if SCHEMES[signature.scheme].rounds_activations(signature.backend):
        with Model(subject.folder, evaluator=subject.evaluator) as model:
            own = _errors(model, lengths, [true[place] for place in places])
    else:
        own = errors[places]
    worst = int(np.argmax(errors))
    seen = max(masked, key=masked.__getitem__, default=every[worst])
    return Control(
        rows=len(every),
        lengths=len({(probe.length, len(probe.row)) for probe in made.of_lengths}),
        ids=made.ids,
        vocabulary=vocabulary.size,
        sqnr_db=_db(np.sqrt(np.mean(errors**2)), unit),
        worst_row_db=_db(errors[worst], unit),
        worst_row=_named(every[worst], worst < len(texts)),
        masked_difference=min(masked.get(seen, 0.0) / unit, _EXACT_DB),
        masked_row=_named(seen, text=False),
        file_sqnr_db=_db(np.sqrt(np.mean(own**2)), unit),
        file_worst_row_db=_db(own.max(), unit),
        file_worst_row=_named(lengths[int(np.argmax(own))], text=False),
    )


def _is_run_by_itself(probe: Probe, signature: Signature) -> bool:
    """Return whether the file runs a row with its own arithmetic in a verification that is not thorough.

    Rows at a fixed length differ in their padding only, and the control has run each of them, so a few are enough.
    """
    fixed = all(function.fixed for function in signature.functions)
    return not fixed or len(probe.row) >= probe.length - 1 or len(probe.row) % _OWN_EVERY == 0


def _texts(signature: Signature, reference: Reference, *, every: int) -> list[Probe]:
    """Return verification texts, each at the length that its token count selects and at the longest."""
    rows = reference.rows[: reference.checked : every]
    return [Probe(row, at) for row in rows for at in sorted({signature.choose(len(row))[1], signature.max_length})]


def _vocabulary(folder: Path, signature: Signature) -> Vocabulary:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    empty = Encoder.from_folder(signature_of.root(folder), signature.max_length).encode("").ids
    # An empty row has the special tokens alone; a text stands between its first and its second half.
    cut = (len(empty) + 1) // 2
    takes_types = "token_type_ids" in {tensor.name for tensor in signature.functions[0].inputs}
    types = int(config.get("type_vocab_size", 1)) if takes_types else 1
    # In these architectures the padding id within a row would count as padding.
    row = architectures.get(config["model_type"])
    special = row.positions_after_padding or row.seen_behind(config)
    padding = signature.pad_token_id if special else None
    return Vocabulary(int(config["vocab_size"]), types, padding, empty[:cut], empty[cut:])


def _errors(model: Model, every: Sequence[Probe], true: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
    """Return the root mean square error of each row; for outputs per token, that of the row's worst token."""
    found = []
    for probe, due in zip(every, true, strict=False):
        got = model.run(probe.row, length=probe.length)
        difference = np.nan_to_num(got.astype(np.float64) - due, nan=np.inf, posinf=np.inf, neginf=np.inf)
        found.append(float(np.sqrt(np.mean(difference**2, axis=-1)).max()))
    return np.asarray(found)


def _masked(model: Model, folder: Path, made: Probes, vocabulary: Vocabulary) -> dict[Probe, float]:
    """Return the largest change of a row's outputs when ids and types under its mask change, for a few rows per length.

    In single precision nothing may change, since the exponential of a masked score is zero. If the mask is too weak,
    the change is small for texts that nearly fill their length, and half precision hides it.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    behind = architectures.get(config["model_type"]).seen_behind(config)
    drawn = np.random.default_rng(0)
    found: dict[Probe, float] = {}
    for probe, function in _hiding(model.signature, made, behind):
        tokens, names = len(probe.row), tuple(tensor.name for tensor in function.inputs)
        clean = probe.row.padded(names, probe.length, pad_token_id=model.signature.pad_token_id)
        other = {name: array.copy() for name, array in clean.items()}
        start = tokens + behind
        other["input_ids"][0, start:] = drawn.integers(0, vocabulary.size, probe.length - start)
        if "token_type_ids" in other:
            other["token_type_ids"][0, start:] = vocabulary.types - 1
        seen, unseen = (model.run_padded(function, inputs).astype(np.float64) for inputs in (other, clean))
        difference = seen[:tokens] - unseen[:tokens] if seen.ndim == 2 else seen - unseen
        found[probe] = float(np.nan_to_num(np.abs(difference), nan=np.inf).max())
    return found


def _hiding(signature: Signature, made: Probes, behind: int) -> Iterator[tuple[Probe, Function]]:
    """Yield the shortest, a middle and the longest row of each length that leave more than `behind` padding tokens."""
    by_tokens = {len(probe.row): probe.row for probe in made.of_lengths}
    for function in signature.functions:
        fitting = [tokens for tokens in sorted(by_tokens) if probes.FEW <= tokens < function.max_length - behind]
        for tokens in sorted({*fitting[:1], *fitting[len(fitting) // 2 :][:1], *fitting[-1:]}):
            yield Probe(by_tokens[tokens], function.max_length), function


def _db(error: float, unit: float) -> float:
    if not np.isfinite(error):
        return -_EXACT_DB
    return float(np.clip(20 * np.log10(unit / max(error, 1e-300)), -_EXACT_DB, _EXACT_DB))


def _named(probe: Probe, text: bool) -> str:
    what = "a text" if text else "a row"
    ids = ", ".join(map(str, probe.row.ids[:6])) + (", ..." if len(probe.row) > 6 else "")
    return f"{what} of {len(probe.row)} tokens at length {probe.length}, ids {ids}"
