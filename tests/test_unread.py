"""An ExecuTorch file that holds more than a conversion writes is refused in one line."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import Damaged

from pipeline.errors import EXIT_USAGE, ArtifactError
from pipeline.formats import executorch
from pipeline.formats.executorch import bounds
from pipeline.formats.executorch.control import _Payload, write_control

# executorch reads its own schemas so.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated. Use files:DeprecationWarning")


@pytest.fixture(scope="module")
def clean(converted: Callable[..., Path]) -> Path:
    """A clean file that quantises activations, as `make faults` has it."""
    return converted("executorch-int8_dynamic") / executorch.FILE


def _plan(file: Any, name: str) -> Any:
    return next(plan for plan in file.program.execution_plan if plan.name == name)


def _tell(file: Any, method: str, number: int) -> None:
    plan = _plan(file, method)
    plan.values[plan.outputs[0]].val.int_val = number


def _named(file: Any) -> None:
    store = file.named_data
    store.buffers.append(b"\x07" * 3000)
    entry = copy.copy(next(iter(store.pte_data.values())))
    entry.buffer_index = len(store.buffers) - 1
    store.pte_data["more"] = entry


def _constant(file: Any) -> None:
    from executorch.exir.schema import Buffer

    file.program.constant_buffer.append(Buffer(storage=b"\x07" * 3000))


def _longer_constant(file: Any) -> None:
    file.program.constant_buffer[-1].storage += b"\x07" * 3000


def _method(file: Any) -> None:
    plan = copy.deepcopy(_plan(file, "get_vocab_size"))
    plan.name = "get_pad_id"
    file.program.execution_plan.append(plan)


def _compile_spec(file: Any) -> None:
    from executorch.exir.schema import CompileSpec

    _plan(file, "forward").delegates[0].compile_specs.append(CompileSpec("x", b"y"))


def _memory(file: Any) -> None:
    _plan(file, "forward").non_const_buffer_sizes[1] = 1_500_000_000


def _far_tensor(file: Any) -> None:
    """Plan all tensors but one where they were, that one far behind them."""
    plan = _plan(file, "forward")
    planned = [one.val for one in plan.values if getattr(one.val, "allocation_info", None) is not None]
    planned[0].allocation_info.memory_offset_low = 1_400_000_000
    _memory(file)


def _value(file: Any) -> None:
    plan = _plan(file, "forward")
    plan.values.append(copy.deepcopy(_plan(file, "get_input_names").values[0]))
    plan.values[-1].val.string_val = "x" * 3000


def _operator(file: Any) -> None:
    operators = _plan(file, "forward").operators
    operators.append(copy.deepcopy(operators[0]))


def _integers(file: Any) -> None:
    """Let the table of positions name the place of another one."""
    for value in _plan(file, "forward").values:
        number = getattr(value.val, "data_buffer_idx", 0)
        if number and int(value.val.scalar_type) == 4:
            buffer = file.program.constant_buffer[number]
            buffer.storage = buffer.storage[:8] + b"\x05" + buffer.storage[9:]


def _scales(file: Any) -> None:
    for row in file.program.backend_delegate_data:
        payload = _Payload.read(row.data)
        for value in payload.graph["xvalues"]:
            if value["xvalue_union"].get("quant_params_type") == "PerTokenDynamicQuant":
                value["xvalue_union"]["quant_params"]["num_nonbatch_dims"] = 2
        row.data = payload.written()


def _payload_constant(file: Any) -> None:
    """Give a payload a constant behind its graph that no value reads."""
    row = file.program.backend_delegate_data[0]
    payload = _Payload.read(row.data)
    payload.graph["constant_data"].append({"offset": 0, "size": 3000})
    payload.constants += b"\x07" * 3000
    row.data = payload.written()


def _behind_payload(file: Any) -> None:
    file.program.backend_delegate_data[0].data += b"\x07" * 3000


MORE: dict[str, tuple[Callable[[Any], object], str]] = {
    "named data": (_named, "named_data, number .*: no delegate reads it"),
    "constant": (_constant, "its constant .* bytes that no tensor reads"),
    "longer constant": (_longer_constant, "its constant .* has 3... bytes that no tensor reads"),
    "method": (_method, "its methods are .*'get_pad_id'"),
    "version": (lambda file: setattr(file.program, "version", 99), "its program is of version 99"),
    "compile spec": (_compile_spec, "compile_specs, number 0: no delegate of ours has such"),
    "memory": (_memory, "it asks for more memory than the tensors in it need"),
    "tensor far behind": (_far_tensor, "it asks for more memory than the tensors in it need"),
    "shortest length": (lambda file: _tell(file, "get_min_seq_len", 8), "its shortest length is 8; .* always writes 3"),
    "longest length": (lambda file: _tell(file, "get_max_seq_len", 16), "its longest length is 16, and one of its inp"),
    "value": (_value, "values, number .*: nothing reads it"),
    "operator": (_operator, "operators, number .*: nothing calls it"),
    "integers": (_integers, "has integers that are neither 0 nor their places"),
    "scales of two axes": (_scales, "one scale is shared over its last 2 axes"),
    "constant of a payload": (_payload_constant, "constant_data, number .*: no value reads it"),
    "behind a payload": (_behind_payload, "nothing in a payload leads to what lies at byte"),
}


def refused(file: Path, message: str) -> None:
    """Check that everything that reads a file refuses it alike, in one line."""
    for read in (executorch.inspect, executorch.structure):
        with pytest.raises(ArtifactError, match=message) as raised:
            read(file)
        assert "\n" not in str(raised.value)
        assert raised.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize("case", MORE)
def test_what_no_conversion_writes_is_refused(case: str, clean: Path, tmp_path: Path) -> None:
    from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary

    change, message = MORE[case]
    file = deserialize_pte_binary(clean.read_bytes())
    change(file)
    edited = tmp_path / "model.pte"
    edited.write_bytes(bytes(serialize_pte_binary(file, extract_delegate_segments=True)))
    refused(edited, message)


def test_bytes_behind_the_last_segment_are_refused(clean: Path, tmp_path: Path) -> None:
    edited = tmp_path / "model.pte"
    for more in (b"\x07" * 3000, bytes(3000)):
        edited.write_bytes(clean.read_bytes() + more)
        refused(edited, "3000 bytes lie behind its last segment")


def test_bytes_between_segments_are_refused(clean: Path, tmp_path: Path) -> None:
    file = Damaged.executorch(clean)
    segments = file.root["segments"]
    base = int.from_bytes(file.data[24:32].tobytes(), "little")
    ends = np.sort(segments.number("offset") + segments.number("size")).astype(np.int64) + base
    starts = np.sort(segments.number("offset")).astype(np.int64)[1:] + base
    gap = int(np.flatnonzero(starts > ends[:-1])[0])
    refused(file.bytes(int(ends[gap]), b"\x07").write(tmp_path / "model.pte"), "is more than zeros that fill")


def test_bytes_in_the_program_to_which_nothing_leads_are_refused(clean: Path, tmp_path: Path) -> None:
    """A text cut short leaves its rest behind, and flatbuffers would carry any number of such bytes."""
    file = Damaged.executorch(clean)
    values = file.root["execution_plan"]["values"].members("val")["String"]
    start = int(values.vector("string_val").start[0])
    file.length(values, "string_val", 1).bytes(start + 1, b"\0")
    refused(file.write(tmp_path / "model.pte"), "Program: nothing in it leads to what lies at byte")


def test_the_control_of_a_clean_file_holds_nothing_unread(clean: Path, tmp_path: Path) -> None:
    assert write_control(clean, tmp_path / "model.pte")
    bounds.check(tmp_path / "model.pte")
