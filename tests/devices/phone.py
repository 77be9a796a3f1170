"""A phone that is none: Debian's real adbd, driven by the real adb client, in a network of its own.

The phone's own commands (am, pm, dumpsys, pidof, input, df, logcat) are scripts on adbd's PATH, which say what
recordings say. adbd listens without asking who comes, so it runs where nobody else can come, under a root folder that
has a /data.

Two things that a phone refuses are refused here as well. Android's adbd gives a file that is pushed outside /data to
the owner that its fs_config names, which no shell may (AOSP packages/modules/adb, daemon/file_sync_service.cpp,
`should_use_fs_config`; "remote fchown failed: Operation not permitted"); Debian compiles that out, so a library that
is loaded before adbd refuses in its place. And an app may write in its folder of external files only if vold prepared
that folder for it (AOSP system/vold, Utils.cpp, `PrepareAppDirFromRoot`: owner and default ACL); here the owner stands
for both.
"""

import contextlib
import ctypes
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conftest import REPOSITORY

TREE = Path(os.environ.get("POCKETBERT_DEVICES", "/opt/pocketbert/devices"))
ADDRESS = "127.0.0.1:6555"
_NEW_NETWORK = 0x40000000
_SERVER_PORT = "5099"
_UNLOCKED = "  mDreamingLockscreen=false\n    isKeyguardShowing=false\n"
_LOCKED = "  mDreamingLockscreen=true\n    isKeyguardShowing=true\n"
"""Lines of `dumpsys window` as Android 14 prints them. RECORDED from its documentation, not from a phone of ours."""
_SCRIPTS = {
    "am": """
case "$1" in
force-stop) [ -f "$PHONE/app.pid" ] && kill -9 "$(cat "$PHONE/app.pid")" 2>/dev/null; rm -f "$PHONE/app.pid" ;;
start)
  if [ -f "$PHONE/no_activity" ]; then
    echo "Error: Activity class {pocketbert.app/.MainActivity} does not exist."
    exit 0
  fi
  run=
  while [ $# -gt 0 ]; do [ "$1" = pocketbert.run ] && run=$2; shift; done
  package="$PHONE/storage/Android/data/pocketbert.app"
  # An app asks for its folder when it starts; one that is there stays as it is, whoever made it.
  [ -e "$package" ] || [ -f "$PHONE/makes_nothing" ] || { mkdir -p "$package/files"; chown -R 10123 "$package"; }
  if [ "$(stat -c %u "$package")" != 10123 ]; then
    echo "java.io.FileNotFoundException: $package/files/runs/$run/status.json: open failed: EACCES" >"$PHONE/app.log"
    echo "Status: ok"
    exit 0
  fi
  if [ -z "$run" ]; then
    setsid sleep 600 >/dev/null 2>&1 </dev/null &
    echo $! >"$PHONE/app.pid"
    echo "Status: ok"
    exit 0
  fi
  folder="$package/files/runs/$run"
  setsid env PYTHONPATH="$POCKETBERT_REPOSITORY" "$POCKETBERT_PYTHON" "$POCKETBERT_APP" "$folder" "$PHONE" \\
    >"$PHONE/app.log" 2>&1 </dev/null &
  echo $! >"$PHONE/app.pid"
  echo "Status: ok" ;;
esac
""",
    "pm": '[ -f "$PHONE/no_app" ] || echo "package:/data/app/pocketbert.app/base.apk"\n',
    "dumpsys": '[ "$1" = window ] && cat "$PHONE/window"\n',
    "pidof": '[ -f "$PHONE/app.pid" ] && kill -0 "$(cat "$PHONE/app.pid")" 2>/dev/null && cat "$PHONE/app.pid"\n',
    "input": "exit 0\n",
    "df": """
echo "Filesystem     1K-blocks     Used Available Use% Mounted on"
full="$PHONE/full"
case "$2" in /data*) full="$PHONE/full_data" ;; esac
if [ -f "$full" ]; then echo "/dev/fuse 111000000 110999000 1000 100% /storage/emulated"
else echo "/dev/fuse 111000000 50000000 61000000 46% /storage/emulated"; fi
""",
    # Lines with the tag, without their heads, since a time that `date` said.
    "logcat": """
case "$*" in
"-d -v raw -T "[0-9]*" -s "*) shift 4; [ -f "$PHONE/log.$3" ] && awk -v since="$1" '$1" "$2 >= since' "$PHONE/log.$3" |
  cut -d' ' -f3- ;;
*) echo "logcat: unknown option: $*"; exit 1 ;;
esac
""",
}
_REFUSES = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

