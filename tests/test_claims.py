"""What is said of a file is measured again, and read as strictly as an app's parser reads it."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TinyLine
from damage import edit_coreml

from pipeline import artifact, formats, strict
from pipeline.artifact import MANIFEST, Manifest
from pipeline.convert.stage import Target
from pipeline.errors import ArtifactError
from pipeline.formats import coreml, signature
from pipeline.formats.coreml.convert import SPECIFICATION
from pipeline.formats.signature import SIGNATURE
from pipeline.schemes import SCHEMES
from pipeline.student import golden, reference
from pipeline.student.golden import GOLDEN
from pipeline.verify import companions
from pipeline.verify import stage as verify
from pipeline.verify.record import GateResult, VerifyRequest

LABELS = ("no", "perhaps so", "yes")


# --- labels ------------------------------------------------------------------------------------------------------


@pytest.fixture
def labelled(tiny_line: TinyLine, tmp_path: Path) -> tuple[Path, Any, Any]:
    """A model folder with labels.txt, and a signature and a reference that name the same labels."""
    folder = tiny_line.folder / "litert-fp32" / "model"
    claimed = signature.read(folder)
    known = replace(reference.read(tiny_line.folder / f"reference-{claimed.max_length}"), labels=list(LABELS))
    (tmp_path / "labels.txt").write_bytes(b"no\nperhaps so\nyes\n")
    return tmp_path, claimed.model_copy(update={"labels": LABELS}), known


def test_labels_are_what_convert_writes(labelled: tuple[Path, Any, Any]) -> None:
    assert companions._wrong_labels(*labelled) is None


@pytest.mark.parametrize("end", ["\r\n", "\r", "\u2028", "\f", "\x85", "\v", "\n\n"])
def test_labels_that_an_app_would_split_elsewhere_are_named(end: str, labelled: tuple[Path, Any, Any]) -> None:
    (labelled[0] / "labels.txt").write_bytes("".join(f"{label}{end}" for label in LABELS).encode())
    assert "labels.txt holds" in str(companions._wrong_labels(*labelled))


def test_a_last_label_without_its_end_and_a_mark_before_the_first_are_named(labelled: tuple[Path, Any, Any]) -> None:
    content = (labelled[0] / "labels.txt").read_bytes()
    for wrong in (content[:-1], b"\xef\xbb\xbf" + content):
        (labelled[0] / "labels.txt").write_bytes(wrong)
        assert "labels.txt holds" in str(companions._wrong_labels(*labelled))


# --- figures of the manifest -------------------------------------------------------------------------------------


def model_of(line: TinyLine, name: str, **metrics: Any) -> Path:
    """Return a model folder whose manifest says something else of the file."""
    folder = line.folder / name / "model"
    manifest = artifact.read_manifest(folder)
    edited = manifest.model_copy(update={"metrics": manifest.metrics | metrics})
    (folder / MANIFEST).unlink()
    (folder / MANIFEST).write_text(edited.model_dump_json(), encoding="utf-8")
    return folder


def beside(line: TinyLine, name: str) -> dict[str, GateResult]:
    folder = line.folder / name / "model"
    claimed = signature.read(folder)
    file, backend = folder / claimed.file, formats.get(claimed.backend)
    known = reference.read(line.folder / f"reference-{claimed.max_length}")
    asked = VerifyRequest(Target(claimed.backend, claimed.scheme), bounds(claimed.scheme), random_weights=True)
    functions, stored = backend.inspect(file), backend.structure(file)
    gates = companions.check(folder, line.folder / "student", claimed, functions, stored, known, asked)
    return {gate.name: gate for gate in gates}


def bounds(scheme: str) -> Any:
    return SCHEMES[scheme].gates["embedding"]


@pytest.mark.parametrize("name", ["litert-fp32", "executorch-fp32"])
def test_a_manifest_says_what_is_measured_again(name: str, tiny_line: TinyLine) -> None:
    assert beside(tiny_line, name)["claims"].passed


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        *(("litert-fp32", figure) for figure in ("file_bytes", "stored_numbers", "ops_total", "ops_delegated")),
        *(("executorch-fp32", figure) for figure in ("file_bytes", "stored_numbers")),
    ],
)
def test_a_figure_of_the_manifest_that_is_not_the_file_s_fails_the_claims(
    name: str, figure: str, tiny_line: TinyLine, tmp_path: Path
) -> None:
    line = tiny_line.copy(tmp_path)
    right = artifact.read_manifest(line.folder / name / "model").metrics[figure]
    for wrong in (right + 1, float(right), str(right), None):
        model_of(line, name, **{figure: wrong})
        gate = beside(line, name)["claims"]
        assert not gate.passed
        assert f"the manifest says {figure} {wrong!r}; of the file it is {right}" in gate.detail


def test_the_size_that_is_judged_is_measured(tiny_line: TinyLine, tmp_path: Path) -> None:
    line = tiny_line.copy(tmp_path)
    model = model_of(line, "litert-fp32", file_bytes=1000)
    with (model / "model.tflite").open("r+b") as file:
        file.truncate(60_000_000)
    reference = line.folder / f"reference-{signature.read(model).max_length}"
    asked = VerifyRequest(Target("litert", "fp32"), bounds("fp32"), random_weights=True)
    (tmp_path / "out").mkdir()
    verify.record_crash("it went down", model, line.folder / "student", None, reference, None, asked, tmp_path / "out")
    parity = verify.read_parity(tmp_path / "out")
    assert parity.file_bytes == 60_000_000
    (size,) = [gate for gate in parity.gates if gate.name == "max_bytes_per_parameter"]
    assert not size.passed


def test_the_size_of_a_package_is_that_of_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "package" / "inner").mkdir(parents=True)
    for name, size in (("a", 3), ("inner/b", 4), ("inner/.DS_Store", 5)):
        (tmp_path / "package" / name).write_bytes(bytes(size))
    assert artifact.file_bytes(tmp_path / "package") == 7


# --- strict reading ----------------------------------------------------------------------------------------------

Edit = Callable[[str], str]


def number(name: str, form: str) -> Edit:
    """Rewrite a key's first whole number: `#` stands for it."""
    return lambda text: re.sub(rf'("{name}": ?)(\d+)', lambda m: m[1] + form.replace("#", m[2]), text, count=1)


