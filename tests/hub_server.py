"""A small Hugging Face Hub on this machine, so that the real client library is what uploads in a test.

It speaks what `HfApi.create_commit` needs: repositories, branches, the tree, upload modes, large files, commits.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_writer"
READER = "hf_reader"
COMMIT = "c" * 40
_POLL_S = 0.02
"""How soon a server that is told to end looks; half a second by default, which tests would wait for."""


@dataclass
class Repository:
    """Files by path, on each branch."""

    private: bool
    branches: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"main": {}})
    commits: list[dict[str, Any]] = field(default_factory=list)
    """Headers of commits, in order."""


@dataclass
class Hub:
    """What the server knows."""

    endpoint: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    """By sha256."""
    bad_card: bool = False


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve("GET")

    def do_HEAD(self) -> None:
        self._serve("HEAD")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PUT(self) -> None:
        self._serve("PUT")

    def _serve(self, verb: str) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.headers.get("transfer-encoding") == "chunked":
            body = self._chunks()
        path = unquote(urlsplit(self.path).path)
        token = self.headers.get("authorization", "").removeprefix("Bearer ")
        if path.startswith("/large/"):
            self.hub.large[path.removeprefix("/large/")] = body
            return self._answer(200, {})
        if "/resolve/" in path and verb in ("GET", "HEAD"):
            return self._file(*path.strip("/").split("/resolve/"))
        if token not in (TOKEN, READER) and verb != "GET":
            return self._answer(401, {"error": "Invalid credentials in Authorization header"})
        if verb != "GET" and token == READER and not path.endswith("validate-yaml"):
            return self._answer(403, {"error": "You need write access"})
        if path == "/api/validate-yaml":
            errors = [{"message": '"license" must be one of a list'}] if self.hub.bad_card else []
            return self._answer(400 if errors else 200, {"errors": errors, "warnings": []})
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        return self._of_repository(path, body)

    def _chunks(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
        url = f"{self.hub.endpoint}/{name}"
        if name in self.hub.repositories:
            return self._answer(409, {"error": "You already created this model repo", "url": url})
        private = asked.get("visibility") == "private" or bool(asked.get("private"))
        self.hub.repositories[name] = Repository(private)
        return self._answer(200, {"url": url, "name": name})

    def _of_repository(self, path: str, body: bytes) -> None:
        parts = path.removeprefix("/api/models/").strip("/").split("/")
        large = path.endswith("/info/lfs/objects/batch")
        name = "/".join(parts[:2]).removesuffix(".git")
        repository = self.hub.repositories.get(name)
        if repository is None:
            return self._answer(404, {"error": "Repository not found"}, code="RepoNotFound")
        if large:
            return self._batch(json.loads(body))
        verb, rest = (parts[2], "/".join(parts[3:])) if len(parts) > 2 else ("", "")
        if verb == "branch":
            repository.branches.setdefault(rest, dict(repository.branches["main"]))
            return self._answer(200, {})
        if verb in ("", "revision"):
            siblings = [{"rfilename": one} for one in repository.branches["main"]]
            known = {"id": name, "private": repository.private, "sha": COMMIT, "tags": [], "siblings": siblings}
            return self._answer(200, known)
        rest = "main" if rest == COMMIT else rest
        if rest not in repository.branches:
            return self._answer(404, {"error": "Invalid rev id"}, code="RevisionNotFound")
        files = repository.branches[rest]
        if verb == "tree":
            listed = [{"type": "file", "path": one, "size": len(data), "oid": "0"} for one, data in files.items()]
            return self._answer(200, listed)
        if verb == "preupload":
            return self._answer(200, {"files": [_mode(file) for file in json.loads(body)["files"]]})
        return self._commit(name, repository, files, body)

    def _file(self, name: str, rest: str) -> None:
        """Send a file of a public repository, with the headers by which the client keeps it under its hash."""
        _, _, file = rest.partition("/")
        repository = self.hub.repositories.get(name)
        data = repository.branches["main"].get(file) if repository else None
        if data is None:
            return self._answer(404, {"error": "Entry not found"}, code="EntryNotFound")
        self.send_response(200)
        self.send_header("x-repo-commit", COMMIT)
        content = b"blob %d\0" % len(data) + data
        digest = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        self.send_header("etag", f'"{digest}"')
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def _batch(self, asked: dict[str, Any]) -> None:
        rows = [
            {**row, "actions": {"upload": {"href": f"{self.hub.endpoint}/large/{row['oid']}", "header": {}}}}
            for row in asked["objects"]
        ]
        self._answer(200, {"transfer": "basic", "objects": rows})

    def _commit(self, name: str, repository: Repository, files: dict[str, bytes], body: bytes) -> None:
        for line in body.splitlines():
            row = json.loads(line)
            key, value = row["key"], row["value"]
            if key == "header":
                repository.commits.append(value)
            elif key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
                assert hashlib.sha256(files[value["path"]]).hexdigest() == value["oid"]
            elif key == "deletedFile":
                del files[value["path"]]
        url = f"{self.hub.endpoint}/{name}/commit/{COMMIT}"
        self._answer(200, {"success": True, "commitOid": COMMIT, "commitUrl": url, "hookOutput": ""})

    def _answer(self, status: int, value: Any, code: str | None = None) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        if code:
            self.send_header("x-error-code", code)
        self.end_headers()
        self.wfile.write(data)


def _mode(file: dict[str, Any]) -> dict[str, Any]:
    mode = "lfs" if file["path"].endswith((".tflite", ".pte", ".bin")) else "regular"
    return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}


@contextmanager
def serving() -> Iterator[Hub]:
    """Serve an empty hub on a free port of this machine."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(_POLL_S,), daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
