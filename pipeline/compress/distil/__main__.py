"""Distil without the graph, in as many processes as `accelerate launch` starts.

::

    accelerate launch -m pipeline.compress.distil SETTINGS.toml \
        --student FOLDER --teacher FOLDER --task embedding --out FOLDER

The file has the keys of a recipe's `[distil]`; its paths are relative to its own folder, and the `unpruned` checkpoint
is the teacher.
"""

import argparse
import sys
import tomllib
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from pipeline import tasks
from pipeline.checkpoint.source import inspect_folder
from pipeline.compress.distil import stage
from pipeline.compress.distil.dataset import find_data
from pipeline.errors import RecipeError
from pipeline.recipe.distillation import UNPRUNED, DistilSection
from pipeline.recipe.schema import RENAMED
from pipeline.train import launch


def main() -> int:
    """Distil by the settings; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.compress.distil", description="Distil by a file of settings."
    )
    parser.add_argument("settings", type=Path, help="TOML with the keys of a recipe's [distil]")
    parser.add_argument("--student", type=Path, required=True, help="folder of the checkpoint to begin with")
    parser.add_argument("--teacher", type=Path, help="folder of the teacher, if a loss needs one")
    parser.add_argument("--own", type=Path, help="folder of the checkpoint before compression, for space = 'own'")
    parser.add_argument("--task", required=True, help="a task's name, such as embedding")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint; it must not exist")
    return launch.exit_code_of(partial(_distil, parser.parse_args()))


def _distil(arguments: argparse.Namespace) -> None:
    checkpoints = launch.checkpoints_beside(arguments.out)
    section = _read(arguments.settings)
    if section.teacher != UNPRUNED:
        raise RecipeError(
            f"{arguments.settings}: teacher = {section.teacher!r} is for recipes. Name the teacher by --teacher here."
        )
    teacher: Path | None = arguments.teacher
    unpruned = inspect_folder(teacher, origin=teacher.name, licence=None) if teacher else None
    data = find_data(section, tasks.get(arguments.task), unpruned, arguments.settings)
    job = stage.job(arguments.student, teacher, arguments.task, section, data, checkpoints, arguments.own)
    model, record = stage.distil(job, launch.print_progress)
    launch.publish(
        arguments.out,
        partial(stage.write, model, record, job.source),
        lambda: f"loss {record.curve[0].loss:.4f} to {record.curve[-1].loss:.4f}",
    )


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
