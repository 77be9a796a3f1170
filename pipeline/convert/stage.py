"""Convert stage: one target's model folder, everything in it read back or run before it counts as made."""

import resource
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from pipeline import artifact, formats, tasks
from pipeline.artifact import Artifact, Manifest
from pipeline.checkpoint.parameters import content_digest
from pipeline.checkpoint.source import TOKENIZER_FILES, Source
from pipeline.convert.model import Model
from pipeline.errors import ToolchainError
from pipeline.formats import ConvertRequest, OtherHead, sparsity
from pipeline.formats.signature import HEADS, SIGNATURE, Function, Signature, head_folders
from pipeline.formats.structure import Structure
from pipeline.recipe.schema import Recipe
from pipeline.schemes import Gates
from pipeline.student import golden
from pipeline.text import binary

VERSION = 3 + binary.VERSION
"""A key by the vocabulary's size would change once a trimmed checkpoint is known, and convert everything again."""
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


@dataclass(frozen=True)
class HeadToConvert:
    """Another head that a file gets beside the student's own."""

    name: str
    student: Artifact
    """Its checkpoint, see `pipeline.student.other_head`."""
    gates: Gates
    """The bounds whose row bounds become its golden rows' tolerance."""


def order_params(
    recipe: Recipe, target: Target, source: Source, heads: Mapping[str, Source] = MappingProxyType({})
) -> dict[str, Any]:
    """Return the parameters of the key of a model folder, besides the student, the heads' checkpoints and the tools."""
    of_heads = {name: order_params(recipe.of_head(name), target, head) for name, head in heads.items()}
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
    if (ios := recipe.minimum_ios(target.backend)) is not None:
        params["minimum_ios"] = ios
    return params | ({"heads": of_heads} if of_heads else {})


