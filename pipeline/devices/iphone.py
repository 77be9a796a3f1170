"""iPhones and iPads: list them, choose the one of a row, open its transport, and explain errors in one sentence.

`devicectl` reaches iOS 17 and newer from a Mac; `usbmux`, through the package pymobiledevice3, reaches older ones, and
all of them from other systems.
"""

import shutil
from collections.abc import Callable, Sequence

from pipeline.devices import usbmux_remote
from pipeline.devices.iphone_states import AWAY, BEYOND, READY, sentence
from pipeline.devices.table import AttachedPhone, Device
from pipeline.devices.transport import DeviceError, Transport


def attached() -> list[AttachedPhone]:
    """Return the iPhones that this computer knows, and whether each can be used.

    Raises:
        DeviceError: there is nothing here that speaks with them, or it gave up.
    """
    return [one for one, _ in _found()]


def reach(device: Device) -> Transport:
    """Return the transport to a row's phone.

    Raises:
        DeviceError: it is not there, not ready, or it is not clear which one is meant.
    """
    found = _found()
    udid = choose(device, [one for one, _ in found])
    return next(reaches for one, reaches in found if one.serial == udid)(device, udid)


def _found() -> list[tuple[AttachedPhone, Callable[[Device, str], Transport]]]:
    """Return the iPhones that this computer knows, each with its transport: devicectl if it can, else usbmux."""
    from pipeline.devices import devicectl

    by_mac, by_cable = shutil.which("xcrun"), usbmux_remote.interpreter()
    if not by_mac and not by_cable:
        raise DeviceError(
            "there is neither xcrun, which comes with Xcode on a Mac, nor pymobiledevice3, in an environment of its "
            f"own: {usbmux_remote.INSTALL}."
        )
    errors: list[DeviceError] = []

    def seen(ask: Callable[[], list[AttachedPhone]]) -> list[AttachedPhone]:
        """Return the phones of one tool; its failure does not hide the other tool's phones."""
        try:
            return ask()
        except DeviceError as error:
            errors.append(error)
            return []

    served = seen(devicectl.attached) if by_mac else []
    known = {plain(one.serial) for one in served}
    others = [one for one in seen(usbmux_remote.attached) if plain(one.serial) not in known] if by_cable else []
    if errors and not served and not others:
        raise errors[0]
    # Those that devicectl cannot name are among the others.
    return [(one, devicectl.DevicectlPhone) for one in served if one.state != BEYOND or not others] + [
        (one, usbmux_remote.RemoteUsbmuxPhone) for one in others
    ]


def choose(device: Device, found: Sequence[AttachedPhone]) -> str:
    """Return the UDID of a row's phone.

    Raises:
        DeviceError: it is not there, not ready, or it is not clear which one is meant.
    """
    there = ", ".join(f"{one.serial} ({one.model or 'model not known'}, {one.state})" for one in found) or "none"
    near = [one for one in found if one.state not in (AWAY, BEYOND)] or [one for one in found if one.state == BEYOND]
    if device.udid is None and len(near) > 1:
        raise DeviceError(f"{device.name} has no udid in its row, and several iPhones are attached: {there}. Name one.")
    udid = None if device.udid is None else plain(device.udid)
    one = next((one for one in near if udid in (None, plain(one.serial))), None)
    if one is None:
        said = f"no iPhone with UDID {device.udid}" if device.udid else "no iPhone"
        raise DeviceError(
            f"{device.name}: {said} is attached; there are: {there}. Plug it in, unlock it, and look at "
            "`pocketbert devices`."
        )
    if one.state != READY:
        raise DeviceError(sentence(f"{device.name} ({one.serial})", one.state, device.app))
    return one.serial


def plain(udid: str) -> str:
    """Return a UDID without the dash that usbmuxd leaves out, and with the capitals that people leave out."""
    return udid.replace("-", "").upper()
