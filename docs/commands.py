"""Runs every command that README, `docs/` and the Makefile name, with tiny settings: `python -m docs.commands`.

`docs/commands.toml` is the list. A row has either commands to run, or the names of commands that something else runs:

    [[command]]
    run = ["pocketbert plan tiny.toml"]      # one after the other; each may take `seconds` in all
    seconds = 60
    name = "plan"                            # by which `after` of other rows and `--only` find it
    after = ["run"]                          # rows whose artifacts it needs
    at = "repository"                        # else in the sandbox
    needs = ["onnxruntime"]                  # modules without which it is reported as not run

    [[command]]
    names = ["pocketbert push --no-dry-run"]
    by = "tests/test_push.py::test_an_upload_is_one_commit_of_exactly_the_bundle"

The sandbox, `build/commands/`, has the Makefile, the environment, a tiny random student, and recipes and texts for it.
`tests/test_docs.py` fails if a command that is documented has no row.
"""

import argparse
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import atomic

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_name("commands.toml")
SANDBOX = ROOT / "build" / "commands"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_INLINE = re.compile(r"(?<!`)`((?:make|pocketbert|python|accelerate|torchrun) [^`]+)`(?!`)")
_TARGET = re.compile(r"^([a-z-]+):(?!=)", re.MULTILINE)
_ASSIGNMENT = re.compile(r"\w+=.*")
_LAST_LINES = 15


@dataclass(frozen=True)
class Form:
    """A command without its arguments: what is run, and which options are given."""

    program: str
    """Such as `make run`, `pocketbert mil ops` or `python -m docs.links`."""
    options: frozenset[str] = frozenset()
    """Flags, and variables of make."""

    def __str__(self) -> str:
        """Return it as the list names it."""
        return " ".join((self.program, *sorted(self.options)))

    def covers(self, other: "Form") -> bool:
        """Return whether running this runs the other one too: the same program with at least its options."""
        return self.program == other.program and self.options >= other.options


@dataclass(frozen=True)
class Row:
    """One row of the list."""

    run: tuple[str, ...] = ()
    seconds: float = 0
    """How long the commands may take together, on two cores that do other work as well."""
    name: str = ""
    after: tuple[str, ...] = ()
    at: str = "sandbox"
    needs: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    by: str = ""
    why: str = ""
    """Why it is not run here."""

    def forms(self) -> Iterator[Form]:
        """Yield what the row covers."""
        for command in (*self.run, *self.names):
            yield from forms(command)


# --- what is documented --------------------------------------------------------------------------------------------


def forms(command: str) -> Iterator[Form]:
    """Yield the forms of a line of shell; none for names that stand for any verb, as in `make VERB`."""
    for part in re.split(r"\s(?:&&|\|)\s", command):
        words = [word.removeprefix(".venv/bin/") for word in shlex.split(part, comments=True)]
        while words and _ASSIGNMENT.fullmatch(words[0]):
            words.pop(0)
        if words:
            yield from (form for form in _forms(words) if not re.search(r" [A-Z]{2,}\b", form.program))


def _forms(words: Sequence[str]) -> Iterator[Form]:
    first, rest = words[0], list(words[1:])
    if first == "make":
        variables = frozenset(word.partition("=")[0] for word in rest if "=" in word)
        yield from (Form(f"make {word}", variables) for word in rest if "=" not in word and not word.startswith("-"))
        return
    if "-m" in rest and first in ("python", "accelerate", "torchrun"):
        place = rest.index("-m")
        module = rest[place + 1]
        launcher = first if first != "accelerate" else "accelerate launch"
        if module == "pipeline":
            first, rest = "pocketbert", rest[place + 2 :]
        else:
            yield Form(f"{launcher} -m {module}", _options(rest[:place] + rest[place + 2 :]))
            return
    if first == "pocketbert":
        verbs = [word for word in rest[:2] if not word.startswith("-")]
        own = verbs[:1] == ["mil"] or verbs[:1] == ["signing-key"]
        yield Form(" ".join(("pocketbert", *verbs[: 2 if own else 1])), _options(rest))
    else:
        yield Form(first, _options(rest))


def _options(words: Iterable[str]) -> frozenset[str]:
    return frozenset(word.partition("=")[0] for word in words if word.startswith("--"))


