"""Signed folders: keys, what is signed, and that each way to tamper with it is refused for the right reason."""

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from apps import contract, tampered
from conftest import TinyLine, run_command_here

import pipeline
from pipeline.convert.isolated import IsolatedModel
from pipeline.convert.model import Model
from pipeline.errors import ArtifactError, InputError
from pipeline.trust import signing
from pipeline.trust.signing import PASSWORD, SIGNATURE, SignatureRefused

KEYS = tampered.Keys.new()
TRUSTED = [KEYS.former.public_key(), KEYS.own.public_key()]


@pytest.mark.parametrize("case", [case for case in tampered.CASES if not case.debug], ids=lambda case: case.name)
def test_what_was_tampered_with_is_refused_for_the_right_reason(case: tampered.Case, tmp_path: Path) -> None:
    model = tampered.make(case, tmp_path / "app", KEYS)
    if case.reason is None:
        signed = signing.verify(model, TRUSTED, name=tampered.FIRST)
        assert set(signed.files) == set(contract.FILES)
    else:
        with pytest.raises(SignatureRefused) as refused:
            signing.verify(model, TRUSTED, name=tampered.FIRST)
        assert refused.value.reason == case.reason
        assert f"({case.reason})" in str(refused.value)
        assert "\n" not in str(refused.value)
    # The other model stays usable.
    assert signing.verify(tmp_path / "app" / tampered.SECOND, TRUSTED, name=tampered.SECOND).name == tampered.SECOND


def test_every_reason_has_a_case() -> None:
    reasons = set(signing.Reason.__args__)  # type: ignore[attr-defined]  # of a Literal
    assert {case.reason for case in tampered.CASES} == {*reasons, None}


def test_without_a_trusted_key_nothing_is_taken(tmp_path: Path) -> None:
    model = tampered.make(tampered.CASES[0], tmp_path, KEYS)
    with pytest.raises(SignatureRefused, match="other_key"):
        signing.verify(model, [])


def test_what_has_no_plain_name_is_not_signed(tmp_path: Path) -> None:
    (tmp_path / "a b").write_text("x")
    with pytest.raises(ArtifactError, match="a b cannot be signed"):
        signing.sign(tmp_path, "a", KEYS.own)
    (tmp_path / "a b").rename(tmp_path / "ab")
    (tmp_path / "link").symlink_to("ab")
    with pytest.raises(ArtifactError, match="link cannot be signed"):
        signing.sign(tmp_path, "a", KEYS.own)
    assert not (tmp_path / SIGNATURE).exists()


def test_a_key_is_its_owners_and_is_not_replaced(tmp_path: Path) -> None:
    made = run_command_here("signing-key", "new", "release", "--json", cwd=tmp_path)
    assert made.rc == 0, made.stderr
    private, public = tmp_path / "release", tmp_path / "release.pub"
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    key = signing.read_public_key(public)
    assert made.document["fingerprint"] == signing.fingerprint(key)
    assert made.document["trusted_key"] == signing.compiled(key)
    before = private.read_bytes()
    again = run_command_here("signing-key", "new", "release", cwd=tmp_path)
    assert (again.rc, "release exists" in again.stderr) == (2, True)
    assert private.read_bytes() == before
    shown = run_command_here("signing-key", "show", "release.pub", cwd=tmp_path)
    assert signing.compiled(key) in shown.stdout


