"""Core ML: one `.mlpackage` with a function per length, made on any machine, run on macOS or by `pipeline.mil`.

Offers the names of `formats.Backend`; may import `pipeline.mil`, `pipeline.checkpoint` and what lies below them.
"""

from pipeline.formats.coreml.convert import (
    BASE_SCHEME,
    CONVERTS,
    DISTRIBUTIONS,
    FILE,
    VERSION,
    convert,
    function_names,
    lengths_in_file,
    operations,
)
from pipeline.formats.coreml.facts import (
    APPS,
    BROWSER_RUNTIME,
    COMPUTE_UNITS,
    COMPUTED_AS,
    CONVERT_SECONDS,
    DELEGATE,
    DRAFTED,
    MINIMUM_RUNTIME,
    PHONE_RUNNER,
    ROUNDING,
    RUNTIME,
    TITLE,
)
from pipeline.formats.coreml.reader import claims, inspect, structure
from pipeline.formats.coreml.session import (
    evaluators,
    import_runtime,
    load,
    load_compute_unit,
    load_control,
    load_interpreter,
    no_runtime,
)

__all__ = [
    "APPS",
    "BASE_SCHEME",
    "BROWSER_RUNTIME",
    "COMPUTED_AS",
    "COMPUTE_UNITS",
    "CONVERTS",
    "CONVERT_SECONDS",
    "DELEGATE",
    "DISTRIBUTIONS",
    "DRAFTED",
    "FILE",
    "MINIMUM_RUNTIME",
    "PHONE_RUNNER",
    "ROUNDING",
    "RUNTIME",
    "TITLE",
    "VERSION",
    "claims",
    "convert",
    "evaluators",
    "function_names",
    "import_runtime",
    "inspect",
    "lengths_in_file",
    "load",
    "load_compute_unit",
    "load_control",
    "load_interpreter",
    "no_runtime",
    "operations",
    "structure",
]
