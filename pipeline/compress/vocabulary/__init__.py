"""Vocabulary stage: keep the pieces that a corpus needs; tokenizer.json and the embedding table shrink together.

Text that was trimmed on keeps its tokens, unless `size` or `keep` leaves no room for all of them; then the rarest
pieces go, and the metrics say how many texts and words changed. The whole corpus is encoded again to know it.

Source: Abdaoui et al. 2020, Load What You Need (multilingual BERT); Ushio et al. 2023, vocabulary trimming.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.checkpoint.source import Source
from pipeline.compress.vocabulary import pieces
from pipeline.data import corpus
from pipeline.errors import RecipeError
from pipeline.recipe.compression import VocabularySection
from pipeline.tasks import Task
from pipeline.text import tokenizers

VERSION = 1
DISTRIBUTIONS = ("tokenizers", "safetensors")
"""What decides the trimmed checkpoint."""
_ASKED = "vocabulary.corpus"


def read(section: VocabularySection, recipe_file: Path) -> list[str]:
    """Return the corpus's texts, each once, in order; a pair is two.

    Raises:
        InputError: a file or data set is absent, empty, or not UTF-8.
    """
    rows = corpus.texts(section.corpus, recipe_file, _ASKED)
    texts = [text for row in rows for text in ((row,) if isinstance(row, str) else row) if text]
    # A labelled file may hold half a character, which no tokenizer takes.
    return list(dict.fromkeys(text.encode("utf-8", "replace").decode("utf-8") for text in texts))


def digests(section: VocabularySection, recipe_file: Path) -> dict[str, str | None]:
    """Return the sha256 of each file behind the corpus, by the name that the recipe gives it."""
    return corpus.digests(section.corpus, recipe_file, _ASKED)


def check(section: VocabularySection, source: Source, task: Task, texts: Sequence[str]) -> None:
    """Refuse what cannot be trimmed, before anything heavy is imported.

    Args:
        section: of the recipe.
        source: the checkpoint.
        task: not looked at; every task has words.
        texts: what `read` returned.

    Raises:
        StudentError: the tokenizer is of a kind that is not known here, or does not fit the checkpoint.
        RecipeError: more pieces than there are, or fewer than special tokens and the corpus's characters take.
    """
    vocabulary = pieces.Vocabulary(tokenizers.load_tokenizer(source.folder), source.folder)
    tokenizers.check_size(vocabulary.tokenizer, source.folder, vocab_size=source.vocab_size)
    held = pieces.ids_in(source.config, source.architecture)
    vocabulary.check_ids(held)
    size = section.wanted(len(vocabulary.ids))
    if size is None:
        return
    if size >= len(vocabulary.ids):
        raise RecipeError(
            f"vocabulary.size = {size}: the tokenizer of {source.origin} has {len(vocabulary.ids)} pieces, "
            "so nothing would be trimmed. Ask for fewer, or leave [vocabulary] out."
        )
    pieces.check_room(vocabulary.base(held, vocabulary.alphabet(texts)), size)


def make(source: Path, task_name: str, section: VocabularySection, texts: Sequence[str], out: Path) -> dict[str, Any]:
    """Write the checkpoint with fewer pieces. Runs in a worker, since it imports torch.

    Args:
        source: a folder in Hugging Face layout, plain or compressed.
        task_name: not looked at; heads stay as they are.
        section: of the recipe.
        texts: what `read` returned.
        out: the artifact's directory.

    Returns:
        Pieces before and after, bytes saved, and the share of texts, words and tokens that are not what they were.

    Raises:
        RecipeError: `size` is too small for the special tokens and the characters of the corpus.
        StudentError: the checkpoint has tensors of the vocabulary's size that are not known here, or the tokens of the
            corpus would change although every piece that it needs is kept.
    """
    from pipeline.compress.vocabulary import rows, trim

    return rows.write(source, trim.trim(source, section.wanted, texts), out)
