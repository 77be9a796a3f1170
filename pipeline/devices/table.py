"""The devices on which latency is measured: one row each in `devices.toml`, each with its transport."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from pipeline.devices.headless import ComputeUnits
from pipeline.errors import RecipeError

TABLE = Path(__file__).with_name("devices.toml")


Transport = Literal["host", "adb", "ios"]


@dataclass(frozen=True)
class _Facts:
    """What a transport decides of its devices."""

    app_system: str | None = None
    """The system of the demo app, as in the formats' `APPS`; None for a machine that needs no app."""
    keys: tuple[str, ...] = ()
    """Keys of a row that mean something for this transport alone."""
    defaults: Mapping[str, Any] = field(default_factory=dict)


_FACTS: Mapping[Transport, _Facts] = {
    "host": _Facts(),
    "adb": _Facts("android", ("serial", "address", "storage", "runners", "start_below_c"), {"start_below_c": 37.0}),
    "ios": _Facts("ios", ("udid", "app", "compute_units", "start_thermal"), {"start_thermal": "nominal"}),
}


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
    runners: dict[str, Path] = {}
    """Programs of the runtimes, built for the phone: LiteRT's `benchmark_model`, ExecuTorch's `executor_runner`."""
    start_below_c: float | None = None
    """A phone is waited for until it is cooler than this, in degrees Celsius; iOS tells an app no temperature."""
    start_thermal: str | None = None
    """A phone is waited for until its thermal state is this or cooler, in the system's own words."""
    udid: str | None = None
    """An iPhone's, as `pocketbert devices` shows it; without one it is the only one that is attached."""
    app: str = "com.pocketbert.demo"
    """Bundle id of the demo app on an iPhone: a team that is not ours signs it under another."""
    compute_units: tuple[ComputeUnits, ...] = get_args(ComputeUnits)
    """Where Core ML may run a model; each has a record of its own."""

    @model_validator(mode="before")
    @classmethod
    def _of_its_transport(cls, row: Mapping[str, Any]) -> dict[str, Any]:
        transport = row.get("transport")
        defaults: Mapping[str, Any] = {}
        for owner, facts in _FACTS.items():
            if owner == transport:
                defaults = facts.defaults
            elif alien := [key for key in row if key in facts.keys]:
                raise ValueError(f"{alien[0]} is a key of {owner} devices, and this one is reached by {transport}")
        return {**defaults, **row}

    @property
    def app_system(self) -> str | None:
        """The system of the demo app on it, as in the formats' `APPS`; None for this machine, which needs no app."""
        return _FACTS[self.transport].app_system


class AttachedPhone(BaseModel):
    """A phone that is attached, whether it has a row or not."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    serial: str
    """Serial of an Android phone, UDID of an iPhone."""
    state: str
    model: str | None


def read_devices(table: Path = TABLE) -> dict[str, Device]:
    """Read the table of devices, by name.

    Raises:
        RecipeError: the table is absent or malformed.
    """
    try:
        rows = tomllib.loads(table.read_text(encoding="utf-8"))["devices"]
        return {name: Device.model_validate({"name": name, **row}) for name, row in rows.items()}
    except OSError as error:
        raise RecipeError(
            f"{table} cannot be read: {error.strerror}. The table of devices is a part of PocketBERT; install it again."
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "a row"
        raise RecipeError(f"{table} is malformed: {key}: {first['msg'].removeprefix('Value error, ')}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
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
