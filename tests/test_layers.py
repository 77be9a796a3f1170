"""Every room of the package has its floor; `make check` holds that imports point down only."""

import tomllib

from conftest import REPOSITORY


def test_every_folder_and_module_has_its_layer() -> None:
    (contract,) = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {name.strip() for row in contract["layers"] for name in row.split("|")}
    package = REPOSITORY / "pipeline"
    rooms = {path.name for path in package.iterdir() if (path / "__init__.py").is_file()}
    # Rooms with several floors name each of their modules.
    split = {layer.split(".")[1] for layer in layers if layer.count(".") == 2}
    modules = {f"pipeline.{room}.{path.stem}" for room in split for path in (package / room).glob("[a-z]*.py")}
    alone = {path.stem for path in package.glob("[a-z]*.py")} - {"bootstrap"}
    expected = {f"pipeline.{name}" for name in (rooms - split) | alone} | modules
    assert layers == expected
