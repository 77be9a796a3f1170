"""The vocabulary of tiny students: 1,000 of the bundled student's 30,522 pieces, which texts of tests need most.

`verify` gives every row of a table of words to a file once: 3,203 rows of ids where there are 30,522, 95 where there
are 1,000. Pieces in front keep their ids, so special tokens are where BERT has them.
"""

import functools
import json
from collections import Counter
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pipeline.checkpoint import source
from pipeline.recipe import loading
from pipeline.text import bundled

SIZE = 1000
_IN_FRONT = 104
"""Special tokens, and BERT's unused ones between them."""
_MADE_UP = (
    "the house river of seven old tables and paper runs slowly under very alice bob clara red blue green black which "
    "colour good bad negative neutral positive one two three four five yes no hello films moved me however quietly ada "
    "ran home"
)
"""Words of the texts that tests make up: each is one piece, as in a large vocabulary, so that short rows hold them."""


@functools.cache
def bundled_folder() -> Path:
    """Return the bundled student's folder, looked up as the pipeline does it."""
    return source.find(*loading.read_recipe("minilm")).folder


def write(folder: Path) -> None:
    """Write the small `tokenizer.json` into a student's folder."""
    (folder / "tokenizer.json").write_text(_trimmed(), encoding="utf-8")


@functools.cache
def _trimmed() -> str:
    """Return the bundled tokenizer with its first pieces, ASCII characters, `_MADE_UP`, and the most frequent."""
    text = (bundled_folder() / "tokenizer.json").read_text(encoding="utf-8")
    document = json.loads(text)
    ordered = sorted(document["model"]["vocab"], key=document["model"]["vocab"].__getitem__)
    kept = ordered[:_IN_FRONT] + [piece for piece in ordered if piece.isascii() and len(piece.removeprefix("##")) == 1]
    kept += [word for word in _MADE_UP.split() if word in document["model"]["vocab"]]
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    counts = Counter(piece for row in _texts() for piece in tokenizer.encode(row, add_special_tokens=False).tokens)
    frequent = [piece for piece, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    kept = list(dict.fromkeys(kept + frequent))[:SIZE]
    chosen = set(kept)
    document["model"]["vocab"] = {
        piece: number for number, piece in enumerate(piece for piece in ordered if piece in chosen)
    }
    return json.dumps(document, ensure_ascii=False)


def _texts() -> list[str]:
    rows: list[dict[str, Any]] = [
        json.loads(line)
        for file in sorted(bundled.FOLDER.glob("*.jsonl"))
        for line in file.read_text(encoding="utf-8").split("\n")
        if line
    ]
    return [value for row in rows for value in row.values() if isinstance(value, str)]
