"""Signed folders, whole and tampered with: Python, Kotlin and Swift have to refuse each, for the same reason.

Every case is an app's folder with two models. The first one is spoilt, and the second has to stay usable.
"""

import base64
import copy
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from apps import contract
from pipeline.trust import signing
from pipeline.trust.signing import SIGNATURE, Reason

FIRST, SECOND = contract.MODELS
Document = dict[str, Any]


@dataclass(frozen=True)
class Keys:
    """The keys of the table."""

    own: signing.PrivateKey
    """Signs the models; trusted."""
    former: signing.PrivateKey
    """Trusted as well, as after a rotation."""
    other: signing.PrivateKey
    """Nobody trusts it."""

    @classmethod
    def new(cls) -> "Keys":
        """Make keys for one table."""
        return cls(*(ec.generate_private_key(ec.SECP256R1()) for _ in range(3)))


@dataclass(frozen=True)
class Case:
    """One folder, and what has to become of its first model."""

    name: str
    spoil: Callable[[Path, Keys], None]
    """`(the first model's folder, keys)`."""
    reason: Reason | None
    """None where it has to be taken."""
    debug: bool = False
    """Whether the app takes unsigned models, under a banner."""


def write(home: Path) -> int:
    """Write every case with `cases.json`, and return how many there are."""
    shutil.rmtree(home, ignore_errors=True)
    keys = Keys.new()
    rows = []
    for case in CASES:
        make(case, home / case.name, keys)
        rows.append({"folder": case.name, "reason": case.reason, "debug": case.debug})
    trusted = [signing.compiled(key.public_key()) for key in (keys.former, keys.own)]
    (home / "cases.json").write_text(json.dumps({"keys": trusted, "cases": rows}), encoding="utf-8")
    return len(rows)


def make(case: Case, folder: Path, keys: Keys) -> Path:
    """Write one case, and return the first model's folder."""
    contract.write_models(folder)
    for name in contract.MODELS:
        signing.sign(folder / name, name, keys.own)
    case.spoil(folder / FIRST, keys)
    return folder / FIRST


# --- what is done to a model -----------------------------------------------------------------------------------------


def _flip(file: str) -> Callable[[Path, Keys], None]:
    def spoil(model: Path, _: Keys) -> None:
        content = bytearray((model / file).read_bytes())
        content[len(content) // 2] ^= 1
        (model / file).write_bytes(content)

    return spoil


def _do(act: Callable[[Path], Any]) -> Callable[[Path, Keys], None]:
    return lambda model, _: act(model) and None


def _bundle(edit: Callable[[Document], Any]) -> Callable[[Path, Keys], None]:
    """Change the signature's file without signing again."""

    def spoil(model: Path, _: Keys) -> None:
        bundle = json.loads((model / SIGNATURE).read_bytes())
        edit(bundle)
        (model / SIGNATURE).write_text(json.dumps(bundle), encoding="utf-8")

    return spoil


def _envelope(edit: Callable[[Document], Any]) -> Callable[[Path, Keys], None]:
    return _bundle(lambda bundle: edit(bundle["dsseEnvelope"]))


def _statement(edit: Callable[[Document], Any]) -> Callable[[Path, Keys], None]:
    """Change what is signed, and have the trusted key sign it: its owner makes mistakes."""

    def spoil(model: Path, keys: Keys) -> None:
        statement = _signed(model)
        edit(statement)
        resources = statement["predicate"]["resources"]
        joined = b"".join(bytes.fromhex(one["digest"]) for one in resources if "digest" in one)
        if "keep_root" not in statement:
            statement["subject"][0]["digest"]["sha256"] = _sha256(joined)
        statement.pop("keep_root", None)
        resign(model, json.dumps(statement).encode("utf-8"), keys.own)

    return spoil


def resign(model: Path, payload: bytes, key: signing.PrivateKey, hint: str | None = None) -> None:
    """Write a signature for any payload."""
    kind = b"application/vnd.in-toto+json"
    signature = key.sign(b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload), ec.ECDSA(hashes.SHA256()))
    bundle = json.loads((model / SIGNATURE).read_bytes())
    bundle["verificationMaterial"]["publicKey"]["hint"] = hint or signing.fingerprint(key.public_key())
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()
    bundle["dsseEnvelope"]["signatures"][0]["sig"] = base64.b64encode(signature).decode()
    (model / SIGNATURE).write_text(json.dumps(bundle), encoding="utf-8")


