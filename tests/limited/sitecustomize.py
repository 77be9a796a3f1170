"""XNNPACK and what else asks `cpuinfo` are made to see a plainer processor, in this process.

Python imports this at its start where the folder is in PYTHONPATH, as `processors.python_path` puts it there.

LiteRT and PyTorch (for ExecuTorch) each hold a copy of https://github.com/pytorch/cpuinfo, which no variable limits: it
asks the processor once, and keeps a struct of flags, `cpuinfo_isa`. When one of the two libraries is about to be
imported, it is loaded, its copy is filled, and flags of what the setting lacks are cleared before a kernel is chosen.
"""

import ctypes
import importlib.abc
import importlib.util
import os
import platform
import re
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "TESTS_XNNPACK"
_NO_VNNI = r"avx512(vnni|bf16|fp16|vbmi|bitalg|vpopcntdq)|avx10|amx|avxvnni|avx_vnni|avx_ne|gfni|vaes|vpclmulqdq"
_NO_AVX512 = rf"avx512|{_NO_VNNI}"
LACKING = {"AVX512_CORE": _NO_VNNI, "AVX2": _NO_AVX512, "SSE41": f"{_NO_AVX512}|avx|fma|f16c|xop"}
"""What a value of the variable takes away, as a pattern for the beginning of a flag's name."""
_SYMBOLS = 2
"""A kind of ELF sections."""


def install() -> None:
    """Limit each library when it is imported, if the variable asks for it; on x86-64 alone."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return
    lacking = LACKING.get(os.environ.get(VARIABLE, ""))
    if lacking:
        sys.meta_path.insert(0, _Limiter(lacking))


class _Limiter(importlib.abc.MetaPathFinder):
    """Finder that finds nothing, but is asked before a library is imported."""

    def __init__(self, lacking: str) -> None:
        self._lacking = re.compile(lacking)
        self._left = {"torch": of_torch, "ai_edge_litert": of_litert}

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        copy = self._left.pop(name, None)
        if copy:
            flags = copy()
            for number, flag in enumerate(flags.names):
                if self._lacking.match(flag):
                    flags.values[number] = False
        return None


class Flags:
    """A library's copy of the struct, in its memory."""

    def __init__(self, address: int, names: Sequence[str]) -> None:
        """Take the struct at an address for flags of these names.

        Raises:
            AssertionError: what every x86-64 processor has is not where it should be.
        """
        self.names, self.values = names, (ctypes.c_bool * len(names)).from_address(address)
        assert {"sse3", "ssse3", "cmpxchg16b", "popcnt"} <= self.present(), self.present()

    def present(self) -> set[str]:
        """Return the names of the flags that are set."""
        return {name for name, value in zip(self.names, self.values, strict=True) if value}


def of_torch() -> Flags:
    """Return PyTorch's copy, which `libc10` exports and ExecuTorch's runtime takes too."""
    library = ctypes.CDLL(str(_package("torch") / "lib" / "libc10.so"))
    library.cpuinfo_initialize()
    return Flags(ctypes.addressof(ctypes.c_bool.in_dll(library, "cpuinfo_isa")), _names())


def of_litert() -> Flags:
    """Return LiteRT's copy, which is private to the library; its symbols say where it is."""
    file = _package("ai_edge_litert") / "libpywrap_litert_common.so"
    ctypes.CDLL(str(file))
    found = {name: (at, size) for name, at, size in _symbols(file) if name in ("cpuinfo_initialize", "cpuinfo_isa")}
    (initialize, _), (there, size) = found["cpuinfo_initialize"], found["cpuinfo_isa"]
    base = _loaded_at(file)
    ctypes.CFUNCTYPE(ctypes.c_bool)(base + initialize)()
    names = _names()
    if size == len(names) + 1:
        # LiteRT 2.3's copy is newer than torch 2.13's by one flag.
        names.insert(names.index("amx_fp16") + 1, "amx_fp8")
    assert size == len(names)
    return Flags(base + there, names)


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec
    assert spec.origin
    return Path(spec.origin).parent


def _names() -> list[str]:
    """Return the names of the struct's flags in order, from the header that torch ships."""
    text = (_package("torch") / "include" / "cpuinfo.h").read_text(encoding="utf-8")
    body = re.search(r"struct cpuinfo_x86_isa \{(.*?)\n\};", text, re.DOTALL)
    assert body
    # Flags of 32-bit processors alone.
    of_64_bits = re.sub(r"#if CPUINFO_ARCH_X86\n.*?#endif\n", "", body[1], flags=re.DOTALL)
    return re.findall(r"bool (\w+);", of_64_bits)


def _loaded_at(file: Path) -> int:
    """Return the address at which a library's first segment lies."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        span, _, offset, *_, path = line.split(maxsplit=5)
        if int(offset, 16) == 0 and Path(path).resolve() == file.resolve():
            return int(span.partition("-")[0], 16)
    raise AssertionError(f"{file} is not loaded")


def _symbols(file: Path) -> Iterator[tuple[str, int, int]]:
    """Yield the symbols of a 64-bit ELF library, private ones too: name, address and size."""
    content = file.read_bytes()
    (table,) = struct.unpack_from("<Q", content, 0x28)
    size, count = struct.unpack_from("<HH", content, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", content, table + size * number) for number in range(count)]
    for _, kind, _, _, start, length, link, *_ in sections:
        if kind == _SYMBOLS:
            names = sections[link][4]
            for place in range(start, start + length, 24):
                name, _, _, _, address, extent = struct.unpack_from("<IBBHQQ", content, place)
                end = content.index(b"\0", names + name)
                yield content[names + name : end].decode(), address, extent


install()
