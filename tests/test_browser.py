"""`report --serve`: a fixed table of verified files, to this machine alone; nothing is downloaded unless asked for."""

import base64
import hashlib
import http.client
import io
import json
import re
import shutil
import socket
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import Outcome, TinyLine

from pipeline import formats
from pipeline.convert.targets import choose_targets
from pipeline.errors import ArtifactError, InputError
from pipeline.formats.browsers import BrowserRuntime, NpmPackage
from pipeline.recipe.loading import read_recipe
from pipeline.report.browser import assets, offer, server

REPOSITORY = Path(__file__).resolve().parents[1]
STATIC = Path(server.__file__).parent / "static"
RUNTIME = BrowserRuntime("A runtime 1.0", (), {"@a/utils": "utils.mjs"})
ASSETS = {"core.mjs": b"export {};", "utils.mjs": b""}
TOKEN = "t0ken-t0ken"


@pytest.fixture
def offered(tiny_line: TinyLine, tmp_path: Path) -> tuple[offer.Offer, dict[str, offer.ServedFile]]:
    line = tiny_line.copy(tmp_path)
    recipe, _ = read_recipe(str(line.recipe))
    return offer.make(recipe.name, line.build / recipe.name, choose_targets(recipe, []), {})


@contextmanager
def serving(
    offered: tuple[offer.Offer, dict[str, offer.ServedFile]], token: str = "", seconds: float = 60
) -> Iterator[server.Server]:
    listening = server.Server(server.site(*offered, RUNTIME, ASSETS), server.LOOPBACK, 0, token)
    thread = threading.Thread(target=listening.run, args=(seconds,))
    thread.start()
    try:
        yield listening
    finally:
        listening.shutdown()
        thread.join()


def ask(
    listening: server.Server, path: str, host: str | None = None, method: str = "GET"
) -> tuple[int, bytes, dict[str, str]]:
    """Send a path as it is: a client that tidies it would hide what the server makes of it."""
    address, port = str(listening.server_address[0]), listening.server_address[1]
    connection = http.client.HTTPConnection(address, port, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"{address}:{port}")
    connection.endheaders()
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content, dict(answer.getheaders())


def test_what_passed_is_offered_and_the_rest_named_with_its_reason(
    offered: tuple[offer.Offer, dict[str, offer.ServedFile]],
) -> None:
    found, files = offered
    assert [file.target for file in found.files] == ["litert-fp32"]
    reasons = {one.target: one.reason for one in found.absent}
    assert "its verdict is failed" in reasons["litert-int8_dynamic"]
    assert "no runtime for browsers" in reasons["executorch-fp32"]
    assert sorted(files) == [f"files/0/{name}" for name in ("golden.json", "model", "signature.json", "tokenizer.json")]


def test_a_file_of_other_inputs_is_not_offered(tiny_line: TinyLine) -> None:
    recipe, _ = read_recipe(str(tiny_line.recipe))
    folder = tiny_line.build / recipe.name
    with pytest.raises(ArtifactError, match=r"of other inputs than the recipe has now \(a change\)"):
        offer.make(recipe.name, folder, choose_targets(recipe, ["litert:fp32"]), {"litert-fp32": "a change"})


