"""The contract of a vector space, and the forms in which an index stores vectors."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TinyLine
from pydantic import ValidationError

from pipeline import artifact
from pipeline.errors import ArtifactError
from pipeline.formats import signature
from pipeline.student import vectors
from pipeline.vectors.contract import LARGEST_CODE, Vectors

TENSORS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float32)}


def contract(**changed: Any) -> Vectors:
    whole = {
        "space": "0123456789abcdef",
        "width": 4,
        "unit_length": True,
        "similarity": "cosine",
        "widths": (4, 2),
        "scales": (0.1, 0.2, 0.3, 0.4),
    }
    return Vectors.model_validate(whole | changed)


def test_the_space_is_what_decides_the_vectors() -> None:
    own = vectors.space_id(TENSORS.items(), b"tokenizer", "mean")
    assert own == vectors.space_id(reversed(TENSORS.items()), b"tokenizer", "mean"), "the order says nothing"
    assert len(own) == len(contract().space)
    other_bit = TENSORS | {"b": np.nextafter(TENSORS["b"], 2)}
    other_shape = TENSORS | {"a": TENSORS["a"].reshape(3, 2)}
    others = [
        vectors.space_id(other_bit.items(), b"tokenizer", "mean"),
        vectors.space_id(other_shape.items(), b"tokenizer", "mean"),
        vectors.space_id(TENSORS.items(), b"tokenizer ", "mean"),
        vectors.space_id(TENSORS.items(), b"tokenizer", "cls"),
    ]
    assert len({own, *others}) == 1 + len(others)


def test_scales_reach_beyond_the_largest_number_of_each_dimension() -> None:
    rng = np.random.default_rng(0)
    found = rng.normal(size=(50, 8)) * np.geomspace(1e-3, 1, 8)
    found[:, 3] = 0.0
    scales = np.array(vectors.int8_scales(found))
    reach = scales * LARGEST_CODE
    largest = np.abs(found).max(0)
    assert (reach >= 1.5 * largest * (1 - 1e-7)).all()
    seen = largest > 0
    assert (reach[seen] <= 1.5 * largest[seen] * 2 ** (1 / 16) * (1 + 1e-7)).all()
    assert scales[3] > 0
    # Another processor's last bits.
    assert vectors.int8_scales(found * (1 + 1e-7)) == tuple(scales)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scales": (0.1, 0.2, 0.3)}, "4 numbers, and there are 3 scales"),
        ({"scales": (0.1, 0.2, 0.3, 0.0)}, "not a number above zero"),
        ({"scales": (0.1, 0.2, 0.3, float("inf"))}, "not a number above zero"),
        ({"widths": (2,)}, "they have to fall from 4"),
        ({"widths": (4, 2, 3)}, "they have to fall from 4"),
        ({"widths": (4, 0)}, "one number at least"),
        ({"space": "A"}, "space"),
    ],
)
def test_a_contract_that_contradicts_itself_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        contract(**changed)


def test_every_file_of_a_student_has_its_contract(tiny_line: TinyLine) -> None:
    metrics = artifact.read_manifest(tiny_line.folder / "student").metrics
    for target in ("litert-fp32", "litert-int8_dynamic", "executorch-fp32"):
        found = signature.read(tiny_line.folder / target / "model").vectors
        assert found is not None
        assert found.model_dump(mode="json") == metrics["vectors"]
        assert (found.width, found.widths, found.unit_length) == (64, (64,), True)


def test_a_contract_of_labels_is_refused(tiny_line: TinyLine, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_line.folder / "litert-fp32" / "model", tmp_path / "model"))
    said = json.loads((folder / signature.SIGNATURE).read_text(encoding="utf-8"))
    said |= {"task": "regression", "output_kind": "value"}
    for function in said["functions"]:
        function["outputs"][0]["name"] = "logits"
    (folder / signature.SIGNATURE).write_text(json.dumps(said), encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"vectors: task regression has none"):
        signature.read(folder)
