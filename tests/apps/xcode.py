"""Write `ios-demo/PocketBERT.xcodeproj` from `ios-demo/project.toml`, and the English strings from the screens.

Every id is the beginning of a hash of what it is the id of, so the same files give the same project, byte for byte.
"""

import argparse
import hashlib
import plistlib
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from apps import pbxproj, toolchains, words

HOME = toolchains.REPOSITORY / "ios-demo"
PROJECT = HOME / "PocketBERT.xcodeproj"
STRINGS = HOME / "App" / "Localizable.xcstrings"
_TYPES = {
    ".swift": "sourcecode.swift",
    ".cpp": "sourcecode.cpp.cpp",
    ".h": "sourcecode.c.h",
    ".xcassets": "folder.assetcatalog",
    ".xcstrings": "text.json.xcstrings",
    ".plist": "text.plist.xml",
    ".xcprivacy": "text.xml",
    ".xcconfig": "text.xcconfig",
    ".md": "net.daringfireball.markdown",
}
_SOURCES, _RESOURCES = {".swift", ".cpp"}, {".xcassets", ".xcstrings", ".xcprivacy"}
_WORKSPACE = """\
<?xml version="1.0" encoding="UTF-8"?>
<Workspace version = "1.0">
   <FileRef location = "self:">
   </FileRef>
</Workspace>
"""
_COPY_MODELS = """\
set -eu
from="$SRCROOT/{models}"
to="$TARGET_BUILD_DIR/$UNLOCALIZED_RESOURCES_FOLDER_PATH/Model"
if [ -d "$from" ]; then
  mkdir -p "$to"
  # The Finder leaves such a file in what is looked at, and a signed model is refused where there is one.
  rsync --archive --delete --delete-excluded --exclude .DS_Store "$from/" "$to/"
else
  rm -rf "$to"
  echo "warning: no model is shipped; run pocketbert ship"
fi
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the project, or compare it with what is there; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m apps.xcode", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail where a file is not up to date")
    options = parser.parse_args(arguments)
    wrong = outdated()
    for place in wrong if options.check else ():
        print(f"{place.relative_to(toolchains.REPOSITORY)} is not up to date; run `python -m apps.xcode`", flush=True)
    while not options.check and wrong:
        for place, text in files().items():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, "utf-8")
        # A file that is new is itself a part of the project.
        wrong = outdated()
    return 1 if wrong else 0


def outdated() -> list[Path]:
    """Return the files that are not as they would be written."""
    return [place for place, text in files().items() if not place.is_file() or place.read_text("utf-8") != text]


def files() -> dict[Path, str]:
    """Return what is written, and where."""
    spec = tomllib.loads((HOME / "project.toml").read_text("utf-8"))
    written = {STRINGS: words.catalog(spec, HOME)}
    written[PROJECT / "project.xcworkspace" / "contents.xcworkspacedata"] = _WORKSPACE
    written[PROJECT / "project.pbxproj"] = pbxproj.write(_Project(spec).document())
    for target in spec["targets"]:
        written[HOME / target["folder"] / "Info.plist"] = _information(target)
        written[PROJECT / "xcshareddata" / "xcschemes" / f"{target['name']}.xcscheme"] = _scheme(target)
    return written


# --- the project ---------------------------------------------------------------------------------------------------


def _id(*of: str) -> str:
    return hashlib.sha256("\n".join(of).encode()).hexdigest()[:24].upper()


class _Project:
    """Collects the objects of a project while they refer to one another."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._spec = spec
        self._objects: dict[str, dict[str, Any]] = {}

    def document(self) -> dict[str, Any]:
        spec = self._spec
        packages = [self._local(name) for name in spec["local_packages"]]
        packages += [self._remote(name, one) for name, one in spec["remote_packages"].items()]
        targets = [self._target(target) for target in spec["targets"]]
        products = self._add(
            _id("group", "Products"), "PBXGroup", children=[_id("product", one["name"]) for one in spec["targets"]],
            name="Products", sourceTree="<group>",
        )  # fmt: skip
        groups = [self._group(HOME / target["folder"]) for target in spec["targets"]]
        system = sorted({name for target in spec["targets"] for name in target["frameworks"]})
        frameworks = self._add(
            _id("group", "Frameworks"), "PBXGroup", children=[_id("framework", name) for name in system],
            name="Frameworks", sourceTree="<group>",
        )  # fmt: skip
        others = [self._file(HOME / name) for name in ("README.md", "project.toml", spec["configuration"])]
        main = self._add(
            _id("group", "."), "PBXGroup", children=[*others, *groups, frameworks, products],
            sourceTree="<group>", usesTabs="0", indentWidth="4", tabWidth="4",
        )  # fmt: skip
        project = self._add(
            _id("project"), "PBXProject",
            attributes={
                "BuildIndependentTargetsInParallel": "1", "LastSwiftUpdateCheck": "1600", "LastUpgradeCheck": "1600",
            },
            buildConfigurationList=self._configurations(
                "project", _for_all(spec), baseConfigurationReference=_id("file", spec["configuration"])
            ),
            compatibilityVersion="Xcode 15.0", developmentRegion="en", hasScannedForEncodings="0",
            knownRegions=["en", "Base"], mainGroup=main, packageReferences=packages, productRefGroup=products,
            projectDirPath="", projectRoot="", targets=targets,
        )  # fmt: skip
        objects = dict(sorted(self._objects.items(), key=lambda pair: (pair[1]["isa"], pair[0])))
        return {"archiveVersion": "1", "classes": {}, "objectVersion": "60", "objects": objects, "rootObject": project}

    def _add(self, key: str, isa: str, /, **fields: Any) -> str:
        assert key not in self._objects, f"{isa} {fields} has the id of another"
        self._objects[key] = {"isa": isa, **fields}
        return key

    def _target(self, target: Mapping[str, Any]) -> str:
        name = target["name"]
        own = [place for place in _walk(HOME / target["folder"]) if place.suffix in _SOURCES | _RESOURCES]
        members = own + [HOME / place for place in target["also"]]
        sources = [self._built(target, place) for place in members if place.suffix in _SOURCES]
        resources = [self._built(target, place) for place in members if place.suffix in _RESOURCES]
        products = [
            self._linked(target, package, product)
            for package, linked in target["products"].items()
            for product in linked
        ]
        phases = [
            self._phase(target, "Sources", sources),
            self._phase(target, "Frameworks", [*self._frameworks(target), *(built for built, _ in products)]),
            self._phase(target, "Resources", resources),
            self._copy_models(target),
        ]
        settings = self._settings(target)
        self._add(
            _id("product", name), "PBXFileReference", explicitFileType="wrapper.application", includeInIndex="0",
            path=f"{name}.app", sourceTree="BUILT_PRODUCTS_DIR",
        )  # fmt: skip
        return self._add(
            _id("target", name), "PBXNativeTarget",
            buildConfigurationList=self._configurations(f"target {name}", {"Debug": settings, "Release": settings}),
            buildPhases=phases, buildRules=[], dependencies=[], name=name,
            packageProductDependencies=[dependency for _, dependency in products], productName=name,
            productReference=_id("product", name), productType="com.apple.product-type.application",
        )  # fmt: skip

    def _settings(self, target: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "ASSETCATALOG_COMPILER_APPICON_NAME": "AppIcon",
            "ASSETCATALOG_COMPILER_GLOBAL_ACCENT_COLOR_NAME": "AccentColor",
            "CODE_SIGN_STYLE": "Automatic",
            "CURRENT_PROJECT_VERSION": "1",
            "GENERATE_INFOPLIST_FILE": "NO",
            "INFOPLIST_FILE": f"{target['folder']}/Info.plist",
            "IPHONEOS_DEPLOYMENT_TARGET": target["ios"],
            "LD_RUNPATH_SEARCH_PATHS": ["$(inherited)", "@executable_path/Frameworks"],
            "MARKETING_VERSION": self._spec["version"],
            "PRODUCT_BUNDLE_IDENTIFIER": target["bundle"],
            "PRODUCT_NAME": "$(TARGET_NAME)",
            "SUPPORTED_PLATFORMS": "iphoneos iphonesimulator",
            "SUPPORTS_MACCATALYST": "NO",
            "SWIFT_EMIT_LOC_STRINGS": "YES",
            "TARGETED_DEVICE_FAMILY": "1,2",
        } | target["settings"]

    def _configurations(self, of: str, settings: Mapping[str, Mapping[str, Any]], **base: str) -> str:
        names = [
            self._add(
                _id("configuration", of, name),
                "XCBuildConfiguration",
                **base,
                buildSettings=dict(sorted(own.items())),
                name=name,
            )
            for name, own in settings.items()
        ]
        return self._add(
            _id("configurations", of), "XCConfigurationList", buildConfigurations=names,
            defaultConfigurationIsVisible="0", defaultConfigurationName="Release",
        )  # fmt: skip

    def _phase(self, target: Mapping[str, Any], kind: str, members: list[str]) -> str:
        return self._add(
            _id("phase", target["name"], kind), f"PBX{kind}BuildPhase", buildActionMask="2147483647", files=members,
            runOnlyForDeploymentPostprocessing="0",
        )  # fmt: skip

    def _copy_models(self, target: Mapping[str, Any]) -> str:
        # A folder in the phase of resources would have to be there, and before the first `ship` there is none.
        return self._add(
            _id("phase", target["name"], "models"), "PBXShellScriptBuildPhase", alwaysOutOfDate="1",
            buildActionMask="2147483647", files=[], inputPaths=[], name="Copy the models", outputPaths=[],
            runOnlyForDeploymentPostprocessing="0", shellPath="/bin/sh",
            shellScript=_COPY_MODELS.format(models=self._spec["models"]),
        )  # fmt: skip

    def _built(self, target: Mapping[str, Any], place: Path) -> str:
        path = str(place.relative_to(HOME))
        return self._add(_id("built", target["name"], path), "PBXBuildFile", fileRef=_id("file", path))

    def _frameworks(self, target: Mapping[str, Any]) -> Iterator[str]:
        for name in target["frameworks"]:
            path = f"System/Library/Frameworks/{name}.framework"
            place = _id("framework", name)
            if place not in self._objects:
                self._add(
                    place, "PBXFileReference", lastKnownFileType="wrapper.framework", name=f"{name}.framework",
                    path=path, sourceTree="SDKROOT",
                )  # fmt: skip
            yield self._add(_id("linked", target["name"], name), "PBXBuildFile", fileRef=place)

    def _linked(self, target: Mapping[str, Any], package: str, product: str) -> tuple[str, str]:
        # A product of a local package is found by its name alone, in every Xcode.
        of = {"package": _id("package", package)} if package in self._spec["remote_packages"] else {}
        dependency = self._add(
            _id("dependency", target["name"], product), "XCSwiftPackageProductDependency", **of, productName=product
        )
        built = self._add(_id("linked", target["name"], product), "PBXBuildFile", productRef=dependency)
        return built, dependency

    def _local(self, name: str) -> str:
        return self._add(_id("package", name), "XCLocalSwiftPackageReference", relativePath=name)

    def _remote(self, name: str, package: Mapping[str, str]) -> str:
        return self._add(
            _id("package", name), "XCRemoteSwiftPackageReference", repositoryURL=package["url"],
            requirement={"kind": "revision", "revision": package["revision"]},
        )  # fmt: skip

    def _group(self, folder: Path) -> str:
        children = []
        for place in sorted(folder.iterdir(), key=lambda one: (one.is_file(), one.name)):
            if place.is_dir() and place.suffix not in _RESOURCES and place != HOME / self._spec["models"]:
                children += [self._group(place)] if list(_walk(place)) else []
            elif place.suffix in _TYPES:
                children.append(self._file(place))
        if folder == (HOME / self._spec["models"]).parent.parent:
            children.insert(0, self._models())
        return self._add(
            _id("group", str(folder.relative_to(HOME))), "PBXGroup", children=children, path=folder.name,
            sourceTree="<group>",
        )  # fmt: skip

    def _models(self) -> str:
        # To be seen beside the sources; the script copies it.
        return self._add(
            _id("file", self._spec["models"]), "PBXFileReference", lastKnownFileType="folder", name="Model",
            path=self._spec["models"], sourceTree="SOURCE_ROOT",
        )  # fmt: skip

    def _file(self, place: Path) -> str:
        return self._add(
            _id("file", str(place.relative_to(HOME))), "PBXFileReference",
            lastKnownFileType=_TYPES.get(place.suffix, "text"), path=place.name, sourceTree="<group>",
        )  # fmt: skip


