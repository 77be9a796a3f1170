"""Judge the files beside a converted file and its claims: tokenizer, golden rows, signature, labels, metadata."""

from collections.abc import Mapping
from pathlib import Path

from pipeline import artifact, formats, tasks
from pipeline.artifact import Manifest
from pipeline.checkpoint.source import TOKENIZER_FILES
from pipeline.convert import stage as convert
from pipeline.errors import ArtifactError, InputError
from pipeline.formats.signature import SIGNATURE, Function, Signature
from pipeline.formats.structure import Structure
from pipeline.schemes import Gates
from pipeline.student import golden
from pipeline.student.golden import GOLDEN
from pipeline.student.reference import Reference
from pipeline.text import binary
from pipeline.text.encoding import Encoder
from pipeline.text.prompts import Prompts
from pipeline.verify.record import GateResult, VerifyRequest


def check(
    model: Path,
    student: Path,
    signature: Signature,
    functions: tuple[Function, ...],
    stored: Structure,
    reference: Reference,
    request: VerifyRequest,
) -> list[GateResult]:
    """Judge the files beside a model file, and its claims, against the recipe, the student and the file itself.

    Args:
        model: the model folder.
        student: the student's folder.
        signature: the signature in the model folder, a claim to check.
        functions: the functions, read from the file now.
        stored: the structure, read from the file now.
        reference: the reference, which knows labels and padding id from the checkpoint's own config.
        request: the target that the file has to be.

    Returns:
        Gates `companions`, `golden`, `signature`, `labels` and `claims`, in that order.
    """
    of_student = artifact.read_manifest(student)
    file = model / signature.file
    said = formats.get(signature.backend).claims(file)
    figures = convert.figures(signature.backend, file, stored)
    return [
        _gate("companions", _changed_companions(model, student) or _stray(model, student, signature)),
        _gate("golden", _wrong_golden(model, student, signature.wanted, request.gates)),
        _gate("signature", _wrong_signature(signature, functions, reference, request, of_student)),
        _gate("labels", _wrong_labels(model, signature, reference)),
        _gate("claims", _wrong_claims(said, artifact.read_manifest(model), figures, signature, request, of_student)),
    ]


def reproduced(model: Path, again: Path) -> GateResult:
    """Judge whether the same conversion gives the same model folder again: equal bytes, golden rows up to rounding."""
    # The manifests hold the hashes of all files; their times differ from run to run.
    first, second = ({row.path: row.sha256 for row in artifact.list_files(folder)} for folder in (model, again))
    others = sorted(path for path in first.keys() | second.keys() if first.get(path) != second.get(path))
    if GOLDEN in others and _equal_golden(model, again):
        others.remove(GOLDEN)
    # ExecuTorch's operations stand in no file, so that a second conversion alone can tell them.
    said, found = (artifact.read_manifest(folder).metrics for folder in (model, again))
    others += [f"the manifest's {name}" for name in ("ops_total", "ops_delegated") if said.get(name) != found.get(name)]
    return _gate("reproduced", f"{others[0]} is not what the same conversion gives once more" if others else None)


def _equal_golden(model: Path, again: Path) -> bool:
    """Return whether golden rows differ only by the rounding of another processor, where the student was made again."""
    try:
        one, other = golden.read(model), golden.read(again)
    except (OSError, ValueError):
        return False
    return one.is_of(other) and (one.min_cosine, one.min_sqnr_db) == (other.min_cosine, other.min_sqnr_db)


def _gate(name: str, wrong: str | None) -> GateResult:
    return GateResult(
        name=name, bound=None, found=None, passed=wrong is None, detail=f"{name}: {wrong}" if wrong else ""
    )


def _changed_companions(model: Path, student: Path) -> str | None:
    """Return which file of config and tokenizer is the first to differ in any byte from the student's, or None."""
    for name in ("config.json", *TOKENIZER_FILES):
        original, copy = student / name, model / name
        if original.is_file() and not (copy.is_file() and copy.read_bytes() == original.read_bytes()):
            return f"{name} is not the student's"
    expected = binary.of((student / "tokenizer.json").read_bytes())
    if expected != ((model / binary.BINARY).read_bytes() if (model / binary.BINARY).is_file() else None):
        return f"{binary.BINARY} is not what tokenizer.json gives"
    return None


def _stray(model: Path, student: Path, signature: Signature) -> str | None:
    """Return which file is the first that belongs to no model folder, so that no gate has read it, or None."""
    beside = [name for name in ("config.json", *TOKENIZER_FILES) if (student / name).is_file()]
    beside += [convert.LABELS] if signature.labels else []
    # Whether it belongs there was asked before.
    known = {signature.file, SIGNATURE, GOLDEN, binary.BINARY, *beside}
    stray = sorted(
        path.name for path in model.iterdir() if path.name not in known and not artifact.is_unlisted(path.name)
    )
    return f"{stray[0]} is nothing that belongs to a model" if stray else None


