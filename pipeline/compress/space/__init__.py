"""The space of an embedding: a checkpoint and texts come in, and one in the same space, or in another's, goes out.

`adapter` brings a new model's vectors into an old model's space, and `rotation` turns an embedding so that its first
numbers say most, both by a linear in its head; `table` puts a static table in the encoder's place. `fitting` computes
the linear maps, `bags` the table, `embedding` the vectors. It may import checkpoint, student, heads, text and data;
importing it imports nothing heavy.
"""
