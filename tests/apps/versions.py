"""One list of versions for two builds: what Gradle takes is what Maven has compiled and tested."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from apps import apk, toolchains
from pipeline.formats.executorch import facts

DEMO = toolchains.REPOSITORY / "android-demo"
_SPACE = "{http://maven.apache.org/POM/4.0.0}"
_VARIANT = re.compile(r"-(android|jvm)$")
_ONLY_GRADLE = {"litert", "executorch", "nativeloader", "fbjni"}
"""Libraries with native code that Android's tools alone pack."""


def check() -> int:
    """Compare the versions of `gradle/libs.versions.toml` with those of the POMs, and return how many were compared.

    Raises:
        AssertionError: two differ, or Gradle takes what Maven has not tested.
    """
    catalogue = tomllib.loads((DEMO / "gradle" / "libs.versions.toml").read_text(encoding="utf-8"))
    versions = catalogue["versions"]
    tested = dict(_tested())
    compared = 0
    for name, library in catalogue["libraries"].items():
        if name in _ONLY_GRADLE:
            continue
        module, version = library["module"], versions[library["version"]["ref"]]
        assert module in tested, f"Gradle takes {module}, and no POM has it"
        assert tested[module] == version, f"{module} is {version} in Gradle and {tested[module]} in Maven"
        compared += 1
    assert versions["r8"] == apk.R8, f"R8 is {versions['r8']} in Gradle, and {apk.R8} packs the APK here"
    gradle = _only(DEMO / "gradle/wrapper/gradle-wrapper.properties", r"/gradle-([0-9.]+)-bin\.zip")
    built = _only(toolchains.REPOSITORY / ".github/workflows/android.yml", r'gradle-version: "([^"]+)"')
    assert gradle == built, f"Gradle is {gradle} in the wrapper and {built} in the workflow"
    kotlin = tested["org.jetbrains.kotlin:kotlin-stdlib"]
    assert versions["kotlin"] == kotlin, f"Kotlin is {versions['kotlin']} in Gradle and {kotlin} in Maven"
    for runner, key in (("LiteRt.kt", "litert"), ("ExecuTorch.kt", "executorch")):
        source = DEMO / "app/src/main/kotlin/pocketbert/app/runners" / runner
        said = _only(source, r'const val VERSION = "([^"]+)"')
        assert said == versions[key], f"{runner} says {said}, and Gradle takes {versions[key]}"
    expected = facts.MINIMUM_RUNTIME
    assert versions["executorch"] == expected, (
        f"the app has ExecuTorch {versions['executorch']}, and files ask for {expected}"
    )
    return compared + 6


def _only(file: Path, pattern: str) -> str:
    """Return what a pattern finds in a file, where it has to be found once."""
    found: list[str] = re.findall(pattern, file.read_text(encoding="utf-8"))
    assert len(found) == 1, f"{file.name} has {found} for {pattern}"
    return found[0]


def _tested() -> Iterator[tuple[str, str]]:
    """Yield each artifact of the POMs with its version; a variant for Android or the JVM under the library's name."""
    for pom in sorted(DEMO.glob("*/pom.xml")):
        root = ElementTree.parse(pom).getroot()
        names = {
            f"${{{one.tag.removeprefix(_SPACE)}}}": one.text or "" for one in root.iterfind(f"{_SPACE}properties/*")
        }
        for one in root.iter(f"{_SPACE}dependency"):
            group, artifact, version = (
                one.findtext(f"{_SPACE}{part}", "") for part in ("groupId", "artifactId", "version")
            )
            yield f"{group}:{_VARIANT.sub('', artifact)}", names.get(version, version)
            yield f"{group}:{artifact}", names.get(version, version)
