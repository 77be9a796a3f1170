"""int8 that flows where no conversion lets it, or with another scale than it was made with, is refused."""

import numpy as np
import pytest

from pipeline.errors import ToolchainError
from pipeline.formats.rounded import Rounded, ScaleZeroPoint, What
from pipeline.formats.structure import check_bias

ONE, OTHER = (0.5, 3), (0.25, 3)
Operation = tuple[What, dict[str, ScaleZeroPoint], dict[str, ScaleZeroPoint]]
ROUNDS: Operation = ("rounds", {}, {"a": ONE})
LINEAR: Operation = ("linear", {"a": ONE}, {"b": OTHER})


def follow(*operations: Operation) -> None:
    rounded = Rounded()
    for what, read, made in operations:
        rounded.operation(f"operation that {what}", what, read, made)


@pytest.mark.parametrize(
    "operations",
    [
        [ROUNDS, LINEAR, ("multiplies out", {"b": OTHER}, {})],
        [ROUNDS, ("moves", {"a": ONE}, {"c": ONE}), ("linear", {"c": ONE}, {"b": OTHER})],
        [ROUNDS, ("rounds", {}, {"b": ONE}), ("moves", {"a": ONE, "b": ONE}, {"c": ONE})],
        # What one linear gives, another may read, rounded anew.
        [ROUNDS, LINEAR, ("rounds", {"b": OTHER}, {"c": ONE}), ("linear", {"c": ONE}, {"d": OTHER})],
        # An activation between two linears.
        [ROUNDS, LINEAR, ("other", {"b": OTHER}, {"c": ONE}), ("linear", {"c": ONE}, {"d": OTHER})],
        [("other", {}, {})],
    ],
)
def test_what_conversions_have_passes(operations: list[Operation]) -> None:
    follow(*operations)


@pytest.mark.parametrize(
    ("operations", "said"),
    [
        ([ROUNDS, ("multiplies out", {"a": ONE}, {})], "reads what was rounded, and is no linear"),
        ([ROUNDS, ("rounds", {"a": ONE}, {"c": OTHER})], "reads what was rounded, and is no linear"),
        ([ROUNDS, ("other", {"a": ONE}, {})], "reads what was rounded, and is no linear"),
        ([ROUNDS, ("other", {"a": ONE}, {"b": ONE})], "reads what was rounded, and is no linear"),
        ([ROUNDS, ("moves", {"a": ONE}, {"c": OTHER})], "gives int8 with another scale or zero point than it reads"),
        (
            [ROUNDS, ("rounds", {}, {"b": OTHER}), ("moves", {"a": ONE, "b": OTHER}, {"c": ONE})],
            "gives int8 with another scale or zero point than it reads",
        ),
        (
            [ROUNDS, ("linear", {"a": OTHER}, {"b": OTHER})],
            "reads int8 with another scale or zero point than it was made with",
        ),
        ([LINEAR], "reads int8 that nothing has made"),
        ([("other", {}, {"a": ONE})], "gives int8, and is no linear"),
    ],
)
def test_what_no_conversion_has_is_refused(operations: list[Operation], said: str) -> None:
    with pytest.raises(ToolchainError, match=said):
        follow(*operations)


@pytest.mark.parametrize(("factor", "fits"), [(1.0, True), (1 + 1e-7, True), (2.0, False), (1 + 1e-5, False)])
def test_a_bias_is_in_the_steps_of_its_products(factor: float, fits: bool) -> None:
    of_weight = np.array([0.01, 0.02, 0.03], np.float32)
    own = (of_weight * np.float32(0.7) * factor).astype(np.float32)
    if fits:
        check_bias(own, of_weight, 0.7)
        return
    with pytest.raises(ToolchainError, match="bias has another scale than its products"):
        check_bias(own, of_weight, 0.7)
    with pytest.raises(ToolchainError, match="another scale"):
        check_bias(own[:1], of_weight, 0.7)
