"""A small HTTP server that hands out a fixed table of files, to this machine alone or to whoever has its address.

A request's path is looked up in the table as it came: it is neither decoded nor joined to a folder, so that no path
leads out of it, and nothing is listed. On the machine's network the path begins with a token that nobody can guess.
"""

import base64
import hashlib
import hmac
import json
import mimetypes
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from pipeline.errors import ArtifactError, InputError
from pipeline.formats.browsers import BrowserRuntime
from pipeline.report.browser.offer import Offer, ServedFile

LOOPBACK = "127.0.0.1"
LAN_SECONDS = 3600
"""After this, a server on the network stops by itself."""
_STATIC = (
    "answers.mjs",
    "characters.mjs",
    "characters.txt",
    "models.mjs",
    "normalizers.mjs",
    "outputs.mjs",
    "page.css",
    "page.mjs",
    "runtime.mjs",
    "sentencepiece.mjs",
    "student.mjs",
    "tokenizer.mjs",
    "words.mjs",
)
_INDEX, _OFFER, _RUNTIME = "index.html", "offer.json", "litert"
_IMPORT_MAP = "<!-- IMPORT MAP -->"
_TYPES = {
    ".mjs": "text/javascript",
    ".js": "text/javascript",
    ".wasm": "application/wasm",
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".json": "application/json",
}
_OTHER_TYPE = "application/octet-stream"
_SOCKET_SECONDS = 30
_HTTP_PORT = 80
_NO_HOST = "192.0.2.1"
"""An address for documentation (RFC 5737). Nothing is sent there: a socket that is connected to it names our own."""


@dataclass(frozen=True)
class Entry:
    """One file of the table."""

    content_type: str
    read: Callable[[], bytes]


@dataclass(frozen=True)
class Site:
    """The table of files by path, and the policy that goes with all of them."""

    entries: Mapping[str, Entry]
    policy: str
    """Content-Security-Policy: everything from this server, nothing inline but the import map."""


def site(offer: Offer, files: Mapping[str, ServedFile], runtime: BrowserRuntime, assets: Mapping[str, bytes]) -> Site:
    """Return the table of a page with its files.

    Args:
        offer: what the page can open.
        files: the files behind it.
        runtime: the browser's runtime.
        assets: its files, see `assets.read`.
    """
    static = resources.files("pipeline.report.browser").joinpath("static")
    modules = {name: f"./{_RUNTIME}/{file}" for name, file in runtime.modules.items()}
    import_map = json.dumps({"imports": modules})
    page = static.joinpath(_INDEX).read_text(encoding="utf-8")
    page = page.replace(_IMPORT_MAP, f'<script type="importmap">{import_map}</script>')
    fixed = {"": page.encode(), _OFFER: offer.model_dump_json().encode()}
    fixed |= {name: static.joinpath(name).read_bytes() for name in _STATIC}
    fixed |= {f"{_RUNTIME}/{name}": content for name, content in assets.items()}
    entries = {path: Entry(_type(path or _INDEX), _constant(content)) for path, content in fixed.items()}
    entries |= {path: Entry(_type(path), file.read) for path, file in files.items()}
    allowed = base64.b64encode(hashlib.sha256(import_map.encode()).digest()).decode()
    directives = (
        "default-src 'none'",
        f"script-src 'self' 'wasm-unsafe-eval' 'sha256-{allowed}'",
        *(f"{kind}-src 'self'" for kind in ("style", "connect")),
        "img-src data:",
        *(f"{kind} 'none'" for kind in ("base-uri", "form-action", "frame-ancestors")),
    )
    return Site(entries, "; ".join(directives))


def _constant(content: bytes) -> Callable[[], bytes]:
    return lambda: content


def _type(path: str) -> str:
    suffix = path[path.rfind(".") :] if "." in path else ""
    return _TYPES.get(suffix) or mimetypes.types_map.get(suffix, _OTHER_TYPE)


class Server(ThreadingHTTPServer):
    """The server of one site."""

    daemon_threads = True

    def __init__(self, site: Site, address: str, port: int, token: str) -> None:
        """Listen on one address.

        Raises:
            InputError: the port cannot be had.
        """
        try:
            super().__init__((address, port), _Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise InputError(
                f"port {port} of {address} cannot be used: {why}. Give another --port, or none."
            ) from error
        self.site = site
        self.prefix = f"/{token}/" if token else "/"
        port = self.server_address[1]
        names = {address, "localhost"} if address == LOOPBACK else {address}
        # Browsers leave out the port of HTTP itself.
        self.hosts = {f"{name}:{port}" for name in names} | (names if port == _HTTP_PORT else set())
        self.url = f"http://{address}:{port}{self.prefix}"

    def run(self, seconds: float | None) -> bool:
        """Serve until somebody interrupts, or for a time; return whether the time was up."""
        timer = threading.Timer(seconds or 0, self.shutdown)
        timer.daemon = True
        if seconds is not None:
            timer.start()
        try:
            self.serve_forever(poll_interval=0.2)
            return True
        except KeyboardInterrupt:
            return False
        finally:
            timer.cancel()
            self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over what a browser does that goes away in the middle of a file."""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = _SOCKET_SECONDS
    protocol_version = "HTTP/1.1"
    server_version = "pocketbert"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        # Another host's name: a page of somebody else's has its own name lead here (DNS rebinding).
        known = self.headers.get("Host") in self.server.hosts
        entry = self._entry() if known else None
        if entry is None:
            self._send(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"not found\n", with_body=with_body)
            return
        try:
            content = entry.read()
        except ArtifactError as error:
            said = f"{error}\n".encode()
            self._send(HTTPStatus.CONFLICT, "text/plain; charset=utf-8", said, with_body=with_body)
            return
        self._send(HTTPStatus.OK, entry.content_type, content, with_body=with_body)

    def _entry(self) -> Entry | None:
        """Return the file of a path: the path as it came, behind the token."""
        prefix = self.server.prefix
        begins, rest = self.path[: len(prefix)], self.path[len(prefix) :]
        # In a time that does not tell how much of a guessed token is right.
        if not hmac.compare_digest(begins.encode(), prefix.encode()):
            return None
        return self.server.site.entries.get(rest)

    def _send(self, status: HTTPStatus, content_type: str, content: bytes, *, with_body: bool) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": content_type,
            "Content-Length": str(len(content)),
            "Content-Security-Policy": self.server.site.policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        if self.server.server_address[0] == LOOPBACK:
            # With these, browsers give a page a clock of 5 µs instead of 100. On the network they complain of them.
            headers |= {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: requests have the token in them."""


@dataclass(frozen=True)
class Place:
    """Where to listen."""

    lan: bool = False
    """On the machine's address in its network, behind a token and for an hour; otherwise on this machine alone."""
    port: int = 0
    """0 for one that is free."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def seconds(self) -> float | None:
        """How long the server runs; None for as long as somebody wants."""
        return LAN_SECONDS if self.lan else None

    def listen(self, site: Site) -> Server:
        """Return a server that listens.

        Raises:
            InputError: the machine is in no network, or the port cannot be had.
        """
        return Server(site, own_address() if self.lan else LOOPBACK, self.port, self.token if self.lan else "")


def own_address() -> str:
    """Return the address by which others in its network reach this machine.

    Raises:
        InputError: it is in none.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect((_NO_HOST, 9))
            address = str(asked.getsockname()[0])
        except OSError as error:
            raise InputError(f"--lan: this machine is in no network ({error.strerror}). Leave --lan out.") from error
    if address.startswith("127."):
        raise InputError("--lan: this machine is in no network but its own. Leave --lan out.")
    return address
