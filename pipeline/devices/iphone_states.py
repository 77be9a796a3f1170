"""The states of an iPhone, and what the tools say of it in one sentence each."""

import re
from collections.abc import Mapping

from pipeline.devices import usbmux_remote

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
"""What the tools say, and what that means for whoever has to do something; the first that fits is told."""


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
