"""Proposals of a study: Optuna's journal and sampler, told the outcome of each trial, and settled after a kill.

A tree-structured Parzen estimator with several objectives and constraints proposes (Bergstra et al. 2011; Ozaki et al.
2022).
"""

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import atomic
from pipeline.artifact import digest_of
from pipeline.errors import ArtifactError, RecipeError, ToolchainError
from pipeline.fronts import record, selection
from pipeline.fronts.record import TrialRecord
from pipeline.fronts.spec import LARGER_IS_BETTER, Range, Study, label
from pipeline.study import space
from pipeline.study.space import Choice

if TYPE_CHECKING:
    import optuna

_SECONDS, _SPEC, _BEYOND = "seconds", "spec", "beyond"
_FIXED = ("recipe", "objectives", "space", "judge", "data", "student")
"""What a study that goes on cannot change, besides what its recipe says."""


class Proposer:
    """Proposes choices, each once."""

    def __init__(
        self,
        study: Study,
        study_file: Path,
        folder: Path,
        recipe: Mapping[str, Any],
        data: str | None = None,
        student: str | None = None,
    ) -> None:
        """Open the study's journal, or begin it.

        Args:
            study: the study.
            study_file: where it was read, for messages.
            folder: of the journal.
            recipe: the recipe that every trial begins with, as TOML has it.
            data: digest of what trials are judged on.
            student: content digest of the checkpoint that the recipe begins with; None if a recipe makes it.

        Raises:
            ToolchainError: Optuna is not installed.
            RecipeError: the study was begun with another space.
        """
        self._optuna, self._study, self._folder = load_optuna(), study, folder
        now = study.model_dump(mode="json", include=set(_FIXED), by_alias=False)
        now["recipe"] = [study.recipe, digest_of(recipe)]
        now |= {"data": data, "student": student}
        self._proposals = _open(self._optuna, study, study_file, folder, now)

    @property
    def seconds(self) -> float:
        """Seconds that were spent on the study until now."""
        return float(self._proposals.user_attrs.get(_SECONDS, 0.0))

    @seconds.setter
    def seconds(self, value: float) -> None:
        self._proposals.set_user_attr(_SECONDS, value)

    def ask(self) -> tuple["optuna.Trial", Choice]:
        """Propose a choice."""
        trial = self._proposals.ask()
        return trial, space.suggest(self._study, trial)

    def tell(self, trial: "optuna.Trial", kept: TrialRecord | None, bounds: selection.Bounds) -> None:
        """Tell the outcome of a proposal; None stands for a choice that is no student."""
        if kept is None or kept.failed is not None:
            self._proposals.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)
            return
        trial.set_user_attr(_BEYOND, list(record.violations(kept.measures, bounds).values()))
        self._proposals.tell(trial.number, [kept.measures[name] for name in self._study.objectives])

    def settle(self, trials: dict[int, TrialRecord], bounds: selection.Bounds) -> None:
        """Tell what a killed run did not; proposals that it left in the middle are made again.

        Raises:
            ArtifactError: the trials are not those of the journal, so that new ones would take their numbers.
        """
        proposed = {one.number: one.params for one in self._proposals.get_trials(deepcopy=False)}
        for number, one in trials.items():
            if not _is_of(one.choice, proposed.get(number), self._study):
                raise ArtifactError(
                    f"{self._folder}: {record.TRIALS} has trial {number}, and {record.JOURNAL} does not: one of the "
                    "two was damaged, removed, or is another study's. Remove the folder; artifacts in the store stay, "
                    "and are found again."
                )
        states = self._optuna.trial.TrialState
        for left in self._proposals.get_trials(deepcopy=False, states=(states.RUNNING,)):
            known = trials.get(left.number)
            self.tell(self._optuna.Trial(self._proposals, left._trial_id), known, bounds)
            if known is None and left.params:
                self._proposals.enqueue_trial(left.params)


def _is_of(choice: Choice, params: Mapping[str, Any] | None, study: Study) -> bool:
    """Return whether a choice is what a proposal's parameters say."""
    for key, value in choice.items() if params is not None else ():
        given = (params or {}).get(key)
        if isinstance(study.space.get(key), Range):
            same = isinstance(given, float | int) and math.isclose(given, value, rel_tol=1e-3, abs_tol=1e-6)
        else:
            same = given == label(value)
        if not same:
            return False
    return params is not None


def load_optuna() -> Any:
    """Import Optuna.

    Raises:
        ToolchainError: it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise ToolchainError("Optuna is not installed; `pip install -e '.[study]'` in PocketBERT's folder.") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _repair(journal: Path) -> None:
    """Take away what a killed run left: its lock and a line that was cut short.

    Optuna's lock is a link; where its path is relative, the next run would wait for it for ever. Behind half a line it
    reads nothing. The study's own lock keeps other processes away.
    """
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
    if journal.is_file():
        with journal.open("rb+") as handle:
            handle.truncate(handle.read().rfind(b"\n") + 1)


@contextmanager
def _reading(journal: Path) -> Iterator[None]:
    """Say which file is damaged, or cannot be written.

    Raises:
        ArtifactError: it is.
    """
    try:
        with atomic.writing(journal.parent):
            yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        said = next(iter(str(error).splitlines()), type(error).__name__)
        raise ArtifactError(
            f"{journal} is damaged, or is no journal of a study: {said}. "
            f"Remove {journal.parent}; artifacts in the store stay, and are found again."
        ) from error


def _open(optuna: Any, study: Study, study_file: Path, folder: Path, now: Mapping[str, Any]) -> "optuna.Study":
    """Open a study's journal, or begin it.

    Raises:
        RecipeError: the study was begun with another space.
        ArtifactError: the journal is damaged.
    """
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    journal = folder / record.JOURNAL
    with atomic.writing(folder):
        _repair(journal)
    signs = ["maximize" if LARGER_IS_BETTER[name] else "minimize" for name in study.objectives]
    with warnings.catch_warnings(), _reading(journal):
        # Constraints and groups of several parameters are marked as experimental.
        warnings.simplefilter("ignore")
        sampler = optuna.samplers.TPESampler(
            seed=study.trials.seed,
            multivariate=True,
            constant_liar=True,
            n_startup_trials=min(16, max(4, study.trials.compressed // 4)),
            constraints_func=lambda trial: trial.user_attrs.get(_BEYOND, [0.0]),
        )
        found = optuna.create_study(
            study_name=study.name,
            storage=JournalStorage(JournalFileBackend(str(journal))),
            sampler=sampler,
            directions=signs,
            load_if_exists=True,
        )
    before = found.user_attrs.get(_SPEC)
    # A study that was begun by an earlier version lacks digests of its data and student.
    if before is None or before == {name: value for name, value in now.items() if name in before} != now:
        found.set_user_attr(_SPEC, dict(now))
    elif before != now:
        changed = next(name for name in _FIXED if before.get(name) != now.get(name))
        raise RecipeError(
            f"{study_file}: {folder} was begun with another {changed}, and its trials would not be "
            "comparable. Give the study another name, or remove that folder."
        )
    return found  # type: ignore[no-any-return]  # Optuna is imported late
