"""`make upstream-check SOURCES=folder`: compile the Android runners against LiteRT's and ExecuTorch's own sources.

`folder/litert` and `folder/executorch` are check-outs, best at the tags of the versions that Gradle takes. Nothing of
them is copied: a POM in `build/` names their files beside ours. No registry in reach serves the libraries themselves,
and what Maven compiles elsewhere are this project's declarations of them: that every call fits the real classes shows
here alone.
"""

import argparse
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from apps import toolchains

DEMO = toolchains.REPOSITORY / "android-demo"
HOME = toolchains.APPS / "upstream"
_KOTLIN = {
    "litert": "litert/kotlin/src/main/kotlin/com/google/ai/edge/litert",
    "executorch": "extension/android/executorch_android/src/main/java/org/pytorch/executorch",
}
"""Where each has its classes; folders below have others."""
_LEFT_OUT = {"ModelProvider.kt"}
"""It downloads models with Google Play's libraries, which the app does not call."""
_ALSO = {"litert": (), "executorch": ("annotations/Experimental.kt",)}
_OURS = ("core/src/main/kotlin", "app/src/main/kotlin/pocketbert/app/runners")
_OUR_FILES = ("app/src/main/kotlin/pocketbert/app/ShippedModels.kt",)
_LIBRARIES = (
    "org.robolectric:android-all:15-robolectric-13954326",
    "com.facebook.fbjni:fbjni-java-only:{fbjni}",
    "com.facebook.soloader:nativeloader:{nativeloader}",
    "org.jetbrains.kotlinx:kotlinx-serialization-json-jvm:{serialization}",
    "org.jetbrains.kotlin:kotlin-stdlib:{kotlin}",
)
_POM = """<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>pocketbert</groupId>
  <artifactId>upstream</artifactId>
  <version>0.1.0</version>
  <properties>
    <kotlin.compiler.jvmTarget>17</kotlin.compiler.jvmTarget>
    <project.build.sourceEncoding>UTF-8</project.build.sourceEncoding>
  </properties>
  <dependencies>{dependencies}</dependencies>
  <build>
    <plugins>
      <plugin>
        <groupId>org.jetbrains.kotlin</groupId>
        <artifactId>kotlin-maven-plugin</artifactId>
        <version>{kotlin}</version>
        <configuration>
          <nowarn>true</nowarn>
          <sourceDirs>{sources}</sourceDirs>
        </configuration>
        <executions><execution><goals><goal>compile</goal></goals></execution></executions>
      </plugin>
    </plugins>
  </build>
</project>
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, and print against what; return the exit code."""
    parser = argparse.ArgumentParser(prog="make upstream-check", description=__doc__)
    parser.add_argument("sources", nargs="?", type=Path, help="a folder with check-outs: litert and executorch")
    sources = parser.parse_args(arguments).sources
    if sources is None:
        print("upstream-check: not run: name a folder with check-outs of LiteRT and ExecuTorch, as SOURCES=folder")
        return 0
    try:
        print(f"upstream-check: {check(sources)}")
    except (toolchains.Lacking, FileNotFoundError) as error:
        print(f"upstream-check: {error}")
        return 1
    except subprocess.CalledProcessError:
        print("upstream-check: the runners do not fit these sources; the compiler has said above where")
        return 1
    return 0


def check(sources: Path) -> str:
    """Compile the runners against the check-outs in a folder, and return which they are.

    Raises:
        FileNotFoundError: one is not there, or has no classes where they are looked for.
        toolchains.Lacking: there is no Java or no Maven.
        subprocess.CalledProcessError: they do not fit; what the compiler said has been printed.
    """
    versions = tomllib.loads((DEMO / "gradle" / "libs.versions.toml").read_text(encoding="utf-8"))["versions"]
    theirs = {name: _files(sources / name, name) for name in _KOTLIN}
    ours = [file for folder in _OURS for file in sorted((DEMO / folder).rglob("*.kt"))]
    ours += [DEMO / file for file in _OUR_FILES]
    HOME.mkdir(parents=True, exist_ok=True)
    every = [*ours, *(file for files in theirs.values() for file in files)]
    pom = _POM.format(
        kotlin=versions["kotlin"],
        dependencies="".join(_dependency(library.format(**versions)) for library in _LIBRARIES),
        sources="".join(f"<sourceDir>{escape(str(file))}</sourceDir>" for file in every),
    )
    (HOME / "pom.xml").write_text(pom, encoding="utf-8")
    toolchains.maven("clean", "compile", project=HOME)
    found = "; ".join(
        f"{len(files)} files of {name} {_tag(sources / name)}, where Gradle takes {versions[name]}"
        for name, files in theirs.items()
    )
    return f"{len(ours)} files of the core and the runners fit {found}"


def _files(root: Path, name: str) -> list[Path]:
    folder = root.resolve() / _KOTLIN[name]
    files = [file for file in sorted(folder.glob("*.kt")) if file.name not in _LEFT_OUT]
    if not files:
        raise FileNotFoundError(f"{root / _KOTLIN[name]} has no Kotlin files; check {name} out there, whole")
    return [*files, *(folder / other for other in _ALSO[name])]


def _dependency(library: str) -> str:
    group, artifact, version = library.split(":")
    return (
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        "</dependency>"
    )


def _tag(root: Path) -> str:
    """Return what git calls a check-out; the name of the folder if it is none."""
    top = ["git", "-C", str(root.resolve()), "rev-parse", "--show-toplevel"]
    found = subprocess.run(top, check=False, capture_output=True, text=True)
    if found.returncode or Path(found.stdout.strip()) != root.resolve():
        return f"at a tag that nobody tells (the folder is {root.resolve().name})"
    describe = ["git", "-C", str(root.resolve()), "describe", "--tags", "--always", "--dirty"]
    return f"at {subprocess.run(describe, check=True, capture_output=True, text=True).stdout.strip()}"


if __name__ == "__main__":
    sys.exit(main())
