"""Plays usbmuxd and an iPhone behind it, on a socket: lockdown, house_arrest with AFC, and an image mounter.

The messages are those that libimobiledevice documents and pymobiledevice3 sends; nothing was recorded from an iPhone of
ours. A session of lockdown and its services speak TLS, with the certificate of the pairing. The tunnel of iOS 17 and
the developer services that start an app are left out: who asks for one is told that there is no such service.
"""

import contextlib
import plistlib
import socket
import socketserver
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HOST_ID, BUID = "11111111-2222-3333-4444-555555555555", "30142955-444094379208051516"
_LOCKDOWN, _HOUSE_ARREST, _MOUNTER = 62078, 49152, 49153
_SERVICES = {"com.apple.mobile.house_arrest": _HOUSE_ARREST, "com.apple.mobile.mobile_image_mounter": _MOUNTER}
_PLIST, _PLIST_VERSION = 8, 1
_OK, _REFUSED, _ABSENT, _DENIED, _NOT_EMPTY = 0, 7, 8, 10, 33
"""Codes of AFC's answers."""


@dataclass
class Phone:
    """An iPhone: what it says of itself, and the folder that stands for the app's container."""

    udid: str
    container: Path
    ios: str = "16.7.2"
    paired: bool = True
    developer: bool | None = True
    """None: it knows no Developer Mode, as before iOS 16."""
    apps: tuple[str, ...] = ("com.pocketbert.demo",)
    free_bytes: int = 10_000_000_000
    pairing: Path = field(init=False)
    """Certificate and key of the pairing."""
    written: list[str] = field(default_factory=list)
    """The files that were opened for writing, in their order."""

    def __post_init__(self) -> None:
        """Make the folder that the app shares, and the certificate of the pairing."""
        (self.container / "Documents").mkdir(parents=True, exist_ok=True)
        self.pairing, certificate = self.container / "key.pem", self.container / "certificate.pem"
        made = ("-keyout", str(self.pairing), "-out", str(certificate))
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=phone", *made],
            check=True,
            capture_output=True,
        )
        with self.pairing.open("ab") as both:
            both.write(certificate.read_bytes())

    def secured(self, connection: socket.socket) -> socket.socket:
        """Speak TLS from now on."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.pairing)
        return context.wrap_socket(connection, server_side=True)


@contextlib.contextmanager
def plugged_in(phones: list[Phone], address: Path) -> Iterator[None]:
    """Listen at a path as usbmuxd does."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                _usbmux(self.request, phones)

    server = socketserver.ThreadingUnixStreamServer(str(address), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (more := connection.recv(size - len(data))):
            raise ConnectionResetError
        data += more
    return data


def _usbmux(connection: socket.socket, phones: list[Phone]) -> None:
    """Answer as usbmuxd, until a port of a phone is asked for; then be that port."""
    while True:
        (size,) = struct.unpack("<I", _read(connection, 4))
        version, kind, tag = struct.unpack("<III", _read(connection, 12))
        assert (version, kind) == (_PLIST_VERSION, _PLIST)
        asked = plistlib.loads(_read(connection, size - 16))
        by_number = dict(enumerate(phones, 1))
        phone = next((one for one in phones if one.udid == asked.get("PairRecordID")), None)
        become: Callable[[socket.socket, Phone], None] | None = None
        match asked["MessageType"]:
            case "ReadBUID":
                said: dict[str, Any] = {"BUID": BUID}
            case "ListDevices":
                said = {"DeviceList": [_listed(number, one) for number, one in by_number.items()]}
            case "ReadPairRecord" if phone is not None and phone.paired:
                key, mark, certificate = phone.pairing.read_bytes().partition(b"-----BEGIN CERTIFICATE-----")
                record = {"HostID": HOST_ID, "SystemBUID": BUID, "HostPrivateKey": key}
                said = {"PairRecordData": plistlib.dumps({**record, "HostCertificate": mark + certificate})}
            case "Connect":
                phone = by_number[asked["DeviceID"]]
                become = _PORTS.get(socket.ntohs(asked["PortNumber"]))
                said = {"MessageType": "Result", "Number": 0 if become else 3}
            case _:
                said = {"MessageType": "Result", "Number": 2}
        data = plistlib.dumps(said)
        connection.sendall(struct.pack("<IIII", len(data) + 16, _PLIST_VERSION, _PLIST, tag) + data)
        if become and phone:
            become(connection, phone)
            return


def _listed(number: int, phone: Phone) -> dict[str, Any]:
    about = {"SerialNumber": phone.udid, "ConnectionType": "USB", "DeviceID": number, "ProductID": 0x12A8}
    return {"MessageType": "Attached", "DeviceID": number, "Properties": about}


def _take(connection: socket.socket) -> dict[str, Any]:
    (size,) = struct.unpack(">I", _read(connection, 4))
    found: dict[str, Any] = plistlib.loads(_read(connection, size))
    return found


def _give(connection: socket.socket, said: dict[str, Any]) -> None:
    data = plistlib.dumps(said)
    connection.sendall(struct.pack(">I", len(data)) + data)


def _lockdown(connection: socket.socket, phone: Phone) -> None:
    """Answer as lockdownd: what it starts a service for, it wants a session of a computer that it trusts."""
    with contextlib.ExitStack() as held:
        _session(connection, phone, held)


def _session(connection: socket.socket, phone: Phone, held: contextlib.ExitStack) -> None:
    session = False
    while True:
        asked = _take(connection)
        said: dict[str, Any]
        match asked["Request"]:
            case "QueryType":
                said = {"Type": "com.apple.mobile.lockdown"}
            case "GetValue":
                about = {"ProductVersion": phone.ios, "ProductType": "iPhone10,3", "DeviceClass": "iPhone"}
                values = {**about, **({"UniqueDeviceID": phone.udid} if session else {})}
                said = {"Value": values.get(asked["Key"]) if "Key" in asked else values}
            case "StartSession":
                session = phone.paired and asked["HostID"] == HOST_ID
                said = {"SessionID": "1", "EnableSessionSSL": True} if session else {"Error": "InvalidHostID"}
            case "StartService" if session and asked["Service"] in _SERVICES:
                said = {"Port": _SERVICES[asked["Service"]], "EnableServiceSSL": True}
            case "StartService":
                said = {"Error": "InvalidService" if session else "SessionInactive"}
            case _:
                said = {"Error": "InvalidRequest"}
        _give(connection, {"Request": asked["Request"], **said})
        if said.get("EnableSessionSSL"):
            connection = held.enter_context(phone.secured(connection))


def _mounter(plain: socket.socket, phone: Phone) -> None:
    with phone.secured(plain) as connection:
        while True:
            known = _take(connection)["Command"] == "QueryDeveloperModeStatus" and phone.developer is not None
            _give(connection, {"DeveloperModeStatus": phone.developer} if known else {"Error": "UnknownCommand"})


def _house_arrest(plain: socket.socket, phone: Phone) -> None:
    """Give an app's Documents away, and speak AFC from then on."""
    with phone.secured(plain) as connection:
        asked = _take(connection)
        assert asked["Command"] == "VendDocuments", asked
        if asked["Identifier"] not in phone.apps:
            _give(connection, {"Error": "ApplicationLookupFailed"})
            return
        _give(connection, {"Status": "Complete"})
        afc = _Afc(phone)
        while True:
            magic, size, own, number, operation = struct.unpack("<8sQQQQ", _read(connection, 40))
            assert magic == b"CFA6LPAA"
            given = _read(connection, size - 40)
            kind, data = afc.answer(operation, given[: own - 40], given[own - 40 :])
            connection.sendall(struct.pack("<8sQQQQ", magic, 40 + len(data), 40 + len(data), number, kind) + data)


class _Afc:
    """One connection of AFC."""

    def __init__(self, phone: Phone) -> None:
        self.phone = phone
        self.open: dict[int, Any] = {}

    def answer(self, operation: int, given: bytes, payload: bytes) -> tuple[int, bytes]:
        """Return kind and data of the answer to an operation."""
        try:
            data, kind = self._done(operation, given, payload)
        except FileNotFoundError:
            return 1, struct.pack("<Q", _ABSENT)
        except PermissionError:
            return 1, struct.pack("<Q", _DENIED)
        except OSError as error:
            return 1, struct.pack("<Q", _NOT_EMPTY if error.errno == 39 else _REFUSED)
        return (kind, data) if kind != 1 else (1, struct.pack("<Q", _OK))

    def _done(self, operation: int, given: bytes, payload: bytes) -> tuple[bytes, int]:
        match operation:
            case 0x3:
                names = [".", "..", *sorted(place.name for place in self._place(given).iterdir())]
                return b"".join(name.encode() + b"\0" for name in names), 2
            case 0x8:
                place = self._place(given)
                place.rmdir() if place.is_dir() else place.unlink()
            case 0x9:
                self._place(given).mkdir(parents=True, exist_ok=True)
            case 0xA:
                return _pairs(_facts(self._place(given))), 2
            case 0xB:
                total = str(64_000_000_000)
                free = str(self.phone.free_bytes)
                return _pairs({"Model": "iPhone10,3", "FSTotalBytes": total, "FSFreeBytes": free}), 2
            case 0xD:
                (mode,) = struct.unpack("<Q", given[:8])
                place = self._place(given[8:])
                if mode == 3:
                    self.phone.written.append(place.name)
                self.open[len(self.open) + 1] = place.open({1: "rb", 3: "wb"}[mode])
                return struct.pack("<Q", len(self.open)), 0xE
            case 0xF:
                handle, size = struct.unpack("<QQ", given)
                return self.open[handle].read(size), 2
            case 0x10:
                self.open[struct.unpack("<Q", given)[0]].write(payload)
            case 0x14:
                self.open[struct.unpack("<Q", given)[0]].close()
            case _:
                raise AssertionError(f"AFC operation {operation:#x} is not played")
        return b"", 1

    def _place(self, given: bytes) -> Path:
        """Return the file of a name; nothing but Documents was given away."""
        name = given.partition(b"\0")[0].decode().lstrip("/")
        if name.split("/")[0] != "Documents":
            raise PermissionError(name)
        return self.phone.container / name


def _facts(place: Path) -> dict[str, str]:
    found = place.stat()
    return {
        "st_size": str(found.st_size),
        "st_blocks": str(found.st_blocks),
        "st_nlink": str(found.st_nlink),
        "st_ifmt": "S_IFDIR" if place.is_dir() else "S_IFREG",
        "st_mtime": str(found.st_mtime_ns),
        "st_birthtime": str(found.st_mtime_ns),
    }


def _pairs(facts: dict[str, str]) -> bytes:
    return b"".join(f"{name}\0{value}\0".encode() for name, value in facts.items())


_PORTS = {_LOCKDOWN: _lockdown, _HOUSE_ARREST: _house_arrest, _MOUNTER: _mounter}
