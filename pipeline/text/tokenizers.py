"""The tokenizer files of a checkpoint, whatever its family, as one fast tokenizer; `tokenizer.json` is what ships.

| files | family | the same ids as |
|---|---|---|
| `tokenizer.json` | any | the file itself |
| `vocab.txt` | WordPiece | google-research/bert, BasicTokenizer and WordpieceTokenizer |
| `spiece.model` | ALBERT | sentencepiece, and google-research/albert's preprocessing |
| `sentencepiece.bpe.model` | XLM-RoBERTa | sentencepiece, with fairseq's order of the first ids |
| `vocab.json` and `merges.txt` | RoBERTa | GPT-2's byte-level BPE |

As in transformers, and not in Google's code: a special token that a text spells out is that token, and a word of more
than 100 characters is unknown to WordPiece (Google says 200; checkpoints in this layout were fine-tuned with 100).
transformers is not used: 5.23 builds its class's own tokenizer around the vocabulary of a `tokenizer.json`.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, WordPiece

from pipeline.errors import StudentError
from pipeline.text import unigram

FAMILIES: tuple[tuple[str, ...], ...] = (
    ("tokenizer.json",),
    ("vocab.txt",),
    ("spiece.model",),
    ("sentencepiece.bpe.model",),
    ("vocab.json", "merges.txt"),
)
"""Sets of files, each enough for a tokenizer."""

SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
"""Optional files beside a set: case, accents, names of special tokens, tokens added later."""

_BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_ALBERT = {"unk": "<unk>", "sep": "[SEP]", "pad": "<pad>", "cls": "[CLS]", "mask": "[MASK]"}
_ROBERTA = {"unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>", "mask": "<mask>"}

# tokenizers 0.23 deletes private characters as controls, knows punctuation and marks of Unicode 8, and takes 256
# ideographs for letters; Oniguruma's classes are those of Unicode 16.
_CONTROLS = r"[\x{0}\x{FFFD}[\p{Cc}\p{Cf}&&[^\t\n\r]]]"
_IDEOGRAPHS = r"\x{2B820}-\x{2B91F}"


def find(folder: Path) -> tuple[str, ...]:
    """Return the set of tokenizer files that a folder has.

    Raises:
        StudentError: the folder has no set, half a set, or several without a `tokenizer.json`.
    """
    whole = [names for names in FAMILIES if all((folder / name).is_file() for name in names)]
    if whole and (whole[0] == FAMILIES[0] or len(whole) == 1):
        return whole[0]
    if whole:
        sets = ", ".join(" and ".join(names) for names in whole)
        raise StudentError(
            f"{folder} has several tokenizers ({sets}) and no tokenizer.json. Keep the student's own one."
        )
    for names in FAMILIES:
        for name in names:
            if (folder / name).is_file():
                lacking = " and ".join(other for other in names if not (folder / other).is_file())
                raise StudentError(
                    f"{folder} has {name} without {lacking}, half a tokenizer; copy {lacking} beside it."
                )
    known = ", ".join(" with ".join(names) for names in FAMILIES)
    raise StudentError(f"{folder} has no tokenizer (one of: {known}); save it beside the model.")


def copy(source: Path, folder: Path) -> None:
    """Copy a checkpoint's tokenizer files beside the model that was made of it."""
    for name in (*find(source), *SETTINGS):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def load_tokenizer(folder: Path) -> Tokenizer:
    """Return a checkpoint's fast tokenizer with truncation and padding off.

    Raises:
        StudentError: the tokenizer is absent or broken, or no fast tokenizer gives the same ids.
    """
    build = {
        "tokenizer.json": _json,
        "vocab.txt": _wordpiece,
        "spiece.model": _albert,
        "sentencepiece.bpe.model": _xlm_roberta,
        "vocab.json": _byte_level_bpe,
    }[find(folder)[0]]
    try:
        tokenizer = build(folder, _Settings.read(folder))
    except StudentError:
        raise
    except Exception as error:  # tokenizers raises bare Exception for every fault
        raise StudentError(f"the tokenizer in {folder} does not load: {' '.join(str(error).split())[:300]}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def lower_cased(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer that lower-cases a text before its own normaliser, as sentence-transformers makes it."""
    own = tokenizer.normalizer
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *([] if own is None else [own])])
    return tokenizer


