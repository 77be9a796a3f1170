"""What one would pick instead, timed in one run with the files of a recipe: `make peers`.

    python -m benchmarks.peers [RECIPE] [--peer onnxruntime] [--peer litert] [--peer executorch] [--peer pytorch]

makes the recipe's LiteRT and ExecuTorch files and the peers' own; times all of them interleaved, with one thread; and
judges each one's embeddings against fp32 PyTorch. Texts are STS-B dev sentences if POCKETBERT_DATA has them, else the
package's own. It prints the table, and writes it with the records into `benchmarks/results/`.
"""

import argparse
import csv
import importlib.util
import json
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import peer_exports, peer_sessions
from pipeline import architectures, artifact
from pipeline.artifact import Artifact
from pipeline.benchmark.record import BenchmarkRecord
from pipeline.benchmark.stage import measure, of_student, of_target
from pipeline.benchmark.timed import open_variant, outputs, prepare
from pipeline.benchmark.variants import Variant
from pipeline.cli.progress import Progress, print_error
from pipeline.convert.stage import Target
from pipeline.convert.targets import finished_model
from pipeline.data.datasets import DATASETS
from pipeline.errors import EXIT_DONE, InputError, PipelineError, ToolchainError
from pipeline.execution.worker import Worker
from pipeline.metrics import measures
from pipeline.planning.request import Request
from pipeline.planning.run import run as make
from pipeline.recipe import loading
from pipeline.recipe.schema import BenchmarkSection, Recipe, TargetSection
from pipeline.text.bundled import everyday_sentences

RESULTS = Path(__file__).parent / "results"
OURS = (
    Target("litert", "int8_dynamic"),
    Target("executorch", "int8_dynamic"),
    Target("litert", "fp32"),
    Target("executorch", "fp32"),
)
PEERS = ("onnxruntime", "litert", "executorch", "pytorch")
_ONNX = ("onnxruntime", "onnx", "onnxscript")
LONGEST = 128
"""Tokens; the default exports have this one length, or the recipe's longest if that is shorter."""
_LENGTHS = (16, 32, 64, 128)


