"""Rows of a benchmark table as data: each is a recipe for each of its seeds, and the row that it is compared with.

A row's recipe is written as TOML, so that the ordinary command takes it as well:
`pocketbert run build/tables/compression/recipes/sst2-half-0.toml --build build/tables/compression`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tomli_w

from pipeline import compress, formats
from pipeline.artifact import digest_of
from pipeline.checkpoint import source as student
from pipeline.compress import factorise, prune, share, start, vocabulary
from pipeline.compress.distil import stage as distil
from pipeline.convert import stage as convert
from pipeline.data import datasets as data
from pipeline.errors import InputError
from pipeline.metrics import scoring
from pipeline.recipe import loading
from pipeline.recipe import loading as recipe
from pipeline.recipe.losses import loss_versions
from pipeline.recipe.schema import Recipe
from pipeline.student import reference
from pipeline.student import stage as student_stage
from pipeline.train import stage as finetune
from pipeline.verify import stage as verify

REPOSITORY = Path(__file__).resolve().parent.parent
BUILD = REPOSITORY / "build" / "tables"
"""One folder a table, and the lock that lets one run work at a time."""
BUNDLED = "bundled:all-MiniLM-L6-v2"
FAST = {"precision": "bf16"}
"""Precision of matrix products, twice as fast on a CPU that has it; weights, losses and what is judged are fp32."""
_SEEDED = ("head", "train", "start", "prune", "factorise", "distil")
"""Sections with a seed; a row's seed is that of all of them."""
_VERSIONS = {
    "train": finetune.VERSION,
    "start": start.VERSION,
    "vocabulary": vocabulary.VERSION,
    "prune": prune.VERSION,
    "factorise": factorise.VERSION,
    "share": share.VERSION,
    "distil": distil.VERSION,
    "head": distil.VERSION,
}
"""Versions of the stages that a section asks for: a record of another version is of older code."""
_SCHEMA = 1


@dataclass(frozen=True)
class Bound:
    """What a row has to keep, in points of its metric, on the mean of its seeds."""

    points: float
    kind: Literal["most_lost", "least"]
    """`most_lost`: against the row that it is compared with; `least`: of the metric itself."""

    def __str__(self) -> str:
        return f"≤ {self.points:g} lost" if self.kind == "most_lost" else f"≥ {self.points:g}"


@dataclass(frozen=True)
class Row:
    """One row: what is made, of what, how often, and what it is compared with."""

    name: str
    said: str
    """What a reader of the table is told."""
    task: str
    sections: Mapping[str, Mapping[str, Any]]
    """Those of the recipe that train or compress; the seed is put in."""
    dataset: str | None = None
    """It is judged on; None where it is only made, for other rows."""
    seeds: tuple[int, ...] = (0,)
    source: str | None = None
    """The row whose student it begins with; None: `student`."""
    student: str | None = None
    """What it begins with where that is no row; None: the table's own."""
    teacher: str | None = None
    """The row whose student teaches `[distil]`; None: the source."""
    against: str | None = None
    bound: Bound | None = None
    files: bool = False
    """Whether its first seed is converted and judged in every format."""
    minutes: float = 5.0
    """Estimate for one seed on two idle cores."""


@dataclass(frozen=True)
class Trial:
    """One seed of a row."""

    row: Row
    seed: int

    @property
    def name(self) -> str:
        """Name of its recipe, its folder and its record."""
        return f"{self.row.name}-{self.seed}"


@dataclass(frozen=True)
class Table:
    """All rows, and where what becomes of them goes."""

    name: str
    rows: tuple[Row, ...]
    targets: Mapping[str, Any]
    lengths: Mapping[str, Sequence[int]]
    """Sequence lengths of the files, by task."""
    retrieval: Sequence[str] = ()
    """Collections by which embeddings are judged in search, beside the row's dataset."""
    student: str = BUNDLED
    random_weights: bool = False
    """Whether the student was never trained, as in tests."""
    build: Path = BUILD
    records: Path = REPOSITORY / "benchmarks" / "results"
    pages: Path = REPOSITORY / "benchmarks"

    @property
    def folder(self) -> Path:
        """Folder of its artifacts, with one folder a trial."""
        return self.build / self.name

    def row(self, name: str) -> Row:
        """Return a row.

        Raises:
            InputError: there is none of this name.
        """
        found = next((row for row in self.rows if row.name == name), None)
        if found is None:
            raise InputError(f"row {name!r} does not exist; there are: {', '.join(row.name for row in self.rows)}.")
        return found

    def trials(self) -> list[Trial]:
        """Return every seed of every row in the order of work: first seeds first, each after what it is made of."""
        most = max(len(row.seeds) for row in self.rows)
        return [Trial(row, row.seeds[at]) for at in range(most) for row in self.rows if at < len(row.seeds)]

    def near(self, name: str, seed: int) -> Trial:
        """Return the trial of another row that goes with a seed: the same one, or the only one."""
        row = self.row(name)
        return Trial(row, seed if seed in row.seeds else row.seeds[0])

    def parents(self, trial: Trial) -> list[Trial]:
        """Return the trials that one is made of."""
        named = dict.fromkeys(name for name in (trial.row.source, trial.row.teacher) if name)
        return [self.near(name, trial.seed) for name in named]

    def judged(self) -> Iterator[Row]:
        """Yield the rows that have a metric."""
        return (row for row in self.rows if row.dataset is not None)


# --- a trial as a recipe -----------------------------------------------------------------------------------------


