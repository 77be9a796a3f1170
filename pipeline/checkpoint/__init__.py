"""In: where a checkpoint is, as a recipe names it. Out: its checked files and config, its layers, its model in torch.

May import errors, artifact, tasks, recipe.schema, text and data. Only `loading` and `shapes` import torch.
"""
