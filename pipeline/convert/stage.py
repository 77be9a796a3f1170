"""Convert stage: one target's model folder, everything in it read back or run before it counts as made."""

import resource
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import artifact, formats, tasks
from pipeline.artifact import Artifact, Manifest
from pipeline.checkpoint.parameters import content_digest
from pipeline.checkpoint.source import TOKENIZER_FILES, Source
from pipeline.convert.model import Model
from pipeline.errors import ToolchainError
from pipeline.formats import ConvertRequest, sparsity
from pipeline.formats.signature import SIGNATURE, Signature
from pipeline.formats.structure import Structure
from pipeline.recipe.schema import Recipe
from pipeline.schemes import Gates
from pipeline.student import golden
from pipeline.text import binary

VERSION = 3
LABELS = "labels.txt"
_LARGE = 2048
"""Elements from which on a tensor is worth storing once."""


@dataclass(frozen=True)
class Target:
    """One file to make: a format and a scheme."""

    backend: str
    scheme: str

    def __str__(self) -> str:
        """Return `format-scheme`, the name of the target's folder."""
        return f"{self.backend}-{self.scheme}"


def targets(recipe: Recipe) -> list[Target]:
    """Return a recipe's targets in its order."""
    return [Target(backend, scheme) for backend, section in recipe.targets.items() for scheme in section.schemes]


def order_params(recipe: Recipe, target: Target, source: Source) -> dict[str, Any]:
    """Return the parameters of the key of a model folder, besides the student and the tools."""
    gates = recipe.gates(target.scheme)
    params: dict[str, Any] = {
        "backend": target.backend,
        "backend_version": formats.get(target.backend).VERSION,
        "scheme": target.scheme,
        "task": recipe.task,
        # Both stand in the file, and in no file of the student, whose digest would tell.
        "origin": source.origin,
        "licence": source.licence,
        "lengths": list(formats.get(target.backend).lengths_in_file(recipe.lengths(target.backend))),
        "golden": {"min_worst_cosine": gates.min_worst_cosine, "min_sqnr_db": gates.min_sqnr_db},
    }
    if source.vocab_size >= binary.FROM_TOKENS:
        params["tokenizer_binary"] = binary.VERSION
    if (ios := recipe.minimum_ios(target.backend)) is not None:
        params["minimum_ios"] = ios
    return params


def make(
    student: Artifact,
    target: Target,
    lengths: tuple[int, ...],
    minimum_ios: int | None,
    base: Path | None,
    quantised: Path | None,
    gates: Gates,
    out: Path,
) -> dict[str, Any]:
    """Convert a student, add the files that an app needs, and run the converted file once. Runs in a worker.

    Args:
        student: the student artifact.
        target: format and scheme.
        lengths: ascending, in tokens.
        minimum_ios: the oldest iOS release that has to read the file; None for all but Core ML.
        base: the model folder of the format's base scheme, if the scheme is converted from it.
        quantised: the checkpoint that `pipeline.quantize` made from the student for the scheme, if there is one.
        gates: the target's gates, whose row bounds become the golden rows' tolerance.
        out: the artifact's directory.

    Returns:
        Size, op counts, seconds and peak memory of the conversion.
    """
    backend = formats.get(target.backend)
    student_metrics = student.manifest.metrics
    started = time.perf_counter()
    request = ConvertRequest(
        student=quantised or student.path,
        task=student.manifest.params["task"],
        scheme=target.scheme,
        lengths=lengths,
        minimum_ios=minimum_ios,
        base=base / backend.FILE if base else None,
        metadata=metadata(student.manifest, target),
        labels=tuple(student_metrics["labels"]) if student_metrics["labels"] else None,
    )
    metrics = backend.convert(request, out)
    seconds = time.perf_counter() - started
    signature = _signature(request, target, student_metrics, out)
    (out / SIGNATURE).write_text(signature.model_dump_json(indent=1) + "\n", encoding="utf-8")
    _add_companions(student.path, signature, gates, out)
    stored = backend.structure(out / backend.FILE)
    _check_stored_once(stored, signature)
    metrics |= sparsity.in_file(stored, target.backend)
    _try_once(signature, out)
    metrics |= {
        **figures(target.backend, out / backend.FILE, stored),
        "convert_seconds": round(seconds, 1),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        * (1 if sys.platform == "darwin" else 1024),
        "licence": student.manifest.params["licence"],
    }
    return metrics


