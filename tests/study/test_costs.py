"""A table of costs: shapes of a student's own layers, and the costs of their parts found again from times."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.convert import timing
from pipeline.convert.stage import Target
from pipeline.errors import ToolchainError
from pipeline.fronts.parts import Parts, count
from pipeline.study import costs

LENGTH = 32


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A machine that takes known times for the parts of an encoder: what is found is compared with these."""
    known: dict[str, Any] = {"costs": None, "models": []}

    def convert(model: Any, backend: str, scheme: str, *, length: int, parent: Path) -> Any:
        del backend, scheme, parent
        known["models"].append(Parts(**count(model, length=length)))
        return known["models"][-1]

    def fastest_ms(files: list[Parts]) -> list[float]:
        width = len(files[0].features)
        if known["costs"] is None:
            known["costs"] = np.array([0.5, *([1e-6] * (width - 1))])
        return [float(np.dot(known["costs"], one.features)) for one in files]

    monkeypatch.setattr(timing, "convert", convert)
    monkeypatch.setattr(timing, "fastest_ms", fastest_ms)
    return known


@pytest.mark.parametrize("architecture", ["bert", "albert"])
def test_known_costs_are_found_again(architecture: str, tiny_student: Any, machine: Any, tmp_path: Path) -> None:
    said = costs.measure(tiny_student(architecture), Target("litert", "int8_dynamic"), LENGTH, tmp_path)
    table = costs.read(tmp_path)
    assert said["misfit"] == table.misfit < 1e-6
    assert (table.target, table.timed_as, table.length) == ("litert-int8_dynamic", "int8_dynamic", LENGTH)
    layers = [one.layers for one in machine["models"]]
    assert layers == [1, 2, 4, 2, 2, 2, 4]
    for one in machine["models"]:
        assert table.estimate_ms(one) == pytest.approx(float(np.dot(machine["costs"], one.features)), rel=1e-6)


def test_a_scheme_that_needs_calibration_is_timed_as_one_that_does_not(
    tiny_student: Any, machine: Any, tmp_path: Path
) -> None:
    assert machine["costs"] is None
    said = costs.measure(tiny_student(), Target("litert", "int8_static"), LENGTH, tmp_path)
    assert said["timed_as"] != "int8_static"


def test_a_machine_on_which_more_layers_take_no_longer_is_told(tiny_student: Any, machine: Any, tmp_path: Path) -> None:
    machine["costs"] = np.zeros(5)
    with pytest.raises(ToolchainError, match=r"two layers took 0\.000 ms and one of one layer 0\.000"):
        costs.measure(tiny_student(), Target("litert", "int8_dynamic"), LENGTH, tmp_path)
