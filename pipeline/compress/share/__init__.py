"""Share stage: a folder in Hugging Face layout becomes a folder whose layers are tied, each tied sublayer stored once.

`stage` runs and tries it; `tying` aligns and averages. It may import checkpoint, text and its siblings `prune` and
`factorise`; importing it imports nothing heavy.
"""

from pipeline.compress.share.stage import DISTRIBUTIONS, VERSION, make, trial

__all__ = ["DISTRIBUTIONS", "VERSION", "make", "trial"]
