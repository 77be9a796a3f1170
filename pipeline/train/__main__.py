"""Train without the graph, in as many processes as `accelerate launch` starts.

::

    accelerate launch --multi_gpu --num_processes 4 -m pipeline.train RECIPE --out FOLDER

`FOLDER` can then be another recipe's `student.source`.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from pipeline.checkpoint import source
from pipeline.recipe import loading
from pipeline.train import launch, stage


def main() -> int:
    """Train by the recipe; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.train", description="Train by a recipe's [train].")
    parser.add_argument("recipe", help="name of a ready recipe, or path to a .toml")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint; it must not exist")
    arguments = parser.parse_args()
    return launch.exit_code_of(partial(_train, arguments.recipe, arguments.out))


def _train(name: str, out: Path) -> None:
    checkpoints = launch.checkpoints_beside(out)
    recipe, recipe_file = loading.read_recipe(name)
    job = stage.job(recipe, recipe_file, source.find(recipe, recipe_file), checkpoints)
    model, record = stage.fine_tune(job, launch.print_progress)
    launch.publish(
        out,
        partial(stage.write, model, record, job.source),
        lambda: f"{record.metric} {record.dev[-1].value:.4f} on {record.dataset}",
    )


if __name__ == "__main__":
    sys.exit(main())
