"""Checkpoints with wrong config.json, weights or tokenizer, given to `student`, which loads them."""

import json
import math
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from conftest import recipe_file

from abuse.bad import FINE, LITERT, SOURCE, Bad, Write

Change = Callable[[Path], object]
_FIELDS: dict[str, tuple[Any, ...]] = {
    "model_type": (None, 3, "gpt2", "", [], "BERT"),
    "architectures": (3, "BertModel", [], ["GPT2Model"], [3], None),
    "hidden_size": (None, 0, -64, 63, 128, "64", 64.5, 10**12, True, [64]),
    "num_hidden_layers": (None, 0, -1, 1, 3, 2.5, "two", 10**9),
    "num_attention_heads": (None, 0, -2, 3, 65, "two", 10**9),
    "intermediate_size": (0, -1, 7, "many", 10**12),
    "vocab_size": (None, 0, -1, 5, 30_000, "all", 10**12),
    "max_position_embeddings": (None, 0, -1, 4, 10**12, "512", 511.5),
    "type_vocab_size": (0, -1, 1, 3, "two"),
    "hidden_act": (None, 3, "no-such", "", [], "GELU"),
    "layer_norm_eps": (None, -1.0, "small", math.nan, math.inf, 0.0, 1e30),
    "initializer_range": (-1.0, "x"),
    "hidden_dropout_prob": (2.0, "x", -0.5),
    "attention_probs_dropout_prob": (2.0, "x"),
    "pad_token_id": (None, -5, 10**9, "0", 0.5, [0]),
    "position_embedding_type": ("relative_key", "no-such", 3),
    "is_decoder": (True, "yes"),
    "add_cross_attention": (True,),
    "id2label": (3, "x", {"0": 1}, {"x": "a"}, {"-1": "a"}, [], {"0": "a", "5": "b"}),
    "torch_dtype": ("float99", 3, "complex64"),
    "quantization_config": ({"quant_method": "no-such"}, 3, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "auto_map": ({"AutoModel": "evil.Model"}, 3),
    "transformers_version": (3, "no version", []),
    "problem_type": ("no-such", 3),
}
_ODD_BUT_FINE = {
    "architectures", "initializer_range", "hidden_dropout_prob", "attention_probs_dropout_prob", "torch_dtype",
    "transformers_version", "problem_type", "id2label", "auto_map", "pad_token_id", "hidden_act",
    "num_attention_heads", "vocab_size", "type_vocab_size", "max_position_embeddings", "intermediate_size",
    "num_hidden_layers", "hidden_size",
}  # fmt: skip
"""Fields of which some wrong values change nothing in what is computed, or have a default of their class."""
_LEFT_OUT_IS_FINE = ("layer_norm_eps",)
"""Fields that may be left out, and have to be right where they are there."""


def cases(seed: int, *, each: int) -> Iterator[Bad]:
    """Yield checkpoints that are not what they say, so many values for each field of config.json."""
    for name, values in _FIELDS.items():
        draw = random.Random(f"{seed}-config-{name}")
        for value in draw.sample(values, min(each, len(values))):
            fine = name in _ODD_BUT_FINE or (value is None and name in _LEFT_OUT_IS_FINE)
            codes = FINE if fine else frozenset({2})
            words = (name, "config.json", "config", "checkpoint", "model.safetensors", "source")
            yield Bad("checkpoint", f"config.json, {name} = {value!r}", _student(_config(name, value)), words, codes)
    for said, change, fine in (*_weights(seed), *_tokenizers(), *_others()):
        files = ("model.safetensors", "tokenizer", "config.json", "source", "weights")
        yield Bad("checkpoint", said, _student(change), files, FINE if fine else frozenset({2}))


def _student(change: Change) -> Write:
    def write(folder: Path) -> list[str]:
        for path in (folder / "source").iterdir():
            # The good one's files are links to those of others.
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(content)
        change(folder / "source")
        recipe_file(folder, student=SOURCE, targets=LITERT, convert={"sequence_lengths": [8]})
        return ["student", "recipe.toml"]

    return write


def _config(name: str, value: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        found = json.loads(path.read_text()) | {name: value}
        path.write_text(json.dumps({key: one for key, one in found.items() if one is not None}))

    return change


# --- weights -----------------------------------------------------------------------------------------------------


def _weights(seed: int) -> Iterator[tuple[str, Change, bool]]:
    draw = random.Random(f"{seed}-weights")
    for _ in range(6):
        at = draw.random()
        yield f"weights cut off at {at:.3f}", _cut(at), False
    for size in (0, 1, 7, 8, 2**31, 2**63, 2**64 - 1):
        yield f"weights whose header has {size} bytes", _header_size(size), False
    yield "weights with a byte too many", _appended, False
    yield "weights whose header is no JSON", _header(lambda header: b"no JSON" + b" " * 57), False
    yield "weights whose header is a list", _header(lambda header: b"[]" + b" " * 6), False
    for what, edit in _ENTRIES.items():
        # A key that nobody reads says nothing wrong.
        yield f"weights, one tensor with {what}", _header(_entry(edit)), "evil" in edit
    yield "weights with metadata that is a list", _header(_metadata([1])), False
    yield "weights of another format", _header(_metadata({"format": "flax"})), True
    for value in (math.nan, math.inf, -math.inf):
        yield f"weights with {value}", _filled(value), False
    yield "weights that are all zero", _filled(0.0), True
    yield "weights of 1e38", _filled(1e38), True


_ENTRIES: dict[str, dict[str, Any]] = {
    "another shape": {"shape": [3, 3]},
    "a negative shape": {"shape": [-1, 64]},
    "a shape of nothing": {"shape": [0]},
    "a shape beyond all": {"shape": [2**62, 8]},
    "a shape of texts": {"shape": ["64"]},
    "a type that does not exist": {"dtype": "F99"},
    "whole numbers": {"dtype": "I32"},
    "truth values": {"dtype": "BOOL"},
    "no type": {"dtype": None},
    "places beyond the end": {"data_offsets": [10**12, 10**12 + 4]},
    "places that run backwards": {"data_offsets": [400, 4]},
    "places that are negative": {"data_offsets": [-4, 0]},
    "places of another tensor": {"data_offsets": [0, 256]},
    "one place": {"data_offsets": [0]},
    "a key too many": {"evil": 1},
}


def _split(path: Path) -> tuple[bytes, bytes]:
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    return content[8 : 8 + size], content[8 + size :]


def _header(edit: Callable[[bytes], bytes]) -> Change:
    def change(folder: Path) -> None:
        header, rest = _split(folder / "model.safetensors")
        new = edit(header)
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(new)) + new + rest)

    return change


