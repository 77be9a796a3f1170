"""ARM64 without an emulator: which rows are taken, how they are scored, and what is said where tools are missing."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import run_command_here

from pipeline.devices import arm64
from pipeline.errors import ToolchainError
from pipeline.formats.signature import Function, Signature
from pipeline.metrics.outputs import RowOutputs
from pipeline.student.reference import Reference
from pipeline.text.encoding import Row
from pipeline.verify import emulated


def test_a_row_that_is_not_finite_or_has_no_direction_is_the_worst() -> None:
    reference = [np.ones(4), np.ones(4), np.ones(4)]
    found = [np.array([1, 1, 1, 1], np.float32), np.array([1, np.nan, 1, 1], np.float32), np.zeros(4, np.float32)]
    assert emulated._scores(reference, found, embedding=True).tolist() == [pytest.approx(1.0), -1.0, -1.0]
    scores = emulated._scores(reference, found, embedding=False)
    assert scores.tolist() == [200.0, -200.0, pytest.approx(0.0)]


def test_logits_are_judged_together_and_embeddings_by_their_worst() -> None:
    """A row of small logits that is far off by itself does not fail a file; one of large logits does; NaN always."""
    reference = [np.array([3.0, -3.0]), np.array([0.01, -0.01])]
    found = [np.array([3.0, -2.9], np.float32), np.array([-0.01, 0.02], np.float32)]
    assert emulated._scores(reference, found, embedding=False).min() < 0
    noise = 0.1**2 + 0.02**2 + 0.03**2
    expected = 10 * np.log10((2 * 3.0**2 + 2 * 0.01**2) / noise)
    assert emulated._score(reference, found, embedding=False) == pytest.approx(expected, abs=1e-5)
    assert emulated._score(reference, found[::-1], embedding=False) < 3
    assert emulated._score(reference, found, embedding=True) == pytest.approx(-0.9487, abs=1e-4)
    broken = [found[0], np.array([np.nan, 0], np.float32)]
    assert emulated._score(reference, broken, embedding=False) == -200.0
    judged = emulated._judged("cortex-a76", reference, found[::-1], found, 17.0, embedding=False)
    assert judged.verdict == "failed"
    assert judged.reason is not None
    assert judged.reason.startswith("the rows together have an SQNR in dB of")
    assert emulated._judged("cortex-a76", reference, found, found, 17.0, embedding=False).verdict == "passed"


def _signature(*lengths: tuple[int, int]) -> Signature:
    functions = [
        Function(name=f"f{low}", min_length=low, max_length=high, inputs=(), outputs=()) for low, high in lengths
    ]
    return Signature(
        backend="executorch", scheme="fp32", task="embedding", output_kind="embedding", file="model.pte",
        minimum_runtime="1.4.1", pad_token_id=0, labels=None, functions=tuple(functions), parameters=1,
    )  # fmt: skip


def _reference(lengths: Sequence[int]) -> Reference:
    rows = [Row((7,) * length, (0,) * length) for length in lengths]
    outputs = RowOutputs(np.zeros((len(rows), 4), np.float32), np.ones(len(rows), np.int64))
    return Reference("embedding", 64, 0, None, {}, [], rows, outputs, len(rows), [], {})


def test_rows_come_at_their_own_length_where_it_is_free() -> None:
    """All rows, and the shortest padded to the end; of too many, evenly from the shortest to the longest."""
    few = emulated.rows_of(_reference([5, 1, 64, 70, 0, 12]), _signature((3, 64)))
    assert few == [(1, 3), (0, 5), (5, 12), (2, 64), (1, 64)]
    lengths = [length for length in range(64, 0, -1) for _ in range(3)]
    chosen = emulated.rows_of(_reference(lengths), _signature((3, 64)))
    assert len(chosen) == 41
    assert len(set(chosen)) == 41
    assert [length for _, length in chosen[:40]] == sorted(max(3, lengths[row]) for row, _ in chosen[:40])
    assert {chosen[0][1], chosen[39][1], chosen[40][1]} == {3, 64}


def test_rows_come_evenly_over_fixed_lengths() -> None:
    chosen = emulated.rows_of(_reference(list(range(1, 65))), _signature((16, 16), (32, 32), (64, 64), (128, 128)))
    for length, low, high in ((16, 1, 16), (32, 17, 32), (64, 33, 64)):
        tokens = [row + 1 for row, at in chosen if at == length]
        assert len(tokens) == 10
        assert (tokens[0], tokens[-1]) == (low, high)
    # No row is of that length by itself.
    assert [row + 1 for row, at in chosen if at == 128][:1] == [1]


def test_missing_tools_and_packages_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCKETBERT_DEVICES", str(tmp_path / "nowhere"))
    with pytest.raises(ToolchainError, match=r"no emulator in .*nowhere\. On Debian `sudo \.ci/devices` unpacks one"):
        arm64.find(tmp_path, "litert", install=False, note=lambda text: None)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "version").touch()
    monkeypatch.setenv("POCKETBERT_DEVICES", str(tmp_path / "tree"))
    with pytest.raises(ToolchainError, match=r"ai-edge-litert==.* for ARM64 are not in .*; --install downloads them"):
        arm64.find(tmp_path, "litert", install=False, note=lambda text: None)

    with pytest.raises(ToolchainError, match=r"executorch==.*, torch==[\d.]+, .* for ARM64 are not in .*, 460 MB\."):
        arm64.find(tmp_path, "executorch", install=False, note=lambda text: None)
    assert not (tmp_path / ".arm64").exists()


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (["--cpu", "cortex-m4"], 2, "--cpu cortex-m4 is not emulated; there are: cortex-a53, cortex-a76, cortex-a710"),
        (
            ["--target", "coreml"],
            2,
            "there is no target of litert or executorch among those of minilm that are asked for",
        ),
        (["--target", "executorch"], 2, "executorch:int8_dynamic needs --stub-cuda: PyTorch's build for ARM64"),
        (["--target", "litert", "--target", "executorch"], 2, "executorch:int8_dynamic needs --stub-cuda"),
        (["--target", "executorch", "--stub-cuda"], 3, "there is no emulator in"),
        ([], 3, "there is no emulator in"),
    ],
)
def test_the_command_refuses_in_one_line(given: list[str], code: int, said: str, tmp_path: Path) -> None:
    outcome = run_command_here("arm64", "minilm", *given, cwd=tmp_path, POCKETBERT_DEVICES=str(tmp_path / "nowhere"))
    assert outcome.rc == code
    assert said in " ".join(outcome.stderr.split())
    assert "Traceback" not in outcome.stderr
