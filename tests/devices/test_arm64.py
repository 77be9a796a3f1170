"""Two of the bundled student's layers on emulated ARM processors, by the runtimes' own builds; see `.ci/devices`."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Silent, run_command

from pipeline import artifact
from pipeline.convert.targets import choose_targets
from pipeline.devices import arm64, elf
from pipeline.errors import InputError, ToolchainError
from pipeline.planning import run as running
from pipeline.planning.request import Request
from pipeline.recipe import loading
from pipeline.verify import emulated

pytestmark = pytest.mark.devices
_RECIPE = """
name = "emulated"
task = "embedding"
[student]
source = "bundled:all-MiniLM-L6-v2"
[start]
teacher_layers = [0, 5]
[convert]
sequence_lengths = [16, 64]
[targets.litert]
schemes = ["int8_dynamic"]
[targets.executorch]
schemes = ["int8_dynamic"]
[benchmark]
rounds = 1
block_ms = 1.0
texts = 2
text_passes = 1
"""
_STUBS = ["libc10_cuda.so", "libcudart.so.13", "libcudnn.so.9", "libcufile.so.0", "libcupti.so.13", "libnccl.so.2"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The student, converted and verified; returns the folder with its recipe and its build folder."""
    home = tmp_path_factory.mktemp("emulated")
    file = home / "emulated.toml"
    file.write_text(_RECIPE, encoding="utf-8")
    recipe, _ = loading.read_recipe(str(file))
    request = Request(recipe, file, "verify", choose_targets(recipe, []))
    running.run(request, home / "build", Silent())
    return home


@pytest.fixture(scope="module")
def counted(made: Path) -> dict[str, Any]:
    """What the command says of one processor, with instructions that were counted; it is also kept beside the files."""
    outcome = run_command("arm64", "emulated.toml", "--install", "--cpu", "cortex-a76", "--json", cwd=made)
    assert outcome.rc == 0, outcome.stderr
    (found,) = outcome.document["emulated"]
    return dict(found)


def test_the_command_judges_each_processor_and_counts_twice_the_same(made: Path, counted: dict[str, Any]) -> None:
    """Outputs by the target's own bound on three processors; instructions of two starts of the machine are equal."""
    outcome = run_command("arm64", "emulated.toml", "--install", "--json", cwd=made)
    assert outcome.rc == 0, outcome.stderr
    (found,) = outcome.document["emulated"]
    judged = emulated.EmulatedRuns.model_validate_json(
        (made / "build/emulated/litert-int8_dynamic/emulated.json").read_bytes()
    )
    assert found == judged.model_dump(mode="json")
    assert judged.lengths == [16, 64]
    assert judged.rows >= 30
    assert [one.cpu for one in judged.processors] == list(arm64.CPUS)
    for one in judged.processors:
        assert one.verdict == "passed"
        assert one.score > judged.bound
        # Other kernels round otherwise, and a file that is another model would be farther off than this.
        assert abs(one.score - one.score_here) < 0.01
    # i8mm takes fewer instructions than dotprod: other kernels did run.
    newer, older = (next(one for one in judged.counts if one.cpu == cpu) for cpu in ("cortex-a710", "cortex-a76"))
    assert newer.instructions[64] < 0.9 * older.instructions[64]
    assert older.instructions[64] > 2 * older.instructions[16]
    assert {one.page_size for one in judged.counts} == {16384}
    (before,) = counted["counts"]
    for length, count in older.instructions.items():
        assert before["instructions"][str(length)] == pytest.approx(count, rel=0.005)


def test_executorch_runs_with_empty_libraries_in_place_of_cuda(made: Path) -> None:
    """Outputs by the target's own bound, instructions in a machine with pages of 16 KB, and what stood for what."""
    given = ["--target", "executorch", "--stub-cuda", "--cpu", "cortex-a76", "--install"]
    outcome = run_command("arm64", "emulated.toml", *given, cwd=made)
    assert outcome.rc == 0, outcome.stderr
    said = " ".join((outcome.stdout + outcome.stderr).split())
    assert "empty libraries stand for libc10_cuda.so, libcudart.so.13" in said
    assert "7 libraries were empty ones: libc10_cuda.so" in said
    judged = emulated.EmulatedRuns.model_validate_json(
        (made / "build/emulated/executorch-int8_dynamic/emulated.json").read_bytes()
    )
    assert judged.stubs == [*_STUBS, "libtorch_cuda.so"]
    assert judged.answered == ["_ZN4c10d15get_gil_checkerEv"]
    assert judged.rows >= 30
    # The length is free: rows run at their own, and one is padded to the end.
    assert len(judged.lengths) > 10
    assert judged.lengths[-1] == 64
    (one,) = judged.processors
    assert one.verdict == "passed"
    assert one.score > judged.bound
    assert abs(one.score - one.score_here) < 0.01
    # Kernels of this machine round otherwise: what was compared did not run here.
    assert one.max_difference > 0
    (counts,) = judged.counts
    assert counts.page_size == 16384
    assert list(counts.instructions) == [16, 32, 64]
    assert counts.instructions[64] > 2 * counts.instructions[16]
    assert counts.spread < 0.005


