"""The stage: keep the tokens that a corpus needs; tokenizer.json and the embedding table shrink together.

Texts of the corpus keep their tokens, unless `size` or `keep` leaves no room for all of them; then the rarest tokens
go, and the metrics say how many texts and words changed. The whole corpus is encoded again to count them.

Languages are told apart by their scripts alone. Without a corpus every token of their scripts stays, so that any text
in them keeps its tokens; with one and a size, the room that the corpus leaves goes to tokens of these scripts first.

Source: Abdaoui et al. 2020, Load What You Need (multilingual BERT); Ushio et al. 2023, vocabulary trimming.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline import tasks
from pipeline.checkpoint import sentences
from pipeline.checkpoint.source import Source
from pipeline.compress.common import SOURCE, Context, Stage, Work
from pipeline.compress.vocabulary.selection import Vocabulary, check_room, required_ids
from pipeline.data import corpus
from pipeline.errors import RecipeError
from pipeline.heads.sentence import NAME
from pipeline.recipe.compression import VocabularySection
from pipeline.text import tokenizers, writing

VERSION = 1
DISTRIBUTIONS = ("tokenizers", "safetensors")
"""Packages that decide the trimmed checkpoint."""
_KEY = "vocabulary.corpus"


def read_corpus(section: VocabularySection, recipe_file: Path) -> list[str]:
    """Return the corpus's texts, each once, in order; a pair is two.

    Raises:
        InputError: a file or dataset is absent, empty, or not UTF-8.
    """
    entries = corpus.texts(section.corpus, recipe_file, _KEY) if section.corpus else []
    texts = [text for entry in entries for text in ((entry,) if isinstance(entry, str) else entry) if text]
    # A labelled file may hold half a character, which no tokenizer takes.
    return list(dict.fromkeys(text.encode("utf-8", "replace").decode("utf-8") for text in texts))


def digests(section: VocabularySection, recipe_file: Path) -> dict[str, str | None]:
    """Return the sha256 of each file behind the corpus, by the name that the recipe gives it."""
    return corpus.digests(section.corpus, recipe_file, _KEY) if section.corpus else {}


def check(section: VocabularySection, source: Source, texts: Sequence[str]) -> None:
    """Refuse tokens that cannot be chosen, before anything heavy is imported.

    Args:
        section: `[vocabulary]` of the recipe.
        source: the checkpoint.
        texts: what `read` returned.

    Raises:
        StudentError: the tokenizer is of a kind that is not known here, or does not fit the checkpoint.
        RecipeError: as many tokens as there are or more, or fewer than special tokens and the corpus's characters take;
            or a language that is not known here, or a tokenizer whose tokens are bytes.
    """
    languages = section.languages or ()
    if others := writing.unknown(languages):
        raise RecipeError(
            f"vocabulary.languages: {', '.join(others)} is not known here; known are {', '.join(writing.LANGUAGES)}. "
            "Leave it out, and give text of it as corpus."
        )
    vocabulary = Vocabulary(tokenizers.load_tokenizer(source.folder), source.folder)
    tokenizers.check_size(vocabulary.tokenizer, source.folder, vocab_size=source.vocab_size)
    required = required_ids(source.config, source.architecture)
    vocabulary.check_ids(required)
    if languages and not vocabulary.family.has_letters:
        raise RecipeError(
            f"vocabulary.languages: the tokens of {source.origin} are bytes, whose script cannot be told. "
            "Give text as corpus, and leave languages out."
        )
    size = section.kept_size(len(vocabulary.ids))
    if size is None:
        kept = vocabulary.keep(section, required, (), (), Counter())[0] if section.corpus is None else ()
        if len(kept) == len(vocabulary.ids):
            raise RecipeError(
                f"vocabulary.languages: every token of {source.origin} can be written in {', '.join(languages)}, so "
                "nothing would be trimmed. Give text as corpus, or leave [vocabulary] out."
            )
        return
    if size >= len(vocabulary.ids):
        raise RecipeError(
            f"vocabulary.size = {size}: the tokenizer of {source.origin} has {len(vocabulary.ids)} tokens, "
            "so nothing would be trimmed. Ask for fewer, or leave [vocabulary] out."
        )
    alphabet = vocabulary.alphabet(texts) | vocabulary.letters(languages, shared=False)
    check_room(vocabulary.always_kept(required, alphabet), size)


def prompts_of(source: Source, task_name: str) -> tuple[str, ...]:
    """Return the prompts of a checkpoint, whose tokens stay whatever the corpus has: every text may come behind one."""
    if tasks.get(task_name).uses_head:
        return ()
    return tuple(sentences.settings_of(source.folder, source.config.get(NAME)).prompts.values())


def make(
    source: Path,
    task_name: str,
    section: VocabularySection,
    texts: Sequence[str],
    prompts: Sequence[str],
    out: Path,
) -> dict[str, Any]:
    """Write the checkpoint with a smaller vocabulary. Runs in a worker, since it imports torch.

    Args:
        source: a folder in Hugging Face layout, plain or compressed.
        task_name: a row of `tasks.py`; heads stay as they are.
        section: `[vocabulary]` of the recipe.
        texts: what `read` returned.
        prompts: what `prompts_of` returned.
        out: the artifact's directory.

    Returns:
        Vocabulary size before and after, bytes saved, and the fractions of texts, words and tokens that changed.

    Raises:
        RecipeError: `size` is too small for the special tokens and the characters of the corpus.
        StudentError: the checkpoint has tensors of the vocabulary's size that are not known here, or the tokens of the
            corpus would change although all that it needs are kept.
    """
    from pipeline.compress.vocabulary.trimming import trim, write

    metrics = write(source, trim(source, section, texts, prompts), out)
    if not tasks.get(task_name).uses_head:
        sentences.fold(source, out)
    return metrics


def trial(section: VocabularySection, source: Source) -> Source:
    """Return the expected checkpoint of `make`, from a trial on torch's meta device; raises the errors of `make`.

    The trial keeps the first tokens of the vocabulary; without a size, all of them.
    """
    import torch

    from pipeline.compress.vocabulary.trimming import keep_tokens

    count = section.kept_size(source.vocab_size) or source.vocab_size
    shapes = source.tensor_shapes()
    tensors = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    kept = keep_tokens(tensors, torch.arange(count), source.origin)
    trimmed = {name: tuple(tensor.shape) for name, tensor in kept.items()}
    return replace(source, config={**source.config, "vocab_size": count}, tensors=trimmed)


# --- in a recipe -----------------------------------------------------------------------------------------------------


def corpus_of(context: Context, section: VocabularySection) -> list[str]:
    """Return the corpus, which is read once."""
    if "vocabulary" not in context.texts:
        context.texts["vocabulary"] = read_corpus(section, context.recipe_file)
    return context.texts["vocabulary"]


def _section(context: Context) -> VocabularySection:
    assert context.recipe.vocabulary
    return context.recipe.vocabulary


def _check(context: Context, source: Source) -> None:
    section = _section(context)
    check(section, source, corpus_of(context, section))


def _work(context: Context) -> Work:
    section = _section(context)
    # A section without languages means what it did before there were any.
    settings = section.model_dump(mode="json", exclude=None if section.languages else {"languages"})
    params: dict[str, Any] = {"settings": settings, "corpus": digests(section, context.recipe_file)}
    prompts = prompts_of(context.unpruned, context.recipe.task)
    if prompts:
        params["prompts"] = list(prompts)
    arguments = (SOURCE, context.recipe.task, section, corpus_of(context, section), prompts)
    return Work(VERSION, params, DISTRIBUTIONS, make, arguments, 30)


VOCABULARY = Stage(
    "vocabulary",
    folder="trimmed",
    origin="its vocabulary trimmed",
    check=_check,
    work=_work,
    trial=lambda context, source: trial(_section(context), source),
)
