"""Facts about Core ML for other modules."""

from collections.abc import Mapping

import numpy as np

from pipeline.formats.browsers import BrowserRuntime
from pipeline.formats.rounding import ComputedAs, Rounding
from pipeline.formats.runners import PhoneRunner

TITLE = "Core ML"
DELEGATE = "Core ML"
RUNTIME: str | None = None
CONVERT_SECONDS = 20.0
APPS = ("ios",)
DRAFTED: tuple[str, bool] = ("int8_weight_only", True)
COMPUTE_UNITS = ("ALL", "CPU_AND_NE", "CPU_AND_GPU", "CPU_ONLY")
MINIMUM_RUNTIME = "iOS 18 / macOS 15 (recipe: minimum_ios)"
ROUNDING = Rounding(127, dtype=np.float16)
"""Rounding of coremltools 9.0, in half precision."""
COMPUTED_AS: Mapping[str, ComputedAs] = {}
PHONE_RUNNER: PhoneRunner | None = None

BROWSER_RUNTIME: BrowserRuntime | None = None
