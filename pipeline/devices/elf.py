"""64-bit shared objects for Linux: read a library's imports and exports, and write an empty library with given exports.

PyTorch's build for ARM64 is linked against CUDA's libraries and does not load without them, though no CPU code calls
them. An empty library exports their names without code: a call of one of its functions ends the process by SIGILL, so
a run that finishes has called none.

Source: System V ABI (gABI 4.1), chapters 4 and 5; symbol versions as in the Linux Standard Base, "Symbol Versioning".
"""

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import ToolchainError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_VERNEED = struct.Struct("<HHIII")
_VERNAUX = struct.Struct("<IHHII")
_VERDEF = struct.Struct("<HHHHIIIII")
"""With its one name."""
_RELA = struct.Struct("<QQq")
_DYNSYM, _DYNAMIC, _VERSYM, _VERNEEDS = 11, 6, 0x6FFFFFFF, 0x6FFFFFFE
"""Types of sections."""
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_EXECUTE, _WRITE, _READ = 1, 2, 4
_DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 1, 4, 5, 6, 10, 11, 14
_DT_RELA, _DT_RELASZ, _DT_RELAENT, _DT_VERSYM, _DT_VERDEF, _DT_VERDEFNUM = 7, 8, 9, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD
_GLOBAL, _OBJECT, _FUNCTION = 1, 1, 2
_FIRST_VERSION = 2
_PAGE = 0x10000
"""The largest that a kernel for ARM64 has."""
_DATA, _ROOM, _ANSWERS, _END = 0x80000, 0x90000, 0x98000, 0xA0000
"""Addresses in an empty library: writable data; zeros for variables, whose size is not known; zeros for the functions
that return; the end. All lie within one megabyte, the reach of an ARM64 instruction."""
_TYPEINFO = "_ZTI"


@dataclass(frozen=True)
class _Machine:
    code: int
    trap: bytes
    """An instruction that is none, and ends the process."""
    answer: Callable[[int], bytes]
    """Instructions, as many bytes, that return an address at some distance."""
    relative: int
    """Type of the relocation that adds the library's address."""


_MACHINES: Mapping[str, _Machine] = {
    # adr x0, distance; ret
    "aarch64": _Machine(
        183, bytes(8), lambda far: struct.pack("<II", (far & 3) << 29 | 1 << 28 | far >> 2 << 5, 0xD65F03C0), 1027
    ),
    # lea rax, [rip + distance]; ret
    "x86_64": _Machine(
        62, b"\x0f\x0b".ljust(8, b"\0"), lambda far: b"\x48\x8d\x05" + struct.pack("<i", far - 7) + b"\xc3", 8
    ),
}


@dataclass(frozen=True)
class Symbol:
    """An undefined symbol of a library, which another library has to define."""

    name: str
    version: str | None
    library: str | None
    """The library that has to define the symbol; known only if the symbol has a version."""
    data: bool
    """Whether it is known to be a variable or a table; for many undefined symbols the file does not tell."""


@dataclass(frozen=True)
class Library:
    """The exports and imports of a shared object."""

    needed: tuple[str, ...]
    exports: frozenset[str]
    imports: tuple[Symbol, ...]
    """Imported symbols, without weak ones that may stay undefined."""


def read(file: Path) -> Library:
    """Read a shared object or a program by its section headers.

    Raises:
        ToolchainError: it is none of 64 bit, or damaged.
    """
    try:
        return _read(file.read_bytes())
    except (struct.error, IndexError, StopIteration, UnicodeDecodeError, ValueError) as error:
        raise ToolchainError(f"{file} is not a shared object of 64 bit, little-endian: {error!r}.") from error


