import contextlib
import fcntl
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pipeline import bootstrap

REPOSITORY = Path(__file__).resolve().parent.parent

# Stands in .venv/bin/python for an environment whose pip needs a network: it plays one of pip's endings.
# What pip itself does with wheels is tested with the real one, in test_pip_prefers_the_cpu_wheel.
FAKE_VENV_PYTHON = f"""#!/bin/sh
case "$*" in
  *"-m pip"*) echo "$*" >> "$(dirname "$0")/../../pip-calls"; eval "$FAKE_PIP" ;;
  *) exec {sys.executable} "$@" ;;
esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project folder (with a space in its path) of the files that set-up reads, with an environment that is ready."""
    root = tmp_path / "my project"
    (root / "pipeline").mkdir(parents=True)
    for name in ("pyproject.toml", "pipeline/bootstrap.py", "pipeline/constraints.txt"):
        shutil.copy(REPOSITORY / name, root / name)
    (root / ".venv/bin").mkdir(parents=True)
    python = root / ".venv/bin/python"
    python.write_text(FAKE_VENV_PYTHON)
    python.chmod(0o755)
    stamp(root)
    return root


def stamp(root: Path, *, torch_source: str = "") -> None:
    """Write the stamp that a complete set-up of this folder leaves."""
    module = runpy.run_path(str(root / "pipeline/bootstrap.py"))
    module["write_ready"]({"dev"}, torch_source)


