"""What is known before anything runs: schemes that a backend's table says are not right on an older runtime."""

from collections.abc import Sequence

from pipeline import backends
from pipeline.compat.runtimes import Runtime, find, of_backend, version_numbers


def refusal(backend: str, name: str, schemes: Sequence[str]) -> str | None:
    """Say why a recipe may not ask for a minimum runtime, or return None.

    Args:
        backend: whose files are meant.
        name: a runtime's name, such as `litert-1.2.0`.
        schemes: the recipe's schemes for that backend.
    """
    runtime = find(name)
    able = of_backend(backend)
    if runtime is None or runtime not in able:
        exist = ", ".join(one.name for one in able) or f"none: older runtimes are not tried for {backend}"
        return f"{name!r} is no runtime of {backend}'s files; there are: {exist}."
    wrong = [scheme for scheme in schemes if not known_right(scheme, runtime)]
    if not wrong:
        return None
    floors = [one.name for one in able if all(known_right(scheme, one) for scheme in schemes)]
    kept = [scheme for scheme in schemes if scheme not in wrong]
    kept_text = f"keep only {', '.join(kept)}, or " if kept else ""
    return f"{', '.join(wrong)} is not computed right by {name}. Either {kept_text}ask for one of: {', '.join(floors)}."


def known_right(scheme: str, runtime: Runtime) -> bool:
    """Whether the backend's table has nothing against a scheme on a runtime."""
    known = getattr(backends.get(runtime.backend), "RIGHT_FROM", {}).get(scheme, {})
    if runtime.distribution not in known:
        return True
    oldest = known[runtime.distribution]
    return oldest is not None and runtime.numbers >= version_numbers(oldest)