def _entry(edit: dict[str, Any]) -> Callable[[bytes], bytes]:
    def change(header: bytes) -> bytes:
        found = json.loads(header)
        name = next(name for name in sorted(found) if name.endswith("attention.output.LayerNorm.bias"))
        found[name] = {key: value for key, value in (found[name] | edit).items() if value is not None}
        return json.dumps(found).encode()

    return change


def _metadata(value: Any) -> Callable[[bytes], bytes]:
    return lambda header: json.dumps(json.loads(header) | {"__metadata__": value}).encode()


def _cut(at: float) -> Change:
    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[: int(at * path.stat().st_size)])

    return change


def _header_size(size: int) -> Change:
    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(struct.pack("<Q", size) + path.read_bytes()[8:])

    return change


def _appended(folder: Path) -> None:
    with (folder / "model.safetensors").open("ab") as sink:
        sink.write(b"x")


def _filled(value: float) -> Change:
    def change(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        tensors = load_file(folder / "model.safetensors")
        name = next(name for name in sorted(tensors) if name.endswith("attention.output.LayerNorm.weight"))
        tensors[name].fill_(value)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return change


# --- tokenizers and what lies beside -----------------------------------------------------------------------------


def _tokenizers() -> Iterator[tuple[str, Change, bool]]:
    contents: dict[str, bytes] = {
        "nothing": b"", "half": b'{"version": "1.0", "model"', "a list": b"[]", "a number": b"3", "null": b"null",
        "noise": bytes(range(256)), "no model": b'{"version": "1.0"}', "UTF-16": "{}".encode("utf-16"),
        "nested beyond measure": b"[" * 50_000, "a model that does not exist": b'{"model": {"type": "Evil"}}',
    }  # fmt: skip
    for name, content in contents.items():
        yield f"tokenizer.json with {name}", _file("tokenizer.json", content), False
    edits: dict[str, Callable[[dict[str, Any]], object]] = {
        "an id below zero": lambda one: one["model"]["vocab"].update({"x1": -1}),
        "an id beyond the table": lambda one: one["model"]["vocab"].update({"x1": 10**6}),
        "an id beyond 32 bits": lambda one: one["model"]["vocab"].update({"x1": 2**40}),
        "an id that is a text": lambda one: one["model"]["vocab"].update({"x1": "7"}),
        "no words": lambda one: one["model"].update(vocab={}),
        "words in a list": lambda one: one["model"].update(vocab=["a"]),
        "no unknown token": lambda one: one["model"].pop("unk_token"),
        "an unknown token that is not there": lambda one: one["model"].update(unk_token="[NONE]"),
        "added tokens that are a number": lambda one: one.update(added_tokens=3),
        "an added token beyond the table": lambda one: one["added_tokens"].append(
            one["added_tokens"][0] | {"id": 10**6, "content": "[BIG]"}
        ),
        "a normalizer that does not exist": lambda one: one.update(normalizer={"type": "Evil"}),
        "a template without tokens": lambda one: one.update(post_processor={"type": "TemplateProcessing"}),
        "truncation to nothing": lambda one: one.update(
            truncation={"max_length": 0, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
        ),
    }
    # A tokenizer without a word for some text is a poor one, not a broken one.
    odd = {"no unknown token", "truncation to nothing", "no words"}
    for name, edit in edits.items():
        yield f"tokenizer.json with {name}", _tokenizer(edit), name in odd
    yield "no tokenizer", lambda folder: (folder / "tokenizer.json").unlink(), False
    settings = {"nothing": b"", "a list": b"[]", "noise": bytes(range(256)), "a class of its own": (
        b'{"auto_map": {"AutoTokenizer": ["evil.T", null]}, "tokenizer_class": "Evil"}'
    ), "a length below zero": b'{"model_max_length": -4}'}  # fmt: skip
    for name, content in settings.items():
        yield f"tokenizer_config.json with {name}", _file("tokenizer_config.json", content), True


def _tokenizer(edit: Callable[[dict[str, Any]], object]) -> Change:
    def change(folder: Path) -> None:
        found = json.loads((folder / "tokenizer.json").read_bytes())
        edit(found)
        (folder / "tokenizer.json").write_text(json.dumps(found))

    return change


def _others() -> Iterator[tuple[str, Change, bool]]:
    for name, content in {
        "nothing": b"", "half": b'{"model_type": "be', "a list": b"[]", "null": b"null", "a text": b'"bert"',
        "noise": bytes(range(256)), "UTF-16": '{"model_type": "bert"}'.encode("utf-16"), "[s": b"[" * 99_999,
    }.items():  # fmt: skip
        yield f"config.json with {name}", _file("config.json", content), False
    for name, content in {"a number": b"3", "noise": bytes(range(256)), "modules of code": (
        b'[{"idx": 0, "name": "0", "path": "", "type": "evil.Module"}]'
    ), "no types": b"[{}]", "half": b"["}.items():  # fmt: skip
        yield f"modules.json with {name}", _file("modules.json", content), False
    yield "a folder with code", _file("modeling_evil.py", b"raise SystemExit(7)"), True
    yield "weights as a pickle beside", _file("pytorch_model.bin", b"\x80\x04."), True


def _file(name: str, content: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(content)
