"""Faults in what is claimed: signature, golden rows, licence, metadata, stray files, and small numbers in the file.

`plant(folder)` edits a model folder before its manifest is written, and may return metrics for it, as in
`companion_faults`; `plant(planting)` of level "file" edits the file, as in `file_faults`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from faults.companion_faults import _edit_json, _signature
from faults.constants import NotFound
from faults.fault import INT8, Cells, Fault
from faults.file_faults import Planting
from faults.students import LENGTHS, Student
from pipeline.formats.coreml.convert import METADATA_PREFIX
from pipeline.student.golden import GOLDEN

_CORE_ML_MODEL = "Data/com.apple.CoreML/model.mlmodel"

# --- signature and golden rows -----------------------------------------------------------------------------------


def _set(**fields: Any) -> Callable[[Path], None]:
    return _signature(lambda signature: signature.update(fields))


def one_parameter_more(signature: dict[str, Any]) -> None:
    signature["parameters"] += 1


def scheme_of_another_file(signature: dict[str, Any]) -> None:
    others = {"int8_dynamic": "int8_weight_only", "int8_weight_only": "fp32"}
    signature["scheme"] = others[signature["scheme"]]


def output_renamed(signature: dict[str, Any]) -> None:
    for function in signature["functions"]:
        function["outputs"][0]["name"] = "embedding"


def input_of_64_bits(signature: dict[str, Any]) -> None:
    for function in signature["functions"]:
        function["inputs"][0]["dtype"] = "int64"


def shortest_length_left_out(signature: dict[str, Any]) -> None:
    if len(signature["functions"]) > 1:
        del signature["functions"][0]
    else:
        signature["functions"][0]["min_length"] = LENGTHS[0]


def _golden(edit: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    return lambda folder: _edit_json(folder / GOLDEN, edit)


def _tolerance(**fields: Any) -> Callable[[Path], None]:
    return _golden(lambda golden: golden.update(fields))


def golden_rows_left_out(golden: dict[str, Any]) -> None:
    del golden["rows"][1:]


def golden_ids_edited(golden: dict[str, Any]) -> None:
    golden["rows"][0]["input_ids"][1] += 1


# --- beside ------------------------------------------------------------------------------------------------------


def licence_of_another(folder: Path) -> dict[str, Any]:
    return {"licence": "CC-BY-NC-4.0"}


def _stray(name: str, content: str) -> Callable[[Path], None]:
    def plant(folder: Path) -> None:
        (folder / name).write_text(content, encoding="utf-8")

    return plant


def line_too_many(folder: Path) -> None:
    with (folder / "labels.txt").open("a", encoding="utf-8") as file:
        file.write("other\n")


def config_of_more_layers(folder: Path) -> None:
    _edit_json(folder / "config.json", lambda config: config.update(num_hidden_layers=12))


def added_token(folder: Path) -> None:
    def edit(tokenizer: dict[str, Any]) -> None:
        first = dict(tokenizer["added_tokens"][0])
        tokenizer["added_tokens"].append(first | {"id": 2000, "content": "ing", "special": False})

    _edit_json(folder / "tokenizer.json", edit)


# --- in the file -------------------------------------------------------------------------------------------------


def _package(edit: Callable[[Any], None]) -> Callable[[Planting], None]:
    """Edit the description of a Core ML package."""

    def plant(planting: Planting) -> None:
        from coremltools.proto import Model_pb2

        file = planting.file / _CORE_ML_MODEL
        specification = Model_pb2.Model()
        specification.ParseFromString(file.read_bytes())
        edit(specification.description)
        file.write_bytes(specification.SerializeToString())

    return plant


def package_licence(description: Any) -> None:
    description.metadata.license = "MIT"


def package_version(description: Any) -> None:
    description.metadata.versionString = "9.9"


def package_author(description: Any) -> None:
    description.metadata.author = "somebody else"


def _own_field(description: Any) -> str:
    """Return a field that we wrote; coremltools has some of its own there."""
    return next(name for name in sorted(description.metadata.userDefined) if name.startswith(METADATA_PREFIX))


def package_field(description: Any) -> None:
    description.metadata.userDefined[_own_field(description)] += " and more"


def package_field_left_out(description: Any) -> None:
    del description.metadata.userDefined[_own_field(description)]


def default_is_the_shorter(description: Any) -> None:
    names = sorted(function.name for function in description.functions)
    description.defaultFunctionName = next(name for name in names if name != description.defaultFunctionName)


def _number(old: Callable[[Planting], float], new: Callable[[float], float]) -> Callable[[Planting], None]:
    """Overwrite a single float wherever the model has its four bytes."""

    def plant(planting: Planting) -> None:
        before = float(old(planting))
        files = [planting.file] if planting.file.is_file() else [p for p in planting.file.rglob("*") if p.is_file()]
        wanted, other = np.float32(before).tobytes(), np.float32(new(before)).tobytes()
        having = [file for file in files if wanted in file.read_bytes()]
        if not having:
            raise NotFound(f"{planting.file.name} holds no float32 {before}")
        for file in having:
            file.write_bytes(file.read_bytes().replace(wanted, other))

    return plant


def _head_bias(planting: Planting) -> float:
    return float(planting.tensor("classifier.bias")[0])


def dynamic_under_weight_only_name(planting: Planting) -> None:
    planting.take(planting.sibling("int8_dynamic"))


# --- the catalogue -----------------------------------------------------------------------------------------------

_CLASSES, _VALUE = Student(task="classification"), Student(task="regression")
_NO_METADATA = {name: "the format carries no metadata of ours" for name in ("litert", "executorch")}
_BESIDE: tuple[tuple[str, str, Any], ...] = (
    ("scheme_of_another_file", "signature.json names another scheme", _signature(scheme_of_another_file)),
    ("one_parameter_more", "signature.json counts one parameter more", _signature(one_parameter_more)),
    ("any_runtime", "signature.json says that version 0.0.1 runs the file", _set(minimum_runtime="0.0.1")),
    ("another_task", "signature.json says classification", _set(task="classification")),
    ("another_output_kind", "signature.json says that the outputs are logits", _set(output_kind="logits")),
    ("labels_invented", "signature.json has labels where the task has none", _set(labels=["no", "yes"])),
    ("output_renamed", "signature.json has another name for the output", _signature(output_renamed)),
    ("input_of_64_bits", "signature.json says that an input is int64", _signature(input_of_64_bits)),
    ("shortest_length_left_out", "signature.json leaves the shorter length out", _signature(shortest_length_left_out)),
    ("golden_allows_anything", "golden.json asks for a cosine of -1", _tolerance(min_cosine=-1.0)),
    ("golden_asks_nothing", "golden.json has no tolerances", _tolerance(min_cosine=None, min_sqnr_db=None)),
    ("golden_beyond_reach", "golden.json asks for a cosine of 2", _tolerance(min_cosine=2.0)),
    ("golden_a_little_looser", "golden.json allows 0.01 more", _tolerance(min_cosine=0.95)),
    ("golden_of_another_task", "golden.json is of another task", _tolerance(task="regression")),
    ("golden_of_another_length", "golden.json cuts at another length", _tolerance(max_length=LENGTHS[0])),
    ("golden_rows_left_out", "golden.json has one row", _golden(golden_rows_left_out)),
    ("golden_ids_edited", "a golden row has another id", _golden(golden_ids_edited)),
    ("licence_of_another", "the manifest has another licence", licence_of_another),
    ("vocabulary_beside", "a vocab.txt that the student lacks lies beside", _stray("vocab.txt", "[PAD]\n[UNK]\n")),
    ("model_beside", "an older model lies beside", _stray("model_old.bin", "nothing")),
    ("notes_beside", "a note lies beside", _stray("notes.txt", "do not ship")),
    ("labels_beside", "labels.txt lies beside a model without labels", _stray("labels.txt", "no\nyes\n")),
    ("config_of_more_layers", "config.json counts 12 layers", config_of_more_layers),
    ("added_token", "the tokenizer has a token more, which cuts words", added_token),
)  # fmt: skip
_PACKAGES = (
    ("package_licence", "the package's licence is another", _package(package_licence)),
    ("package_version", "the package's version is another", _package(package_version)),
    ("package_author", "the package has another author", _package(package_author)),
    ("package_field", "a field of the package's metadata was edited", _package(package_field)),
    ("package_field_left_out", "a field of the package's metadata is missing", _package(package_field_left_out)),
    ("default_is_the_shorter", "the package runs the shorter length by default", _package(default_is_the_shorter)),
)
# Half precision has two bytes for a number, which occur anywhere.
_NUMBERS: Cells = {"litert": INT8["litert"], "coreml": ("fp32",), "executorch": INT8["executorch"]}
_WEIGHT_ONLY: Cells = {name: ("int8_weight_only",) for name in ("litert", "executorch")}


def _faults() -> Iterator[Fault]:
    for name, what, plant in _BESIDE:
        # A signature that contradicts itself, or the file, may be refused before anything is judged.
        yield Fault(name, what, "companions", plant, cells=INT8, stops="signature.json|golden.json|takes|tokenizer")
    yield Fault("line_too_many", "labels.txt has a line more", "companions", line_too_many, _CLASSES, INT8)
    for name, what, plant in _PACKAGES:
        yield Fault(name, what, "file", plant, cells={"coreml": INT8["coreml"]}, not_for=_NO_METADATA)
    plant = _number(_head_bias, lambda bias: bias + 0.25)
    yield Fault("value_bias_edited", "a regressor's one bias is 0.25 higher", "file", plant, _VALUE, _NUMBERS)
    plant = _number(lambda _: 1e-12, lambda _: 1e-2)
    nothing = "the only one is the least length of a vector, and no vector is so short"
    yield Fault(
        "small_epsilon_edited",
        "every float32 of 1e-12 in the file is 1e-2",
        "file",
        plant,
        cells=_NUMBERS,
        not_for={"executorch-int8_dynamic": nothing},
    )
    yield Fault(
        "dynamic_under_weight_only_name",
        "a file of dynamic int8 under the name of weight-only int8",
        "file",
        dynamic_under_weight_only_name,
        cells=_WEIGHT_ONLY,
        not_for={"coreml": "it has no dynamic int8"},
    )


FAULTS = tuple(_faults())
