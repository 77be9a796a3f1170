"""Check an ExecuTorch file before a runtime follows it: every offset and index stays inside and leads to something.

A `.pte` is a program, a flatbuffer, before segments: constants, and for each XNNPACK delegate a payload with a
flatbuffer of its own. The runtime verifies the program's offsets and none of a payload; wrong indices and kinds of
arguments end the process. Content that no conversion writes is refused too, such as a method that no app knows or bytes
that nothing reads. Whether the numbers are right is not judged here but by verification.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ArtifactError
from pipeline.formats.columns import Columns, Ints, Rows, damage, room
from pipeline.formats.executorch import kernels, payload, schemas, unread
from pipeline.formats.executorch.facts import SHORTEST

_MAGIC = b"ET12eh00"
_HEADER_BYTES = 64
"""Bytes of the header with sizes and offsets, see executorch/schema/extended_header.h."""
_BYTES = {0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 7: 8, 11: 1, 15: 2, 27: 2, 28: 4, 29: 8}
"""Bytes of an element by the type's number in executorch/exir/scalar_type.py."""
_INTEGERS = {3: "<i4", 4: "<i8"}
_DYNAMISMS = 3
_MOST_BYTES = 2.0**32
"""Most bytes of one tensor, and of the memory for computed tensors."""
_MOST_AXES = 16
"""Most axes of a tensor in the runtime."""
_XNNPACK = "XnnpackBackend"
_VERSION = 0
"""Version of the program's schema that executorch 1.4.1 writes (executorch/exir/version.py)."""
_HEAD = 40
"""Bytes before the program's tables: the offset of its root, its magic, and the header of sizes and offsets."""
_PLAN_ALIGNMENT, _PLAN_PADDING = 16, 64
"""The planner aligns each tensor to 16 bytes, and adds 64 bytes (executorch/exir/memory_planning.py)."""
_FORWARD = "forward"
_CONSTANT_METHODS = ("get_input_names", "get_output_names", "get_min_seq_len", "get_max_seq_len", "get_vocab_size")


def check(file: Path) -> None:
    """Refuse a file with a reference out of it, or with content that no conversion writes.

    Raises:
        ArtifactError: the first such reference or content, in one line.
        ToolchainError: executorch, which carries the schema, is not installed.
    """
    _File(file).check()


