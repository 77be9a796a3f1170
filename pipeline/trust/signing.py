"""Signed folders: who made the files, and that they are as he made them, in the OpenSSF model-signing format.

`model.sig` is a Sigstore bundle: an in-toto statement with the sha256 of every file, in a DSSE envelope that an ECDSA
P-256 key signs. `model_signing verify key` takes it. The library itself cannot be installed beside the toolchains
(sigstore wants typing-extensions 4.14, and xdsl, on which litert-torch stands, less than 4.13), so the format is
written and read here; `make core-check` has the library's own command accept what this signs.

Here, in Kotlin and in Swift the same checks are made in the same order, and a refusal has the same reason.

Source: https://github.com/sigstore/model-transparency (predicate https://model_signing/signature/v1.0),
https://github.com/secure-systems-lab/dsse/blob/v1.0.0/protocol.md.
"""

import base64
import binascii
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from pipeline import artifact, strict
from pipeline.errors import ArtifactError, GateFailed, InputError, no_file, no_folder

SIGNATURE = "model.sig"
BESIDE_BUNDLE = ("manifest.json", ".origin", ".gitattributes", ".cache/")
"""Files beside a bundle that are no part of it, from the build folder or from a download of the Hub."""
PASSWORD = "POCKETBERT_KEY_PASSWORD"
"""Environment variable with the password of a private key; a key without one is kept in plain text."""
Reason = Literal[
    "unsigned",  # there is no model.sig
    "unreadable",  # model.sig or its statement is not in the format
    "too_large",  # a file or a list is larger than any model has
    "other_key",  # a key that is not trusted
    "forged",  # a trusted key is named, and the signature is not its own
    "other_bundle",  # the statement is of another model
    "bad_name",  # a name that is not a plain relative path
    "repeated",  # a name twice, in another case too
    "irregular",  # a link, pipe or device
    "missing",  # a signed file is not there
    "added",  # a file that was not signed
    "changed",  # a file of another size or content
]
PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey
PublicKey: TypeAlias = ec.EllipticCurvePublicKey
_MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_STATEMENT_TYPE, _PREDICATE_TYPE = "https://in-toto.io/Statement/v1", "https://model_signing/signature/v1.0"
_NAME = re.compile(r"(?!\.{1,2}(?:/|$))[A-Za-z0-9._-]+(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._-]+)*")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_SIGNATURE_BYTES, _MOST_FILE_BYTES, _MOST_FILES = 4 << 20, 4 << 30, 10_000


class SignatureRefused(GateFailed):
    """The error for a folder without a valid signature of a trusted key, or with other files than it signed."""

    def __init__(self, folder: Path, reason: Reason, what: str) -> None:
        """Make the error's sentence from the folder, the kind of fault and its description."""
        self.reason: Reason = reason
        super().__init__(f"{folder} is refused ({reason}): {what}.")


@dataclass(frozen=True)
class Signed:
    """The result of a successful check of a folder's signature."""

    name: str
    """The name under which it was signed: `<recipe>/<target>` for a shipped model."""
    fingerprint: str
    """The key's fingerprint."""
    files: dict[str, str]
    """sha256 by path."""


# --- keys -----------------------------------------------------------------------------------------------------------


