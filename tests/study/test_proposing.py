"""Optuna's journal: each choice is proposed once, a killed run is settled, and another space is refused."""

from pathlib import Path

import pytest
from study.records import study, trial

from pipeline.errors import ArtifactError, RecipeError
from pipeline.fronts import record
from pipeline.fronts.record import TrialRecord
from pipeline.fronts.spec import Study
from pipeline.study.proposing import Proposer

BOUNDS = {"size_mb": (10.0, False)}


def proposer(folder: Path, values: Study, **recipe: str) -> Proposer:
    return Proposer(values, Path("study.toml"), folder, recipe)


def outcome(number: int, compute: float) -> TrialRecord:
    """Return what a made-up student would be: the more is kept, the better and the larger."""
    return trial(number, 0.5 + 0.4 * compute, 20 * compute, choice={"prune.compute": compute})


def test_what_was_told_is_not_asked_again_and_proposals_go_where_the_budget_is(tmp_path: Path) -> None:
    asked = []
    for _ in range(3):
        # As three runs, of which each goes on where the one before ended.
        found = proposer(tmp_path, study(trials={"compressed": 45}))
        for _ in range(15):
            proposal, choice = found.ask()
            asked.append(choice["prune.compute"])
            found.tell(proposal, outcome(proposal.number, choice["prune.compute"]), BOUNDS)
        found.seconds += 5.0
    assert proposer(tmp_path, study(trials={"compressed": 45})).seconds == 15.0
    # Half of the space is within the budget.
    assert sum(20 * one <= 10 for one in asked[15:]) > 18


def test_what_a_killed_run_left_is_told_or_made_again(tmp_path: Path) -> None:
    found = proposer(tmp_path, study())
    (known, of_known), (lost, of_lost) = found.ask(), found.ask()
    kept = outcome(known.number, of_known["prune.compute"])
    record.append(tmp_path, kept)
    # Killed here: neither was told, and a line of the journal is cut short, under Optuna's lock.
    with (tmp_path / record.JOURNAL).open("ab") as journal:
        journal.write(b'{"op_code":6,"worker_id":"75760')
    (tmp_path / f"{record.JOURNAL}.lock").symlink_to("journal.log")
    again = proposer(tmp_path, study())
    again.settle(record.read_trials(tmp_path), BOUNDS)
    number, choice = again.ask()
    assert choice == of_lost
    assert number.number not in (known.number, lost.number)
    settled = again._proposals.get_trials(deepcopy=False)
    assert [one.state.name for one in settled] == ["COMPLETE", "FAIL", "RUNNING"]
    assert settled[0].values == [kept.measures["metric"], kept.measures["size_mb"]]


def test_trials_without_their_journal_are_refused_since_new_ones_would_take_their_numbers(tmp_path: Path) -> None:
    found = proposer(tmp_path, study())
    asked, choice = found.ask()
    kept = {asked.number: outcome(asked.number, choice["prune.compute"])}
    found.settle(kept, BOUNDS)
    (tmp_path / record.JOURNAL).unlink()
    with pytest.raises(ArtifactError, match=r"trials\.jsonl has trial 0.*Remove the folder"):
        proposer(tmp_path, study()).settle(kept, BOUNDS)


@pytest.mark.parametrize("content", [b"no journal\n", b"\xff\xfe\n", b"{}\n", b"[]\n"])
def test_a_journal_that_is_damaged_is_told(content: bytes, tmp_path: Path) -> None:
    proposer(tmp_path, study())
    with (tmp_path / record.JOURNAL).open("r+b") as journal:
        journal.write(content)
    with pytest.raises(ArtifactError, match=r"journal\.log is damaged.*Remove"):
        proposer(tmp_path, study())


def test_other_rows_to_judge_by_are_refused_and_a_journal_without_their_digest_goes_on(tmp_path: Path) -> None:
    Proposer(study(), Path("study.toml"), tmp_path, {}, "rows")
    with pytest.raises(RecipeError, match="another data"):
        Proposer(study(), Path("study.toml"), tmp_path, {}, "other rows")
    begun = Proposer(study(), Path("study.toml"), tmp_path, {}, "rows")
    before = dict(begun._proposals.user_attrs["spec"])
    del before["data"]
    begun._proposals.set_user_attr("spec", before)
    Proposer(study(), Path("study.toml"), tmp_path, {}, "rows")
    with pytest.raises(RecipeError, match="another data"):
        Proposer(study(), Path("study.toml"), tmp_path, {}, "other rows")


def test_a_space_that_changed_is_refused_and_a_budget_may_change(tmp_path: Path) -> None:
    proposer(tmp_path, study())
    proposer(tmp_path, study(budget={"size_mb": 3}, hours=9.0))
    with pytest.raises(RecipeError, match=r"another space.*Give the study another name"):
        proposer(tmp_path, study(space={"prune.compute": [0.5]}))
    with pytest.raises(RecipeError, match="another recipe"):
        proposer(tmp_path, study(), name="changed")
    with pytest.raises(RecipeError, match="another objectives"):
        proposer(tmp_path, study(objectives=["metric"]))
