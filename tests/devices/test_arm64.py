"""The bundled student's LiteRT file on emulated ARM processors, by LiteRT's own build for them; see `.ci/devices`."""

import json
from pathlib import Path

import pytest
from conftest import Silent, run_command

from pipeline import artifact
from pipeline.convert.targets import choose_targets
from pipeline.devices import arm64
from pipeline.errors import InputError, ToolchainError
from pipeline.graph import run as running
from pipeline.graph.build import Request
from pipeline.recipe import loading
from pipeline.verify import emulated

pytestmark = pytest.mark.devices
_RECIPE = """
name = "emulated"
task = "embedding"
[student]
source = "bundled:all-MiniLM-L6-v2"
[convert]
sequence_lengths = [16, 64]
[targets.litert]
schemes = ["int8_dynamic"]
[benchmark]
rounds = 1
block_ms = 1.0
texts = 2
text_passes = 1
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled student, converted and verified; returns the folder with its recipe and its build folder."""
    home = tmp_path_factory.mktemp("emulated")
    file = home / "emulated.toml"
    file.write_text(_RECIPE, encoding="utf-8")
    recipe, _ = loading.read(str(file))
    request = Request(recipe, file, "verify", choose_targets(recipe, []))
    running.run(request, home / "build", Silent())
    return home


def test_the_command_judges_each_processor_and_counts_twice_the_same(made: Path) -> None:
    """Outputs by the target's own bound on three processors; instructions of two starts of the machine are equal."""
    given = ["arm64", "emulated.toml", "--install", "--json"]
    outcome = run_command(*given, cwd=made)
    assert outcome.rc == 0, outcome.stderr
    (found,) = outcome.document["emulated"]
    judged = emulated.Emulated.model_validate_json(
        (made / "build/emulated/litert-int8_dynamic/emulated.json").read_bytes()
    )
    assert found == judged.model_dump(mode="json")
    assert judged.lengths == [16, 64]
    assert judged.rows >= 30
    assert [one.cpu for one in judged.processors] == list(arm64.CPUS)
    for one in judged.processors:
        assert one.verdict == "passed"
        assert one.worst > judged.bound
        # Other kernels round otherwise, and a file that is another model would be farther off than this.
        assert abs(one.worst - one.worst_here) < 0.01
    # i8mm takes fewer instructions than dotprod: other kernels did run.
    newer, older = (next(one for one in judged.counts if one.cpu == cpu) for cpu in ("cortex-a710", "cortex-a76"))
    assert newer.instructions[64] < 0.9 * older.instructions[64]
    assert older.instructions[64] > 2 * older.instructions[16]
    assert {one.page_size for one in judged.counts} == {16384}
    again = run_command(*given, "--cpu", "cortex-a76", cwd=made)
    (repeated,) = again.document["emulated"][0]["counts"]
    for length, count in older.instructions.items():
        assert repeated["instructions"][str(length)] == pytest.approx(count, rel=0.005)


def test_real_counts_reach_the_report_and_close_the_gate(made: Path) -> None:
    counted = run_command("arm64", "emulated.toml", "--install", "--cpu", "cortex-a76", "--json", cwd=made)
    (counts,) = counted.document["emulated"][0]["counts"]
    gate = ["gate", "emulated.toml", "--baseline", "baseline.json", "--json"]
    assert run_command("report", "emulated.toml", cwd=made).rc == 0
    report = json.loads((made / "build/emulated/report/report.json").read_text(encoding="utf-8"))
    assert report["targets"][0]["instructions"]["counts"] == [counts]
    (made / "baseline.json").write_text(json.dumps(report), encoding="utf-8")
    assert run_command(*gate, cwd=made).rc == 0
    counts["instructions"]["64"] = round(counts["instructions"]["64"] / 1.03)
    report["targets"][0]["instructions"]["counts"] = [counts]
    (made / "baseline.json").write_text(json.dumps(report), encoding="utf-8")
    closed = run_command(*gate, cwd=made)
    assert closed.rc == 1
    worse = [row["quantity"] for row in closed.document["rows"] if row["verdict"] == "worse"]
    assert worse == ["instructions, cortex-a76, 64 tokens"]


def test_a_file_that_is_another_model_fails(made: Path, tmp_path: Path) -> None:
    """Truth whose outputs are turned about is what a wrong file would look like; the bound fires."""
    emulator = arm64.find(made / "build", install=True, note=lambda text: None)
    place = made / "build" / "emulated"
    model = artifact.load(place / "litert-int8_dynamic" / "model")
    truth = _turned(place / "reference-64", tmp_path / "truth")
    judged = emulated.judge(model, truth, emulator, ["cortex-a53"], [], tmp_path / "log", lambda what, share: None)
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
    emulator = arm64.find(made / "build", install=True, note=lambda text: None)
    with pytest.raises(InputError, match="'cortex-m4' is none of those that are emulated; there are: cortex-a53"):
        emulator.outputs(made / "none.tflite", [], [], "cortex-m4", tmp_path / "log")
    with pytest.raises(InputError, match="cortex-a53 starts no kernel of 16 KB pages"):
        emulator.count(made / "none.tflite", [], "cortex-a53", 1, tmp_path / "log")
    broken = tmp_path / "broken.tflite"
    broken.write_bytes(b"no model")
    with pytest.raises(ToolchainError, match=r"broken\.tflite on cortex-a76 went down after 0 runs; see "):
        emulator.outputs(broken, [], [], "cortex-a76", tmp_path / "log")
    assert "no model" not in (tmp_path / "log").read_text()
