"""Check the payloads of XNNPACK's delegates, see `bounds`: the runtime verifies none of them.

A payload is a header of 30 bytes, a flatbuffer of values and nodes, and constants, which newer files keep in named
segments of the program. Source: executorch/backends/xnnpack/serialization/xnnpack_graph_serialize.py.
"""

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipeline.formats.columns import Columns, Ints, Rows
from pipeline.formats.executorch import schemas, unread

_MAGIC = b"XH00"
_HEADER_BYTES = 30
_HEAD = 8
"""Bytes before the graph's tables: the offset of its root, and its identifier."""
_ALIGNMENT = 64
"""Largest alignment of a payload's parts."""
_IDENTIFIERS = (b"XN00", b"XN01")
_NONE = 2**32 - 1
"""Id of an absent value."""
_NAMED = 2**64 - 1
"""Offset of a constant that is stored under a name."""
_BYTES = {1: 4, 2: 2, 3: 1, 4: 1, 5: 4, 6: 1, 7: 4, 8: 0.5, 9: 1, 10: 0.5, 11: 1, 12: 4, 13: 4, 14: 2}
"""Bytes of an element by `XNNDatatype`."""
_BLOCKS, _BLOCK = 10, 32
"""`XNNDatatype` of 4-bit blocks, and the divisor of a block's columns."""
_MOST_AXES = 6
"""`XNN_MAX_TENSOR_DIMS`."""
_MOST_BYTES = 2.0**32
_INPUT, _OUTPUT = 1, 2
"""Flags of a value that is an input or an output of the delegate."""
_BY_AXIS = ("perm", "new_shape", "offsets", "sizes")
"""Fields of nodes with a number for each axis."""


def check(
    columns: Columns,
    starts: Ints,
    ends: Ints,
    named: Mapping[str, int],
    segments: tuple[Ints, Ints],
    calls: list[tuple[int, list[int]]],
) -> frozenset[str]:
    """Check the payloads between `starts` and `ends`, and return the names of the constants that they read.

    Args:
        columns: the file.
        starts: start of each payload.
        ends: end of each payload.
        named: segment of each named constant.
        segments: start and end of each segment of the program.
        calls: for each call of a delegate, the delegate's index and the arguments.

    Raises:
        ArtifactError: an offset or index leads outside, or to nothing.
    """
    if not len(starts):
        return frozenset()
    columns.demand(ends - starts >= _HEADER_BYTES, "delegates", "its payload is too short")
    magic = columns.gather(starts + 4, "<u4") == int.from_bytes(_MAGIC, "little")
    columns.demand(magic, "delegates", f"its payload does not begin with {_MAGIC!r}")
    columns.demand(
        columns.gather(starts + 8, "<u2") == _HEADER_BYTES, "delegates", "its payload's header has another size"
    )
    low = starts + columns.gather(starts + 10, "<u4")
    high = low + columns.gather(starts + 14, "<u4")
    data = starts + columns.gather(starts + 18, "<u4")
    size = columns.gather(starts + 22, "<u8").astype(np.float64)
    columns.demand((high <= ends) & (high - low >= 8), "delegates", "its payload's graph lies outside")
    columns.demand(data + size <= ends, "delegates", "its payload's constants lie outside")
    known = [int.from_bytes(one, "little") for one in _IDENTIFIERS]
    columns.demand(
        np.isin(columns.gather(low + 4, "<u4"), known), "delegates", "its payload's graph is of no known version"
    )
    inner = Columns(schemas.schema(schemas.XNNPACK), columns.data, columns.refuse)
    graphs = inner.roots("XNNGraph", low, low, high)
    payloads = _Payloads(graphs, data, size, named, segments[1] - segments[0])
    payloads.check(calls)
    _check_between(columns, [starts + _HEADER_BYTES, high, data + size.astype(np.int64)], [low, data, ends])
    unread.check_tables(graphs, _HEAD)
    return payloads.check_unread()