def new_key(place: Path) -> tuple[Path, Path]:
    """Make a key: `place` with the private half, readable by its owner alone, and `place.pub`.

    Raises:
        InputError: a file is there, or the folder cannot be written.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    password = os.environ.get(PASSWORD)
    encryption = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    public = place.with_name(f"{place.name}.pub")
    for path in (place, public):
        if os.path.lexists(path):
            raise InputError(f"{path} exists; a key that was used to sign is not replaced. Choose another name.")
    try:
        for path, content, mode in ((place, private, 0o600), (public, _pem(key.public_key()), 0o644)):
            # O_EXCL: what another process puts there meanwhile is not replaced either.
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as handle:
                handle.write(content)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}. Choose another place.") from error
    return place, public


def read_key(path: Path) -> PrivateKey:
    """Read a private key.

    Raises:
        InputError: there is none, it needs a password, or it is of another kind.
    """
    content = _read_file(path, "private key")
    password = os.environ.get(PASSWORD)
    try:
        key = serialization.load_pem_private_key(content, password.encode() if password else None)
    except TypeError as error:
        needs = "is not encrypted; unset" if password else "is encrypted; set"
        raise InputError(f"the key {path} {needs} {PASSWORD}.") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        said = f", or {PASSWORD} is not its password" if password else ""
        raise InputError(
            f"{path} is no private key in PEM{said}; `pocketbert signing-key new NAME` makes one."
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InputError(f"the key {path} is not of ECDSA P-256, which phones verify; make one with `signing-key new`.")
    return key


def read_public_key(path: Path) -> PublicKey:
    """Read a public key; see `read_key`."""
    try:
        key = serialization.load_pem_public_key(_read_file(path, "public key"))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"{path} is no public key in PEM; give the file that ends in .pub.") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InputError(f"the key {path} is not of ECDSA P-256.")
    return key


def _read_file(path: Path, kind: str) -> bytes:
    try:
        if not path.is_file():
            raise InputError(f"the {kind} {path} {no_file(path)}.")
        if path.stat().st_size > 1 << 16:
            raise InputError(f"{path} is too large for a {kind}.")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"the {kind} {path} cannot be read: {error.strerror}.") from error


def fingerprint(key: PublicKey) -> str:
    """Return the sha256 of a key's PEM, which model-signing writes beside a signature as a hint."""
    return hashlib.sha256(_pem(key)).hexdigest()


def compiled(key: PublicKey) -> str:
    """Return a key as the apps' lists of trusted keys have it: base64 of its DER, in one line."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(der).decode("ascii")


def _pem(key: PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def public_pem(key: PrivateKey) -> str:
    """Return the public half of a key, as its file holds it."""
    return _pem(key.public_key()).decode("ascii")


# --- signing --------------------------------------------------------------------------------------------------------


def sign(folder: Path, name: str, key: PrivateKey, *, ignored: Sequence[str] = ()) -> None:
    """Write `model.sig` into a folder, for every file that is there.

    Args:
        folder: what is signed; no links.
        name: what it is, for example `<recipe>/<target>`; who verifies asks for the same.
        key: of ECDSA P-256.
        ignored: files beside `model.sig` that are not part of what is signed.

    Raises:
        ArtifactError: a file cannot be signed.
    """
    passed_over = (SIGNATURE, *ignored)
    paths = {path: full for path, full in _files(folder) if path not in passed_over}
    for path, full in paths.items():
        if full is None or not _NAME.fullmatch(path):
            raise ArtifactError(f"{folder / path} cannot be signed: a file has a plain name, and is no link.")
    resources = [
        {"name": path, "algorithm": "sha256", "digest": artifact.sha256_file(folder / path)} for path in sorted(paths)
    ]
    statement = {
        "_type": _STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": _root(one["digest"] for one in resources)}}],
        "predicateType": _PREDICATE_TYPE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": list(passed_over),
            },
            "resources": resources,
            # Not of the format, whose readers pass over it: a file of another size is refused before it is hashed.
            "sizes": {path: (folder / path).stat().st_size for path in sorted(paths)},
        },
    }
    payload = json.dumps(statement, indent=1).encode("ascii")
    signature = key.sign(_pre_authentication(payload), ec.ECDSA(hashes.SHA256()))
    bundle = {
        "mediaType": _MEDIA_TYPE,
        "verificationMaterial": {"publicKey": {"hint": fingerprint(key.public_key())}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode("ascii"),
            "payloadType": _PAYLOAD_TYPE,
            "signatures": [{"sig": base64.b64encode(signature).decode("ascii"), "keyid": ""}],
        },
    }
    (folder / SIGNATURE).write_text(json.dumps(bundle) + "\n", encoding="ascii")


def _root(digests: Iterator[str]) -> str:
    return hashlib.sha256(b"".join(map(bytes.fromhex, digests))).hexdigest()


def _pre_authentication(payload: bytes) -> bytes:
    """Return the bytes to sign: payload and its type, each with its length. Source: DSSE 1.0.0, PAE."""
    return b"DSSEv1 %d %s %d %s" % (len(_PAYLOAD_TYPE), _PAYLOAD_TYPE.encode(), len(payload), payload)


def _files(folder: Path) -> Iterator[tuple[str, Path | None]]:
    """Yield the name and path of every file below a folder; the path is None for links, pipes and devices."""
    for name, path, mode in artifact.files_below(folder):
        yield name, path if stat.S_ISREG(mode) else None


# --- verifying ------------------------------------------------------------------------------------------------------


def verify(
    folder: Path,
    keys: Sequence[PublicKey],
    *,
    name: str | None = None,
    ignored: Sequence[str] = (),
) -> Signed:
    """Check that a trusted key signed a folder, and that every file is as it was then and no other is there.

    Args:
        folder: what is checked.
        keys: trusted ones.
        name: what it has to be; None takes any.
        ignored: what may lie there unsigned, besides `model.sig`: files, and folders with a slash at the end. What the
            statement says that it passes over is not believed.

    Raises:
        SignatureRefused: it is not; `reason` says why.
        InputError: there is no such folder, or it cannot be read.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} {no_folder(folder)}.")
    try:
        payload, key = _payload(folder, keys)
        statement = _Statement.read(folder, payload)
        if name is not None and statement.name != name:
            raise SignatureRefused(folder, "other_bundle", f"the signature is for {statement.name!r}, not for {name!r}")
        _compare(folder, statement, (SIGNATURE, *ignored))
    except OSError as error:
        raise InputError(f"{error.filename or folder} cannot be read: {error.strerror}.") from error
    return Signed(statement.name, key, statement.digests)


