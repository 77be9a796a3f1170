"""Distil outside the line, with as many processes as `accelerate launch` starts.

::

    accelerate launch -m pipeline.compress.distil SETTINGS.toml \
        --student FOLDER --teacher FOLDER --task embedding --out FOLDER

The file holds what a recipe's `[distil]` holds; its files are meant from where it lies, and the
`unpruned` checkpoint is the teacher.
"""

import argparse
import sys
import tomllib
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from pipeline import tasks
from pipeline.checkpoint import source as student
from pipeline.compress.distil import material, stage
from pipeline.compress.distil.stage import Distilled
from pipeline.errors import RecipeError
from pipeline.recipe.compression import UNPRUNED, DistilSection
from pipeline.recipe.schema import RENAMED
from pipeline.train import launch


def main() -> int:
    """Distil by the settings; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.compress.distil", description="Distil by a file of settings."
    )
    parser.add_argument("settings", type=Path, help="TOML with the keys of a recipe's [distil]")
    parser.add_argument("--student", type=Path, required=True, help="folder of the checkpoint to begin with")
    parser.add_argument("--teacher", type=Path, help="folder of the teacher, where a loss compares with one")
    parser.add_argument("--task", required=True, help="a task's name, such as embedding")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint; it must not exist")
    asked = parser.parse_args()
    return launch.exit_code_of(partial(_distil, asked))


def _distil(asked: argparse.Namespace) -> None:
    checkpoints = launch.checkpoints_beside(asked.out)
    section = _read(asked.settings)
    if section.teacher != UNPRUNED:
        raise RecipeError(f"{asked.settings}: teacher = {section.teacher!r} is for recipes; name it by --teacher here.")
    unpruned = student.inspect_folder(asked.teacher, origin=asked.teacher.name, licence=None) if asked.teacher else None
    found = material.find(section, tasks.get(asked.task), unpruned, asked.settings)
    wanted = stage.work(asked.student, asked.teacher, asked.task, section, found, checkpoints)
    model, record = stage.distil(wanted, launch.print_progress)
    launch.publish(asked.out, partial(stage.write, model, record, wanted.source), partial(_said, record))


def _said(record: Distilled) -> str:
    return f"loss {record.curve[0].loss:.4f} to {record.curve[-1].loss:.4f}"


def _read(path: Path) -> DistilSection:
    try:
        return DistilSection.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except FileNotFoundError as error:
        raise RecipeError(f"{path} does not exist.") from error
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if f"distil.{key}" in RENAMED:
            raise RecipeError(f"{path}: distil.{key} was renamed {RENAMED[f'distil.{key}']}.") from error
        raise RecipeError(f"{path}: {key}: {first['msg']}.") from error
    except ValueError as error:
        raise RecipeError(f"{path} is not valid TOML in UTF-8: {error}.") from error


if __name__ == "__main__":
    sys.exit(main())