def once_more(name: str) -> Edit:
    return lambda text: re.sub(rf'("{name}": ?[^,\[{{]+,)', r"\1 \1", text, count=1)


def without(name: str) -> Edit:
    return lambda text: re.sub(rf'"{name}": ?[^,\[{{]+,', "", text, count=1)


WRONG: dict[str, tuple[str, Edit, str]] = {
    "signature, text for a number": (SIGNATURE, number("pad_token_id", '"#"'), "pad_token_id: .*integer"),
    "signature, fraction": (SIGNATURE, number("parameters", "#.0"), "parameters: .*integer"),
    "signature, false": (SIGNATURE, number("pad_token_id", "false"), "pad_token_id: .*integer"),
    "signature, true in a function": (SIGNATURE, number("min_length", "true"), "min_length: .*integer"),
    "signature, true for a version": (SIGNATURE, number("schema_version", "true"), "schema_version: True is not"),
    "signature, fraction of a version": (SIGNATURE, number("schema_version", "1.0"), "schema_version: 1.0 is not"),
    "signature, next version": (SIGNATURE, number("schema_version", "2"), "schema_version: Input should be 1"),
    "signature, no version": (SIGNATURE, without("schema_version"), "schema_version: it is missing"),
    "signature, key twice": (SIGNATURE, once_more("pad_token_id"), "pad_token_id: the key is there more than once"),
    "signature, key twice inside": (SIGNATURE, once_more("dtype"), "dtype: the key is there more than once"),
    "golden, text for a number": (GOLDEN, number("max_length", '"#"'), "max_length: .*integer"),
    "golden, text for a tolerance": (
        GOLDEN,
        lambda t: re.sub(r'(min_cosine": )([\d.]+)', r'\1"\2"', t),
        "valid number",
    ),
    "golden, true in a row": (GOLDEN, lambda t: re.sub(r"(input_ids.: \[\s*)\d+", r"\1true", t, count=1), "integer"),
    "golden, NaN": (GOLDEN, lambda t: re.sub(r"(output.: \[\s*)[^,]+", r"\1NaN", t, count=1), "NaN is no number"),
    "golden, key twice": (GOLDEN, once_more("first"), "first: the key is there more than once"),
    "golden, no window": (GOLDEN, without("window"), "window: Field required"),
    "manifest, text for a number": (MANIFEST, number("bytes", '"#"'), "bytes: .*integer"),
    "manifest, true for a version": (MANIFEST, number("schema_version", "true"), "schema_version: True is not"),
    "manifest, key twice": (MANIFEST, once_more("stage"), "stage: the key is there more than once"),
    "manifest, key of a metric twice": (
        MANIFEST,
        once_more("file_bytes"),
        "file_bytes: the key is there more",
    ),
}


