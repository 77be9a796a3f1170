"""In: a recipe. Out: its graph of nodes (`build`), carried out by an executor (`local` or `ray`) into the store.

`node`, `worker` and `store` know no stage and lie below all rooms; `checkpoints`, `build` and `run` ask every stage
for its nodes and lie above all but the command. No stage imports what lies above it.
"""