def _signed(model: Path) -> Document:
    bundle = json.loads((model / SIGNATURE).read_bytes())
    statement: Document = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    return statement


def _sha256(content: bytes) -> str:
    digest = hashes.Hash(hashes.SHA256())
    digest.update(content)
    return digest.finalize().hex()


def _named(name: str) -> Callable[[Path, Keys], None]:
    """Sign a name that leads elsewhere, or nowhere."""

    def edit(statement: Document) -> None:
        predicate = statement["predicate"]
        predicate["sizes"][name] = predicate["sizes"].pop(predicate["resources"][0]["name"])
        predicate["resources"][0]["name"] = name

    return _statement(edit)


def _once_more(rename: Callable[[str], str]) -> Callable[[Path, Keys], None]:
    def edit(statement: Document) -> None:
        predicate = statement["predicate"]
        again = copy.deepcopy(predicate["resources"][0])
        again["name"] = rename(again["name"])
        predicate["resources"].append(again)
        predicate["sizes"][again["name"]] = 1

    return _statement(edit)


def _many(statement: Document) -> None:
    predicate = statement["predicate"]
    predicate["resources"] += [{"name": f"f{n}", "algorithm": "sha256", "digest": "0" * 64} for n in range(10_001)]
    predicate["sizes"] |= {f"f{n}": 1 for n in range(10_001)}


def _no_sizes(statement: Document) -> None:
    statement["predicate"].pop("sizes")


def _huge(file: Path) -> None:
    """Make a file of 5 GB that takes no room."""
    with file.open("wb") as handle:
        handle.truncate(5 << 30)


def _unsized_and_huge(model: Path, keys: Keys) -> None:
    _statement(_no_sizes)(model, keys)
    _huge(model / "golden.json")


def _other_key(model: Path, keys: Keys) -> None:
    signing.sign(model, FIRST, keys.other)


def _false_hint(model: Path, keys: Keys) -> None:
    payload = json.dumps(_signed(model)).encode()
    resign(model, payload, keys.other, hint=signing.fingerprint(keys.own.public_key()))


def _moved_here(model: Path, _: Keys) -> None:
    """Put the second model, as it was signed, in the first one's place."""
    shutil.rmtree(model)
    shutil.copytree(model.parents[1] / SECOND, model)


def _as_p1363(envelope: Document) -> None:
    """Write the signature as two numbers side by side, which the format does not have."""
    r, s = decode_dss_signature(base64.b64decode(envelope["signatures"][0]["sig"]))
    envelope["signatures"][0]["sig"] = base64.b64encode(r.to_bytes(32, "big") + s.to_bytes(32, "big")).decode()


def _zeros(envelope: Document) -> None:
    """Write r = 0 and s = 0, which some verifiers took for any text (CVE-2022-21449)."""
    envelope["signatures"][0]["sig"] = base64.b64encode(bytes.fromhex("3006020100020100")).decode()


def _high_s(envelope: Document) -> None:
    """Write the other of the two signatures that follow from one; both are right."""
    r, s = decode_dss_signature(base64.b64decode(envelope["signatures"][0]["sig"]))
    envelope["signatures"][0]["sig"] = base64.b64encode(encode_dss_signature(r, _ORDER - s)).decode()


