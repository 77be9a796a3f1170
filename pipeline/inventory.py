"""What exists: the tables behind `pocketbert list`."""

import importlib.metadata

from pipeline import backends, devices, recipe
from pipeline.architectures import ARCHITECTURES, UNSUPPORTED
from pipeline.quantize import SCHEMES
from pipeline.tasks import TASKS


def take() -> dict[str, dict[str, str]]:
    """Return every table, name to description; nothing heavy is imported."""
    return {
        "architectures": {name: ", ".join(row.inputs) for name, row in ARCHITECTURES.items()}
        | {name: f"UNSUPPORTED, {reason}" for name, reason in UNSUPPORTED.items()},
        "tasks": {name: f"{row.auto_class}: {row.output_kind}" for name, row in TASKS.items()},
        "backends": {name: _backend(name) for name in backends.NAMES},
        "schemes": {name: _scheme(name) for name in SCHEMES},
        "devices": {name: row.summary for name, row in devices.read().items()},
        "recipes": {name: _recipe(name) for name in recipe.names()},
    }


def _backend(name: str) -> str:
    backend = backends.get(name)
    distribution = backend.DISTRIBUTIONS[0]
    try:
        installed = f"{distribution} {importlib.metadata.version(distribution)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{backend.TITLE}: not installed, {distribution} is missing; run `make setup`"
    reason = backend.no_runtime()
    return f"{backend.TITLE}: {installed}" + (f"; converts, but {reason}" if reason else "")


def _scheme(name: str) -> str:
    lines = [SCHEMES[name].summary]
    for backend in backends.NAMES:
        support = backends.get(backend).support(name, minimum_ios=18)
        if not support.supported:
            lines.append(f"{backend}: UNSUPPORTED, {support.reason}")
    return "\n".join(lines)


def _recipe(name: str) -> str:
    parsed, _ = recipe.read(name)
    targets = sum(len(section.schemes) for section in parsed.targets.values())
    return f"{parsed.student.source}, {parsed.task}, {targets} targets"
