"""ExecuTorch: one `.pte` whose method `forward` takes any length up to the longest, run through XNNPACK.

Offers the names of `formats.Backend`; may import `pipeline.checkpoint` and what lies below it.
"""

from pipeline.formats.executorch.convert import (
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
from pipeline.formats.executorch.facts import (
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
from pipeline.formats.executorch.reader import claims, inspect, structure
from pipeline.formats.executorch.session import (
    evaluators,
    import_runtime,
    load,
    load_control,
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
    "load_control",
    "no_runtime",
    "operations",
    "structure",
]
