"""A process that has imported everything once and forks a child for each command: a command takes 0.1 s instead of 5.

The child runs the command's own `main`; what the command starts as workers is forked too, and else is what it always
is. `Forks` is the side of the one who asks.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from conftest import environment

from abuse.findings import REPOSITORY

_TOO_LONG = -99
"""Told as the exit code of a command that was ended for taking too long."""


@dataclass(frozen=True)
class Ended:
    """What a command left."""

    code: int
    said: str
    seconds: float

    @property
    def took_too_long(self) -> bool:
        """Return whether it was ended."""
        return self.code == _TOO_LONG


class Forks:
    """Asks a process that forks; one command at a time."""

    def __init__(self) -> None:
        """Start the process, which takes ten seconds to import everything."""
        path = os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "tests")))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "abuse.forked"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(PYTHONPATH=path, OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false"),
            encoding="utf-8",
            cwd=REPOSITORY,
        )
        self._lock = threading.Lock()

    def run(self, arguments: list[str], where: Path, *, temporary: Path, seconds: float = 20.0, **more: str) -> Ended:
        """Run `pocketbert` with arguments in a folder, for so many seconds at most."""
        asked = {"arguments": arguments, "where": str(where), "seconds": seconds, "output": str(temporary) + ".out"}
        asked["variables"] = {"TMPDIR": str(temporary), **more}
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
        said = Path(str(temporary) + ".out").read_text(encoding="utf-8", errors="replace")
        return Ended(answer["code"], said, answer["seconds"])

    def close(self) -> None:
        """End the process."""
        # This closes both pipes and waits for the end.
        self._process.__exit__(None, None, None)


# --- the side that forks -----------------------------------------------------------------------------------------


class ForkedProcess:
    """As much of `subprocess.Popen` as a `Worker` needs, by a fork of this process."""

    def __init__(
        self, command: list[str], *, pass_fds: list[int], stdin: int, stdout: IO[bytes], stderr: IO[bytes], env: Any
    ) -> None:
        """Fork a worker."""
        sys.stdout.flush()
        sys.stderr.flush()
        self.returncode: int | None = None
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _be_worker(pass_fds[0], parent, stdout.fileno(), dict(env))
            finally:
                os._exit(1)

    def poll(self) -> int | None:
        """Return the exit code if it has ended."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        deadline = time.monotonic() + (timeout if timeout is not None else 1e9)
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
            time.sleep(0.005)
        return code

    def kill(self) -> None:
        """End it."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _be_worker(connection: int, parent: int, log: int, variables: dict[str, str]) -> NoReturn:
    from pipeline.execution import worker

    os.environ.clear()
    os.environ.update(variables)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # The parent's end of the pipe among them: it would keep the pipe open when the parent has closed it.
    os.closerange(3, connection)
    os.closerange(connection + 1, 4096)
    sys.argv = ["worker", str(connection), str(parent)]
    worker.main()
    os._exit(0)


def _be_command(asked: dict[str, Any]) -> NoReturn:
    from pipeline.cli import app
    from pipeline.execution import worker

    os.setsid()
    code = 1
    try:
        sink = os.open(asked["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        os.chdir(asked["where"])
        os.environ.update(asked["variables"])
        sys.argv = ["pocketbert", *asked["arguments"]]
        worker.subprocess.Popen = ForkedProcess  # type: ignore[attr-defined]
        app.main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _import_everything() -> None:
    """Import what commands import, and nothing that starts threads."""
    import importlib

    for name in (
        "torch", "transformers", "safetensors.torch", "ai_edge_litert.interpreter", "rich.table", "jinja2",
        "pipeline.cli.app", "pipeline.planning.run", "pipeline.planning.cleaning", "pipeline.planning.draft",
        "pipeline.student.stage", "pipeline.checkpoint.loading", "pipeline.convert.model", "pipeline.verify.stage",
        "pipeline.report.stage", "pipeline.benchmark.stage", "pipeline.ship.apps", "pipeline.ship.bundle",
        "pipeline.ship.push", "pipeline.mil.trial", "pipeline.compat.stage", "pipeline.train.stage",
        "pipeline.cli.inventory", "pipeline.formats.litert.session",
    ):  # fmt: skip
        importlib.import_module(name)
    # Classes that transformers imports when they are first asked for.
    import transformers

    for name in ("AutoModel", "AutoTokenizer", "BertForSequenceClassification", "BertModel"):
        getattr(transformers, name)


def main() -> None:
    """Answer until nobody asks any more."""
    import gc
    import warnings

    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    _import_everything()
    gc.freeze()
    for line in sys.stdin:
        asked = json.loads(line)
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _be_command(asked)
        code = _wait(pid, began + asked["seconds"])
        answers.write(json.dumps({"code": code, "seconds": time.monotonic() - began}) + "\n")
        answers.flush()


def _wait(pid: int, deadline: float) -> int:
    """Wait for a child's end, and end its whole group where it takes too long."""
    code: int | None = None
    while code is None and time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if found else None
        time.sleep(0.005)
    if code is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return _TOO_LONG if code is None else code


if __name__ == "__main__":
    main()
