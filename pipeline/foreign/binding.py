"""Which input of a file is which, and how its outputs are read: by name where names say it, else by trial.

Names differ by tool: `input_ids`, `serving_default_args_0:0`, `input_word_ids`, or none at all.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipeline.errors import InputError
from pipeline.formats.ports import Array, Entry, Port
from pipeline.kinds import KINDS, OutputKind
from pipeline.text.encoding import Row

Role = Literal["input_ids", "attention_mask", "token_type_ids", "position_ids"]
Form = Literal["vector", "tokens", "logits", "token_logits", "spans", "joined_spans"]
"""What is read of a file's outputs: a sentence's vector, the vectors of all tokens, logits of a text or of its tokens,
logits of starts and ends in two outputs or in one."""

_ROLES: tuple[tuple[Role, str], ...] = (
    ("token_type_ids", r"type|segment"),
    ("position_ids", r"position"),
    ("attention_mask", r"mask"),
    ("input_ids", r"input_?ids|word_?ids|token_?ids|^ids$|^tokens$"),
)
"""Patterns of names, of which the first that fits counts: `input_type_ids` are types."""
_USUAL: tuple[Role, ...] = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
"""The order of Hugging Face's own forward pass, in which traced models take them."""
_NUMBER = re.compile(r"\d+")
_TYPES = ("bool", "float16", "float32", "float64", "int16", "int32", "int64", "int8", "uint8")


@dataclass(frozen=True)
class Binding:
    """One way to call a file."""

    entry: Entry
    roles: tuple[Role, ...]
    """The role of each input, in the file's order."""
    by_name: bool

    def arrays(self, row: Row, length: int, *, pad_token_id: int, first_position: int) -> list[Array]:
        """Return a row's inputs in the file's order, types and ranks, padded on the right."""
        tokens = len(row)
        values: dict[Role, Array] = {
            "input_ids": np.full(length, pad_token_id, np.int64),
            "attention_mask": np.zeros(length, np.int64),
            "token_type_ids": np.zeros(length, np.int64),
            "position_ids": np.arange(length, dtype=np.int64) + first_position,
        }
        values["input_ids"][:tokens] = row.ids
        values["attention_mask"][:tokens] = 1
        values["token_type_ids"][:tokens] = row.types
        return [_shaped(values[role], port) for role, port in zip(self.roles, self.entry.inputs, strict=True)]


@dataclass(frozen=True)
class Reading:
    """One way to read a file's outputs."""

    form: Form
    outputs: tuple[int, ...]
    """Indices in the file's order."""

    def row(self, results: Sequence[Array], tokens: int) -> Array:
        """Return a row's `(items, width)`; padding of outputs with an item for each token is left out."""
        if self.form == "spans":
            return np.stack([np.asarray(results[at])[0, :tokens] for at in self.outputs], axis=-1).astype(np.float32)
        first: Array = np.asarray(results[self.outputs[0]], np.float32)[0]
        return first[:tokens] if self.form in ("tokens", "token_logits", "joined_spans") else first.reshape(1, -1)


def _shaped(values: Array, port: Port) -> Array:
    """Return `(seq_len,)` as a port wants it: as it is, or as one row, or as many equal rows as the file has."""
    array = values.astype(port.dtype)
    if len(port.shape) == 1:
        return array
    return np.ascontiguousarray(np.broadcast_to(array, (port.shape[0] or 1, len(array))))


