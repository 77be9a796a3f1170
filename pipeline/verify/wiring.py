"""Follow a file's own graph: does each operation read the same tensors as its counterpart in the checkpoint?

The weights gate recognises a constant by its content, so it cannot see that two layers have exchanged their LayerNorm
weights, and the noise of int8 hides the effect on the outputs. Here each operation that reads tensors of the checkpoint
is matched with one call of a module, and its inputs have to come from the calls that are the inputs of that call.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.formats.structure import Role, Use
from pipeline.verify.weights import Expected, Form

_SMALL = 16
"""Number of elements below which a converter may fold a matrix into another constant."""


@dataclass(frozen=True)
class TensorConstant:
    """The constant of a file that holds a tensor of a module call."""

    constant: int
    """Index in `Structure.constants`."""
    form: Form


@dataclass(frozen=True)
class MatchedFunction:
    """One function of a file, matched with the checkpoint's module calls."""

    problems: tuple[str, ...]
    """Messages on tensors that are read in a wrong place."""
    places: Mapping[int, Mapping[str, TensorConstant]]
    """The file's constants by call number and tensor name."""


def follow(uses: Sequence[Use], forms: Sequence[Sequence[Form]], expected: Expected) -> MatchedFunction:
    """Match each operation of a function that reads tensors with a call of the checkpoint's modules.

    Args:
        uses: the operations of the function that read constants, in the order in which they run.
        forms: for each constant of the file, the tensor forms that it equals up to rounding.
        expected: the checkpoint.
    """
    graph = _Graph(expected)
    problems = []
    for use in uses:
        read = [_Read(number, tuple(forms[number]), role) for number, role in use.constants if forms[number]]
        problem = graph.add(use, read)
        problems += [problem] if problem else []
    return MatchedFunction((*problems, *graph.left_out()), graph.places)


@dataclass(frozen=True)
class _Read:
    """A constant that an operation reads: the forms that it matches, and the operation's role for it."""

    number: int
    forms: tuple[Form, ...]
    role: Role | None


