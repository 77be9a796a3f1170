"""Vocabulary stage: a folder in Hugging Face layout and a corpus become a folder with fewer tokens and embeddings.

`stage` runs and tries it; `selection` chooses tokens, by `families` of tokenizers, and `trimming` writes them. It may
import checkpoint, text and data; importing it imports nothing heavy.
"""

from pipeline.compress.vocabulary.stage import DISTRIBUTIONS, VERSION, check, digests, make, read_corpus, trial

__all__ = ["DISTRIBUTIONS", "VERSION", "check", "digests", "make", "read_corpus", "trial"]