def test_a_key_with_a_password_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "open sesame")
    private, _ = signing.new_key(tmp_path / "key")
    assert b"ENCRYPTED" in private.read_bytes()
    signing.read_key(private)
    monkeypatch.setenv(PASSWORD, "shut")
    with pytest.raises(InputError, match=f"{PASSWORD} is not its password"):
        signing.read_key(private)
    monkeypatch.delenv(PASSWORD)
    with pytest.raises(InputError, match=f"is encrypted; set {PASSWORD}"):
        signing.read_key(private)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        (b"", "is no private key in PEM"),
        (b"\0" * 100_000, "is too large"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "is no private key in PEM"),
    ],
)
def test_what_is_no_key_is_refused(content: bytes | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    with pytest.raises(InputError, match=message):
        signing.read_key(tmp_path / "key")


def test_a_public_key_does_not_sign_and_a_private_one_is_not_trusted(tmp_path: Path) -> None:
    private, public = signing.new_key(tmp_path / "key")
    with pytest.raises(InputError, match="is no private key"):
        signing.read_key(public)
    with pytest.raises(InputError, match="is no public key"):
        signing.read_public_key(private)


@pytest.fixture(scope="module")
def thorough(thorough_line: TinyLine, tmp_path_factory: pytest.TempPathFactory) -> TinyLine:
    """A copy of the thorough line, with a key beside it."""
    root = tmp_path_factory.mktemp("thorough")
    line = thorough_line.copy(root)
    signing.new_key(root / "key")
    return line


def _verify(*arguments: Any, cwd: Path) -> tuple[int, dict[str, Any]]:
    outcome = run_command_here("verify-signature", *arguments, "--json", cwd=cwd)
    return outcome.rc, outcome.document


def test_what_ship_signs_is_verified_and_a_change_is_found(thorough: TinyLine, tmp_path: Path) -> None:
    root = thorough.recipe.parent
    arguments = ("ship", thorough.recipe, "--target", "litert:fp32", "--build", thorough.build, "--into", tmp_path)
    outcome = run_command_here(*arguments, "--sign", root / "key", cwd=root)
    assert outcome.rc == 0, outcome.stderr
    models = tmp_path / "android-demo/app/src/main/assets/model"
    model = models / "tiny" / "litert-fp32"
    for place in (models, model):
        rc, document = _verify(place, "--key", root / "key.pub", cwd=root)
        assert rc == 0
        assert document["folders"][0]["name"] == "tiny/litert-fp32"
    # Signed again over what is signed, and unsigned over that: the folder is ship's own.
    assert run_command_here(*arguments, "--sign", root / "key", cwd=root).rc == 0
    (model / "tokenizer.json").write_bytes(b"{}")
    rc, document = _verify(models, "--key", root / "key.pub", cwd=root)
    assert (rc, document["folders"][0]["reason"]) == (1, "changed")
    signing.new_key(tmp_path / "other")
    rc, document = _verify(models, "--key", tmp_path / "other.pub", cwd=root)
    assert (rc, document["folders"][0]["reason"]) == (1, "other_key")


def test_a_bundle_that_push_signs_is_verified(thorough: TinyLine) -> None:
    root = thorough.recipe.parent
    arguments = ("push", thorough.recipe, "me/tiny", "--target", "litert:fp32", "--build", thorough.build)
    outcome = run_command_here(*arguments, "--sign", root / "key", "--json", cwd=root)
    assert outcome.rc == 0, outcome.stderr
    assert SIGNATURE in outcome.document["files"]
    bundle = Path(outcome.document["folder"])
    rc, document = _verify(bundle, "--key", root / "key.pub", cwd=root)
    assert (rc, document["folders"][0]["name"]) == (0, "bundle/tiny")
    _check_how_it_opens(bundle / "litert-fp32", root)
    # Without a key the bundle is another one.
    unsigned = run_command_here(*arguments, "--json", cwd=root)
    assert SIGNATURE not in unsigned.document["files"]
    rc, document = _verify(bundle, "--key", root / "key.pub", cwd=root)
    assert (rc, document["folders"][0]["reason"]) == (1, "unsigned")


def _check_how_it_opens(target: Path, keys: Path) -> None:
    """Check that a target of a signed bundle is opened in this process by who trusts its key, and by nobody else."""
    with pipeline.load(target, trusted=[keys / "key.pub"]) as here, pipeline.load(target) as apart:
        assert isinstance(here, Model)
        assert isinstance(apart, IsolatedModel)
        one, other = (model.predict(["Where is my parcel?"])[0].vector for model in (here, apart))
        assert one.tobytes() == other.tobytes()
    # What the signature does not cover is not opened here on its strength.
    hostile = target.parent / ".cache"
    shutil.copytree(target, hostile)
    with pipeline.load(hostile, trusted=[keys / "key.pub"]) as apart:
        assert isinstance(apart, IsolatedModel)
    shutil.rmtree(hostile)
    _, stranger = signing.new_key(keys / "stranger")
    with pytest.raises(SignatureRefused, match="not trusted"):
        pipeline.load(target, trusted=[stranger])
    card = target.parent / "README.md"
    before = card.read_bytes()
    card.write_bytes(before + b"more")
    with pytest.raises(SignatureRefused, match=r"README\.md"):
        pipeline.load(target, trusted=[keys / "key.pub"])
    card.write_bytes(before)


def test_what_was_not_verified_thoroughly_is_not_signed(tiny_line: TinyLine, tmp_path: Path) -> None:
    signing.new_key(tmp_path / "key")
    line = tiny_line.copy(tmp_path)
    for verb in (("ship", line.recipe, "--into", tmp_path), ("push", line.recipe, "me/tiny")):
        arguments = (*verb, "--target", "litert:fp32", "--build", line.build, "--sign", tmp_path / "key")
        outcome = run_command_here(*arguments, cwd=tmp_path)
        assert outcome.rc == 2
        assert "--thorough` first" in outcome.stderr
    assert not (tmp_path / "android-demo").exists()


def test_an_index_does_not_lead_elsewhere(thorough: TinyLine, tmp_path: Path) -> None:
    index = {"schema_version": 1, "models": [{"folder": "../x", "recipe": "x", "backend": "litert", "scheme": "fp32"}]}
    index["models"][0] |= {"task": "embedding", "digest": "0", "bytes": 1}  # type: ignore[index]
    (tmp_path / "models.json").write_text(json.dumps(index))
    outcome = run_command_here("verify-signature", tmp_path, "--key", thorough.recipe.parent / "key.pub", cwd=tmp_path)
    assert outcome.rc == 2
    assert "leads out" in outcome.stderr
