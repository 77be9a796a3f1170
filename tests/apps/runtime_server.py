"""The real runtimes behind a Unix socket, for cores that have none of their own on this machine.

A connection opens one model and runs rows, one JSON document a line each way:

    {"folder": "mood/litert-int8_dynamic", "threads": 1}   -> {"runtime": "LiteRT", "version": "2.3.0", …}
    {"function": "seq_32", "inputs": {"input_ids": […], …}} -> {"outputs": {"logits": […]}}

What the runtime refuses is `{"error": "…"}`. Each connection is a process of its own, as an app is.
"""

import importlib.metadata
import json
import os
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import backends
from pipeline.artifact import Artifact
from pipeline.backends import signature
from pipeline.errors import PipelineError

_DISTRIBUTIONS = {"litert": "ai-edge-litert", "executorch": "executorch"}
_LONGEST_PATH = 100
"""A socket's path has room for 108 bytes on Linux, and 104 on macOS."""


def versions() -> dict[str, str]:
    """Return the version of each backend's runtime."""
    return {backend: importlib.metadata.version(name) for backend, name in _DISTRIBUTIONS.items()}


class _Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    """Forks before a runtime is imported, so that each connection has its own."""

    models: dict[str, Artifact]


class _Connection(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        """Open what the first line names, and run what the others hold, until the other side closes."""
        try:
            asked = json.loads(self.rfile.readline())
            model = self.server.models[asked["folder"]]
            claimed = signature.read(model.path)
            backend = backends.get(claimed.backend)
            session = backend.load(model.path / claimed.file, claimed, threads=asked["threads"])
        except (PipelineError, KeyError, ValueError) as error:
            self._say({"error": f"{type(error).__name__}: {error}"})
            return
        self._say(
            {
                "runtime": backend.TITLE,
                "version": versions()[claimed.backend],
                "delegate": "XNNPACK",
                "ops_delegated": model.manifest.metrics.get("ops_delegated"),
                "ops_total": model.manifest.metrics.get("ops_total"),
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


@contextmanager
def serving(place: Path, models: dict[str, Artifact]) -> Iterator[None]:
    """Serve models, by their folders in the index, while the context is open.

    Args:
        place: of the socket; where the languages are tested in a tree of their own, both sides see it there.
        models: what can be opened.
    """
    if len(os.fsencode(place)) > _LONGEST_PATH:
        raise OSError(f"{place} is too long for a socket; check the project out nearer to the root")
    place.unlink(missing_ok=True)
    with _Server(str(place), _Connection) as server:
        server.models = models
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            place.unlink(missing_ok=True)
