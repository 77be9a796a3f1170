"""Shipped folders, whole and spoilt, that both cores have to read or refuse with the same reason."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from docs.schemas import LATER
from pipeline import artifact
from pipeline.artifact import FileEntry
from pipeline.formats.signature import Function, Signature, Tensor
from pipeline.ship.placing import Entry, Index, ShippedModel
from pipeline.student.golden import TEXTS, Golden, GoldenRow
from pipeline.text import binary
from pipeline.text.encoding import Encoder
from pipeline.vectors.contract import Vectors

MODELS = ("mood/litert-int8_dynamic", "words/executorch-fp32")
"""A classifier with fixed lengths, and an embedding of any length, whose tokenizer has its binary form beside it."""
_LABELS = ("negative", "neutral", "positive")
_MAX_LENGTH = 64
_PROMPTS = {"query": "query: ", "document": "Represent this caf\u00e9", "nothing": ""}
"""One ends in a space, one runs into the text behind it, and one is as saved models have it that need none."""
_VECTORS: dict[str, Any] = {
    "space": "b1946ac92492d234", "width": 8, "unit_length": True, "similarity": "cosine", "widths": [8, 4],
    "scales": [0.01, 0.02, 1e-3, 0.5, 0.01, 0.01, 0.01, 2.0],
}  # fmt: skip
_ASKED = (None, "", *_PROMPTS)


FILES = ("model.tflite", "package/Data/weights.bin", "tokenizer.json", "signature.json", "golden.json", "shipped.json")
"""What lies in the first model's folder."""


@dataclass(frozen=True)
class Case:
    """One folder, and what becomes of it."""

    name: str
    spoil: Callable[[Path], None]
    error: str | None = None
    """A piece of the message where nothing can be read."""
    broken: dict[str, str] = field(default_factory=dict)
    """By model: a piece of the reason why it cannot be used; the others can."""
    fails: dict[str, str] = field(default_factory=dict)
    """By file: a piece of the message when it is read."""
    lists: bool = True
    """Whether `shipped.json` lists the files as they are after all, so that what is in them is what is wrong."""


def write(home: Path, tokenizer: Path) -> int:
    """Write every case with `cases.json`, and return how many there are."""
    shutil.rmtree(home, ignore_errors=True)
    good = home / "whole"
    write_models(good, tokenizer)
    rows = []
    for case in CASES:
        folder = home / case.name
        if folder != good:
            shutil.copytree(good, folder)
        case.spoil(folder)
        if case.lists:
            _list_files(folder)
        usable = [] if case.error else [name for name in MODELS if name not in case.broken]
        rows.append(
            {"folder": case.name, "error": case.error, "broken": case.broken, "fails": case.fails, "usable": usable}
        )
    prompts = list(_prompted(tokenizer))
    (home / "cases.json").write_text(json.dumps({"cases": rows, "prompts": prompts}), encoding="utf-8")
    return len(rows)


def write_models(folder: Path, tokenizer: Path | None = None) -> None:
    """Write an app's folder with two models; without a tokenizer something small stands in its place, to be hashed."""
    entries = []
    for place, signature in zip(MODELS, (classifier(), embedding()), strict=True):
        model = folder / place
        (model / "package" / "Data").mkdir(parents=True)
        (model / signature.file).write_bytes(place.encode() * 99)
        (model / "package" / "Data" / "weights.bin").write_bytes(b"weights" * 99)
        if tokenizer is not None:
            shutil.copyfile(tokenizer, model / "tokenizer.json")
            if place == MODELS[1]:
                document = json.loads(tokenizer.read_bytes())
                (model / binary.BINARY).write_bytes(binary.pack(document))
            rows = Tokenizer.from_file(str(tokenizer)).get_vocab_size()
            (model / "config.json").write_text(json.dumps({"vocab_size": rows}), encoding="utf-8")
        else:
            (model / "tokenizer.json").write_text('{"version": "1.0"}', encoding="utf-8")
        (model / "signature.json").write_text(signature.model_dump_json(), encoding="utf-8")
        golden = _golden(signature, tokenizer) if tokenizer is not None else None
        (model / "golden.json").write_text(golden.model_dump_json() if golden else '{"rows": []}', encoding="utf-8")
        said = shipped(place)
        (model / "shipped.json").write_text(said.model_dump_json(), encoding="utf-8")
        entries.append(Entry(folder=place, **said.model_dump(include=set(Entry.model_fields))))
    (folder / "models.json").write_text(Index(models=entries).model_dump_json(), encoding="utf-8")
    _list_files(folder)


