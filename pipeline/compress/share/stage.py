"""The stage: layers of a trained student are tied, as ALBERT's are from the start.

A plain average of layers is meaningless, since heads and intermediate neurons of two layers are in any order. They are
brought into the order of the group's first layer before anything is averaged. The layers still differ by more than
order, so a tied student needs distillation from the untied one to be any good.

transformers' AlbertConfig knows two kinds: all parameters, and groups of layers. Attention alone, feed-forward alone,
and ties in BERT's or DistilBERT's layout live under config.json's key `pocketbert`, see `pipeline.checkpoint.shapes`.

Source: Lan et al. 2020 (ALBERT), section 3.1 and table 4; Ainsworth et al. 2023 (Git Re-Basin), matching of weights.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pipeline import architectures, tasks
from pipeline.architectures import layers
from pipeline.architectures.layers import Layer
from pipeline.checkpoint.source import Source
from pipeline.compress.common import SOURCE, Context, Stage, Work, refuse_lost_zeros
from pipeline.compress.prune.structure import SublayerKind
from pipeline.errors import RecipeError, StudentError
from pipeline.recipe.compression import ShareSection
from pipeline.tasks import Task
from pipeline.text import tokenizers

Result = TypeVar("Result")

VERSION = 1
DISTRIBUTIONS = ("torch", "transformers", "scipy")
"""Packages that decide the tied checkpoint."""
SHARED: Mapping[str, tuple[SublayerKind, ...]] = {
    "all": ("attention", "feed_forward"),
    "attention": ("attention",),
    "feed_forward": ("feed_forward",),
}
"""Sublayers that are tied, by `share.what`."""


def layer_groups(count: int, groups: int) -> list[list[int]]:
    """Return the numbers of each group's layers.

    Source: transformers, AlbertTransformer: layer i is in group i // (layers / groups).
    """
    return [[number for number in range(count) if number * groups // count == group] for group in range(groups)]


def make(source: Path, task_name: str, section: ShareSection, out: Path) -> dict[str, Any]:
    """Write the checkpoint with ties. Runs in a worker, since it imports torch.

    Args:
        source: a folder in Hugging Face layout, plain or compressed.
        task_name: a row of `pipeline.tasks`.
        section: `[share]` of the recipe.
        out: the artifact's directory.

    Returns:
        Parameters before and after, the groups, and how far layers are from what their group begins with.

    Raises:
        RecipeError: as many groups as layers.
        StudentError: the checkpoint does not load, shares already, or has layers of different shapes in a group.
    """
    from pipeline.checkpoint import shapes
    from pipeline.checkpoint.loading import load_checkpoint
    from pipeline.compress.share.tying import tie

    model = load_checkpoint(source, tasks.get(task_name))
    before = sum(parameter.numel() for parameter in model.parameters())
    groups, distances = tie_layers(model, section, tie)
    shapes.save(model, out)
    tokenizers.copy(source, out)
    return {
        "parameters_before": before,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "what": section.what,
        "start": section.start,
        "groups": groups,
        "relative_distance": sum(distances) / len(distances),
    }


def trial(section: ShareSection, source: Source, task: Task) -> Source:
    """Return the expected checkpoint of `make`, from a trial on torch's meta device; raises the errors of `make`.

    Layers are tied without being aligned, since alignment needs weights.
    """
    from pipeline.checkpoint import shapes
    from pipeline.checkpoint.loading import load_checkpoint
    from pipeline.compress.share.tying import use_one

    model = load_checkpoint(source, task)
    tie_layers(model, section, use_one)
    return shapes.outline(model, source, compressed=True)


def tie_layers(
    model: Any, section: ShareSection, tie: Callable[[Sequence[Layer], SublayerKind, str], Result]
) -> tuple[list[list[int]], list[Result]]:
    """Tie a model's layers in place, on any device.

    Args:
        model: a Hugging Face model.
        section: `[share]` of the recipe.
        tie: lets the layers of a group use one sublayer.

    Returns:
        The groups of layers, and what `tie` returned for each group of each sublayer.

    Raises:
        RecipeError: as many groups as layers.
        StudentError: the layers share already, or those of a group have different shapes.
    """
    from pipeline.checkpoint import shapes

    every = layers.layers(model)
    if every[0].layout.inner or shapes.sharing(model) != (None, None):
        raise StudentError("the checkpoint shares parameters between its layers already; leave [share] out.")
    if section.groups >= len(every):
        raise RecipeError(f"share.groups = {section.groups} ties nothing in {len(every)} layers; ask for fewer groups.")
    groups = layer_groups(len(every), section.groups)
    for kind in SHARED[section.what]:
        for group in groups:
            _check_shapes(kind, {number: every[number] for number in group})
    results = [
        tie([every[number] for number in group], kind, section.start)
        for kind in SHARED[section.what]
        for group in groups
    ]
    return groups, results


def _check_shapes(kind: SublayerKind, group: Mapping[int, Layer]) -> None:
    """Refuse a group whose layers were pruned or factorised to different shapes."""
    from pipeline.compress.share.tying import tensor_shapes

    (first, layer), *others = group.items()
    expected = tensor_shapes(layer, kind)
    for number, other in others:
        present = tensor_shapes(other, kind)
        for name in sorted(expected.keys() | present.keys()):
            if expected.get(name) != present.get(name):
                both = " and ".join(str(one.get(name, "none")) for one in (expected, present))
                raise StudentError(
                    f"layers {first} and {number} cannot share their {kind}: {name} has shapes {both}. "
                    "Prune with prune.uniform = true, which keeps the same numbers in each layer, or tie other groups."
                )


# --- in a recipe -----------------------------------------------------------------------------------------------------


def _section(context: Context) -> ShareSection:
    assert context.recipe.share
    return context.recipe.share


def _check(context: Context, source: Source) -> None:
    section, recipe = _section(context), context.recipe
    if section.start == "average":
        refuse_lost_zeros(context, "share")
    start, pruned = recipe.start, recipe.prune
    one_layer = start and start.kind in architectures.STARTED and architectures.get(start.kind).shares_layers
    if start and (one_layer or start.kind == "shared"):
        raise RecipeError(f"start.kind = {start.kind!r} ties all layers already; leave [share] out.")
    if pruned and pruned.counts and not pruned.uniform:
        raise RecipeError(
            "[prune] keeps heads and intermediate neurons wherever they matter, and layers of different shapes cannot "
            "be tied by [share]. Give prune.uniform = true, which keeps the same number in each layer."
        )
    factorised = recipe.factorise and recipe.factorise.feed_forward
    if factorised and factorised.rank is None and section.what != "attention":
        raise RecipeError(
            "[factorise] gives each feed-forward a rank of its own, and factors of different shapes cannot be tied by "
            "[share]. Give factorise.feed_forward one rank, which all layers get."
        )


def _work(context: Context) -> Work:
    section, task = _section(context), context.recipe.task
    params = {"task": task, "settings": section.model_dump(mode="json")}
    return Work(VERSION, params, DISTRIBUTIONS, make, (SOURCE, task, section), 20)


SHARE = Stage(
    "share",
    folder="shared",
    origin="its layers shared",
    check=_check,
    work=_work,
    trial=lambda context, source: trial(_section(context), source, tasks.get(context.recipe.task)),
)
