"""A sample of `make abuse`: commands are killed, given bad inputs and prepared folders, and lose nothing."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from abuse import disks, hostile, inputs, kills, scene
from abuse.findings import HELD, NOT_RUN, TOO_LATE
from abuse.forked import Forks

pytestmark = pytest.mark.toolchain
SEED = 20
INPUTS = range(0, 60, 3)
"""Every third of them; `make abuse` gives all."""
HOSTILE = range(0, 24)


@pytest.fixture(scope="module")
def project() -> Path:
    """A small project, run to its verdicts and shipped."""
    return scene.project(make_whole=False)


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """A process that has imported everything."""
    with closing(Forks()) as forks:
        yield forks


def test_bad_inputs_are_refused_in_one_line(project: Path, forks: Forks) -> None:
    found = inputs.cases(project, SEED)
    assert len(found) >= 250
    findings = [inputs.give(project, found, forks, number) for number in INPUTS]
    assert not [(one.group, one.what, one.said) for one in findings if one.outcome != HELD]


@pytest.mark.full
def test_nothing_outside_of_prepared_folders_is_touched(project: Path, forks: Forks) -> None:
    found = hostile.cases(SEED)
    assert len(found) >= 80
    findings = [hostile.give(project, found, forks, number) for number in HOSTILE]
    assert not [(one.group, one.what, one.said) for one in findings if one.outcome != HELD]


def test_a_full_disk_is_no_verdict_on_a_file(project: Path) -> None:
    """Where `verify` has no room for its temporary files, that is said, and no verdict is kept."""
    finding = disks.fill(project, 0, 42)
    assert (finding.group, finding.what) == ("verify", "164763 bytes left")
    if finding.outcome == NOT_RUN:
        pytest.skip(finding.said[0])
    assert (finding.outcome, finding.code) == (HELD, 2), finding.said


@pytest.mark.parametrize("number", [0, 1])
def test_a_killed_command_leaves_what_was_finished(number: int, project: Path) -> None:
    finding = kills.kill(project, SEED, number)
    assert finding.outcome in (HELD, TOO_LATE, NOT_RUN), (finding.group, finding.what, finding.said)
