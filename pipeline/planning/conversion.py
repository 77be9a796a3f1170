"""Nodes of converted files, and of the quantised checkpoints that some are converted from."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline import artifact, formats
from pipeline.convert import stage as convert
from pipeline.convert.stage import Target
from pipeline.data import calibration
from pipeline.data.location import locate
from pipeline.execution.node import Estimate, Input, Node, Scratch, versions
from pipeline.planning.branches import Branch
from pipeline.planning.request import BY_HEAD, RecipeFiles, by_head, estimate_of, opened
from pipeline.quantize import policy
from pipeline.quantize import stage as quantize
from pipeline.recipe.schema import QuantizeSection, QuantizeTraining
from pipeline.schemes import SCHEMES, Gates

_EVERY = 10**9
"""A limit above the number of texts of any corpus, for settings without a limit."""


def _quantise(files: RecipeFiles, scheme: str) -> Node | None:
    """Return the node of the quantised checkpoint that a scheme's files are converted from.

    None if they are converted from the student itself.
    """
    recipe = files.recipe
    section = quantize.section_for(recipe.quantize, scheme)
    bare_table = files.branch.end.source.architecture.states_are_rows
    # SmoothQuant's scales stand around linears; where there are none, the student is what they would leave.
    if section is None or (bare_table and not SCHEMES[scheme].calibrated):
        return None
    assert files.student
    if not files.texts:
        files.texts += quantize.calibration_set(section, files.branch.file, files.branch.judged)
    settings = section.model_dump(mode="json", exclude={"calibration", "training", "policy"})
    eight = _eight_bits(files, section)
    node = Node(
        recipe=recipe.name,
        name=f"quantize {scheme}",
        place=f"quantised-{scheme}",
        stage="quantize",
        version=quantize.version(scheme),
        params={
            "task": recipe.task,
            "scheme": scheme,
            "settings": settings,
            "eight_bits": eight,
            "texts": artifact.digest_of(files.texts),
        },
        inputs={"student": files.student},
        tools=versions(*quantize.DISTRIBUTIONS),
        function=quantize.make,
        arguments=(Input("student"), recipe.task, scheme, section, eight, files.texts),
        estimate=estimate_of(files.branch, _quantise_seconds(files.branch, scheme), kind=scheme),
    )
    settings_of_training = quantize.trained(scheme, section)
    return node if settings_of_training is None else _train_quantised(files, node, scheme, settings_of_training)


def _quantise_seconds(branch: Branch, scheme: str) -> float:
    """Estimate the seconds of a calibration; to choose each number on text takes ten times as long as ranges do."""
    return 10.0 + (240.0 if SCHEMES[scheme].chosen else 15.0) * branch.end.source.weights_bytes / 90e6


def _eight_bits(files: RecipeFiles, section: QuantizeSection) -> tuple[str, ...]:
    """Return the names of the linears that the recipe's policy quantises to eight bits."""
    return policy.read(locate(section.policy, files.branch.file)).eight_bits if section.policy else ()


def quantise_request(files: RecipeFiles, scheme: str) -> quantize.QuantiseRequest:
    """Return the properties that verification expects of a scheme's quantised checkpoint."""
    section = quantize.section_for(files.recipe.quantize, scheme)
    assert section
    trained = quantize.trained(scheme, files.recipe.quantize) is not None
    return quantize.QuantiseRequest(trained, _eight_bits(files, section), section.table_bits)


def _train_quantised(files: RecipeFiles, quantised: Node, scheme: str, settings: QuantizeTraining) -> Node:
    """Return the node of quantisation-aware training, which starts from a quantised checkpoint."""
    recipe = files.recipe
    assert files.student
    assert recipe.quantize
    if not files.training_texts:
        names, key = settings.texts or recipe.quantize.calibration, "quantize.training.texts"
        count = settings.max_rows or _EVERY
        files.training_texts += calibration.texts(
            names,
            files.branch.file,
            count,
            seed=settings.seed,
            key=key,
            default=calibration.texts_of_many_kinds,
            judged=files.branch.judged,
        )
    texts = files.training_texts
    return Node(
        recipe=recipe.name,
        name=f"train {scheme}",
        place=f"trained-{scheme}",
        stage="quantize-training",
        version=quantize.VERSION,
        params={"task": recipe.task, "scheme": scheme, **quantize.training_params(settings, texts)},
        inputs={"student": files.student, "quantised": quantised},
        tools=versions(*quantize.DISTRIBUTIONS, "accelerate"),
        function=quantize.train,
        arguments=(Input("student"), Input("quantised"), recipe.task, scheme, settings, texts, Scratch()),
        estimate=estimate_of(files.branch, 1500, kind=scheme),
        needs="machine",
    )


