"""A headless Chromium, steered over a pair of pipes by Chrome's DevTools protocol: no driver, no port."""

import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from apps.toolchains import Lacking

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Without a sandbox, since it needs rights that root in a container has not; all that it opens is our own page.
_OPTIONS = ("--headless", "--no-sandbox", "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe")
_SECONDS = 60


class Page:
    """One open page."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        """Take the ends of the pipes that Chromium does not have."""
        self._to, self._from = to_browser, from_browser
        self._numbers = itertools.count(1)
        self._left = b""
        self._session: str | None = None
        self.complaints: list[str] = []
        """Errors and violations of the policy that the browser told of, and exceptions that nothing caught."""

    def open(self, address: str) -> None:
        """Open an address."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Log", "Runtime", "Page"):
            self._call(f"{domain}.enable")
        self._call("Page.navigate", url=address)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression on the page."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression: str, *, seconds: float) -> Any:
        """Return the value of an expression as soon as it is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = self.evaluate(expression)
            if found:
                return found
            time.sleep(0.2)
        raise AssertionError(f"{expression} did not become true in {seconds} s; {self.complaints}")

    def _call(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            said = self._read()
            if said.get("id") == number:
                assert "error" not in said, said
                return said["result"]
            self._note(said)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._from], [], [], _SECONDS)
            assert ready, f"Chromium said nothing for {_SECONDS} s"
            part = os.read(self._from, 1 << 20)
            assert part, "Chromium ended"
            self._left += part
        one, self._left = self._left.split(b"\0", 1)
        return dict(json.loads(one))

    def _note(self, said: dict[str, Any]) -> None:
        params = said.get("params", {})
        if said.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        if said.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"]["text"])


@contextlib.contextmanager
def page(address: str, options: Sequence[str] = ()) -> Iterator[Page]:
    """Open an address in a fresh browser, which ends with the block.

    Raises:
        Lacking: the machine has no Chromium.
    """
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        raise Lacking("there is no chromium; install Debian's package of that name, or Chrome")
    with TemporaryDirectory(prefix="chromium-") as profile:
        to_browser, from_browser = os.pipe(), os.pipe()
        # The protocol's descriptors are 3 and 4.
        redirected = f'exec "$0" "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}'
        command = ["bash", "-c", redirected, program, *_OPTIONS, f"--user-data-dir={profile}", *options]
        log = Path(profile) / "log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                command, pass_fds=(to_browser[0], from_browser[1]), stdout=errors, stderr=errors, start_new_session=True
            )
        os.close(to_browser[0])
        os.close(from_browser[1])
        try:
            opened = Page(to_browser[1], from_browser[0])
            opened.open(address)
            yield opened
        finally:
            os.close(to_browser[1])
            os.close(from_browser[0])
            # It ends when its pipe does.
            try:
                process.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
