"""Devices: rows of `pipeline/devices/devices.toml`, reached through one transport module each."""

import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.errors import RecipeError

TABLE = Path(__file__).with_name("devices.toml")


class Device(BaseModel):
    """One row: a machine on which latency is measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    transport: Literal["host"]
    summary: str


def read() -> dict[str, Device]:
    """Read the table of devices; without one, the host is all there is."""
    if not TABLE.is_file():
        return {"host": Device(name="host", transport="host", summary="this machine")}
    try:
        table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
        return {name: Device(name=name, **row) for name, row in table["devices"].items()}
    except (tomllib.TOMLDecodeError, ValidationError, KeyError) as error:
        raise RecipeError(f"{TABLE} is malformed: {str(error).splitlines()[0]}.") from error


def get(name: str) -> Device:
    """Return a device's row.

    Raises:
        RecipeError: there is no such row.
    """
    devices = read()
    if name not in devices:
        raise RecipeError(
            f"device {name!r} does not exist; there are: {', '.join(devices)}. Add a row to {TABLE.name}."
        )
    return devices[name]