def convert_node(files: RecipeFiles, target: Target) -> Node:
    """Return the node of one converted file, with the nodes of what it is converted from."""
    recipe, backend = files.recipe, formats.get(target.backend)
    assert files.student
    inputs: dict[str, Node] = {"student": files.student, **by_head(files.heads)}
    quantised = _quantise(files, target.scheme)
    if quantised:
        inputs["quantised"] = quantised
    elif backend.BASE_SCHEME not in (None, target.scheme):
        base = Target(target.backend, str(backend.BASE_SCHEME))
        inputs["base"] = files.models.get(base) or convert_node(files, base)
    weights = files.branch.end.source.weights_bytes
    arguments = (
        Input("student"),
        target,
        recipe.lengths(target.backend),
        recipe.minimum_ios(target.backend),
        Input("base") if "base" in inputs else None,
        Input("quantised") if "quantised" in inputs else None,
        recipe.gates(target.scheme),
        [
            (name, Input(BY_HEAD.format(name)), branch.recipe.gates(target.scheme))
            for name, branch in files.branch.heads.items()
        ],
    )
    sources = {name: branch.end.source for name, branch in files.branch.heads.items()}
    return Node(
        recipe=recipe.name,
        name=f"convert {target}",
        place=f"{target}/model",
        stage="convert",
        version=convert.VERSION,
        params=convert.order_params(recipe, target, files.branch.end.source, sources),
        inputs=inputs,
        tools=versions(*backend.DISTRIBUTIONS),
        function=convert_file,
        arguments=arguments,
        estimate=Estimate(
            _convert_seconds(weights, target, made_from_base="base" in inputs) * (1 + len(sources)),
            _file_bytes(files, target),
            2_000_000_000 + 4 * weights,
            f"{target} of its base" if "base" in inputs else str(target),
            weights,
        ),
        worker=f"convert-{target.backend}",
        after=files.first,
    )


def convert_again_node(files: RecipeFiles, target: Target) -> Node:
    """Return a node that repeats a conversion; thorough verification compares the two files."""
    first = convert_node(files, target)
    inputs = dict(first.inputs)
    if "base" in inputs:
        inputs["base"] = convert_again_node(files, Target(target.backend, str(formats.get(target.backend).BASE_SCHEME)))
    place = f"{target}/again"
    return replace(
        first, name=f"convert {target} again", place=place, params=dict(first.params) | {"again": True}, inputs=inputs
    )


def convert_file(
    laid_out: Path,
    target: Target,
    lengths: tuple[int, ...],
    ios: int | None,
    base: Path | None,
    quantised: Path | None,
    gates: Gates,
    heads: Sequence[tuple[str, Path, Gates]],
    out: Path,
) -> dict[str, Any]:
    """Convert one target; the function of a `convert` node. See `convert.make`."""
    others = [convert.HeadToConvert(name, opened(folder), of_head) for name, folder, of_head in heads]
    return convert.make(opened(laid_out), target, lengths, ios, base, quantised, gates, out, others)


def _convert_seconds(weights: int, target: Target, *, made_from_base: bool) -> float:
    """Estimate the seconds of a conversion, from the time measured for MiniLM (90 MB of weights).

    Half of it is the toolchain's start and the graph, which the smallest student has as well.
    """
    return (3.0 if made_from_base else formats.get(target.backend).CONVERT_SECONDS) * (0.5 + 0.5 * weights / 90e6)


def _file_bytes(files: RecipeFiles, target: Target) -> int:
    """Estimate the size of a converted file."""
    source = files.branch.end.source
    sizes = [(shape, math.prod(shape)) for shape in source.tensor_shapes().values()]
    rows = source.config.get("vocab_size")
    table = max((size for shape, size in sizes if len(shape) == 2 and shape[0] == rows), default=0)
    bits = files.recipe.quantize.table_bits if files.recipe.quantize else QuantizeSection().table_bits
    return SCHEMES[target.scheme].file_bytes(table, sum(size for _, size in sizes) - table, bits)
