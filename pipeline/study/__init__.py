"""Studies: a search over a recipe's own keys for the best student under a budget.

In: a spec (TOML), a recipe and the build folder. Out: trials, and the record that `pipeline.fronts` reads and shows.
Optuna proposes; the graph of nodes does the work.
"""
