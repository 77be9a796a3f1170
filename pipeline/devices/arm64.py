"""ARM64 without a phone: run ARM64 builds of the runtimes under qemu, for outputs and for instruction counts.

No result is a latency. For outputs, one process is emulated (qemu-user); for instruction counts a whole machine, whose
clock advances one nanosecond per instruction (`-icount shift=0`), so that counts are reproducible and free of noise.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.devices import arm64_packages
from pipeline.devices.arm64_packages import Site
from pipeline.errors import InputError, ToolchainError

CPUS: Mapping[str, str] = {
    "cortex-a53": "NEON alone, as in phones of 2014",
    "cortex-a76": "NEON, fp16 and dotprod, as in phones of 2019",
    "cortex-a710": "SVE2, bf16 and i8mm too, as in phones of 2022",
}
"""Processors by their names in qemu; XNNPACK has different kernels for each of them."""
COUNTED = ("cortex-a76", "cortex-a710")
"""Processors on which a Linux kernel with memory pages of 16 KB starts."""
_GUEST = Path(__file__).with_name("arm64_guest.py")
_MARK = "POCKETBERT "
_TREE = Path("/opt/pocketbert/devices")
_TREE_VARIABLE = "POCKETBERT_DEVICES"
_TIMEOUT_S = 1800
_INIT = """#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t tmpfs tmp /tmp
export PYTHONPATH=/job/site PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
/usr/bin/python3.11 -s /job/guest.py /job/job.json
/bin/busybox poweroff -f
"""


@dataclass(frozen=True)
class Call:
    """One padded row, run by one function of the file."""

    function: str
    inputs: Mapping[str, NDArray[np.int32]]
    """In the function's order."""
    outputs: tuple[str, ...]
    """Names of the function's outputs, in its order."""


@dataclass(frozen=True)
class InstructionCounts:
    """Instructions of a call in the emulated machine, and the size of its pages."""

    instructions: tuple[int, ...]
    page_size: int


@dataclass(frozen=True)
class Emulator:
    """The unpacked tools of `.ci/devices`, and a runtime's aarch64 packages."""

    tree: Path
    backend: str
    site: Site

    def outputs(
        self, file: Path, calls: Sequence[Call], names: Sequence[str], cpu: str, log: Path
    ) -> list[tuple[NDArray[np.float32], ...]]:
        """Run calls on an emulated processor, and return the named outputs of each.

        Raises:
            ToolchainError: the emulated process went down.
        """
        command = [str(self.tree / "qemu/usr/bin/qemu-aarch64"), "-cpu", _known(cpu), "-L", str(self.tree / "arm64")]
        command += ["-E", f"PYTHONPATH={self.site.folder}", "-E", "PYTHONDONTWRITEBYTECODE=1"]
        command += [str(self.tree / "arm64/usr/bin/python3.11"), "-s", str(_GUEST)]
        with TemporaryDirectory() as scratch:
            place = Path(scratch)
            job = self._job(place, calls, names, repeats=0)
            job |= {"model": str(file.resolve()), "inputs": str(place / "inputs.npz")}
            job |= {"outputs": str(place / "outputs.npz")}
            (place / "job.json").write_text(json.dumps(job), encoding="utf-8")
            _finished(_run([*command, str(place / "job.json")], log), f"{file.name} on {cpu}", log)
            with np.load(place / "outputs.npz", allow_pickle=False) as found:
                return [tuple(found[f"o{number}-{name}"] for name in names) for number in range(len(calls))]

    def count(self, file: Path, calls: Sequence[Call], cpu: str, repeats: int, log: Path) -> list[InstructionCounts]:
        """Count the instructions of calls in an emulated machine with one core, `repeats` times each.

        Raises:
            ToolchainError: the machine did not start, or the runtime went down in it.
        """
        if cpu not in COUNTED:
            raise InputError(
                f"{cpu} starts no kernel of 16 KB pages; instructions are counted on {' and '.join(COUNTED)}."
            )
        with TemporaryDirectory() as scratch:
            disk = Path(scratch) / "initramfs.cpio"
            self._pack(Path(scratch) / "root", file, calls, repeats, disk)
            lines = _run(self._machine(cpu, disk), log)
        _finished(lines, f"{file.name} in a machine with {cpu}", log)
        return [InstructionCounts(tuple(line["counts"]), line["page_size"]) for line in lines if "counts" in line]

    def _machine(self, cpu: str, disk: Path) -> list[str]:
        qemu = self.tree / "qemu"
        libraries = [qemu / "usr/lib/x86_64-linux-gnu", qemu / "lib/x86_64-linux-gnu"]
        (kernel,) = (self.tree / "kernel/boot").glob("vmlinuz-*-16k")
        return [
            str(qemu / "usr/lib64/ld-linux-x86-64.so.2"),
            *("--library-path", ":".join(map(str, libraries)), str(qemu / "usr/bin/qemu-system-aarch64")),
            *("-L", str(qemu / "usr/share/qemu"), "-nic", "none", "-M", "virt,gic-version=3", "-cpu", cpu),
            *("-smp", "1", "-m", "3G", "-nographic", "-no-reboot", "-icount", "shift=0,sleep=off", "-rtc", "clock=vm"),
            *("-kernel", str(kernel), "-initrd", str(disk)),
            # Without random addresses the counts are the same at each start.
            *("-append", "console=ttyAMA0 quiet panic=-1 nokaslr norandmaps"),
        ]

    def _pack(self, root: Path, file: Path, calls: Sequence[Call], repeats: int, disk: Path) -> None:
        """Write the machine's whole system into an archive that the kernel unpacks into memory."""
        # The guest kernel makes its own device files; reading some of the tree's would never end.
        left_out = shutil.ignore_patterns("dev", "proc", "sys", "run", "boot", "doc", "man", "locale")
        shutil.copytree(self.tree / "arm64", root, symlinks=True, ignore=left_out)
        job = root / "job"
        job.mkdir()
        shutil.copytree(self.site.folder, job / "site")
        shutil.copyfile(file, job / "model")
        shutil.copyfile(_GUEST, job / "guest.py")
        said = self._job(job, calls, (), repeats=repeats) | {"model": "/job/model", "inputs": "/job/inputs.npz"}
        (job / "job.json").write_text(json.dumps(said), encoding="utf-8")
        busybox = self.tree / "kernel" / "usr" / "bin" / "busybox"
        shutil.copyfile(busybox, root / "bin" / "busybox")
        (root / "init").write_text(_INIT, encoding="utf-8")
        for place in (root / "bin" / "busybox", root / "init"):
            place.chmod(0o755)
        for name in ("proc", "sys", "dev", "tmp"):
            (root / name).mkdir(exist_ok=True)
        names = "".join(f"./{place.relative_to(root)}\n" for place in sorted(root.rglob("*")))
        with disk.open("wb") as sink:
            subprocess.run(
                ["cpio", "--create", "--format=newc", "--quiet", "--owner=0:0", "--reproducible"],
                cwd=root, input=names.encode(), stdout=sink, check=True,
            )  # fmt: skip

    def _job(self, place: Path, calls: Sequence[Call], names: Sequence[str], *, repeats: int) -> dict[str, Any]:
        """Write the inputs of calls, and return the job without its paths."""
        arrays: dict[str, NDArray[np.int32]] = {}
        rows = []
        for number, call in enumerate(calls):
            keys = {name: f"i{number}-{name}" for name in call.inputs}
            arrays |= {keys[name]: array for name, array in call.inputs.items()}
            rows.append({"function": call.function, "inputs": keys, "outputs": list(call.outputs)})
        np.savez(place / "inputs.npz", **arrays)  # type: ignore[arg-type]  # numpy's stub takes the names for its own options
        return {"runtime": self.backend, "calls": rows, "names": list(names), "repeats": repeats}