def bindings(entry: Entry, *, takes_types: bool) -> Iterator[Binding]:
    """Yield the ways to call an entry point, the likeliest first; one alone if names tell every input.

    Args:
        entry: the entry point.
        takes_types: whether the checkpoint takes token types.

    Raises:
        InputError: it takes more inputs than an encoder does, or others.
    """
    _check_inputs(entry)
    named: list[Role | None] = [_role(port.name) if entry.named else None for port in entry.inputs]
    known = [role for role in named if role is not None]
    if len(set(known)) < len(known) or "input_ids" not in known:
        # Names that say the same twice, or no ids at all, say nothing.
        named, known = [None] * len(named), []
    if len(known) == len(named):
        yield Binding(entry, tuple(known), by_name=True)
        return
    # `args_10` comes after `args_9`, and a graph's own order may be that of letters.
    free = [at for at, role in enumerate(named) if role is None]
    free.sort(key=lambda at: (_numbers(entry.inputs[at].name) if entry.named else (), at))
    # Few exports take positions, and as a mask they would be one that hides nothing.
    rare = "position_ids" if takes_types and len(named) < len(_USUAL) else None
    left = [role for role in _USUAL if role not in known and role != rare]
    picks = [pick for pick in itertools.permutations(left, len(free)) if known or "input_ids" in pick]
    for pick in sorted(picks, key=lambda pick: ("position_ids" in pick, [left.index(role) for role in pick])):
        roles: dict[int, Role] = {at: role for at, role in enumerate(named) if role is not None}
        roles |= dict(zip(free, pick, strict=True))
        yield Binding(entry, tuple(roles[at] for at in range(len(named))), by_name=False)


def _check_inputs(entry: Entry) -> None:
    takes = "; ".join(map(str, entry.inputs)) or "nothing"
    wrong = next((one for one in entry.inputs if len(one.shape) not in (1, 2) or one.dtype not in _TYPES), None)
    if wrong is not None:
        raise InputError(
            f"{entry.name} takes {takes}. {wrong.name} is no row of ids, mask, types or positions, (1, length) or "
            "(length), so it is not known what to put there. Export the model with ids and mask as its inputs."
        )
    if not 1 <= len(entry.inputs) <= len(_USUAL):
        raise InputError(f"{entry.name} takes {takes}. An encoder takes ids, and a mask, types and positions or not.")


def _role(name: str) -> Role | None:
    return next((role for role, pattern in _ROLES if re.search(pattern, name.lower())), None)


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(one) for one in _NUMBER.findall(name))


def readings(
    entry: Entry, results: Sequence[Array], *, kind: OutputKind, length: int, hidden: int, count: int | None
) -> list[Reading]:
    """Return the ways to read results for a task, the likeliest first.

    Args:
        entry: whose results they are.
        results: of one row that ran at `length` tokens.
        kind: the task's kind of output.
        length: tokens of the row, padding included.
        hidden: the encoder's hidden size.
        count: outputs of the head; None for an embedding.

    Raises:
        InputError: no output can be the task's.
    """
    shapes = [np.shape(one) for one in results]
    floats = [at for at, one in enumerate(results) if np.asarray(one).dtype.kind == "f"]
    flat = [at for at in floats if len(shapes[at]) == 2]
    deep = [at for at in floats if len(shapes[at]) == 3 and shapes[at][1] == length]
    found: list[Reading] = []
    row = KINDS[kind]
    if kind == "embedding":
        found += [Reading("vector", (at,)) for at in flat]
        found += [Reading("tokens", (at,)) for at in deep if shapes[at][2] == hidden]
    elif not row.per_token:
        found += [Reading("logits", (at,)) for at in flat if shapes[at][1] == count]
    elif row.decision != "span":
        found += [Reading("token_logits", (at,)) for at in deep if shapes[at][2] == count]
    else:
        per_token = [at for at in flat if shapes[at][1] == length]
        per_token.sort(key=lambda at: ("end" in entry.outputs[at].name.lower(), at))
        found += [Reading("spans", (per_token[0], per_token[1]))] if len(per_token) >= 2 else []
        found += [Reading("joined_spans", (at,)) for at in deep if shapes[at][2] == 2]
    if found:
        return found
    given = "; ".join(f"{port.name} {shape}" for port, shape in zip(entry.outputs, shapes, strict=True)) or "none"
    needs = {
        "embedding": f"a vector (1, width), or vectors of tokens (1, {length}, {hidden})",
        "token_logits": f"logits (1, {length}, {count})",
        "spans": f"two outputs (1, {length}), or one (1, {length}, 2)",
    }.get(kind, f"logits (1, {count})")
    raise InputError(
        f"the file's outputs on {length} tokens are {given}; the task needs {needs}. Is it a file of another "
        "checkpoint, or of another task (--task)?"
    )
