"""Settings of other processors, and what `--margins` records: tests of how tests are made independent of a machine."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import margins
import processors
import pytest
from conftest import REPOSITORY, environment

_SEEN = """
import json
import torch
import ai_edge_litert.interpreter
# Now, and not before: what it installs limits libraries that are imported later.
import limited.sitecustomize as limited
found = [limited.of_torch().present(), limited.of_litert().present()]
print(json.dumps([torch.backends.cpu.get_cpu_capability(), *map(sorted, found)]))
"""


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="only there is a processor made plainer"
)
@pytest.mark.toolchain
@pytest.mark.parametrize(("setting", "capability"), [("plainest", "DEFAULT"), ("avx2", None)])
def test_libraries_see_a_plainer_processor(setting: str, capability: str | None) -> None:
    """Both copies of cpuinfo lose what the setting lacks before XNNPACK looks, and so does PyTorch."""
    command, variables = [sys.executable, "-W", "ignore", "-c", _SEEN], processors.SETTINGS[setting]
    done = subprocess.run(command, env=processors.environment(variables), capture_output=True, check=True)
    found, *copies = json.loads(done.stdout)
    assert capability in (None, found)
    for flags in copies:
        assert "popcnt" in flags
        assert not [flag for flag in flags if flag.startswith(("avx512", "amx"))]
        assert (setting != "plainest") or not {"avx", "avx2", "fma3"} & set(flags)


@pytest.mark.toolchain
def test_a_process_that_has_imported_libraries_is_not_said_to_be_limited() -> None:
    command = [sys.executable, "-m", "pytest", "--processor", "plainest", "tests/test_metrics.py"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "give -n 1 as well" in done.stderr


def test_what_tests_keep_is_kept_by_processor_and_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {processors.here()}
    for setting in ("plainest", "avx2"):
        for name, value in processors.SETTINGS[setting].items():
            monkeypatch.setenv(name, value)
        found.add(processors.here())
    # The suite itself may run under one of these.
    assert len(found) >= 2


@pytest.mark.parametrize(
    ("explanation", "found"),
    [
        ("assert 0.25 < (0.5 * 0.75)", [(0.25, 0.375)]),
        ("0.5 <= np.float64(0.6) < 0.7\n  +  where np.float64(0.6) = x", [(0.5, 0.6), (0.6, 0.7)]),
        ("assert 1.01 == 1.0 ± 2.0e-02", [(pytest.approx(0.01), 0.02)]),
        ("3 == 3", []),
        ("'a' < 'b'", []),
        ("assert all(<generator object>)", []),
        ("", []),
    ],
)
def test_numbers_are_read_from_what_pytest_explains(explanation: str, found: list[tuple[float, float]]) -> None:
    assert list(margins.comparisons(explanation)) == found


def test_the_least_safe_comparison_stands_first() -> None:
    """Distance to the bound over the spread; a sign that turns is worst, and what never moves is left out."""
    other_seed = {"a": {"near": [0.1, 1.0], "same": [0.5, 1.0]}}
    runs = {
        "seed1": other_seed,
        "one": {"a": {"turns": [0.9, 1.0], "near": [0.5, 1.0], "far": [0.10, 1.0], "same": [0.99, 1.0]}},
        "two": {"a": {"turns": [1.1, 1.0], "near": [0.8, 1.0], "far": [0.11, 1.0], "same": [0.99, 1.0]}},
    }
    rows = margins.table(runs)
    assert [row.what for row in rows] == ["turns #0", "near #0", "far #0"]
    assert [row.safety for row in rows] == pytest.approx([0.0, 0.2 / 0.3, 0.89 / 0.01])


@pytest.mark.toolchain
def test_a_run_writes_what_its_tests_compared(tmp_path: Path) -> None:
    """pytest itself, on a file of its own: an assert that passes, one that fails, a tolerance and a verdict's gate."""
    (tmp_path / "test_some.py").write_text(
        "import numpy as np\n"
        "def test_passes():\n    assert 0.25 < 0.5\n"
        "def test_fails():\n    assert 3.0 < 2.5\n"
        "def test_approaches():\n    np.testing.assert_allclose(1.0, 1.001, rtol=0, atol=0.01)\n"
        "def test_is_judged(tmp_path):\n"
        '    gate = \'{"name": "min_sqnr_db", "bound": 30.0, "found": 31.5}\'\n'
        '    text = \'{"backend": "litert", "scheme": "fp32", "gates": [\' + gate + \']}\'\n'
        "    (tmp_path / 'parity.json').write_text(text)\n",
        encoding="utf-8",
    )
    file = tmp_path / "margins.json"
    options = [
        "-p",
        "margins_alone",
        "-o",
        "enable_assertion_pass_hook=true",
        f"--margins={file}",
        "-p",
        "no:cacheprovider",
    ]
    (tmp_path / "margins_alone.py").write_text(
        "from margins import Margins\n"
        "def pytest_addoption(parser):\n    parser.addoption('--margins')\n"
        "def pytest_configure(config):\n    config.pluginmanager.register(Margins(config))\n",
        encoding="utf-8",
    )
    places = os.pathsep.join(map(str, (REPOSITORY / "tests", REPOSITORY, tmp_path)))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        "--rootdir",
        str(tmp_path),
        *options,
        str(tmp_path),
    ]
    # Plugins that toolchains bring along import torch.
    variables = environment(PYTHONPATH=places, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    found = {name.partition("::")[2]: values for name, values in json.loads(file.read_text(encoding="utf-8")).items()}
    assert found["test_passes"] == {"test_some.py:3 0.25 < 0.5": [0.25, 0.5]}
    assert found["test_fails"] == {"test_some.py:5 3.0 < 2.5": [3.0, 2.5]}
    assert found["test_is_judged"] == {"gate litert-fp32 min_sqnr_db": [31.5, 30.0]}