@dataclass
class _Graph:
    """The module calls of the checkpoint, and the operations of one function that were matched with them so far."""

    expected: Expected
    reached: list[frozenset[int]] = field(default_factory=list)
    """For each operation of the file, the calls whose results are in its output."""
    consumed: dict[int, set[str]] = field(default_factory=dict)
    """Tensors read so far, by call number."""
    places: dict[int, dict[str, TensorConstant]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.calls: dict[str, list[int]] = {}
        for number, (name, _) in enumerate(self.expected.calls):
            self.calls.setdefault(name, []).append(number)

    def add(self, use: Use, read: Sequence[_Read]) -> str | None:
        """Match an operation with a call; return a message if no call fits."""
        sources = frozenset().union(*(self.reached[number] for number in use.sources))
        if not read:
            self.reached.append(sources)
            return None
        for call, forms in self._candidates(read):
            if self._fits(call, sources, forms):
                found = {form.tensor: TensorConstant(one.number, form) for one, form in zip(read, forms, strict=True)}
                twins = self._twins(call, found)
                for twin, places in twins.items():
                    self.consumed.setdefault(twin, set()).update(places)
                    self.places.setdefault(twin, {}).update(places)
                leaf = not self._needs(call)
                self.reached.append(frozenset(twins) | (sources if leaf else frozenset()))
                return None
        self.reached.append(sources)
        names = " and ".join(sorted({one.forms[0].tensor for one in read}))
        roles = {one.role for one in read}
        how = " as a factor" if roles == {"weight"} else " as an addend" if roles == {"bias"} else ""
        return f"{names}: read{how} by an operation that works on {self._named(sources)}"

    def _candidates(self, read: Sequence[_Read]) -> Iterator[tuple[int, list[Form]]]:
        """Yield the calls whose module has every tensor that an operation reads; unmatched calls come first."""
        found = []
        for call in sorted({number for form in read[0].forms for number in self.calls.get(_module(form), ())}):
            name = self.expected.calls[call][0]
            # A converter may look rows of a table up, and add them as a constant.
            table = not self._needs(call)
            mine = [
                [
                    form
                    for form in one.forms
                    if _module(form) == name and (table or one.role in (None, form.tensor.rpartition(".")[2]))
                ]
                for one in read
            ]
            if all(mine):
                seen = self.consumed.get(call, set())
                chosen = [next((form for form in forms if form.tensor not in seen), forms[0]) for forms in mine]
                found.append((any(form.tensor in seen for form in chosen), call, chosen))
        for _, call, chosen in sorted(found, key=lambda one: one[:2]):
            yield call, chosen

    def _fits(self, call: int, sources: frozenset[int], forms: Iterable[Form]) -> bool:
        """Return whether an operation whose inputs are the results of `sources` can be a call or the rest of one."""
        if call in sources:
            return True
        needs = self._needs(call)
        if not needs:
            # Rows that a converter looked up are added to the other inputs of the calls that read them.
            readers = [number for number, (_, theirs) in enumerate(self.expected.calls) if call in theirs]
            return not sources or any(sources <= self._behind(reader, frozenset()) for reader in readers)
        folded = frozenset(name.rpartition(".")[0] for form in forms for name in form.parts)
        return sources <= self._behind(call, folded) and all(self._covered(need, sources, folded) for need in needs)

    def _twins(self, call: int, places: Mapping[str, TensorConstant]) -> Mapping[int, Mapping[str, TensorConstant]]:
        """Return a call and its duplicates, each with the tensors it reads: a converter runs equal calls as one.

        Tied query and key projections are such calls.
        """
        name, needs = self.expected.calls[call]
        twins: dict[int, Mapping[str, TensorConstant]] = {call: places}
        for other, (theirs, others_need) in enumerate(self.expected.calls):
            if other != call and needs and others_need == needs and self._alike(name, theirs):
                renamed = {tensor.replace(name, theirs, 1): place for tensor, place in places.items()}
                twins[other] = {
                    tensor: TensorConstant(place.constant, self._form(tensor, place.form))
                    for tensor, place in renamed.items()
                }
        return twins

    def _form(self, tensor: str, like: Form) -> Form:
        return next(form for form in self.expected.forms if form.tensor == tensor and form.how == like.how)

    def _alike(self, name: str, other: str) -> bool:
        """Return whether two modules have equal tensors: a weight, a bias, or both."""
        kinds = [kind for kind in ("weight", "bias") if f"{name}.{kind}" in self.expected.tensors]
        pairs = [
            (self.expected.tensors[f"{name}.{kind}"], self.expected.tensors.get(f"{other}.{kind}")) for kind in kinds
        ]
        return bool(pairs) and all(theirs is not None and np.array_equal(mine, theirs) for mine, theirs in pairs)

    def _needs(self, call: int) -> tuple[int, ...]:
        return self.expected.calls[call][1]

    def _passed_over(self, call: int, folded: frozenset[str]) -> bool:
        """Return whether a call may have no operation: a converter folded it into another one, or computed it."""
        return call not in self.consumed or self.expected.calls[call][0] in folded

    def _behind(self, call: int, folded: frozenset[str]) -> frozenset[int]:
        """Return the calls whose results a call may read: its inputs, and the inputs of inputs without an operation."""
        result: set[int] = set()
        waiting = list(self._needs(call))
        while waiting:
            need = waiting.pop()
            if need not in result:
                result.add(need)
                if self._passed_over(need, folded):
                    waiting.extend(self._needs(need))
        return frozenset(result)

    def _covered(self, need: int, sources: frozenset[int], folded: frozenset[str]) -> bool:
        if need in sources:
            return True
        return self._passed_over(need, folded) and all(
            self._covered(deeper, sources, folded) for deeper in self._needs(need)
        )

    def left_out(self) -> Iterator[str]:
        """Yield a message for each linear that no operation was matched with."""
        for number, (name, needs) in enumerate(self.expected.calls):
            weight = self.expected.tensors.get(f"{name}.weight")
            matrix = needs and weight is not None and weight.ndim == 2 and weight.size >= _SMALL
            if matrix and f"{name}.weight" not in self.consumed.get(number, ()):
                times = len(self.calls[name])
                again = f" in its call {self.calls[name].index(number) + 1} of {times}" if times > 1 else ""
                yield f"{name}.weight is not read{again}"

    def _named(self, calls: Iterable[int]) -> str:
        return " and ".join(self.expected.calls[number][0] for number in sorted(calls)) or "the inputs"


def _module(form: Form) -> str:
    return form.tensor.rpartition(".")[0]
