"""What to try next where a gate failed: one sentence a gate, computed from the verdict when it is shown."""

from typing import NamedTuple

from pipeline.schemes import SCHEMES, Scheme, supported
from pipeline.verify.record import Parity


class Suggestion(NamedTuple):
    """A next step, with the scheme and the recipe key that its sentence names, so that a test can look them up."""

    sentence: str
    scheme: str | None = None
    key: str | None = None


_OF_ROUNDING = frozenset(
    (
        *("min_mean_cosine", "min_worst_cosine", "min_sqnr_db", "min_agreement", "max_kl", "max_abs_error"),
        *("max_mean_shift", "max_task_drop", "ranges_fit", "max_pad_difference", "max_usual_pad_difference"),
    )
)
"""Gates that a file may fail by rounding alone."""
_OF_THE_FOLDER = frozenset(("companions", "claims", "tokenizer", "golden", "signature", "labels", "heads"))
"""Gates on what lies beside the file."""
_OF_THE_MODEL = frozenset(
    (
        *(
            "finite",
            "weights",
            "stored",
            "quantised_weights",
            "wiring",
            "constants",
            "epsilon",
            "activation",
            "arithmetic",
        ),
        *("ranges", "operators", "control_sqnr_db", "control_worst_row_db", "every_length_worst_row_db"),
        *("masked_difference", "reproduced"),
    )
)
"""Gates on the file's graph and weights, which a right conversion passes."""
_SAID = {
    "reference_above_chance": Suggestion(
        "the student itself is wrong, not the file: train its head with [train], or put its labels in the order of the "
        "data",
        key="train",
    ),
    "max_bytes_per_parameter": Suggestion(
        "take a scheme with fewer bits, trim the vocabulary with [vocabulary], or allow more in verify.gates",
        key="vocabulary",
    ),
    "max_all_pad_error": Suggestion(
        "a row of padding has to be zero: the graph does not mask it. It is a fault of the conversion; report it with "
        "the recipe"
    ),
    "max_thread_difference": Suggestion("the runtime's numbers depend on its threads: run the file with one thread"),
    "min_recall_kept": Suggestion(
        "vectors in int8 lose more of search than they may: take a scheme that rounds less, or keep vectors in float16"
    ),
    "min_recall_kept_small": Suggestion(
        "keep vectors in int8 at their whole width; or allow more in verify.gates", key="verify.gates"
    ),
    "deterministic": Suggestion("the runtime gives other numbers each time: take another release of it, see compat"),
}
_FAULT = Suggestion(
    "the file computes another model than the checkpoint, which rounding does not do: convert it again with the "
    "versions that set-up pins, and if it fails again, report it with the recipe"
)
_AGAIN = Suggestion(
    "what lies beside the file was changed, or belongs to another file: remove it with `pocketbert clean`, and convert "
    "again"
)


def advice(parity: Parity) -> list[Suggestion]:
    """Return the next steps for a file that failed, each once, in the order of its gates; none for one that passed."""
    found = [_of(gate.name.partition(":")[0], parity) for gate in parity.gates if not gate.passed]
    return list(dict.fromkeys(found))


def _of(gate: str, parity: Parity) -> Suggestion:
    if gate in _SAID:
        return _SAID[gate]
    if gate in _OF_THE_FOLDER:
        return _AGAIN
    return _for_rounding(parity) if gate in _OF_ROUNDING else _FAULT


_GATES = _OF_ROUNDING | _OF_THE_FOLDER | _OF_THE_MODEL | _SAID.keys()
"""Every gate, which a test compares with those of real verdicts."""


def _for_rounding(parity: Parity) -> Suggestion:
    """Return what loses less than the file's scheme: calibration where it takes some, then the next scheme."""
    scheme = SCHEMES[parity.scheme]
    gentler = _gentler(scheme, parity.backend)
    if gentler is None:
        return _FAULT
    instead = f"take {gentler.name}, which rounds less"
    if scheme.calibrated:
        return Suggestion(
            f"give texts like your users' in quantize.calibration, more of them in quantize.calibration_texts; or "
            f"{instead}",
            gentler.name,
            "quantize.calibration_texts",
        )
    if scheme.takes_calibration:
        sentence = f"add a section [quantize], if there is none, which evens outliers out; or {instead}"
        return Suggestion(sentence, gentler.name, "quantize")
    return Suggestion(instead, gentler.name)


def _gentler(scheme: Scheme, backend: str) -> Scheme | None:
    """Return the format's scheme to take instead: of those that promise more for the worst text, the one to ship."""

    def promise(one: Scheme) -> float:
        return one.gates["embedding"].min_worst_cosine or 0.0

    every = [SCHEMES[name] for name in supported(backend) if SCHEMES[name].weight_bytes >= scheme.weight_bytes]
    better = [one for one in every if promise(one) > promise(scheme)]
    return min(better, key=lambda one: one.shipping_rank, default=None)
