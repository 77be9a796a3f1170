"""Factorise stage: a folder in Hugging Face layout and calibration texts become a folder with low-rank factors.

`stage` runs and tries it; `ranks` chooses, `lowrank` decomposes, `factors` replaces modules. It may import what
`compress.prune` may, and that; importing it imports nothing heavy.
"""

from pipeline.compress.factorise.stage import DISTRIBUTIONS, VERSION, check_section, make, trial
from pipeline.recipe.compression import FactoriseSection, Rank

__all__ = ["DISTRIBUTIONS", "VERSION", "FactoriseSection", "Rank", "check_section", "make", "trial"]