def run(
    root: Path, *arguments: str, python: str = sys.executable, before: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run set-up as make does; `before` is Python that runs in the same process first."""
    script = str(root / "pipeline/bootstrap.py")
    start = f"import runpy, sys; sys.argv = [{script!r}, *{list(arguments)!r}]\n{before}\n"
    command = [python, "-I", "-c", f"{start}runpy.run_path({script!r}, run_name='__main__')"]
    if not before:
        command = [python, "-I", script, *arguments]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(root), "FAKE_PIP": "exit 0"} | environment
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)


def pip_calls(root: Path) -> list[str]:
    path = root / "pip-calls"
    return path.read_text().splitlines() if path.exists() else []


def only_line(result: subprocess.CompletedProcess[str]) -> str:
    """The one line on standard error of a run that failed as it should."""
    assert result.returncode == bootstrap.EXIT_FAILED, result
    assert "Traceback" not in result.stderr
    [line] = result.stderr.splitlines()
    assert line.startswith("set-up failed: ")
    return line


# When it installs, and when it does not


def test_a_ready_environment_is_left_alone_and_costs_little(project: Path) -> None:
    started = time.monotonic()
    result = run(project)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert pip_calls(project) == []
    assert time.monotonic() - started < 2.0  # 0.1 s on an idle machine


def test_changed_constraints_are_installed_once(project: Path) -> None:
    with (project / "pipeline/constraints.txt").open("a") as file:
        file.write("# another\n")
    assert re.search(r"set-up: done in \d+ s\n$", run(project).stdout)
    assert run(project).stdout == ""
    assert len(pip_calls(project)) == 1


@pytest.mark.parametrize(("table", "installs"), [("[project]", 1), ("[tool.setuptools.x]", 1), ("[tool.ruff]", 0)])
def test_of_pyproject_only_what_decides_packages_counts(project: Path, table: str, installs: int) -> None:
    path = project / "pyproject.toml"
    path.write_text(path.read_text() + f"\n{table}\nanother = 1\n")
    assert run(project).returncode == 0
    assert len(pip_calls(project)) == installs


def test_an_extra_is_added_to_those_that_are_there(project: Path) -> None:
    assert run(project, "--extra", "peers").returncode == 0
    assert run(project, "--extra", "peers").returncode == 0
    [call] = pip_calls(project)
    assert call.endswith("-e .[dev,peers]")
    assert run(project).stdout == ""


def test_extras_stay_when_the_constraints_change(project: Path) -> None:
    assert run(project, "--extra", "peers").returncode == 0
    with (project / "pipeline/constraints.txt").open("a") as file:
        file.write("# another\n")
    assert run(project).returncode == 0
    assert [call.rpartition(" ")[2] for call in pip_calls(project)] == [".[dev,peers]"] * 2


def test_half_made_environment_is_made_anew(project: Path) -> None:
    (project / ".venv/ready.json").unlink()
    assert _state(project) == "build"


def test_moved_project_is_made_anew(project: Path) -> None:
    moved = project.rename(project.with_name("moved"))
    assert _state(moved) == "build"


def test_an_environment_that_is_a_link_is_refused_and_left_whole(project: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    (project / ".venv").rename(theirs)
    (project / ".venv").symlink_to(theirs)
    (theirs / "ready.json").unlink()
    before = sorted(theirs.rglob("*"))
    result = run(project)
    assert result.returncode == 2
    assert f".venv is a link to {theirs}" in result.stderr
    assert sorted(theirs.rglob("*")) == before


def test_vanished_interpreter_is_made_anew(project: Path) -> None:
    (project / ".venv/bin/python").unlink()
    (project / ".venv/bin/python").symlink_to("/nowhere/python3")
    assert _state(project) == "build"


def test_another_source_of_torch_is_made_anew_and_none_accepts_what_is_there(project: Path) -> None:
    stamp(project, torch_source="/wheels")
    assert [_state(project, source) for source in ("", "/wheels", "/others")] == ["ready", "ready", "build"]


def test_damaged_stamp_counts_as_none(project: Path) -> None:
    (project / ".venv/ready.json").write_text('{"inputs": "')
    assert _state(project) == "build"


def _state(root: Path, torch_source: str = "") -> str:
    state: str = runpy.run_path(str(root / "pipeline/bootstrap.py"))["state"]({"dev"}, torch_source)
    return state


# pip fails


@pytest.mark.parametrize(
    ("fake_pip", "expected"),
    [
        ("echo 'WARNING: Retrying: NewConnectionError(...)'; echo 'ERROR: No matching x'; exit 1", "no connection"),
        (
            "echo 'ERROR: [Errno 28] No space left on device'; exit 1",
            "the disk is full: set-up needs 10 GiB with PyPI's torch on Linux, 4 GiB with POCKETBERT_TORCH=",
        ),
        ("echo 'ERROR: No matching distribution found for torch==9'; exit 1", "found for torch==9"),
        ("kill -9 $$", "pip failed"),
    ],
)
def test_a_failing_pip_gives_one_line_and_its_log(project: Path, fake_pip: str, expected: str) -> None:
    (project / "pipeline/constraints.txt").write_text("numpy==2.4.6\n")
    line = only_line(run(project, FAKE_PIP=fake_pip))
    log = project / "build/setup.log"
    assert expected in line
    assert str(log) in line
    if "echo" in fake_pip:
        assert "ERROR: " in log.read_text()


@pytest.mark.parametrize(
    ("fake_pip", "afterwards"),
    [
        ("exit 1", "update"),  # pip gave up while it looked for packages: what is installed is whole
        ("echo 'Installing collected packages: torch'; exit 1", "build"),
        ("kill -9 $$", "update"),
        ("echo 'Installing collected packages: torch'; kill -9 $$", "build"),
    ],
)
def test_after_a_failure_the_next_call_repairs(project: Path, fake_pip: str, afterwards: str) -> None:
    (project / "pipeline/constraints.txt").write_text("numpy==2.4.6\n")
    only_line(run(project, FAKE_PIP=fake_pip))
    assert _state(project) == afterwards


def test_a_second_set_up_waits_for_the_first(project: Path) -> None:
    (project / "pipeline/constraints.txt").write_text("numpy==2.4.6\n")
    with (project / ".venv.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        command = [sys.executable, "-I", str(project / "pipeline/bootstrap.py")]
        waiting = subprocess.Popen(command, env={"PATH": "/usr/bin:/bin"}, stdout=subprocess.PIPE, text=True)
        with waiting:
            assert waiting.stdout is not None
            assert "waiting for it" in waiting.stdout.readline()
            stamp(project)  # as the first one does at its end
            fcntl.flock(held, fcntl.LOCK_UN)
            assert waiting.wait(timeout=10) == 0
    assert pip_calls(project) == []


@pytest.mark.parametrize(
    ("printed", "afterwards"), [("Collecting torch", "update"), ("Installing collected packages: torch", "build")]
)
def test_ctrl_c_ends_pip_too_and_the_next_call_repairs(project: Path, printed: str, afterwards: str) -> None:
    (project / "pipeline/constraints.txt").write_text("numpy==2.4.6\n")
    stopped = _start_with_hanging_pip(project, printed)
    os.killpg(stopped.pid, signal.SIGINT)  # as a terminal does: to make, to us and to pip
    _, errors = stopped.communicate(timeout=10)
    assert stopped.returncode == bootstrap.EXIT_INTERRUPTED
    assert errors == "set-up stopped; the next make continues from here\n"
    assert _state(project) == afterwards
    with (project / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _start_with_hanging_pip(root: Path, printed: str) -> subprocess.Popen[str]:
    """Start set-up in a process group of its own, and return once its pip, which never ends, was heard to print."""
    environment = {"PATH": "/usr/bin:/bin", "FAKE_PIP": f"echo $$ > pip-pid; echo '{printed}'; exec sleep 20"}
    command = [sys.executable, "-I", str(root / "pipeline/bootstrap.py")]
    started = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 10
    log, ready = root / "build/setup.log", root / ".venv/ready.json"
    while not log.exists() or printed not in log.read_text() or ready.exists() == printed.startswith("Installing"):
        assert time.monotonic() < deadline, "pip was not started"
        time.sleep(0.02)
    return started


def test_pip_that_outlives_a_killed_set_up_keeps_the_lock(project: Path) -> None:
    (project / "pipeline/constraints.txt").write_text("numpy==2.4.6\n")
    killed = _start_with_hanging_pip(project, "Installing collected packages: torch")
    killed.kill()
    killed.communicate()
    with (project / ".venv.lock").open("w") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.kill(int((project / "pip-pid").read_text()), signal.SIGKILL)
        fcntl.flock(lock, fcntl.LOCK_EX)
    assert _state(project) == "build"


# The machine does not fit


def refusing_python(folder: Path, name: str = "python3") -> str:
    """Write a Python that does not fit, or a pyenv shim of a version that is not switched on."""
    python = folder / name
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    return str(python)


@pytest.mark.parametrize("version", [(3, 9, 6), (3, 14, 0)])
def test_wrong_python_says_what_is_needed(project: Path, version: tuple[int, int, int]) -> None:
    shutil.rmtree(project / ".venv")
    python = refusing_python(project)
    before = f"sys.version_info, sys.executable = {version!r}, {python!r}"
    line = only_line(run(project, before=before, PATH=str(project)))
    assert f"found Python {version[0]}.{version[1]} ({python}), need Python 3.11 to 3.13" in line
    assert "make setup PYTHON=" in line


def test_wrong_python_gives_way_to_a_suitable_one(project: Path, tmp_path: Path) -> None:
    shutil.rmtree(project / ".venv")
    refusing_python(tmp_path, "python3.11")
    suitable = tmp_path / "python3.12"
    suitable.write_text('#!/bin/sh\ncase "$*" in *"-m venv"*) echo "asked to $*"; exit 1 ;; esac\n')
    suitable.chmod(0o755)
    before = f"sys.version_info, sys.executable = (3, 9, 6), {refusing_python(project)!r}"
    result = run(project, "--extra", "peers", before=before, PATH=f"{tmp_path}:/usr/bin:/bin")
    assert f"making .venv with {suitable}" in result.stdout
    assert f"python -m venv failed: asked to -I -m venv --clear {project / '.venv'}" in only_line(result)


def test_parses_on_old_python() -> None:
    """Old Pythons are rarely at hand: the words that they cannot parse are looked for instead, where there are none."""
    source = (REPOSITORY / "pipeline/bootstrap.py").read_text()
    compile(source, "bootstrap.py", "exec", dont_inherit=True)
    import ast

    ast.parse(source, feature_version=(3, 6))
    assert "from __future__" not in source


def test_missing_venv_gives_debians_fix(project: Path) -> None:
    shutil.rmtree(project / ".venv")
    before = f"sys.executable = {refusing_python(project)!r}"
    line = only_line(run(project, before=before, PATH=str(project)))
    assert "has no venv or no ensurepip" in line
    assert "sudo apt install python3-venv" in line


def test_other_platforms_are_named(project: Path) -> None:
    shutil.rmtree(project / ".venv")
    before = "import platform; platform.system = lambda: 'Darwin'; platform.machine = lambda: 'x86_64'"
    line = only_line(run(project, before=before))
    assert "found Darwin x86_64" in line
    assert "Apple silicon" in line


def test_full_disk_is_told_beforehand(project: Path) -> None:
    shutil.rmtree(project / ".venv")
    before = "import shutil; shutil.disk_usage = lambda path: type('Usage', (), {'free': 2**31})"
    line = only_line(run(project, before=before, POCKETBERT_TORCH=str(project)))
    assert re.search(r"needs about 4 GiB on the disk of .*my project, 2.0 GiB are free", line)
    assert not (project / ".venv").exists()


# Where torch comes from


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", []),
        ("https://wheels.example/simple", ["--extra-index-url", "https://wheels.example/simple"]),
        ("https://wheels.example/torch.html?x=1", ["--find-links", "https://wheels.example/torch.html?x=1"]),
    ],
)
def test_torch_source_becomes_pip_arguments(value: str, expected: list[str]) -> None:
    assert bootstrap.pip_options(value) == expected


def test_torch_folder_becomes_an_absolute_link(project: Path) -> None:
    stamp(project, torch_source=str(project))  # the same source as asked for: updated in place
    (project / "pipeline/constraints.txt").write_text("numpy==2.4.6\n")
    assert run(project, POCKETBERT_TORCH=os.path.relpath(project)).returncode == 0
    [call] = pip_calls(project)
    assert f"--find-links {project} " in call
    assert json.loads((project / ".venv/ready.json").read_text())["torch_source"] == str(project)


def test_missing_torch_folder_is_told_before_anything_is_made(project: Path) -> None:
    shutil.rmtree(project / ".venv")
    assert "/no/such/folder is neither a folder nor" in only_line(run(project, POCKETBERT_TORCH="/no/such/folder"))
    assert not (project / ".venv").exists()


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_pip_prefers_the_cpu_wheel(tmp_path: Path, how: str) -> None:
    """The pin admits the +cpu build, which pip ranks above the plain one: the CUDA packages stay away."""
    pin = re.search(r"(?m)^torch==(\S+)$", (REPOSITORY / "pipeline/constraints.txt").read_text())
    assert pin is not None
    cuda, cpu = tmp_path / "index", tmp_path / "cpu"
    _make_wheel(cuda, "torch", pin[1], requires=["nvidia-cublas"])
    _make_wheel(cuda, "nvidia_cublas", "1.0")
    _make_wheel(cpu, "torch", f"{pin[1]}+cpu")
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--no-index"]
    command += ["-c", str(REPOSITORY / "pipeline/constraints.txt"), "--report", str(report), "torch"]
    environment = os.environ | {"PIP_FIND_LINKS": str(cuda)}
    if how == "argument":
        command += bootstrap.pip_options(str(cpu))
        command += ["--find-links", str(cuda)]
    else:
        environment["PIP_FIND_LINKS"] = f"{cuda} {cpu}"
    subprocess.run(command, env=environment, check=True, timeout=60)
    [chosen] = json.loads(report.read_text())["install"]
    assert chosen["metadata"]["version"] == f"{pin[1]}+cpu"


def _make_wheel(folder: Path, name: str, version: str, *, requires: list[str] | None = None) -> None:
    """Write an empty wheel that pip accepts."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    metadata += [f"Requires-Dist: {other}" for other in requires or []]
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "\n".join(metadata) + "\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


# What is shown while pip works


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (526.6 MB)", "downloading torch (526.6 MB)"),
        ("  Downloading https://x/whl/torch-2.13.0%2Bcpu-cp311-x.whl (190.1 MB)", "downloading torch (190.1 MB)"),
        ("  Downloading nvidia_cublas-1.0-x.whl (1.2 GB)", "downloading nvidia_cublas (1.2 GB)"),
        ("  Downloading pydantic-2.11-py3-none-any.whl (2.1 MB)", ""),
        ("  Downloading rich-15.0.0-py3-none-any.whl (310 kB)", ""),
        ("Installing collected packages: a, b, c", "unpacking 3 packages, the longest step"),
        ("Collecting torch", ""),
    ],
)
def test_progress_shows_what_takes_time(line: str, shown: str) -> None:
    assert bootstrap.progress(line) == shown


