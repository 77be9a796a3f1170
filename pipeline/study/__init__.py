"""Studies: a search over a recipe's own keys for the best student under a budget, and the front that it finds.

In: a spec (TOML), a recipe and the build folder. Out: records of trials, a recipe and a page. It may import planning,
benchmark and everything below; nothing but the command imports it. Optuna proposes; the graph of nodes does the work.
"""
