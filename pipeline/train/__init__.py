"""Training: a checkpoint, labelled rows and a recipe's `[train]` come in; a trained checkpoint and its record go out.

`loop` runs any objective (`objectives`), `stage` fine-tunes and writes, `__main__` does so under `accelerate launch`.
It may import what lies below it (recipe, checkpoint, text, data, metrics, student), and never `pipeline.compress`.
"""