def _check_between(columns: Columns, starts: list[Ints], ends: list[Ints]) -> None:
    """Check that gaps between the parts of payloads are short and zero."""
    for low, high in zip(np.concatenate(starts).tolist(), np.concatenate(ends).tolist(), strict=True):
        if not 0 <= high - low < _ALIGNMENT or columns.data[low:high].any():
            raise columns.refuse(f"delegates: nothing in a payload leads to what lies at byte {low}")


class _Payloads:
    """The checks of the graphs of all delegates."""

    def __init__(
        self, graphs: Rows, data: Ints, size: NDArray[np.float64], named: Mapping[str, int], segment_sizes: Ints
    ) -> None:
        self._graphs, self._data, self._size = graphs, data, size
        self._named, self._segment_sizes = named, segment_sizes
        self._values = graphs["xvalues"]
        self._read: set[int] = set()
        """Indices of constants that a value reads."""

    def check(self, calls: list[tuple[int, list[int]]]) -> None:
        """Check constants, values, then nodes in their order."""
        graphs = self._graphs
        graphs["constant_buffer"].demand(
            np.zeros(len(graphs["constant_buffer"])), "no file of ours has constants there"
        )
        members = self._values.members("xvalue_union")
        quantised = members.get("XNNQuantizedTensorValue")
        self._values.demand(self._values.number("xvalue_union_type") > 0, "it is of no kind")
        self._ids: list[dict[int, bool]] = [{} for _ in range(len(graphs))]
        """For each graph, its values by id, each with whether it is known before the graph runs."""
        if "XNNTensorValue" in members:
            self._check_values(members["XNNTensorValue"], members["XNNTensorValue"].owner)
        if quantised is not None:
            quantised.demand(quantised.has("tensor_value"), "it has no value")
            self._check_values(quantised["tensor_value"], quantised.owner)
            self._check_scales(quantised)
        graphs.demand(
            np.array([len(ids) for ids in self._ids]) == np.bincount(self._values.owner, minlength=len(graphs)),
            "two values have one id",
        )
        for name in ("input_ids", "output_ids"):
            found = graphs.vector(name)
            known = [
                number in self._ids[of] for number, of in zip(found.values.tolist(), found.owner.tolist(), strict=True)
            ]
            graphs.demand(found.total(~np.array(known, bool)) == 0, f"one of its {name} is no value")
        for which, arguments in calls:
            externals = int(graphs.number("num_externs")[which])
            graphs.demand(
                np.arange(len(graphs)) != which if externals != len(arguments) else np.ones(len(graphs)),
                f"it has {externals} values outside, and is called with {len(arguments)}",
            )
        self._check_nodes()

    def check_unread(self) -> frozenset[str]:
        """Check that each constant is read by a value, and return the names of those with a name."""
        rows = self._graphs["constant_data"]
        # The first constant of each graph stands for none.
        first = self._constant_bytes[0]
        unread.check_rows(rows, {*first.tolist(), *self._read}, "no value reads it")
        names = rows.texts("named_key")
        ends = np.zeros(len(self._graphs))
        inside = rows.number("offset") != np.uint64(_NAMED)
        offsets, sizes = rows.number("offset").astype(np.float64), rows.number("size").astype(np.float64)
        for number in np.lexsort((offsets, rows.owner)).tolist():
            if inside[number] and number not in first:
                of = rows.owner[number]
                low, high = (int(self._data[of] + at) for at in (ends[of], offsets[number]))
                if high - low >= _ALIGNMENT or rows.columns.data[low:high].any():
                    raise rows.columns.refuse(f"delegates: no constant of a payload begins at byte {low}")
                ends[of] = max(ends[of], offsets[number] + sizes[number])
        self._graphs.demand(self._size - ends < _ALIGNMENT, "behind its constants is more")
        return frozenset(name for number, name in enumerate(names) if number in self._read and name)

    @cached_property
    def _constant_bytes(self) -> tuple[Ints, Ints, NDArray[np.float64]]:
        """Index of each graph's first constant, number of its constants, and bytes of every constant."""
        rows = self._graphs["constant_data"]
        counts = np.bincount(rows.owner, minlength=len(self._graphs))
        offsets, sizes = rows.number("offset"), rows.number("size").astype(np.float64)
        inside = offsets != np.uint64(_NAMED)
        first = np.cumsum(counts) - counts
        # The first constant of each graph stands for none.
        real = np.ones(len(rows), bool)
        real[first[counts > 0]] = False
        rows.demand(
            ~inside | ~real | (offsets.astype(np.float64) + sizes <= self._size[rows.owner]),
            "it lies outside of its payload",
        )
        keys = rows.texts("named_key")
        rows.demand(
            [
                one or not real[n] or key in self._named
                for n, (one, key) in enumerate(zip(inside.tolist(), keys, strict=True))
            ],
            "no data has its name",
        )
        lengths = [float(self._segment_sizes[self._named[key]]) if key in self._named else 0.0 for key in keys]
        return first, counts, np.where(inside, sizes, np.array(lengths))

    def _constant(self, graph: Ints, number: Ints, rows: Rows, what: str) -> NDArray[np.float64]:
        """Return the sizes of constants in bytes, after checking that they exist."""
        first, counts, sizes = self._constant_bytes
        rows.demand((number == 0) | (number < counts[graph]), f"it names {what} that is not there")
        self._read.update((first[graph] + number)[number > 0].tolist())
        return np.append(sizes, 0.0)[np.where(number > 0, first[graph] + number, len(sizes))]

    def _check_values(self, tensors: Rows, of: Ints) -> None:
        graph = self._values.owner[of]
        dims = tensors.vector("dims")
        types = tensors.number("datatype").astype(np.int64)
        tensors.demand(np.isin(types, list(_BYTES)), "its type is unknown")
        tensors.demand(
            (tensors.number("num_dims") == dims.count) & (dims.count <= _MOST_AXES),
            "its shape has another number of axes",
        )
        width = np.array([_BYTES.get(number, 0) for number in range(16)])[types]
        needed = np.ceil(dims.product() * width)
        tensors.demand(needed <= _MOST_BYTES, f"it would take more than {_MOST_BYTES:.0f} bytes")
        number = tensors.number("constant_buffer_idx").astype(np.int64)
        held = self._constant(graph, number, tensors, "a constant")
        tensors.demand((number == 0) | (held == needed), "its constant has not the bytes that its shape needs")
        outside, flags = tensors.number("external_id"), tensors.number("flags")
        count = self._graphs.number("num_externs")[graph]
        tensors.demand((outside == _NONE) | (outside < count), "it stands for an argument that is not there")
        # The runtime looks an argument up for each flag, without checking that there is one.
        tensors.demand((flags & (_INPUT | _OUTPUT) > 0) == (outside != _NONE), "its flags and its argument disagree")
        tensors.demand(flags <= (_INPUT | _OUTPUT), "its flags are unknown")
        ready = ((number > 0) | (flags & _INPUT > 0)).tolist()
        for one, key, there in zip(graph.tolist(), tensors.number("id_out").tolist(), ready, strict=True):
            self._ids[one][key] = there

    def _check_scales(self, quantised: Rows) -> None:
        members = quantised.members("quant_params")
        tensors = quantised["tensor_value"]
        quantised.demand(quantised.number("quant_params_type") > 0, "it has no scales")
        dims = [dict(enumerate(row)) for row in tensors.vector("dims").rows()]
        if "PerChannelQuant" in members:
            rows = members["PerChannelQuant"]
            sizes = np.array(
                [
                    dims[of].get(axis, -1)
                    for of, axis in zip(rows.owner.tolist(), rows.number("channel_dim").tolist(), strict=True)
                ]
            )
            stored = rows.number("scale_buffer_idx").astype(np.int64)
            count = np.where(stored > 0, rows.number("num_scales"), rows.vector("scale").count).astype(np.int64)
            rows.demand((sizes > 0) & (count == sizes), "its scales are not as many as the rows of its axis")
            self._check_scale_bytes(quantised, rows, count, 4)
        in_blocks = np.zeros(len(quantised), bool)
        if "PerChannelGroupQuant" in members:
            rows = members["PerChannelGroupQuant"]
            in_blocks[rows.owner] = True
            self._check_blocks(quantised, rows)
        quantised.demand(
            (tensors.number("datatype") == _BLOCKS) == in_blocks, "it has blocks of four bits or scales of such alone"
        )
        if "PerTokenDynamicQuant" in members:
            rows = members["PerTokenDynamicQuant"]
            axes = tensors.vector("dims").count[rows.owner]
            free = rows.number("num_nonbatch_dims")
            rows.demand((free >= 1) & (free <= axes), "it is quantised over axes that it lacks")
            # With more axes, tokens share a scale, and one large token costs all others their precision.
            rows.demand(free == 1, f"one scale is shared over its last {free.max()} axes; a conversion has one a token")

    def _check_blocks(self, quantised: Rows, rows: Rows) -> None:
        """Check that 4-bit matrices have a bfloat16 scale for each block of a row."""
        dims = [quantised["tensor_value"].vector("dims").at(of) for of in rows.owner.tolist()]
        rows.demand([len(row) == 2 for row in dims], "it has blocks, and is no matrix")
        sizes, size = np.array(dims).reshape(-1, 2), rows.number("group_size").astype(np.int64)
        right = (size > 0) & (size % _BLOCK == 0) & (rows.number("channel_dim") == 0)
        rows.demand(
            right & (sizes[:, 1] % np.maximum(size, 1) == 0), f"its blocks are of {size} columns along another axis"
        )
        count = sizes[:, 0] * (sizes[:, 1] // np.maximum(size, 1))
        rows.demand(rows.number("num_scales") == count, "its scales are not as many as its blocks")
        rows.demand(rows.number("scale_buffer_idx") > 0, "its scales are in the graph, where no file of ours has them")
        self._check_scale_bytes(quantised, rows, count, 2)

    def _check_scale_bytes(self, quantised: Rows, rows: Rows, count: Ints, width: int) -> None:
        graph = self._values.owner[quantised.owner[rows.owner]]
        stored = rows.number("scale_buffer_idx").astype(np.int64)
        held = self._constant(graph, stored, rows, "scales")
        rows.demand((stored == 0) | (held == width * count), "its scales have not the bytes of as many")

    def _check_nodes(self) -> None:
        """Check that nodes read values that are known or were made before, and have a number for each axis."""
        nodes = self._graphs["xnodes"]
        nodes.demand(nodes.number("xnode_union_type") > 0, "it is of no kind")
        made = [dict(ids) for ids in self._ids]
        edges: dict[int, tuple[list[int], list[int]]] = {}
        for rows in nodes.members("xnode_union").values():
            fields = self._graphs.columns.schema.tables[rows.kind]
            read = [rows.number(name).tolist() for name in fields if name.endswith("_id") and "output" not in name]
            write = [rows.number(name).tolist() for name in fields if name.endswith("_id") and "output" in name]
            for number, node in enumerate(rows.owner.tolist()):
                edges[node] = ([ids[number] for ids in read], [ids[number] for ids in write])
            self._check_axes(rows, [name for name in _BY_AXIS if name in fields])
        graph = nodes.owner.tolist()
        for node in range(len(nodes)):
            ids = made[graph[node]]
            for number in edges[node][0]:
                if number != _NONE and not ids.get(number, False):
                    nodes.demand(np.arange(len(nodes)) != node, f"it reads value {number}, which nothing has made")
            for number in edges[node][1]:
                if number not in ids or ids[number]:
                    nodes.demand(
                        np.arange(len(nodes)) != node, f"it writes value {number}, which is made already, or none"
                    )
                ids[number] = True

    def _check_axes(self, rows: Rows, names: list[str]) -> None:
        for name in names:
            count = rows.vector(name).count
            rows.demand(
                (count == rows.number("num_dims")) & (count <= _MOST_AXES), f"{name} has another number of axes"
            )
        if "perm" in names:
            right = [sorted(row) == list(range(len(row))) for row in rows.vector("perm").rows()]
            rows.demand(right, "its order of axes is none")