def parsed(table: Table, trial: Trial) -> Recipe:
    """Return a trial's recipe."""
    return loading.checked(_values(table, trial), recipe_file(table, trial))


def recipe_file(table: Table, trial: Trial) -> Path:
    """Return where a trial's recipe is written."""
    return table.folder / "recipes" / f"{trial.name}.toml"


def write(table: Table, trial: Trial) -> tuple[Recipe, Path]:
    """Write a trial's recipe for the ordinary command.

    Raises:
        RecipeError: it says something that cannot be carried out.
    """
    path = recipe_file(table, trial)
    path.parent.mkdir(parents=True, exist_ok=True)
    said = f"# {trial.row.said}. Row {trial.row.name} of benchmarks/{table.name}_rows.py, seed {trial.seed}.\n"
    text = said + tomli_w.dumps(_values(table, trial))
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
    return recipe.read_recipe(str(path))


def product(expected: Recipe) -> str:
    """Return the folder, below the recipe's own, of the checkpoint that a recipe ends in.

    Raises:
        InputError: it neither trains nor compresses.
    """
    stages = [*(["trained"] if expected.train else []), *(stage.folder for stage in compress.stages(expected))]
    if not stages:
        raise InputError(
            f"row {expected.name} makes nothing of its student, so nothing can be made of it; name no source."
        )
    return stages[-1]


def _values(table: Table, trial: Trial) -> dict[str, Any]:
    """Return a recipe as TOML has it."""
    row = trial.row
    sections: dict[str, Any] = {name: dict(section) for name, section in row.sections.items()}
    for name in _SEEDED:
        if name in sections:
            sections[name]["seed"] = trial.seed
    if row.teacher:
        sections["distil"]["teacher"] = _place(table, table.near(row.teacher, trial.seed))
    begin = {
        "source": _place(table, table.near(row.source, trial.seed)) if row.source else row.student or table.student
    }
    searched = {"retrieval": list(table.retrieval)} if table.retrieval and row.task == "embedding" else {}
    return {
        "name": trial.name,
        "task": row.task,
        "student": begin | ({"random_weights": True} if table.random_weights and "train" not in sections else {}),
        **sections,
        "convert": {"sequence_lengths": list(table.lengths[row.task])},
        "targets": {backend: {"schemes": list(schemes)} for backend, schemes in table.targets.items()},
        "verify": {"datasets": [row.dataset or "none"]} | searched,
    }


def _place(table: Table, parent: Trial) -> str:
    return f"../{parent.name}/{product(parsed(table, parent))}"


# --- what a record has to be of ----------------------------------------------------------------------------------


def settings(table: Table, trial: Trial) -> str:
    """Return the sha256 over what a trial was asked to be: its and its parents' settings, its student, its judge.

    No code is in it: a record of these settings made by older code is shown, and marked.
    """
    values = _values(table, trial)
    parents = [settings(table, parent) for parent in table.parents(trial)]
    return digest_of(
        [_SCHEMA, _asked(values), parents, _weights(values), trial.row.dataset, max(table.lengths[trial.row.task])]
    )


def _asked(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a recipe asks a checkpoint to be."""
    return {name: value for name, value in values.items() if name not in ("convert", "targets", "verify")}


def _weights(values: Mapping[str, Any]) -> list[str]:
    """Return the digests of the bundled students that a recipe begins with or learns from."""
    named = (values["student"]["source"], values.get("distil", {}).get("teacher"))
    return [row.weights_sha256 for name, row in student.BUNDLED.items() if f"bundled:{name}" in named]


def newer(made: Mapping[str, int]) -> list[str]:
    """Return the stages whose code is newer than what made a record.

    Args:
        made: version of each stage that made it, by its name.
    """
    here = {name: version for name, version in _VERSIONS.items() if name != "head"}
    here |= {"student": student_stage.VERSION, "reference": reference.VERSION}
    return [name for name, version in made.items() if name in here and here[name] != version]


def made_key(table: Table, trial: Trial) -> str:
    """Return the sha256 over what decides a trial's checkpoint: its settings and parents, the code of its stages."""
    values = _values(table, trial)
    stages = {name: _VERSIONS.get(name) for name in trial.row.sections}
    parents = [made_key(table, parent) for parent in table.parents(trial)]
    newer_losses = loss_versions(values.get("distil", {}).get("losses", ()))
    more = [newer_losses] if newer_losses else []
    return digest_of([_SCHEMA, _asked(values), stages, parents, _weights(values), *more])


def key(table: Table, trial: Trial) -> str:
    """Return the sha256 over what decides a trial's record: its checkpoint, and how it is judged."""
    values = _values(table, trial)
    how = {name: values[name] for name in ("convert", "targets", "verify")}
    versions = [student_stage.VERSION, reference.VERSION]
    writers = {name: formats.get(name).VERSION for name in values["targets"]}
    files: list[Any] = [convert.VERSION, verify.VERSION, writers] if with_files(trial) else []
    # Left out where it is the first one, so that what it did not change stays what it is.
    judged = scoring.METRICS[data.DATASETS[trial.row.dataset].metric].version if trial.row.dataset else 1
    if files and judged > 1:
        files.append(judged)
    return digest_of([made_key(table, trial), how, versions, files])


def with_files(trial: Trial) -> bool:
    """Return whether a trial is converted: one seed of a row is."""
    return trial.row.files and trial.seed == trial.row.seeds[0]