def test_a_call_into_an_empty_library_ends_the_emulated_run(made: Path, tmp_path: Path) -> None:
    """The same libraries as in the run before, opened by the emulated system's own loader."""
    emulator = arm64.find(made / "build", "litert", install=True, note=lambda text: None)
    elf.write_empty(tmp_path / "libempty.so.1", [elf.Symbol("nothing", "EMPTY_1", "libempty.so.1", data=False)])
    command = [str(emulator.tree / "qemu/usr/bin/qemu-aarch64"), "-L", str(emulator.tree / "arm64")]
    command += [str(emulator.tree / "arm64/usr/bin/python3.11"), "-c"]
    opened = f"import ctypes; found = ctypes.CDLL({str(tmp_path / 'libempty.so.1')!r}).nothing"
    done = subprocess.run([*command, f"{opened}; print('loaded')"], check=True, capture_output=True, text=True)
    assert done.stdout == "loaded\n"
    assert subprocess.run([*command, f"{opened}()"], check=False, capture_output=True).returncode == -signal.SIGILL


@pytest.mark.usefixtures("counted")
def test_real_counts_reach_the_report_and_close_the_gate(made: Path) -> None:
    kept = json.loads((made / "build/emulated/litert-int8_dynamic/emulated.json").read_text(encoding="utf-8"))["counts"]
    gate = ["gate", "emulated.toml", "--baseline", "baseline.json", "--json"]
    assert run_command("report", "emulated.toml", cwd=made).rc == 0
    report = json.loads((made / "build/emulated/report/report.json").read_text(encoding="utf-8"))
    held = report["targets"][0]["emulated"]["counts"]
    assert held == kept
    (made / "baseline.json").write_text(json.dumps(report), encoding="utf-8")
    assert run_command(*gate, cwd=made).rc == 0
    (counts,) = (one for one in held if one["cpu"] == "cortex-a76")
    counts["instructions"]["64"] = round(counts["instructions"]["64"] / 1.03)
    (made / "baseline.json").write_text(json.dumps(report), encoding="utf-8")
    closed = run_command(*gate, cwd=made)
    assert closed.rc == 1
    worse = [row["quantity"] for row in closed.document["rows"] if row["verdict"] == "worse"]
    assert worse == ["instructions, cortex-a76, 64 tokens"]


def test_a_file_that_is_another_model_fails(made: Path, tmp_path: Path) -> None:
    """Truth whose outputs are turned about is what a wrong file would look like; the bound fires."""
    emulator = arm64.find(made / "build", "litert", install=True, note=lambda text: None)
    place = made / "build" / "emulated"
    model = artifact.load(place / "litert-int8_dynamic" / "model")
    reference = _turned(place / "reference-64", tmp_path / "turned")
    judged = emulated.judge(model, reference, emulator, ["cortex-a53"], [], tmp_path / "log", lambda what, share: None)
    (one,) = judged.processors
    assert one.verdict == "failed"
    assert "is the least" in (one.reason or "")


def _turned(place: Path, out: Path) -> Path:
    from safetensors.numpy import load_file, save_file

    out.mkdir()
    (out / "reference.json").write_bytes((place / "reference.json").read_bytes())
    arrays = load_file(place / "outputs.safetensors")
    save_file(arrays | {"values": arrays["values"][:, ::-1].copy()}, out / "outputs.safetensors")
    return out


def test_what_cannot_be_emulated_is_refused(made: Path, tmp_path: Path) -> None:
    emulator = arm64.find(made / "build", "litert", install=True, note=lambda text: None)
    with pytest.raises(InputError, match="'cortex-m4' is none of those that are emulated; there are: cortex-a53"):
        emulator.outputs(made / "none.tflite", [], [], "cortex-m4", tmp_path / "log")
    with pytest.raises(InputError, match="cortex-a53 starts no kernel of 16 KB pages"):
        emulator.count(made / "none.tflite", [], "cortex-a53", 1, tmp_path / "log")
    broken = tmp_path / "broken.tflite"
    broken.write_bytes(b"no model")
    with pytest.raises(ToolchainError, match=r"broken\.tflite on cortex-a76 went down after 0 runs; see "):
        emulator.outputs(broken, [], [], "cortex-a76", tmp_path / "log")
    assert "no model" not in (tmp_path / "log").read_text()
