"""Refuse a `[factorise]` that a checkpoint cannot follow, or that saves nothing. Imports nothing heavy."""

from pipeline.checkpoint.source import Source
from pipeline.compress.factorise.ranks import STEP, Shape, least_fraction, saves
from pipeline.compress.prune.structure import stored_shape
from pipeline.errors import RecipeError, StudentError
from pipeline.recipe.compression import FactoriseSection, Rank
from pipeline.tasks import Task


def check(section: FactoriseSection, source: Source, task: Task) -> None:
    """Refuse a factorisation that cannot be carried out, or that saves nothing.

    Raises:
        RecipeError: nothing is asked for, or ranks that save nothing or leave nothing.
        StudentError: the checkpoint's layers cannot be taken apart, or what is asked for has two factors already.
    """
    if section.embedding is None and section.feed_forward is None:
        raise RecipeError("[factorise] asks for nothing; give embedding = 128, or feed_forward = {energy = 0.9}.")
    encoder = stored_shape(source)
    if section.embedding is not None:
        _check_table(source)
        table = (source.vocab_size, encoder.hidden_size)
        check_ranks("embedding", section.embedding, [table])
    if section.feed_forward is not None:
        sizes = [sublayer.size for sublayer in encoder.sublayers if sublayer.kind == "feed_forward"]
        shapes = [(size, encoder.hidden_size) for size in sizes for _ in ("widen", "narrow")]
        check_ranks("feed_forward", section.feed_forward, shapes)


def _check_table(source: Source) -> None:
    from safetensors import safe_open

    config = source.config
    has_projection = source.architecture.model_type == "albert" or config.get("embedding_size", 0) not in (
        0,
        config.get("hidden_size"),
    )
    with safe_open(source.folder / "model.safetensors", framework="numpy") as handle:
        stored = any(name.endswith("embeddings.word_embeddings.0.weight") for name in handle.keys())  # noqa: SIM118
    if has_projection or stored:
        raise StudentError(
            f"{source.origin} has its embedding table in two factors already; leave factorise.embedding out."
        )


def check_ranks(name: str, setting: Rank, shapes: list[Shape]) -> None:
    """Refuse ranks that save nothing in any of the matrices, or a budget that is too small for all.

    Raises:
        RecipeError: they do.
    """
    if setting.rank is not None and not any(saves(setting.rank, shape) for shape in shapes):
        rows, columns = max(shapes)
        limit = -(-rows * columns // (rows + columns))
        raise RecipeError(
            f"factorise.{name}: rank {setting.rank} saves nothing in {rows} × {columns}; it has to be below {limit}."
        )
    if setting.parameters is not None and least_fraction(shapes) > setting.parameters:
        raise RecipeError(
            f"factorise.{name}: parameters = {setting.parameters} is less than rank {STEP} everywhere takes, "
            f"{least_fraction(shapes):.3f}. Keep more."
        )