def shipped(place: str) -> ShippedModel:
    """Return what is said beside a model; no file is listed yet."""
    signature = dict(zip(MODELS, (classifier(), embedding()), strict=True))[place]
    recipe, target = place.split("/")
    return ShippedModel(
        recipe=recipe, target=target, backend=signature.backend, scheme=signature.scheme, task=signature.task,
        verdict="passed", reasons=[], evaluator="LiteRT", random_weights=place == MODELS[1], licence="Apache-2.0",
        digest=recipe[0] * 64, files=[FileEntry(path="model.tflite", sha256="0" * 64, bytes=1)], bytes=1 << 32,
    )  # fmt: skip


def _list_files(folder: Path) -> None:
    """Bring the lists of files in `shipped.json` up to date."""
    for file in folder.glob("*/*/shipped.json"):
        said = json.loads(file.read_text(encoding="utf-8"))
        paths = [path for path in sorted(file.parent.rglob("*")) if path.is_file() and path != file]
        said["files"] = [
            {
                "path": path.relative_to(file.parent).as_posix(),
                "sha256": artifact.sha256_file(path),
                "bytes": path.stat().st_size,
            }
            for path in paths
        ]
        file.write_text(json.dumps(said), encoding="utf-8")


def _function(name: str, length: tuple[int, int], output: Tensor) -> Function:
    size = length[0] if length[0] == length[1] else None
    names = ("attention_mask", "input_ids", "token_type_ids")
    inputs = tuple(Tensor(name=one, dtype="int32", shape=(1, size)) for one in names)
    return Function(name=name, min_length=length[0], max_length=length[1], inputs=inputs, outputs=(output,))


def classifier() -> Signature:
    """Return the signature of a file with fixed lengths."""
    output = Tensor(name="logits", dtype="float32", shape=(1, len(_LABELS)))
    return Signature(
        backend="litert", scheme="int8_dynamic", task="classification", output_kind="logits", file="model.tflite",
        minimum_runtime="1.2.0", pad_token_id=0, labels=_LABELS, parameters=1000,
        functions=tuple(_function(f"seq_{length}", (length, length), output) for length in (16, 32, _MAX_LENGTH)),
    )  # fmt: skip


def embedding() -> Signature:
    """Return the signature of a file that takes any length."""
    output = Tensor(name="sentence_embedding", dtype="float32", shape=(1, 8))
    return Signature(
        backend="executorch", scheme="fp32", task="embedding", output_kind="embedding", file="model.pte",
        minimum_runtime="1.4.1", pad_token_id=0, labels=None, parameters=1000,
        prompts=_PROMPTS, default_prompt="query", include_prompt=False, vectors=Vectors(**_VECTORS),
        functions=(_function("forward", (1, _MAX_LENGTH), output),),
    )  # fmt: skip


def _golden(signature: Signature, tokenizer: Path) -> Golden:
    """Return the golden texts with the reference's ids; no file was run for their outputs, and none is compared."""
    encoder = Encoder(Tokenizer.from_file(str(tokenizer)), _MAX_LENGTH)
    samples: list[tuple[str, str | None, str | None]] = [(first, second, None) for first, second in TEXTS]
    samples += [(TEXTS[0][0], None, name) for name in signature.prompts]
    rows = []
    for first, second, prompt in samples:
        row = encoder.encode((signature.prompts[prompt] if prompt else "") + first, second)
        rows.append(
            GoldenRow(
                first=first, second=second, window=None, prompt=prompt, input_ids=list(row.ids),
                token_type_ids=list(row.types), output=[0.5, -1.25e-7, 3.0],
            )
        )  # fmt: skip
    return Golden(task=signature.task, max_length=_MAX_LENGTH, min_cosine=0.96, min_sqnr_db=None, rows=rows)


