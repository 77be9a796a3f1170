"""One list of versions for two builds: what Gradle takes is what Maven has compiled and tested."""

import re
import tomllib
from collections.abc import Iterator
from xml.etree import ElementTree

from apps import toolchains
from pipeline.backends.executorch import session

DEMO = toolchains.REPOSITORY / "android-demo"
_SPACE = "{http://maven.apache.org/POM/4.0.0}"
_VARIANT = re.compile(r"-(android|jvm)$")
_ONLY_GRADLE = {"litert", "executorch", "soloader", "fbjni"}
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
    kotlin = tested["org.jetbrains.kotlin:kotlin-stdlib"]
    assert versions["kotlin"] == kotlin, f"Kotlin is {versions['kotlin']} in Gradle and {kotlin} in Maven"
    for runner, key in (("LiteRt.kt", "litert"), ("ExecuTorch.kt", "executorch")):
        source = (DEMO / "app/src/main/kotlin/pocketbert/app/runners" / runner).read_text(encoding="utf-8")
        said = re.findall(r'const val VERSION = "([^"]+)"', source)
        assert said == [versions[key]], f"{runner} says {said}, and Gradle takes {versions[key]}"
    wanted = session.MINIMUM_RUNTIME
    assert versions["executorch"] == wanted, (
        f"the app has ExecuTorch {versions['executorch']}, and files ask for {wanted}"
    )
    return compared + 4


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
