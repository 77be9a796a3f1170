"""In: a checked checkpoint and a recipe. Out: the student artifact with its golden rows, and the reference's outputs.

May import checkpoint, data, text, metrics and what they import. Torch is imported in workers only.
"""
