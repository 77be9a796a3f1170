"""Linear maps of an embedding: a checkpoint and texts come in, the checkpoint with a linear in its head goes out.

`adapter` brings a new model's vectors into an old model's space, and `rotation` turns an embedding so that its first
numbers say most; `fitting` computes the maps, `embedding` the vectors. It may import checkpoint, student, heads, text
and data; importing it imports nothing heavy.
"""
