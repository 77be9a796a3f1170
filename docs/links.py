"""Checks what the Markdown files refer to, offline: `python -m docs.links`.

- Relative links and images have to exist, and their anchors have to be headings.
- Paths in backticks, such as `pipeline/tasks.py`, have to exist, as have modules and what is named in them, such as
  `pipeline.load`.

Addresses on the web are not looked up. `benchmarks/LOG.md` tells of the past, so its paths and names may be gone.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pipeline", "benchmarks", "docs", "tests")
FOLDERS = (*PACKAGES, ".ci")
"""The demo apps are not among them: `ship` makes their folders where there are none."""
HISTORY = ("benchmarks/LOG.md",)
_SKIPPED = ("build", "node_modules", "site-packages")

_FENCE = re.compile(r"^( *)(```+|~~~+).*?^ *\2[`~]* *$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_LINK = re.compile(r"\]\(\s*<?([^)<>\s]*)>?(?:\s+\"[^\"]*\")?\s*\)|^ {0,3}\[[^\]]+\]:\s+(\S+)", re.MULTILINE)
_HEADING = re.compile(r"^ {0,3}#{1,6} +(.*?)(?: +#+)? *$", re.MULTILINE)
_WEB = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_PATH = re.compile(rf"(?:{'|'.join(map(re.escape, FOLDERS))})/[\w./*-]*")
_NAME = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:\.\w+)+")
_MODULE = re.compile(rf"-m ((?:{'|'.join(PACKAGES)})(?:\.\w+)*)\b")
_IMPORTED = r"(?:pipeline|pocketbert)(?:\.\w+)*"
_PYTHON = re.compile(rf"^ *(?:from ({_IMPORTED}) import ([\w, ]+)|import ({_IMPORTED}))", re.MULTILINE)
_INSTALLED = {"pocketbert": "pipeline/api"}
"""Packages that are installed under another path than their folder's, with the folder in which they lie."""


def main(given: Sequence[str] | None = None) -> int:
    """Print what is broken; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m docs.links", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    root = parser.parse_args(given).root
    pages = list(find_pages(root))
    broken = [f"{page.relative_to(root)}: {what}" for page in pages for what in check(page, root)]
    print("\n".join(broken) if broken else f"{len(pages)} pages: every link, path and module that they name exists")
    return 1 if broken else 0


def find_pages(root: Path) -> Iterator[Path]:
    """Yield the Markdown files of a repository, hidden and built folders apart."""
    for page in sorted(root.rglob("*.md")):
        parts = page.relative_to(root).parts[:-1]
        if not any(part.startswith(".") or part in _SKIPPED for part in parts):
            yield page


def check(page: Path, root: Path = ROOT) -> Iterator[str]:
    """Yield what a page refers to that is not there."""
    text = _COMMENT.sub("", page.read_text(encoding="utf-8"))
    prose = _FENCE.sub("", text)
    for match in _LINK.finditer(_CODE.sub("", prose)):
        target = match[1] or match[2] or ""
        if not _WEB.match(target):
            yield from _link(page, target, root)
    if page.relative_to(root).as_posix() not in HISTORY:
        yield from _references(text, prose, root)


def _link(page: Path, target: str, root: Path) -> Iterator[str]:
    path, _, anchor = target.partition("#")
    place = (page.parent / path).resolve() if path else page
    if path.startswith("/") or not place.is_relative_to(root.resolve()):
        yield f"link {target} leaves the repository"
    elif not place.exists():
        yield f"link {target}: {path} does not exist"
    elif anchor and place.suffix == ".md" and anchor not in anchors(place.read_text(encoding="utf-8")):
        yield f"link {target}: {place.name} has no heading #{anchor}"


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found: Counter[str] = Counter()
    names = set()
    for heading in _HEADING.findall(_FENCE.sub("", _COMMENT.sub("", text))):
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).strip().replace(" ", "-")
        names.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return names


def _references(text: str, prose: str, root: Path) -> Iterator[str]:
    """Yield the paths, modules and names in code that do not exist."""
    for _, code in _CODE.findall(prose):
        if _PATH.fullmatch(code) and not _exists(code, root):
            yield f"`{code}` does not exist"
        elif _NAME.fullmatch(code) and not _named(code, root):
            yield f"`{code}`: there is no such module, and no such name in one"
    for module in dict.fromkeys(_MODULE.findall(text)):
        if not _file_of(module, root):
            yield f"-m {module}: there is no such module"
    for module, names, alone in _PYTHON.findall(text):
        for name in [f"{module}.{name.strip()}" for name in names.split(",")] if module else [alone]:
            if not _named(name, root):
                yield f"import of {name}: there is no such module, and no such name in one"


def _exists(path: str, root: Path) -> bool:
    return next(root.glob(path.rstrip("/")), None) is not None


def _file_of(module: str, root: Path) -> Path | None:
    """Return a module's file, a package's `__init__.py`, or None."""
    place = root.joinpath(_INSTALLED.get(module.partition(".")[0], ""), *module.split("."))
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


def _named(dotted: str, root: Path) -> bool:
    """Return whether this is a module, or a name that stands in the longest module before it."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        file = _file_of(".".join(parts[:count]), root)
        if file:
            words = set(re.findall(r"\w+", file.read_text(encoding="utf-8")))
            return all(part in words for part in parts[count:])
    return False


if __name__ == "__main__":
    sys.exit(main())