def main(given: Sequence[str] | None = None) -> int:
    """Do what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipe", nargs="?", default="minilm", help="a recipe of task embedding, not made smaller")
    parser.add_argument("--peer", action="append", choices=PEERS, help="this peer; may be repeated; else all")
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--passes", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args(given)
    try:
        print(run(options))
    except PipelineError as error:
        print_error(str(error))
        return error.exit_code
    return EXIT_DONE


def run(options: argparse.Namespace) -> str:
    """Make the files, time them, write the records and return the table.

    Raises:
        PipelineError: the recipe cannot be compared, or a peer is not installed.
    """
    recipe, file = loading.read_recipe(options.recipe)
    chosen = [peer for peer in PEERS if not options.peer or peer in options.peer]
    _check(recipe, chosen)
    recipe = _with_targets(recipe)
    length = min(LONGEST, *(recipe.lengths(target.backend)[-1] for target in OURS))
    with Progress(quiet=False) as progress:
        make(Request(recipe, file, "convert", list(OURS)), options.build, progress)
        made = options.build / recipe.name
        student = artifact.load(made / "student")
        _check_inputs(student)
        length = min(
            LONGEST, *(recipe.lengths(target.backend)[-1] for target in OURS if target.backend in recipe.targets)
        )
        folder = options.build / "peers" / f"{recipe.name}-{student.digest[:12]}-{length}"
        log = folder / "peers.log"
        variants = [
            of_student(student, length),
            *(of_target(finished_model(made, target)) for target in OURS),
            *peers(chosen, student.path, folder, log, length, progress.note),
        ]
        source, sentences = texts(options.texts)
        settings = BenchmarkSection(
            lengths=tuple(one for one in _LENGTHS if one <= length) or (length,),
            rounds=options.rounds,
            texts=len(sentences),
            text_passes=options.passes,
        )
        progress.started("measuring")
        tell = partial(progress.advanced, "measuring")
        records = measure(variants, settings.lengths, sentences, 1, settings, log=log, tell=tell)
        reference = embeddings(variants[0], sentences, log)
        cosines = {}
        for variant in variants:
            cosine = measures.cosine(reference, embeddings(variant, sentences, log))
            cosines[variant.id] = {"mean": float(cosine.mean()), "min": float(cosine.min())}
    return save(source, records, cosines, options.results)


def _check(recipe: Recipe, chosen: Sequence[str]) -> None:
    """Refuse, before any work, what cannot be compared."""
    if recipe.task != "embedding":
        raise InputError(f"recipe {recipe.name} is for {recipe.task}; peers are compared by the embeddings they give.")
    if recipe.prune or recipe.factorise or recipe.share:
        raise InputError(
            f"recipe {recipe.name} makes its student smaller; peers load it by transformers' from_pretrained, which "
            "does not know such shapes. Name the recipe of the whole student."
        )
    if "onnxruntime" in chosen:
        absent = [name for name in _ONNX if importlib.util.find_spec(name) is None]
        if absent:
            others = " ".join(f"--peer {peer}" for peer in PEERS[1:])
            raise ToolchainError(
                f"{', '.join(absent)} not installed; `make peers` installs the extra `peers`, and {others} goes "
                "without onnxruntime."
            )


def _check_inputs(student: Artifact) -> None:
    config = json.loads((student.path / "config.json").read_text(encoding="utf-8"))
    inputs = architectures.get(config["model_type"]).inputs
    if inputs != peer_sessions.NAMES:
        raise InputError(
            f"peers take {', '.join(peer_sessions.NAMES)}; {config['model_type']} takes {', '.join(inputs)}."
        )


def _with_targets(recipe: Recipe) -> Recipe:
    """Return the recipe with the targets that are compared; its own keep their sequence lengths."""
    sections = dict(recipe.targets)
    for backend in dict.fromkeys(target.backend for target in OURS):
        schemes = tuple(target.scheme for target in OURS if target.backend == backend)
        section = sections.get(backend, TargetSection(schemes=schemes))
        sections[backend] = section.model_copy(update={"schemes": tuple(dict.fromkeys((*section.schemes, *schemes)))})
    return recipe.model_copy(update={"targets": sections})


def texts(count: int) -> tuple[str, list[str]]:
    """Return the name of the texts' source, and evenly spread texts from it."""
    dataset = DATASETS["stsb"]
    if dataset.absent() is None:
        path = dataset.path()
        assert path is not None
        with path.open(encoding="utf-8", newline="") as handle:
            every = list(dict.fromkeys(text for line in csv.reader(handle) for text in line[:2]))
        name = "STS-B dev"
    else:
        every, name = everyday_sentences(), "the package's own everyday sentences (POCKETBERT_DATA is not set)"
    return name, every[:: max(1, len(every) // count)][:count]


def peers(
    chosen: Sequence[str], student: Path, folder: Path, log: Path, length: int, note: Callable[[str], None]
) -> list[Variant]:
    """Make the peers' files if they are not there, and return the variants."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "onnxruntime": (folder / "dynamic.onnx", peer_exports.onnx_dynamic),
        "litert": (folder / "default.tflite", peer_exports.litert_default),
        "executorch": (folder / "default.pte", peer_exports.executorch_default),
    }
    for name, (file, export) in files.items():
        done = file.with_name(f"{file.name}.done")
        if name in chosen and not done.is_file():
            note(f"exporting {name}'s default")
            with Worker(log) as worker:
                worker.call(export, student, file, length)
            done.touch()
    onnx, litert, executorch = (file for file, _ in files.values())
    int8 = onnx.with_suffix(".int8.onnx")
    default, opened = f"default-{length}", (student, length)
    variants: dict[str, list[tuple[str, str, Path | None, Callable[[int], Any]]]] = {
        "onnxruntime": [
            ("onnxruntime-fp32", "fp32", onnx, partial(peer_sessions.OnnxRuntime, onnx, *opened)),
            ("onnxruntime-int8", "int8_dynamic", int8, partial(peer_sessions.OnnxRuntime, int8, *opened)),
        ],
        "litert": [(f"litert-{default}", "fp32", litert, partial(peer_sessions.LiteRTDefault, litert, *opened))],
        "executorch": [
            (f"executorch-{default}", "fp32", executorch, partial(peer_sessions.ExecuTorchDefault, executorch, *opened))
        ],
        "pytorch": [("pytorch-int8", "int8_dynamic", None, partial(peer_sessions.TorchInt8, *opened))],
    }
    return [
        _peer(name, *row, peer_sessions.IMPORTS[name], (length,) if row[0].endswith(default) else None)
        for name in chosen
        for row in variants[name]
    ]


_DISTRIBUTIONS = {
    "onnxruntime": "onnxruntime",
    "litert": "ai-edge-litert",
    "executorch": "executorch",
    "pytorch": "torch",
}


def _peer(
    runtime: str,
    name: str,
    scheme: str,
    file: Path | None,
    opener: Callable[[int], Any],
    import_runtime: Callable[[], None],
    lengths: tuple[int, ...] | None,
) -> Variant:
    return Variant(
        id=name,
        scheme=scheme,
        runtime=runtime,
        distribution=_DISTRIBUTIONS[runtime],
        delegate=None,
        open_with_threads=opener,
        import_runtime=import_runtime,
        file=file,
        sha256=artifact.sha256_file(file) if file else None,
        bytes=file.stat().st_size if file else None,
        lengths=lengths,
        ops_delegated=None,
        ops_total=None,
    )


def embeddings(variant: Variant, sentences: list[str], log: Path) -> NDArray[np.float32]:
    """Return a variant's embeddings, made in a worker of its own."""
    with Worker(log) as worker:
        worker.call(prepare, variant.import_runtime)
        worker.call(open_variant, partial(variant.open_with_threads, 1), sentences[0])
        return np.stack(worker.call(outputs, sentences))


def markdown(source: str, records: list[BenchmarkRecord], cosines: dict[str, dict[str, float]]) -> str:
    """Return one row a variant; ratios are to the default exports and to onnxruntime's int8 of the same run."""
    machine = records[0].device
    timing = records[0].timing.texts
    cpu_ms = {one.model.id: one.timing.texts.mean_cpu_ms_per_text or math.nan for one in records}
    defaults = {name.partition("-default-")[0]: value for name, value in cpu_ms.items() if "-default-" in name}
    lines = [
        f"{machine.model_id}, {' '.join(machine.cpu_features)}; 1 thread, batch 1; {timing.texts} texts of {source}, "
        f"{np.mean(timing.tokens):.1f} tokens on average, each at the length that the variant gives it; "
        f"{timing.passes} passes, interleaved; tokenisation excluded.",
        "",
        f"| variant | MB | CPU ms a text | p50 at {records[0].timing.lengths[-1].seq_len} | memory, MB "
        "| cosine mean / min | × ORT int8 | × own default |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for record in records:
        name = record.model.id
        size = f"{record.model.bytes / 1e6:.1f}" if record.model.bytes else "—"
        memory = f"{record.memory.model_bytes / 1e6:.0f}" if record.memory.model_bytes is not None else "—"
        cells = [name, size, f"{cpu_ms[name]:.2f}", f"{record.timing.lengths[-1].wall.p50:.1f}", memory]
        cells += [f"{cosines[name]['mean']:.5f} / {cosines[name]['min']:.5f}"]
        cells += [_ratio(cpu_ms.get("onnxruntime-int8"), cpu_ms[name], 2)]
        cells += [_ratio(defaults.get(name.split("-")[0]), cpu_ms[name], 1)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _ratio(before: float | None, after: float, digits: int) -> str:
    return f"{before / after:.{digits}f}" if before else "—"


def save(
    source: str, records: list[BenchmarkRecord], cosines: dict[str, dict[str, float]], results: Path = RESULTS
) -> str:
    """Keep the records, raw samples included, and the table, under a name that says what the processor can do."""
    telling = ("avx512_vnni", "avx_vnni", "dotprod", "i8mm")
    features = [feature for feature in records[0].device.cpu_features if feature in telling]
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"peers-{records[0].device.abi}-{'-'.join(features) or 'plain'}.json"
    document = {
        "texts": source,
        "cosine": cosines,
        "records": [record.model_dump(mode="json") for record in records],
    }
    path.write_text(json.dumps(document) + "\n", encoding="utf-8")
    text = markdown(source, records, cosines)
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    return text


if __name__ == "__main__":
    sys.exit(main())
