"""`make support`: every architecture in the size that people use, converted, judged, and written to SUPPORT.md.

Weights are random but for the bundled student, and declared so: what is shown is that each format carries the graph,
how large the file is, how much of it is delegated, and what converting costs; not how good a trained one would be.
What was made before by the same code is kept, so a stopped run goes on where it was.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline import architectures, artifact, backends, plan, tasks, verify
from pipeline import recipe as recipes
from pipeline import student as students
from pipeline.artifact import Artifact
from pipeline.benchmark import record
from pipeline.console import Progress
from pipeline.convert import Target
from pipeline.devices import host
from pipeline.isolated import Worker
from pipeline.quantize import SCHEMES
from pipeline.recipe import Recipe

REPOSITORY = Path(__file__).resolve().parent.parent
BUILD = REPOSITORY / "build" / "support"
PAGE = REPOSITORY / "benchmarks" / "SUPPORT.md"
LENGTHS = (32,)
LABELS = ("negative", "neutral", "positive")
_BERT_BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}


@dataclass(frozen=True)
class Case:
    """One student: a published size with random weights, or the bundled one."""

    name: str
    architecture: str
    task: str
    config: dict[str, Any] = field(default_factory=dict)
    """Over the config class's defaults, which are the published base size of most."""
    bundled: bool = False
    timed: bool = False
    """Whether the files are also timed, which tells what they take in memory."""


