"""Train outside the line, with as many processes as `accelerate launch` starts.

::

    accelerate launch --multi_gpu --num_processes 4 -m pipeline.training RECIPE --out FOLDER

`FOLDER` can then be another recipe's `student.source`.
"""

import argparse
import shutil
import sys
from pathlib import Path

from accelerate import PartialState

from pipeline import finetune, recipe, student
from pipeline.errors import InputError, PipelineError
from pipeline.training import loop


def main() -> int:
    """Train by the recipe; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.training", description="Train by a recipe's [train].")
    parser.add_argument("recipe", help="name of a ready recipe, or path to a .toml")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint; it must not exist")
    asked = parser.parse_args()
    try:
        _train(asked.recipe, asked.out)
    except PipelineError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    return 0


def _train(name: str, out: Path) -> None:
    if out.exists():
        raise InputError(f"{out} exists; name a folder that is not there yet, or remove it.")
    found, file = recipe.read(name)
    checkpoints = out.with_name(f"{out.name}.checkpoints")
    wanted = finetune.job(found, file, student.find(found, file), checkpoints)
    model, record = loop.train(wanted, _print)
    if PartialState().is_main_process:
        aside = out.with_name(f"{out.name}.new")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        finetune.write(model, record, wanted.source, aside)
        aside.rename(out)
        shutil.rmtree(checkpoints, ignore_errors=True)
        print(f"{out}: {record.metric} {record.dev[-1].value:.4f} on {record.dataset}")


def _print(what: str, fraction: float) -> None:
    if PartialState().is_main_process:
        print(f"{fraction:6.1%}  {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
