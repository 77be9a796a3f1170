"""Recipes: TOML files in, frozen models out, with the ready recipes in `library/`.

Nothing here looks at data or checkpoints, but for `init`, which drafts a recipe for a checkpoint and stands above them.
May import tasks, schemes and runtimes.
"""
