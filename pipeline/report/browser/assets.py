"""The browser's runtime: tarballs of the npm registry, pinned by sha512, downloaded on request alone.

They lie as they came in `BUILD/.browser/`, and are read from there with their hashes compared: nothing is unpacked, and
nothing that was changed is served. On a machine without a network the same files may be put there by `npm pack`.
"""

import base64
import hashlib
import os
import tarfile
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from io import BytesIO
from pathlib import Path
from urllib.error import HTTPError

from pipeline import atomic
from pipeline.errors import InputError
from pipeline.formats.browsers import BrowserRuntime, NpmPackage

FOLDER = ".browser"
"""In the build folder."""
_REGISTRY = "https://registry.npmjs.org"
_VARIABLES = ("npm_config_registry", "NPM_CONFIG_REGISTRY")
"""As npm reads them: a mirror of the registry."""
_SECONDS = 60
_MB = 1e6


def read(runtime: BrowserRuntime, folder: Path) -> dict[str, bytes]:
    """Return the files of a runtime by the names under which a page loads them.

    Raises:
        InputError: a tarball is not there, or is not the pinned one.
    """
    files: dict[str, bytes] = {}
    for package in runtime.packages:
        place = folder / package.tarball
        try:
            content = place.read_bytes() if place.stat().st_size == package.bytes else b""
        except FileNotFoundError as error:
            raise InputError(
                f"{runtime.name} is not here: {place} does not exist. `pocketbert report --serve --install` downloads "
                f"it once ({sum(one.bytes for one in runtime.packages) / _MB:.0f} MB from the npm registry)."
            ) from error
        except OSError as error:
            raise InputError(f"{place} cannot be read: {error.strerror}. Remove it, and add --install.") from error
        if _sha512(content) != package.sha512:
            raise InputError(
                f"{place} is not {package.name} {package.version}: its sha512 differs from the pinned one. Remove it, "
                "and add --install."
            )
        files |= _members(package, content)
    return files


def install(runtime: BrowserRuntime, folder: Path, note: Callable[[str], None]) -> None:
    """Download the tarballs that are not there, compare their hashes, and keep those that are the pinned ones.

    Args:
        runtime: what to download.
        folder: where the tarballs go.
        note: told what is downloaded, and from where.

    Raises:
        InputError: a tarball cannot be downloaded, or is another one.
        ArtifactError: the folder cannot be written.
    """
    registry = next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), _REGISTRY).rstrip("/")
    if not registry.startswith(("https://", "http://")):
        raise InputError(f"{_VARIABLES[0]} is {registry!r}; it has to be the address of an npm registry.")
    for package in runtime.packages:
        place = folder / package.tarball
        if place.is_file():
            continue
        address = f"{registry}/{package.address}"
        note(f"downloading {package.name} {package.version} from {registry} ({package.bytes / _MB:.1f} MB)")
        content = _download(address, package.bytes)
        if _sha512(content) != package.sha512:
            raise InputError(
                f"{address} is not the pinned {package.name} {package.version}: its sha512 differs. Nothing was kept; "
                "try another network or registry."
            )
        with atomic.writing(folder), atomic.write_aside(place) as aside:
            aside.write_bytes(content)


def _download(address: str, most_bytes: int) -> bytes:
    """Read a tarball that may not be larger than the pinned one."""
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS) as answer:
            return bytes(answer.read(most_bytes + 1))
    except (OSError, HTTPException, ValueError) as error:
        # A proxy or mirror that speaks no HTTP, breaks off, or has an address that is none, is neither of OSError.
        why = " ".join(str(getattr(error, "reason", None) or error).split()) or type(error).__name__
        if isinstance(error, HTTPError):
            error.close()
        raise InputError(f"{address} cannot be downloaded: {why}. Nothing was kept; try again.") from error


def _sha512(content: bytes) -> str:
    return base64.b64encode(hashlib.sha512(content).digest()).decode("ascii")


def _members(package: NpmPackage, content: bytes) -> dict[str, bytes]:
    """Return the files of a tarball that a page needs. They are read by name, and never written to the disk."""
    with tarfile.open(fileobj=BytesIO(content), mode="r:gz") as archive:
        found = {name: archive.extractfile(path) for name, path in package.files.items()}
        return {name: file.read() for name, file in found.items() if file is not None}
