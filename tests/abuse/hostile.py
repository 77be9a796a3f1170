"""Folders that somebody prepared: links, pipes and folders where files belong, and manifests that lead outside.

Nothing outside is read, written or removed, nothing hangs, and each is refused in one line, or rightly passed over.
"""

import json
import os
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from abuse import scene
from abuse.bad import complaint
from abuse.findings import Finding, judged
from abuse.forked import Forks
from pipeline import artifact
from pipeline.ship.apps import ANDROID, IOS

_SECRET = "what nobody may read 8f1c"
_LIMIT_SECONDS = 20.0
_MAKING_SECONDS = 120.0
"""For commands that make a damaged artifact again."""
_VIEW = "build/tiny/litert-fp32"
Spoil = Callable[[Path, Path], None]
"""`(path, outside)`: put something else in the place of a file; `outside` is a folder that is not ours."""


@dataclass(frozen=True)
class Hostile:
    """One prepared folder and the command that is given it."""

    group: str
    name: str
    prepare: Callable[[Path, Path], None]
    """Is given the project and the folder outside."""
    arguments: tuple[str, ...]


# --- what lies in the place of a file ----------------------------------------------------------------------------


def _open_to_us(path: Path) -> None:
    """Make a protected artifact writable, as its owner can."""
    for folder in (path, *path.parents[:3]):
        if folder.exists() and not folder.is_symlink():
            folder.chmod(0o755 if folder.is_dir() else 0o644)


def _absent(path: Path) -> None:
    _open_to_us(path)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _instead(put: Spoil) -> Spoil:
    def spoil(path: Path, outside: Path) -> None:
        _absent(path)
        put(path, outside)

    return spoil


def _put_socket(path: Path, outside: Path) -> None:
    # A socket's path is short; it is made elsewhere and moved.
    short = outside / "s"
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(os.path.relpath(short))
    short.rename(path)


