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
import stat
from pathlib import Path

from pipeline.artifact import ORIGIN, Artifact, Manifest, digest_of, read_manifest

_KEY_BYTES = 32
_MARK_BYTES = 64


def mark(folder: Path) -> None:
    """Mark a finished artifact as made here; nothing is written where there is no place for the key."""
    with contextlib.suppress(OSError, RuntimeError):
        (folder / ORIGIN).write_text(_mac(_key(), read_manifest(folder)), encoding="ascii")


def is_own(artifact: Artifact) -> bool:
    """Return whether this user's store made an artifact, which `artifact.load` has found to be as its manifest says."""
    try:
        found = _read_plain(artifact.path / ORIGIN, _MARK_BYTES)
        return hmac.compare_digest(found, _mac(_key(), artifact.manifest).encode())
    except (OSError, RuntimeError):
        return False


def _mac(key: bytes, manifest: Manifest) -> str:
    return hmac.new(key, digest_of(manifest.model_dump(mode="json")).encode(), hashlib.sha256).hexdigest()


def _read_plain(path: Path, size: int, *, owned: bool = False) -> bytes:
    """Read a regular file of this many bytes.

    Args:
        path: the file; a link, a pipe or a device is refused, and not waited for.
        size: number of bytes.
        owned: whether it has to be this user's, and nobody else's to read or write.

    Raises:
        OSError: it is something else, or cannot be read.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as handle:
        found = os.fstat(handle.fileno())
        private = found.st_uid == os.geteuid() and not found.st_mode & 0o077
        if not stat.S_ISREG(found.st_mode) or found.st_size != size or (owned and not private):
            raise OSError(f"{path} is not a private file of {size} bytes; remove it")
        return handle.read(size)


def state_folder() -> Path:
    """Return PocketBERT's folder among the user's states, which may not exist yet.

    Raises:
        RuntimeError: the user has no home.
    """
    state = os.environ.get("XDG_STATE_HOME", "")
    # A relative path is to be ignored: https://specifications.freedesktop.org/basedir-spec.
    return (Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state") / "pocketbert"


def _key() -> bytes:
    """Return the user's key, made at its first use.

    Raises:
        OSError: the user has no folder that can be written.
        RuntimeError: the user has no home.
    """
    place = state_folder() / "origin.key"
    with contextlib.suppress(FileNotFoundError):
        return _read_plain(place, _KEY_BYTES, owned=True)
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
    return _read_plain(place, _KEY_BYTES, owned=True)
