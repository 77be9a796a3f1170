"""All planted faults, in groups that can be run apart.

To add one, write its `plant` and its row in the file of its level.
"""

from faults import (
    checkpoint_faults,
    claim_faults,
    companion_faults,
    file_faults,
    graph_faults,
    operator_faults,
    quantised_faults,
    runtime_faults,
    student_faults,
)
from faults.fault import Fault

GROUPS: dict[str, tuple[Fault, ...]] = {
    "core": (
        *checkpoint_faults.FAULTS,
        *graph_faults.FAULTS,
        *file_faults.FAULTS,
        *companion_faults.FAULTS,
        *runtime_faults.FAULTS,
    ),
    "wiring": file_faults.OF_WIRING,
    "operators": operator_faults.FAULTS,
    "trained": operator_faults.OF_TRAINED,
    "claims": claim_faults.FAULTS,
    "settings": (),
    "quantised": quantised_faults.FAULTS,
    "relative": student_faults.OF_RELATIVE_POSITIONS,
    "vectors": companion_faults.OF_VECTORS,
    "students": (*student_faults.FAULTS, *companion_faults.OF_STUDENTS, *runtime_faults.OF_STUDENTS),
}
"""`core` on BERT, DistilBERT, ALBERT and the bundled student; `wiring` is right values in wrong places, in int8 alone;
`operators` is what int8's rounding used to hide, in int8 alone too, and `trained` the same in the bundled student;
`claims` is what is said of a file, and small numbers in it; `settings` has no faults, but clean exports of unusual
students; `quantised` is what goes wrong around checkpoints that are calibrated for a scheme; `relative` is the relative
positions of MPNet; `vectors` is the contract of embeddings in signature.json; `students` is what belongs to
one other student or task."""
FAULTS = tuple(fault for group in GROUPS.values() for fault in group)


def get(name: str) -> Fault:
    """Return a fault by its name."""
    return next(fault for fault in FAULTS if fault.name == name)
