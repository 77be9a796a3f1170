"""iPhones without a Mac, through usbmuxd and pymobiledevice3, in the environment that has it: see `usbmux_remote`.

The app's Documents are reached by AFC through house_arrest, which gives them away where `UIFileSharingEnabled` is set,
as it is in the demo apps; the app is started by the developer services, which on iOS 17 and later lie behind a tunnel
that pymobiledevice3 makes in this process, without root: over the cable from iOS 17.4 on, and before that only on a Mac
or through RemotePairing in the Wi-Fi (its remote/rsd_tunnel.py). Source: its own documentation in the docstrings of
11.45, github.com/doronz88/pymobiledevice3. Each call here opens what it needs and closes it again, so that a cable that
was pulled in between does no harm. What goes over usbmuxd, lockdown, house_arrest and AFC was run with that release
against a program that plays them (tests/devices/usbmuxd.py); the tunnel and the app's start were not run.
"""

import asyncio
import contextlib
import posixpath
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pipeline.devices.headless import FOLDER, RUN
from pipeline.devices.iphone_states import LOST, NO_DEVELOPER, NOT_INSTALLED, READY, UNPAIRED, sentence
from pipeline.devices.table import AttachedPhone, Device
from pipeline.devices.transport import DeviceError, Tell

_LIMIT_S, _LIST_S = 60.0, 20.0
_BYTES_PER_S = 1_000_000
"""Slower than any cable: how long a copy may take."""
_CHUNK = 1 << 16
_TUNNEL = 17
"""The iOS from which developer services lie behind a tunnel."""
_Found = TypeVar("_Found")


def attached() -> list[AttachedPhone]:
    """Return the iPhones that usbmuxd sees, and whether each can be used.

    Raises:
        DeviceError: there is no usbmuxd.
    """
    return _wait("usbmuxd", "", _attached, _LIST_S)


class UsbmuxPhone:
    """One iPhone, by its row."""

    def __init__(self, device: Device, udid: str) -> None:
        """Reach the phone with a UDID, see `iphone.reach`."""
        self.name = device.name
        self._app = device.app
        self._udid = udid

    def check(self, room_bytes: int) -> None:
        """Refuse a phone that is full, lacks the app, or has no Developer Mode; a locked one does not start the app."""

        async def act() -> tuple[int | None, bool]:
            async with self._phone() as phone:
                developer = await _developer_mode(phone)
            async with self._documents() as files:
                free = (await files.get_device_info()).get("FSFreeBytes")
            return (int(free) if free else None), developer

        free, developer = self._call(act)
        if not developer:
            raise DeviceError(sentence(self.name, NO_DEVELOPER, self._app))
        if free is not None and free < room_bytes:
            raise DeviceError(f"{self.name} has {free / 1e6:.0f} MB free, and the run needs {room_bytes / 1e6:.0f} MB.")

    def put(self, run: str, files: Mapping[str, Path | bytes], tell: Tell) -> None:
        """Write files into a run's folder, the request last."""
        self.remove(run)
        sizes = {path: one.stat().st_size if isinstance(one, Path) else len(one) for path, one in files.items()}
        whole = max(1, sum(sizes.values()))

        async def act() -> None:
            sent = 0
            async with self._documents() as there:
                for path, one in files.items():
                    tell(f"copying {path}", sent / whole)
                    place = _place(run, path)
                    await there.makedirs(posixpath.dirname(place))
                    await there.set_file_contents(place, one.read_bytes() if isinstance(one, Path) else one)
                    sent += sizes[path]

        self._call(act, _LIMIT_S + whole / _BYTES_PER_S)

    def start(self, run: str) -> None:
        """End the app if it is running, and start it with the run's name."""

        async def act() -> None:
            async with self._control() as control:
                await control.launch(bundle_id=self._app, arguments=[f"-{RUN}", run], kill_existing=True)

        self._call(act)

    def read(self, run: str, file: str) -> bytes | None:
        """Return a file of a run's folder; None if it does not exist."""

        async def act() -> bytes | None:
            async with self._documents() as files:
                place = _place(run, file)
                return await _contents(files, place) if await files.exists(place) else None

        return self._call(act)

    def alive(self) -> bool:
        """Return whether the app's process is there."""

        async def act() -> bool:
            async with self._control() as control:
                return bool(await control.process_identifier_for_bundle_identifier(self._app))

        return self._call(act)

    def stop(self) -> None:
        """End the app."""

        async def act() -> None:
            async with self._control() as control:
                process = await control.process_identifier_for_bundle_identifier(self._app)
                if process:
                    await control.kill(process)

        self._call(act)

    def remove(self, run: str) -> None:
        """Remove a run's folder."""

        async def act() -> None:
            async with self._documents() as files:
                if await files.exists(_place(run)):
                    await files.rm(_place(run))

        self._call(act)

    @contextlib.asynccontextmanager
    async def _phone(self) -> AsyncIterator[Any]:
        from pymobiledevice3.lockdown import create_using_usbmux

        # Without pairing: it would ask a question on the phone, and wait for its answer.
        async with await create_using_usbmux(serial=self._udid, autopair=False) as phone:
            if not phone.paired:
                raise DeviceError(sentence(self.name, UNPAIRED, self._app))
            yield phone

    @contextlib.asynccontextmanager
    async def _documents(self) -> AsyncIterator[Any]:
        from pymobiledevice3.services.house_arrest import HouseArrestService

        async with (
            self._phone() as phone,
            await HouseArrestService.create(phone, self._app, documents_only=True) as files,
        ):
            yield files

    @contextlib.asynccontextmanager
    async def _control(self) -> AsyncIterator[Any]:
        from pymobiledevice3.remote.rsd_tunnel import PreferredRsdTunnel
        from pymobiledevice3.services.dvt.instruments.dvt_provider import DvtProvider
        from pymobiledevice3.services.dvt.instruments.process_control import ProcessControl

        async with contextlib.AsyncExitStack() as held:
            phone = await held.enter_async_context(self._phone())
            if int(phone.product_version.partition(".")[0]) >= _TUNNEL:
                phone = await held.enter_async_context(PreferredRsdTunnel(serial=self._udid, autopair=False))
            provider = await held.enter_async_context(DvtProvider(phone))
            yield await held.enter_async_context(ProcessControl(provider))

    def _call(self, act: Callable[[], Awaitable[_Found]], limit_s: float = _LIMIT_S) -> _Found:
        return _wait(self.name, self._app, act, limit_s)