def test_unpacking_is_told_in_percent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "old-1.dist-info").mkdir()
    monkeypatch.setattr(bootstrap, "VENV", str(tmp_path))
    assert bootstrap.count_pins() > 100
    pip = subprocess.Popen(["sleep", "30"])
    try:
        watching = threading.Thread(target=bootstrap.tell_unpacked, args=(pip, 4, bootstrap.unpacked()))
        watching.start()
        for name in ("a", "b"):
            (packages / f"{name}-1.dist-info").mkdir()
        until = time.monotonic() + 20
        while "unpacked 50 % of 4 packages" not in (said := capsys.readouterr().out) and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        pip.kill()
        pip.wait()
        watching.join()
    assert "unpacked 50 % of 4 packages" in said


def test_every_direct_dependency_is_pinned() -> None:
    import tomllib

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = (REPOSITORY / "pipeline/constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    for text in [*project["dependencies"], *(t for extra in project["optional-dependencies"].values() for t in extra)]:
        requirement = Requirement(text)
        if requirement.name == project["name"]:
            # An extra that has the packages of another one.
            assert requirement.extras <= project["optional-dependencies"].keys()
            continue
        pin = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pin), f"{text} does not admit the pin {pin}"


def test_installed_packages_are_the_pinned_ones() -> None:
    """The environment that the tests run in is the one that was promised, wherever a pinned package is installed."""
    from importlib.metadata import PackageNotFoundError, version

    lines = (REPOSITORY / "pipeline/constraints.txt").read_text().splitlines()
    different = {}
    for name, pin in (line.split("==") for line in lines if line and not line.startswith("#")):
        with contextlib.suppress(PackageNotFoundError):
            if version(name).split("+")[0] != pin:
                different[name] = (pin, version(name))
    assert different == {}