def without_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer that puts no special tokens around a text; those that a text spells out stay."""
    tokenizer.post_processor = None
    return tokenizer


def check_size(tokenizer: Tokenizer, folder: Path, *, vocab_size: int) -> None:
    """Refuse a tokenizer with ids beyond the model's embedding table; unused rows at the table's end are usual.

    Raises:
        StudentError: an id has no row in the table, or a character without a token ends in an error.
    """
    try:
        tokenizer.encode("\u13a0")
    except Exception as error:  # tokenizers raises this class itself
        raise StudentError(f"the tokenizer in {folder} cannot encode a text: {error}. Copy the model's own.") from error
    token, highest = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if highest >= vocab_size:
        raise StudentError(
            f"the tokenizer in {folder} has {tokenizer.get_vocab_size()} tokens, and the model's vocab_size is "
            f"{vocab_size}: {token!r} with id {highest} has no row. Put the model's own tokenizer beside it."
        )


def check_types(tokenizer: Tokenizer, folder: Path, *, type_vocab_size: int) -> None:
    """Refuse a tokenizer that gives a pair's second text a type which the model's table of token types lacks.

    Raises:
        StudentError: it does.
    """
    highest = max(tokenizer.encode("a", "b").type_ids, default=0)
    if highest >= type_vocab_size:
        raise StudentError(
            f"the tokenizer in {folder} gives the second text of a pair type {highest}, and the model's "
            f"type_vocab_size is {type_vocab_size}. Put the model's own tokenizer beside it, or correct the types in "
            "the post_processor of tokenizer.json."
        )


@dataclass(frozen=True)
class _Settings:
    """The settings that the files beside a vocabulary hold."""

    folder: Path
    values: Mapping[str, Any]
    added: Sequence[AddedToken]
    """Tokens with an id that the configuration states, in the order of their ids."""
    added_ids: Sequence[int]

    @classmethod
    def read(cls, folder: Path) -> "_Settings":
        config, names, later = (_object(folder / name) for name in SETTINGS)
        listed = {int(index): _token(token) for index, token in (config.get("added_tokens_decoder") or {}).items()}
        listed |= {int(index): AddedToken(token) for token, index in later.items() if int(index) not in listed}
        ids = sorted(listed)
        return cls(folder, names | config, [listed[index] for index in ids], ids)

    def flag(self, name: str, default: bool | None) -> Any:
        """Return a setting that is true or false."""
        value = self.values.get(name, default)
        if value is not None and not isinstance(value, bool):
            raise StudentError(f"{self.folder}/tokenizer_config.json: {name} is {value!r}; it has to be true or false.")
        return default if value is None else value

    def specials(self, defaults: Mapping[str, str]) -> dict[str, str]:
        """Return the special tokens' spelling by role."""
        found = {role: self.values.get(f"{role}_token") or default for role, default in defaults.items()}
        return {role: str(token["content"] if isinstance(token, dict) else token) for role, token in found.items()}


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise StudentError(f"{path} cannot be read as JSON: {error}.") from error
    if not isinstance(value, dict):
        raise StudentError(f"{path} holds a {type(value).__name__}, not an object.")
    return value


def _token(token: Any) -> AddedToken:
    flags = ("lstrip", "rstrip", "single_word", "normalized", "special")
    return AddedToken(token["content"], **{name: bool(token[name]) for name in flags if name in token})


def _finish(tokenizer: Tokenizer, settings: _Settings, specials: Mapping[str, str], *, strip_mask: bool) -> None:
    """Make the special tokens special, and add what was added to the vocabulary later.

    Raises:
        StudentError: a special token is not in the vocabulary, or an added one would get another id.
    """
    absent = [token for token in specials.values() if tokenizer.token_to_id(token) is None]
    if absent:
        raise StudentError(
            f"the vocabulary in {settings.folder} lacks the special token {absent[0]!r}. "
            "Name the ones that it has in tokenizer_config.json."
        )
    for role, token in specials.items():
        strip = strip_mask and role == "mask"
        tokenizer.add_special_tokens([AddedToken(token, lstrip=strip, normalized=False, special=True)])
    for added, index in zip(settings.added, settings.added_ids, strict=True):
        (tokenizer.add_special_tokens if added.special else tokenizer.add_tokens)([added])
        found = tokenizer.token_to_id(added.content)
        if found != index:
            raise StudentError(f"the added token {added.content!r} in {settings.folder} gets id {found}, not {index}.")


def _json(folder: Path, settings: _Settings) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    normalizer = tokenizer.normalizer
    if isinstance(normalizer, normalizers.BertNormalizer):
        _check_agreement(normalizer, settings)
    return tokenizer


def _check_agreement(normalizer: normalizers.BertNormalizer, settings: _Settings) -> None:
    """Refuse two files that disagree on the ids: transformers would follow the configuration."""
    lower, strip = normalizer.lowercase, normalizer.strip_accents
    inside_file = {
        "do_lower_case": lower,
        "strip_accents": lower if strip is None else strip,
        "tokenize_chinese_chars": normalizer.handle_chinese_chars,
    }
    for name, inside in inside_file.items():
        if settings.flag(name, inside) != inside:
            raise StudentError(
                f"{settings.folder}: tokenizer_config.json says {name} is {not inside}, tokenizer.json does the "
                "opposite. Correct the wrong one of the two."
            )


