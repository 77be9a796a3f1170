"""The mark of what this user's own store made: a MAC over the manifest, with a key that never leaves the machine.

The hashes of a manifest show that nothing was changed since it was written, not who wrote it. The runtimes are C++ that
follows the offsets of a file unchecked, so a file of unknown origin is opened in a process of its own. A marked folder
needs none: it came from a conversion here, and every byte is as it was then.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path

from pipeline.artifact import MANIFEST, ORIGIN

_KEY_BYTES = 32
_MARK_BYTES = 64


def mark(folder: Path) -> None:
    """Mark a finished artifact as made here; nothing is written where there is no place for the key."""
    with contextlib.suppress(OSError, RuntimeError):
        place = folder / ORIGIN
        place.write_text(_mac(_key(), folder), encoding="ascii")


def is_own(folder: Path) -> bool:
    """Return whether this user's store made a folder whose files are as its manifest says, see `artifact.load`."""
    try:
        with (folder / ORIGIN).open("rb") as handle:
            found = handle.read(_MARK_BYTES + 1)
        return hmac.compare_digest(found, _mac(_key(), folder).encode())
    except (OSError, RuntimeError):
        return False


def _mac(key: bytes, folder: Path) -> str:
    return hmac.new(key, (folder / MANIFEST).read_bytes(), hashlib.sha256).hexdigest()


def _key() -> bytes:
    """Return the user's key, made at its first use.

    Raises:
        OSError: the user has no folder that can be written.
        RuntimeError: the user has no home.
    """
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    place = Path(state) / "pocketbert" / "origin.key"
    with contextlib.suppress(FileNotFoundError):
        key = place.read_bytes()
        if len(key) == _KEY_BYTES:
            return key
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    aside = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
            handle.write(secrets.token_bytes(_KEY_BYTES))
        # A link fails where another process was first, whose key it is then.
        with contextlib.suppress(FileExistsError):
            os.link(aside, place)
    finally:
        aside.unlink(missing_ok=True)
    key = place.read_bytes()
    if len(key) != _KEY_BYTES:
        raise OSError(f"{place} is no key; remove it")
    return key
