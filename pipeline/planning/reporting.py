"""Nodes of the latencies and of the report, which stand at the end of a recipe's graph."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline import artifact, formats, tasks
from pipeline.benchmark import stage as benchmark
from pipeline.devices import host
from pipeline.execution.node import Estimate, External, Input, Log, Node, versions
from pipeline.execution.store import Store
from pipeline.execution.worker import tell
from pipeline.planning.request import RecipeFiles, Request, opened
from pipeline.recipe import loading
from pipeline.recipe.schema import BenchmarkSection, Recipe
from pipeline.report import measured
from pipeline.report import stage as report
from pipeline.report.record import VERIFICATION
from pipeline.student import reference
from pipeline.text.bundled import everyday_sentences


def benchmark_node(request: Request, every: Sequence[RecipeFiles]) -> Node:
    """Return the node that times all runnable targets of all recipes in one run, beside PyTorch."""
    recipe, (own, *_) = request.recipe, every
    assert own.student
    section = recipe.benchmark
    inputs: dict[str, Node] = {"student": own.student}
    variants: list[tuple[Input, str]] = []
    for files in every:
        whose = "" if files is own else files.recipe.name
        for target, model in files.models.items():
            if not formats.get(target.backend).no_runtime():
                name = "/".join(filter(None, (whose, str(target))))
                inputs[name] = model
                variants.append((Input(name), whose))
    longest = max(recipe.lengths(target.backend)[-1] for target in own.targets)
    lengths = [length for length in section.lengths if length < longest] + [longest]
    cores = host.usable_cores()
    threads = [1, cores] if cores > 1 else [1]
    texts = everyday_sentences()[: section.texts]
    machine = host.describe()
    used = sorted({target.backend for files in every for target in files.targets})
    seconds = (len(variants) + 1) * len(threads) * (section.rounds * len(lengths) * section.block_ms / 1e3 + 8)
    return Node(
        recipe=recipe.name,
        name="benchmark",
        place=f"benchmark-{request.device}",
        stage="benchmark",
        version=benchmark.VERSION,
        params={
            "settings": section.model_dump(),
            "lengths": lengths,
            "threads": threads,
            "texts": artifact.digest_of(texts),
            "machine": [machine.model_id, machine.cpu_features, machine.os],
        },
        inputs=inputs,
        tools=versions("torch", *(formats.get(name).DISTRIBUTIONS[0] for name in used)),
        function=time_files,
        arguments=(Input("student"), variants, lengths, texts, threads, section, Log()),
        estimate=Estimate(seconds, 3_000_000, size_bytes=own.student.estimate.size_bytes),
        needs="quiet",
        worker="benchmark",
    )


def time_files(
    laid_out: Path,
    models: Sequence[tuple[Path, str]],
    lengths: Sequence[int],
    texts: Sequence[str],
    threads: Sequence[int],
    section: BenchmarkSection,
    log: Path,
    out: Path,
) -> Mapping[str, Any]:
    """Time converted files; the function of the `benchmark` node. See `benchmark.make`."""
    variants = [benchmark.of_student(opened(laid_out), lengths[-1])]
    variants += [benchmark.of_target(opened(model), whose) for model, whose in models]
    return benchmark.make(variants, lengths, texts, threads, section, out, log=log, tell=tell)


def report_node(request: Request, every: Sequence[RecipeFiles], timings: Node, store: Store | None) -> Node:
    """Return the node of the report on all recipes, with what phones measured before."""
    inputs: dict[str, Node | External] = {"benchmark": timings}
    # Records of phones and emulated processors are included if they exist; a run does not make them.
    beside = measured.find(store.root.parent / request.recipe.name, request.device) if store else {}
    build, source = store.root.parent if store else None, request.recipe.student.source
    beside |= measured.find_studies(build, request.recipe.task, source, request.file.parent)
    inputs |= {name: External(file, artifact.sha256_file(file)) for name, file in beside.items()}
    members, texts = [], []
    # No path of this machine: who reads the report has the recipe elsewhere.
    named = request.recipe.name if request.file.parent == loading.RECIPES else request.file.name
    for number, files in enumerate(every):
        whose = "" if number == 0 else f"{files.recipe.name}/"
        assert files.student
        inputs[f"{whose}student"] = files.student
        targets = {}
        for target in files.targets:
            inputs[f"{whose}{target}"], inputs[f"{whose}{target} parity"] = files.models[target], files.parities[target]
            targets[str(target)] = f"{whose}{target}"
        names = [(target, Input(name), Input(f"{name} parity")) for target, name in targets.items()]
        texts.append(_texts(files))
        # Of students beside it, files alone are shown.
        quantised = _quantised(files) if number == 0 else {}
        inputs |= {f"quantised {scheme}": node for scheme, node in quantised.items()}
        found = [(scheme, Input(f"quantised {scheme}")) for scheme in quantised]
        members.append((files.recipe, Input(f"{whose}student"), names, texts[-1], found))
    return Node(
        recipe=every[0].recipe.name,
        name="report",
        place="report",
        stage="report",
        version=report.VERSION,
        params={"recipe": [files.recipe.model_dump(mode="json") for files in every], "texts": texts, "named": named},
        inputs=inputs,
        tools=versions("matplotlib", "jinja2"),
        function=write_report,
        arguments=(named, members, Input("benchmark"), [(name, Input(name)) for name in beside]),
        estimate=Estimate(6, 2_000_000, 500_000_000),
        worker="report",
        counts_manifest=True,
        copied=True,
    )


def _quantised(files: RecipeFiles) -> dict[str, Node]:
    """Return the nodes of the quantised checkpoints that targets are converted from, by scheme."""
    made = {target.scheme: model.inputs.get("quantised") for target, model in files.models.items()}
    return {scheme: node for scheme, node in made.items() if isinstance(node, Node)}


def _texts(files: RecipeFiles) -> dict[str, str]:
    """Return the digests of the verification texts and datasets, by name; they are the same for every length."""
    longest = files.recipe.lengths(files.targets[0].backend)[-1]
    collections, _ = files.branch.collections
    params = reference.order_params(tasks.get(files.recipe.task), files.branch.datasets, longest, collections)
    return {VERIFICATION: artifact.digest_of(params["texts"]), **params["datasets"], **params.get("collections", {})}


def write_report(
    named: str,
    members: Sequence[
        tuple[Recipe, Path, Sequence[tuple[str, Path, Path]], Mapping[str, str], Sequence[tuple[str, Path]]]
    ],
    timings: Path,
    beside: Sequence[tuple[str, Path]],
    out: Path,
) -> Mapping[str, Any]:
    """Write the report; the function of the `report` node. See `report.make`."""
    own, *others = (
        report.RecipeResults(
            recipe,
            artifact.read_manifest(laid_out),
            {target: (opened(model), opened(parity)) for target, model, parity in targets},
            texts,
            named if number == 0 else None,
            dict(quantised),
        )
        for number, (recipe, laid_out, targets, texts, quantised) in enumerate(members)
    )
    return report.make(own, others, timings, out, dict(beside))