def _long_form(envelope: Document) -> None:
    """Write the length of the signature's sequence in two bytes, which DER does not allow."""
    raw = base64.b64decode(envelope["signatures"][0]["sig"])
    envelope["signatures"][0]["sig"] = base64.b64encode(raw[:1] + b"\x81" + raw[1:]).decode()


def _unpadded(envelope: Document) -> None:
    raw = base64.b64decode(envelope["payload"])
    # Of a length that base64 pads.
    envelope["payload"] = base64.b64encode(raw + b" " * (3 - len(raw) % 3 + 1)).decode().rstrip("=")


def _payload(edit: Callable[[bytes], bytes]) -> Callable[[Document], None]:
    def change(envelope: Document) -> None:
        envelope["payload"] = base64.b64encode(edit(base64.b64decode(envelope["payload"]))).decode()

    return change


def _raw(payload: Callable[[bytes], bytes]) -> Callable[[Path, Keys], None]:
    """Have the trusted key sign a payload that was changed as text."""
    return lambda model, keys: resign(model, payload(json.dumps(_signed(model)).encode()), keys.own)


def _link_to(target: str, name: str = "golden.json") -> Callable[[Path, Keys], None]:
    def spoil(model: Path, _: Keys) -> None:
        file = model / name
        # The content is the same: it is the link that is refused.
        kept = model.parents[1] / f"kept-{file.name}"
        file.rename(kept)
        file.symlink_to(target.format(kept=os.path.relpath(kept, file.parent)))

    return spoil


def _pipe(model: Path) -> None:
    (model / "golden.json").unlink()
    os.mkfifo(model / "golden.json")


def _folder_for_file(model: Path) -> None:
    (model / "golden.json").unlink()
    (model / "golden.json").mkdir()


