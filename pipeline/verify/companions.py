"""Judge what ships beside a model file: tokenizer, config, labels, golden rows, signature."""

from pathlib import Path

from pipeline import tasks
from pipeline.backends.signature import Function, Signature
from pipeline.checkpoint.source import TOKENIZER_FILES
from pipeline.errors import ArtifactError
from pipeline.student import golden
from pipeline.student.reference import Reference
from pipeline.text.encoding import Encoder
from pipeline.verify.record import GateResult


def check(
    model: Path, student: Path, signature: Signature, functions: tuple[Function, ...], truth: Reference
) -> list[GateResult]:
    """Compare with the student and with the file itself.

    Args:
        model: the model folder.
        student: the student's folder.
        signature: what the model folder claims.
        functions: what the file says now.
        truth: the reference, which knows labels and padding id from the checkpoint's own config.
    """
    return [
        _gate("companions", _changed_companions(model, student)),
        _gate("golden", _wrong_golden(model, student, truth)),
        _gate("signature", _wrong_signature(signature, functions, truth)),
        _gate("labels", _wrong_labels(model, signature, truth)),
    ]


def _gate(name: str, wrong: str | None) -> GateResult:
    return GateResult(
        name=name, bound=None, found=None, passed=wrong is None, detail=f"{name}: {wrong}" if wrong else ""
    )


def _changed_companions(model: Path, student: Path) -> str | None:
    """Config and tokenizer travel byte for byte."""
    for name in ("config.json", *TOKENIZER_FILES):
        wanted, found = ((folder / name) for folder in (student, model))
        if wanted.is_file() and not (found.is_file() and found.read_bytes() == wanted.read_bytes()):
            return f"{name} is not the student's"
    return None


def _wrong_golden(model: Path, student: Path, truth: Reference) -> str | None:
    """The golden rows are the student's, and the shipped tokenizer alone gives their ids."""
    try:
        wanted, found = golden.read(student), golden.read(model)
    except (OSError, ValueError) as error:
        return f"the golden rows cannot be read: {error}"
    if found.rows != wanted.rows or found.max_length != wanted.max_length or found.task != wanted.task:
        return "golden.json is not of this student"
    try:
        encoder = Encoder.from_folder(model, found.max_length)
    except ArtifactError as error:
        return str(error)
    for row in found.rows:
        try:
            encoded = golden.encode(encoder, row.first, row.second, row.window)
        except IndexError:
            return f"the passage of {row.first[:40]!r} is cut into fewer windows than the student's"
        if list(encoded.ids) != row.input_ids or list(encoded.types) != row.token_type_ids:
            return f"the shipped tokenizer gives other ids for {row.first[:40]!r}"
    return None


def _wrong_signature(signature: Signature, functions: tuple[Function, ...], truth: Reference) -> str | None:
    if signature.functions != functions:
        return "signature.json does not say what the file takes and gives"
    if signature.task != truth.task or signature.output_kind != tasks.get(truth.task).output_kind:
        return f"signature.json says {signature.task}; the reference is of {truth.task}"
    if signature.pad_token_id != truth.pad_token_id:
        return f"padding id {signature.pad_token_id}; the checkpoint's is {truth.pad_token_id}"
    if signature.max_length != truth.max_length:
        return f"the file takes {signature.max_length} tokens; the reference was made for {truth.max_length}"
    return None


def _wrong_labels(model: Path, signature: Signature, truth: Reference) -> str | None:
    wanted = tuple(truth.labels) if truth.labels else None
    if signature.labels != wanted:
        return f"signature.json names {signature.labels}; the checkpoint's logits are {wanted}"
    file = model / "labels.txt"
    listed = tuple(file.read_text(encoding="utf-8").splitlines()) if file.is_file() else None
    return None if listed == wanted else f"labels.txt lists {listed}; the checkpoint's logits are {wanted}"
