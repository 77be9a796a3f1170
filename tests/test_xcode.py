"""The Xcode project of the iOS app: the reader is strict, and the committed project is what the writer gives."""

import re

import pytest
from apps import ios, pbxproj, toolchains, words, xcode

DOCUMENT = {"objects": {"A1": {"isa": "PBX", "path": "a b/+c.swift", "files": ["A1", "$(x)"], "script": 'a\n"b"\\\t'}}}


def test_what_is_written_is_read() -> None:
    assert pbxproj.read(pbxproj.write(DOCUMENT)) == DOCUMENT


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{ a = b }", "} stands where ; has to"),
        ("{ a = b; a = c; }", "a is no key, or comes twice"),
        ("{ a b; }", "b stands where = has to"),
        ("{ a = (b c); }", "c stands where , has to"),
        ("{ a = b-c; }", "line 2: '-c; }"),
        ("{ a = b; } c", "something follows"),
        ("( a )", "it holds no dictionary"),
        ("{ a = ); }", ") begins no value"),
        ("{ a = b;", "it ends too early"),
    ],
)
def test_what_is_no_project_is_refused(body: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        pbxproj.read(f"{pbxproj.HEADER}{body}\n")


def test_a_text_without_the_head_is_refused() -> None:
    with pytest.raises(ValueError, match="does not begin"):
        pbxproj.read("{ }")


def test_the_same_files_give_the_same_project() -> None:
    assert xcode.files() == xcode.files()


def test_the_committed_project_is_right() -> None:
    assert "as they are written from project.toml" in ios.project()


def test_words_have_the_keys_that_the_system_makes() -> None:
    source = r"""
        Text("Done")  Text(verbatim: "no word")  Button(isOn ? "Stop" : "Go on", systemImage: "stop") {}
        String(localized: "\(count, specifier: "%lld") of \(all(["a", "b"]).name) at \"\(name)\"")
    """
    assert list(words.shown_in(source)) == ["Done", "Stop", "Go on", r"%lld of %@ at \"%@\""]


def test_a_plural_of_words_that_no_screen_shows_is_refused() -> None:
    spec = {"targets": [], "plurals": {"%lld runs": "%lld run"}}
    with pytest.raises(ValueError, match=re.escape("['%lld runs'], which no screen shows")):
        words.catalog(spec, xcode.HOME)


def test_the_newest_simulator_that_is_there_is_taken() -> None:
    """Names and systems change by the month; a watch, an older system and one that cannot start are passed over."""
    prefix = "com.apple.CoreSimulator.SimRuntime"
    devices = {
        f"{prefix}.iOS-17-5": [{"name": "iPhone 15", "udid": "A", "isAvailable": True}],
        f"{prefix}.iOS-18-10": [
            {"name": "iPad Air", "udid": "B", "isAvailable": True},
            {"name": "iPhone 16", "udid": "C", "isAvailable": True},
            {"name": "iPhone 17", "udid": "D", "isAvailable": False},
        ],
        f"{prefix}.iOS-18-9": [{"name": "iPhone 17", "udid": "E", "isAvailable": True}],
        f"{prefix}.watchOS-26-0": [{"name": "iPhone-like watch", "udid": "F", "isAvailable": True}],
    }
    assert ios.newest_iphone({"devices": devices}) == "C"
    with pytest.raises(toolchains.Lacking, match="there is no simulator of an iPhone"):
        ios.newest_iphone({"devices": {}})
