"""Tools of the apps, run as commands: what they printed is returned, or printed where they fail or hang."""

import subprocess
from pathlib import Path

import psutil
import pytest
from apps import toolchains


def test_what_a_tool_printed_is_returned(tmp_path: Path) -> None:
    said = toolchains.run(["sh", "-c", "pwd; echo $WHAT >&2"], tmp_path, {"WHAT": "ever"})
    assert said.split() == [str(tmp_path), "ever"]


def test_what_a_failing_tool_printed_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        toolchains.run(["sh", "-c", "echo no such module; exit 3"], tmp_path)
    assert failed.value.returncode == 3
    assert capsys.readouterr().out == "no such module\n\n"


def test_a_tool_that_hangs_is_killed_with_all_that_it_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = "echo building; sleep 500 & echo $! >child; wait"
    with pytest.raises(subprocess.CalledProcessError):
        toolchains.run(["sh", "-c", script], tmp_path, limit_seconds=3)
    said = capsys.readouterr().out
    assert "not ended after 3 s, so it was killed: sh -c" in said
    assert said.endswith("building\n\n")
    child = int((tmp_path / "child").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_a_daemon_that_a_tool_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    """It keeps what the tool printed to open, as Kotlin's does."""
    said = toolchains.run(["sh", "-c", "sleep 500 & echo $!"], tmp_path, limit_seconds=100)
    daemon = psutil.Process(int(said))
    assert daemon.is_running()
    daemon.kill()
