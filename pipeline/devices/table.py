"""The devices on which latency is measured: one row each in `devices.toml`, each with its transport."""

import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.errors import RecipeError

TABLE = Path(__file__).with_name("devices.toml")


Transport = Literal["host", "adb"]


class Device(BaseModel):
    """One row: a machine on which latency is measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    transport: Transport
    """The module of this package that reaches it."""
    summary: str
    serial: str | None = None
    """As `pocketbert devices` shows it; without one it is the only one that is attached."""
    address: str | None = None
    """`HOST:PORT` of a phone that is reached through the network."""
    storage: str = "/sdcard"
    """Where the phone shows the storage that its user sees; a work profile has another."""
    runners: dict[Literal["litert", "executorch"], Path] = {}
    """Programs of the runtimes, built for the phone: LiteRT's `benchmark_model`, ExecuTorch's `executor_runner`."""
    start_below_c: float | None = 37.0
    """A phone is waited for until it is cooler than this, in degrees Celsius."""

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends whose files it runs."""
        return {"host": ("litert", "coreml", "executorch"), "adb": ("litert", "executorch")}[self.transport]


class Attached(BaseModel):
    """A phone that is attached, whether it has a row or not."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    serial: str
    state: str
    model: str | None


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


def all_devices(beside: Path | None = None) -> dict[str, Device]:
    """Return the package's devices, and the user's own.

    Args:
        beside: folder of the recipe, whose `devices.toml` is the user's; None: the present folder.

    Raises:
        RecipeError: a table is malformed.
    """
    own = (beside or Path()) / TABLE.name
    return read_devices() | (read_devices(own) if own.is_file() else {})


def find_device(name: str, beside: Path | None = None) -> Device:
    """Return a device's row.

    Args:
        name: of the device.
        beside: see `all_devices`.

    Raises:
        RecipeError: there is no such row, or no readable table.
    """
    devices = all_devices(beside)
    if name not in devices:
        raise RecipeError(
            f"device {name!r} does not exist; there are: {', '.join(devices)}. Add a row to {TABLE.name} "
            "beside the recipe."
        )
    return devices[name]
