"""Data files that are malformed, texts and candidates that are odd."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w
from conftest import recipe_values

from abuse.bad import FINE, LITERT, SOURCE, Bad, Write, arguments

_TABLES: dict[str, tuple[str, str | bytes, bool]] = {
    "nothing": ("train.csv", "", False),
    "a header alone": ("train.csv", "text,label\n", False),
    "no header": ("train.csv", "good,0\nbad,1\n", False),
    "other columns": ("train.csv", "sentence,class\na,0\nb,1\n", False),
    "a column too many": ("train.csv", "text,label\na,0,x\nb,1\n", False),
    "a column too few": ("train.csv", "text,label\na\nb,1\n", False),
    "a column twice": ("train.csv", "text,text\na,0\n", False),
    "one label": ("train.csv", "text,label\na,0\nb,0\n", False),
    "an empty text": ("train.csv", "text,label\n,0\nb,1\n", False),
    "an empty label": ("train.csv", "text,label\na,\nb,1\n", False),
    "a quote left open": ("train.csv", 'text,label\n"a,0\nb,1\n', False),
    "semicolons": ("train.csv", "text;label\na;0\nb;1\n", False),
    "Latin-1": ("train.csv", "text,label\ncaf\xe9,0\nb,1\n".encode("latin-1"), False),
    "UTF-16": ("train.csv", "text,label\na,0\nb,1\n".encode("utf-16"), False),
    "a NUL": ("train.csv", b"text,label\na\0,0\nb,1\n", True),
    "noise": ("train.csv", bytes(range(128, 256)) * 50, False),
    "a field of a megabyte": ("train.csv", "text,label\n" + "x" * 1_000_000 + ",0\nb,1\n", True),
    "two hundred labels": ("train.csv", "text,label\n" + "".join(f"a{n},l{n}\n" for n in range(200)), True),
    "a byte order mark": ("train.csv", "\ufefftext,label\na,0\nb,1\n", True),
    "an ending that is not known": ("train.xls", "text,label\na,0\nb,1\n", False),
    "no ending": ("train", "text,label\na,0\nb,1\n", False),
    "tabs for commas": ("train.csv", "text\tlabel\na\t0\n", False),
    "commas for tabs": ("train.tsv", "text,label\na,0\n", False),
    "no JSON": ("train.jsonl", "text,label\n", False),
    "JSON, one list": ("train.jsonl", '[{"text": "a", "label": "0"}]\n', False),
    "JSON, a number a line": ("train.jsonl", "1\n2\n", False),
    "JSON, half a line": ("train.jsonl", '{"text": "a", "label": "0"}\n{"text": "b", "la', False),
    "JSON, a list for a text": ("train.jsonl", '{"text": ["a"], "label": "0"}\n', False),
    "JSON, null for a text": ("train.jsonl", '{"text": null, "label": "0"}\n', False),
    "JSON, an object for a label": ("train.jsonl", '{"text": "a", "label": {"x": 1}}\n', False),
    "JSON, nested ten thousand deep": ("train.jsonl", "[" * 10_000 + "]" * 10_000 + "\n", False),
    "JSON, half a character": (
        "train.jsonl",
        '{"text": "\\ud800", "label": "0"}\n{"text": "b", "label": "1"}\n',
        False,
    ),
    "JSON, NaN for a label": ("train.jsonl", '{"text": "a", "label": NaN}\n', False),
    "JSON, a number of 5000 digits": ("train.jsonl", '{"text": "a", "label": ' + "9" * 5000 + "}\n", False),
    "JSON, a key twice": ("train.jsonl", '{"text": "a", "text": "b", "label": "0"}\n{"text":"b","label":"1"}\n', True),
    "no parquet": ("train.parquet", b"PAR1 no parquet PAR1", False),
    "an empty parquet": ("train.parquet", b"", False),
}
_TAGGED: dict[str, tuple[str, str | bytes, bool]] = {
    "a word without a tag": ("train.conll", "Ada B-person\nran\n", False),
    "a tag that is none": ("train.conll", "Ada PERSON\nran O\n", False),
    "one tag": ("train.conll", "Ada O\nran O\n", False),
    "blank lines": ("train.conll", "\n\n\n", False),
    "noise": ("train.conll", bytes(range(256)) * 10, False),
    "a table": ("train.csv", "text,label\na,0\n", False),
}
_QUESTIONS: dict[str, tuple[str, str | bytes, bool]] = {
    "no JSON": ("train.json", "{", False),
    "a list": ("train.json", "[]", False),
    "no data": ("train.json", '{"data": []}', False),
    "data that is a number": ("train.json", '{"data": 3}', False),
    "paragraphs that are a text": ("train.json", '{"data": [{"paragraphs": "x"}]}', False),
    "an answer before the text": ("train.json", json.dumps({"data": [{"paragraphs": [{"context": "a b", "qas": [
        {"question": "q", "answers": [{"text": "b", "answer_start": -4}]}]}]}]}), False),
    "an answer elsewhere": ("train.json", json.dumps({"data": [{"paragraphs": [{"context": "a b", "qas": [
        {"question": "q", "answers": [{"text": "c", "answer_start": 0}]}]}]}]}), False),
    "an answer that is a number": ("train.json", json.dumps({"data": [{"paragraphs": [{"context": "a b", "qas": [
        {"question": "q", "answers": [{"text": 3, "answer_start": "x"}]}]}]}]}), False),
}  # fmt: skip
_TEXTS = {
    "nothing": ("", 2), "white space": (" \t\n", 2), "a NUL's sign": ("\u2400", 0), "controls alone": ("\x01\x02", 0),
    "half a character": (os.fsdecode(b"caf\xe9"), 0), "marks": ("e" + "\u0301" * 5000, 0), "an option": ("--", 2),
    "a megabyte's tenth": ("long " * 20_000, 0), "right to left": ("\u202eabc", 0),
    "a pair of flags": ("\U0001f1e9", 0),
    "an escape": ("\x1b[31mred\x1b]0;title\x07", 0),
}  # fmt: skip
_CANDIDATES: dict[str, tuple[bytes, int]] = {
    "nothing": (b"", 2), "blank lines": (b"\n \n", 2), "noise": (bytes(range(128, 256)), 2), "NULs": (b"a\0b\n", 0),
    "UTF-16": ("a\nb".encode("utf-16"), 2), "one line without an end": (b"a", 0),
    "Windows line ends": (b"a\r\nb\r\n", 0),
}  # fmt: skip


def cases(model: Path) -> Iterator[Bad]:
    """Yield malformed data, and odd texts for a converted model."""
    for task, rows in (
        ("classification", _TABLES), ("token_classification", _TAGGED), ("question_answering", _QUESTIONS)
    ):  # fmt: skip
        for name, (file, content, fine) in rows.items():
            for which in ("train_file", "dev_file"):
                said = f"{task}, {which}: {name}"
                codes = FINE if fine else frozenset({2})
                yield Bad("data", said, _training(task, which, file, content), (file, "train", "dev", "label"), codes)
    for name, make in (("a folder", os.mkdir), ("a pipe", os.mkfifo)):
        yield Bad("data", name, _place(make), ("train.csv",))
    for name, (text, code) in _TEXTS.items():
        given = arguments("predict", str(model), text)
        yield Bad("texts", f"predict: {name}", given, ("text", "argument", "TEXT"), frozenset({code}))
    for name, (content, code) in _CANDIDATES.items():
        yield Bad("texts", f"candidates: {name}", _among(model, content), ("candidates.txt",), frozenset({code}))


def _training(task: str, which: str, file: str, content: str | bytes) -> Write:
    def write(folder: Path) -> list[str]:
        good = {
            "classification": ("good.csv", "text,label\na,0\nb,1\n"),
            "token_classification": ("good.conll", "Ada B-person\nran O\n"),
            "question_answering": ("good.json", json.dumps({"data": [{"paragraphs": [{"context": "a b", "qas": [
                {"question": "q", "answers": [{"text": "b", "answer_start": 2}]}]}]}]})),
        }[task]  # fmt: skip
        (folder / good[0]).write_text(good[1])
        (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
        return _plan(folder, task, {"train_file": good[0], "dev_file": good[0], which: file})

    return write


def _plan(folder: Path, task: str, train: dict[str, Any]) -> list[str]:
    values = recipe_values(task=task, student={"source": "source"}, targets=LITERT, train=train)
    (folder / "recipe.toml").write_text(tomli_w.dumps(values | {"verify": {"datasets": ["none"]}}), encoding="utf-8")
    return ["plan", "recipe.toml"]


def _place(make: Any) -> Write:
    def write(folder: Path) -> list[str]:
        make(folder / "train.csv")
        return _plan(folder, "classification", {"train_file": "train.csv", "dev_file": "train.csv"})

    return write


def _among(model: Path, content: bytes) -> Write:
    def write(folder: Path) -> list[str]:
        (folder / "candidates.txt").write_bytes(content)
        return ["predict", str(model), "text", "--among", "candidates.txt"]

    return write


assert SOURCE
