"""Shared objects: what is read of real ones, and what an empty one does when this machine's own loader opens it."""

import ctypes
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from numpy._core import _multiarray_umath  # type: ignore[attr-defined]  # a module of C, whose stub says nothing

from pipeline.devices import arm64_packages, elf
from pipeline.devices.elf import Symbol
from pipeline.errors import ToolchainError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="this system's libraries are not ELF")
_REAL = Path(_multiarray_umath.__file__)
_SYMBOLS = [
    Symbol("plain", None, None, data=False),
    Symbol("versioned", "EMPTY_1", "libempty.so.1", data=False),
    Symbol("newer", "EMPTY_2", "libempty.so.1", data=False),
    Symbol("answers", "EMPTY_2", "libempty.so.1", data=False),
    Symbol("variable", None, None, data=True),
    Symbol("_ZTIN3one3TwoE", None, None, data=True),
    Symbol("_ZTI5Three", None, None, data=True),
]


def test_what_is_read_of_a_real_library_is_what_the_loader_finds() -> None:
    library = elf.read(_REAL)
    assert "libc.so.6" in library.needed
    assert "PyInit__multiarray_umath" in library.exports
    opened = ctypes.CDLL(str(_REAL))
    for name in library.exports:
        assert getattr(opened, name)
    asked = {symbol.name: symbol for symbol in library.imports}
    assert asked["PyErr_SetString"].version is None
    assert not asked["PyErr_SetString"].data
    assert asked["stdout"].data
    assert asked["stdout"].library == "libc.so.6"
    versioned = [symbol for symbol in library.imports if symbol.version]
    assert {symbol.library for symbol in versioned} <= set(library.needed)
    # The loader binds each to the library that the file names; of itself it does not hand out everything.
    find = ctypes.CDLL(None).dlvsym
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    for symbol in (one for one in versioned if not str(one.library).startswith("ld-")):
        handle = ctypes.CDLL(symbol.library)._handle
        assert find(handle, symbol.name.encode(), (symbol.version or "").encode()), symbol


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    file = tmp_path / "libempty.so.1"
    elf.write_empty(file, _SYMBOLS, answered=["answers"], machine=platform.machine())
    return file


def test_an_empty_library_has_names_versions_and_types(empty: Path) -> None:
    opened = ctypes.CDLL(str(empty))
    find = ctypes.CDLL(None).dlvsym
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    places = {find(opened._handle, name, b"EMPTY_2") for name in (b"newer", b"answers")}
    assert len(places - {None}) == 2
    assert find(opened._handle, b"versioned", b"EMPTY_1")
    assert find(opened._handle, b"versioned", b"EMPTY_2") is None
    assert ctypes.c_void_p.in_dll(opened, "variable").value is None
    for name in ("_ZTIN3one3TwoE", "_ZTI5Three"):
        table = (ctypes.c_void_p * 2).in_dll(opened, name)
        assert table[0] is None
        assert ctypes.string_at(table[1] or 0).decode() == name.removeprefix("_ZTI")
    opened.answers.restype = ctypes.c_void_p
    place = opened.answers()
    assert ctypes.string_at(place, 64) == bytes(64)
    # Who writes there does not change what a variable is.
    ctypes.memset(place, 1, 64)
    assert ctypes.c_void_p.in_dll(opened, "variable").value is None


@pytest.mark.parametrize("name", ["plain", "versioned", "newer"])
def test_whoever_calls_an_empty_function_is_ended(empty: Path, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(empty)!r}).{name}()"], check=False, capture_output=True
    )
    assert done.returncode == -signal.SIGILL


def test_a_variable_that_one_of_two_tells_is_one(tmp_path: Path) -> None:
    file = tmp_path / "libtwice.so"
    twice = [Symbol("twice", None, None, data=True), Symbol("twice", None, None, data=False)]
    elf.write_empty(file, twice, machine=platform.machine())
    assert ctypes.c_void_p.in_dll(ctypes.CDLL(str(file)), "twice").value is None


def test_a_library_without_a_name_loads(tmp_path: Path) -> None:
    file = tmp_path / "libnothing.so"
    elf.write_empty(file, [], machine=platform.machine())
    assert ctypes.CDLL(str(file))._handle


def test_names_go_to_the_absent_library_that_has_to_have_them() -> None:
    """The C library counts as absent: each of its names, in its version, is asked of it; Python's are the program's."""
    folders = [Path(f"/lib/{platform.machine()}-linux-gnu"), Path(f"/usr/lib/{platform.machine()}-linux-gnu")]
    found, absent = arm64_packages.linked([_REAL], [*folders, Path("/lib64")], left_out=["libc.so.6"])
    assert _REAL.name in found
    assert "libc.so.6" in absent
    python = [symbol.name for symbol in found[_REAL.name].imports if symbol.name.startswith(("Py", "_Py"))]
    shares = arm64_packages.shared_out({_REAL.name: found[_REAL.name]}, found[_REAL.name].needed, python)
    assert {"malloc", "memcpy"} <= {symbol.name for symbol in shares["libc.so.6"]}
    assert not {symbol.name for share in shares.values() for symbol in share} & set(python)
    with pytest.raises(
        ToolchainError, match=r"asks for \w+, which no library has; the packages do not belong together"
    ):
        arm64_packages.shared_out({_REAL.name: found[_REAL.name]}, [], python)


@pytest.mark.parametrize("raw", [b"", b"\x7fELF\x01\x01" + bytes(200), b"no library at all" * 20])
def test_what_is_no_library_is_said(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "file.so").write_bytes(raw)
    with pytest.raises(ToolchainError, match=r"file\.so is not a shared object of 64 bit, little-endian"):
        elf.read(tmp_path / "file.so")


def test_a_library_that_is_cut_short_is_said(tmp_path: Path) -> None:
    whole = _REAL.read_bytes()
    for size in (20, 64, 1000, len(whole) // 2, len(whole) - 100):
        (tmp_path / "cut.so").write_bytes(whole[:size])
        with pytest.raises(ToolchainError, match=r"cut\.so is not a shared object"):
            elf.read(tmp_path / "cut.so")
