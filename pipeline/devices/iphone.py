"""iPhones and iPads: list them, choose the one of a row, open its transport, and explain errors in one sentence.

`devicectl` reaches iOS 17 and newer from a Mac; `usbmux`, through the package pymobiledevice3, reaches older ones, and
all of them from other systems.
"""

import re
import shutil
from collections.abc import Callable, Mapping, Sequence

from pipeline.devices import usbmux_remote
from pipeline.devices.table import Attached, Device
from pipeline.devices.transport import DeviceError, Transport

READY, UNPAIRED, AWAY, NO_DEVELOPER = "ready", "unpaired", "away", "Developer Mode off"
"""States of an iPhone: it can be used; it does not trust this computer; it is known here, and out of reach."""
BEYOND = "not served by devicectl"
"""State of a phone that devicectl lists without details: iOS 16 or older, or never connected before."""
LOST = "was lost"
NOT_INSTALLED = "is not installed"
_SAID: Mapping[str, str] = {
    BEYOND: "is not served by devicectl, which wants iOS 17; pymobiledevice3 reaches an older one on a cable: "
    f"{usbmux_remote.INSTALL}",
    r"CoreDeviceProxy": "has an iOS from 17.0 to 17.3, whose developer services need a Mac, or RemotePairing in the "
    "same Wi-Fi: update it to iOS 17.4 or newer, or measure it from a Mac",
    r"could not be, unlocked|device is locked|= Locked|for reason: Locked|passcode": "is locked: unlock it, "
    "and keep its screen on while it is measured",
    r"explicitly trusted|certificate is not trusted": "does not trust who signed the app: on it, open Settings, "
    "General, VPN & Device Management, and tap Trust",
    r"developer ?mode": "has Developer Mode off: on it, open Settings, Privacy & Security, Developer Mode",
    r"must be paired|not paired|unpaired|pairing|trust this computer|trust dialog": "does not trust this computer: "
    "plug it in, unlock it and tap Trust",
    r"is not installed|is installed|ContainerLookupErrorDomain": "has no app {app} that Xcode put there: open "
    "ios-demo/PocketBERT.xcodeproj, choose the phone and press Run; where your team signs it under another name, "
    "`app` in the device's row says that name",
    r"no space left|NO_SPACE|NSPOSIXErrorDomain error 28\b": "is full: free some room on it",
    r"disk image": "does not start its developer services: unlock it and plug it in; on a Mac open Xcode once, "
    "elsewhere run `pymobiledevice3 mounter auto-mount`",
    r"not found|was lost|not connected|connection|interrupted|RemotePairing|timed out|NSPOSIXErrorDomain error "
    r"(54|57|60)\b": "was lost or did not answer; unlock it, plug it in and run it again. What was measured so far is "
    "kept",
}
"""Patterns of the tools' messages, each with the explanation and remedy for the user; the first match is used."""


def attached() -> list[Attached]:
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


def _found() -> list[tuple[Attached, Callable[[Device, str], Transport]]]:
    """Return the iPhones that this computer knows, each with its transport: devicectl if it can, else usbmux."""
    from pipeline.devices import devicectl

    by_mac, by_cable = shutil.which("xcrun"), usbmux_remote.interpreter()
    if not by_mac and not by_cable:
        raise DeviceError(
            "there is neither xcrun, which comes with Xcode on a Mac, nor pymobiledevice3, in an environment of its "
            f"own: {usbmux_remote.INSTALL}."
        )
    errors: list[DeviceError] = []

    def seen(ask: Callable[[], list[Attached]]) -> list[Attached]:
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


def choose(device: Device, found: Sequence[Attached]) -> str:
    """Return the UDID of a row's phone.

    Raises:
        DeviceError: it is not there, not ready, or it is not clear which one is meant.
    """
    there = ", ".join(f"{one.serial} ({one.model or 'model not known'}, {one.state})" for one in found) or "none"
    near = [one for one in found if one.state not in (AWAY, BEYOND)] or [one for one in found if one.state == BEYOND]
    if device.udid is None and len(near) > 1:
        raise DeviceError(f"{device.name} has no udid in its row, and several iPhones are attached: {there}. Name one.")
    wanted = None if device.udid is None else plain(device.udid)
    one = next((one for one in near if wanted in (None, plain(one.serial))), None)
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


def sentence(name: str, said: str, app: str) -> str:
    """Return a tool's message as one sentence with a remedy.

    Args:
        name: name of the device's row.
        said: the tool's output or answer.
        app: bundle id of the demo app.
    """
    for pattern, sentence in _SAID.items():
        if re.search(pattern, said, re.IGNORECASE):
            return f"{name} {sentence.format(app=app)}."
    last = next((line.strip() for line in said.splitlines() if "error" in line.lower()), said.strip())
    return f"{name} cannot be used: {last[:300].rstrip('.')}."