def _put(document: Document, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value


def _bundle_says(*path: Any, value: Any) -> Callable[[Path, Keys], None]:
    return _bundle(lambda bundle: _put(bundle, path, value))


def _statement_says(*path: Any, value: Any) -> Callable[[Path, Keys], None]:
    return _statement(lambda statement: _put(statement, path, value))


def _predicate_says(*path: Any, value: Any) -> Callable[[Path, Keys], None]:
    return _statement_says("predicate", *path, value=value)


def _ignores(name: str) -> Callable[[Path, Keys], None]:
    return _predicate_says("serialization", "ignore_paths", value=[SIGNATURE, name])


def _both(*acts: Callable[[Path, Keys], None]) -> Callable[[Path, Keys], None]:
    def spoil(model: Path, keys: Keys) -> None:
        for act in acts:
            act(model, keys)

    return spoil


def _remove(name: str) -> Callable[[Path, Keys], None]:
    return lambda model, _: (model / name).unlink()


def _write(name: str, content: bytes = b"x") -> Callable[[Path, Keys], None]:
    def spoil(model: Path, _: Keys) -> None:
        (model / name).write_bytes(content)

    return spoil


def _cut(model: Path, _: Keys) -> None:
    (model / SIGNATURE).write_bytes((model / SIGNATURE).read_bytes()[:500])


def _key_twice(model: Path, _: Keys) -> None:
    (model / SIGNATURE).write_bytes(b'{"mediaType": "a", ' + (model / SIGNATURE).read_bytes()[1:])


def _remove_all(model: Path, _: Keys) -> None:
    for path in model.iterdir():
        if path.is_file() and path.name != SIGNATURE:
            path.unlink()


def _signature_of_another(model: Path, _: Keys) -> None:
    shutil.copyfile(model.parents[1] / SECOND / SIGNATURE, model / SIGNATURE)


def _no_files(statement: Document) -> None:
    statement["predicate"] |= {"resources": [], "sizes": {}}


def _other_root(statement: Document) -> None:
    statement["keep_root"] = True
    statement["subject"][0]["digest"]["sha256"] = "0" * 64


_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""How many points P-256 has. Source: FIPS 186-4, D.1.2.3."""
_ENVELOPE, _HINT = "dsseEnvelope", ("verificationMaterial", "publicKey", "hint")
_NAMES = {
    "parent": "../golden.json",
    "parent_below": "package/../golden.json",
    "absolute": "/etc/passwd",
    "here": "./golden.json",
    "windows": "package\\weights.bin",
    "empty": "",
    "slash": "package/",
    "two_slashes": "package//weights.bin",
    "space": "golden .json",
    "newline": "golden.json\n",
    "zero": "golden.json\0",
    "accent": "gölden.json",
}
CASES = (
    Case("whole", _both(), None),
    Case("by_the_former_key", lambda model, keys: signing.sign(model, FIRST, keys.former), None),
    Case("without_sizes", _statement(_no_sizes), None),
    Case("other_hint", _bundle_says(*_HINT, value="0" * 64), None),
    # Files that are not as they were signed.
    *(Case(f"flipped_{name.replace('/', '_').replace('.', '_')}", _flip(name), "changed") for name in contract.FILES),
    Case("cut", _write("golden.json", b"{"), "changed"),
    Case("huge", lambda model, _: _huge(model / "golden.json"), "changed"),
    Case("huge_and_no_sizes", _unsized_and_huge, "too_large"),
    Case("added", _write("more.bin", b""), "added"),
    Case("added_below", _write("package/Data/more.bin"), "added"),
    Case("added_hidden", _write(".DS_Store"), "added"),
    Case("added_manifest", _write("manifest.json"), "added"),
    Case("removed", _remove("golden.json"), "missing"),
    Case("renamed", _do(lambda model: (model / "golden.json").rename(model / "Golden.json")), "missing"),
    Case("folder_for_file", _do(_folder_for_file), "missing"),
    Case("all_removed", _remove_all, "missing"),
    Case("link_to_outside", _link_to("{kept}"), "irregular"),
    Case("link_below", _link_to("{kept}", "package/Data/weights.bin"), "irregular"),
    Case("link_to_nothing", _link_to("nothing"), "irregular"),
    Case("folder_is_link", _link_to("{kept}", "package"), "irregular"),
    Case("pipe", _do(_pipe), "irregular"),
    # A signature that is none.
    Case("stripped", _remove(SIGNATURE), "unsigned"),
    Case("signature_empty", _write(SIGNATURE, b""), "unreadable"),
    Case("signature_is_link", _link_to("{kept}", SIGNATURE), "irregular"),
    Case("signature_cut", _cut, "unreadable"),
    Case("signature_huge", _write(SIGNATURE, b" " * (5 << 20)), "too_large"),
    Case("signature_sparse", lambda model, _: _huge(model / SIGNATURE), "too_large"),
    Case("signature_nested", _write(SIGNATURE, b"[" * 100_000), "unreadable"),
    Case("signature_list", _write(SIGNATURE, b"[]"), "unreadable"),
    Case("signature_key_twice", _key_twice, "unreadable"),
    Case("media_type", _bundle_says("mediaType", value="application/json"), "unreadable"),
    Case("payload_type", _bundle_says(_ENVELOPE, "payloadType", value="text/plain"), "unreadable"),
    Case("no_signature", _bundle_says(_ENVELOPE, "signatures", value=[]), "unreadable"),
    Case("two_signatures", _envelope(lambda one: one["signatures"].append(one["signatures"][0])), "unreadable"),
    Case("not_base64", _bundle_says(_ENVELOPE, "signatures", 0, "sig", value="%%%"), "unreadable"),
    Case("garbage_for_signature", _bundle_says(_ENVELOPE, "signatures", 0, "sig", value="AAAA"), "forged"),
    Case("empty_for_signature", _bundle_says(_ENVELOPE, "signatures", 0, "sig", value=""), "forged"),
    Case("not_padded", _envelope(_unpadded), "unreadable"),
    Case("zeros_for_signature", _envelope(_zeros), "forged"),
    Case("signature_in_long_form", _envelope(_long_form), "forged"),
    Case("signature_s_high", _envelope(_high_s), None),
    Case("signature_as_two_numbers", _envelope(_as_p1363), "forged"),
    Case("payload_changed", _envelope(_payload(lambda payload: payload.replace(b"golden", b"g0lden"))), "forged"),
    Case("payload_longer", _envelope(_payload(lambda payload: payload + b" ")), "forged"),
    Case("other_key", _other_key, "other_key"),
    Case("other_key_with_our_hint", _false_hint, "forged"),
    # Statements that a trusted key signed, and that are not of this model.
    Case("of_another", _signature_of_another, "other_bundle"),
    Case("another_moved_here", _moved_here, "other_bundle"),
    Case("other_name", _statement_says("subject", 0, "name", value="mood/litert-fp32"), "other_bundle"),
    # Statements that are wrong in themselves.
    *(Case(f"named_{label}", _named(name), "bad_name") for label, name in _NAMES.items()),
    Case("twice", _once_more(lambda name: name), "repeated"),
    Case("twice_in_other_case", _once_more(str.upper), "repeated"),
    Case("many", _statement(_many), "too_large"),
    Case("no_files", _statement(_no_files), "unreadable"),
    Case("other_root", _statement(_other_root), "unreadable"),
    Case("sha1", _predicate_says("resources", 0, "algorithm", value="sha1"), "unreadable"),
    Case("digest_short", _predicate_says("resources", 0, "digest", value="00"), "unreadable"),
    Case("digest_upper", _predicate_says("resources", 0, "digest", value="A" * 64), "unreadable"),
    Case("shards", _predicate_says("serialization", "method", value="shards"), "unreadable"),
    Case("hash_type", _predicate_says("serialization", "hash_type", value="blake3"), "unreadable"),
    Case("ignores_a_file", _both(_ignores("more.bin"), _write("more.bin")), "added"),
    Case("ignores_nothing", _predicate_says("serialization", "ignore_paths", value=[]), None),
    Case("sizes_of_others", _statement(lambda statement: statement["predicate"]["sizes"].popitem()), "unreadable"),
    Case("size_of_text", _predicate_says("sizes", "golden.json", value="1"), "unreadable"),
    Case("size_of_fraction", _predicate_says("sizes", "golden.json", value=12.0), "unreadable"),
    Case("old_predicate", _statement_says("predicateType", value="https://model_signing/Digests/v0.1"), "unreadable"),
    Case("old_statement", _statement_says("_type", value="https://in-toto.io/Statement/v0.1"), "unreadable"),
    Case("two_subjects", _statement(lambda one: one["subject"].append(one["subject"][0])), "unreadable"),
    Case("statement_key_twice", _raw(lambda payload: b'{"_type": "a", ' + payload[1:]), "unreadable"),
    Case("statement_nested", _raw(lambda payload: b"[" * 100_000), "unreadable"),
    Case("statement_empty", _raw(lambda payload: b""), "unreadable"),
    Case("statement_in_latin_1", _raw(lambda payload: payload[:-1] + b', "x": "\xe9"}'), "unreadable"),
    Case("statement_with_nan", _raw(lambda payload: payload[:-1] + b', "x": NaN}'), "unreadable"),
    # A debug build takes what nobody signed, and nothing else.
    Case("debug_stripped", _remove(SIGNATURE), None, debug=True),
    Case("debug_other_key", _other_key, "other_key", debug=True),
    Case("debug_flipped", _flip("golden.json"), "changed", debug=True),
    Case("debug_stripped_and_flipped", _both(_remove(SIGNATURE), _flip("golden.json")), "changed", debug=True),
    Case("debug_stripped_and_added", _both(_remove(SIGNATURE), _write("more")), "added", debug=True),
)
"""By name: what was done to a signed model."""