def test_the_table_is_served_with_its_types_and_policy(
    offered: tuple[offer.Offer, dict[str, offer.ServedFile]],
) -> None:
    with serving(offered) as listening:
        assert listening.server_address[0] == "127.0.0.1"
        status, page, headers = ask(listening, "/")
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        policy = headers["Content-Security-Policy"]
        (inline,) = re.findall(r'<script type="importmap">(.*?)</script>', page.decode())
        assert f"'sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()}'" in policy
        assert json.loads(inline) == {"imports": {"@a/utils": "./litert/utils.mjs"}}
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe-inline" not in policy
        status, content, headers = ask(listening, "/litert/core.mjs")
        assert (status, content, headers["Content-Type"]) == (200, ASSETS["core.mjs"], "text/javascript")
        found = json.loads(ask(listening, "/offer.json")[1])["files"][0]
        status, model, _ = ask(listening, f"/{found['folder']}/model")
        assert (status, len(model), hashlib.sha256(model).hexdigest()) == (200, found["model_bytes"], found["sha256"])
        status, content, headers = ask(listening, f"/{found['folder']}/model", method="HEAD")
        assert (status, content, headers["Content-Length"]) == (200, b"", str(len(model)))


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/files/0/../../../manifest.json", "//etc/passwd", "/files/0",
        "/files/0/", "/files", "/static/", "/litert/", "/files/0/manifest.json", "/files/0/model/", "/files/0/model?x",
        "/./offer.json", "/offer.json%00", "\\offer.json", "http://127.0.0.1/offer.json", "/index.html", "*",
    ],
)  # fmt: skip
def test_no_other_path_leads_anywhere(offered: tuple[offer.Offer, dict[str, offer.ServedFile]], path: str) -> None:
    with serving(offered) as listening:
        status, content, _ = ask(listening, path)
        assert (status, content) == (404, b"not found\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_sent(offered: tuple[offer.Offer, dict[str, offer.ServedFile]], method: str) -> None:
    with serving(offered) as listening:
        assert ask(listening, "/offer.json", method=method)[0] == 501


def test_another_host_s_name_finds_nothing(offered: tuple[offer.Offer, dict[str, offer.ServedFile]]) -> None:
    with serving(offered) as listening:
        port = listening.server_address[1]
        assert ask(listening, "/offer.json", host=f"localhost:{port}")[0] == 200
        assert ask(listening, "/offer.json", host=f"evil.example:{port}")[0] == 404
        assert ask(listening, "/offer.json", host="127.0.0.1")[0] == 404


def test_at_port_80_a_browser_names_no_port(
    offered: tuple[offer.Offer, dict[str, offer.ServedFile]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(offered) as usual:
        assert ask(usual, "/offer.json", host=server.LOOPBACK)[0] == 404
        free = usual.server_address[1]
    # Port 80 is not everybody's: another one stands for it.
    monkeypatch.setattr(server, "_HTTP_PORT", free)
    with server.Server(usual.site, server.LOOPBACK, free, "") as listening:
        thread = threading.Thread(target=listening.run, args=(60,))
        thread.start()
        assert ask(listening, "/offer.json", host="localhost")[0] == 200
        assert ask(listening, "/offer.json", host="evil.example")[0] == 404
        listening.shutdown()
        thread.join()


def test_behind_a_token_nothing_is_found_without_it(offered: tuple[offer.Offer, dict[str, offer.ServedFile]]) -> None:
    with serving(offered, TOKEN) as listening:
        assert listening.url.endswith(f"/{TOKEN}/")
        assert ask(listening, f"/{TOKEN}/offer.json")[0] == 200
        assert ask(listening, f"/{TOKEN}/")[0] == 200
        for path in ("/", "/offer.json", f"/{TOKEN}", f"/{TOKEN}x/offer.json", f"/{TOKEN[:-1]}/offer.json"):
            assert ask(listening, path)[0] == 404


def test_tokens_are_long_and_never_the_same() -> None:
    tokens = {server.Place(lan=True).token for _ in range(100)}
    assert len(tokens) == 100
    assert min(map(len, tokens)) >= 32
    assert server.Place(lan=True).seconds == 3600
    assert server.Place().seconds is None


def test_it_stops_when_the_time_is_up(offered: tuple[offer.Offer, dict[str, offer.ServedFile]]) -> None:
    listening = server.Server(server.site(*offered, RUNTIME, ASSETS), server.LOOPBACK, 0, "")
    began = time.monotonic()
    assert listening.run(0.3)
    assert 0.3 <= time.monotonic() - began < 20


def test_a_file_that_was_changed_is_not_handed_out(offered: tuple[offer.Offer, dict[str, offer.ServedFile]]) -> None:
    _, files = offered
    place = files["files/0/model"].path
    with serving(offered) as listening:
        assert ask(listening, "/files/0/model")[0] == 200
        content = bytearray(place.read_bytes())
        content[-1] ^= 1
        place.chmod(0o644)
        place.write_bytes(content)
        status, said, _ = ask(listening, "/files/0/model")
        assert status == 409
        assert b"was changed after it was verified" in said


def test_every_file_of_the_page_is_in_the_table_and_loads_nothing_from_elsewhere() -> None:
    assert {path.name for path in STATIC.iterdir()} == {*server._STATIC, "index.html"}
    for path in STATIC.iterdir():
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"https?://|\beval\(|innerHTML|new Function", text), path.name
        imported = re.findall(r'from "(.*?)"', text)
        assert all(one.startswith("./") for one in imported), path.name


def test_the_page_s_table_of_characters_is_that_of_the_apps() -> None:
    tables = REPOSITORY / "android-demo" / "core" / "src" / "main" / "resources" / "pocketbert" / "characters.txt"
    assert (STATIC / "characters.txt").read_bytes() == tables.read_bytes()


def test_one_format_has_a_runtime_for_browsers_and_its_versions_agree() -> None:
    runtime = offer.runtime()
    assert sum(formats.get(name).BROWSER_RUNTIME is not None for name in formats.NAMES) == 1
    assert {package.version for package in runtime.packages} == {runtime.name.split()[-1]}
    names = [name for package in runtime.packages for name in package.files]
    assert set(runtime.modules.values()) <= set(names)
    assert len(set(names)) == len(names)


# --- the browser's runtime ----------------------------------------------------------------------------------------


def tarball(content: bytes) -> bytes:
    """Return a package as `npm pack` makes one."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo("package/dist/index.js")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[BrowserRuntime, Path]]:
    """A registry with one package, and the runtime that pins it."""
    content = tarball(b"export {};")
    sha512 = base64.b64encode(hashlib.sha512(content).digest()).decode()
    package = NpmPackage("@a/core", "1.0.0", sha512, len(content), {"core.mjs": "package/dist/index.js"})
    place = tmp_path / "registry" / package.address
    place.parent.mkdir(parents=True)
    place.write_bytes(content)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "registry")) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{listening.server_address[1]}/")
        monkeypatch.setenv("no_proxy", "*")
        yield BrowserRuntime("A runtime 1.0.0", (package,), {}), place
        listening.shutdown()
        thread.join()


def test_a_package_is_downloaded_once_and_read_from_its_tarball(
    registry: tuple[BrowserRuntime, Path], tmp_path: Path
) -> None:
    runtime, _ = registry
    said: list[str] = []
    with pytest.raises(InputError, match=r"a-core-1\.0\.0\.tgz does not exist.*--serve --install"):
        assets.read(runtime, tmp_path / "kept")
    assets.install(runtime, tmp_path / "kept", said.append)
    assets.install(runtime, tmp_path / "kept", said.append)
    assert len(said) == 1
    assert assets.read(runtime, tmp_path / "kept") == {"core.mjs": b"export {};"}


def test_another_tarball_than_the_pinned_one_is_neither_kept_nor_served(
    registry: tuple[BrowserRuntime, Path], tmp_path: Path
) -> None:
    runtime, place = registry
    content = place.read_bytes()
    place.write_bytes(content[:-1] + b"x")
    with pytest.raises(InputError, match=r"its sha512 differs\. Nothing was kept"):
        assets.install(runtime, tmp_path / "kept", lambda text: None)
    assert not (tmp_path / "kept").exists()
    place.unlink()
    with pytest.raises(InputError, match=r"cannot be downloaded: File not found"):
        assets.install(runtime, tmp_path / "kept", lambda text: None)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / runtime.packages[0].tarball).write_bytes(content[:-1] + b"x")
    with pytest.raises(InputError, match="its sha512 differs from the pinned one"):
        assets.read(runtime, tmp_path / "kept")
    longer = replace(runtime, packages=(replace(runtime.packages[0], bytes=len(content) - 1),))
    (tmp_path / "kept" / runtime.packages[0].tarball).write_bytes(content)
    with pytest.raises(InputError, match="sha512 differs"):
        assets.read(longer, tmp_path / "kept")


@pytest.mark.parametrize(
    "answer", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n", b""]
)
def test_what_speaks_no_http_is_no_registry(
    registry: tuple[BrowserRuntime, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    runtime, _ = registry
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def speak() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=speak)
        thread.start()
        monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(InputError, match=r"cannot be downloaded: \S.*Nothing was kept"):
            assets.install(runtime, tmp_path / "kept", lambda text: None)
        thread.join()
    monkeypatch.setenv("npm_config_registry", "http://no host")
    with pytest.raises(InputError, match=r"cannot be downloaded: \S"):
        assets.install(runtime, tmp_path / "kept", lambda text: None)


# --- the command --------------------------------------------------------------------------------------------------


def test_without_the_runtime_the_command_names_the_one_that_downloads_it(
    command_here: Callable[..., Outcome], tiny_line: TinyLine, tmp_path: Path
) -> None:
    line = tiny_line.copy(tmp_path)
    shutil.rmtree(line.build / assets.FOLDER, ignore_errors=True)
    outcome = command_here("report", line.recipe, "--serve", "--build", line.build)
    assert outcome.rc == 2
    assert "`pocketbert report --serve --install` downloads it once (12 MB" in outcome.stderr
    assert not (line.build / assets.FOLDER).exists()


@pytest.mark.parametrize("option", [["--lan"], ["--port", "8000"], ["--install"]])
def test_options_of_the_page_belong_to_it(command_here: Callable[..., Outcome], option: list[str]) -> None:
    outcome = command_here("report", "minilm", *option)
    assert outcome.rc == 2
    assert "belong to --serve" in outcome.stderr


def test_a_port_that_is_taken_is_named(offered: tuple[offer.Offer, dict[str, offer.ServedFile]]) -> None:
    with serving(offered) as listening:
        port = listening.server_address[1]
        with pytest.raises(InputError, match=rf"port {port} of 127\.0\.0\.1 cannot be used: Address already in use"):
            server.Place(port=port).listen(listening.site)
