"""The recipes that a run depends on: a branch each, with the checkpoints that it will have.

`recipe:NAME` instead of a checkpoint names another recipe, whose trained or compressed checkpoint is made first.
Two-stage distillation is two recipes, of which the second names the first.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from pipeline import compress, tasks
from pipeline.checkpoint.source import RECIPE, Source
from pipeline.compress.distil.checks import needs_teacher
from pipeline.compress.distil.dataset import check_named
from pipeline.data import retrieval
from pipeline.data.datasets import Dataset
from pipeline.errors import RecipeError
from pipeline.execution.node import External, Node
from pipeline.recipe import loading
from pipeline.recipe.schema import Recipe
from pipeline.student import reference
from pipeline.train.checks import check_section

StageName = Literal["train", "compress", "student", "convert", "verify", "benchmark", "report"]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that exists, or that a node will make."""

    source: Source
    """Its files; before a node has made it, the expected config and shapes."""
    node: Node | None = None
    """The node that makes it; None if it exists outside the graph."""

    @property
    def input(self) -> Node | External:
        """The checkpoint as an input of a node: the node that makes it, or its files with their digest."""
        return self.node or External(self.source.folder, self.source.digest, tuple(self.source.files))


@dataclass
class Branch:
    """The checkpoints of one recipe, from the one it names to the one it converts."""

    recipe: Recipe
    file: Path
    before: "dict[str, Branch]" = field(default_factory=dict)
    """The recipes that this one depends on, by the `recipe:NAME` that names them."""
    heads: "dict[str, Branch]" = field(default_factory=dict)
    """The checkpoints of the recipe's other heads, by name."""
    head: str | None = None
    """The name of the head whose checkpoint this is; None for the student itself."""
    named: Checkpoint | None = None
    """The checkpoint that `student.source` names."""
    trained: Checkpoint | None = None
    """The checkpoint after `[train]`; without that section, the named one."""
    last: Checkpoint | None = None
    """The checkpoint after the last compression stage; None until the branch is prepared."""
    trained_on: Dataset | None = None
    """The dataset of `[train]`, or the user's labelled files of `[distil]`."""

    @property
    def end(self) -> Checkpoint:
        """The checkpoint that the recipe converts; the branch must be prepared."""
        assert self.last
        return self.last

    @property
    def datasets(self) -> reference.DatasetChoice:
        """The datasets of the task metric: those of `[verify]`, else the dataset that the student was trained on."""
        if self.recipe.verify.datasets is None and self.trained_on:
            return (self.trained_on,)
        return self.recipe.verify.datasets

    @cached_property
    def collections(self) -> tuple[list[retrieval.Source], dict[str, str]]:
        """The collections by which embeddings are judged in search, and those that are not there, with the reason.

        Raises:
            RecipeError: the task gives no embeddings.
            InputError: a name is neither a collection nor a folder.
        """
        names, key = self.recipe.verify.retrieval or (), "verify.retrieval"
        if names and tasks.get(self.recipe.task).output_kind != "embedding":
            raise RecipeError(f"{self.file}: {key}: task {self.recipe.task} gives no embeddings, which search needs.")
        return retrieval.chosen(names, self.file, key)

    @cached_property
    def judged(self) -> frozenset[str]:
        """The queries and documents of these collections, which nothing learns from."""
        return retrieval.judged_texts(self.recipe.verify.retrieval, self.file)

    def every(self) -> "Iterator[Branch]":
        """Yield the branch and all branches that it depends on."""
        yield self
        for one in (*self.before.values(), *self.heads.values()):
            yield from one.every()

    def place(self, name: str) -> str:
        """Return the place of a view in the recipe's folder; a head's lies in `heads/NAME`."""
        return name if self.head is None else f"heads/{self.head}/{name}"

    def label(self, name: str) -> str:
        """Return the name of a node in plans and progress."""
        return name if self.head is None else f"{name} of {self.head}"


def recipe_sources(recipe: Recipe) -> list[str]:
    """Return the `recipe:NAME` sources in a recipe, each once; a teacher that no loss needs is left out."""
    distil = recipe.distil
    named = [recipe.student.source]
    if distil is not None:
        named += [distil.teacher] if needs_teacher(distil) else []
        named += [distil.augment.model] if distil.augment else []
    if recipe.adapter is not None:
        named.append(recipe.adapter.into)
    return list(dict.fromkeys(place for place in named if place.startswith(RECIPE)))


def read_other(name: str, recipe_file: Path) -> tuple[Recipe, Path]:
    """Read a recipe that another recipe names: one of the library, or a file relative to the other recipe's folder."""
    path = recipe_file.parent / os.path.expanduser(name)
    return loading.read_recipe(str(path) if name.endswith(".toml") else name)


def branch_for(recipe: Recipe, file: Path, waiting: Mapping[Path, str] | None = None) -> Branch:
    """Return the branch of a recipe, with the branches of all recipes that it depends on, recursively.

    Raises:
        RecipeError: a recipe does not exist, names unfit data, makes no checkpoint of its own, or depends on itself.
    """
    _check_data_named(recipe, file)
    waiting = {**(waiting or {}), file.resolve(): recipe.name}
    result = Branch(recipe, file)
    for place in recipe_sources(recipe):
        parsed, other = read_other(place.removeprefix(RECIPE), file)
        if other.resolve() in waiting:
            chain = " → ".join((*waiting.values(), parsed.name))
            raise RecipeError(f"{file}: {place}: recipes wait for each other: {chain}.")
        if parsed.train is None and not compress.stages(parsed):
            raise RecipeError(
                f"{file}: {place}: recipe {parsed.name} neither trains its student nor makes it smaller; name "
                f"what it begins with: {parsed.student.source!r}."
            )
        result.before[place] = branch_for(parsed, other, waiting)
    for name in recipe.heads:
        result.heads[name] = replace(branch_for(recipe.of_head(name), file, waiting), head=name)
    return result


def _check_data_named(recipe: Recipe, file: Path) -> None:
    """Refuse datasets that [train] and [distil] cannot learn from, before any checkpoint is read."""
    try:
        check_section(recipe)
        if recipe.distil:
            check_named(recipe.distil, tasks.get(recipe.task))
    except RecipeError as error:
        raise RecipeError(f"{file}: {error}") from error


def check_names(branches: Iterator[Branch]) -> None:
    """Refuse two recipe files with the same name, which would share one folder of views.

    Raises:
        RecipeError: two files have the same recipe name.
    """
    known: dict[str, Path] = {}
    for one in branches:
        other = known.setdefault(one.recipe.name, one.file)
        if other.resolve() != one.file.resolve():
            raise RecipeError(
                f"{other} and {one.file} are both named {one.recipe.name!r}, the folder of both; rename one."
            )
