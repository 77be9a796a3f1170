"""The real runtimes behind a Unix socket, for cores that have none of their own on this machine.

A connection opens one model and runs rows, one JSON document a line each way:

    {"folder": "mood/litert-int8_dynamic", "threads": 1}   -> {"runtime": "LiteRT", "version": "2.3.0", …}
    {"function": "seq_32", "inputs": {"input_ids": […], …}} -> {"outputs": {"logits": […]}}

What the runtime refuses is `{"error": "…"}`. Each connection is a process of its own, as an app is.
"""

import importlib.metadata
import json
import os
import signal
import socketserver
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import formats
from pipeline.artifact import Artifact
from pipeline.errors import PipelineError
from pipeline.formats import signature

_DISTRIBUTIONS = {"litert": "ai-edge-litert", "executorch": "executorch"}
_LONGEST_PATH = 100
"""A socket's path has room for 108 bytes on Linux, and 104 on macOS."""
_PATIENCE_S = 120.0
"""A process that imports what sessions need begins to serve within seconds."""


def versions() -> dict[str, str]:
    """Return the version of each backend's runtime."""
    return {backend: importlib.metadata.version(name) for backend, name in _DISTRIBUTIONS.items()}


class _Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    """Forks a process that has one thread and no runtime yet, so that each connection has its own.

    A fork of a process with threads may copy a lock that another thread holds, for which the copy waits for ever.
    """

    models: Mapping[str, Mapping[str, Any]]
    """By the folder in the index: `path`, `ops_delegated` and `ops_total`."""


class _Connection(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        """Open what the first line names, and run what the others hold, until the other side closes."""
        try:
            asked = json.loads(self.rfile.readline())
            model = self.server.models[asked["folder"]]
            path = Path(model["path"])
            claimed = signature.read(path)
            backend = formats.get(claimed.backend)
            session = backend.load(path / claimed.file, claimed, threads=asked["threads"])
        except (PipelineError, KeyError, ValueError) as error:
            self._say({"error": f"{type(error).__name__}: {error}"})
            return
        self._say(
            {
                "runtime": backend.TITLE,
                "version": versions()[claimed.backend],
                "delegate": "XNNPACK",
                "ops_delegated": model["ops_delegated"],
                "ops_total": model["ops_total"],
            }
        )
        functions = {function.name: function for function in claimed.functions}
        while line := self.rfile.readline():
            row = json.loads(line)
            inputs = {name: np.array([values], np.int32) for name, values in row["inputs"].items()}
            try:
                outputs = session.run(functions[row["function"]], inputs)
            except (PipelineError, KeyError) as error:
                self._say({"error": f"{type(error).__name__}: {error}"})
                continue
            self._say({"outputs": {name: np.asarray(array).ravel().tolist() for name, array in outputs.items()}})

    def _say(self, document: dict[str, Any]) -> None:
        self.wfile.write(json.dumps(document).encode("ascii") + b"\n")
        self.wfile.flush()


def serve(place: Path, models: Mapping[str, Mapping[str, Any]]) -> None:
    """Serve models at a socket until the process is ended."""
    with _Server(str(place), _Connection) as server:
        server.models = models
        server.serve_forever()


@contextmanager
def serving(place: Path, models: Mapping[str, Artifact]) -> Iterator[None]:
    """Serve models, by their folders in the index, in a process of its own while the context is open.

    Args:
        place: of the socket; where the languages are tested in a tree of their own, both sides see it there.
        models: what can be opened.
    """
    if len(os.fsencode(place)) > _LONGEST_PATH:
        raise OSError(f"{place} is too long for a socket; check the project out nearer to the root")
    place.unlink(missing_ok=True)
    described = {
        name: {
            "path": str(model.path),
            "ops_delegated": model.manifest.metrics.get("ops_delegated"),
            "ops_total": model.manifest.metrics.get("ops_total"),
        }
        for name, model in models.items()
    }
    command = [sys.executable, "-m", "apps.runtime_server", str(place), json.dumps(described)]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not place.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise OSError(f"the runtimes are not served at {place}")
            time.sleep(0.05)
        yield
    finally:
        # The connections' processes as well.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        place.unlink(missing_ok=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), json.loads(sys.argv[2]))
