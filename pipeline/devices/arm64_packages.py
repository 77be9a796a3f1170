"""The runtimes' published ARM64 builds: their packages, their download, and the empty libraries that one needs to load.

They lie in the build folder's `.arm64/`, one folder for each set of versions; what `.ci/devices` unpacks opens them.
"""

import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from pipeline.atomic import write_aside
from pipeline.devices import elf
from pipeline.devices.elf import Library, Symbol
from pipeline.errors import ToolchainError

_PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux2014_aarch64")
_PYTHON = "3.11"
"""Python's version in the emulated system, Debian bookworm."""
_READY = "ready"
"""Written last. Names the empty libraries, one a line."""


@dataclass(frozen=True)
class Build:
    """A runtime's build for ARM64."""

    packages: tuple[str, ...]
    """The runtime first. Each in the version that is installed here."""
    download_mb: int
    opened: tuple[str, ...] = ()
    """Patterns of the libraries that the guest opens; set only if missing ones are replaced by empty libraries."""
    left_out: tuple[str, ...] = ()
    """Libraries that exist, and are replaced by empty ones all the same."""
    answered: tuple[str, ...] = ()
    """Functions of the empty libraries that are called while loading, see `elf.write_empty`."""
    unused: tuple[str, ...] = ()
    """Folders of the packages that are not needed here."""

    @property
    def title(self) -> str:
        """The runtime and its version."""
        return f"{self.packages[0]} {_version(self.packages[0])}"


BUILDS: Mapping[str, Build] = {
    "litert": Build(("ai-edge-litert", "numpy"), download_mb=35),
    "executorch": Build(
        # Of PyTorch the guest uses tensors alone; the kernels are ExecuTorch's. 2.10 was the last one for processors
        # alone, and lacks functions that ExecuTorch 1.4 calls.
        ("executorch", "torch", "numpy", "typing_extensions"),
        download_mb=460,
        opened=(
            "torch/_C.*.so",
            "torch/lib/libtorch_global_deps.so",
            "executorch/extension/pybindings/*.so",
            "executorch/kernels/quantized/libquantized_ops_aot_lib.so",
        ),
        left_out=("libtorch_cuda.so", "libc10_cuda.so"),
        # A reference, through which libtorch_python says how it takes Python's lock.
        answered=("_ZN4c10d15get_gil_checkerEv",),
        unused=("torch/include", "torch/share"),
    ),
}
"""By the format whose files they run."""


@dataclass(frozen=True)
class Site:
    """A folder of installed packages."""

    folder: Path
    title: str
    """The runtime and its version."""
    stubs: tuple[str, ...]
    """Libraries that are empty."""
    answered: tuple[str, ...]
    """Functions of the empty libraries that return instead of ending the process."""


def find(build: Path, backend: str, tree: Path, *, install: bool, note: Callable[[str], None]) -> Site:
    """Return a format's packages for ARM64.

    Args:
        build: the build folder.
        backend: one of `BUILDS`.
        tree: the emulated system, whose libraries the packages use.
        install: download them where they are not there.
        note: told what is downloaded, and what is replaced.

    Raises:
        ToolchainError: they are not there and may not be downloaded, or cannot.
    """
    row = BUILDS[backend]
    names = [f"{name}=={_version(name)}" for name in row.packages]
    place = build / ".arm64" / "-".join(one.replace("==", "-") for one in names)
    if not (place / _READY).is_file():
        every = f"{', '.join(names[:-1])} and {names[-1]}"
        if not install:
            raise ToolchainError(
                f"{every} for ARM64 are not in {place}; --install downloads them, {row.download_mb} MB."
            )
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(place.parent / "lock"):
            if not (place / _READY).is_file():
                note(f"downloading {every} for ARM64, about {row.download_mb} MB")
                with write_aside(place) as aside:
                    _install(names, aside)
                    stubs = _stubbed(row, aside, tree) if row.opened else []
                    (aside / _READY).write_text("".join(f"{name}\n" for name in stubs), encoding="utf-8")
    stubs = (place / _READY).read_text(encoding="utf-8").split()
    if stubs:
        note(
            f"empty libraries stand for {', '.join(stubs)}: {row.packages[0]} is linked against them, and where it "
            f"called one, the run would end. Loading alone calls {', '.join(row.answered)}, which answers"
        )
    return Site(place.resolve(), row.title, tuple(stubs), row.answered if stubs else ())


