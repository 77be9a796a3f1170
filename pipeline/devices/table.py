"""The devices on which latency is measured: one row each in `devices.toml`, each with its transport."""

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
    """The module of this package that reaches it."""
    summary: str


def read_devices(table: Path = TABLE) -> dict[str, Device]:
    """Read the table of devices, by name.

    Raises:
        RecipeError: the table is absent or malformed.
    """
    try:
        rows = tomllib.loads(table.read_text(encoding="utf-8"))["devices"]
        return {name: Device(name=name, **row) for name, row in rows.items()}
    except OSError as error:
        raise RecipeError(
            f"{table} cannot be read: {error.strerror}. The table of devices is a part of PocketBERT; install it again."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, ValidationError, KeyError) as error:
        raise RecipeError(f"{table} is malformed: {str(error).splitlines()[0]}.") from error


def find_device(name: str) -> Device:
    """Return a device's row.

    Raises:
        RecipeError: there is no such row, or no readable table.
    """
    devices = read_devices()
    if name not in devices:
        raise RecipeError(
            f"device {name!r} does not exist; there are: {', '.join(devices)}. Add a row to {TABLE.name}."
        )
    return devices[name]
