"""`python -m benchmarks.recall STUDENT …`: how students order pairs and find passages, in fp32 PyTorch, as a table.

The figures of `docs/students.md` and `docs/distillation.md` at 256 tokens, longer than any file of theirs. A student is
named like `student.source`: `bundled:minilm-8mb`, a folder, or the `compressed` folder of a recipe's build.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from pipeline import tasks
from pipeline.checkpoint.source import at
from pipeline.data import retrieval
from pipeline.data.datasets import DATASETS
from pipeline.heads import sentence
from pipeline.metrics import ranking, scoring
from pipeline.student.reference import EncodedTexts
from pipeline.text.encoding import Encoder

_PAIRS = ("stsb", "graded_pairs")
_TASK = tasks.get("embedding")


def main() -> int:
    """Print a line for each student."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall", description=__doc__)
    parser.add_argument("student", nargs="+", help="named like student.source; a folder's path is relative to here")
    parser.add_argument("--length", type=int, default=256, help="tokens to which texts are cut")
    options = parser.parse_args()
    collections, absent = retrieval.chosen(retrieval.NAMES, Path("any.toml"), "retrieval")
    for name, reason in absent.items():
        print(f"left out: {name}: {reason}")
    pairs = [name for name in _PAIRS if DATASETS[name].absent() is None]
    print(f"| fp32, {options.length} tokens | {' | '.join([*pairs, *(one.name for one in collections)])} |")
    print(f"|---|{'--:|' * (len(pairs) + len(collections))}")
    for name in options.student:
        cells = _cells(at(name, Path("any.toml")).folder, options.length, pairs, collections)
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)
    return 0


def _cells(folder: Path, length: int, pairs: list[str], collections: list[retrieval.Source]) -> Iterator[str]:
    """Yield Spearman of each dataset of pairs, and recall@1 and @10 of each collection in points."""
    from pipeline.checkpoint.loading import load_checkpoint
    from pipeline.student.outputs import reference_outputs

    model = load_checkpoint(folder, _TASK)
    head = sentence.settings(model)
    book = EncodedTexts(Encoder.from_folder(folder, length), _TASK, [], head.wanted)
    labels = [book.add_dataset(DATASETS[name]) for name in pairs]
    judged = [book.add_collection(one) for one in collections]
    outputs = reference_outputs(model, _TASK, book.rows)
    for one in labels:
        yield f"{scoring.score(_TASK.output_kind, one, outputs):.4f}"
    for searched in judged:
        means = ranking.means(searched, outputs, head.compared_by)
        yield f"{100 * means['recall_at_1']:.1f} / {100 * means['recall_at_10']:.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
