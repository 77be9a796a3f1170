"""All planted faults. To add one, write its `plant` and its row in the file of its level."""

from faults import checkpoint_faults, companion_faults, file_faults, graph_faults, runtime_faults, student_faults
from faults.fault import Fault

FAULTS: tuple[Fault, ...] = (
    *checkpoint_faults.FAULTS,
    *graph_faults.FAULTS,
    *file_faults.FAULTS,
    *companion_faults.FAULTS,
    *runtime_faults.FAULTS,
    *student_faults.FAULTS,
)


def get(name: str) -> Fault:
    """Return a fault by its name."""
    return next(fault for fault in FAULTS if fault.name == name)
