"""Choose the tokens of a vocabulary that are kept, and restrict the tokenizer to them."""

import json
import string
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pipeline.architectures.architecture import Architecture
from pipeline.compress.vocabulary.families import FAMILIES
from pipeline.errors import RecipeError, StudentError
from pipeline.recipe.compression import VocabularySection
from pipeline.text import writing

CONFIG_IDS = tuple(f"{role}_token_id" for role in ("pad", "unk", "bos", "eos", "cls", "sep", "mask", "decoder_start"))
"""Keys of config.json that hold ids of tokens."""


def required_ids(config: Mapping[str, Any], architecture: Architecture) -> set[int]:
    """Return the token ids that a config needs.

    If positions are counted from the padding id on, all ids up to it are kept, so that the padding id is unchanged.
    """
    named = {int(config[key]) for key in CONFIG_IDS if isinstance(config.get(key), int)}
    pad = architecture.padding_id(config)
    return named | (set(range(pad + 1)) if architecture.positions_after_padding else {pad})


def check_room(always_kept: set[str], size: int) -> None:
    """Refuse a vocabulary size below the number of special tokens and single characters.

    Raises:
        RecipeError: with both numbers.
    """
    if len(always_kept) > size:
        raise RecipeError(
            f"vocabulary.size = {size}: the special tokens and the single characters of the corpus and of languages "
            f"alone are {len(always_kept)} tokens. Ask for more."
        )


