"""In: a recipe, or a checkpoint to draft one for. Out: its graph of nodes, carried out; its views, and their cleaning.

The only room that knows all stages, and no stage imports it. May import everything but the command.
"""
