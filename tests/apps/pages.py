"""Whether phones with pages of 16 KB can load the native libraries of APKs: `python -m apps.pages APK…`, by readelf.

`zipalign -P 16` looks at where a library lies in the APK; the kernel maps its segments, which the linker aligns.
Source: developer.android.com/guide/practices/page-sizes, "Check if your app uses native code".
"""

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from apps import toolchains

PAGE = 0x4000
_LOAD = re.compile(r"^\s*LOAD\s.*\s(0x[0-9a-f]+)$", re.MULTILINE)
_OF_64_BITS = re.compile(r"lib/(arm64-v8a|x86_64)/[^/]+\.so")
"""Phones with such pages run 64 bits alone."""


def main(arguments: Sequence[str]) -> int:
    """Check APKs, print how many libraries each has, and return 1 if one has none or a wrong one."""
    for apk in map(Path, arguments):
        try:
            found = check(apk)
        except (AssertionError, toolchains.Lacking) as error:
            print(error)
            return 1
        print(f"{apk.name}: {found} libraries of 64 bits, loaded in pages of {PAGE:,} bytes")
        if not found:
            print(f"{apk.name}: an app with runtimes has some")
            return 1
    return 0


def check(apk: Path) -> int:
    """Return how many libraries of 64 bits an APK has.

    Raises:
        AssertionError: a segment of one is aligned to less than a page.
        Lacking: there is no readelf.
    """
    if shutil.which("readelf") is None:
        raise toolchains.Lacking("there is no readelf; install binutils")
    with zipfile.ZipFile(apk) as archive, tempfile.TemporaryDirectory() as work:
        names = [name for name in archive.namelist() if _OF_64_BITS.fullmatch(name)]
        for name in names:
            said = subprocess.run(
                ["readelf", "-lW", archive.extract(name, work)], check=True, capture_output=True, text=True
            ).stdout
            aligned = [int(found, 16) for found in _LOAD.findall(said)]
            assert aligned, f"{apk.name}: {name} has no segment that is loaded"
            assert min(aligned) >= PAGE, (
                f"{apk.name}: a segment of {name} is aligned to {min(aligned):,} bytes, and some phones have pages of "
                f"{PAGE:,}; link it with -Wl,-z,max-page-size={PAGE}"
            )
    return len(names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