def _put_sparse(path: Path, outside: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def _put_noise(path: Path, outside: Path) -> None:
    path.write_bytes(bytes(range(256)) * 8)


def _put_deep(path: Path, outside: Path) -> None:
    path.mkdir()
    for _ in range(60):
        path /= "deeper"
        path.mkdir()
    (path / "notes.txt").write_text("mine\n", encoding="utf-8")


_SPOILS: dict[str, Spoil] = {
    "a link to a file outside": _instead(lambda path, outside: path.symlink_to(outside / "secret.json")),
    "a link to /etc/passwd": _instead(lambda path, outside: path.symlink_to("/etc/passwd")),
    "a link to a folder outside": _instead(lambda path, outside: path.symlink_to(outside)),
    "a link to nothing": _instead(lambda path, outside: path.symlink_to("/no/such/file")),
    "a link to itself": _instead(lambda path, outside: path.symlink_to(path.name)),
    "a link to an endless device": _instead(lambda path, outside: path.symlink_to("/dev/zero")),
    "a hard link to a file outside": _instead(lambda path, outside: os.link(outside / "secret.json", path)),
    "a pipe": _instead(lambda path, outside: os.mkfifo(path)),
    "a socket": _instead(_put_socket),
    "a folder": _instead(lambda path, outside: path.mkdir()),
    "a deep folder": _instead(_put_deep),
    "an empty file": _instead(lambda path, outside: path.touch()),
    "a terabyte of holes": _instead(_put_sparse),
    "noise": _instead(_put_noise),
}


# --- where, and for which command --------------------------------------------------------------------------------

_BUILD = ("--build", "build")
_RECIPE = ("recipe.toml", *_BUILD)
_ONE = ("--target", "litert:fp32")
_OF_MODEL: tuple[tuple[str, ...], ...] = (
    ("predict", _VIEW, "hello"), ("ship", *_RECIPE, *_ONE, "--into", "apps"), ("verify", *_RECIPE, *_ONE),
    ("push", "recipe.toml", "me/tiny", *_BUILD), ("clean", *_BUILD), ("report", *_RECIPE, *_ONE),
)  # fmt: skip
_OF_STUDENT: tuple[tuple[str, ...], ...] = (
    ("plan", "recipe.toml", "--build", "other"), ("init", "source", "--pooling", "mean", "--output", "new.toml"),
    ("student", "recipe.toml", "--build", "other"),
)  # fmt: skip
_OF_APPS: tuple[tuple[str, ...], ...] = (("ship", *_RECIPE, "--into", "apps"), ("clean", *_BUILD))
_PLACES: tuple[tuple[str, tuple[str, ...], tuple[tuple[str, ...], ...]], ...] = (
    ("model folder", tuple(f"{_VIEW}/model/{name}" for name in (
        "manifest.json", "signature.json", "model.tflite", "tokenizer.json", "config.json", "golden.json")), _OF_MODEL),
    ("verdict", tuple(f"{_VIEW}/parity/{name}" for name in ("manifest.json", "parity.json")), _OF_MODEL[1:]),
    ("build folder", ("build/store", "build/tiny", f"{_VIEW}/model", "build/tiny/student", "build/store/.used"),
     _OF_MODEL),
    ("checkpoint", tuple(f"source/{name}" for name in ("config.json", "model.safetensors", "tokenizer.json")),
     _OF_STUDENT),
    ("app", tuple(f"apps/{root}{rest}" for root in (ANDROID, IOS) for rest in (
        "", "/models.json", "/tiny", "/tiny/litert-int8_dynamic", "/tiny/litert-int8_dynamic/shipped.json")), _OF_APPS),
    ("recipe", ("recipe.toml",), (("plan", *_RECIPE),)),
)  # fmt: skip


def _drawn(seed: int) -> Iterator[Hostile]:
    """Yield every place with every spoil, each with one of its commands."""
    draw = random.Random(f"{seed}-hostile")
    for group, places, commands in _PLACES:
        for place in places:
            for name, spoil in _SPOILS.items():
                yield Hostile(group, f"{place}: {name}", _spoiled(place, spoil), draw.choice(commands))


def _spoiled(place: str, spoil: Spoil) -> Callable[[Path, Path], None]:
    def prepare(project: Path, outside: Path) -> None:
        path = project / place
        assert path.parent.exists(), f"{place} lies nowhere in the project"
        spoil(path, outside)

    return prepare


# --- manifests and signatures that lead outside, names that no file should have ----------------------------------


def _edit(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path, Path], None]:
    """Edit a JSON file of the model folder and write honest hashes over it, as somebody does who means it."""

    def prepare(project: Path, outside: Path) -> None:
        folder = (project / _VIEW / "model").resolve()
        for path in (folder, *folder.iterdir()):
            path.chmod(0o755)
        document = json.loads((folder / name).read_text(encoding="utf-8"))
        change(document)
        (folder / name).unlink()
        (folder / name).write_text(json.dumps(document), encoding="utf-8")
        if name != artifact.MANIFEST:
            manifest = artifact.read_manifest(folder).model_copy(update={"files": artifact.list_files(folder)})
            (folder / artifact.MANIFEST).unlink()
            (folder / artifact.MANIFEST).write_text(manifest.model_dump_json(), encoding="utf-8")

    return prepare


def _beside(name: str) -> Callable[[Path, Path], None]:
    def prepare(project: Path, outside: Path) -> None:
        folder = (project / _VIEW / "model").resolve()
        folder.chmod(0o755)
        (folder / name).write_text("mine\n", encoding="utf-8")

    return prepare


def _manifest(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path, Path], None]:
    return _edit(artifact.MANIFEST, change)