def _wrong_golden(model: Path, student: Path, prompts: Prompts, gates: Gates) -> str | None:
    """Return how golden rows differ from the student's, or their ids from those of the shipped tokenizer, or None."""
    try:
        original, copy = golden.read(student), golden.read(model)
    except (OSError, ValueError) as error:
        return f"the golden rows cannot be read: {error}"
    if not copy.is_of(original):
        return "golden.json is not of this student"
    tolerances, expected = (copy.min_cosine, copy.min_sqnr_db), (gates.min_worst_cosine, gates.min_sqnr_db)
    if tolerances != expected:
        return f"golden.json allows a cosine and an SQNR of {tolerances}; the gates say {expected}"
    try:
        encoder = Encoder.from_folder(model, copy.max_length)
    except ArtifactError as error:
        return str(error)
    for row in copy.rows:
        try:
            encoded = golden.encode(encoder, row, prompts)
        except InputError:
            return f"golden.json has a row with the prompt {row.prompt!r}, which signature.json does not name"
        except IndexError:
            return f"the passage of {row.first[:40]!r} is cut into fewer windows than the student's"
        if list(encoded.ids) != row.input_ids or list(encoded.types) != row.token_type_ids:
            return f"the shipped tokenizer gives other ids for {row.first[:40]!r}"
    return None


def _wrong_signature(
    signature: Signature,
    functions: tuple[Function, ...],
    reference: Reference,
    request: VerifyRequest,
    of_student: Manifest,
) -> str | None:
    if (signature.backend, signature.scheme) != (request.target.backend, request.target.scheme):
        return f"signature.json says {signature.backend}-{signature.scheme}; asked was {request.target}"
    claimed = signature.model_dump(mode="json")
    for field in ("prompts", "default_prompt", "include_prompt", "activation", "thresholds"):
        said, meant = claimed[field], of_student.metrics[field]
        if said != meant:
            return f"signature.json has {field} {said!r}; the student has {meant!r}"
    parameters = of_student.metrics["parameters"]
    runtime = formats.minimum_runtime(signature.backend, signature.scheme)
    if signature.parameters != parameters:
        return f"signature.json says {signature.parameters} parameters; the student has {parameters}"
    if signature.minimum_runtime != runtime:
        return f"signature.json says that {signature.minimum_runtime} runs it; the file was written for {runtime}"
    if signature.functions != functions:
        return "signature.json does not say what the file takes and gives"
    if signature.task != reference.task or signature.output_kind != tasks.get(reference.task).output_kind:
        return f"signature.json says {signature.task}; the reference is of {reference.task}"
    if signature.pad_token_id != reference.pad_token_id:
        return f"padding id {signature.pad_token_id}; the checkpoint's is {reference.pad_token_id}"
    if signature.max_length != reference.max_length:
        return f"the file takes {signature.max_length} tokens; the reference was made for {reference.max_length}"
    return None


def _wrong_labels(model: Path, signature: Signature, reference: Reference) -> str | None:
    labels = tuple(reference.labels) if reference.labels else None
    if signature.labels != labels:
        return f"signature.json names {signature.labels}; the checkpoint's logits are {labels}"
    file = model / convert.LABELS
    listed = file.read_bytes() if file.is_file() else None
    # The bytes: what Python takes for the end of a line is for an app a part of a name.
    expected = convert.label_lines(labels) if labels else None
    return None if listed == expected else f"{convert.LABELS} holds {_shown(listed)}; it has to be {_shown(expected)}"


def _shown(content: bytes | None) -> str:
    return "nothing" if content is None else repr(content[:200])


def _wrong_claims(
    said: Mapping[str, str],
    made: Manifest,
    figures: Mapping[str, int],
    signature: Signature,
    request: VerifyRequest,
    of_student: Manifest,
) -> str | None:
    """Return the first false claim of the file's own metadata or of its manifest, or None."""
    for name, figure in figures.items():
        claimed = made.metrics.get(name)
        # By type as well: true is 1, and 1.0 is.
        if type(claimed) is not int or claimed != figure:
            return f"the manifest says {name} {claimed!r}; of the file it is {figure}"
    licence = of_student.params["licence"]
    if made.metrics["licence"] != licence:
        return f"the manifest says licence {made.metrics['licence']}; the student's is {licence}"
    expected = convert.metadata(of_student, request.target)
    expected |= {"classes": ",".join(signature.labels)} if signature.labels else {}
    expected["default function"] = signature.functions[-1].name
    for name in sorted(expected.keys() | said.keys()) if said else ():
        if said.get(name) != expected.get(name):
            return f"the file says {name} {said.get(name)!r}; it is {expected.get(name)!r}"
    return None