def _read(raw: bytes) -> Library:
    header = _HEADER.unpack_from(raw)
    if header[0][:6] != b"\x7fELF\x02\x01":
        raise ValueError(raw[:6])
    sections = [_SECTION.unpack_from(raw, header[6] + number * _SECTION.size) for number in range(header[12])]

    def body(kind: int) -> tuple[bytes, bytes]:
        """Return a section and the strings that belong to it."""
        found = next((section for section in sections if section[1] == kind), None)
        if found is None:
            return b"", b""
        strings = sections[found[6]]
        return raw[found[4] : found[4] + found[5]], raw[strings[4] : strings[4] + strings[5]]

    dynamic, names = body(_DYNAMIC)
    tags = list(struct.iter_unpack("<QQ", dynamic))
    versions = dict(_versions(*body(_VERNEEDS)))
    table, symbol_names = body(_DYNSYM)
    of_symbols = [number for (number,) in struct.iter_unpack("<H", body(_VERSYM)[0])]
    exports, imports = set(), []
    for number, (name, info, _, section, _, _) in enumerate(_SYMBOL.iter_unpack(table)):
        text = _text(symbol_names, name)
        if section:
            exports.add(text)
        elif text and info >> 4 == _GLOBAL:
            library, version = versions.get(of_symbols[number] if of_symbols else 0, (None, None))
            data = info & 15 == _OBJECT or text.startswith("_ZT")
            imports.append(Symbol(text, version, library, data))
    needed = tuple(_text(names, value) for tag, value in tags if tag == _DT_NEEDED)
    return Library(needed, frozenset(exports), tuple(imports))


def _versions(needs: bytes, names: bytes) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield a version's number, the library that has to have it, and its name."""
    place = 0
    while needs:
        _, count, library, first, following = _VERNEED.unpack_from(needs, place)
        inner = place + first
        for _ in range(count):
            _, _, number, name, step = _VERNAUX.unpack_from(needs, inner)
            yield number, (_text(names, library), _text(names, name))
            inner += step
        if not following:
            return
        place += following


def _text(strings: bytes, place: int) -> str:
    return strings[place : strings.index(b"\0", place)].decode()


