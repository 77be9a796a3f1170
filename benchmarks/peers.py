"""What a user would pick instead, timed in one run with what `make run` made: `make peers`.

Reads the files of `build/minilm`, makes the peers' own beside them, times all of them interleaved, and judges each
one's embeddings against fp32 PyTorch. Texts are STS-B dev sentences where POCKETBERT_DATA names them, else the
package's own.
Writes the records and the table into `benchmarks/results/`, and prints the table.
"""

import argparse
import csv
import json
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks import peer_exports, peer_sessions
from pipeline import artifact
from pipeline.benchmark import stage as benchmark
from pipeline.benchmark import timed
from pipeline.benchmark.record import BenchmarkRecord
from pipeline.benchmark.variants import Variant
from pipeline.convert.stage import Target
from pipeline.convert.targets import finished_model
from pipeline.data import datasets as data
from pipeline.graph.worker import Worker
from pipeline.metrics import measures
from pipeline.recipe.schema import BenchmarkSection
from pipeline.text.bundled import everyday_sentences

RESULTS = Path(__file__).parent / "results"
OURS = (
    Target("litert", "int8_dynamic"),
    Target("executorch", "int8_dynamic"),
    Target("litert", "fp32"),
    Target("executorch", "fp32"),
)
LENGTH = peer_exports.LENGTH


def texts(count: int) -> tuple[str, list[str]]:
    """Return the name of the texts' source, and evenly spread texts from it."""
    row = data.DATASETS["stsb"]
    if row.absent() is None:
        path = row.path()
        assert path is not None
        with path.open(encoding="utf-8", newline="") as handle:
            every = list(dict.fromkeys(text for line in csv.reader(handle) for text in line[:2]))
        name = "STS-B dev"
    else:
        every, name = everyday_sentences(), "the package's own everyday sentences (POCKETBERT_DATA is not set)"
    return name, every[:: max(1, len(every) // count)][:count]


def peers(student: Path, folder: Path, log: Path) -> list[Variant]:
    """Make the peers' files if they are not there, and return the variants."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"litert": folder / "default.tflite", "executorch": folder / "default.pte", "onnx": folder / "dynamic.onnx"}
    makers = {
        "litert": peer_exports.litert_default,
        "executorch": peer_exports.executorch_default,
        "onnx": peer_exports.onnx_dynamic,
    }
    for name, file in files.items():
        if not file.is_file():
            with Worker(log) as worker:
                worker.call(makers[name], student, file)
    sessions = peer_sessions
    int8 = files["onnx"].with_suffix(".int8.onnx")
    return [
        _peer(
            "onnxruntime-fp32",
            "fp32",
            files["onnx"],
            partial(sessions.OnnxRuntime, files["onnx"], student, LENGTH),
            sessions.import_onnxruntime,
        ),
        _peer(
            "onnxruntime-int8",
            "int8_dynamic",
            int8,
            partial(sessions.OnnxRuntime, int8, student, LENGTH),
            sessions.import_onnxruntime,
        ),
        _peer(
            "litert-default-128",
            "fp32",
            files["litert"],
            partial(sessions.LiteRTDefault, files["litert"], student, LENGTH),
            sessions.import_litert,
        ),
        _peer(
            "executorch-default-128",
            "fp32",
            files["executorch"],
            partial(sessions.ExecuTorchDefault, files["executorch"], student, LENGTH),
            sessions.import_executorch,
        ),
        _peer(
            "pytorch-int8", "int8_dynamic", None, partial(sessions.TorchInt8, student, LENGTH), sessions.import_torch
        ),
    ]


def _peer(name: str, scheme: str, file: Path | None, opener: object, import_runtime: object) -> Variant:
    return Variant(
        id=name,
        scheme=scheme,
        runtime=name.split("-")[0],
        delegate=None,
        open_with_threads=opener,
        import_runtime=import_runtime,
        file=file,
        sha256=artifact.sha256_file(file) if file else None,
        bytes=file.stat().st_size if file else None,
        lengths=(LENGTH,) if name.endswith("128") else None,
        ops_delegated=None,
        ops_total=None,
    )


def embeddings(variant: Variant, sentences: list[str], log: Path) -> NDArray[np.float32]:
    """Return a variant's embeddings, made in a worker of its own."""
    with Worker(log) as worker:
        worker.call(timed.prepare, variant.import_runtime)
        worker.call(timed.open_variant, partial(variant.open_with_threads, 1), sentences[0])
        return worker.call(timed.embed, sentences)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--passes", type=int, default=7)
    options = parser.parse_args()
    folder = options.build / "minilm"
    log = options.build / "peers" / "peers.log"
    student = artifact.load(folder / "student")
    ours = [finished_model(folder, target) for target in OURS]
    variants = [
        benchmark.of_student(student, LENGTH),
        *(benchmark.of_target(model) for model in ours),
        *peers(student.path, options.build / "peers", log),
    ]
    source, sentences = texts(options.texts)
    settings = BenchmarkSection(lengths=(16, 32, 64, 128), rounds=6, texts=len(sentences), text_passes=options.passes)
    console = Console()
    with console.status("measuring") as status:
        tell = lambda what, fraction: status.update(f"{fraction:4.0%} {what}")  # noqa: E731
        records = benchmark.measure(variants, settings.lengths, sentences, 1, settings, log=log, tell=tell)
    truth = embeddings(variants[0], sentences, log)
    cosines = {}
    for variant in variants:
        found = measures.cosine(truth, embeddings(variant, sentences, log))
        cosines[variant.id] = {"mean": float(found.mean()), "min": float(found.min())}
    print(save(source, records, cosines))


def markdown(source: str, records: list[BenchmarkRecord], cosines: dict[str, dict[str, float]]) -> str:
    """Return one row a variant; ratios are to the default exports and to onnxruntime's int8 of the same run."""
    facts = records[0].device
    texts_ = records[0].timing.texts
    by_name = {record.model.id: record.timing.texts.mean_cpu_ms_per_text for record in records}
    lines = [
        f"{facts.model_id}, {' '.join(facts.cpu_features)}; 1 thread, batch 1; {texts_.texts} texts of {source}, "
        f"{np.mean(texts_.tokens):.1f} tokens on average, each at the length that the variant gives it; "
        f"{texts_.passes} passes, interleaved; tokenisation excluded.",
        "",
        "| variant | MB | CPU ms a text | p50 at 128 | memory, MB | cosine mean / min | × ORT int8 | × own default |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for record in records:
        name = record.model.id
        mean = by_name[name]
        default = by_name.get(f"{name.split('-')[0]}-default-128")
        size = f"{record.model.bytes / 1e6:.1f}" if record.model.bytes else "—"
        memory = f"{record.memory.model_bytes / 1e6:.0f}" if record.memory.model_bytes is not None else "—"
        own = f"{default / mean:.1f}" if default else "—"
        cells = [name, size, f"{mean:.2f}", f"{record.timing.lengths[-1].wall.p50:.1f}", memory]
        cells += [f"{cosines[name]['mean']:.5f} / {cosines[name]['min']:.5f}"]
        cells += [f"{by_name['onnxruntime-int8'] / mean:.2f}", own]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def save(source: str, records: list[BenchmarkRecord], cosines: dict[str, dict[str, float]]) -> str:
    """Keep the records, raw samples included, and the table, under a name that says what the processor can do."""
    wanted = ("avx512_vnni", "avx_vnni", "dotprod", "i8mm")
    features = [feature for feature in records[0].device.cpu_features if feature in wanted]
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"peers-{records[0].device.abi}-{'-'.join(features) or 'plain'}.json"
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
    main()
