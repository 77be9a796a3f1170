"""`[prune]` of a recipe, and what is wrong with it for a checkpoint. Imports nothing heavy."""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from pipeline.errors import RecipeError, StudentError
from pipeline.prune import costs, parts
from pipeline.prune.costs import LENGTH
from pipeline.prune.parts import Outline
from pipeline.section import Length, Names, Natural, Section, Sparse
from pipeline.student import Source
from pipeline.tasks import Task

_STRUCTURE = ("compute", "heads", "feed_forward", "layers", "hidden")
Part = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
"""What is kept of a whole; all of it would be no pruning."""


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _some(value: int | tuple[int, ...] | None) -> int | tuple[int, ...] | None:
    if (isinstance(value, int) and value < 1) or value == ():
        raise ValueError("leaves no layer; give a number from 1 on, or a list of the numbers that stay")
    return value


class SparseNow(Sparse):
    """Weights that become zero at once, without training."""

    by: Literal["magnitude", "movement"] = "magnitude"
    """Movement needs a loss: it is refused here, with the place where it belongs."""


class PruneSection(Section):
    """What is kept of a student's encoder. `compute` alone is the usual one: the search shares it out."""

    compute: Part | None = None
    """Of the encoder's `costs` at `cost_length` tokens: 0.5 is two times less. Heads and feed-forward rows are
    chosen wherever they matter least."""
    heads: Part | None = None
    """Of all attention heads of the layers that stay; each layer keeps one."""
    feed_forward: Part | None = None
    """Of all feed-forward rows of the layers that stay; each layer keeps `row_multiple`."""
    layers: Annotated[int | tuple[int, ...] | None, BeforeValidator(_tuple), AfterValidator(_some)] = None
    """The numbers of the layers that stay, from 0; or how many, and the least important ones leave."""
    hidden: Natural | None = None
    """Columns of the hidden states that stay, in all layers and tables. Needs training afterwards to be any good."""
    sparse: SparseNow | None = None
    """Single weights that become zero in what is left. Only Core ML stores them smaller, and no format is faster."""
    importance: Literal["surgeon", "fisher", "taylor", "magnitude"] = "surgeon"
    """What units are judged by: `pipeline.prune.importance`."""
    reconstruct: bool = True
    """Solve the linears behind what was cut for what the whole student gave: no labels, no training, a minute."""
    calibration: Names | None = None
    """Where they are from: `.txt` files, one text a line, relative to the recipe; `wikitext2` or `war-and-peace` of the
    data folder; or names of data sets, whose training rows are taken, pairs as pairs. Unless given: the package's own,
    and STS-B's sentences where they are."""
    calibration_texts: Annotated[int, Field(ge=8, le=10_000)] = 512
    """Unlabelled texts on which importance and reconstruction rest; the hidden states of all are held at once."""
    max_length: Length = 128
    """Calibration texts are cut to so many tokens."""
    costs: Literal["flops", "latency"] = "flops"
    """What `compute` is a fraction of: multiply-adds; or milliseconds, measured in LiteRT on int8_dynamic files of one
    layer, which differ from machine to machine and from run to run."""
    cost_length: Length = LENGTH
    """Tokens of the row whose cost counts."""
    row_multiple: Annotated[int, Field(ge=1, le=256)] = 8
    """Feed-forward rows stay in so many, which is what runtimes compute at once."""
    even: bool = False
    """Keep as many heads and as many rows in each layer, instead of wherever they matter: layers that `[share]` ties
    need equal shapes."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0

    @property
    def counts(self) -> bool:
        """Whether heads and rows are chosen, which may leave each layer another number of them."""
        return any(one is not None for one in (self.compute, self.heads, self.feed_forward))

    @property
    def cuts(self) -> bool:
        """Whether the student gets smaller; else only weights become zero."""
        return any(getattr(self, name) for name in _STRUCTURE)

    @property
    def calibrated(self) -> bool:
        """Whether calibration texts are looked at: weights become zero without."""
        return self.cuts


def check(section: PruneSection, source: Source, task: Task) -> Outline:
    """Refuse pruning that cannot be carried out.

    Returns:
        The shape of the checkpoint's encoder.

    Raises:
        RecipeError: the section asks for nothing, for two things at once, or for what the checkpoint does not have.
        StudentError: the checkpoint's layers cannot be taken apart.
    """
    shape = parts.read(source)
    _check_asked(section)
    if not section.cuts:
        return shape
    if section.max_length > source.max_length:
        limit = f"the checkpoint's limit of {source.max_length} positions"
        raise RecipeError(f"prune.max_length = {section.max_length} is beyond {limit}.")
    _check_layers(section, shape, source)
    if section.hidden is not None:
        _check_hidden(section, shape, source)
    _check_compute(section, shape)
    if section.costs == "latency":
        _check_timed(section, source)
    for kind, kept in (("heads", section.heads), ("feed_forward", section.feed_forward)):
        if kept is not None:
            _check_fraction(shape, kind, kept, section.row_multiple)
    return shape


def _check_asked(section: PruneSection) -> None:
    asked = {name for name in (*_STRUCTURE, "sparse") if getattr(section, name)}
    if not asked:
        raise RecipeError("[prune] asks for nothing; give compute, heads, feed_forward, layers, hidden or sparse.")
    if section.sparse is not None and section.sparse.by == "movement":
        raise RecipeError(
            "prune.sparse.by = 'movement' follows what a loss does to the weights, and [prune] has no loss. Give "
            "[train] or [distil] the table instead: [train.sparse] or [distil.sparse], with the same keys."
        )
    if "compute" in asked and asked & {"heads", "feed_forward"}:
        raise RecipeError(
            "[prune] has compute, which decides on heads and feed_forward itself; give it alone, or these two alone."
        )


def _check_layers(section: PruneSection, shape: Outline, source: Source) -> None:
    wanted = section.layers
    if wanted is None:
        return
    if int(source.config.get("num_hidden_groups") or 1) > 1:
        raise StudentError(
            f"{source.origin} has groups of shared layers, whose passes cannot be told apart; leave out prune.layers."
        )
    if any((source.config.get("pocketbert") or {}).get(name) for name in ("attention", "feed_forward")):
        raise StudentError(f"{source.origin} shares parts between its layers; prune layers first, and share then.")
    if isinstance(wanted, int):
        if wanted >= shape.layers:
            raise RecipeError(f"prune.layers = {wanted}, and the checkpoint has {shape.layers}; keep fewer.")
        return
    absent = [number for number in wanted if not 0 <= number < shape.layers]
    if absent:
        raise RecipeError(f"prune.layers names layer {absent[0]}; the checkpoint has 0 to {shape.layers - 1}.")
    if list(wanted) != sorted(set(wanted)) or len(wanted) == shape.layers:
        raise RecipeError(f"prune.layers = {list(wanted)} has to rise, each number once, and leave a layer out.")


def _check_timed(section: PruneSection, source: Source) -> None:
    """Refuse what one layer's file cannot be timed for."""
    if section.cost_length > source.max_length:
        limit = f"the checkpoint's limit of {source.max_length} positions"
        raise RecipeError(f"prune.cost_length = {section.cost_length} is beyond {limit}, and cannot be timed.")
    if section.hidden is not None:
        raise RecipeError(
            "prune.costs = 'latency' times the layers as they are, before prune.hidden makes them narrower; "
            "leave one of them out."
        )
    if int(source.config.get("num_hidden_groups") or 1) > 1:
        raise StudentError(
            f"{source.origin} has groups of shared layers, of which none can be timed alone; use prune.costs = 'flops'."
        )


