"""Disks that are full, out of inodes or read-only, from the start or from some moment on, as file systems of their own.

`unshare -rm` gives a process a mount table in which it may mount a tmpfs; where that is forbidden, cases are not run.
What happens inside is `inside`'s: the disk is gone with the process.
"""

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from conftest import environment

from abuse import scene
from abuse.bad import complaint
from abuse.findings import NOT_RUN, REPOSITORY, TOO_LATE, Finding, judged
from abuse.kills import WORKS, Work
from abuse.scene import Command
from abuse.watch import Watch

_NAMES = (
    "student", "convert", "verify", "run", "train", "ship", "ship, for the first time", "push", "init", "compat",
)  # fmt: skip
_KINDS = ("bytes", "inodes", "read-only")
_WORDS = ("o space left", "ead-only", "inode")
"""How the kernel and we name it; the first letter may be a capital."""
_ROOM_BYTES = 2 << 30
_LIMIT_SECONDS = 180.0


def fill(project: Path, seed: int, number: int) -> Finding:
    """Run one command on a disk that has too little of something."""
    draw = random.Random(f"{seed}-disk-{number}")
    work = _work(_NAMES[number % len(_NAMES)])
    kind = draw.choices(_KINDS, (5, 3, 1))[0]
    with scene.case_folder(f"disk-{seed}-{number}") as case:
        path = os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "tests")))
        asked = [str(project), str(case), work.name, kind, str(number), f"{seed}-{number}"]
        done = subprocess.run(
            ["unshare", "-rm", sys.executable, "-m", "abuse.disks", *asked],
            env=environment(PYTHONPATH=path),
            capture_output=True,
            text=True,
            timeout=4 * _LIMIT_SECONDS,
        )
        if done.returncode == 77 or done.stderr.startswith("unshare:"):
            return Finding(number, work.name, kind, NOT_RUN, ["no disk of one's own may be mounted here"])
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        return Finding(**json.loads(done.stdout.splitlines()[-1]))


def _work(name: str) -> Work:
    return next(work for work in WORKS if work.name == name)


# --- inside ------------------------------------------------------------------------------------------------------


def _mount(disk: Path, *options: str) -> None:
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(disk)], capture_output=True)
    if done.returncode:
        sys.exit(77)


def _take_away(disk: Path, kind: str, left: int) -> None:
    """Let a disk have so many bytes or inodes left, or none for writing.

    Where a command is at work, it may take what is left between the count and the change, which is then refused.
    """
    for last in (*[False] * 20, True):
        found = os.statvfs(disk)
        used_bytes = (found.f_blocks - found.f_bfree) * found.f_frsize
        used_inodes = found.f_files - found.f_ffree
        option = {
            "bytes": f"size={max(used_bytes + left, 4096)}",
            "inodes": f"nr_inodes={used_inodes + left}",
            "read-only": "ro",
        }[kind]
        done = subprocess.run(["mount", "-o", f"remount,{option}", str(disk)], check=last, capture_output=True)
        if done.returncode == 0:
            return


def _give_back(disk: Path) -> None:
    subprocess.run(
        ["mount", "-o", f"remount,rw,size={_ROOM_BYTES},nr_inodes=1000000", str(disk)], check=True, capture_output=True
    )


def inside(project: Path, case: Path, name: str, kind: str, number: int, seed: str) -> Finding:
    """Do one case where this process alone sees the disk."""
    draw, work = random.Random(f"disk-{seed}"), _work(name)
    disk = case / "disk"
    disk.mkdir()
    _mount(disk, f"size={_ROOM_BYTES}")
    folder = scene.copy(project, disk / "project")
    work.prepare(folder)
    before = scene.tree(folder)
    at_once = kind == "read-only" or draw.random() < 0.5
    most = draw.choice((4 << 10, 64 << 10, 1 << 20, 6 << 20)) if kind == "bytes" else 8
    left = draw.randrange(most)
    after = 0 if at_once else draw.randrange(1, 40)
    if at_once:
        _take_away(disk, kind, left)
    what = kind if kind == "read-only" else f"{left} {kind} left"
    what += "" if at_once else f", from change {after} of a file on"
    with Watch(folder) as watch:
        command = Command.start(case, folder, *work.arguments)
        deadline = time.monotonic() + _LIMIT_SECONDS
        while not at_once and command.process.poll() is None and watch.changes < after and time.monotonic() < deadline:
            watch.wait(0.02)
        if not at_once:
            _take_away(disk, kind, left)
        code = command.end(_LIMIT_SECONDS)
    problems = [*_after(work, folder, before, command, code), *command.left_processes()]
    _give_back(disk)
    again = Command.start(case, folder, *work.arguments, name="again")
    second = again.end(_LIMIT_SECONDS)
    # `init` replaces no file, its own of before among them.
    if second != 0 and not (work.name == "init" and code == 0 and "exists already" in again.said):
        problems.append(f"with room again: exit code {second}: {again.said.strip()[-300:]}")
    problems += [*scene.traceback(again.said), *scene.half_made(folder), *scene.leftovers(folder, case)]
    problems += scene.lost(before, scene.tree(folder))
    if code == 0 and not problems:
        # It needed no more than there was.
        return Finding(number, work.name, what, TOO_LATE, [], code)
    return judged(number, work.name, what, problems, code)


def _after(work: Work, folder: Path, before: dict[str, str], command: Command, code: int) -> list[str]:
    """Say what is wrong with the way in which the command ended, and with what it left."""
    problems = [*scene.traceback(command.said), *scene.lost(before, scene.tree(folder)), *scene.half_made(folder)]
    if code == 2:
        problems += complaint(command.said, _WORDS)
    elif code != 0:
        problems.append(f"exit code {code}: {command.said.strip()[-300:]}")
    now = scene.tree(folder)
    finished = [path for path in before if path.startswith("build/store/") and "/." not in path]
    problems += [f"the finished {path} was changed or is gone" for path in finished if now.get(path) != before[path]][
        :3
    ]
    return problems


def main() -> None:
    """Print what became of the case that the command line names."""
    project, case, name, kind, number, seed = sys.argv[1:]
    print(json.dumps(asdict(inside(Path(project), Path(case), name, kind, int(number), seed))))


if __name__ == "__main__":
    main()
