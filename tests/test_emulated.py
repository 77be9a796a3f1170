"""ARM64 without an emulator: which rows are taken, how they are scored, and what is said where tools are missing."""

from pathlib import Path

import numpy as np
import pytest
from conftest import run_command

from pipeline.devices import arm64
from pipeline.errors import ToolchainError
from pipeline.verify import emulated


def test_a_row_that_is_not_finite_or_has_no_direction_is_the_worst() -> None:
    truth = [np.ones(4), np.ones(4), np.ones(4)]
    found = [np.array([1, 1, 1, 1], np.float32), np.array([1, np.nan, 1, 1], np.float32), np.zeros(4, np.float32)]
    assert emulated._scores(truth, found, embedding=True).tolist() == [pytest.approx(1.0), -1.0, -1.0]
    scores = emulated._scores(truth, found, embedding=False)
    assert scores.tolist() == [200.0, -200.0, pytest.approx(0.0)]


def test_missing_tools_and_packages_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCKETBERT_DEVICES", str(tmp_path / "nowhere"))
    with pytest.raises(ToolchainError, match=r"no emulator in .*nowhere\. On Debian `sudo \.ci/devices` unpacks one"):
        arm64.find(tmp_path, install=False, note=lambda text: None)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "version").touch()
    monkeypatch.setenv("POCKETBERT_DEVICES", str(tmp_path / "tree"))
    with pytest.raises(ToolchainError, match=r"ai-edge-litert==.* for ARM64 are not in .*; --install downloads them"):
        arm64.find(tmp_path, install=False, note=lambda text: None)


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (["--cpu", "cortex-m4"], 2, "--cpu cortex-m4 is not emulated; there are: cortex-a53, cortex-a76, cortex-a710"),
        (["--target", "coreml"], 2, "there is no target of litert among those of minilm that are asked for"),
        ([], 3, "there is no emulator in"),
    ],
)
def test_the_command_refuses_in_one_line(given: list[str], code: int, said: str, tmp_path: Path) -> None:
    outcome = run_command("arm64", "minilm", *given, cwd=tmp_path, POCKETBERT_DEVICES=str(tmp_path / "nowhere"))
    assert outcome.rc == code
    assert said in " ".join(outcome.stderr.split())
    assert "Traceback" not in outcome.stderr
