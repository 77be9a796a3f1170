"""Faults in what ships beside the file: tokenizer, labels, signature, golden rows, and files that do not fit them.

`plant(folder)` edits a model folder in place: before its manifest is written, as a careless converter would, or after,
as a careless person would (level "manifest").
"""

import json
from pathlib import Path
from typing import Any

from faults.fault import EVERYWHERE, FLOAT, Cells, Fault
from faults.students import Student
from pipeline.formats.signature import SIGNATURE
from pipeline.student.golden import GOLDEN

_FIXED: Cells = {name: FLOAT[name] for name in ("litert", "coreml")}


def _edit_json(path: Path, edit: Any) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    edit(document)
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")


def _tokenizer(edit: Any) -> Any:
    return lambda folder: _edit_json(folder / "tokenizer.json", edit)


def _signature(edit: Any) -> Any:
    return lambda folder: _edit_json(folder / SIGNATURE, edit)


def vocabulary_shifted(tokenizer: dict[str, Any]) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    for token, number in vocabulary.items():
        if number >= 1000:
            vocabulary[token] = number + 1 if number + 1 < len(vocabulary) else 1000


def two_tokens_exchanged(tokenizer: dict[str, Any]) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["the"], vocabulary["a"] = vocabulary["a"], vocabulary["the"]


def lower_casing_lost(tokenizer: dict[str, Any]) -> None:
    tokenizer["normalizer"]["lowercase"] = False


def accents_kept(tokenizer: dict[str, Any]) -> None:
    tokenizer["normalizer"]["strip_accents"] = False


def han_not_split(tokenizer: dict[str, Any]) -> None:
    tokenizer["normalizer"]["handle_chinese_chars"] = False


def special_tokens_missing(tokenizer: dict[str, Any]) -> None:
    tokenizer["post_processor"] = None


def pair_exchanged(tokenizer: dict[str, Any]) -> None:
    for part in tokenizer["post_processor"]["pair"]:
        if "Sequence" in part:
            part["Sequence"]["id"] = {"A": "B", "B": "A"}[part["Sequence"]["id"]]


def second_text_has_type_zero(tokenizer: dict[str, Any]) -> None:
    for part in tokenizer["post_processor"]["pair"]:
        next(iter(part.values()))["type_id"] = 0


def subwords_unmarked(tokenizer: dict[str, Any]) -> None:
    tokenizer["model"]["continuing_subword_prefix"] = ""


def normaliser_lost(tokenizer: dict[str, Any]) -> None:
    tokenizer["normalizer"] = None


def scores_lost(tokenizer: dict[str, Any]) -> None:
    for entry in tokenizer["model"]["vocab"]:
        entry[1] = -1.0


def fairseq_offset_lost(tokenizer: dict[str, Any]) -> None:
    entries = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = entries[:4] + entries[5:] + entries[4:5]


def merges_reversed(tokenizer: dict[str, Any]) -> None:
    tokenizer["model"]["merges"].reverse()


def space_put_first(tokenizer: dict[str, Any]) -> None:
    tokenizer["pre_tokenizer"]["add_prefix_space"] = True


def one_separator(tokenizer: dict[str, Any]) -> None:
    framed = tokenizer["post_processor"]
    tokenizer["post_processor"] = {"type": "BertProcessing", "sep": framed["sep"], "cls": framed["cls"]}


def labels_permuted(folder: Path) -> None:
    names = (folder / "labels.txt").read_text(encoding="utf-8").split()
    (folder / "labels.txt").write_text("\n".join(sorted(names, reverse=True)) + "\n", encoding="utf-8")


def signature_labels_permuted(signature: dict[str, Any]) -> None:
    signature["labels"] = signature["labels"][::-1]


def padding_id_wrong(signature: dict[str, Any]) -> None:
    signature["pad_token_id"] = 1


def longest_length_off(signature: dict[str, Any]) -> None:
    longest = signature["functions"][-1]
    longest["max_length"] -= 1
    longest["min_length"] = min(longest["min_length"], longest["max_length"])


def vector_scales_permuted(signature: dict[str, Any]) -> None:
    scales = signature["vectors"]["scales"]
    signature["vectors"]["scales"] = [*scales[1:], scales[0]]


def space_of_another(signature: dict[str, Any]) -> None:
    signature["vectors"]["space"] = signature["vectors"]["space"][::-1]


def functions_exchanged(signature: dict[str, Any]) -> None:
    first, last = signature["functions"][0], signature["functions"][-1]
    first["name"], last["name"] = last["name"], first["name"]


