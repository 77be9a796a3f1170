"""Watch a folder by the kernel's inotify, so that a command can be killed right after its n-th change of a file."""

import ctypes
import os
import select
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_MASK = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_FOLDER = 0x40000000
_HEAD = struct.Struct("iIII")


class Watch:
    """Counts changes below some folders; folders that appear are watched as soon as they are seen."""

    def __init__(self, *folders: Path) -> None:
        """Watch folders and all below them."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._handle = self._libc.inotify_init1(os.O_NONBLOCK)
        if self._handle < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._paths: dict[int, bytes] = {}
        self.changes = 0
        for folder in folders:
            self._add(os.fsencode(folder))

    def _add(self, folder: bytes) -> None:
        for where, folders, _ in os.walk(folder):
            number = self._libc.inotify_add_watch(self._handle, where, _MASK)
            if number >= 0:
                self._paths[number] = where
            folders[:] = [name for name in folders if not os.path.islink(os.path.join(where, name))]

    def wait(self, seconds: float) -> int:
        """Wait for changes, at most so long; return how many there were so far."""
        if select.select([self._handle], [], [], seconds)[0]:
            content = os.read(self._handle, 1 << 16)
            at = 0
            while at < len(content):
                number, mask, _, size = _HEAD.unpack_from(content, at)
                name = content[at + _HEAD.size : at + _HEAD.size + size].rstrip(b"\0")
                at += _HEAD.size + size
                self.changes += 1
                if mask & _FOLDER and mask & (_CREATE | _MOVED_TO) and number in self._paths:
                    self._add(os.path.join(self._paths[number], name))
        return self.changes

    def __enter__(self) -> Self:
        """Return the watch."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Watch no longer."""
        os.close(self._handle)