def pages(root: Path = ROOT) -> list[Path]:
    """Return the pages whose commands are in the list."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def documented(text: str) -> list[str]:
    """Return the commands of a page: lines of its `sh` blocks, and commands within sentences."""
    text = _COMMENT.sub("", text)
    found = [line for kind, block in FENCE.findall(text) if kind == "sh" for line in block.splitlines()]
    return [*filter(None, found), *_INLINE.findall(FENCE.sub("", text))]


def snippets(text: str) -> str:
    """Return the Python of a page as one script."""
    return "\n".join(block for kind, block in FENCE.findall(text) if kind == "python")


def make_targets(makefile: str) -> list[str]:
    """Return the targets of the Makefile."""
    return _TARGET.findall(makefile)


def read(path: Path = LIST) -> list[Row]:
    """Read the list."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = [
        {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
        for row in table["command"]
    ]
    return [Row(**row) for row in rows]


# --- the sandbox ---------------------------------------------------------------------------------------------------

_TEXTS = ("a red river", "the red house", "blue ink on paper", "a blue bird sings", "red wine", "a cold blue morning")
_HEAD = '[student]\nsource = "student"\n'
_TARGETS = '[convert]\nsequence_lengths = [16, 32]\n[targets.litert]\nschemes = ["int8_dynamic"]\n'
_RECIPES = {
    "tiny.toml": f"""name = "minilm"
task = "embedding"
{_HEAD}random_weights = true
{_TARGETS}[targets.executorch]
schemes = ["int8_dynamic"]
[targets.coreml]
schemes = ["fp16"]
[benchmark]
lengths = [32]
rounds = 2
texts = 4
text_passes = 1
""",
    "small.toml": f"""name = "minilm-half"
task = "embedding"
{_HEAD}random_weights = true
[prune]
compute = 0.6
calibration_texts = 16
max_length = 16
{_TARGETS}""",
    "learn.toml": f"""name = "learn"
task = "classification"
{_HEAD}[train]
train_file = "train.csv"
dev_file = "train.csv"
steps = 4
batch_size = 4
max_length = 16
{_TARGETS}""",
    "studied.toml": f"""name = "studied"
task = "embedding"
{_HEAD}random_weights = true
{_TARGETS}""",
    "notes.toml": """name = "notes"
recipe = "./studied.toml"
objectives = ["metric", "size_mb"]
hours = 0.1

[space]
"factorise.embedding" = ["none", 16]

[judge]
file = "pairs.csv"

[trials]
compressed = 2
trained = 0
files = 1
""",
    "settings.toml": """losses = { sentence_mse = 1.0 }
texts = ["plain.txt"]
steps = 4
batch_size = 4
max_length = 16
""",
}


def make_sandbox(place: Path) -> None:
    """Make the folder anew in which the commands run, as a user's own folder with a checkpoint in it."""
    atomic.remove(place)
    place.mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", place)
    (place / ".venv").symlink_to(sys.prefix)
    for name, text in _RECIPES.items():
        (place / name).write_text(text, encoding="utf-8")
    (place / "plain.txt").write_text("\n".join(_TEXTS * 4) + "\n", encoding="utf-8")
    rows = [f"{text},{'red' if 'red' in text else 'blue'}" for text in _TEXTS * 8]
    pairs = [f"{text},{_TEXTS[0]},{number % 6}" for number, text in enumerate(_TEXTS * 10)]
    (place / "pairs.csv").write_text("\n".join(("text,pair,label", *pairs)) + "\n", encoding="utf-8")
    (place / "train.csv").write_text("\n".join(("text,label", *rows)) + "\n", encoding="utf-8")
    # In a process of its own: the commands have the memory to themselves.
    subprocess.run([sys.executable, "-c", _STUDENT, place / "student"], check=True, cwd=ROOT, env=environment())


_STUDENT = """
import json, shutil, sys
import numpy, torch, transformers
from pathlib import Path
from pipeline.checkpoint import source
from pipeline.architectures import ARCHITECTURES
from pipeline.recipe import loading
place = Path(sys.argv[1])
torch.manual_seed(0)
config = transformers.AutoConfig.for_model("bert", **ARCHITECTURES["bert"].tiny_config)
bare = place.with_name("bare")
transformers.AutoModel.from_config(config).save_pretrained(bare)
shutil.copy(source.find(*loading.read_recipe("minilm")).folder / "tokenizer.json", bare)
shutil.copytree(bare, place)
kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
names = [{"idx": at, "name": str(at), "path": path} for at, path in enumerate(kinds)]
rows = [one | {"type": "sentence_transformers.models." + kinds[one["path"]]} for one in names]
(place / "modules.json").write_text(json.dumps(rows))
(place / "1_Pooling").mkdir()
pooling = {"word_embedding_dimension": config.hidden_size, "pooling_mode_mean_tokens": True}
(place / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
ids = numpy.ones((1, 32), numpy.int32)
numpy.savez(place.with_name("inputs.npz"), input_ids=ids, attention_mask=ids, token_type_ids=ids * 0)
"""