_MEANT: dict[str, Callable[[Path, Path], None]] = {
    "signature.json: file ../outside": _edit("signature.json", lambda d: d.update(file="../../outside/secret.json")),
    "signature.json: file /etc/passwd": _edit("signature.json", lambda d: d.update(file="/etc/passwd")),
    "signature.json: file that is a folder": _edit("signature.json", lambda d: d.update(file=".")),
    "signature.json: negative padding": _edit("signature.json", lambda d: d.update(pad_token_id=-5)),
    "signature.json: ten thousand functions": _edit(
        "signature.json", lambda d: d.update(functions=d["functions"] * 10**4)
    ),
    "signature.json: huge length": _edit("signature.json", lambda d: d["functions"][0].update(max_length=10**12)),
    "signature.json: runtime 999.0": _edit("signature.json", lambda d: d.update(minimum_runtime="999.0")),
    "golden.json: no rows": _edit("golden.json", lambda d: d.update(rows=[])),
    "config.json: other model type": _edit("config.json", lambda d: d.update(model_type="gpt2")),
    "tokenizer.json: a regular expression that never ends": _edit(
        "tokenizer.json", lambda d: d.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a+)+$"},
                                                            "behavior": "Isolated", "invert": False})),
    "manifest.json: path ../": _manifest(lambda d: d["files"][0].update(path="../../outside/secret.json")),
    "manifest.json: absolute path": _manifest(lambda d: d["files"][0].update(path="/etc/passwd")),
    "manifest.json: twice the same path": _manifest(lambda d: d["files"].append(d["files"][0])),
    "manifest.json: no files": _manifest(lambda d: d.update(files=[])),
    "manifest.json: other hash": _manifest(lambda d: d["files"][0].update(sha256="0" * 64)),
    "manifest.json: another schema": _manifest(lambda d: d.update(schema_version=99)),
    "manifest.json: NUL in a path": _manifest(lambda d: d["files"][0].update(path="a\0b")),
    "a name with a line end": _beside("two\nlines"),
    "a name with an escape": _beside("\x1b[31mred"),
    "a name that is no UTF-8": _beside(os.fsdecode(b"caf\xe9")),
    "a name in other case": _beside("MODEL.TFLITE"),
    "a hidden name of ours": _beside(".model.0123abcd.new"),
}  # fmt: skip


def cases(seed: int) -> list[Hostile]:
    """Return all cases of a seed, well mixed; what is meant comes with every command of a model folder."""
    found = [Hostile("meant", name, prepare, command) for name, prepare in _MEANT.items() for command in _OF_MODEL[:3]]
    found += _drawn(seed)
    random.Random(seed).shuffle(found)
    return found


def give(project: Path, found: list[Hostile], forks: Forks, number: int) -> Finding:
    """Give a command one prepared folder."""
    one = found[number]
    with scene.case_folder(f"hostile-{number}") as case:
        outside = case / "outside"
        outside.mkdir()
        (outside / "secret.json").write_text(json.dumps({"secret": _SECRET}), encoding="utf-8")
        folder = scene.copy(project, case / "project")
        one.prepare(folder, outside)
        before = _outside(outside)
        notes = _notes(folder)
        limit = _MAKING_SECONDS if one.arguments[0] in ("verify", "report", "student") else _LIMIT_SECONDS
        ended = forks.run(list(one.arguments), folder, temporary=case / "tmp", seconds=limit)
        problems = [] if not ended.took_too_long else [f"it took more than {limit:.0f} s"]
        problems += scene.traceback(ended.said)
        if ended.code == 2:
            problems += complaint(ended.said, ())
        elif ended.code == 3 and "is too old" in ended.said:
            # A file may ask for a runtime that is not there.
            problems += complaint(ended.said, ())
        elif ended.code not in (0, 1, -99) or (ended.code == 1 and one.arguments[0] != "verify"):
            problems.append(f"exit code {ended.code}: {ended.said.strip()[-300:]}")
        if _SECRET in ended.said or "root:x:" in ended.said:
            problems.append("it printed what lies outside")
        after = _outside(outside)
        # Who lets a build folder be a link to another disk's wants artifacts there, beside what is there.
        meant = one.group == "build folder" and "a link to a folder outside" in one.name
        if {name: after.get(name) for name in before} != before or (after != before and not meant):
            problems.append("what lies outside was changed")
        problems += [f"the user's {name} was changed or is gone" for name in notes - _notes(folder)]
        problems += _spread(folder)
        problems += scene.temporary(case)
        return judged(number, one.group, f"{' '.join(one.arguments[:1])}, {one.name}", problems, ended.code)


def _outside(outside: Path) -> dict[str, str]:
    return {str(path.relative_to(outside)): artifact.sha256_file(path) if path.is_file() else "folder"
            for path in outside.rglob("*")}  # fmt: skip


def _notes(folder: Path) -> set[str]:
    return {name for name in scene.NOTES if (folder / name).is_file() and not (folder / name).is_symlink()}


def _spread(folder: Path) -> list[str]:
    """Say into which files of the apps what lies outside was copied."""
    found = []
    for path in (folder / "apps").rglob("*"):
        regular = (
            path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1 and path.stat().st_size < 1 << 20
        )
        if regular and _SECRET.encode() in path.read_bytes():
            found.append(f"{path.relative_to(folder)} has what lies outside")
    return found
