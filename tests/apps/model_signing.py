"""model-signing's own command, in an environment of its own, takes what we sign, and we take what it signs.

The library cannot be installed beside the toolchains, see `pipeline/ship/signing.py`.
"""

import subprocess
import sys
import venv
from pathlib import Path

from apps import tampered
from pipeline.trust import signing
from pipeline.trust.signing import SIGNATURE

VERSION = "1.1.1"


def check(home: Path) -> int:
    """Sign and verify both ways; return the number of comparisons.

    Raises:
        AssertionError: one side takes what it should refuse, or the other way round.
    """
    environment = home / f"environment-{VERSION}"
    python = environment / "bin" / "python"
    if not (environment / "ready").is_file():
        venv.create(environment, with_pip=True, clear=True)
        # It imports pyOpenSSL and does not ask for it.
        assert _run(python, "-m", "pip", "install", "--quiet", f"model-signing=={VERSION}", "pyOpenSSL==26.4.0")
        (environment / "ready").touch()
    for name in ("own", "own.pub"):
        (home / name).unlink(missing_ok=True)
    private, public = signing.new_key(home / "own")
    keys = tampered.Keys(signing.read_key(private), *(tampered.Keys.new().other for _ in range(2)))
    cases = {case.name: case for case in tampered.CASES}
    compared = 0
    for name in ("whole", "flipped_model_tflite", "added", "removed", "payload_changed", "other_key"):
        model = tampered.make(cases[name], home / "ours" / name, keys)
        verify = ("verify", "key", model, "--signature", model / SIGNATURE, "--public_key", public)
        taken = _run(python, "-m", "model_signing", *verify, fails=name != "whole")
        assert taken == (name == "whole"), f"model-signing {'takes' if taken else 'refuses'} {name}"
        compared += 1
    model = tampered.make(cases["stripped"], home / "theirs", keys)
    sign = ("sign", "key", model, "--signature", model / SIGNATURE, "--private_key", private)
    assert _run(python, "-m", "model_signing", *sign)
    signed = signing.verify(model, [signing.read_public_key(public)])
    assert signed.fingerprint == signing.fingerprint(keys.own.public_key())
    return compared + 1


def _run(*command: str | Path, fails: bool = False) -> bool:
    """Run a command, and return whether it succeeded; one that `fails` has to say that verification does."""
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0 and not fails:
        print(done.stdout[-5000:], file=sys.stderr, flush=True)
    # A wrong option ends it too, and says something else.
    assert not fails or "Verification failed with error" in done.stdout, done.stdout[-2000:]
    return done.returncode == 0
