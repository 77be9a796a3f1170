"""Distil outside the line, with as many processes as `accelerate launch` starts.

::

    accelerate launch -m pipeline.distil SETTINGS.toml --student FOLDER --teacher FOLDER --task embedding --out FOLDER

The file holds what a recipe's `[distil]` holds; its text files are meant from where it lies.
"""

import argparse
import shutil
import sys
import tomllib
from pathlib import Path

from accelerate import PartialState
from pydantic import ValidationError

from pipeline.distil import stage
from pipeline.distil.section import DistilSection
from pipeline.errors import InputError, PipelineError, RecipeError


def main() -> int:
    """Distil by the settings; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.distil", description="Distil by a file of settings.")
    parser.add_argument("settings", type=Path, help="TOML with the keys of a recipe's [distil]")
    parser.add_argument("--student", type=Path, required=True, help="folder of the checkpoint to begin with")
    parser.add_argument("--teacher", type=Path, help="folder of the teacher, where a loss compares with one")
    parser.add_argument("--task", required=True, help="a task's name, such as embedding")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint; it must not exist")
    asked = parser.parse_args()
    try:
        _distil(asked)
    except PipelineError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    return 0


def _distil(asked: argparse.Namespace) -> None:
    out: Path = asked.out
    if out.exists():
        raise InputError(f"{out} exists; name a folder that is not there yet, or remove it.")
    section = _read(asked.settings)
    checkpoints = out.with_name(f"{out.name}.checkpoints")
    files = stage.files_of(section, asked.settings)
    wanted = stage.work(asked.student, asked.teacher, asked.task, section, files, checkpoints)
    model, record = stage.distil(wanted)
    if PartialState().is_main_process:
        aside = out.with_name(f"{out.name}.new")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        stage.write(model, record, wanted.source, aside)
        aside.rename(out)
        shutil.rmtree(checkpoints, ignore_errors=True)
        print(f"{out}: loss {record.curve[0].loss:.4f} to {record.curve[-1].loss:.4f}")


def _read(path: Path) -> DistilSection:
    try:
        return DistilSection.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except FileNotFoundError as error:
        raise RecipeError(f"{path} does not exist.") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise RecipeError(f"{path}: {key}: {first['msg']}.") from error
    except ValueError as error:
        raise RecipeError(f"{path} is not valid TOML in UTF-8: {error}.") from error


if __name__ == "__main__":
    sys.exit(main())
