"""Libraries in an APK whose segments a phone with pages of 16 KB cannot map are found."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from apps import pages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="this system's linker writes no ELF")


def _apk(folder: Path, page: int, name: str = "lib/arm64-v8a/libone.so") -> Path:
    """Return an APK with a library linked on the spot; which processor it is for makes no difference to segments."""
    source, library, apk = folder / "one.c", folder / "libone.so", folder / "one.apk"
    source.write_text("int shared = 1; int get(void) { return shared; }\n", encoding="utf-8")
    linked = ["cc", "-shared", "-fPIC", f"-Wl,-z,max-page-size={page}", str(source), "-o", str(library)]
    subprocess.run(linked, check=True)
    with zipfile.ZipFile(apk, "w") as archive:
        archive.write(library, name)
    return apk


def test_segments_on_pages_of_16_kb_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    apk = _apk(tmp_path, 0x4000)
    assert pages.check(apk) == 1
    assert pages.main([str(apk)]) == 0
    assert "1 libraries of 64 bits" in capsys.readouterr().out


def test_segments_on_pages_of_4_kb_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    apk = _apk(tmp_path, 0x1000)
    with pytest.raises(AssertionError, match=r"libone\.so is aligned to 4,096 bytes"):
        pages.check(apk)
    assert pages.main([str(apk)]) == 1
    assert "max-page-size=16384" in capsys.readouterr().out


def test_an_apk_without_libraries_of_64_bits_is_refused(tmp_path: Path) -> None:
    assert pages.main([str(_apk(tmp_path, 0x1000, "lib/armeabi-v7a/libone.so"))]) == 1
