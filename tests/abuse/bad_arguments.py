"""Command lines that ask for what does not exist, in every verb."""

from collections.abc import Iterator
from pathlib import Path

from conftest import recipe_file

from abuse.bad import FINE, LITERT, SOURCE, Bad, Write, arguments

_VERBS = (
    *("run", "plan", "train", "compress", "student", "convert", "verify", "benchmark", "report", "ship", "compat"),
)  # fmt: skip
_TARGETS = (
    *("", ":", "litert:", ":fp32", "litert:fp32:fp32", "../litert", "LITERT", "litert fp32", "litert:no", "\u202e"),
)  # fmt: skip
_REPOSITORIES = (
    *("", "me", "a/b/c", "../x", "a b/c", "me/", "/me", "me/\n", "me/" + "x" * 500, "-me/x", "me/x..y", "é/é"),
)  # fmt: skip
_REVISIONS = ("", "a b", "..", "a..b", "-x", "a\nb", "refs/heads/a~1")
_AGES = ("", "1", "d", "-1d", "1.5h", "1e9d", "nanh", "1 d", "1y", "٣d", "inf")
_NUMBERS = ("0", "-1", "1.5", "three", "nan", "", "99999999999999999999")
_RUNNABLE = ("", "source/config.json", "no/such", "/dev/null", "/proc/self/mem", "~nobody/x")
_CHECKPOINTS = (
    "",
    "no-such",
    "hub:",
    "hub:a/b",
    "hub:a/b@main",
    "bundled:",
    "bundled:x",
    "/dev/null",
    "recipe:x",
    "..",
)
_MIL = (("no",), ("ops", "source"), ("run", "source", "--inputs", "x.npz"))


def cases() -> Iterator[Bad]:
    """Yield wrong command lines."""
    yield from _of_every_verb()
    yield from _of_shipping()
    yield from _of_folders()
    yield from _of_names()


def _of_every_verb() -> Iterator[Bad]:
    for verb in _VERBS:
        yield Bad("arguments", f"{verb} --no-such", arguments(verb, "--no-such"), ("--no-such",))
        yield Bad("arguments", f"{verb} of a recipe that is not there", arguments(verb, "no-such"), ("no-such",))
        yield _with_recipe("a build folder that is a file", verb, "--build", "recipe.toml", words=("recipe",))
    for target in _TARGETS:
        yield _with_recipe("target", "plan", "--target", target, words=("target", "litert"))
    for target in ("litert:int8_dynamic", "coreml", "executorch:fp32"):
        for verb in ("ship", "verify", "compat"):
            yield _with_recipe("target that the recipe lacks", verb, "--target", target, words=(target,))
    yield Bad("arguments", "fly", arguments("fly"), ("fly",))
    yield Bad("arguments", "a thousand options", arguments("plan", *["--json"] * 1000), ("recipe", "--json"), FINE)
    twice = arguments("plan", "--build", "a", "--build", "b")
    yield Bad("arguments", "an option twice", twice, ("minilm",), FINE)


def _of_shipping() -> Iterator[Bad]:
    for repository in _REPOSITORIES:
        yield _with_recipe("repository", "push", "--", repository, words=("repository", "owner/name", "Repository"))
    for revision in _REVISIONS:
        words = ("revision", "branch", "Branch")
        yield _with_recipe("revision", "push", "me/x", f"--revision={revision}", words=words)


def _of_folders() -> Iterator[Bad]:
    for age in _AGES:
        given = arguments("clean", f"--older-than={age}")
        yield Bad("arguments", f"clean --older-than {age!r}", given, ("--older-than", "age"))
    huge = arguments("clean", "--older-than=9999999999999999999999w")
    yield Bad("arguments", "clean --older-than of ages", huge, ("--older-than",), FINE)
    for name in ("", "..", "/", ".", "a/../..", "no-such", "a\nb"):
        yield Bad("arguments", f"clean {name!r}", arguments("clean", name), (name or "build", "build"))
    for limit in ("", "-1", "nan", "inf", "many"):
        variables = {"POCKETBERT_STORE_GB": limit}
        write = _write("student", "--build", "build")
        yield Bad("arguments", f"{variables}", write, ("POCKETBERT_STORE_GB",), variables=variables)
    for output in ("source", "no/such/folder/x.toml", "/proc/x.toml", "source/config.json"):
        given = arguments("init", "source", "--pooling", "mean", "--output", output)
        yield Bad("arguments", f"init --output {output}", given, (output, "no/such/folder"))


def _of_names() -> Iterator[Bad]:
    for number in _NUMBERS:
        for option in ("--top", "--threads"):
            given = arguments("predict", "source", "text", f"{option}={number}")
            yield Bad("arguments", f"predict {option} {number!r}", given, (option, "source"))
    for place in _RUNNABLE:
        given = arguments("predict", place, "text")
        yield Bad("arguments", f"predict of {place!r}", given, (place or ".", "converted", "model"))
    for origin in _CHECKPOINTS:
        given = arguments("init", origin)
        yield Bad(
            "arguments",
            f"init of {origin!r}",
            given,
            (origin.removeprefix("hub:") or "checkpoint", "commit", "checkpoint", "bundled"),
        )
    for section in ("", "no-such", "[prune", "prune.", "prune.no", "\x01"):
        given = arguments("keys", section)
        # Brackets at either end may be left out.
        yield Bad("arguments", f"keys {section!r}", given, ("section", "there are", section or "section"), FINE)
    for more in _MIL:
        yield Bad("arguments", f"mil {' '.join(more)}", arguments("mil", *more), ("source", "no"))
    for name in ("", "pixel", "../host", "HOST"):
        yield _with_recipe("device", "run", "--dry-run", "--device", name, words=("device", "Device", name or "host"))
    for name in ("", "litert", "tflite-9", "../x"):
        yield _with_recipe("runtime", "compat", "--runtime", name, words=("runtime", name or "there are"))


def _with_recipe(what: str, verb: str, *more: str, words: tuple[str, ...]) -> Bad:
    return Bad("arguments", f"{verb}, {what}: {more[-1]!r}"[:90], _write(verb, *more), words)


def _write(verb: str, *more: str) -> Write:
    given = arguments(verb, "recipe.toml", *more)

    def write(folder: Path) -> list[str]:
        recipe_file(folder, student=SOURCE, targets=LITERT)
        return given(folder)

    return write