def _payload(folder: Path, keys: Sequence[PublicKey]) -> tuple[bytes, str]:
    """Return the statement's bytes and the fingerprint of the key that signed them."""
    file = folder / SIGNATURE
    if not os.path.lexists(file):
        raise SignatureRefused(folder, "unsigned", f"it has no {SIGNATURE}")
    found = file.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise SignatureRefused(folder, "irregular", f"{SIGNATURE} is no regular file")
    if found.st_size > _MOST_SIGNATURE_BYTES:
        raise SignatureRefused(folder, "too_large", f"{SIGNATURE} has {found.st_size} bytes")
    document = _parse(folder, file.read_bytes(), SIGNATURE)
    try:
        envelope = document["dsseEnvelope"]
        (signature,) = envelope["signatures"]
        right = document["mediaType"] == _MEDIA_TYPE and envelope["payloadType"] == _PAYLOAD_TYPE
        payload, raw = (base64.b64decode(text, validate=True) for text in (envelope["payload"], signature["sig"]))
        hint = document["verificationMaterial"]["publicKey"]["hint"]
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise SignatureRefused(folder, "unreadable", f"{SIGNATURE} is no Sigstore bundle with one signature") from error
    if not right:
        raise SignatureRefused(folder, "unreadable", f"{SIGNATURE} is of another type than model-signing writes")
    for key in keys:
        try:
            key.verify(raw, _pre_authentication(payload), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            continue
        return payload, fingerprint(key)
    # The hint is not signed: it tells the two cases apart for who reads the message, and decides nothing.
    if hint in [fingerprint(key) for key in keys]:
        raise SignatureRefused(folder, "forged", f"{SIGNATURE} was changed, or made without the key that it names")
    raise SignatureRefused(folder, "other_key", "it is signed with a key that is not trusted")


def _parse(folder: Path, content: bytes, what: str) -> Any:
    try:
        return strict.parse(content)
    except ValueError as error:
        raise SignatureRefused(folder, "unreadable", f"{what} is not JSON ({str(error)[:80]})") from error


@dataclass(frozen=True)
class _Statement:
    """The signed statement: a name, and the digest of each file."""

    name: str
    digests: dict[str, str]
    sizes: Mapping[str, int] | None
    """File sizes by path; None if another program signed without them."""

    @classmethod
    def read(cls, folder: Path, payload: bytes) -> "_Statement":
        """Read a statement that a trusted key signed, and check its form all the same."""
        document = _parse(folder, payload, "the statement")
        try:
            predicate = document["predicate"]
            how, resources = predicate["serialization"], predicate["resources"]
            (subject,) = document["subject"]
            names = [one["name"] for one in resources]
            digests = [one["digest"] for one in resources]
            root, name = subject["digest"]["sha256"], subject["name"]
            sizes = predicate.get("sizes")
            right = (
                (document["_type"], document["predicateType"]) == (_STATEMENT_TYPE, _PREDICATE_TYPE)
                and (how["method"], how["hash_type"]) == ("files", "sha256")
                and {one["algorithm"] for one in resources} == {"sha256"}
                and all(isinstance(one, str) for one in (*names, name))
                and all(isinstance(one, str) and _DIGEST.fullmatch(one) for one in digests)
                and (sizes is None or (set(sizes) == set(names) and all(type(one) is int for one in sizes.values())))
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SignatureRefused(folder, "unreadable", "the statement is none of model-signing") from error
        if len(names) > _MOST_FILES:
            raise SignatureRefused(folder, "too_large", f"the statement lists {len(names)} files")
        if not right:
            raise SignatureRefused(folder, "unreadable", "the statement is none of model-signing with sha256 of files")
        bad = next((one for one in names if not _NAME.fullmatch(one)), None)
        if bad is not None:
            raise SignatureRefused(folder, "bad_name", f"the statement lists {bad[:80]!r}, which is no plain path")
        # A phone's file system may not tell upper from lower case.
        lowered = [one.lower() for one in names]
        if len(set(lowered)) < len(lowered):
            twice = next(one for one in names if lowered.count(one.lower()) > 1)
            raise SignatureRefused(folder, "repeated", f"the statement lists {twice} more than once")
        if root != _root(iter(digests)):
            raise SignatureRefused(folder, "unreadable", "the statement's own digest is not that of its files")
        return cls(name, dict(zip(names, digests, strict=True)), sizes)


def _compare(folder: Path, statement: _Statement, ignored: Sequence[str]) -> None:
    """Compare the files in a folder with the signed digests."""
    there = dict(sorted(_files(folder)))
    for path, full in there.items():
        if full is None:
            raise SignatureRefused(folder, "irregular", f"{path} is a link, pipe or device")
    folders = tuple(one for one in ignored if one.endswith("/"))
    found = {
        path: full
        for path, full in there.items()
        if full is not None and path not in ignored and not path.startswith(folders)
    }
    for path in sorted(statement.digests):
        if path not in found:
            raise SignatureRefused(folder, "missing", f"{path} is listed and is not there")
    for path in found:
        if path not in statement.digests:
            raise SignatureRefused(folder, "added", f"{path} is there and is not listed")
    for path, full in found.items():
        size = full.stat().st_size
        if statement.sizes is not None and size != statement.sizes[path]:
            raise SignatureRefused(
                folder, "changed", f"{path} has {size} bytes, and is listed with {statement.sizes[path]}"
            )
        if size > _MOST_FILE_BYTES:
            raise SignatureRefused(folder, "too_large", f"{path} has {size} bytes")
    for path, full in found.items():
        if artifact.sha256_file(full) != statement.digests[path]:
            raise SignatureRefused(folder, "changed", f"{path} does not have the content that is listed")
