"""Judge the files beside a converted file and its claims: tokenizer, golden rows, signature, labels, metadata."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline import artifact, formats, tasks
from pipeline.artifact import Manifest
from pipeline.convert import stage as convert
from pipeline.errors import ArtifactError, InputError
from pipeline.formats.signature import HEADS, SIGNATURE, Function, Signature, head_folders, root
from pipeline.formats.signature import read as read_signature
from pipeline.formats.structure import Structure
from pipeline.schemes import Gates
from pipeline.student import golden
from pipeline.student.golden import GOLDEN
from pipeline.student.reference import Reference
from pipeline.text import binary
from pipeline.text.encoding import Encoder
from pipeline.text.prompts import Prompts
from pipeline.verify.record import GateResult, HeadToVerify, VerifyRequest


def check(
    model: Path,
    student: Path,
    signature: Signature,
    functions: tuple[Function, ...],
    stored: Structure,
    reference: Reference,
    request: VerifyRequest,
    heads: Sequence[HeadToVerify] = (),
) -> list[GateResult]:
    """Judge the files beside a model file, and its claims, against the recipe, the student and the file itself.

    Args:
        model: the model folder, or that of another head in it.
        student: the student's folder, or that of the head's checkpoint.
        signature: the signature in the folder, a claim to check.
        functions: those of the head, read from the file now.
        stored: the structure of all of the file, read from it now.
        reference: the reference, which knows labels and padding id from the checkpoint's own config.
        request: the target that the file has to be.
        heads: the other heads that the file has to have, if `model` is the model folder.

    Returns:
        Gates `companions`, `golden`, `signature` and `labels`; then, of the model folder, `claims`, and `heads` if the
        file has several.
    """
    of_student = artifact.read_manifest(student)
    gates = [
        _gate("companions", _changed_companions(model, student) or _stray(model, student, signature, heads)),
        _gate("golden", _wrong_golden(model, student, signature.wanted, request.gates)),
        _gate("signature", _wrong_signature(signature, functions, reference, request, of_student)),
        _gate("labels", _wrong_labels(model, signature, reference)),
    ]
    if root(model) != model:
        return gates
    file = model / signature.file
    said = formats.get(signature.backend).claims(file)
    figures = convert.figures(signature.backend, file, stored)
    made = artifact.read_manifest(model)
    gates.append(_gate("claims", _wrong_claims(said, made, figures, signature, request, of_student)))
    if heads:
        gates.append(_gate("heads", _wrong_heads(model, signature, stored, made, heads)))
    return gates


def reproduced(model: Path, again: Path) -> GateResult:
    """Judge whether the same conversion gives the same model folder again: equal bytes, golden rows up to rounding."""
    # The manifests hold the hashes of all files; their times differ from run to run.
    first, second = ({row.path: row.sha256 for row in artifact.list_files(folder)} for folder in (model, again))
    others = sorted(path for path in first.keys() | second.keys() if first.get(path) != second.get(path))
    goldens = {folder.relative_to(model) / GOLDEN for folder in (model, *head_folders(model).values())}
    for name in [name for name in others if Path(name) in goldens]:
        if _equal_golden((model / name).parent, (again / name).parent):
            others.remove(name)
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
    tokenizer = root(model) == model
    for name in convert.beside_head(student, tokenizer=tokenizer):
        copy = model / name
        if not (copy.is_file() and copy.read_bytes() == (student / name).read_bytes()):
            return f"{name} is not the student's"
    expected = binary.of((student / "tokenizer.json").read_bytes()) if tokenizer else None
    if expected != ((model / binary.BINARY).read_bytes() if (model / binary.BINARY).is_file() else None):
        return f"{binary.BINARY} is not what tokenizer.json gives"
    return None


def _stray(model: Path, student: Path, signature: Signature, heads: Sequence[HeadToVerify]) -> str | None:
    """Return which file is the first that belongs to no model folder, so that no gate has read it, or None."""
    is_root = root(model) == model
    known = {SIGNATURE, GOLDEN, *convert.beside_head(student, tokenizer=is_root)}
    # Whether the tokenizer's binary form belongs there was asked before.
    known |= {signature.file, binary.BINARY} if is_root else set()
    known |= {convert.LABELS} if signature.labels else set()
    known |= {HEADS} if heads else set()
    found = [path.name for path in model.iterdir() if path.name not in known and not artifact.is_unlisted(path.name)]
    names = {head.name for head in heads}
    found += [f"{HEADS}/{path.name}" for path in (model / HEADS).glob("*") if heads and path.name not in names]
    return f"{min(found)} is nothing that belongs to a model" if found else None


def _wrong_heads(
    model: Path, signature: Signature, stored: Structure, made: Manifest, heads: Sequence[HeadToVerify]
) -> str | None:
    """Return what of a file with several heads is no head's or of several, stored twice, or claimed falsely, or None.

    Each head's own gates look at its functions alone, so nothing else may be in the file.
    """
    of_head = {head.name: read_signature(model / HEADS / head.name) for head in heads}
    named = [function.name for one in (signature, *of_head.values()) for function in one.functions]
    has = [function.name for function in formats.get(signature.backend).inspect(model / signature.file)]
    if sorted(named) != sorted(has):
        return f"the signatures of its heads name the functions {sorted(named)}, and the file has {sorted(has)}"
    if len(stored.uses) != len(has):
        return f"the file has {len(stored.uses)} graphs that read constants, for {len(has)} functions"
    copies = convert.repeated(stored)
    if copies:
        return f"{copies[0][0]} is stored {len(copies[0])} times; heads share what is equal"
    facts = {head.name: convert.head_facts(artifact.read_manifest(head.student)) for head in heads}
    if made.metrics.get("heads") != facts:
        return f"the manifest says of them {made.metrics.get('heads')}; it is {facts}"
    return None


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
        encoder = Encoder.from_folder(root(model), copy.max_length)
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
    for field in ("prompts", "default_prompt", "include_prompt", "activation", "thresholds", "vectors"):
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
