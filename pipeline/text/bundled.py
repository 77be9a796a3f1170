"""The texts that come with the package: sentences and pairs for verification, latency and calibration.

They were written for it, see `texts/README.md`. The labelled files beside them are rows of `pipeline.data.datasets`.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from pipeline.artifact import sha256_file

FOLDER = Path(__file__).with_name("texts")
_SENTENCES = "sentences.jsonl"
_PAIRS = "pairs.jsonl"
_CALIBRATION = "calibration.jsonl"


@dataclass(frozen=True)
class Text:
    """One text or pair, with where it comes from."""

    id: str
    kind: str
    first: str
    second: str | None = None
    window: int | None = None
    """Number of the window over the passage `second`; None for a text or pair as a whole."""


def verification_texts() -> list[Text]:
    """Return the package's own sentences and pairs, in file order."""
    sentences = [Text(row["id"], row["kind"], row["text"]) for row in _rows(_SENTENCES)]
    return sentences + [Text(row["id"], "pair", row["first"], row["second"]) for row in _rows(_PAIRS)]


def verification_digest() -> dict[str, str]:
    """Return the sha256 of each file behind `verification_texts`."""
    return {name: sha256_file(FOLDER / name) for name in (_SENTENCES, _PAIRS)}


def calibration_texts() -> list[str]:
    """Return texts in scripts and forms of which everyday English has few; verification has none of them."""
    return [row["text"] for row in _rows(_CALIBRATION)]


def everyday_sentences() -> list[str]:
    """Return the sentences that look like real use: ordinary English of every length, for latency."""
    return [text.first for text in verification_texts() if text.kind in {"short", "medium", "long"}]


def _rows(name: str) -> list[dict[str, str]]:
    # By line ends alone: the texts hold other characters that `splitlines` counts as such.
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").split("\n") if line]
