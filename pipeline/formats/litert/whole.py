"""Check that a LiteRT file has only content that its graphs read, and metadata that the converter writes.

Content that nothing reads cannot be wrong, but it is shipped: a file of 24 MB has room for anything. These are the
rules that every conversion of ours keeps; a runtime takes files that break them, so sessions do not ask for them.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.formats.columns import Ints, Rows
from pipeline.formats.litert import bounds
from pipeline.formats.litert.scales import places

_DESCRIPTION = "MLIR Converted."
_METADATA = {
    "keep_stablehlo_constant": re.compile(rb"true"),
    # BATCH_MATMUL, which every encoder has, came with 2.3; GELU, the youngest of their operations, with 2.9; and tables
    # with a scale a row, where the converter puts them in, with 2.18.
    "min_runtime_version": re.compile(rb"2\.([3-9]\.0\0|18\.0)\0{10}"),
}
"""Content of the converter's metadata entries, each of which occurs once, by name."""
_DEFAULT, _ONLY = "serving_default", "main"
"""Name of the longest length's signature, and of the graph in a file with one signature."""
_PORTS = ("input_ids", "attention_mask", "token_type_ids", "start_logits", "end_logits")
"""Inputs and outputs in the order of a graph, see `Architecture.inputs` and the outputs of question answering."""
_MOST_NAME_BYTES = 160
"""Longest tensor name: one of `deduplicate.NAME_MAX_BYTES`, with a number that makes it unique."""
_ALIGNMENT_BYTES = 16
_INT8, _INT32 = 9, 2
_HEAD_BYTES = 8
"""Bytes of the root table's offset, and of the magic."""
Span = tuple[Ints, Ints]
"""Starts and ends of byte ranges."""


def check(file: Path) -> None:
    """Refuse a file that fails `bounds`, or that has content no conversion writes.

    Raises:
        ArtifactError: the first such content, in one line.
    """
    model = bounds.check(file)
    _check_read(model)
    _check_said(model)
    _check_order(model)
    _check_filled(model)


def _check_read(model: Rows) -> None:
    """Check that every tensor, buffer and operator code is read by something."""
    graphs, buffers = model["subgraphs"], model["buffers"]
    tensors, operations = graphs["tensors"], graphs["operators"]
    first = np.searchsorted(tensors.owner, np.arange(len(graphs)))
    read = np.zeros(len(tensors), bool)
    inputs = operations.vector("inputs")
    there = inputs.values >= 0
    read[first[operations.owner[inputs.owner[there]]] + inputs.values[there]] = True
    for name in ("inputs", "outputs"):
        ports = graphs.vector(name)
        read[first[ports.owner] + ports.values] = True
    _, scales, _ = places(tensors)
    read[scales] = True
    tensors.demand(read, "nothing reads it")
    _demand_named(model["operator_codes"], operations.number("opcode_index"))

    # Buffer 0 is empty by convention.
    _demand_named(buffers, [0], tensors.number("buffer"), model["metadata"].number("buffer"))
    outside = buffers.number("offset") > 1
    inside = buffers.vector("data").count
    buffers.demand(np.where(outside, inside, buffers.number("size")) == 0, "it has content in two places")
    buffers.demand((np.arange(len(buffers)) > 0) | ~outside & (inside == 0), "the empty buffer is not empty")

    quantization = tensors["quantization"]
    # A bias beside int8 products is of int32.
    integers = np.isin(tensors.number("type")[quantization.owner], (_INT8, _INT32))
    quantization.demand(integers | (quantization.vector("scale").count == 0), "it has scales, and is no integer")
    for name in ("min", "max"):
        quantization.demand(quantization.vector(name).count == 0, f"it has a list {name}, which nothing reads")
    for options in operations.members("builtin_options").values():
        for name, entry in options.columns.schema.tables[options.kind].items():
            if entry.kind.startswith("["):
                options.demand(~options.has(name), f"it has {name}, which no conversion writes")


def _demand_named(rows: Rows, *numbers: NDArray[np.generic] | list[int]) -> None:
    named = np.zeros(len(rows), bool)
    for one in numbers:
        named[np.asarray(one, np.int64)] = True
    rows.demand(named, "nothing reads it")


def _check_said(model: Rows) -> None:
    """Check the texts of a file: they are the converter's own, and say nothing about the model."""
    model.demand([text == _DESCRIPTION for text in model.texts("description")], f"it is not {_DESCRIPTION!r}")
    metadata, data = model["metadata"], model.columns.data
    content = model["buffers"].vector("data")
    said = dict(zip(metadata.texts("name"), metadata.number("buffer").tolist(), strict=True))
    model.demand(
        [len(metadata) == len(said) and said.keys() == _METADATA.keys()], "its metadata are not the converter's"
    )
    for name, buffer in said.items():
        start, count = int(content.start[buffer]), int(content.count[buffer])
        known = _METADATA[name].fullmatch(data[start : start + count].tobytes())
        model.demand([known is not None], f"its metadata {name} is nothing that the converter writes")
    for name in ("external_buffer_groups", "external_buffers"):
        model.demand([len(model[name]) == 0], f"it has {name}")
    model.demand(model.vector("metadata_buffer").count == 0, "it has metadata_buffer")
    tensors = model["subgraphs"]["tensors"]
    tensors.demand(tensors.vector("name").count <= _MOST_NAME_BYTES, f"its name has more than {_MOST_NAME_BYTES} bytes")


