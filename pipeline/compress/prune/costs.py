"""What a head and a feed-forward row cost: multiply-adds at a length, and parameters. Imports nothing heavy."""

from collections.abc import Sequence

from pipeline.compress.prune.parts import Outline, Part
from pipeline.recipe.compression import COST_LENGTH

LENGTH = COST_LENGTH


def multiply_adds(part: Part, shape: Outline, *, length: int) -> int:
    """Return the multiply-adds of one unit of a part for a row of `length` tokens, over all passes.

    A head: query, key, value and output 4·L·d·k, scores and weighted sum 2·L²·k. A feed-forward row: 2·L·d.

    Source: Vaswani et al. 2017, section 3.2; biases, norms and softmax are left out, as is usual.
    """
    hidden, size = shape.hidden, shape.head_size
    once = 2 * length * hidden if part.kind == "feed_forward" else 4 * length * hidden * size + 2 * length**2 * size
    return once * part.passes


def unit_parameters(part: Part, shape: Outline) -> int:
    """Return the parameters that one unit of a part has, biases of what it owns included."""
    hidden, size = shape.hidden, shape.head_size
    return 2 * hidden + 1 if part.kind == "feed_forward" else 4 * hidden * size + 3 * size


def unit_costs(shape: Outline, *, length: int = LENGTH) -> list[float]:
    """Return the multiply-adds of one unit of each part; the search takes measured milliseconds as well."""
    return [float(multiply_adds(part, shape, length=length)) for part in shape.parts]


def total(shape: Outline, costs: Sequence[float]) -> float:
    """Return what all units cost together."""
    return sum(part.units * cost for part, cost in zip(shape.parts, costs, strict=True))


def encoder_multiply_adds(shape: Outline, *, length: int = LENGTH) -> int:
    """Return the multiply-adds of all layers for a row of `length` tokens."""
    return int(total(shape, unit_costs(shape, length=length)))


def least_cost(parts: Sequence[Part], costs: Sequence[float], *, rows: int) -> float:
    """Return the cost of one head and one piece of `rows` feed-forward rows in each part."""
    return sum(
        cost * (1 if part.kind == "heads" else min(rows, part.units)) for part, cost in zip(parts, costs, strict=True)
    )
