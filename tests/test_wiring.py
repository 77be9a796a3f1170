"""What an operation of a file may read, on graphs of a few calls: every way in which converters fold, and no other."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipeline.formats.structure import Flow, Role, Use
from pipeline.verify.weights import Expected, Form
from pipeline.verify.wiring import follow

CALLS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("words", ()),
    ("positions", ()),
    ("norm0", (0, 1)),
    ("query", (2,)),
    ("key", (2,)),
    ("out", (3, 4)),
    ("norm1", (2, 5)),
    ("head", (6,)),
)
SHARED: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("words", ()),
    ("dense", (0,)),
    ("norm", (0, 1)),
    ("dense", (2,)),
    ("norm", (2, 3)),
)


def expected(calls: tuple[tuple[str, tuple[int, ...]], ...] = CALLS) -> Expected:
    """A checkpoint in which each module has a weight of 8 x 8 and a bias."""
    tensors = {}
    for number, name in enumerate(dict.fromkeys(name for name, _ in calls), 1):
        norm = name.startswith("norm")
        tensors[f"{name}.weight"] = np.full(8 if norm else (8, 8), number, np.float32)
        tensors[f"{name}.bias"] = np.full(8, number, np.float32)
    return Expected(tensors, frozenset(), {}, (), (), calls)


Operation = tuple[str, tuple[int, ...]]
"""What an operation reads, such as `query.weight+query.bias`, and the operations before it."""


def problems(operations: Sequence[Operation], reference: Expected | None = None) -> list[str]:
    reference = reference or expected()
    forms: list[list[Form]] = []
    uses = []
    for read, sources in operations:
        constants: list[tuple[int, Role | None]] = []
        for part in read.split("+") if read else ():
            name, _, folded = part.partition("*")
            parts = (f"{folded}.weight", f"{folded}.bias") if folded else ()
            forms.append([Form(name, "", reference.tensors[name], parts=parts)])
            role: Role | None = "weight" if name.endswith(".weight") else "bias"
            constants.append((len(forms) - 1, None if name.split(".")[0] in ("words", "positions") else role))
        uses.append(Use(tuple(constants), sources))
    return list(follow(uses, forms, reference).problems)


RIGHT: tuple[Operation, ...] = (
    ("words.weight", ()),
    ("positions.weight", (0,)),
    ("norm0.weight", (1,)),
    ("norm0.bias", (2,)),
    ("query.weight+query.bias", (3,)),
    ("key.weight", (3,)),
    ("key.bias", (5,)),
    ("out.weight+out.bias", (4, 6)),
    ("norm1.weight", (3, 7)),
    ("norm1.bias", (8,)),
    ("head.weight+head.bias", (9,)),
)


def with_read(number: int, read: str) -> list[Operation]:
    return [(read if place == number else old, sources) for place, (old, sources) in enumerate(RIGHT)]


def with_sources(number: int, *sources: int) -> list[Operation]:
    return [(read, sources if place == number else old) for place, (read, old) in enumerate(RIGHT)]


def test_the_checkpoint_s_own_graph_is_right() -> None:
    assert problems(RIGHT) == []


def test_operations_that_read_nothing_known_are_passed_through() -> None:
    reshaped = [*RIGHT[:3], ("", (2,)), *((read, tuple(n + (n > 1) for n in old)) for read, old in RIGHT[3:])]
    assert problems(reshaped) == []


def test_a_norm_that_is_folded_into_the_linears_behind_it_may_be_missing() -> None:
    folded: list[Operation] = [
        ("words.weight", ()),
        ("positions.weight", (0,)),
        ("query.weight*norm0+query.bias*norm0", (1,)),
        ("key.weight*norm0+key.bias*norm0", (1,)),
        ("out.weight+out.bias", (2, 3)),
        ("norm0.weight", (1,)),
        ("norm0.bias", (5,)),
        ("norm1.weight", (4, 6)),
        ("norm1.bias", (7,)),
        ("head.weight+head.bias", (8,)),
    ]
    assert problems(folded) == []


def test_two_norms_that_changed_places_are_told() -> None:
    exchanged = with_read(2, "norm1.weight")
    exchanged[8] = ("norm0.weight", RIGHT[8][1])
    assert problems(exchanged)[0] == "norm0.bias: read as an addend by an operation that works on norm1"


def test_a_gain_in_the_place_of_a_bias_is_told() -> None:
    reference = expected()
    forms = [
        [Form("words.weight", "", reference.tensors["words.weight"])],
        [Form("norm0.bias", "", np.ones(8, np.float32))],
    ]
    uses = (Use(((0, None),), ()), Use(((1, "weight"),), (0,)))
    assert follow(uses, forms, reference).problems[0].startswith("norm0.bias: read as a factor")


def test_a_bias_of_a_linear_beside_it_is_told() -> None:
    assert problems(with_read(4, "query.weight+key.bias"))[0].startswith("key.bias and query.weight: read")
    # In an operation of its own, it works on the other linear's result.
    assert problems(with_read(6, "query.bias"))[0] == "query.bias: read as an addend by an operation that works on key"


def test_a_residual_that_is_lost_or_added_is_told() -> None:
    assert "norm1.weight: read as a factor by an operation that works on out" in problems(with_sources(8, 7))
    assert problems(with_sources(10, 9, 3))[0].startswith("head.bias and head.weight: read")


def test_a_linear_that_is_left_out_is_told() -> None:
    short = [
        *RIGHT[:5],
        ("out.weight+out.bias", (4,)),
        ("norm1.weight", (3, 5)),
        ("norm1.bias", (6,)),
        ("head.weight", (7,)),
    ]
    assert "key.weight is not read" in problems(short)


def test_tied_linears_may_run_as_one_and_others_may_not() -> None:
    tied = expected()
    tied = replace(
        tied, tensors=dict(tied.tensors) | {f"key.{kind}": tied.tensors[f"query.{kind}"] for kind in ("weight", "bias")}
    )
    as_one = [*RIGHT[:5], ("out.weight+out.bias", (4,)), ("norm1.weight", (3, 5)), ("norm1.bias", (6,))]
    as_one.append(("head.weight+head.bias", (7,)))
    assert problems(as_one, tied) == []
    assert problems(RIGHT, tied) == []
    assert any("key.weight is not read" in problem for problem in problems(as_one))


def test_a_shared_module_runs_as_often_as_in_the_checkpoint() -> None:
    reference = expected(SHARED)
    twice: list[Operation] = [
        ("words.weight", ()),
        ("dense.weight+dense.bias", (0,)),
        ("norm.weight+norm.bias", (0, 1)),
        ("dense.weight+dense.bias", (2,)),
        ("norm.weight+norm.bias", (2, 3)),
    ]
    assert problems(twice, reference) == []
    assert problems(twice[:3], reference) == ["dense.weight is not read in its call 2 of 2"]


def test_a_flow_follows_constants_through_operations_on_constants_alone() -> None:
    flow = Flow()
    flow.constant("table", "key")
    flow.operation(["table"], ["widened"])
    flow.operation(["ids", "widened"], ["rows"], {"widened": "weight"})
    flow.operation(["rows"], ["turned"])
    flow.constant("gain", "other")
    flow.operation(["turned", "gain"], ["scaled"])
    assert flow.numbered({"key": 7, "other": 8}) == (Use(((7, "weight"),), ()), Use(((8, None),), (0,)))