def _prompted(tokenizer: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of texts behind the prompts of the embedding model, with what may be pooled as mask.

    Source: sentence-transformers 5, `_get_prompt_length` and `Pooling`: the tokens of the prompt alone are left out,
    all but the special token at its end.
    """
    library = Tokenizer.from_file(str(tokenizer))
    library.enable_truncation(_MAX_LENGTH)
    signature = embedding()
    for text, _ in TEXTS:
        for prompt in _ASKED:
            name = signature.default_prompt if prompt is None else prompt
            before = signature.prompts[name] if name else ""
            row, alone = library.encode(before + text), library.encode(before)
            unpooled = len(alone.ids) - alone.special_tokens_mask[-1] if before else 0
            mask = [2] * unpooled + [1] * (len(row.ids) - unpooled)
            yield {"text": text, "prompt": prompt, "ids": row.ids, "mask": mask}


def _edit(file_name: str, /, **fields: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / file_name
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | fields), encoding="utf-8")

    return spoil


def _drop(file_name: str, *places: tuple[str | int, ...]) -> Callable[[Path], None]:
    """Leave fields out, as older files do."""

    def spoil(folder: Path) -> None:
        path = folder / file_name
        document = json.loads(path.read_text(encoding="utf-8"))
        for *parents, name in places:
            here = document
            for one in parents:
                here = here[one]
            del here[name]
        path.write_text(json.dumps(document), encoding="utf-8")

    return spoil


def _edit_entry(**fields: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / "models.json"
        index = json.loads(path.read_text())
        index["models"][0] |= fields
        path.write_text(json.dumps(index), encoding="utf-8")

    return spoil


def _edit_function(**fields: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / MODELS[0] / "signature.json"
        signature = json.loads(path.read_text())
        signature["functions"][1] |= fields
        path.write_text(json.dumps(signature), encoding="utf-8")

    return spoil


def _cut(file: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        content = (folder / file).read_bytes()
        (folder / file).write_bytes(content[: len(content) // 2])

    return spoil


def _remove(file: str) -> Callable[[Path], None]:
    return lambda folder: (folder / file).unlink()


def _set(file: str, place: int, number: int) -> Callable[[Path], None]:
    """Write a number of 32 bits at a place of a file; a negative place counts from its end."""

    def spoil(folder: Path) -> None:
        content = bytearray((folder / file).read_bytes())
        first = place % len(content)
        content[first : first + 4] = number.to_bytes(4, "little")
        (folder / file).write_bytes(content)

    return spoil


def _lose_children(file: str) -> Callable[[Path], None]:
    """Let the last child of a `tokenizer.bin` end beyond all nodes."""

    def spoil(folder: Path) -> None:
        nodes = int.from_bytes((folder / file).read_bytes()[16:20], "little")
        _set(file, -4 * nodes - 4, 2**31)(folder)

    return spoil


def _link(file: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / file).rename(folder / "elsewhere.json")
        (folder / file).symlink_to("elsewhere.json")

    return spoil


def _pipe(file: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / file).unlink()
        os.mkfifo(folder / file)

    return spoil


def _fill(file: str, text: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / file).write_text(text, encoding="utf-8")

    return spoil


def _input(kind: str) -> dict[str, Any]:
    return {"name": "input_ids", "dtype": f"{kind}x", "shape": [1, 32]}


def _inputs_of(length: int) -> list[dict[str, Any]]:
    return [{"name": name, "dtype": "int32", "shape": [1, length]} for name in ("attention_mask", "input_ids")]


def _output(name: str) -> dict[str, Any]:
    return {"name": name, "dtype": "float32", "shape": [1, len(_LABELS)]}


_FIRST, _OTHER = MODELS
_EMBEDDING = f"{_OTHER}/signature.json"
_SIGNATURE, _SHIPPED = f"{_FIRST}/signature.json", f"{_FIRST}/shipped.json"
_TOKENIZER, _GOLDEN = f"{_FIRST}/tokenizer.json", f"{_FIRST}/golden.json"
_CONFIG = f"{_FIRST}/config.json"
_BINARY = f"{_OTHER}/{binary.BINARY}"
CASES = (
    Case("whole", lambda folder: None),
    Case("index_missing", _remove("models.json"), error="models.json: it is missing"),
    Case("index_is_link", _link("models.json"), error="models.json: it is missing"),
    Case("index_is_pipe", _pipe("models.json"), error="models.json: it is missing"),
    Case("index_cut", _cut("models.json"), error="models.json: it cannot be read"),
    Case(
        "index_newer", _edit("models.json", schema_version=2), error="its schema_version is 2, and this version reads 1"
    ),
    Case("index_no_version", _edit("models.json", schema_version=None), error="schema_version is"),
    Case("index_no_list", _edit("models.json", models={}), error="models is"),
    Case("index_leads_out", _edit_entry(folder="../litert-fp32"), error="folder is ../litert-fp32"),
    Case("index_leads_to_root", _edit_entry(folder="/etc"), error="folder is /etc"),
    Case("index_of_text", _edit_entry(bytes="12"), error="bytes is"),
    Case("index_nested", _fill("models.json", "[" * 100_000), error="models.json: it cannot be read"),
    Case("index_version_of_true", _edit("models.json", schema_version=True), error="schema_version is true"),
    Case(
        "index_version_of_fraction", _fill("models.json", '{"schema_version": 1.0, "models": []}'), error="whole number"
    ),
    Case("index_more", _edit("models.json", more=1), error="more is a field that this version does not know"),
    Case(
        "index_key_twice",
        _fill("models.json", '{"schema_version": 1, "models": [], "models": []}'),
        error="models: the key is there more than once",
    ),
    Case("index_bare_word", _fill("models.json", '{"schema_version": 1, "models": none}'), error="it cannot be read"),
    Case("signature_missing", _remove(_SIGNATURE), broken={_FIRST: "signature.json: it is missing"}),
    Case("signature_cut", _cut(_SIGNATURE), broken={_FIRST: "signature.json: it cannot be read"}),
    Case("signature_empty", _fill(_SIGNATURE, ""), broken={_FIRST: "signature.json: it cannot be read"}),
    Case("signature_list", _fill(_SIGNATURE, "[]"), broken={_FIRST: "it holds no object"}),
    Case("signature_newer", _edit(_SIGNATURE, schema_version=9), broken={_FIRST: "its schema_version is 9"}),
    Case("signature_leads_out", _edit(_SIGNATURE, file="../model.tflite"), broken={_FIRST: "file is ../model.tflite"}),
    Case("signature_no_functions", _edit(_SIGNATURE, functions=[]), broken={_FIRST: "functions have the lengths []"}),
    Case("signature_padding", _edit(_SIGNATURE, pad_token_id=-1), broken={_FIRST: "pad_token_id is -1"}),
    Case(
        "signature_labels", _edit(_SIGNATURE, labels=["a", "b"]), broken={_FIRST: "labels: there are 2 for 3 outputs"}
    ),
    Case("signature_label_kind", _edit(_SIGNATURE, labels=["a", "b", 3]), broken={_FIRST: "labels.2 is 3"}),
    Case(
        "signature_task",
        _edit(_SIGNATURE, task="embedding"),
        broken={_FIRST: "task is classification, and signature.json says embedding"},
    ),
    Case("signature_older", _drop(_SIGNATURE, *((name,) for name in LATER["Signature"]))),
    Case("golden_older", _drop(_GOLDEN, *(("rows", 0, name) for name in LATER["GoldenRow"]))),
    Case(
        "prompt_unknown",
        _edit(_EMBEDDING, default_prompt="other"),
        broken={_OTHER: "default_prompt is other, and prompts has [document, nothing, query]"},
    ),
    Case("prompt_of_number", _edit(_EMBEDDING, prompts={"query": 3}), broken={_OTHER: "prompts.query is 3"}),
    Case(
        "prompt_of_classifier",
        _edit(_SIGNATURE, prompts=_PROMPTS),
        broken={_FIRST: "prompts: output_kind logits takes none, and there are [document, nothing, query]"},
    ),
    Case("activation_unknown", _edit(_SIGNATURE, activation="tanh"), broken={_FIRST: "activation is"}),
    Case(
        "thresholds_of_one_label",
        _edit(_SIGNATURE, thresholds=[0.5, 0.5, 0.5]),
        broken={_FIRST: "thresholds: output_kind logits has none"},
    ),
    Case(
        "thresholds_too_few",
        _edit(_SIGNATURE, output_kind="multi_label", thresholds=[0.5]),
        broken={_FIRST: "thresholds: there are 1 for 3 labels"},
    ),
    Case(
        "values_without_names",
        _edit(_SIGNATURE, output_kind="values", labels=None),
        broken={_FIRST: "labels: there are 0 for 3 outputs"},
    ),
    # These are whole, and what both cores' tests of a student read.
    Case("vectors_none", _edit(_EMBEDDING, vectors=None)),
    Case(
        "vectors_of_no_space",
        _edit(_EMBEDDING, vectors=_VECTORS | {"space": "b1946ac92492d23X"}),
        broken={_OTHER: "vectors.space is"},
    ),
    Case(
        "vectors_wide",
        _edit(_EMBEDDING, vectors=_VECTORS | {"width": 4, "widths": [4], "scales": [1.0] * 4}),
        broken={_OTHER: "vectors: width is 4, and forward gives 8 numbers"},
    ),
    Case(
        "vectors_few_scales",
        _edit(_EMBEDDING, vectors=_VECTORS | {"scales": [1.0] * 7}),
        broken={_OTHER: "vectors: there are 7 scales for 8 numbers"},
    ),
    Case(
        "vectors_rise",
        _edit(_EMBEDDING, vectors=_VECTORS | {"widths": [8, 8]}),
        broken={_OTHER: "which have to fall from 8"},
    ),
    Case(
        "vectors_of_labels",
        _edit(_SIGNATURE, vectors=_VECTORS),
        broken={_FIRST: "vectors: output_kind logits has none"},
    ),
    Case("multi_label", _edit(_SIGNATURE, output_kind="multi_label", thresholds=[0.2, 0.9, 0.5])),
    Case("value", _edit(_SIGNATURE, output_kind="value", labels=None, activation="sigmoid")),
    Case("values", _edit(_SIGNATURE, output_kind="values", activation="sigmoid")),
    Case("lengths_fall", _edit_function(max_length=99, min_length=99), broken={_FIRST: "functions have the lengths"}),
    Case("length_of_nothing", _edit_function(min_length=0), broken={_FIRST: "seq_32 takes 0 to 32 tokens"}),
    Case("no_inputs", _edit_function(inputs=[]), broken={_FIRST: "seq_32 has the inputs []"}),
    Case("shipped_missing", _remove(_SHIPPED), broken={_FIRST: "shipped.json: it is missing"}),
    Case("shipped_of_another", _edit(_SHIPPED, digest="0"), broken={_FIRST: "it is of another model"}),
    Case("tokenizer_missing", _remove(_TOKENIZER), fails={_TOKENIZER: "tokenizer.json: it is missing"}),
    Case("tokenizer_cut", _cut(_TOKENIZER), fails={_TOKENIZER: "tokenizer.json: it cannot be read"}),
    Case("tokenizer_unknown", _edit(_TOKENIZER, normalizer={"type": "Nmt"}), fails={_TOKENIZER: "the normalizer Nmt"}),
    # The JSON beside it is whole, and read where there is nothing else.
    Case("binary_missing", _remove(_BINARY)),
    Case("binary_cut", _cut(_BINARY), fails={_BINARY: "and its head says"}),
    Case("binary_of_json", _fill(_BINARY, "{}" * 99), fails={_BINARY: "it is no such file"}),
    Case("binary_newer", _set(_BINARY, 8, 2), fails={_BINARY: "it is of version 2, and this app reads version 1"}),
    Case("binary_of_too_many", _set(_BINARY, 16, 2**32 - 1), fails={_BINARY: "and its head says"}),
    Case("binary_without_a_tree", _lose_children(_BINARY), fails={_BINARY: "its tokens are no tree"}),
    Case("binary_of_negative_ids", _set(_BINARY, -4, 2**31), fails={_BINARY: "its tokens are no tree"}),
    Case("binary_changed", _set(_BINARY, -4, 7), broken={_OTHER: f"(changed): {binary.BINARY}"}, lists=False),
    Case("config_missing", _remove(_CONFIG), fails={_CONFIG: "config.json: it is missing"}),
    Case("table_too_small", _edit(_CONFIG, vocab_size=3), fails={_CONFIG: "has 3 rows, and tokenizer.json gives"}),
    Case("golden_missing", _remove(_GOLDEN), fails={_GOLDEN: "golden.json: it is missing"}),
    Case("golden_bound", _edit(_GOLDEN, min_cosine="high"), fails={_GOLDEN: "min_cosine is"}),
    Case("golden_newer", _edit(_GOLDEN, schema_version=2), fails={_GOLDEN: "its schema_version is 2"}),
    Case("shipped_newer", _edit(_SHIPPED, schema_version=2), broken={_FIRST: "its schema_version is 2"}),
    Case("shipped_cut", _cut(_SHIPPED), broken={_FIRST: "shipped.json: it cannot be read"}, lists=False),
    Case("file_changed", _fill(f"{_FIRST}/model.tflite", "x"), broken={_FIRST: "(changed): model.tflite"}, lists=False),
    Case("file_missing", _remove(f"{_FIRST}/model.tflite"), broken={_FIRST: "(missing): model.tflite"}, lists=False),
    Case("file_added", _fill(f"{_FIRST}/more", "x"), broken={_FIRST: "(added): more"}, lists=False),
    Case("inputs_of_floats", _edit_function(inputs=[_input("float32")]), broken={_FIRST: "functions.1.inputs.0.dtype"}),
    Case("input_of_another_length", _edit_function(inputs=_inputs_of(99)), broken={_FIRST: "attention_mask is int32"}),
    Case("output_of_another_name", _edit_function(outputs=[_output("x")]), broken={_FIRST: "has the outputs"}),
    Case("golden_rows", _edit(_GOLDEN, rows=[{"first": "a"}]), fails={_GOLDEN: "rows.0.second is absent"}),
)
"""By name: what was done to a whole folder."""
