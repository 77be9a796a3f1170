"""`[factorise]` of a recipe, and what is wrong with it for a checkpoint. Imports nothing heavy."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from pipeline.errors import RecipeError, StudentError
from pipeline.factorise import ranks
from pipeline.factorise.ranks import Shape
from pipeline.prune import parts
from pipeline.section import Names, Natural, Section
from pipeline.student import Source
from pipeline.tasks import Task

Part = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


class Rank(Section):
    """How ranks are chosen: one of the three."""

    rank: Natural | None = None
    """The number itself, for each matrix."""
    energy: Part | None = None
    """The smallest multiple of 8 that keeps so much of each matrix's squared singular values."""
    parameters: Part | None = None
    """A budget: what is kept of all the matrices' parameters together, shared out where it keeps most energy."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if sum(value is not None for value in (self.rank, self.energy, self.parameters)) != 1:
            raise ValueError("takes one of rank, energy and parameters")
        return self


def _number(value: Any) -> Any:
    if isinstance(value, float):
        raise ValueError("takes a whole number, the rank, or a table such as {energy = 0.95}")
    return {"rank": value} if isinstance(value, int) and not isinstance(value, bool) else value


Ranked = Annotated[Rank, BeforeValidator(_number)]


class FactoriseSection(Section):
    """Which matrices become two thin ones. A whole number in the place of a table is the rank."""

    embedding: Ranked | None = None
    """The table of words: ALBERT's E, of which 64, 128 and 256 are published."""
    feed_forward: Ranked | None = None
    """Both linears of every feed-forward."""
    weighted: bool = True
    """Keep what calibration texts use: tokens by their counts, columns by how much they carry. False: plain SVD."""
    calibration: Names | None = None
    """Where they are from: `.txt` files, one text a line, relative to the recipe; `wikitext2` or `war-and-peace` of the
    data folder; or names of data sets, whose training rows are taken, pairs as pairs. Unless given: the package's own,
    and STS-B's sentences where they are."""
    calibration_texts: Annotated[int, Field(ge=8, le=100_000)] = 512
    """Unlabelled texts for the weights."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Of the sample of texts."""

    @property
    def calibrated(self) -> bool:
        """Whether calibration texts are looked at."""
        return self.weighted


def check(section: FactoriseSection, source: Source, task: Task) -> None:
    """Refuse a factorisation that cannot be carried out, or that saves nothing.

    Raises:
        RecipeError: nothing is asked for, or ranks that save nothing or leave nothing.
        StudentError: the checkpoint's layers cannot be taken apart, or what is asked for has two factors already.
    """
    if section.embedding is None and section.feed_forward is None:
        raise RecipeError("[factorise] asks for nothing; give embedding = 128, or feed_forward = {energy = 0.9}.")
    outline = parts.read(source)
    if section.embedding is not None:
        _check_table(source)
        table = (source.vocab_size, outline.hidden)
        check_ranks("embedding", section.embedding, [table])
    if section.feed_forward is not None:
        units = [part.units for part in outline.parts if part.kind == "feed_forward"]
        shapes = [(rows, outline.hidden) for rows in units for _ in ("widen", "narrow")]
        check_ranks("feed_forward", section.feed_forward, shapes)


def _check_table(source: Source) -> None:
    from safetensors import safe_open

    config = source.config
    own = source.architecture.model_type == "albert" or config.get("embedding_size", 0) not in (
        0,
        config.get("hidden_size"),
    )
    with safe_open(source.folder / "model.safetensors", framework="numpy") as handle:
        stored = any(name.endswith("embeddings.word_embeddings.0.weight") for name in handle.keys())  # noqa: SIM118
    if own or stored:
        raise StudentError(
            f"{source.origin} has its table of words in two factors already; leave factorise.embedding out."
        )


def check_ranks(name: str, wanted: Rank, shapes: list[Shape]) -> None:
    """Refuse ranks that save nothing in any of the matrices, or a budget that is too small for all.

    Raises:
        RecipeError: they do.
    """
    if wanted.rank is not None and not any(ranks.saves(wanted.rank, shape) for shape in shapes):
        rows, columns = max(shapes)
        limit = -(-rows * columns // (rows + columns))
        raise RecipeError(
            f"factorise.{name}: rank {wanted.rank} saves nothing in {rows} × {columns}; it has to be below {limit}."
        )
    if wanted.parameters is not None and ranks.least_fraction(shapes) > wanted.parameters:
        raise RecipeError(
            f"factorise.{name}: parameters = {wanted.parameters} is less than rank {ranks.STEP} everywhere takes, "
            f"{ranks.least_fraction(shapes):.3f}. Keep more."
        )