def _check_hidden(section: PruneSection, shape: Outline, source: Source) -> None:
    assert section.hidden is not None
    if not 8 <= section.hidden < shape.hidden:
        raise RecipeError(
            f"prune.hidden = {section.hidden}; the checkpoint has {shape.hidden} columns: keep 8 or more of them, "
            "and not all."
        )
    # transformers' ELECTRA leaves the projection out where both are equal, so that it would be lost.
    if source.architecture.model_type == "electra" and section.hidden == source.config.get("embedding_size"):
        raise RecipeError(
            f"prune.hidden = {section.hidden} is the width of the checkpoint's tables, and ELECTRA has no projection "
            f"between tables and layers of one width; keep {section.hidden - 8} or {section.hidden + 8} columns."
        )


def _check_compute(section: PruneSection, shape: Outline) -> None:
    if section.compute is None:
        return
    whole = costs.encoder_multiply_adds(shape, length=section.cost_length)
    prices = costs.unit_costs(narrowed(section, shape), length=section.cost_length)
    left = kept_share(section, shape)
    least = costs.least_cost(shape.parts, prices, rows=section.row_multiple) * left / whole
    if section.compute < least:
        raise RecipeError(
            f"prune.compute = {section.compute} leaves no head for some layer: a head and {section.row_multiple} "
            f"rows of each come to {least:.3f} of the encoder. Keep more, or fewer layers."
        )


def narrowed(section: PruneSection, shape: Outline) -> Outline:
    """Return an encoder's shape with the hidden columns that stay."""
    return shape if section.hidden is None else replace(shape, hidden=section.hidden)


def kept_share(section: PruneSection, shape: Outline) -> float:
    """Return the share of layers that stay."""
    if section.layers is None:
        return 1.0
    return (section.layers if isinstance(section.layers, int) else len(section.layers)) / shape.layers


def _check_fraction(shape: Outline, kind: str, kept: float, rows: int) -> None:
    of_kind = [part for part in shape.parts if part.kind == kind]
    every = sum(part.units * part.passes for part in of_kind)
    least = sum((1 if kind == "heads" else min(rows, part.units)) * part.passes for part in of_kind)
    if kept * every < least:
        each = "a head" if kind == "heads" else f"{rows} feed-forward rows"
        raise RecipeError(
            f"prune.{kind} = {kept} keeps {int(kept * every)} of {every}; {each} of each layer are {least}. Keep more."
        )