def write_empty(
    file: Path, symbols: Collection[Symbol], *, answered: Collection[str] = (), machine: str = "aarch64"
) -> None:
    """Write a library that has names, and nothing behind them.

    A function is an instruction that ends the process. A variable is zeros, so what it points to is null. Only a C++
    type has its name: pybind11 reads those of all classes when it is loaded, of those that nobody makes too.

    Args:
        file: its name is the library's.
        symbols: the names.
        answered: functions that return the address of zeros of their own, where loading alone calls them.
        machine: the processor, by the kernel's name.
    """
    target = _MACHINES[machine]
    # Of a name that two libraries ask for, one may tell that it is a variable: the last one in this order.
    rising = sorted(symbols, key=lambda one: (one.name, one.version or "", one.data))
    chosen = {(one.name, one.version): one for one in rising}
    types = [one for one in chosen.values() if one.name.startswith(_TYPEINFO)]
    versions = sorted({one.version for one in chosen.values() if one.version})
    strings = _Strings([file.name, *versions, *(one.name for one in chosen.values())])
    text = bytearray(_HEADER.size + 4 * _SEGMENT.size)
    functions = b""
    for one in chosen.values():
        answer = _ANSWERS - len(text) - len(functions)
        functions += target.answer(answer) if one.name in answered else target.trap
    code = _append(text, functions)
    names = _append(text, strings.raw)
    # A C++ type is a table of functions, and a name: its own, without what marks it as one of a type.
    relocations = [
        _RELA.pack(_DATA + 16 * number + 8, target.relative, names + strings.at(one.name) + len(_TYPEINFO))
        for number, one in enumerate(types)
    ]
    table = [bytes(_SYMBOL.size)]
    for number, one in enumerate(chosen.values()):
        value = _ROOM if one.data else code + len(target.trap) * number
        if one in types:
            value = _DATA + 16 * types.index(one)
        kind = _GLOBAL << 4 | (_OBJECT if one.data else _FUNCTION)
        table.append(_SYMBOL.pack(strings.at(one.name), kind, 0, 1, value, 8))
    numbers = {version: number for number, version in enumerate(versions, _FIRST_VERSION)}
    of_symbols = [0, *(numbers[one.version] if one.version else 1 for one in chosen.values())]
    # One bucket: the loader goes through all names, of which there are few.
    chain = [1, len(table), min(1, len(chosen)), 0, *range(2, len(table)), *[0][: len(chosen)]]
    tags = {
        _DT_SONAME: strings.at(file.name),
        _DT_HASH: _append(text, struct.pack(f"<{len(chain)}I", *chain)),
        _DT_STRTAB: names,
        _DT_STRSZ: len(strings.raw),
        _DT_SYMTAB: _append(text, b"".join(table)),
        _DT_SYMENT: _SYMBOL.size,
        _DT_VERSYM: _append(text, struct.pack(f"<{len(of_symbols)}H", *of_symbols)),
        _DT_VERDEF: _append(text, _definitions([file.name, *versions], strings)),
        _DT_VERDEFNUM: len(versions) + 1,
    }
    if types:
        tags |= {_DT_RELA: _append(text, b"".join(relocations)), _DT_RELASZ: _RELA.size * len(types)}
        tags |= {_DT_RELAENT: _RELA.size}
    dynamic = b"".join(struct.pack("<QQ", *tag) for tag in [*tags.items(), (0, 0)])
    data = bytes(16 * len(types)) + dynamic
    assert max(len(text) - _DATA, len(data) - (_ROOM - _DATA)) <= 0, "the tables of some thousand names fit"
    offset = -(-len(text) // _PAGE) * _PAGE
    magic = b"\x7fELF\x02\x01\x01"
    head = _HEADER.pack(magic, 3, target.code, 1, 0, _HEADER.size, 0, 0, _HEADER.size, _SEGMENT.size, 4, 0, 0, 0)
    head += _SEGMENT.pack(_PT_LOAD, _READ | _EXECUTE, 0, 0, 0, len(text), len(text), _PAGE)
    head += _SEGMENT.pack(_PT_LOAD, _READ | _WRITE, offset, _DATA, _DATA, len(data), _END - _DATA, _PAGE)
    start = 16 * len(types)
    place = _DATA + start
    head += _SEGMENT.pack(_PT_DYNAMIC, _READ | _WRITE, offset + start, place, place, len(dynamic), len(dynamic), 8)
    head += _SEGMENT.pack(_PT_GNU_STACK, _READ | _WRITE, 0, 0, 0, 0, 0, 8)
    text[: len(head)] = head
    file.write_bytes(text.ljust(offset, b"\0") + data)


class _Strings:
    """Strings one behind the other, each ended by a zero."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.raw = b"\0"
        self._at: dict[str, int] = {}
        for text in texts:
            self._at[text] = len(self.raw)
            self.raw += text.encode() + b"\0"

    def at(self, text: str) -> int:
        """Return where a string begins."""
        return self._at[text]


def _append(text: bytearray, body: bytes) -> int:
    """Append a table at a multiple of eight; return where it begins."""
    text += bytes(-len(text) % 8)
    place = len(text)
    text += body
    return place


def _definitions(texts: Sequence[str], strings: _Strings) -> bytes:
    """Return the table of versions that a library has; the first is the library itself."""
    return b"".join(
        _VERDEF.pack(
            1,
            int(number == 1),
            number,
            1,
            _hash(text),
            _VERDEF.size - 8,
            _VERDEF.size if number < len(texts) else 0,
            strings.at(text),
            0,
        )
        for number, text in enumerate(texts, 1)
    )


def _hash(text: str) -> int:
    """Return the hash of a version's name, as the ABI has it."""
    value = 0
    for byte in text.encode():
        value = (value << 4) + byte
        value = (value ^ (value & 0xF0000000) >> 24) & 0x0FFFFFFF
    return value
