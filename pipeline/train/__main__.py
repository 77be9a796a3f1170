"""Train outside the line, with as many processes as `accelerate launch` starts.

::

    accelerate launch --multi_gpu --num_processes 4 -m pipeline.train RECIPE --out FOLDER

`FOLDER` can then be another recipe's `student.source`.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from pipeline.checkpoint import source as student
from pipeline.recipe import loading as recipe
from pipeline.train import loop, outside
from pipeline.train import stage as finetune
from pipeline.train.record import Training


def main() -> int:
    """Train by the recipe; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.train", description="Train by a recipe's [train].")
    parser.add_argument("recipe", help="name of a ready recipe, or path to a .toml")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint; it must not exist")
    asked = parser.parse_args()
    return outside.answered(partial(_train, asked.recipe, asked.out))


def _train(name: str, out: Path) -> None:
    checkpoints = outside.checkpoints(out)
    found, file = recipe.read(name)
    wanted = finetune.job(found, file, student.find(found, file), checkpoints)
    model, record = loop.train(wanted, outside.told)
    outside.keep(out, partial(finetune.write, model, record, wanted.source), partial(_said, record))


def _said(record: Training) -> str:
    return f"{record.metric} {record.dev[-1].value:.4f} on {record.dataset}"


if __name__ == "__main__":
    sys.exit(main())