def _place(run: str, file: str = "") -> str:
    return posixpath.join("/Documents", FOLDER, run, file).rstrip("/")


async def _attached() -> list[AttachedPhone]:
    from pymobiledevice3.exceptions import PyMobileDevice3Exception
    from pymobiledevice3.lockdown import create_using_usbmux
    from pymobiledevice3.usbmux import list_devices

    found: dict[str, AttachedPhone] = {}
    # A phone on a cable and in the network is listed twice.
    for serial in {one.serial for one in await list_devices()}:
        try:
            async with await create_using_usbmux(serial=serial, autopair=False) as phone:
                state = READY if phone.paired else UNPAIRED
                found[serial] = AttachedPhone(serial=serial, state=state, model=phone.display_name)
        except PyMobileDevice3Exception:
            found[serial] = AttachedPhone(serial=serial, state=UNPAIRED, model=None)
    return [found[serial] for serial in sorted(found)]


async def _developer_mode(phone: Any) -> bool:
    """Return whether Developer Mode is on; an iOS before 16 has none, and needs none."""
    from pymobiledevice3.exceptions import MessageNotSupportedError
    from pymobiledevice3.services.mobile_image_mounter import MobileImageMounterService

    async with MobileImageMounterService(phone) as mounter:
        try:
            return bool(await mounter.query_developer_mode_status())
        except MessageNotSupportedError:
            return True


async def _contents(files: Any, place: str) -> bytes:
    """Read a file to its end; its reported size is not used, since it may be that of the file it just replaced."""
    handle = await files.fopen(place, "r")
    data = b""
    try:
        while chunk := await files.fread(handle, _CHUNK):
            data += chunk
    finally:
        await files.fclose(handle)
    return data


def _wait(name: str, app: str, act: Callable[[], Awaitable[_Found]], limit_s: float) -> _Found:
    """Await a call within a time limit, and turn its exceptions into `DeviceError` with one sentence."""
    from pymobiledevice3 import exceptions

    async def limited() -> _Found:
        return await asyncio.wait_for(act(), limit_s)

    try:
        return asyncio.run(limited())
    except exceptions.ConnectionFailedToUsbmuxdError as error:
        raise DeviceError(
            "there is no usbmuxd, which speaks with iPhones on a cable: install it (on Debian, `apt install usbmuxd`), "
            "and plug the phone in."
        ) from error
    except exceptions.AppNotInstalledError as error:
        raise DeviceError(sentence(name, NOT_INSTALLED, app)) from error
    except exceptions.InvalidServiceError as error:
        raise DeviceError(sentence(name, "its developer disk image is not mounted", app)) from error
    except (TimeoutError, ConnectionError, exceptions.ConnectionTerminatedError) as error:
        raise DeviceError(sentence(name, f"{LOST}: {error or type(error).__name__}", app)) from error
    except (exceptions.PyMobileDevice3Exception, OSError, AssertionError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise DeviceError(sentence(name, said, app)) from error
