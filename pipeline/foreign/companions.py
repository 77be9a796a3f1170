"""What lies beside a file: with a tokenizer that gives other ids, an app gets wrong answers of a right file."""

from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from pipeline.artifact import check_size
from pipeline.errors import PipelineError
from pipeline.text import tokenizers
from pipeline.text.bundled import verification_texts

_NAME = "tokenizer.json"


def notes(file: Path, checkpoint: Path) -> Iterator[str]:
    """Yield what is wrong with a tokenizer.json beside a file, by the texts of verification."""
    beside = file.parent / _NAME
    if not beside.is_file() or beside.parent.samefile(checkpoint):
        return
    try:
        check_size(beside)
        theirs, ours = Tokenizer.from_file(str(beside)), tokenizers.load_tokenizer(checkpoint)
    except PipelineError as error:
        yield f"the tokenizer beside it cannot be compared: {error}"
        return
    except Exception as error:  # the library raises bare Exception for every fault
        yield f"the tokenizer beside it cannot be read: {' '.join(str(error).split())[:200]}"
        return
    theirs.no_padding()
    theirs.no_truncation()
    texts = [text.first for text in verification_texts()]
    other = [text for text in texts if theirs.encode(text).ids != ours.encode(text).ids]
    if not other:
        return
    lowered = [text for text in other if theirs.encode(text).ids != ours.encode(text.lower()).ids]
    capitals = [text for text in other if theirs.encode(text.lower()).ids != ours.encode(text).ids]
    why = ""
    # Not all of them: lower-casing often takes accents along.
    if 2 * len(lowered) < len(other):
        why = ": it lower-cases, and the checkpoint's does not"
    elif 2 * len(capitals) < len(other):
        why = ": it keeps capitals, and the checkpoint's lower-cases"
    found = f"{len(other)} of {len(texts)} texts, first {other[0][:60]!r}"
    yield f"tokenizer.json beside it gives other ids on {found}{why}"
