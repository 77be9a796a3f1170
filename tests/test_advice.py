"""What a failed gate suggests: for each gate something, and only what exists."""

from types import SimpleNamespace
from typing import Any

import pytest
from conftest import TinyLine

from pipeline import formats
from pipeline.recipe.schema import Recipe
from pipeline.schemes import SCHEMES, Gates, supported
from pipeline.verify.advice import _GATES, advice
from pipeline.verify.record import GateResult, read_parity


def failed(gate: str, backend: str, scheme: str) -> Any:
    results = [GateResult(name=gate, bound=1.0, found=0.0, passed=False, detail="")]
    return SimpleNamespace(gates=results, backend=backend, scheme=scheme)


CELLS = [(backend, scheme) for backend in formats.NAMES for scheme in supported(backend)]


@pytest.mark.parametrize(("backend", "scheme"), CELLS)
def test_each_gate_suggests_a_scheme_and_a_key_that_exist(backend: str, scheme: str) -> None:
    for gate in sorted({*Gates.model_fields, *_GATES}):
        (found,) = advice(failed(f"{gate}:stsb", backend, scheme))
        assert found.sentence
        if found.scheme is not None:
            assert found.scheme in supported(backend)
            assert found.scheme != scheme
            assert found.scheme in found.sentence
            assert SCHEMES[found.scheme].weight_bytes >= SCHEMES[scheme].weight_bytes
        if found.key is not None:
            section, _, key = found.key.partition(".")
            model: Any = Recipe.model_fields[section].annotation
            inner = next(one for one in getattr(model, "__args__", (model,)) if hasattr(one, "model_fields"))
            assert not key or key in inner.model_fields
            assert section in found.sentence


def test_what_rounding_broke_is_told_from_another_model() -> None:
    rounded = advice(failed("min_sqnr_db", "litert", "int8_dynamic"))[0]
    assert (rounded.scheme, rounded.key) == ("int8_weight_only", "quantize")
    assert advice(failed("min_worst_cosine", "executorch", "int4_dynamic"))[0].scheme == "int8_dynamic"
    assert "quantize.calibration" in advice(failed("ranges_fit", "coreml", "int8_static"))[0].sentence
    assert "another model" in advice(failed("weights", "litert", "int8_dynamic"))[0].sentence
    # Nothing rounds less than single precision, so an error there is no rounding.
    assert "another model" in advice(failed("min_sqnr_db", "litert", "fp32"))[0].sentence


def test_gates_that_passed_suggest_nothing_and_equal_suggestions_are_said_once() -> None:
    parity = failed("min_sqnr_db", "litert", "int8_dynamic")
    parity.gates += [GateResult(name="max_kl", bound=1.0, found=2.0, passed=False, detail="")]
    parity.gates += [GateResult(name="wiring", bound=0.0, found=0.0, passed=True, detail="")]
    assert len(advice(parity)) == 1


@pytest.mark.toolchain
def test_every_gate_of_a_real_verdict_has_its_suggestion(tiny_line: TinyLine) -> None:
    for folder in tiny_line.folder.glob("*/parity"):
        named = {gate.name.partition(":")[0].partition(",")[0] for gate in read_parity(folder).gates}
        assert named <= {*Gates.model_fields, *_GATES}, folder
