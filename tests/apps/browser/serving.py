"""The command that serves the page, and what a user does on it."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from apps import toolchains
from apps.browser import chromium
from apps.browser.chromium import Page
from pipeline.report.browser import assets

FOLDER = toolchains.REPOSITORY / "build" / "browser"
POCKETBERT = (sys.executable, "-m", "pipeline")
OPEN_SECONDS = 300
_STATE = "document.documentElement?.dataset.state"


@contextlib.contextmanager
def served(recipe: Path, build: Path, *options: str) -> Iterator[dict[str, Any]]:
    """Serve as a user does, and yield the document with the address; Ctrl-C ends it without an error.

    LiteRT.js is downloaded once for all build folders.
    """
    kept = FOLDER / assets.FOLDER
    kept.mkdir(parents=True, exist_ok=True)
    build.mkdir(parents=True, exist_ok=True)
    if not (build / assets.FOLDER).exists():
        (build / assets.FOLDER).symlink_to(kept)
    command = [*POCKETBERT, "report", str(recipe), "--build", str(build), "--serve", "--install", "--json", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=toolchains.REPOSITORY) as process:
        assert process.stdout
        lines = []
        # It goes on serving: the document is read to its last line, not to the end.
        for line in process.stdout:
            lines.append(line)
            if line == "}\n":
                break
        document = json.loads("".join(lines))
        try:
            assert document.get("address"), document
            yield document
        finally:
            process.send_signal(signal.SIGINT)
            code: int | None = None
            try:
                code = process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
        assert code == 0, code


@contextlib.contextmanager
def shown(document: dict[str, Any], options: Sequence[str] = ()) -> Iterator[Page]:
    """Open the served page in a fresh browser, and wait until one can choose; nothing on it may go wrong."""
    with chromium.page(document["address"], options) as page:
        page.wait(f"{_STATE} === 'idle'", seconds=OPEN_SECONDS)
        yield page
        assert not page.complaints, page.complaints


def opened_file(page: Page, number: int, accelerator: str = "wasm") -> dict[str, str]:
    """Open a file and return what the page says of it: its golden rows, which have to hold, and its latency."""
    for name, value in {"file": number, "accelerator": accelerator}.items():
        page.evaluate(f"document.getElementById('{name}').value = '{value}'")
    assert page.evaluate("document.getElementById('accelerator').value") == accelerator, "it is not offered"
    page.evaluate("document.getElementById('open').click()")
    page.wait(f"['ready', 'failed'].includes({_STATE})", seconds=OPEN_SECONDS)
    assert page.evaluate(_STATE) == "ready", page.evaluate("document.getElementById('status').textContent")
    facts = {name: page.evaluate(f"document.getElementById('{name}').textContent") for name in ("golden", "latency")}
    assert page.evaluate("document.getElementById('facts').dataset.golden") == "passed", facts
    assert float(page.evaluate("document.getElementById('facts').dataset.p50")) > 0, facts
    return facts


def ask(page: Page, first: str, second: str) -> None:
    """Type texts, and wait for the answer."""
    for name, text in {"first": first, "second": second}.items():
        page.evaluate(f"document.getElementById('{name}').value = {json.dumps(text)}")
    page.evaluate("document.getElementById('answer').replaceChildren(); document.getElementById('run').click()")
    page.wait(f"{_STATE} !== 'busy'", seconds=OPEN_SECONDS)
    assert page.evaluate(_STATE) == "ready", page.evaluate("document.getElementById('status').textContent")
