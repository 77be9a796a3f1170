"""What a study's run does around its trials: its folder, what an earlier run left, and who is to be trained."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import recipe_file
from filelock import FileLock
from study.records import study, trial
from study.test_study_space import study_file

from pipeline.errors import ArtifactError, RecipeError
from pipeline.execution.local import share_of_cores
from pipeline.execution.node import Estimate, Graph, Needs, Node
from pipeline.fronts import spec
from pipeline.fronts.parts import Parts
from pipeline.fronts.record import TrialRecord
from pipeline.study import graphs, run, space
from pipeline.study.bench import Bench
from pipeline.study.run import _Run


def begun(trials: list[TrialRecord], **more: Any) -> Any:
    """Return a run whose baseline was not measured."""
    made: Any = object.__new__(_Run)
    made._trials = {one.number: one for one in trials}
    made._study = study()
    made._request = SimpleNamespace(file=Path("study.toml"), folder=Path("tried"))
    for name, value in more.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("there", ["file", "link"])
def test_a_folder_that_cannot_be_is_told(there: str, tmp_path: Path) -> None:
    folder = tmp_path / "studies"
    if there == "file":
        folder.touch()
    else:
        folder.symlink_to(tmp_path / "absent" / "place")
    with pytest.raises(ArtifactError, match="studies cannot be written"), run._alone(folder):
        pass


def test_a_study_that_another_process_runs_is_told(tmp_path: Path) -> None:
    told = pytest.raises(ArtifactError, match="another process runs this study")
    with FileLock(tmp_path / ".lock"), told, run._alone(tmp_path):
        pass


def test_trials_are_trained_if_any_of_them_learns(tmp_path: Path) -> None:
    recipe_file(tmp_path)
    path = study_file(tmp_path)
    base = space.base(spec.read(path), path)
    plain = trial(0, 0.9, 20.0, choice={"prune.compute": "none"})
    refined = trial(1, 0.8, 10.0, choice={"prune.compute": 0.5})
    made = begun([plain, refined], _bench=SimpleNamespace(base=base))
    assert made._trains([plain, refined]), "the first one alone learns nothing"
    assert not made._trains([plain])
    assert not made._trains([])


def test_trainings_of_one_graph_share_the_cores_of_a_machine_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def training(name: str, needs: Needs = "machine", **inputs: Node) -> Node:
        return Node("tiny", name, name, name, 1, {}, inputs, {}, dict, (), Estimate(1, 1), needs)

    begun = training("prune", "core")
    first, second = (training(name, prune=begun) for name in ("first", "second"))
    alone, both = Graph("tiny"), Graph("tiny")
    alone.include(first)
    both.include(training("judge", "core", first=first), second)
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    assert graphs.side_by_side(alone) is alone
    found = graphs.side_by_side(both)
    assert [*found.nodes] == [*both.nodes], "the same artifacts in the same order"
    assert {node.needs for node in found.nodes.values()} == {"core"}
    assert {found.nodes[one.identity].threads for one in (first, second)} == {share_of_cores(2)}
    assert found.nodes[begun.identity].threads is None
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    assert graphs.side_by_side(both) is both


def test_a_bound_that_came_later_is_held_or_refused() -> None:
    parts = Parts(table=1, others=1, layers=1, linear_macs=1, attention_macs=1, activations=1, states=1)
    old = trial(0, 0.9, 20.0, parts=parts)
    bench: Any = object.__new__(Bench)
    bench.study = study(budget={"macs_m": 3.0})
    bench.baseline = SimpleNamespace(
        models={old.target: None}, latencies_ms={}, estimates=lambda *_: {"size_mb": 19.0, "macs_m": 5.0}
    )
    assert bench.by_this_baseline(old).measures == {"metric": 0.9, "size_mb": 19.0, "macs_m": 5.0}
    made = begun([old])
    made._check_measured()
    made._study = study(budget={"recall_at_10": 0.5}, judge={"retrieval": ["stsb_partners"]})
    with pytest.raises(RecipeError, match=r"recall_at_10 was not measured of the trials.*another name"):
        made._check_measured()


def test_a_space_that_was_gone_through_is_not_asked_again() -> None:
    said: list[str] = []
    tried = [trial(0, 0.9, 20.0, choice={"prune.compute": 0.5})]
    proposer = SimpleNamespace(settle=lambda *_: None)
    made = begun(
        tried,
        _proposer=proposer,
        _bench=SimpleNamespace(bounds={}),
        _progress=SimpleNamespace(note=said.append),
    )
    made._study = study(space={"prune.compute": [0.5]})
    assert made._compressed()
    assert said == ["the space has no other choices: 1 were tried"]
