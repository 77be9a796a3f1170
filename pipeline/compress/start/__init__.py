"""Start stage: a folder in Hugging Face layout becomes a folder of a student: fewer layers, less width, another class.

`stage` runs it; `checks` refuses what the teacher cannot give, `reshaping` copies weights between architectures. It may
import checkpoint, text and its sibling `prune`; importing it imports nothing heavy.
"""
