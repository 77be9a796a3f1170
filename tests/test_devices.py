"""The table of devices, and the description of this machine."""

import sys
from pathlib import Path

import pytest

from pipeline.devices import host
from pipeline.devices.table import find_device, read_devices
from pipeline.errors import RecipeError


def test_the_table_of_the_package_has_the_host() -> None:
    assert find_device("host") == read_devices()["host"]
    with pytest.raises(
        RecipeError, match=r"'phone' does not exist; there are: host, android, iphone\. Add a row to devices\.toml"
    ):
        find_device("phone")


def test_a_package_without_its_table_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"devices\.toml cannot be read: No such file .*; install it again"):
        read_devices(tmp_path / "devices.toml")


MALFORMED = {
    "not TOML": "[devices",
    "no table": "[phones.host]\n",
    "unknown transport": '[devices.host]\ntransport = "pigeon"\nsummary = "a"\n',
    "unknown key": '[devices.host]\ntransport = "host"\nsummary = "a"\ncolour = "red"\n',
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_table_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "devices.toml").write_text(MALFORMED[name])
    with pytest.raises(RecipeError, match=r"devices\.toml is malformed"):
        read_devices(tmp_path / "devices.toml")


def test_this_machine_is_described() -> None:
    machine = host.describe()
    assert machine.platform == sys.platform
    assert machine.cores >= host.usable_cores() >= 1
    assert machine.ram_bytes > 2**30
    assert machine.cpu_features == host.cpu_features()