def _check_order(model: Rows) -> None:
    """Check that order and names agree: the longest length first, ids before the mask."""
    graphs, signatures = model["subgraphs"], model["signature_defs"]
    keys, names = signatures.texts("signature_key"), graphs.texts("name")
    signatures.demand(signatures.number("subgraph_index") == np.arange(len(keys)), "its graph has another number")
    model.demand([len(keys) == len(graphs) and keys[0] == _DEFAULT], f"{_DEFAULT} is not its first signature")
    graphs.demand(
        [name == key or (name == _ONLY and len(keys) == 1) for name, key in zip(names, keys, strict=True)],
        "its name is not its signature's",
    )
    tensors = graphs["tensors"]
    first = np.searchsorted(tensors.owner, np.arange(len(graphs))).tolist()
    of_tensor, shapes = tensors.texts("name"), tensors.vector("shape").rows()
    for kind, ending in (("inputs", ""), ("outputs", "_output")):
        entries = signatures[kind]
        places, said = entries.number("tensor_index").tolist(), entries.texts("name")
        for graph, ports in enumerate(graphs.vector(kind).rows()):
            rows = np.flatnonzero(entries.owner == graph).tolist()
            named = {places[row]: said[row] for row in rows}
            listed = [said[row] for row in rows]
            signatures.demand(
                [listed == sorted(set(listed)) and len(named) == len(listed)], f"its {kind} are not sorted"
            )
            ordered = [name for name in _PORTS if name in listed] if len(listed) > 1 else listed
            here = [named.get(port) for port in ports]
            graphs.demand([here == ordered], f"its {kind} are {here}, and in order they are {ordered}")
            for port, name in named.items():
                wanted = re.escape(f"{keys[graph]}_{name}{ending}")
                found = of_tensor[first[graph] + port]
                graphs.demand([re.fullmatch(rf"(\d+\|)?{wanted}", found)], f"its {name} is the tensor {found[:80]!r}")
    given = zip(first, graphs.vector("inputs").rows(), strict=True)
    lengths = [[shapes[start + port][-1:] for port in ports[:1]] for start, ports in given]
    model.demand([lengths == sorted(lengths, reverse=True)], "its longest length is not its first")


# --- bytes ------------------------------------------------------------------------------------------------------------


def _check_filled(model: Rows) -> None:
    """Check that gaps between the parts of a file are zero, and no longer than alignment needs."""
    data, buffers = model.columns.data, model["buffers"]
    offsets, sizes = (buffers.number(name).astype(np.int64) for name in ("offset", "size"))
    zero, end = np.zeros(1, np.int64), np.array([len(data)])
    spans = [(zero, zero + _HEAD_BYTES), (offsets[offsets > 1], (offsets + sizes)[offsets > 1]), (end, end)]
    spans += _spans(model)
    starts, ends = (np.concatenate(list(part)) for part in zip(*spans, strict=True))
    order = np.argsort(starts, kind="stable")
    starts, reached = starts[order][1:], np.maximum.accumulate(ends[order])[:-1]
    gaps = np.flatnonzero(starts > reached)
    for low, high in zip(reached[gaps].tolist(), starts[gaps].tolist(), strict=True):
        few = high - low < _ALIGNMENT_BYTES and not data[low:high].any()
        model.demand([few], f"nothing reads the {high - low} bytes from byte {low} on")


def _spans(rows: Rows) -> Iterator[Span]:
    """Yield the byte ranges of tables, field by field, and of everything below them."""
    if not len(rows):
        return
    schema, gather = rows.columns.schema, rows.columns.gather
    fields = schema.tables[rows.kind]
    table = rows.at - gather(rows.at, "<i4")
    listed = gather(table, "<u2").astype(np.int64)
    yield rows.at, rows.at + 4
    # A vtable may be longer than the schema's, whose last field is read last.
    yield table, table + np.minimum(listed, max((entry.slot + 2 for entry in fields.values()), default=4))
    for name, entry in fields.items():
        known = np.flatnonzero(listed > entry.slot)
        offsets = gather(table[known] + entry.slot, "<u2").astype(np.int64)
        at = (rows.at[known] + offsets)[offsets > 0]
        one = entry.kind.strip("[]")
        code = schema.scalar(one)
        width = np.dtype(code).itemsize if code else 4
        if code and one == entry.kind:
            yield at, at + width
            continue
        yield at, at + 4
        if one != entry.kind or one == "string":
            target = at + gather(at, "<u4")
            count = gather(target, "<u4").astype(np.int64)
            # A string ends in a zero byte, which is not counted.
            yield target, target + 4 + (count + 1 if entry.kind == "string" else width * count)
        if not code and one != "string":
            below = rows.members(name).values() if one in schema.unions else [rows[name]]
            for each in below:
                yield from _spans(each)
