"""Which transport reaches a phone."""

from pipeline.devices.table import Device
from pipeline.devices.transport import Transport


def reach(device: Device) -> Transport:
    """Return the transport to a device's phone.

    Raises:
        DeviceError: it is not there, not ready, or it is not clear which one is meant.
    """
    from pipeline.devices import adb, iphone

    return iphone.reach(device) if device.transport == "ios" else adb.AndroidPhone(device)