def _wordpiece(folder: Path, settings: _Settings) -> Tokenizer:
    lines = (folder / "vocab.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    specials = settings.specials(_BERT)
    vocabulary = {line: index for index, line in enumerate(lines)}
    lower = settings.flag("do_lower_case", None)
    if lower is None:
        lower = _assume_lower_case(folder, vocabulary, specials)
    chinese = settings.flag("tokenize_chinese_chars", True)
    strip = settings.flag("strip_accents", lower)
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token=specials["unk"], max_input_chars_per_word=100))
    steps: list[Any] = [normalizers.Replace(Regex(_CONTROLS), "")]
    if lower:
        steps.append(normalizers.Replace(Regex(unigram.FINAL_SIGMA), "ς"))
    steps.append(
        normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=chinese, strip_accents=strip, lowercase=lower)
    )
    if strip:
        steps.append(normalizers.Replace(Regex(r"\p{Mn}"), ""))
    tokenizer.normalizer = normalizers.Sequence(steps)
    newer = pre_tokenizers.Split(Regex(rf"[\p{{P}}{_IDEOGRAPHS if chinese else ''}]"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), newer])
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    _finish(tokenizer, settings, specials, strip_mask=False)
    tokenizer.post_processor = _segments(tokenizer, specials)
    return tokenizer


def _assume_lower_case(folder: Path, vocabulary: Mapping[str, int], specials: Mapping[str, str]) -> bool:
    """Take a model for uncased, as BERT's code does by default, and refuse a vocabulary with capital letters."""
    for token in vocabulary:
        if token != token.lower() and token not in specials.values() and not token.startswith("["):
            raise StudentError(
                f"{folder}/vocab.txt has capital letters ({token!r}) and no tokenizer_config.json says whether text is "
                'lower-cased. Write {"do_lower_case": false} (or true) into tokenizer_config.json.'
            )
    return True


def _segments(tokenizer: Tokenizer, specials: Mapping[str, str]) -> processors.TemplateProcessing:
    """Return BERT's and ALBERT's template: segment 0, and 1 for the second text with its separator."""
    cls, sep = specials["cls"], specials["sep"]
    return _template(tokenizer, cls, sep, pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1")


def _template(tokenizer: Tokenizer, cls: str, sep: str, *, pair: str) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=pair,
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
    )


def _albert(folder: Path, settings: _Settings) -> Tokenizer:
    model = unigram.read(folder / "spiece.model")
    specials = settings.specials(_ALBERT)
    if not settings.flag("remove_space", True):
        raise StudentError(
            f"{folder}/tokenizer_config.json: remove_space is false; only ALBERT's own true is supported."
        )
    before = unigram.albert_preprocessing(
        lower_case=settings.flag("do_lower_case", True), keep_accents=settings.flag("keep_accents", False)
    )
    vocabulary = model.scores()
    unknown = [piece for piece, _ in vocabulary].index(specials["unk"])
    commas = unigram.albert_commas(model.segmentable, vocabulary, unknown=unknown, file=model.path)
    tokenizer = unigram.tokenizer(model, vocabulary, unknown=unknown, before=before, commas=commas)
    _finish(tokenizer, settings, specials, strip_mask=True)
    tokenizer.post_processor = _segments(tokenizer, specials)
    return tokenizer


def _xlm_roberta(folder: Path, settings: _Settings) -> Tokenizer:
    """Build XLM-R's tokenizer with fairseq's ids: <s> <pad> </s> <unk>, the pieces from the fourth on, <mask>."""
    model = unigram.read(folder / "sentencepiece.bpe.model")
    first = [piece for piece, _, _ in model.pieces[:3]]
    if first != ["<unk>", "<s>", "</s>"]:
        raise StudentError(f"{model.path} begins with {first}; XLM-RoBERTa's order is <unk>, <s>, </s>.")
    specials = settings.specials(_ROBERTA)
    head = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    vocabulary = [*head, *model.scores()[3:], (specials["mask"], 0.0)]
    tokenizer = unigram.tokenizer(model, vocabulary, unknown=3)
    _finish(tokenizer, settings, specials, strip_mask=True)
    cls, sep = specials["cls"], specials["sep"]
    tokenizer.post_processor = _template(tokenizer, cls, sep, pair=f"{cls}:0 $A:0 {sep}:0 {sep}:0 $B:0 {sep}:0")
    return tokenizer


def _byte_level_bpe(folder: Path, settings: _Settings) -> Tokenizer:
    specials = settings.specials(_ROBERTA)
    spaced = settings.flag("add_prefix_space", False)
    model = BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    tokenizer.decoder = decoders.ByteLevel()
    _finish(tokenizer, settings, specials, strip_mask=True)
    sep, cls = ((specials[role], tokenizer.get_vocab()[specials[role]]) for role in ("sep", "cls"))
    tokenizer.post_processor = processors.RobertaProcessing(sep, cls, trim_offsets=True, add_prefix_space=spaced)
    return tokenizer