def make(
    student: Artifact,
    target: Target,
    lengths: tuple[int, ...],
    minimum_ios: int | None,
    base: Path | None,
    quantised: Path | None,
    gates: Gates,
    out: Path,
    heads: Sequence[HeadToConvert] = (),
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
        heads: other heads for the same file.

    Returns:
        Size, op counts, seconds and peak memory of the conversion.
    """
    backend = formats.get(target.backend)
    started = time.perf_counter()
    request = ConvertRequest(
        student=quantised or student.path,
        task=student.manifest.params["task"],
        scheme=target.scheme,
        lengths=lengths,
        minimum_ios=minimum_ios,
        base=base / backend.FILE if base else None,
        metadata=metadata(student.manifest, target),
        labels=_labels(student),
        heads={head.name: OtherHead(head.student.path, head.student.manifest.params["task"]) for head in heads},
    )
    metrics = backend.convert(request, out)
    seconds = time.perf_counter() - started
    read_back = _functions(request, target, out)
    signature = _write_head(target, student, read_back[None], gates, out, tokenizer=True)
    for head in heads:
        place = out / HEADS / head.name
        place.mkdir(parents=True)
        _write_head(target, head.student, read_back[head.name], head.gates, place, tokenizer=False)
    stored = backend.structure(out / backend.FILE)
    _check_stored_once(stored, signature)
    metrics |= sparsity.in_file(stored, target.backend)
    for folder in (out, *head_folders(out).values()):
        _try_once(folder)
    if heads:
        metrics["heads"] = {head.name: head_facts(head.student.manifest) for head in heads}
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


def head_facts(student: Manifest) -> dict[str, Any]:
    """Return the facts on another head that a model folder's manifest states."""
    return {
        "task": student.params["task"],
        "licence": student.params["licence"],
        "own_parameters": student.metrics["own_parameters"],
    }


def _labels(student: Artifact) -> tuple[str, ...] | None:
    labels = student.manifest.metrics["labels"]
    return tuple(labels) if labels else None


def _functions(request: ConvertRequest, target: Target, out: Path) -> dict[str | None, tuple[Function, ...]]:
    """Read each head's functions back from the file, and check their names and outputs; None is the student's own."""
    backend = formats.get(target.backend)
    found = {function.name: function for function in backend.inspect(out / backend.FILE)}
    asked = {head: backend.function_names(request, head) for head, _ in request.every_head()}
    names = sorted(name for some in asked.values() for name in some)
    if sorted(found) != names:
        raise ToolchainError(f"{backend.TITLE} wrote functions {sorted(found)}; expected were {names}.")
    for head, own in request.every_head():
        expected = set(tasks.get(own.task).output_names)
        for function in (found[name] for name in asked[head]):
            outputs = {tensor.name for tensor in function.outputs}
            if outputs != expected:
                raise ToolchainError(
                    f"{backend.TITLE} wrote outputs {sorted(outputs)} in {function.name}; expected were "
                    f"{sorted(expected)}."
                )
    return {head: tuple(found[name] for name in some) for head, some in asked.items()}


def _write_head(
    target: Target, student: Artifact, functions: tuple[Function, ...], gates: Gates, place: Path, *, tokenizer: bool
) -> Signature:
    """Write the signature of a head and the files beside it.

    Args:
        target: the file's format and scheme.
        student: the head's checkpoint.
        functions: read back from the file.
        gates: the head's bounds.
        place: the folder for it: that of the model, or for another head one in it.
        tokenizer: whether the tokenizer goes there too; the model folder has it for all heads.
    """
    facts = student.manifest.metrics
    task = tasks.get(student.manifest.params["task"])
    signature = Signature(
        backend=target.backend,
        scheme=target.scheme,
        task=task.name,
        output_kind=task.output_kind,
        file=formats.get(target.backend).FILE,
        minimum_runtime=formats.minimum_runtime(target.backend, target.scheme),
        pad_token_id=facts["pad_token_id"],
        labels=_labels(student),
        prompts=facts["prompts"],
        default_prompt=facts["default_prompt"],
        include_prompt=facts["include_prompt"],
        activation=facts["activation"],
        thresholds=facts["thresholds"],
        vectors=facts["vectors"],
        functions=functions,
        parameters=facts["parameters"],
    )
    (place / SIGNATURE).write_text(signature.model_dump_json(indent=1) + "\n", encoding="utf-8")
    for name in beside_head(student.path, tokenizer=tokenizer):
        shutil.copyfile(student.path / name, place / name)
    if tokenizer:
        binary.write(place)
    if signature.labels:
        (place / LABELS).write_bytes(label_lines(signature.labels))
    golden.write_for_target(student.path, place, gates)
    return signature


def beside_head(student: Path, *, tokenizer: bool) -> list[str]:
    """Return the names of the files that the folder of a head has as the head's checkpoint has them."""
    names = ("config.json", *(TOKENIZER_FILES if tokenizer else ()))
    return [name for name in names if (student / name).is_file()]


def label_lines(labels: Sequence[str]) -> bytes:
    """Return the content of `labels.txt`: apps split it at line feeds, and at nothing else."""
    return "".join(f"{label}\n" for label in labels).encode()


def repeated(found: Structure) -> list[list[str]]:
    """Return the names of large constants that a file holds several times, those of equal ones together."""
    copies: dict[str, list[str]] = {}
    for constant in found.constants:
        # Tables of equal numbers, such as zeros, may well be there twice.
        if constant.values.size >= _LARGE and constant.values.min() < constant.values.max():
            copies.setdefault(f"{constant.values.size} {content_digest(constant.values)}", []).append(constant.name)
    return [names for names in copies.values() if len(names) > 1]


def _check_stored_once(found: Structure, signature: Signature) -> None:
    """Refuse a file that holds a tensor several times, as a graph does that unrolls ALBERT's shared layer.

    Raises:
        ToolchainError: some are there more than once; the message names them.
    """
    copies = repeated(found)
    if copies:
        stored = sum(constant.values.size for constant in found.constants)
        shown = "; ".join(f"{names[0]} {len(names)} times" for names in copies[:3])
        raise ToolchainError(
            f"{signature.file} holds {stored / 1e6:.1f} million numbers for {signature.parameters / 1e6:.1f} million "
            f"parameters: {len(copies)} tensors are stored more than once, {shown}. A shared layer has come apart, or "
            "the encoder of several heads."
        )


def _try_once(folder: Path) -> None:
    """Load the file and run every function of a head: in its real runtime, or Core ML's in the interpreter."""
    with Model(folder) as model:
        signature = model.signature
        row = model.encoder.encode("Does it run?")
        for function in signature.functions:
            length = max(function.min_length, min(len(row), function.max_length))
            if function.fixed:
                length = function.max_length
            if len(row) <= length and not np.isfinite(model.run(row, length=length)).all():
                message = f"{signature.file}: {function.name} gives NaN or infinity on an ordinary sentence."
                raise ToolchainError(message)
