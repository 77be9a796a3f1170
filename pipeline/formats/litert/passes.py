"""Skip work of litert-torch that it has done before. The files are the same, byte for byte.

litert-torch 0.10 traces the graph of every length three times, and lowers most operations by JAX.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from pipeline.formats import replaced

_K = TypeVar("_K")
_V = TypeVar("_V")

_LOWERED: dict[Any, str] = {}
"""JAX's text of an operation: 50 of 600 bytes for a length of MiniLM. Kept for the next conversion of the process."""
_SERIALISED: dict[str, bytes] = {}
"""The same in bytes, by the text."""


@contextmanager
def fewer() -> Iterator[None]:
    """Decompose each signature's graph once, and let JAX lower an operation with the same shapes once a process."""
    from litert_torch._convert import core
    from litert_torch.backend.jax_bridge import _wrap

    # Its own passes take a graph that is not decomposed, as they do in its second converter.
    export = partial(core.export_torch_signature, run_decompositions=False)
    lower, serialise = _wrap._lower_to_ir_text, _wrap._stablehlo_to_vhlo

    def lower_once(function: Any, args: Any, kwargs: Any, ir_input_names: Any = None) -> tuple[Callable[[], str], Any]:
        ask, inputs = lower(function, args, kwargs, ir_input_names=ir_input_names)
        found = _wrap.get_cache_fingerprint(function, args, kwargs, ir_input_names)
        # 1, 1.0 and True are equal in a key, but make different operations.
        return (ask if found is None else partial(_remembered, _LOWERED, (found, repr(found)), ask)), inputs

    def serialise_once(text: str) -> bytes:
        return _remembered(_SERIALISED, text, partial(serialise, text))

    with (
        replaced(core, "export_torch_signature", export),
        replaced(_wrap, "_lower_to_ir_text", lower_once),
        replaced(_wrap, "_stablehlo_to_vhlo", serialise_once),
    ):
        yield


def _remembered(known: dict[_K, _V], key: _K, make: Callable[[], _V]) -> _V:
    if key not in known:
        known[key] = make()
    return known[key]
