"""Share stage: layers of a trained student are tied, as ALBERT's are from the start, and each tied part is stored once.

A plain average of layers is meaningless: heads and feed-forward rows of two layers stand in any order. They are brought
into the order of the group's first layer before anything is averaged; what is left still differs by more than order, so
a tied student needs distillation from the untied one to be any good.

transformers' AlbertConfig knows two kinds: all parameters, and groups of layers. Attention alone, feed-forward alone,
and ties in BERT's or DistilBERT's layout live under config.json's key `pocketbert`, see `pipeline.checkpoint.shapes`.

Source: Lan et al. 2020 (ALBERT), section 3.1 and table 4; Ainsworth et al. 2023 (Git Re-Basin), matching of weights.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.checkpoint import layers
from pipeline.checkpoint.layers import Layer
from pipeline.checkpoint.source import Source
from pipeline.compress.prune.structure import layer_count
from pipeline.errors import RecipeError, StudentError
from pipeline.recipe.compression import ShareSection
from pipeline.tasks import Task
from pipeline.text import tokenizers

VERSION = 1
DISTRIBUTIONS = ("torch", "transformers", "scipy")
"""What decides the tied checkpoint."""
PARTS: Mapping[str, tuple[str, ...]] = {
    "all": ("attention", "feed_forward"),
    "attention": ("attention",),
    "feed_forward": ("feed_forward",),
}


def check(section: ShareSection, source: Source, task: Task) -> None:
    """Refuse ties that cannot be made, or that tie nothing.

    Raises:
        RecipeError: as many groups as layers.
        StudentError: the checkpoint's layers cannot be taken apart, or share already.
    """
    layout = layers.layout_of(source.architecture.model_type)
    said = source.config.get("pocketbert") or {}
    if layout.inner or said.get("attention") or said.get("feed_forward"):
        raise StudentError(f"{source.origin} shares parameters between its layers already; leave [share] out.")
    _check_groups(section.groups, layer_count(source))


def _check_groups(groups: int, count: int) -> None:
    if groups >= count:
        raise RecipeError(f"share.groups = {groups} ties nothing in {count} layers; ask for fewer groups.")


def grouped(count: int, groups: int) -> list[list[int]]:
    """Return the numbers of each group's layers.

    Source: transformers, AlbertTransformer: layer i is in group i // (layers / groups).
    """
    return [[number for number in range(count) if number * groups // count == group] for group in range(groups)]


def make(source: Path, task_name: str, section: ShareSection, out: Path) -> dict[str, Any]:
    """Write the checkpoint with ties. Runs in a worker, since it imports torch.

    Args:
        source: a folder in Hugging Face layout, plain or compressed.
        task_name: a row of `pipeline.tasks`.
        section: of the recipe.
        out: the artifact's directory.

    Returns:
        Parameters before and after, the groups, and how far layers are from what their group begins with.

    Raises:
        RecipeError: as many groups as layers.
        StudentError: the checkpoint does not load, shares already, or has layers of different shapes in a group.
    """
    from pipeline import tasks
    from pipeline.checkpoint import loading as checkpoint
    from pipeline.checkpoint import shapes
    from pipeline.compress.share import tying

    model = checkpoint.load_checkpoint(source, tasks.get(task_name))
    found = layers.layers(model)
    if found[0].layout.inner or shapes.sharing(model) != (None, None):
        raise StudentError(f"{source} shares parameters between its layers already; leave [share] out.")
    _check_groups(section.groups, len(found))
    before = sum(parameter.numel() for parameter in model.parameters())
    groups = grouped(len(found), section.groups)
    for part in PARTS[section.what]:
        for group in groups:
            _check_shapes(part, {number: found[number] for number in group}, source)
    distances = [
        tying.tie([found[number] for number in group], part, section.start)
        for part in PARTS[section.what]
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


def _check_shapes(part: str, group: Mapping[int, Layer], source: Path) -> None:
    """Refuse a group whose layers were pruned or factorised to different shapes."""
    from pipeline.compress.share import tying

    (first, layer), *others = group.items()
    wanted = tying.sizes(layer, part)
    for number, other in others:
        found = tying.sizes(other, part)
        for name in sorted(wanted.keys() | found.keys()):
            if wanted.get(name) != found.get(name):
                shapes = " and ".join(str(sizes.get(name, "none")) for sizes in (wanted, found))
                raise StudentError(
                    f"{source}: layers {first} and {number} cannot share their {part}: {name} has shapes {shapes}. "
                    "Prune with prune.uniform = true, which keeps the same numbers in each layer, or tie other groups."
                )