class _File:
    """The bounds check of one file."""

    def __init__(self, file: Path) -> None:
        self._refuse = damage(file)
        try:
            self._data: NDArray[np.uint8] = np.memmap(file, np.uint8, "r")
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{file} cannot be read: {error}. Make the target again.") from error
        head = bytes(self._data[:_HEADER_BYTES])
        if head[4:12] != _MAGIC or len(head) < _HEADER_BYTES:
            raise ArtifactError(f"{file} is not a .pte with segments: it has {head[4:12]!r} at byte 4. Make it again.")
        program_bytes, self._base, segments_bytes = (int.from_bytes(head[at : at + 8], "little") for at in (16, 24, 32))
        if int.from_bytes(head[12:16], "little") != 32 or not (
            _HEADER_BYTES <= program_bytes <= self._base <= len(self._data)
        ):
            raise self._refuse(f"its header tells of {program_bytes} bytes, and of segments from {self._base} on")
        if self._base + segments_bytes > len(self._data):
            raise self._refuse(f"its segments end after {len(self._data)} bytes")
        self._program_bytes = program_bytes
        self._columns = Columns(schemas.schema(schemas.PROGRAM), self._data, self._refuse)
        self._program = self._columns.root("Program", program_bytes)
        self._plans = self._program["execution_plan"]
        self._values = self._plans["values"]
        members = self._values.members("val")
        self._kind = np.full(len(self._values), "none", dtype="U24")
        for kind, rows in members.items():
            self._kind[rows.owner] = kind
        self._of_kind = members
        self._counts = np.bincount(self._values.owner, minlength=len(self._plans))
        self._first = np.cumsum(self._counts) - self._counts
        """Index of each method's first value."""

    def check(self) -> None:
        """Check everything, from segments to the payloads of delegates."""
        self._check_segments()
        if "Tensor" in self._of_kind:
            self._check_tensors(self._of_kind["Tensor"])
        self._check_values()
        self._check_methods()
        self._check_instructions()
        self._check_lengths()
        starts, ends = self._payloads()
        read = payload.check(self._columns, starts, ends, self._named(), self._segment_bounds, self._calls)
        self._check_unread(read)

    def _check_methods(self) -> None:
        """Check that the methods, and their schema's version, are those that a conversion writes."""
        version = int(self._program.number("version")[0])
        if version != _VERSION:
            raise self._refuse(f"its program is of version {version}; executorch 1.4.1 writes {_VERSION}")
        names = self._plans.texts("name")
        if sorted(names) != sorted((_FORWARD, *_CONSTANT_METHODS)):
            raise self._refuse(f"its methods are {names}")
        chains = self._plans["chains"]
        chains["instructions"].demand(
            (np.array(names) == _FORWARD)[chains.owner[chains["instructions"].owner]],
            "a constant method computes something",
        )
        specs = self._plans["delegates"]["compile_specs"]
        specs.demand(np.zeros(len(specs)), "no delegate of ours has such")

    def _check_lengths(self) -> None:
        """Check the lengths of the constant methods: the shortest is always the same, the longest is the inputs'."""
        least, most = (self._told(f"get_{bound}_seq_len") for bound in ("min", "max"))
        if least != SHORTEST:
            raise self._refuse(f"its shortest length is {least}; a conversion always writes {SHORTEST}")
        forward = self._plans.texts("name").index(_FORWARD)
        for number in self._plans.vector("inputs").rows()[forward]:
            given = self._tensor(int(self._first[forward]) + int(number))
            sizes = given[1] if given else []
            if sizes[1:] != [most]:
                raise self._refuse(f"its longest length is {most}, and one of its inputs has the shape {sizes}")

    # --- data ---------------------------------------------------------------------------------------------------------

    def _check_segments(self) -> None:
        program, segments = self._program, self._program["segments"]
        starts = segments.number("offset").astype(np.float64) + self._base
        sizes = segments.number("size").astype(np.float64)
        segments.demand(starts + sizes <= len(self._data), f"it ends outside of {len(self._data)} bytes")
        self._segment_bounds = (starts.astype(np.int64), (starts + sizes).astype(np.int64))
        program["named_data"].demand(program["named_data"].number("segment_index") < len(segments), "there is no such")
        constants = program["constant_segment"]
        constants.demand(constants.number("segment_index") < len(segments), "it names a segment that is not there")
        offsets = constants.vector("offsets").values.astype(np.float64)
        bound = sizes[constants.number("segment_index")[0]] if len(constants) else 0.0
        self._constant_base = int(starts[constants.number("segment_index")[0]]) if len(constants) else 0
        constants.demand(
            np.broadcast_to((offsets <= bound).all(), len(constants)), "an offset leads out of its segment"
        )
        self._constant_room = room(offsets, float(bound))
        self._constant_starts = offsets
        for name in ("constant_buffer", "backend_delegate_data", "mutable_data_segments"):
            program[name].demand(np.zeros(len(program[name])), "no file of ours has such")

    def _check_tensors(self, tensors: Rows) -> None:
        sizes, order = tensors.vector("sizes"), tensors.vector("dim_order")
        widths = np.array([_BYTES.get(number, 0) for number in range(128)])
        types = tensors.number("scalar_type").astype(np.int64)
        tensors.demand((types >= 0) & (widths[np.clip(types, 0, 127)] > 0), "its type is unknown")
        tensors.demand(sizes.count <= _MOST_AXES, f"it has more than {_MOST_AXES} axes")
        tensors.demand(sizes.total(sizes.values < 0) == 0, "its shape has a negative size")
        tensors.demand(order.are_orders(sizes), "its order of axes is none")
        tensors.demand(tensors.number("storage_offset") == 0, "it begins behind its own data")
        tensors.demand(tensors.number("layout") == 0, "its layout is not dense")
        tensors.demand(tensors.number("shape_dynamism") < _DYNAMISMS, "its dynamism is unknown")
        tensors.demand(tensors.number("shape_dynamism") >= 0, "its dynamism is unknown")
        needed = sizes.product() * widths[types]
        tensors.demand(needed <= _MOST_BYTES, f"it would take more than {_MOST_BYTES:.0f} bytes")
        tensors["extra_tensor_info"].demand(
            (tensors["extra_tensor_info"].number("location") == 0)
            & (tensors["extra_tensor_info"].number("device_type") == 0),
            "it lies in another file or on another device",
        )
        self._check_memory(tensors, needed)
        self._check_constants(tensors, needed)

    def _check_memory(self, tensors: Rows, needed: NDArray[np.float64]) -> None:
        """Check that a constant lies in its segment, and a computed tensor in its planned memory."""
        buffer, planned = tensors.number("data_buffer_idx").astype(np.int64), tensors["allocation_info"]
        tensors.demand(buffer < max(len(self._constant_room), 1), "it names a constant that is not there")
        is_planned = np.zeros(len(tensors), bool)
        is_planned[planned.owner] = True
        tensors.demand((buffer == 0) | ~is_planned, "it is constant and computed")
        room = np.append(self._constant_room, 0.0)[buffer]
        tensors.demand((buffer == 0) | (needed <= room), "its shape needs more bytes than its constant has")
        sizes = self._plans.vector("non_const_buffer_sizes")
        self._plans.demand(
            sizes.total((sizes.values < 0) | (sizes.values > _MOST_BYTES)) == 0, "an absurd size of memory"
        )
        plan = self._values.owner[tensors.owner[planned.owner]]
        memory = planned.number("memory_id").astype(np.int64)
        planned.demand((memory >= 1) & (memory < sizes.count[plan]), "it lies in a memory that is not there")
        first = np.cumsum(sizes.count) - sizes.count
        place = first[plan] + memory
        start = planned.number("memory_offset_low") + planned.number("memory_offset_high") * 2.0**32
        end = start + needed[planned.owner]
        planned.demand(end <= sizes.values[place], "it ends outside of its memory")
        # Tensors may share a place and never need more than one each; the runtime allocates all of the memory at once.
        aligned = np.ceil(needed[planned.owner] / _PLAN_ALIGNMENT) * _PLAN_ALIGNMENT
        last, all_at_once = np.zeros(len(sizes.values)), np.zeros(len(sizes.values))
        np.maximum.at(last, place, start + aligned)
        np.add.at(all_at_once, place, aligned)
        most = np.minimum(last, all_at_once) + _PLAN_PADDING
        most[first[sizes.count > 0]] = 0
        self._plans.demand(sizes.total(sizes.values > most) == 0, "it asks for more memory than the tensors in it need")

    def _check_constants(self, tensors: Rows, needed: NDArray[np.float64]) -> None:
        """Check that each constant belongs to a tensor, and has no more bytes than the tensor needs."""
        buffer = tensors.number("data_buffer_idx").astype(np.int64)
        most = np.zeros(max(len(self._constant_room), 1))
        np.maximum.at(most, buffer, needed)
        for number in range(1, len(self._constant_room)):
            spare = self._constant_room[number] - most[number]
            if not (buffer == number).any() or spare >= unread.CONSTANT_ALIGNMENT:
                raise self._refuse(f"its constant {number} has {spare:.0f} bytes that no tensor reads")
            end = self._constant_base + int(self._constant_starts[number] + most[number])
            if self._data[end : end + int(spare)].any():
                raise self._refuse(f"behind its constant {number} is more than zeros that fill")
        self._check_integers(tensors, buffer)

    def _check_integers(self, tensors: Rows, buffer: Ints) -> None:
        """Check that constant integers are 0, 1, 2, … or all 0, as positions and token types are.

        A file in single precision keeps both from the checkpoint, read or not; other integers could carry anything.
        """
        sizes = tensors.vector("sizes").product().astype(np.int64)
        types = tensors.number("scalar_type").astype(np.int64)
        for row in np.flatnonzero((buffer > 0) & np.isin(types, list(_INTEGERS)) & (sizes > 1)).tolist():
            start = self._constant_base + int(self._constant_starts[buffer[row]])
            values = self._data[start : start + _BYTES[types[row]] * sizes[row]].view(_INTEGERS[types[row]])
            if values.any() and (values != np.arange(sizes[row])).any():
                raise self._refuse(f"its constant {buffer[row]} has integers that are neither 0 nor their places")

    def _check_values(self) -> None:
        """Check values that are lists of other values."""
        wanted = {"IntList": {"Int"}, "TensorList": {"Tensor"}, "OptionalTensorList": {"Tensor", "Null"}}
        for kind, members in wanted.items():
            if kind in self._of_kind:
                rows = self._of_kind[kind]
                items = rows.vector("items")
                plan = self._values.owner[rows.owner]
                # An optional tensor that is absent has index -1.
                items.demand_below(self._counts[plan], "value", least=-1 if kind == "OptionalTensorList" else 0)
                numbers = self._first[plan][items.owner] + items.values
                right = np.isin(self._kind[np.maximum(numbers, 0)], list(members)) | (items.values < 0)
                rows.demand(items.total(~right) == 0, f"an item is no {' or '.join(sorted(members))}")

    # --- instructions -------------------------------------------------------------------------------------------------

    def _check_instructions(self) -> None:
        plans = self._plans
        for name in ("inputs", "outputs"):
            plans.vector(name).demand_below(self._counts, "value")
        chains, instructions = plans["chains"], plans["chains"]["instructions"]
        for name in ("inputs", "outputs"):
            chains.vector(name).demand_below(self._counts[chains.owner], "value")
        members = instructions.members("instr_args")
        instructions.demand(instructions.has("instr_args"), "it is none")
        for kind, rows in members.items():
            if kind not in ("KernelCall", "DelegateCall"):
                rows.demand(np.zeros(len(rows)), f"it is a {kind}, which no file of ours has")
        self._kernels(members.get("KernelCall"))
        self._calls: list[tuple[int, list[int]]] = []
        """For each call of a delegate, the delegate's index and the arguments."""
        self._delegate_calls(members.get("DelegateCall"))

    def _plan_of(self, calls: Rows) -> Ints:
        chains = self._plans["chains"]
        plan: Ints = chains.owner[chains["instructions"].owner[calls.owner]]
        return plan

    def _kernels(self, calls: Rows | None) -> None:
        if calls is None:
            return
        operators = self._plans["operators"]
        names = [
            f"{name}.{more}" if more else name
            for name, more in zip(operators.texts("name"), operators.texts("overload"), strict=True)
        ]
        which, arguments = self._numbered(calls, operators, "op_index")
        unread.check_rows(operators, which, "nothing calls it")
        tables = set()
        for number, (operator, given) in enumerate(zip(which, arguments, strict=True)):
            wanted = kernels.ARGUMENTS.get(names[operator])
            kinds = self._kind[given]
            if wanted is not None and not (
                len(wanted) == len(given)
                and all(kind in kernels.KINDS[one] for one, kind in zip(wanted, kinds, strict=True))
            ):
                said = f"{names[operator]} is given {', '.join(kinds)}"
                calls.demand(np.arange(len(calls)) != number, said)
            if names[operator] in kernels.EMBEDDINGS:
                table = self._tensor(given[0])
                tables.add(table[1][0] if table and table[1] else 0)
                problem = kernels.table_problem(
                    names[operator],
                    [self._tensor(given[place]) for place in (0, 1, 2, -1)],
                    [self._int(given[place]) for place in (3, 4)],
                )
                if problem is not None:
                    calls.demand(np.arange(len(calls)) != number, f"of {names[operator]}, {problem}")
        self._check_vocabulary(tables)

    def _check_vocabulary(self, tables: set[int]) -> None:
        """Check that the vocabulary's size is a table's number of rows: a larger id ends the process in the kernel."""
        told = self._told("get_vocab_size")
        if told is None or (tables and told not in tables):
            raise self._refuse(f"its vocabulary's size is {told}, and its tables have {sorted(tables)} rows")

    def _told(self, method: str) -> int | None:
        """Return the number that a constant method returns, or None for any other value."""
        plan = self._plans.texts("name").index(method)
        output = self._plans.vector("outputs").rows()[plan]
        return self._int(int(self._first[plan]) + int(output[0])) if len(output) == 1 else None

    def _int(self, value: int) -> int | None:
        """Return the integer in a value, or None for another kind of value."""
        ints = self._of_kind.get("Int")
        if ints is None or value not in ints.owner:
            return None
        return int(ints.number("int_val")[ints.owner == value][0])

    def _tensor(self, value: int) -> kernels.Shaped | None:
        """Return type and shape of a tensor, or None for another kind of value."""
        tensors = self._of_kind["Tensor"]
        found = np.flatnonzero(tensors.owner == value)
        if not len(found):
            return None
        return int(tensors.number("scalar_type")[found[0]]), tensors.vector("sizes").at(int(found[0]))

    def _delegate_calls(self, calls: Rows | None) -> None:
        if calls is not None:
            delegates = self._plans["delegates"]
            which, arguments = self._numbered(calls, delegates, "delegate_index")
            self._calls = list(zip(which, arguments, strict=True))
            unread.check_rows(delegates, which, "nothing calls it")

    def _numbered(self, calls: Rows, table: Rows, index: str) -> tuple[list[int], list[list[int]]]:
        """Return the index in `table` of each call's target, and the indices of its arguments."""
        plan = self._plan_of(calls)
        counts = np.bincount(table.owner, minlength=len(self._plans))
        first = np.cumsum(counts) - counts
        number = calls.number(index).astype(np.int64)
        calls.demand((number >= 0) & (number < counts[plan]), f"its {index} is {number.max(initial=0)}")
        calls.vector("args").demand_below(self._counts[plan], "value")
        arguments = [
            [int(start) + place for place in given]
            for start, given in zip(self._first[plan].tolist(), calls.vector("args").rows(), strict=True)
        ]
        return (first[plan] + number).tolist(), arguments

    # --- delegates ----------------------------------------------------------------------------------------------------

    def _payloads(self) -> tuple[Ints, Ints]:
        """Return the start and end of each delegate's payload."""
        delegates = self._plans["delegates"]
        names = np.array(delegates.texts("id"))
        delegates.demand(names == _XNNPACK if len(names) else np.ones(0), f"it is none of {_XNNPACK}")
        places = delegates["processed"]
        delegates.demand(delegates.has("processed"), "it has no payload")
        places.demand(places.number("location") == 1, "its payload is in no segment")
        starts, ends = self._segment_bounds
        places.demand(places.number("index") < len(starts), "it names a segment that is not there")
        index = places.number("index").astype(np.int64)
        return starts[index], ends[index]

    def _check_unread(self, names: frozenset[str]) -> None:
        """Check that all values, segments, named data and bytes are read by something.

        Args:
            names: the named data that delegates read.
        """
        read = set()
        for owner, numbers in self._numbers_of_values():
            read.update((self._first[owner] + numbers).tolist())
        tensors = self._of_kind.get("Tensor")
        if tensors is not None:
            # Constants are checked elsewhere: by `_check_integers`, and weights by comparison with the checkpoint.
            read.update(tensors.owner[tensors.number("data_buffer_idx") > 0].tolist())
        unread.check_rows(self._values, read, "nothing reads it")
        named, segments = self._program["named_data"], self._program["segments"]
        keys = named.texts("key")
        named.demand([key in names and keys.count(key) == 1 for key in keys], "no delegate reads it")
        places = self._plans["delegates"]["processed"].number("index").tolist()
        places += named.number("segment_index").tolist()
        places += self._program["constant_segment"].number("segment_index").tolist()
        unread.check_rows(segments, places, "nothing reads it")
        unread.check_between(self._columns, self._program_bytes, *self._segment_bounds)
        unread.check_tables(self._program, _HEAD)

    def _numbers_of_values(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield the indices of values that something reads or makes, with the method of each."""
        plans, instructions = self._plans, self._plans["chains"]["instructions"]
        vectors = [(plans.vector(name), np.arange(len(plans))) for name in ("inputs", "outputs")]
        vectors += [(rows.vector("args"), self._plan_of(rows)) for rows in instructions.members("instr_args").values()]
        vectors += [
            (self._of_kind[kind].vector("items"), self._values.owner[self._of_kind[kind].owner])
            for kind in ("IntList", "TensorList", "OptionalTensorList")
            if kind in self._of_kind
        ]
        for vector, plan in vectors:
            there = vector.values >= 0
            yield plan[vector.owner[there]], vector.values[there].astype(np.int64)

    def _named(self) -> dict[str, int]:
        named = self._program["named_data"]
        return dict(zip(named.texts("key"), named.number("segment_index").tolist(), strict=True))