def golden_row_edited(folder: Path) -> None:
    _edit_json(folder / GOLDEN, lambda golden: golden["rows"][1]["output"].__setitem__(0, 0.0))


def byte_flipped(folder: Path) -> None:
    path = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def tokenizer_replaced(folder: Path) -> None:
    _tokenizer(lower_casing_lost)(folder)


def _fault(name: str, what: str, plant: Any, student: Student = Student(), **more: Any) -> Fault:  # noqa: B008
    return Fault(name, what, more.pop("level", "companions"), plant, student, cells=more.pop("cells", FLOAT), **more)


_CLASSES = Student(task="classification")
_TAGS = Student("roberta", "token_classification")
_UNIGRAM = Student("xlm-roberta", pieces="unigram")
_BYTES = Student("roberta", pieces="byte_bpe")
_ONE_FUNCTION = {"executorch": "the file has one function"}
FAULTS = (
    _fault("vocabulary_shifted", "ids from 1000 on are one too high", _tokenizer(vocabulary_shifted)),
    _fault("two_tokens_exchanged", "'the' and 'a' have each other's id", _tokenizer(two_tokens_exchanged)),
    _fault("lower_casing_lost", "the tokenizer keeps capitals", _tokenizer(lower_casing_lost)),
    _fault("accents_kept", "the tokenizer keeps accents", _tokenizer(accents_kept)),
    _fault("han_not_split", "the tokenizer does not split Chinese characters", _tokenizer(han_not_split)),
    _fault("special_tokens_missing", "[CLS] and [SEP] are missing", _tokenizer(special_tokens_missing)),
    _fault("pair_exchanged", "the second text of a pair comes first", _tokenizer(pair_exchanged)),
    _fault("second_text_has_type_zero", "both texts of a pair have type 0", _tokenizer(second_text_has_type_zero)),
    _fault("subwords_unmarked", "word pieces lose their ##", _tokenizer(subwords_unmarked)),
    _fault("labels_permuted", "labels.txt is sorted the other way", labels_permuted, _CLASSES),
    _fault(
        "signature_labels_permuted",
        "signature.json has the labels in another order",
        _signature(signature_labels_permuted),
        _CLASSES,
    ),
    _fault("padding_id_wrong", "signature.json pads with id 1", _signature(padding_id_wrong)),
    _fault(
        "longest_length_off",
        "signature.json says one token less",
        _signature(longest_length_off),
        stops="does not fit|takes|it has to be int32",
    ),
    _fault(
        "functions_exchanged",
        "a length's entry in signature.json points to the other length's function",
        _signature(functions_exchanged),
        cells=_FIXED,
        not_for=_ONE_FUNCTION,
        stops="takes|shape|length|Failed to invoke",
    ),
    _fault("golden_row_edited", "a golden row has another output", golden_row_edited),
    _fault(
        "byte_flipped",
        "one bit of the file flipped after it was made",
        byte_flipped,
        level="manifest",
        cells=EVERYWHERE,
        stops="was changed after it was made",
    ),
    _fault(
        "tokenizer_replaced",
        "the tokenizer was exchanged after it was made",
        tokenizer_replaced,
        level="manifest",
        stops="was changed after it was made",
    ),
)
OF_VECTORS = (
    _fault(
        "vector_scales_permuted",
        "signature.json has each dimension's int8 scale at the next dimension",
        _signature(vector_scales_permuted),
    ),
    _fault("space_of_another", "signature.json has another vector space's id", _signature(space_of_another)),
)
OF_STUDENTS = (
    _fault("normaliser_lost", "SentencePiece's normaliser is lost", _tokenizer(normaliser_lost), _UNIGRAM),
    _fault("scores_lost", "all unigram pieces have one score", _tokenizer(scores_lost), _UNIGRAM),
    _fault("fairseq_offset_lost", "SentencePiece ids are one too low", _tokenizer(fairseq_offset_lost), _UNIGRAM),
    _fault("merges_reversed", "byte-level merges are in the opposite order", _tokenizer(merges_reversed), _BYTES),
    _fault("space_put_first", "a space is put before each text", _tokenizer(space_put_first), _BYTES),
    _fault("one_separator", "RoBERTa's pairs have one separator instead of two", _tokenizer(one_separator), _BYTES),
    _fault("tag_names_permuted", "labels.txt has the tags in another order", labels_permuted, _TAGS),
)
"""Faults of tokenizers and labels that only some students have."""
