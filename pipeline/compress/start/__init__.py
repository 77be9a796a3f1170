"""Start stage: a folder in Hugging Face layout becomes a folder of a student: fewer layers, less width, another class.

`stage` runs and tries it; `kinds` has a function for each kind of start that keeps the architecture, and the others
are their architectures'. It may import checkpoint and text; importing it imports nothing heavy.
"""

from pipeline.compress.start.stage import VERSION, make, trial

__all__ = ["VERSION", "make", "trial"]
