"""The iOS app, as far as a machine without Xcode can check it; prints what was counted.

The view models and parts are compiled and tested for real, on the real students in the real runtimes. Screens and
runners are parsed, and read by the compiler against declarations of Apple's modules: see `ios-demo/Declarations`.
"""

import argparse
import importlib.util
import json
import plistlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from apps import end_to_end, lanes, pbxproj, toolchains, words, xcode
from pipeline.formats.executorch import facts

HOME, MODELS = xcode.HOME, xcode.HOME / "AppModels"
_DECLARED = ("Darwin", "UIKit", "CoreML", "ExecuTorch", "Combine", "UniformTypeIdentifiers", "SwiftUI", "Charts")
"""In the order in which they need one another."""
_LINT = ("App", "AppModels", "AppParts", "Declarations", "Legacy")
"""The core is looked at by `make core-check`."""
_SCRATCH = toolchains.APPS / "swift"
# Swift 6.0's Observation asks on Linux for a function of the runtime that no library has, and calls it only where it is
# lost anyway. Upstream: swiftlang/swift#75670; ends with 6.2.
_LINK = () if sys.platform == "darwin" else ("-Xlinker", "--allow-shlib-undefined")
_COUNTS = re.compile(r"^.*(?: answers of .*| cases(?: of .*|, .*)|Executed \d+ tests?.*)$", re.MULTILINE)
_ANY_SIMULATOR = "generic/platform=iOS Simulator"
_ID = re.compile(r"[0-9A-F]{24}")
_NEEDS_A_REASON = {
    "FileTimestamp": re.compile(r"\b[fl]?stat(at)?\(|[cC]reationDate|odificationDate|getattrlist|attributesOfItem"),
    "SystemBootTime": re.compile(r"systemUptime|mach_absolute_time"),
    "DiskSpace": re.compile(r"volumeAvailableCapacity|volumeTotalCapacity|systemFreeSize|systemSize|f?stat(v)?fs\("),
    "ActiveKeyboards": re.compile(r"activeInputModes"),
    "UserDefaults": re.compile(r"UserDefaults|AppStorage|SceneStorage"),
}
"""Categories of Apple's required-reason API, as `NSPrivacyAccessedAPICategory…` has them, and what code of them is."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m apps.ios", description=__doc__)
    parser.add_argument("--make-students", action="store_true", help="make what the tests need, where it is not there")
    parser.add_argument("--xcode", action="store_true", help="build both apps and run all tests in a simulator instead")
    options = parser.parse_args(arguments)
    if options.make_students and not end_to_end.has_students():
        print(f"end to end: {end_to_end.write()} answers", flush=True)
    with end_to_end.serving():
        failed = lanes.run({"ios, xcode": build} if options.xcode else checks())
    return 1 if failed else 0


def checks() -> lanes.Checks:
    """Return the checks without Xcode, in their order; models have to be served."""
    return {
        "ios, project": project,
        "ios, threads": threads,
        "ios, format": lint,
        "ios, parsed": parse,
        "ios, tests": test,
        "ios, declarations": typecheck,
    }


# --- the project ---------------------------------------------------------------------------------------------------


def project() -> str:
    """Check that the committed project is the one that is written, and that all in it refers to something there."""
    wrong = [str(place.relative_to(HOME)) for place in xcode.outdated()]
    assert not wrong, f"{', '.join(wrong)} not up to date; run `python -m apps.xcode`"
    spec = tomllib.loads((HOME / "project.toml").read_text("utf-8"))
    document: Any = pbxproj.read((xcode.PROJECT / "project.pbxproj").read_text("utf-8"))
    objects = document["objects"]
    referred = {document["rootObject"], *(key for one in objects.values() for key in _references(one))}
    assert referred == set(objects), f"referred to and not there, or there for nobody: {referred ^ set(objects)}"
    places = _places(objects, objects[document["rootObject"]]["mainGroup"], HOME)
    absent = [path for key, path in places.items() if not path.exists() and objects[key].get("path") != spec["models"]]
    assert not absent, f"in the project and not there: {absent}"
    for target in (one for one in objects.values() if one["isa"] == "PBXNativeTarget"):
        _check_target(objects, target, places, spec)
    for package in (one for one in objects.values() if one["isa"] == "XCLocalSwiftPackageReference"):
        assert (HOME / package["relativePath"] / "Package.swift").is_file(), package
    schemes = sorted((xcode.PROJECT / "xcshareddata" / "xcschemes").iterdir())
    for scheme in schemes:
        _check_scheme(ElementTree.parse(scheme), objects)
    _check_versions(spec)
    colours = _check_colours()
    return (
        f"{len(objects)} objects, {len(places)} files, {len(schemes)} schemes, {colours} colours, "
        f"{len(words.of_screens(spec, HOME))} strings, as they are written from project.toml"
    )


def _references(value: Any) -> Iterator[str]:
    for one in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else [value]:
        if isinstance(one, str):
            yield from [one] if _ID.fullmatch(one) else []
        else:
            yield from _references(one)


def _places(objects: Mapping[str, Any], group: str, folder: Path) -> dict[str, Path]:
    """Return where each file of a group lies."""
    found: dict[str, Path] = {}
    for key in objects[group]["children"]:
        child = objects[key]
        if child["sourceTree"] in ("BUILT_PRODUCTS_DIR", "SDKROOT"):
            continue
        place = (HOME if child["sourceTree"] == "SOURCE_ROOT" else folder) / child.get("path", "")
        found |= _places(objects, key, place) if child["isa"] == "PBXGroup" else {key: place}
    return found


def _check_target(
    objects: Mapping[str, Any], target: Mapping[str, Any], places: Mapping[str, Path], spec: Mapping[str, Any]
) -> None:
    phases = [objects[key] for key in target["buildPhases"]]
    built = [objects[key] for phase in phases for key in phase["files"]]
    (own,) = (one for one in spec["targets"] if one["name"] == target["name"])
    system = {objects[one["fileRef"]]["name"] for one in built if one.get("fileRef") not in {None, *places}}
    assert system == {f"{name}.framework" for name in own["frameworks"]}, f"{target['name']} links {system}"
    members = {places[one["fileRef"]] for one in built if one.get("fileRef") in places}
    folder = HOME / own["folder"]
    missing = {*folder.rglob("*.swift"), *folder.rglob("*.cpp")} - members
    assert not missing, f"{target['name']} does not compile {missing}"
    for configuration in objects[target["buildConfigurationList"]]["buildConfigurations"]:
        settings = objects[configuration]["buildSettings"]
        for name in ("INFOPLIST_FILE", "SWIFT_OBJC_BRIDGING_HEADER"):
            assert name not in settings or (HOME / settings[name]).is_file(), f"{target['name']}: {settings[name]}"
    information = plistlib.loads((folder / "Info.plist").read_bytes())
    privacy = [place for place in members if place.name == "PrivacyInfo.xcprivacy"]
    assert len(privacy) == 1, f"{target['name']} has {privacy}"
    _check_privacy(privacy[0])
    # The folder of runs is reached through it.
    assert information["UIFileSharingEnabled"] is True, folder


def _check_privacy(manifest: Path) -> None:
    """Compare the manifest with the code: the App Store refuses an app that uses such an API and does not say why."""
    declared = plistlib.loads(manifest.read_bytes())["NSPrivacyAccessedAPITypes"]
    said = {one["NSPrivacyAccessedAPIType"].removeprefix("NSPrivacyAccessedAPICategory") for one in declared}
    code = [
        place.read_text("utf-8")
        for name in ("App", "Legacy", "AppModels/Sources", "AppParts/Sources", "Core/Sources")
        for place in (HOME / name).rglob("*")
        if place.suffix in (".swift", ".cpp")
    ]
    used = {name for name, pattern in _NEEDS_A_REASON.items() if any(pattern.search(text) for text in code)}
    assert said == used, f"{manifest.name} declares {sorted(said)}, and the code uses {sorted(used)}"
    assert all(one["NSPrivacyAccessedAPITypeReasons"] for one in declared), manifest


def _check_scheme(scheme: Any, objects: Mapping[str, Any]) -> None:
    for one in scheme.iter("BuildableReference"):
        container = one.attrib["ReferencedContainer"].removeprefix("container:")
        if container == xcode.PROJECT.name:
            assert objects[one.attrib["BlueprintIdentifier"]]["name"] == one.attrib["BlueprintName"]
        else:
            assert (HOME / container / "Tests" / one.attrib["BlueprintName"]).is_dir(), one.attrib


def _check_versions(spec: Mapping[str, Any]) -> None:
    """Compare the release that is linked with the one that wrote the files."""
    linked = spec["remote_packages"]["executorch"]["version"]
    runner = (HOME / "App" / "Runners" / "ExecuTorchRuntime.swift").read_text("utf-8")
    said = re.findall(r'static let release = "(.*)"', runner)
    assert [linked] == said == [facts.MINIMUM_RUNTIME], f"{linked}, {said} and {facts.MINIMUM_RUNTIME}"


def _check_colours() -> int:
    screens = [place for name in ("App", "Legacy") for place in (HOME / name).rglob("*.swift")]
    used = {name for place in screens for name in re.findall(r'\bColor\("(\w+)"\)', place.read_text("utf-8"))}
    there = {place.stem for place in (HOME / "App" / "Assets.xcassets").glob("*.colorset")}
    assert used <= there, f"no colours: {used - there}"
    return len(there)


# --- the code ------------------------------------------------------------------------------------------------------


def threads() -> str:
    """Compile what sets ExecuTorch's threads, and find what it calls in that release's own library."""
    if sys.platform == "darwin":
        return "left to Xcode, which links it"
    compiler = shutil.which("c++")
    if compiler is None or shutil.which("nm") is None:
        raise toolchains.Lacking("there is no c++ or nm; install g++")
    made = _SCRATCH / "threads.o"
    made.parent.mkdir(parents=True, exist_ok=True)
    source = HOME / "App" / "Runners" / "Threads.cpp"
    toolchains.run([compiler, "-std=c++20", "-Wall", "-Werror", "-c", str(source), "-o", str(made)], HOME)
    asked = {name for name in _symbols("-u", str(made)) if "threadpool" in name}
    package = importlib.util.find_spec("executorch.extension.pybindings._portable_lib")
    library = package.origin if package else None
    assert library is not None, "there is no library of ExecuTorch"
    missing = asked - _symbols("-D", "--defined-only", library)
    assert not missing, f"ExecuTorch {facts.MINIMUM_RUNTIME} has no {missing}"
    return f"{len(asked)} functions, all of them in ExecuTorch {facts.MINIMUM_RUNTIME}"


def _symbols(*arguments: str) -> set[str]:
    return {line.split()[-1] for line in toolchains.run(["nm", *arguments], HOME).splitlines() if line.strip()}


def lint() -> str:
    """Check the format of all Swift files."""
    toolchains.swift(f"swift-format lint --strict -r {' '.join(_LINT)}", package=HOME)
    return f"{len([file for name in _LINT for file in _swift(HOME / name)])} files"


def parse() -> str:
    """Parse every file of both apps, each by itself."""
    files = [file for name in ("App", "Legacy") for file in _swift(HOME / name)]
    toolchains.swift(*(f"swiftc -parse {file.relative_to(HOME)}" for file in files), package=HOME)
    return f"{len(files)} files"


def test() -> str:
    """Compile the view models and parts, and run their tests on the real students."""
    if not end_to_end.has_students():
        raise toolchains.Lacking("there are no students; run with --make-students")
    log = toolchains.swift_test(*_LINK, package=MODELS, paths={"POCKETBERT_ENDTOEND": end_to_end.FOLDER})
    counts = _print_counts("tests", log)
    assert any(line.startswith("view models: ") for line in counts), "the tests on the students did not run"
    files = [file for name in ("AppModels", "AppParts") for file in _swift(HOME / name)]
    return f"{len(files)} files compiled; {end_to_end.check_runs('appmodels')} records of the app are valid"


def typecheck() -> str:
    """Let the compiler read both apps against the declarations."""
    if sys.platform == "darwin":
        return "left to Xcode, which has Apple's own modules"
    made, modules = _SCRATCH / "declarations", toolchains.SWIFT_SCRATCH / "release" / "Modules"
    if not (modules / "AppModels.swiftmodule").exists():
        raise toolchains.Lacking("the view models are not compiled")
    made.mkdir(parents=True, exist_ok=True)
    language = "-swift-version 6 -parse-as-library -warnings-as-errors"
    commands = [
        f"swiftc -emit-module {language} -module-name {name} -I {made} Declarations/{name}.swift "
        f"-o {made / name}.swiftmodule"
        for name in _DECLARED
    ]
    spec = tomllib.loads((HOME / "project.toml").read_text("utf-8"))
    read = 0
    for target in spec["targets"]:
        files = [str(file.relative_to(HOME)) for file in _swift(HOME / target["folder"])]
        files += [name for name in target["also"] if name.endswith(".swift")]
        header = target["settings"].get("SWIFT_OBJC_BRIDGING_HEADER")
        commands.append(
            f"swiftc -typecheck {language} -module-name {target['name']} -I {made} -I {modules} "
            f"-Xcc -fmodule-map-file={HOME / 'Core/Sources/COpenSSL/module.modulemap'} "
            f"{f'-import-objc-header {header} ' if header else ''}{' '.join(files)}"
        )
        read += len(files)
    toolchains.swift(*commands, package=HOME)
    return f"{read} files of {len(spec['targets'])} targets agree with {len(_DECLARED)} modules as they are declared"


def build() -> str:
    """Build both apps with Xcode, and run the packages' tests in a simulator, where the app's own code runs."""
    if shutil.which("xcodebuild") is None:
        raise toolchains.Lacking("there is no xcodebuild; install Xcode 16 or later")
    spec = tomllib.loads((HOME / "project.toml").read_text("utf-8"))
    made = ["-derivedDataPath", str(toolchains.APPS / "xcode")]
    command = ["xcodebuild", "-project", str(xcode.PROJECT), *made, "CODE_SIGNING_ALLOWED=NO", "ARCHS=arm64"]
    for target in spec["targets"]:
        for configuration in ("Debug", "Release"):
            where = ["-scheme", target["name"], "-configuration", configuration, "-destination", _ANY_SIMULATOR]
            toolchains.run([*command, *where, "build"], HOME)
    places = {"TEST_RUNNER_POCKETBERT_VECTORS": toolchains.APPS / "vectors"}
    places |= {"TEST_RUNNER_POCKETBERT_ENDTOEND": end_to_end.FOLDER}
    log = toolchains.run(
        [*command, "-scheme", spec["name"], "-destination", f"platform=iOS Simulator,id={_simulator()}", "test"],
        HOME,
        {name: str(place) for name, place in places.items()},
    )
    _print_counts("xcode", log)
    return f"{len(spec['targets'])} apps built, for debugging and release"


def _simulator() -> str:
    """Return the id of a simulator of an iPhone; which models and systems a machine has changes by the month."""
    listed = subprocess.run(
        ["xcrun", "simctl", "list", "--json", "devices", "available"], capture_output=True, text=True, check=True
    )
    return newest_iphone(json.loads(listed.stdout))


def newest_iphone(listed: Mapping[str, Any]) -> str:
    """Return the id of an iPhone of the newest iOS among simulators, as `simctl list --json devices` has them."""
    found = [
        (tuple(map(int, system.group(1).split("-"))), device["name"], device["udid"])
        for runtime, devices in listed["devices"].items()
        if (system := re.search(r"SimRuntime\.iOS-([\d-]+)$", runtime))
        for device in devices
        if device["name"].startswith("iPhone") and device.get("isAvailable", True)
    ]
    if not found:
        raise toolchains.Lacking("there is no simulator of an iPhone; add one in Xcode, Window, Devices and Simulators")
    return max(found)[2]


def _print_counts(name: str, log: str) -> list[str]:
    counts = [line.strip() for line in _COUNTS.findall(log)]
    # Each class is counted by itself, and then all of them.
    executed = [line for line in counts if line.startswith("Executed")]
    counts = [line for line in counts if line not in executed] + executed[-1:]
    print("\n".join(f"ios, {name}: {line}" for line in counts), flush=True)
    return counts


def _swift(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    return sorted(file for file in place.rglob("*.swift") if ".build" not in file.parts)


if __name__ == "__main__":
    sys.exit(main())
