"""Every room of the package has its layer (`make check` holds that imports point down only), and is in the wheel."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from conftest import REPOSITORY


def test_every_folder_and_module_has_its_layer() -> None:
    contract, _ = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {name.strip() for row in contract["layers"] for name in row.split("|")}
    package = REPOSITORY / "pipeline"
    rooms = {path.name for path in package.iterdir() if (path / "__init__.py").is_file()}
    alone = {path.stem for path in package.glob("[a-z]*.py")} - {"bootstrap"}
    assert layers == {f"pipeline.{name}" for name in rooms | alone}


def test_a_wheel_holds_every_file_of_the_package(tmp_path: Path) -> None:
    """Recipes, devices, templates and constraints too: an installed wheel falls back on nothing."""
    project = tmp_path / "project"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "pipeline", project / "pipeline", ignore=ignored)
    for name in ("pyproject.toml", "README.md"):
        shutil.copyfile(REPOSITORY / name, project / name)
    files = [path.relative_to(project).as_posix() for path in (project / "pipeline").rglob("*") if path.is_file()]
    # The public package is installed under its own name.
    present = {file.removeprefix("pipeline/api/") for file in files}
    options = ["--no-deps", "--no-build-isolation", "-q", "-w", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, project], check=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == present
    assert "pipeline/devices/devices.toml" in packed
