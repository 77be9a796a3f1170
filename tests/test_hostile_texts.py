"""Texts, files and outputs that are not what they say: nothing hangs, fills the memory or steers the terminal."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import COMMAND, Outcome, TinyLine

from pipeline.cli import tables
from pipeline.convert.predicting import read_candidates
from pipeline.convert.private_log import private_log
from pipeline.errors import InputError, ToolchainError, WorkerDied
from pipeline.execution.worker import Worker
from pipeline.verify import record
from pipeline.verify.wording import broken

# --- candidates --------------------------------------------------------------------------------------------------


def test_candidates_that_never_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(InputError, match="is no regular file; name a text file"):
            read_candidates(path)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(200 << 30)
    monkeypatch.setattr("pipeline.convert.predicting._LARGEST_CANDIDATES_BYTES", 1000)
    with pytest.raises(InputError, match="sparse has more than 0 MB, and each line is a text"):
        read_candidates(tmp_path / "sparse")


def test_a_shell_s_own_pipe_is_read() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"one\ntwo\n")
    os.close(writing)
    try:
        assert read_candidates(Path(f"/dev/fd/{reading}")) == ["one", "two"]
    finally:
        os.close(reading)


# --- the log of predict ------------------------------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_a_log_is_gone_after_an_error_that_says_what_was_in_it(temporary: Path) -> None:
    with pytest.raises(ToolchainError) as raised, private_log() as log, Worker(log) as worker:
        worker.call(os.fspath, 3)  # type: ignore[arg-type]
    assert "whole story" not in str(raised.value)
    assert re.search(
        r"^fspath failed: TypeError: .* It was raised in File \".*worker\.py\", line \d+", str(raised.value)
    )
    ended = pytest.raises(WorkerDied, match=r"exit code 3\. Its log ends with: nothing\.$")
    with ended, private_log() as log, Worker(log) as worker:
        worker.call(os._exit, 3)
    assert list(temporary.iterdir()) == []


def test_the_log_of_a_process_that_was_killed_is_swept(temporary: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    (temporary / f"pocketbert-predict-{ended.pid}-abc.log").touch()
    kept = {f"pocketbert-predict-{os.getppid()}-abc.log", "pocketbert-predict-mine.log"}
    for name in kept:
        (temporary / name).touch()
    with private_log():
        pass
    assert {path.name for path in temporary.iterdir()} == kept


# --- what is printed ---------------------------------------------------------------------------------------------


def test_texts_cannot_steer_a_terminal_nor_fill_it(
    tiny_line: TinyLine, tmp_path: Path, command_here: Callable[..., Outcome]
) -> None:
    (tmp_path / "lines.txt").write_text("on\x1b[1me\n" + "z" * 100_000 + "\n", encoding="utf-8")
    arguments = ("predict", tiny_line.folder / "litert-fp32", "a\x1b[31mred", "--among", tmp_path / "lines.txt")
    outcome = command_here(*arguments)
    assert outcome.rc == 0, outcome.stderr
    assert "\x1b" not in outcome.stdout
    assert outcome.stdout.startswith("a\\x1b[31mred\n")
    assert "on\\x1b[1me" in outcome.stdout
    assert "z … (100,000 characters)" in outcome.stdout
    assert len(outcome.stdout) < 1000
    rows = command_here(*arguments, "--json").document["predictions"][0]["neighbours"]
    long = next(row for row in rows if row["text"].startswith("z"))
    assert (len(long["text"]), long["text_characters"]) == (10_000, 100_000)
    assert all("text_characters" not in row for row in rows if row is not long)


def test_an_error_that_quotes_something_endless_stays_one_readable_line(command_here: Callable[..., Outcome]) -> None:
    outcome = command_here("predict", "x" * 5000 + "\x1b[31m", "hello")
    assert outcome.rc == 2
    assert len(outcome.stderr) < 2500
    assert "\x1b" not in outcome.stderr
    assert "does not exist; `pocketbert run` makes models" in outcome.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
@pytest.mark.parametrize("arguments", [("list",), ("list", "--json"), ("--help",)])
def test_an_output_that_is_full_is_one_line(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: standard output cannot be written: No space left on device.")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("found", "bound", "line"),
    [
        (0.999978, 0.9999999, "mean cosine 0.999978, at least 0.9999999 asked"),
        (0.99999985, 0.9999999, "mean cosine 0.99999985, at least 0.9999999 asked"),
        (0.99999999, 1.0, "mean cosine 0.99999999, at least 1 asked"),
        (0.98, 0.99, "mean cosine 0.98, at least 0.99 asked"),
        (0.123456789, 0.123456788, "mean cosine 0.123456789, at least 0.123456788 asked"),
    ],
)
def test_a_bound_and_what_was_found_are_told_apart(found: float, bound: float, line: str) -> None:
    assert line in broken("min_mean_cosine", "embedding", found, bound, least=True, why="worst on a text")


def test_the_exemption_of_random_weights_does_not_read_as_why_a_file_failed(
    tiny_line: TinyLine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judged = record.read_parity(tiny_line.folder / "litert-fp32" / "parity")
    failed = judged.model_copy(update={"verdict": "failed", "reasons": ["finite: NaN", record.EXEMPT]})
    tables.print_outcome(tmp_path, [], {"litert-fp32": failed})
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("litert-fp32 ")]
    assert said[-2:] == ["litert-fp32 failed: finite: NaN", f"litert-fp32 note: {record.EXEMPT}"]