def read(folder: Path, name: str) -> Any:
    if name == GOLDEN:
        return golden.read(folder)
    return signature.read(folder) if name == SIGNATURE else artifact.read_manifest(folder)


@pytest.mark.parametrize("case", WRONG)
def test_what_an_app_s_parser_refuses_is_refused(case: str, tiny_line: TinyLine, tmp_path: Path) -> None:
    name, edit, words = WRONG[case]
    text = (tiny_line.folder / "litert-int8_dynamic" / "model" / name).read_text(encoding="utf-8")
    (tmp_path / name).write_text(text, encoding="utf-8")
    read(tmp_path, name)
    edited = edit(text)
    assert edited != text
    (tmp_path / name).write_text(edited, encoding="utf-8")
    with pytest.raises((ArtifactError, ValueError), match=words) as caught:
        read(tmp_path, name)
    assert "\n" not in str(caught.value)


def test_a_whole_number_may_stand_for_a_fraction(tiny_line: TinyLine, tmp_path: Path) -> None:
    text = (tiny_line.folder / "litert-fp32" / "model" / GOLDEN).read_text(encoding="utf-8")
    (tmp_path / GOLDEN).write_text(re.sub(r"(output.: \[\s*)[^,]+", r"\g<1>1", text, count=1), encoding="utf-8")
    assert golden.read(tmp_path).rows[0].output[0] == 1.0


# --- golden rows -------------------------------------------------------------------------------------------------


def edited(rows: Any, **fields: Any) -> Any:
    """Return golden rows whose second row has other fields."""
    first, second, *rest = rows.rows
    return rows.model_copy(update={"rows": [first, second.model_copy(update=fields), *rest]})


def test_golden_rows_may_differ_from_the_student_s_by_what_another_processor_rounds(tiny_line: TinyLine) -> None:
    student = golden.read(tiny_line.folder / "student")
    output = np.array(student.rows[1].output)
    size = float(np.sqrt(np.mean(np.square(output))))
    shipped = golden.read(tiny_line.folder / "litert-fp32" / "model")
    assert shipped.is_of(student)
    # Ten times what was measured between processors; then numbers of half precision, one that is another, none at all.
    assert edited(shipped, output=[*(output + 1.2e-4 * size)]).is_of(student)
    others = np.array(shipped.rows[2].output)
    for wrong in (output.astype(np.float16), [output[0] + 5e-3 * size, *output[1:]], [np.nan, *output[1:]], others):
        assert not edited(shipped, output=[*map(float, wrong)]).is_of(student)


def test_a_single_number_near_zero_is_held_to_the_size_of_all_rows(tiny_line: TinyLine) -> None:
    """A regression row of 1e-4 among ones of .1 moved by 2e-6 on another processor."""
    rows = golden.read(tiny_line.folder / "student")
    student = rows.model_copy(update={"rows": [row.model_copy(update={"output": [0.1]}) for row in rows.rows]})
    native, plainest = edited(student, output=[1.00017e-4]), edited(student, output=[0.99838e-4])
    assert native.is_of(plainest)
    assert not native.is_of(edited(student, output=[0.0]))


def test_golden_rows_of_other_texts_or_ids_are_another_student_s(tiny_line: TinyLine) -> None:
    student = golden.read(tiny_line.folder / "student")
    row = student.rows[1]
    for wrong in ({"first": "else"}, {"input_ids": [*row.input_ids[:-1], 5]}, {"output": row.output[:-1]}):
        assert not edited(student, **wrong).is_of(student)
    for fields in ({"rows": student.rows[:-1]}, {"max_length": 7}, {"task": "regression"}):
        assert not student.model_copy(update=fields).is_of(student)


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"3", b"{", b"[" * 100_000, "{}".encode("utf-16")])
def test_noise_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        strict.read(Manifest, content)
    assert type(caught.value) is ValueError or isinstance(caught.value, (UnicodeDecodeError, json.JSONDecodeError))


@pytest.mark.parametrize(("value", "claimed"), [("9.0", False), ("9.0, checked by Apple", True)])
def test_what_coremltools_says_of_itself_is_no_claim_of_ours(
    value: str, claimed: bool, converted: Callable[..., Path], tmp_path: Path
) -> None:
    """It stands in every package of a single length."""
    package = Path(shutil.copytree(converted("coreml-int8_weight_only") / coreml.FILE, tmp_path / coreml.FILE))
    (package / SPECIFICATION).chmod(0o644)
    name = "com.github.apple.coremltools.version"
    edit_coreml(package, lambda spec: spec.description.metadata.userDefined.update({name: value}))
    assert (name in coreml.claims(package)) is claimed
