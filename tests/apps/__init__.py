"""What the apps' cores are checked with: vectors of the reference library, and the commands that run both cores' tests.

In: this checkout, and optionally POCKETBERT_DATA. Out: `build/apps/`, and the counts that `make core-check` prints.
"""
