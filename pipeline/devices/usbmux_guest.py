"""Carries out one call for `usbmux_remote`, in the environment of pymobiledevice3: JSON in, one line of JSON out."""

import base64
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

from pipeline.devices import usbmux
from pipeline.devices.table import Device
from pipeline.devices.transport import DeviceError
from pipeline.devices.usbmux_remote import PACKAGE


def answer(said: dict[str, Any]) -> Any:
    """Return the result of a call as a JSON value.

    Raises:
        DeviceError: the phone did not do what it should.
    """
    _want(said["version"])
    method = said["method"]
    if method == "attached":
        return [one.model_dump(mode="json") for one in usbmux.attached()]
    phone = usbmux.UsbmuxPhone(Device.model_validate(said["device"]), said["udid"])
    given = said["given"]
    if method == "put":
        run, files = given
        read = {
            path: Path(one["file"]) if "file" in one else base64.b64decode(one["data"]) for path, one in files.items()
        }
        phone.put(run, read, lambda what, share: None)
        return None
    result = getattr(phone, method)(*given)
    return base64.b64encode(result).decode() if isinstance(result, bytes) else result


def _want(version: str) -> None:
    """Refuse any release of pymobiledevice3 other than the given, tested one."""
    try:
        found = importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    if found != version:
        raise DeviceError(
            f"{sys.executable} has {PACKAGE} {found}, and {version} is the one that was tried: "
            f"`{sys.executable} -m pip install {PACKAGE}=={version}`."
        )


def main() -> int:
    """Read a call from standard input, and print its result or its error as JSON."""
    said = json.loads(sys.stdin.read())
    try:
        found: dict[str, Any] = {"result": answer(said)}
    except DeviceError as error:
        found = {"error": str(error)}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