int fchown(int file, uid_t user, gid_t group) {
  char link[64], path[4096] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  if (readlink(link, path, sizeof path - 1) > 0 && strncmp(path, "/data/", 6) != 0) {
    errno = EPERM;
    return -1;
  }
  return (int)syscall(SYS_fchown, file, user, group);
}
"""
_ROOT = """
mount --make-rprivate /
for place in /*; do
  if [ -L "$place" ]; then cp -P "$place" "$1$place"
  elif [ -d "$place" ]; then mkdir -p "$1$place" && mount --rbind "$place" "$1$place"; fi
done
mkdir -p "$1/data"
mount --bind "$2" "$1/data"
shift 2
exec "$(PATH=$PATH:/usr/sbin:/sbin command -v chroot)" "$0" "$@"
"""
"""Starts a program under a root folder of its own: this machine's, and /data."""


@dataclass
class Phone:
    """The phone: its folder, and adbd's process."""

    home: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def storage(self) -> Path:
        """What its user sees."""
        return self.home / "storage"

    @property
    def temporary(self) -> Path:
        """What its shell may write, `/data/local/tmp`, as it is seen from outside."""
        return self.home / "data/local/tmp"

    def runs(self) -> list[str]:
        """Return the names of the folders of runs that lie there."""
        folder = self.storage / "Android/data/pocketbert.app/files/runs"
        return sorted(place.name for place in folder.glob("*"))

    def behaves(self, how: str) -> None:
        """Say how the app behaves from now on."""
        (self.home / "behaves").write_text(how)

    def lock(self, *, locked: bool = True) -> None:
        """Lock it, or unlock it."""
        (self.home / "window").write_text(_LOCKED if locked else _UNLOCKED)

    def plug_in(self) -> None:
        """Start adbd."""
        root = TREE / "adbd"
        libraries = [root / "usr/lib/x86_64-linux-gnu", root / "usr/lib/x86_64-linux-gnu/android"]
        loader = [str(root / "usr/lib64/ld-linux-x86-64.so.2"), "--library-path", ":".join(map(str, libraries))]
        preload = ["--preload", str(self.home / "refuses.so")]
        own = self.home / "root"
        own.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [
                *("unshare", "--mount", "sh", "-euc", _ROOT, str(own), str(own), str(self.home / "data")),
                *(*loader, *preload, str(root / "usr/sbin/adbd")),
            ],
            env={
                "PATH": f"{self.home / 'bin'}:/usr/bin:/bin",
                "HOME": str(self.home),
                "ADBD_PORT": ADDRESS.rpartition(":")[2],
                "PHONE": str(self.home),
                "POCKETBERT_PYTHON": sys.executable,
                "POCKETBERT_REPOSITORY": str(REPOSITORY),
                "POCKETBERT_APP": str(Path(__file__).with_name("phone_app.py")),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._wait()

    def _wait(self) -> None:
        """Wait until adbd listens, which it is not asked: it would take that for a computer."""
        listens = re.compile(rf":{int(ADDRESS.rpartition(':')[2]):04X} \S+ 0A ".encode())
        until = time.monotonic() + 20.0
        while not any(listens.search(Path(f"/proc/thread-self/net/{kind}").read_bytes()) for kind in ("tcp", "tcp6")):
            if time.monotonic() > until or self.process is None or self.process.poll() is not None:
                raise OSError("adbd does not listen")
            time.sleep(0.05)
        time.sleep(0.5)

    def pull_the_cable(self) -> None:
        """End adbd, whatever it does; the app goes on."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def network() -> Iterator[None]:
    """Put this thread, and what it starts, into a network that has nothing but itself. Needs root."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    if libc.unshare(_NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "no network of its own")
    try:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        yield
    finally:
        libc.setns(before, _NEW_NETWORK)
        os.close(before)


@contextlib.contextmanager
def plugged_in(home: Path) -> Iterator[Phone]:
    """Return a phone that is attached, unlocked and has the app, with an adb server of its own."""
    (home / "bin").mkdir(parents=True)
    for name, text in _SCRIPTS.items():
        script = home / "bin" / name
        script.write_text(f"#!/bin/sh\n{text}")
        script.chmod(0o755)
    phone = Phone(home)
    phone.storage.mkdir()
    phone.temporary.mkdir(parents=True)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(home / "refuses.so")],
        input=_REFUSES.encode(),
        check=True,
    )
    phone.lock(locked=False)
    os.environ.update({"ANDROID_ADB_SERVER_PORT": _SERVER_PORT, "HOME": str(home)})
    phone.plug_in()
    subprocess.run(["adb", "start-server"], check=True, capture_output=True)
    try:
        yield phone
    finally:
        subprocess.run(["adb", "kill-server"], check=False, capture_output=True)
        phone.pull_the_cable()
        subprocess.run(
            [str(home / "bin" / "am"), "force-stop"], check=False, env={"PHONE": str(home), "PATH": "/usr/bin:/bin"}
        )