CASES = (
    Case("MiniLM-L6 (bundled, trained)", "bert", "embedding", bundled=True),
    Case("BERT-base", "bert", "classification", _BERT_BASE),
    Case(
        "TinyBERT-4",
        "bert",
        "classification",
        {"hidden_size": 312, "num_hidden_layers": 4, "num_attention_heads": 12, "intermediate_size": 1200},
    ),
    Case("TinyBERT-6", "bert", "regression", _BERT_BASE | {"num_hidden_layers": 6}),
    Case("DistilBERT", "distilbert", "question_answering"),
    Case(
        "ALBERT-base",
        "albert",
        "classification",
        _BERT_BASE | {"embedding_size": 128, "hidden_act": "gelu_new", "vocab_size": 30000},
        timed=True,
    ),
    Case(
        "RoBERTa-base",
        "roberta",
        "token_classification",
        _BERT_BASE | {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1},
    ),
    Case("MobileBERT", "mobilebert", "question_answering"),
    Case(
        "ELECTRA-small",
        "electra",
        "token_classification",
        {"embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
    ),
    Case(
        "XLM-R, MiniLM-L6 size",
        "xlm-roberta",
        "embedding",
        {
            "vocab_size": 250002,
            "hidden_size": 384,
            "num_hidden_layers": 6,
            "num_attention_heads": 12,
            "intermediate_size": 1536,
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
        },
    ),
)
"""Sources: the published config.json of google-bert/bert-base-uncased, huawei-noah/TinyBERT_General_{4L_312D,6L_768D},
distilbert-base-uncased, albert-base-v2, roberta-base, google/mobilebert-uncased, google/electra-small-discriminator,
microsoft/Multilingual-MiniLM-L12-H384 (six of its layers)."""


def main() -> int:
    """Convert and judge what is not there yet, and write the page."""
    parser = argparse.ArgumentParser(prog="make support", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="cases whose name contains this")
    parser.add_argument("--page", action="store_true", help="write the page of what is there, make nothing")
    options = parser.parse_args()
    wanted = [case for case in CASES if not options.only or any(part in case.name for part in options.only)]
    failed = []
    for case in () if options.page else wanted:
        print(case.name, file=sys.stderr)
        failed += [f"{case.name}: {line}" for line in run(case)]
    PAGE.write_text("\n".join(page()) + "\n", encoding="utf-8")
    print("\n".join(failed) if failed else "every cell passed")
    return 1 if failed else 0


def slug(case: Case) -> str:
    """Return a case's name for folders."""
    return "".join(letter if letter.isalnum() else "-" for letter in case.name.lower()).strip("-")


def recipe_of(case: Case) -> Recipe:
    """Return the recipe: one length, every scheme that each backend supports."""
    source = "bundled:all-MiniLM-L6-v2" if case.bundled else str(BUILD / "sources" / slug(case))
    values = {
        "name": slug(case),
        "task": case.task,
        "student": {"source": source, "random_weights": not case.bundled},
        "convert": {"sequence_lengths": list(LENGTHS)},
        "targets": {name: {"schemes": list(schemes_of(name))} for name in backends.NAMES},
        "benchmark": {"lengths": list(LENGTHS), "rounds": 5, "texts": 20},
    }
    return Recipe.checked(values, PAGE)


def schemes_of(backend: str) -> Iterator[str]:
    """Yield the schemes that a backend supports."""
    module = backends.get(backend)
    return (scheme for scheme in SCHEMES if module.support(scheme, minimum_ios=18).supported)


def run(case: Case) -> list[str]:
    """Convert and judge one student; return what did not pass."""
    if not case.bundled and not (BUILD / "sources" / slug(case) / "config.json").is_file():
        with Worker(BUILD / "sources.log") as worker:
            worker.call(write_source, case)
    recipe = recipe_of(case)
    with Progress(quiet=False) as progress:
        line = plan.Line(recipe, PAGE, BUILD, progress, plan.choose_targets(recipe, []))
        line.run("benchmark" if case.timed else "verify")
    return [
        f"{parity.backend} {parity.scheme}: {parity.reasons[0]}"
        for parity in line.parities()
        if parity.verdict != "passed"
    ]


def write_source(case: Case) -> None:
    """Write a random checkpoint of the published size, with the bundled student's tokenizer. Imports torch."""
    import torch
    import transformers

    options: dict[str, Any] = dict(case.config)
    if tasks.get(case.task).has_labels:
        options |= {"id2label": dict(enumerate(LABELS)), "label2id": {name: i for i, name in enumerate(LABELS)}}
    elif case.task == "regression":
        options |= {"num_labels": 1}
    if architectures.get(case.architecture).positions_after_padding:
        options |= {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    config = transformers.AutoConfig.for_model(case.architecture, **options)
    torch.manual_seed(0)
    model = getattr(transformers, tasks.get(case.task).auto_class).from_config(config)
    place = BUILD / "sources" / slug(case)
    aside = place.with_name(place.name + ".part")
    shutil.rmtree(aside, ignore_errors=True)
    model.save_pretrained(aside)
    tokenizer = students.find(*recipes.read("minilm")).folder / "tokenizer.json"
    if case.config.get("vocab_size", 30522) < 30522:
        aside.joinpath("tokenizer.json").write_text(shortened(tokenizer, case.config["vocab_size"]), encoding="utf-8")
    else:
        shutil.copyfile(tokenizer, aside / "tokenizer.json")
    aside.rename(place)


def shortened(tokenizer: Path, size: int) -> str:
    """Return a WordPiece tokenizer without its last, rarest pieces: ALBERT's table has 30,000 rows."""
    document = json.loads(tokenizer.read_text(encoding="utf-8"))
    document["model"]["vocab"] = {
        piece: number for piece, number in document["model"]["vocab"].items() if number < size
    }
    return json.dumps(document, ensure_ascii=False)


# --- the page ----------------------------------------------------------------------------------------------------


def page() -> Iterator[str]:
    """Yield the lines of SUPPORT.md, from the artifacts alone."""
    machine = host.describe()
    yield from (
        "# Support",
        "",
        "Generated by `make support` from the manifests and verdicts of what it made; nothing here is written by hand.",
        "Students in published sizes, one task each, at one length of 32 tokens. Weights are random but for the",
        "bundled student, and declared so: that exempts them from the above-chance gate alone. All architectures ×",
        "tasks × formats × schemes run on tiny random students in `make test-full` (tests/test_matrix.py).",
        "",
        f"Machine: {machine.model_id}, {machine.os}. Seconds are of the conversion, two running at a time; the peak is",
        "that of the process that converts one format's schemes one after the other, up to and with this one.",
    )
    for case in CASES:
        folder = BUILD / slug(case)
        if (folder / "student").is_dir():
            yield from ("", *_section(case, folder))
    yield from ("", "## Not supported", "", *_unsupported())


def _section(case: Case, folder: Path) -> Iterator[str]:
    facts = artifact.load(folder / "student").manifest.metrics
    yield f"## {case.name}: {case.architecture}, {case.task}, {facts['parameters'] / 1e6:.1f} M parameters"
    yield ""
    yield "| format | scheme | verdict | score: mean / worst | MB | bytes a parameter | delegated / ops | s | peak MB |"
    yield "|---|---|---|---|--:|--:|--:|--:|--:|"
    for name in backends.NAMES:
        for scheme in SCHEMES:
            answer = backends.get(name).support(scheme, minimum_ios=18)
            title = backends.get(name).TITLE
            if not answer.supported:
                yield f"| {title} | {scheme} | UNSUPPORTED: {answer.reason} | | | | | | |"
            else:
                yield f"| {title} | {scheme} | {_row(folder / str(Target(name, scheme)), facts['parameters'])} |"

    if (folder / "benchmark-host").is_dir():
        yield from ("", *_memory(folder / "benchmark-host"))


def _memory(folder: Path) -> Iterator[str]:
    yield "One thread, 32 tokens, in this run; memory is what the model adds to a process with its runtime. LiteRT runs"
    yield "with its weight cache on, in memory; ExecuTorch's Python API has no switch for its own, Java and Swift have."
    yield ""
    yield "| variant | p50 ms | memory, MB |"
    yield "|---|--:|--:|"
    for row in record.read_all(folder):
        if row.backend.threads == 1:
            taken = row.memory.model_bytes
            memory = "—" if taken is None else f"{taken / 1e6:.0f}"
            yield f"| {row.model.id} | {row.timing.lengths[-1].wall.p50:.1f} | {memory} |"


def _row(place: Path, parameters: int) -> str:
    if not (place / "parity").is_dir():
        return "not made yet | | | | | | "
    parity = verify.read(place / "parity")
    model: Artifact = artifact.load(place / "model")
    found = model.manifest.metrics
    measures = parity.measures
    unit = "" if parity.score == "cosine" else " dB"
    digits = 5 if parity.score == "cosine" else 1
    score = f"{measures.mean_score:.{digits}f} / {measures.worst_score:.{digits}f}{unit}" if measures else "—"
    delegated = (
        f"{found['ops_delegated']} / {found['ops_total']}" if "ops_delegated" in found else f"— / {found['ops_total']}"
    )
    return " | ".join(
        (
            parity.verdict if parity.verdict == "passed" else f"{parity.verdict}: {parity.reasons[0]}",
            score,
            f"{found['file_bytes'] / 1e6:.1f}",
            f"{found['file_bytes'] / parameters:.2f}",
            delegated,
            f"{found['convert_seconds']:.0f}",
            f"{found['peak_rss_bytes'] / 1e6:.0f}",
        )
    )


def _unsupported() -> Iterator[str]:
    for name, reason in architectures.UNSUPPORTED.items():
        yield f"- {name}: {reason}."


if __name__ == "__main__":
    sys.exit(main())
