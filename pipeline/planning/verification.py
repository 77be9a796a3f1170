"""Nodes of the verdicts on converted files."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pipeline import formats, tasks
from pipeline.convert.stage import Target
from pipeline.execution.node import Estimate, Input, Node, versions
from pipeline.metrics import scoring
from pipeline.planning.branches import Branch
from pipeline.planning.conversion import convert_again_node, quantise_request
from pipeline.planning.request import BY_HEAD, RecipeFiles, by_head
from pipeline.planning.students import reference_nodes
from pipeline.quantize import stage as quantize
from pipeline.schemes import Gates
from pipeline.student import reference
from pipeline.verify import stage as verify


def verify_node(files: RecipeFiles, target: Target) -> Node:
    """Return the node of the verdict on one file."""
    recipe, backend = files.recipe, formats.get(target.backend)
    assert files.student
    quantised = files.models[target].inputs.get("quantised")
    request = verify.VerifyRequest(
        target,
        recipe.gates(target.scheme),
        random_weights=recipe.student.random_weights,
        thorough=files.thorough,
        checkpoint=quantise_request(files, target.scheme) if quantised else quantize.QuantiseRequest(),
    )
    params = {
        "gates": request.gates.model_dump(),
        "random_weights": request.random_weights,
        "thorough": request.thorough,
        "checkpoint": asdict(request.checkpoint),
        "evaluators": [evaluator.name for evaluator in backend.evaluators()],
        "metrics": _metric_versions(files.branch),
    }
    longest = recipe.lengths(target.backend)[-1]
    heads = {
        name: replace(request, gates=_gates_of_head(branch, target)) for name, branch in files.branch.heads.items()
    }
    if heads:
        params["heads"] = {
            name: {"gates": of_head.gates.model_dump(), "metrics": _metric_versions(files.branch.heads[name])}
            for name, of_head in heads.items()
        }
    references = reference_nodes(files, longest)
    again = {"again": convert_again_node(files, target)} if files.thorough else {}
    return Node(
        recipe=recipe.name,
        name=f"verify {target}",
        place=f"{target}/parity",
        stage="verify",
        version=verify.VERSION,
        params=params,
        inputs={
            "model": files.models[target],
            "student": files.student,
            "reference": references.pop(None),
            **({"quantised": quantised} if quantised else {}),
            **again,
            **by_head(files.heads),
            **{_REFERENCE_BY_HEAD.format(name): node for name, node in references.items()},
        },
        tools=versions(backend.DISTRIBUTIONS[0]),
        function=verify_file,
        arguments=(
            Input("model"),
            Input("student"),
            Input("quantised") if quantised else None,
            Input("reference"),
            Input("again") if again else None,
            request,
            [
                (name, Input(BY_HEAD.format(name)), Input(_REFERENCE_BY_HEAD.format(name)), of_head)
                for name, of_head in heads.items()
            ],
        ),
        estimate=Estimate(
            20 * (1 + len(heads)),
            200_000,
            kind=f"{target} thorough" if files.thorough else str(target),
            size_bytes=files.branch.end.source.weights_bytes,
        ),
        worker=f"verify-{target.backend}",
        threads=1,
        when_it_dies=record_crash,
    )


_REFERENCE_BY_HEAD = "reference of {}"


_HeadInputs = Sequence[tuple[str, Path, Path, verify.VerifyRequest]]


def _metric_versions(branch: Branch) -> dict[str, int]:
    """Return the versions of the metrics by which a checkpoint's datasets are scored."""
    usable, _ = reference.chosen_datasets(tasks.get(branch.recipe.task), branch.datasets)
    return {dataset.metric: scoring.METRICS[dataset.metric].version for dataset in usable}


def _gates_of_head(branch: Branch, target: Target) -> Gates:
    """Return the bounds of another head; the file's size is judged once, with the student's own."""
    return branch.recipe.gates(target.scheme).model_copy(update={"max_bytes_per_parameter": None})


def verify_file(
    model: Path,
    laid_out: Path,
    quantised: Path | None,
    reference_folder: Path,
    again: Path | None,
    request: verify.VerifyRequest,
    heads: _HeadInputs,
    out: Path,
) -> dict[str, Any]:
    """Judge one target; the function of a `verify` node. See `verify.make`."""
    others = [verify.HeadToVerify(*one) for one in heads]
    return verify.make(model, laid_out, quantised, reference_folder, again, request, out, others)


def record_crash(
    crash: str,
    model: Path,
    laid_out: Path,
    quantised: Path | None,
    reference_folder: Path,
    again: Path | None,
    request: verify.VerifyRequest,
    heads: _HeadInputs,
    out: Path,
) -> dict[str, Any]:
    """Judge a target whose file took its process down. See `verify.record_crash`."""
    others = [verify.HeadToVerify(*one) for one in heads]
    return verify.record_crash(crash, model, laid_out, quantised, reference_folder, again, request, out, others)
