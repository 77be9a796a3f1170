"""`make browser-check`: the page's tokenizer on the conformance kit, then three verified files in a real Chromium.

Needs node and Chromium, which `.ci/browser` installs on Debian. The student is the bundled one; its files are made and
verified in build/browser/, once. LiteRT.js is downloaded as a user does it, with `--install`.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from apps import lanes, outputs, toolchains
from apps.browser import tasks
from apps.browser.chromium import Page
from apps.browser.serving import FOLDER, POCKETBERT, ask, opened_file, served, shown
from apps.tokenizers import kit
from pipeline.report.browser import server

HERE = Path(__file__).parent
STATIC = Path(server.__file__).parent / "static"
SCHEMES = ("fp32", "int8_dynamic", "int8_weight_only")
PROVEN = (
    *("wordpiece", "wordpiece_cased", "wordpiece_uncased", "byte_level", "byte_level_spaced"),
    *("unigram_full_size", "unigram_trimmed"),
)
"""Tokenizers of the kit of which the page has to give every id; it has to refuse the others."""
REFUSED = "unigram_xlm_roberta"
"""One of those others."""
_NODE_SECONDS = 900


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for, and return the exit code."""
    parser = argparse.ArgumentParser(prog="make browser-check", description=__doc__)
    parser.add_argument("--strings", type=int, default=kit.STRINGS, help="generated strings for each tokenizer")
    options = parser.parse_args(arguments)
    # A shell starts what it puts into the background without Ctrl-C, and the servers here would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    failed = lanes.beside(
        {
            "tokenizers": lambda: tokenizers(options.strings),
            "golden rows": lambda: node("golden.mjs", FOLDER / "kit"),
            "post-processing": post_processing,
            "page": page,
            "network": network,
            "tasks": tasks.check,
            "refused": lambda: tasks.refused(FOLDER / "kit" / REFUSED),
        }
    )
    return 1 if failed else 0


def tokenizers(strings: int) -> str:
    """Compare the page's tokenizer with the kit, and see that the comparison finds a wrong id."""
    kit.write(FOLDER / "kit", strings=strings)
    said = node("conformance.mjs", FOLDER / "kit")
    for name in kit.TOKENIZERS:
        (line,) = (one for one in said.splitlines() if one.startswith(f"{name}: "))
        assert (" 0 rows differ" in line) == (name in PROVEN), line
        assert ("refused" in line) == (name not in PROVEN), line
    spoilt = FOLDER / "spoilt" / PROVEN[0]
    spoilt.mkdir(parents=True, exist_ok=True)
    shutil.copy(FOLDER / "kit" / PROVEN[0] / "tokenizer.json", spoilt)
    row = json.loads((FOLDER / "kit" / PROVEN[0] / "rows.jsonl").open(encoding="utf-8").readline())
    row[3][-1] += 1
    (spoilt / "rows.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert "1 rows differ" in node("conformance.mjs", spoilt.parent, code=1)
    return said


def post_processing() -> str:
    """Compare labels, entities, answers and percentiles with the pipeline's."""
    outputs.write(FOLDER / "outputs.jsonl")
    return node("postprocessing.mjs", FOLDER / "outputs.jsonl")


def node(script: str, *arguments: Path, code: int = 0) -> str:
    """Run a script on the page's own modules and return what it printed.

    Raises:
        Lacking: there is no node.
    """
    if shutil.which("node") is None:
        raise toolchains.Lacking("there is no node; install Debian's nodejs, or Node.js 18 or later")
    command = ["node", str(HERE / script), str(STATIC), *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_NODE_SECONDS, check=False)
    assert ended.returncode == code, f"{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
    return ended.stdout.strip()


def page() -> str:
    """Open each file on the served page: its golden rows hold, it is timed, and a text gets an answer."""
    recipe = FOLDER / "browser.toml"
    FOLDER.mkdir(parents=True, exist_ok=True)
    content = {
        "name": "browser",
        "task": "embedding",
        "student": {"source": "bundled:all-MiniLM-L6-v2"},
        "convert": {"sequence_lengths": [16, 64]},
        "targets": {"litert": {"schemes": list(SCHEMES)}},
    }
    recipe.write_text(tomli_w.dumps(content), encoding="utf-8")
    build = FOLDER / "build"
    toolchains.run([*POCKETBERT, "verify", str(recipe), "--build", str(build)], toolchains.REPOSITORY)
    with served(recipe, build) as document:
        targets = [file["target"] for file in document["files"]]
        assert targets == [f"litert-{scheme}" for scheme in SCHEMES], document
        with shown(document) as opened:
            said = [f"{target}: {tried(opened, number)}" for number, target in enumerate(targets)]
    return "\n".join(said)


def network() -> str:
    """Open a file by the address that a phone gets: without WebGPU, and with a coarser clock."""
    server.own_address()
    with served(FOLDER / "browser.toml", FOLDER / "build", "--lan") as document:
        assert document["seconds"] == server.LAN_SECONDS
        with shown(document) as opened:
            assert not opened.evaluate("isSecureContext")
            return f"{document['files'][1]['target']}: {tried(opened, 1)}"


def tried(opened: Page, number: int) -> str:
    """Open one file and try texts; return what the page says."""
    facts = opened_file(opened, number)
    guitar = "A man is playing a guitar."
    similar = similarity(opened, guitar, "Somebody makes music on a guitar.")
    other = similarity(opened, guitar, "The bank raised its interest rates.")
    assert 1 > similar > other + 0.3, (similar, other)
    return f"golden rows {facts['golden']}; {facts['latency']}"


def similarity(opened: Page, first: str, second: str) -> float:
    """Type two texts, and return the similarity that the page shows."""
    ask(opened, first, second)
    said = opened.evaluate("document.querySelector('#answer .main').textContent")
    return float(said.removeprefix("cosine similarity "))


if __name__ == "__main__":
    sys.exit(main())