def _walk(folder: Path) -> Iterator[Path]:
    """Yield what a project has of a folder, catalogs as one, in order."""
    for place in sorted(folder.iterdir()):
        if place.suffix in _TYPES:
            yield place
        elif place.is_dir() and place.name != "Model":
            yield from _walk(place)


def _for_all(spec: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    both = {
        "ALWAYS_SEARCH_USER_PATHS": "NO",
        "CLANG_ENABLE_MODULES": "YES",
        "CLANG_ENABLE_OBJC_ARC": "YES",
        "CLANG_WARN_UNREACHABLE_CODE": "YES",
        "COPY_PHASE_STRIP": "NO",
        # The phase that copies the models reads a folder that git does not have.
        "ENABLE_USER_SCRIPT_SANDBOXING": "NO",
        "GCC_NO_COMMON_BLOCKS": "YES",
        "LOCALIZATION_PREFERS_STRING_CATALOGS": "YES",
        "SDKROOT": "iphoneos",
        "SWIFT_VERSION": spec["swift"],
    }
    debug = {
        "DEBUG_INFORMATION_FORMAT": "dwarf",
        "ENABLE_TESTABILITY": "YES",
        "GCC_OPTIMIZATION_LEVEL": "0",
        "ONLY_ACTIVE_ARCH": "YES",
        "SWIFT_ACTIVE_COMPILATION_CONDITIONS": "DEBUG $(inherited)",
        "SWIFT_OPTIMIZATION_LEVEL": "-Onone",
    }
    release = {
        "DEBUG_INFORMATION_FORMAT": "dwarf-with-dsym",
        "SWIFT_COMPILATION_MODE": "wholemodule",
        "VALIDATE_PRODUCT": "YES",
    }
    return {"Debug": both | debug, "Release": both | release}


# --- what lies beside it -------------------------------------------------------------------------------------------


def _information(target: Mapping[str, Any]) -> str:
    orientations = ["Portrait", "LandscapeLeft", "LandscapeRight"]
    return plistlib.dumps(
        {
            "CFBundleDevelopmentRegion": "$(DEVELOPMENT_LANGUAGE)",
            "CFBundleDisplayName": target["name"] if target["name"] == "PocketBERT" else f"PocketBERT {target['name']}",
            "CFBundleExecutable": "$(EXECUTABLE_NAME)",
            "CFBundleIdentifier": "$(PRODUCT_BUNDLE_IDENTIFIER)",
            "CFBundleInfoDictionaryVersion": "6.0",
            "CFBundleName": "$(PRODUCT_NAME)",
            "CFBundlePackageType": "APPL",
            "CFBundleShortVersionString": "$(MARKETING_VERSION)",
            "CFBundleVersion": "$(CURRENT_PROJECT_VERSION)",
            "ITSAppUsesNonExemptEncryption": False,
            "LSRequiresIPhoneOS": True,
            # The folder of runs is to be reached by the Files app and by a computer.
            "LSSupportsOpeningDocumentsInPlace": True,
            "UIFileSharingEnabled": True,
            "UILaunchScreen": {"UIColorName": "Ground"},
            "UIRequiredDeviceCapabilities": ["arm64"],
            "UISupportedInterfaceOrientations": [f"UIInterfaceOrientation{name}" for name in orientations],
            "UISupportedInterfaceOrientations~ipad": [
                f"UIInterfaceOrientation{name}" for name in (*orientations, "PortraitUpsideDown")
            ],
        }
    ).decode()


def _scheme(target: Mapping[str, Any]) -> str:
    name = target["name"]
    scheme = ElementTree.Element("Scheme", LastUpgradeVersion="1600", version="1.7")
    build = _child(scheme, "BuildAction", parallelizeBuildables="YES", buildImplicitDependencies="YES")
    purposes = {f"buildFor{one}": "YES" for one in ("Testing", "Running", "Profiling", "Archiving", "Analyzing")}
    entry = _child(_child(build, "BuildActionEntries"), "BuildActionEntry", **purposes)
    app = (_id("target", name), f"{name}.app", name, PROJECT.name)
    _buildable(entry, *app)
    testables = _child(_child(scheme, "TestAction", buildConfiguration="Debug"), "Testables")
    for package, bundle in target["tests"].items():
        _buildable(_child(testables, "TestableReference", skipped="NO"), bundle, bundle, bundle, package)
    debugger = {
        "selectedDebuggerIdentifier": "Xcode.DebuggerFoundation.Debugger.LLDB",
        "selectedLauncherIdentifier": "Xcode.DebuggerFoundation.Launcher.LLDB",
    }
    launch = _child(scheme, "LaunchAction", buildConfiguration="Debug", **debugger, launchStyle="0")
    profile = _child(scheme, "ProfileAction", buildConfiguration="Release", shouldUseLaunchSchemeArgsEnv="YES")
    for action in (launch, profile):
        _buildable(_child(action, "BuildableProductRunnable", runnableDebuggingMode="0"), *app)
    _child(scheme, "AnalyzeAction", buildConfiguration="Debug")
    _child(scheme, "ArchiveAction", buildConfiguration="Release", revealArchiveInOrganizer="YES")
    ElementTree.indent(scheme, "   ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(scheme, encoding="unicode") + "\n"


def _child(parent: ElementTree.Element, tag: str, **attributes: str) -> ElementTree.Element:
    return ElementTree.SubElement(parent, tag, attributes)


def _buildable(parent: ElementTree.Element, blueprint: str, buildable: str, name: str, container: str) -> None:
    _child(
        parent, "BuildableReference", BuildableIdentifier="primary", BlueprintIdentifier=blueprint,
        BuildableName=buildable, BlueprintName=name, ReferencedContainer=f"container:{container}",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
