"""Prune stage: a folder in Hugging Face layout and calibration texts become a folder of a smaller dense student.

`stage` runs and tries it; `pruning` joins its steps: `checks`, `importance`, `search`, `selection`, `removal`,
`reconstruction`. It may import checkpoint, text, data, train and the LiteRT format; importing it imports nothing
heavy.
"""

from pipeline.compress.prune.stage import DISTRIBUTIONS, LATENCY_VERSION, VERSION, check_section, make, trial
from pipeline.recipe.compression import PruneSection

__all__ = ["DISTRIBUTIONS", "LATENCY_VERSION", "VERSION", "PruneSection", "check_section", "make", "trial"]
