"""Packs a signed debug APK of what Maven built, and says what is in it: that resources, dex and signature fit together.

The runtimes' own libraries come from Gradle's build alone, so this APK shows that no model can be run in it.
"""

import re
import shutil
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from apps import pages, toolchains

APP = toolchains.REPOSITORY / "android-demo" / "app"
HOME = toolchains.APPS / "apk"
APK = HOME / "app-debug.apk"
R8 = "8.13.19"
"""The one that Gradle's plugin brings; `gradle/libs.versions.toml` names it."""
_MINIMUM_API = "26"
_ABIS = ("arm64-v8a", "x86_64")
_FETCH = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
_MEMORY = "-Xmx3g"
_LEAST_CLASSES = 3_000
"""Compose alone has more."""
_LEAST_RELEASE_BYTES = 500_000


def main() -> int:
    """Pack, sign and verify; print the counts."""
    try:
        print(f"apk: {pack()}", flush=True)
    except toolchains.Lacking as error:
        print(f"apk: not packed: {error}", flush=True)
        return 1
    return 0


def pack() -> str:
    """Make the APK from the outputs of `mvn package`, and return what is in it, in a line.

    Raises:
        Lacking: a tool is missing.
        AssertionError: the APK is not what it has to be.
    """
    for tool in ("aapt2", "zipalign", "apksigner", "keytool"):
        if shutil.which(tool) is None:
            raise toolchains.Lacking(f"there is no {tool}; on Debian run `sudo .ci/android`, which installs it")
    resources = APP / "target" / "resources.apk"
    if not resources.is_file():
        raise toolchains.Lacking("the app is not built; `make apps-check` builds it")
    shutil.rmtree(HOME / "work", ignore_errors=True)
    work = HOME / "work"
    (work / "dex").mkdir(parents=True)
    jars = _jars(work)
    r8, library = _fetched("com.android.tools:r8", R8), _library()
    dex = ["--debug", "--min-api", _MINIMUM_API, "--lib", str(library), "--output", str(work / "dex")]
    _java(r8, "com.android.tools.r8.D8", *dex, *jars)
    unaligned = work / "unaligned.apk"
    shutil.copyfile(resources, unaligned)
    with zipfile.ZipFile(unaligned, "a", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for file in sorted((work / "dex").glob("*.dex")):
            archive.write(file, file.name)
        for name, file in _native():
            # Stored, so that Android maps them where they lie.
            archive.write(file, name, zipfile.ZIP_STORED)
    aligned = work / "aligned.apk"
    toolchains.run(["zipalign", "-p", "-f", "4", str(unaligned), str(aligned)], work)
    signing = ["--ks", str(_debug_key()), "--ks-pass", "pass:android", "--ks-key-alias", "debug"]
    toolchains.run(["apksigner", "sign", *signing, "--out", str(APK), str(aligned)], work)
    return f"{_described()}; {_release(r8, library, jars, work)}"


def _jars(work: Path) -> list[str]:
    """Return the jars that go in: the app's own classes, and its dependencies but the compiler's declarations."""
    own = work / "app.jar"
    classes = APP / "target" / "classes"
    with zipfile.ZipFile(own, "w", strict_timestamps=False) as archive:
        for file in sorted(classes.rglob("*.class")):
            archive.write(file, file.relative_to(classes).as_posix())
    packed = sorted((APP / "target" / "packed").glob("*.jar"))
    declared = [jar.name for jar in packed if jar.name.startswith("declarations")]
    assert packed, "target/packed is empty; `mvn package` fills it"
    assert not declared, f"{declared} would be packed, and does nothing on a phone"
    return [str(own), *map(str, packed)]


def _fetched(artifact: str, version: str) -> Path:
    """Return a tool that comes as a jar, which Maven fetches."""
    name = artifact.split(":")[1]
    jar = HOME / "tools" / f"{name}-{version}.jar"
    if not jar.is_file():
        place = f"-DoutputDirectory={jar.parent}"
        toolchains.maven(_FETCH, f"-Dartifact={artifact}:{version}", place, project=APP)
    return jar


def _library() -> Path:
    """Return Android's own classes, which the tests run with as well."""
    version = "15-robolectric-13954326"
    return _fetched("org.robolectric:android-all", version)


def _java(jar: Path, main: str, *arguments: str) -> str:
    return toolchains.run(["java", _MEMORY, *toolchains.SHORT_LIVED_JAVA, "-cp", str(jar), main, *arguments], HOME)


def _java_home() -> str:
    said = toolchains.run(["java", "-XshowSettings:properties", "-version"], HOME)
    (home,) = re.findall(r"java\.home = (.*)", said)
    return str(home)


def _native() -> Iterator[tuple[str, Path]]:
    for folder in sorted((APP.parent / "aars" / "target" / "unpacked").glob("*/jni")):
        for abi in _ABIS:
            yield from ((f"lib/{abi}/{file.name}", file) for file in sorted((folder / abi).glob("*.so")))


def _debug_key() -> Path:
    """Return a key made on the spot: a debug build's signature says nothing of who made it."""
    key = HOME / "debug.keystore"
    if not key.is_file():
        subject = ["-dname", "CN=Android Debug", "-storepass", "android", "-keypass", "android", "-alias", "debug"]
        kind = ["-keyalg", "RSA", "-keysize", "2048", "-validity", "10000"]
        toolchains.run(["keytool", "-genkeypair", "-keystore", str(key), *kind, *subject], HOME)
    return key


def _described() -> str:
    verified = toolchains.run(["apksigner", "verify", "--verbose", "--min-sdk-version", _MINIMUM_API, str(APK)], HOME)
    for scheme in ("v2", "v3"):
        assert re.search(rf"Verified using {scheme} scheme .*: true", verified), (
            f"it is not signed by {scheme}: {verified}"
        )
    badging = toolchains.run(["aapt2", "dump", "badging", str(APK)], HOME)
    for line in ("name='pocketbert.app'", "sdkVersion:'26'", "launchable-activity: name='pocketbert.app.MainActivity'"):
        assert line in badging, f"{line} is not in what aapt2 says of the APK"
    # Gradle's merger takes out what the manifest marks; `resources.sh` does so here.
    assert "FOREGROUND_SERVICE" not in badging, "the APK asks for a permission that the manifest removes"
    pages.check(APK)
    with zipfile.ZipFile(APK) as archive:
        names = archive.namelist()
        dex = [name for name in names if name.endswith(".dex")]
        classes = sum(int.from_bytes(archive.read(name)[96:100], "little") for name in dex)
    native = [name for name in names if name.startswith("lib/")]
    models = [name for name in names if name.startswith("assets/model/")]
    assert classes > _LEAST_CLASSES, f"{classes} classes are too few"
    assert any(name == "resources.arsc" for name in names)
    return (
        f"{APK.stat().st_size:,} bytes, {classes:,} classes in {len(dex)} dex files, {len(native)} native libraries, "
        f"{len(models)} files of models, signature verified by schemes v2 and v3"
    )


def _release(r8: Path, library: Path, jars: Sequence[str], work: Path) -> str:
    """Shrink as a release build does, for the size: whether that keeps what is needed is only seen on a phone."""
    rules = work / "rules.pro"
    rules.write_text((APP / "rules.pro").read_text(encoding="utf-8") + "-dontwarn **\n", encoding="utf-8")
    unpacked = APP.parent / "aars" / "target" / "unpacked"
    # What the manifest names is kept, as Gradle's build does.
    every = [rules, APP / "target" / "manifest.pro", *sorted(unpacked.glob("*/proguard.txt"))]
    shrunk = work / "shrunk.zip"
    options = [option for one in every for option in ("--pg-conf", str(one))]
    # Coroutines ask for classes that Java has and Android lacks, and the runners for what Gradle's build brings.
    declared = APP.parent / "declarations" / "target" / "declarations-0.1.0.jar"
    known = ["--lib", str(library), "--lib", _java_home(), "--classpath", str(declared)]
    place = ["--release", "--min-api", _MINIMUM_API, *known, "--output", str(shrunk)]
    _java(r8, "com.android.tools.r8.R8", *place, *options, *jars)
    with zipfile.ZipFile(shrunk) as archive:
        size = sum(entry.file_size for entry in archive.infolist() if entry.filename.endswith(".dex"))
    assert size > _LEAST_RELEASE_BYTES, f"{size} bytes of dex are too few: nothing keeps the app's classes"
    return f"{size:,} bytes of dex in a release build"


if __name__ == "__main__":
    sys.exit(main())