class Vocabulary:
    """A tokenizer, and its tokens with their ids."""

    def __init__(self, tokenizer: Tokenizer, folder: Path) -> None:
        """Take a tokenizer without truncation and padding.

        Raises:
            StudentError: it is of a kind that is not known here.
        """
        self.tokenizer = tokenizer
        self.folder = folder
        self.document: dict[str, Any] = json.loads(tokenizer.to_str())
        self.model: dict[str, Any] = self.document["model"]
        kind = str(self.model["type"])
        marks = [self.model.get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix")]
        if kind not in FAMILIES or (kind == "BPE" and any(marks)):
            what = f"{kind} with marks inside words" if kind in FAMILIES else kind
            raise StudentError(
                f"the tokenizer in {folder} is of kind {what}; the vocabulary of {', '.join(FAMILIES)} can be trimmed. "
                "Leave [vocabulary] out."
            )
        self.family = FAMILIES[kind]
        self.added = {str(row["content"]): int(row["id"]) for row in self.document["added_tokens"]}
        self.ids = self.family.vocabulary(self.model) | self.added
        unknown = self.family.unknown(self.model)
        if unknown is not None and unknown not in self.ids:
            raise StudentError(f"the tokenizer in {folder} has no id for {unknown!r}, its unknown token.")

    @property
    def unknown(self) -> int | None:
        """Id of the unknown token."""
        token = self.family.unknown(self.model)
        return None if token is None else self.ids[token]

    def normalised(self, text: str) -> str:
        """Return a text as the tokenizer normalises it."""
        normalizer = self.tokenizer.normalizer
        return normalizer.normalize_str(text) if normalizer else text

    def words(self, text: str) -> list[str]:
        """Split a text into the words of the pre-tokenizer; no token spans several of them."""
        splitter, plain = self.tokenizer.pre_tokenizer, self.normalised(text)
        return [word for word, _ in splitter.pre_tokenize_str(plain)] if splitter else [plain]

    def always_kept(self, required: set[int], alphabet: set[str]) -> set[str]:
        """Return the tokens that are always kept: added, required, special and unknown ones, and single characters."""
        around = {number for pair in ((), ("",)) for number in self.tokenizer.encode("", *pair).ids}
        of_ids = {token for token, number in self.ids.items() if number in required | around}
        unknown = self.family.unknown(self.model)
        named = {unknown} if unknown is not None else set()
        return {*self.added, *of_ids, *named, *self.family.essential(self.model)} | self.family.singles(
            self.model, alphabet
        )

    def alphabet(self, texts: Sequence[str]) -> set[str]:
        """Return the characters of texts after normalisation."""
        plain = set().union(*(text for text in texts if text.isascii()))
        # Beyond ASCII a letter and its accent may be one character only where they stand together.
        others = (self.normalised(text) for text in texts if not text.isascii())
        return set(self.normalised(" ".join(sorted(plain)))).union(*others)

    def letters(self, languages: Collection[str], *, shared: bool) -> set[str]:
        """Return the characters of the vocabulary that are of the languages' scripts; none without languages.

        Args:
            languages: codes of `writing.LANGUAGES`.
            shared: whether digits, signs and the like are among them; else ASCII's letters are, for names in any text.
        """
        if not languages:
            return set()
        letters = writing.characters(set().union(*self.ids), languages, shared=shared)
        return letters if shared else letters | set(string.ascii_letters)

    def written(self, languages: Collection[str]) -> set[str]:
        """Return the tokens that can be found in a text of the languages' scripts, digits and signs."""
        letters = self.letters(languages, shared=True)
        return {
            token for token in self.family.order(self.model) if letters.issuperset(token) and self._can_be_found(token)
        }

    def check_ids(self, required: set[int]) -> None:
        """Refuse a config whose special tokens the tokenizer lacks.

        Raises:
            StudentError: with the first id that is missing.
        """
        without = sorted(required - set(self.ids.values()))
        if without:
            raise StudentError(
                f"{self.folder}/config.json needs the token with id {without[0]}, and the tokenizer has none. "
                "Put the model's own tokenizer beside it, or correct the ids."
            )

    def keep(
        self,
        section: VocabularySection,
        required: set[int],
        texts: Sequence[str],
        prompts: Sequence[str],
        counts: Counter[str],
    ) -> tuple[set[str], bool]:
        """Return the tokens that a recipe keeps, and whether all that its corpus needs are among them.

        Args:
            section: `[vocabulary]` of the recipe.
            required: see `required_ids`.
            texts: the corpus.
            prompts: texts whose tokens are kept whatever the corpus has.
            counts: see `choose`.

        Raises:
            RecipeError: the size is too small for what is always kept.
        """
        languages = section.languages or ()
        always = self.always_kept(required, self.alphabet([*texts, *prompts]) | self.letters(languages, shared=False))
        support, spelled = self.family.support(self.model), {number: token for token, number in self.ids.items()}
        for prompt in prompts:
            ids = self.tokenizer.encode(prompt, add_special_tokens=False).ids
            always = always.union(*(support(spelled[number]) for number in ids))
        if section.corpus is None:
            return always | self.written(languages), True
        filling = self.written(languages) if languages else None
        return self.choose(counts, always, section.kept_size(len(self.ids)), filling)

    def choose(
        self, counts: Counter[str], always_kept: set[str], size: int | None, filling: Collection[str] | None = None
    ) -> tuple[set[str], bool]:
        """Choose the tokens to keep for a corpus.

        Args:
            counts: how often the corpus has each token; 0 for one that it needs without having it.
            always_kept: see the method of this name.
            size: number of tokens to keep, or None for those that the corpus needs.
            filling: tokens that come first in the room that the corpus leaves; None for no difference.

        Returns:
            The tokens, and whether all that the corpus needs are among them.
        """
        support = self.family.support(self.model)
        kept = set(always_kept)
        needed = {
            token: support(token) for token in sorted(counts, key=lambda token: (-counts[token], self.ids[token]))
        }
        if size is None:
            return kept.union(*needed.values()), True
        check_room(kept, size)
        for group in needed.values():
            if len(kept) + len(group - kept) <= size:
                kept |= group
        whole = all(group <= kept for group in needed.values())
        order = self.family.order(self.model)
        if filling is not None:
            order.sort(key=lambda token: token not in filling)
        for token in order:
            if len(kept) == size:
                break
            if token not in kept and self._can_be_found(token):
                group = support(token)
                kept |= group if len(kept) + len(group - kept) <= size else set()
        return kept, whole

    def _can_be_found(self, token: str) -> bool:
        """Return whether a token can occur in any text; BERT's `[unused1]` cannot, since it is split into words."""
        prefix = self.model.get("continuing_subword_prefix")
        return not prefix or self.words(token.removeprefix(prefix)) == [token.removeprefix(prefix)]

    def restrict(self, kept: set[str]) -> tuple[Tokenizer, dict[int, int]]:
        """Return the tokenizer with only the kept tokens, and new ids by old ones, in the same order.

        Raises:
            StudentError: the library gives other ids than those.
        """
        order = sorted(kept, key=self.ids.__getitem__)
        new = {token: number for number, token in enumerate(order)}
        ids = {self.ids[token]: number for token, number in new.items()}
        of_model = self.family.vocabulary(self.model)
        document = self.document | {
            "added_tokens": [row | {"id": ids[row["id"]]} for row in self.document["added_tokens"]],
            "model": self.family.restrict(self.model, {token: new[token] for token in order if token in of_model}),
            "post_processor": _renumbered(self.document["post_processor"], ids),
        }
        tokenizer = Tokenizer.from_str(json.dumps(document, ensure_ascii=False))
        if tokenizer.get_vocab() != new:
            raise StudentError(
                f"the tokenizer in {self.folder} does not keep the order of its ids; it cannot be trimmed."
            )
        return tokenizer, ids


def _renumbered(processor: Any, ids: Mapping[int, int]) -> Any:
    """Return a post-processor with new ids."""
    if processor is None:
        return None
    changed = dict(processor)
    if "processors" in changed:
        changed["processors"] = [_renumbered(one, ids) for one in changed["processors"]]
    for role in ("sep", "cls"):
        if role in changed:
            token, number = changed[role]
            changed[role] = [token, ids[number]]
    if "special_tokens" in changed:
        changed["special_tokens"] = {
            name: row | {"ids": [ids[number] for number in row["ids"]]}
            for name, row in changed["special_tokens"].items()
        }
    return changed