def environment() -> dict[str, str]:
    """Return the environment of the commands: this checkout's code and interpreter, no network for the hub, no data."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("POCKETBERT_", "HF_"))}
    ours = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "parity", ROOT / "tests")))
    path = os.pathsep.join((str(Path(sys.prefix) / "bin"), kept.get("PATH", "")))
    return kept | {"PYTHONPATH": ours, "PATH": path, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}


# --- the walk ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What became of one command."""

    command: str
    verdict: str
    """`ok`, `FAILED` or `not run`."""
    seconds: float
    why: str = ""


def walk(rows: Sequence[Row], sandbox: Path) -> Iterator[Outcome]:
    """Run the commands of rows, each row within its time."""
    for row in rows:
        left = row.seconds
        absent = [name for name in row.needs if importlib.util.find_spec(name) is None]
        for command in row.run:
            if absent:
                yield Outcome(command, "not run", 0.0, f"{', '.join(absent)} not installed")
                continue
            outcome = _run(command, ROOT if row.at == "repository" else sandbox, left)
            left -= outcome.seconds
            yield outcome


def _run(command: str, folder: Path, seconds: float) -> Outcome:
    # Set-up is not run again: the environment is the one in which this runs.
    line = re.sub(r"(^|\s)make ", r"\1make -o ready ", command)
    started = time.monotonic()
    process = subprocess.Popen(
        ["bash", "-c", line],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=max(seconds, 1.0))
        ended = "" if process.returncode == 0 else f"exit code {process.returncode}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        ended = "out of time"
    took = time.monotonic() - started
    if not ended:
        return Outcome(command, "ok", took)
    return Outcome(command, "FAILED", took, "\n".join([ended, *output.splitlines()[-_LAST_LINES:]]))


def chosen(rows: Sequence[Row], only: Sequence[str]) -> list[Row]:
    """Return the rows that are to be run, and those that they come after, in the list's order.

    Raises:
        SystemExit: no row is meant.
    """
    todo = [row for row in rows if row.run]
    if not only:
        return todo
    meant = [row for row in todo if row.name in only or any(word in line for word in only for line in row.run)]
    if not meant:
        raise SystemExit(f"--only {' '.join(only)}: no command of {LIST.name} contains this")
    names = {row.name for row in meant} | {name for row in meant for name in row.after}
    return [row for row in todo if row in meant or (row.name and row.name in names)]


def main(given: Sequence[str] | None = None) -> int:
    """Walk the list; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m docs.commands", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", metavar="WORD", help="rows with this name, or this in a command")
    parser.add_argument("--list", type=Path, default=LIST, help="the list of commands")
    parser.add_argument("--sandbox", type=Path, default=SANDBOX, help="folder to run them in; it is made anew")
    parser.add_argument("--json", action="store_true", help="print one JSON document at the end")
    parser.add_argument("--snippets", type=Path, metavar="PAGE", help="run the Python of this page here, and stop")
    options = parser.parse_args(given)
    if options.snippets:
        exec(compile(snippets((ROOT / options.snippets).read_text(encoding="utf-8")), options.snippets, "exec"), {})
        return 0
    rows = chosen(read(options.list), options.only or ())
    make_sandbox(options.sandbox)
    outcomes = []
    for outcome in walk(rows, options.sandbox):
        outcomes.append(outcome)
        line = f"{outcome.verdict:8}{outcome.seconds:7.1f} s  {outcome.command}"
        print(
            "\n    ".join((line, *outcome.why.splitlines())),
            file=sys.stderr if options.json else sys.stdout,
            flush=True,
        )
    counts = {verdict: sum(one.verdict == verdict for one in outcomes) for verdict in ("ok", "FAILED", "not run")}
    if options.json:
        print(json.dumps({"commands": [vars(one) for one in outcomes], "counts": counts}))
    else:
        took = sum(one.seconds for one in outcomes) / 60
        print(f"{', '.join(f'{count} {verdict}' for verdict, count in counts.items())}; {took:.1f} minutes")
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