def _version(package: str) -> str:
    # A local part, such as `+cpu`, names another build of the same release.
    return importlib.metadata.version(package).partition("+")[0]


def _install(requirements: Sequence[str], aside: Path) -> None:
    command = [sys.executable, "-P", "-m", "pip", "install", "--quiet", "--no-deps", "--no-input"]
    command += ["--disable-pip-version-check", "--implementation", "cp", "--python-version", _PYTHON]
    for platform in _PLATFORMS:
        command += ["--platform", platform]
    command += ["--only-binary", ":all:", "--target", str(aside), *requirements]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise ToolchainError(f"{' '.join(requirements)} cannot be installed for ARM64: {last}") from error


def _stubbed(row: Build, site: Path, tree: Path) -> list[str]:
    """Write the empty libraries, remove files that no library needs, and return the names of the empty ones."""
    opened = [file for pattern in row.opened for file in site.glob(pattern)]
    own = sorted({file.parent for file in opened} | {site / "torch" / "lib"})
    system = tree / "arm64"
    folders = [*own, *(system / name / "aarch64-linux-gnu" for name in ("lib", "usr/lib")), system / "lib"]
    found, absent = linked(opened, folders, left_out=row.left_out)
    python = elf.read(system / "usr" / "bin" / f"python{_PYTHON}")
    empty = shared_out(found, absent, python.exports)
    for file in [*(site / row.packages[0]).rglob("*"), *(site / "torch" / "lib").rglob("*.so*")]:
        if file.is_file() and file.name not in found:
            file.unlink()
    for name in row.unused:
        shutil.rmtree(site / name, ignore_errors=True)
    for name, symbols in empty.items():
        elf.write_empty(site / "torch" / "lib" / name, symbols, answered=row.answered)
    return sorted(empty)


def linked(
    opened: Iterable[Path], folders: Sequence[Path], *, left_out: Sequence[str] = ()
) -> tuple[dict[str, Library], list[str]]:
    """Collect the libraries that the given ones are linked against, recursively.

    Args:
        opened: the libraries that a program opens itself.
        folders: folders in which the other libraries are searched.
        left_out: names of libraries that count as absent.

    Returns:
        The libraries that were found, by name, and the names of the absent ones.
    """
    found: dict[str, Library] = {}
    absent: list[str] = []
    waiting = list(opened)
    while waiting:
        file = waiting.pop()
        if file.name in found:
            continue
        found[file.name] = elf.read(file)
        for name in found[file.name].needed:
            there = next((folder / name for folder in folders if (folder / name).is_file()), None)
            if there and name not in left_out:
                waiting.append(there)
            elif name not in absent:
                absent.append(name)
    return found, absent


def shared_out(found: Mapping[str, Library], absent: Sequence[str], offered: Iterable[str]) -> dict[str, list[Symbol]]:
    """Give each name that nobody has to the absent library that has to have it.

    Args:
        found: libraries that are there.
        absent: names of those that are not.
        offered: what the program itself has.

    Raises:
        ToolchainError: a name is missing in a library that needs no absent one, so an empty one does not help.
    """
    every = set(offered).union(*(library.exports for library in found.values()))
    shares: dict[str, list[Symbol]] = {name: [] for name in absent}
    for name, library in found.items():
        candidates = [one for one in library.needed if one in shares]
        for symbol in library.imports:
            if symbol.name in every:
                continue
            owner = symbol.library or next(iter(candidates), None)
            if owner not in candidates:
                raise ToolchainError(
                    f"{name} asks for {symbol.name}, which no library has; the packages do not belong together."
                )
            shares[owner].append(symbol)
    return shares
