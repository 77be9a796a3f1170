"""A table of a tiny random student, and its command: `python trials_tiny.py ROOT STUDENT [options]`."""

import sys
from functools import partial
from pathlib import Path

from benchmarks import compression_page, trials_command
from benchmarks.trials import Bound, Row, Table

_PRUNE = {"compute": 0.6, "refine": 0, "calibration_texts": 48, "max_length": 32}
_DISTIL = {
    "losses": {"sentence_mse": 1.0},
    "texts": ["../../../plain.txt"],
    "steps": 80,
    "batch_size": 8,
    "max_length": 24,
    "learning_rate": 1e-3,
    "checkpoint_minutes": 0.01,
}
WHOLE = Row("whole", "as it is", "embedding", {}, "graded_pairs")
PRUNED = Row(
    "pruned", "pruned", "embedding", {"prune": _PRUNE}, "graded_pairs", against="whole", bound=Bound(100.0, "most_lost")
)
LEARNT = Row(
    "learnt", "distilled", "embedding", {"distil": _DISTIL}, "graded_pairs", (0, 1), source="pruned", against="pruned"
)
FILES = Row("files", "converted", "embedding", {"prune": _PRUNE}, "graded_pairs", against="whole", files=True)
SECTIONS = {"Tiny": (WHOLE, PRUNED, LEARNT, FILES)}
page = partial(compression_page.page, sections=SECTIONS, macro={"pairs": ("whole", "pruned")})


def table(root: Path, student: Path) -> Table:
    """Return the table with everything below a folder."""
    return Table(
        "tiny",
        (WHOLE, PRUNED, LEARNT, FILES),
        targets={"executorch": ("int8_dynamic",)},
        lengths={"embedding": (16, 32)},
        student=str(student),
        random_weights=True,
        build=root / "build",
        records=root / "records",
        pages=root,
    )


if __name__ == "__main__":
    root, student, *given = sys.argv[1:]
    sys.exit(trials_command.main(table(Path(root), Path(student)), page, __doc__, given))
