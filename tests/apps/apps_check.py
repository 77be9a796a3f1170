"""`make apps-check`: both apps, as far as a machine without Xcode, Android's tools or a phone can check them.

The cores are `make core-check`'s, which the Makefile runs first. Here come the view models and screens of both apps
with the real students in the real runtimes, the Android app's resources, dex and signature, and the iOS app's project.
"""

import argparse
import re
import shutil
import sys
from collections.abc import Sequence

from apps import apk, end_to_end, ios, lanes, toolchains, versions

ANDROID = toolchains.REPOSITORY / "android-demo"
_LEAST_SCREENSHOTS = 70
_COUNTS = re.compile(r"^.*?((?:view models|self-test|headless runs of the app): .*)$", re.MULTILINE)
_SCREENSHOT = re.compile(r"screenshot: (\S+)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks, and return the exit code."""
    parser = argparse.ArgumentParser(prog="make apps-check", description=__doc__)
    parser.add_argument("--only", choices=("android", "ios"), help="this app alone")
    options = parser.parse_args(arguments)
    if not end_to_end.has_students():
        print(f"end to end: {end_to_end.write()} answers", flush=True)
    chosen = [checks for name, checks in (("android", android), ("ios", ios.checks)) if options.only in (None, name)]
    with end_to_end.serving():
        failed = lanes.beside(*(checks() for checks in chosen))
    if failed:
        print(f"apps-check: failed: {'; '.join(failed)}", flush=True)
    return 1 if failed else 0


def android() -> lanes.Checks:
    """Return the Android app's checks, in their order; models have to be served."""
    return {
        "android, versions": lambda: f"{versions.check()} of Gradle's are Maven's",
        "android, view models": models,
        "android, screens": screens,
        "android, apk": apk.pack,
    }


def models() -> str:
    """Compile, lint and test the view models; install them and the core for the app."""
    toolchains.maven("install", "-DskipTests", project=ANDROID / "core")
    log = toolchains.maven("install", f"-Dpocketbert.endtoend={end_to_end.FOLDER}", project=ANDROID / "models")
    counts = _COUNTS.findall(log)
    # A test that is skipped says nothing.
    assert len(counts) == 6, f"the tests with the students did not run: {log[-2000:]}"
    return f"{'; '.join(counts)}; {end_to_end.check_runs('models')} records are valid"


def screens() -> str:
    """Compile, lint and test the app, and take its screenshots."""
    for tool in ("aapt2", "zip", "unzip"):
        if shutil.which(tool) is None:
            raise toolchains.Lacking(f"there is no {tool}; on Debian run `sudo .ci/android`, which installs it")
    for module in ("declarations", "aars", "aars-test"):
        toolchains.maven("install", project=ANDROID / module)
    shutil.rmtree(ANDROID / "app" / "target" / "screenshots", ignore_errors=True)
    log = toolchains.maven("verify", f"-Dpocketbert.endtoend={end_to_end.FOLDER}", project=ANDROID / "app")
    taken = set(_SCREENSHOT.findall(log))
    there = {file.stem for file in (ANDROID / "app" / "target" / "screenshots").glob("*.png")}
    assert taken == there, f"not all were taken: {taken ^ there}"
    assert len(there) >= _LEAST_SCREENSHOTS, f"{len(there)} screenshots are too few"
    return f"{len(there)} screenshots"


if __name__ == "__main__":
    sys.exit(main())
