"""The stage: layers of a trained student are tied, as ALBERT's are from the start.

A plain average of layers is meaningless, since heads and intermediate neurons of two layers are in any order. They are
brought into the order of the group's first layer before anything is averaged. The layers still differ by more than
order, so a tied student needs distillation from the untied one to be any good.

transformers' AlbertConfig knows two kinds: all parameters, and groups of layers. Attention alone, feed-forward alone,
and ties in BERT's or DistilBERT's layout live under config.json's key `pocketbert`, see `pipeline.checkpoint.shapes`.

Source: Lan et al. 2020 (ALBERT), section 3.1 and table 4; Ainsworth et al. 2023 (Git Re-Basin), matching of weights.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline import tasks
from pipeline.checkpoint import layers
from pipeline.checkpoint.layers import Layer
from pipeline.checkpoint.source import Source
from pipeline.compress.prune.structure import SublayerKind, layer_count
from pipeline.errors import RecipeError, StudentError
from pipeline.recipe.compression import ShareSection
from pipeline.tasks import Task
from pipeline.text import tokenizers

VERSION = 1
DISTRIBUTIONS = ("torch", "transformers", "scipy")
"""Packages that decide the tied checkpoint."""
SHARED: Mapping[str, tuple[SublayerKind, ...]] = {
    "all": ("attention", "feed_forward"),
    "attention": ("attention",),
    "feed_forward": ("feed_forward",),
}
"""Sublayers that are tied, by `share.what`."""


def check(section: ShareSection, source: Source, task: Task) -> None:
    """Refuse ties that cannot be made, or that tie nothing.

    Raises:
        RecipeError: as many groups as layers.
        StudentError: the checkpoint's layers cannot be taken apart, or share already.
    """
    layout = layers.layout_of(source.architecture.model_type)
    compressed = source.config.get("pocketbert") or {}
    if layout.inner or compressed.get("attention") or compressed.get("feed_forward"):
        raise StudentError(f"{source.origin} shares parameters between its layers already; leave [share] out.")
    _check_groups(section.groups, layer_count(source))


def _check_groups(groups: int, count: int) -> None:
    if groups >= count:
        raise RecipeError(f"share.groups = {groups} ties nothing in {count} layers; ask for fewer groups.")


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
    every = layers.layers(model)
    if every[0].layout.inner or shapes.sharing(model) != (None, None):
        raise StudentError(f"{source} shares parameters between its layers already; leave [share] out.")
    _check_groups(section.groups, len(every))
    before = sum(parameter.numel() for parameter in model.parameters())
    groups = layer_groups(len(every), section.groups)
    for kind in SHARED[section.what]:
        for group in groups:
            _check_shapes(kind, {number: every[number] for number in group}, source)
    distances = [
        tie([every[number] for number in group], kind, section.start)
        for kind in SHARED[section.what]
        for group in groups
    ]
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


def _check_shapes(kind: SublayerKind, group: Mapping[int, Layer], source: Path) -> None:
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
                    f"{source}: layers {first} and {number} cannot share their {kind}: {name} has shapes {both}. "
                    "Prune with prune.uniform = true, which keeps the same numbers in each layer, or tie other groups."
                )
