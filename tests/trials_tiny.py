"""A table of a tiny random student, and its command: `python trials_tiny.py ROOT STUDENT [options]`."""

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks import compression_page, trials_command
from benchmarks.trials import Bound, Row, Table

_PRUNE = {"compute": 0.6, "refine": 0, "calibration_texts": 48, "max_length": 32}
_DISTIL = {
    "losses": {"sentence_mse": 1.0},
    "texts": ["../../../plain.txt"],
    "steps": 600,
    "batch_size": 8,
    "max_length": 24,
    "learning_rate": 1e-3,
    "checkpoint_minutes": 0.01,
}
_QUERIES = 30
WHOLE = Row("whole", "as it is", "embedding", {}, "graded_pairs")
PRUNED = Row(
    "pruned", "pruned", "embedding", {"prune": _PRUNE}, "graded_pairs", against="whole", bound=Bound(100.0, "most_lost")
)
LEARNT = Row(
    "learnt",
    "half of the layers, distilled",
    "embedding",
    {"start": {"kind": "layers"}, "distil": _DISTIL},
    "graded_pairs",
    (0, 1),
    source="pruned",
    against="pruned",
)
FILES = Row("files", "converted", "embedding", {"prune": _PRUNE}, "graded_pairs", against="whole", files=True)
SECTIONS = {"Tiny": (WHOLE, PRUNED, LEARNT, FILES)}
page = partial(compression_page.page, sections=SECTIONS, macro={"pairs": ("whole", "pruned")})


def write_texts(root: Path, texts: Sequence[str]) -> None:
    """Write the text that a row learns from, and a collection of the last of it: each second text answers the other."""
    (root / "plain.txt").write_text("\n".join(texts), encoding="utf-8")
    beir, last = root / "beir", texts[-2 * _QUERIES :]
    (beir / "qrels").mkdir(parents=True)
    for name, some in (("corpus", last[1::2]), ("queries", last[::2])):
        lines = [json.dumps({"_id": str(number), "text": text}) for number, text in enumerate(some)]
        (beir / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    judged = ["query-id\tcorpus-id\tscore", *(f"{number}\t{number}\t1" for number in range(_QUERIES))]
    (beir / "qrels" / "test.tsv").write_text("\n".join(judged), encoding="utf-8")


def table(root: Path, student: Path) -> Table:
    """Return the table with everything below a folder."""
    return Table(
        "tiny",
        (WHOLE, PRUNED, LEARNT, FILES),
        targets={"executorch": ("int8_dynamic",)},
        lengths={"embedding": (16, 32)},
        retrieval=(str(root / "beir"),),
        student=str(student),
        random_weights=True,
        build=root / "build",
        records=root / "records",
        pages=root,
    )


if __name__ == "__main__":
    root, student, *given = sys.argv[1:]
    sys.exit(trials_command.main(table(Path(root), Path(student)), page, __doc__, given))