def tools() -> Path:
    """Return the folder of the unpacked tools.

    Raises:
        ToolchainError: the tools are absent.
    """
    tree = Path(os.environ.get(_TREE_VARIABLE, _TREE))
    if not (tree / "version").is_file():
        raise ToolchainError(
            f"there is no emulator in {tree}. On Debian `sudo .ci/devices` unpacks one there; {_TREE_VARIABLE} names "
            "another folder."
        )
    return tree


def find(build: Path, backend: str, *, install: bool, note: Callable[[str], None]) -> Emulator:
    """Return the emulator with a format's packages for ARM64.

    Args:
        build: packages lie in its `.arm64/`.
        backend: the format of the files, one of `arm64_packages.BUILDS`.
        install: download packages where they are not there.
        note: called with a message on each download, and on empty libraries in place of others.

    Raises:
        ToolchainError: the tools are absent, or the packages are absent and `install` is False.
    """
    tree = tools()
    return Emulator(tree, backend, arm64_packages.find(build, backend, tree, install=install, note=note))


def _known(cpu: str) -> str:
    if cpu not in CPUS:
        raise InputError(f"processor {cpu!r} is none of those that are emulated; there are: {', '.join(CPUS)}.")
    return cpu


def _run(command: Sequence[str], log: Path) -> list[dict[str, Any]]:
    """Run a command to its end; return the JSON records of its marked lines, and log all of its output."""
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ToolchainError(f"the emulator was not done after {_TIMEOUT_S} s, and was ended; see {log}.") from error
    text = done.stdout.decode("utf-8", errors="replace")
    with log.open("a", encoding="utf-8") as sink:
        sink.write(text)
    return [json.loads(line[len(_MARK) :]) for line in text.splitlines() if line.startswith(_MARK)]


def _finished(lines: Sequence[Mapping[str, Any]], what: str, log: Path) -> None:
    if not lines or not lines[-1].get("done"):
        raise ToolchainError(f"{what} went down after {len(lines)} runs; see {log}.")