def figures(backend: str, file: Path, stored: Structure) -> dict[str, int]:
    """Return the figures in the manifest that can be measured again from the converted file alone.

    Args:
        backend: the format of the file.
        file: the model file or package.
        stored: the structure that was read back from it.

    Returns:
        `file_bytes`; `stored_numbers`, how many numbers the file's constants hold; and the operations where the format
        tells them, see `Backend.operations`.
    """
    numbers = sum(constant.values.size for constant in stored.constants)
    return {"file_bytes": artifact.file_bytes(file), "stored_numbers": numbers, **formats.get(backend).operations(file)}


def metadata(student: Manifest, target: Target) -> dict[str, str]:
    """Return the entries for the format's own metadata; none of them changes from run to run."""
    params = student.params
    origin = params["origin"]
    return {
        "author": origin.split("@")[0],
        "licence": params["licence"] or "not stated by the checkpoint",
        "summary": f"{origin}: {params['task']}, {target.scheme}, converted by PocketBERT",
        "version": student.digest[:12],
        "task": params["task"],
        "scheme": target.scheme,
    }


def _signature(request: ConvertRequest, target: Target, student_metrics: dict[str, Any], out: Path) -> Signature:
    """Read the functions back from the file, and check their outputs against the task's."""
    backend = formats.get(target.backend)
    functions = backend.inspect(out / backend.FILE)
    expected = set(tasks.get(request.task).output_names)
    for function in functions:
        names = {tensor.name for tensor in function.outputs}
        if names != expected:
            raise ToolchainError(
                f"{backend.TITLE} wrote outputs {sorted(names)} in {function.name}; expected were {sorted(expected)}."
            )
    return Signature(
        backend=target.backend,
        scheme=target.scheme,
        task=request.task,
        output_kind=tasks.get(request.task).output_kind,
        file=backend.FILE,
        minimum_runtime=formats.minimum_runtime(target.backend, target.scheme),
        pad_token_id=student_metrics["pad_token_id"],
        labels=request.labels,
        prompts=student_metrics["prompts"],
        default_prompt=student_metrics["default_prompt"],
        include_prompt=student_metrics["include_prompt"],
        activation=student_metrics["activation"],
        thresholds=student_metrics["thresholds"],
        functions=functions,
        parameters=student_metrics["parameters"],
    )


def _add_companions(student: Path, signature: Signature, gates: Gates, out: Path) -> None:
    """Write tokenizer, its binary form where it is large, config, labels and golden rows beside the file."""
    for name in ("config.json", *TOKENIZER_FILES):
        if (student / name).is_file():
            shutil.copyfile(student / name, out / name)
    binary.write(out)
    if signature.labels:
        (out / LABELS).write_bytes(label_lines(signature.labels))
    golden.write_for_target(student, out, gates)


def label_lines(labels: Sequence[str]) -> bytes:
    """Return the content of `labels.txt`: apps split it at line feeds, and at nothing else."""
    return "".join(f"{label}\n" for label in labels).encode()


def _check_stored_once(found: Structure, signature: Signature) -> None:
    """Refuse a file that holds a tensor several times, as a graph does that unrolls ALBERT's shared layer.

    Raises:
        ToolchainError: some are there more than once; the message names them.
    """
    copies: dict[str, list[str]] = {}
    for constant in found.constants:
        # Tables of equal numbers, such as zeros, may well be there twice.
        if constant.values.size >= _LARGE and constant.values.min() < constant.values.max():
            copies.setdefault(f"{constant.values.size} {content_digest(constant.values)}", []).append(constant.name)
    repeated = [names for names in copies.values() if len(names) > 1]
    if repeated:
        stored = sum(constant.values.size for constant in found.constants)
        shown = "; ".join(f"{names[0]} {len(names)} times" for names in repeated[:3])
        raise ToolchainError(
            f"{signature.file} holds {stored / 1e6:.1f} million numbers for {signature.parameters / 1e6:.1f} million "
            f"parameters: {len(repeated)} tensors are stored more than once, {shown}. A shared layer has come apart."
        )


def _try_once(signature: Signature, out: Path) -> None:
    """Load the file and run every function: in its real runtime, or Core ML's in the interpreter."""
    with Model(out) as model:
        row = model.encoder.encode("Does it run?")
        for function in signature.functions:
            length = max(function.min_length, min(len(row), function.max_length))
            if function.fixed:
                length = function.max_length
            if len(row) <= length and not np.isfinite(model.run(row, length=length)).all():
                message = f"{signature.file}: {function.name} gives NaN or infinity on an ordinary sentence."
                raise ToolchainError(message)
