"""Benchmarks on an Android phone, against a real adbd: there and back, and everything that can go wrong between."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from adbutils import AdbClient
from adbutils.errors import AdbError
from conftest import REPOSITORY, Silent, run_command
from test_compare import tiny

from benchmarks import compare, compare_record
from devices import phone as phones
from devices.phone import ADDRESS, Phone
from pipeline.artifact import Artifact
from pipeline.benchmark.record import BenchmarkRecord, _elsewhere, read_all
from pipeline.benchmark.sustained import energy
from pipeline.convert.targets import choose_targets, finished_model
from pipeline.devices import adb
from pipeline.devices.table import Device
from pipeline.devices.transport import DeviceError, Patience
from pipeline.errors import InputError
from pipeline.formats import signature
from pipeline.planning import run as running
from pipeline.planning.request import Request
from pipeline.recipe import loading
from pipeline.recipe.schema import Recipe
from pipeline.ship import apps, plain
from pipeline.ship import phones as shipped

__all__ = ["tiny"]
"""A fixture that pytest finds here by its name."""
pytestmark = [
    pytest.mark.devices,
    # adbutils 2.12 leaves a connection that broke to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
_RECIPE = """
name = "measured"
task = "embedding"
[student]
source = "bundled:all-MiniLM-L6-v2"
[start]
teacher_layers = [0, 5]
[convert]
sequence_lengths = [16, 64]
[targets.litert]
schemes = ["fp32", "int8_dynamic"]
[benchmark]
lengths = [16, 64]
rounds = 4
block_ms = 1
runs_per_block = 5
texts = 8
text_passes = 3
"""
_PATIENCE = Patience(poll_s=0.1, quick_s=0.1, silent_s=5.0, begin_s=30.0, grace_s=10.0)
"""Less than a phone gets, and enough where a compiler has this machine's cores."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of the bundled student, converted and verified."""
    home = tmp_path_factory.mktemp("measured")
    file = home / "measured.toml"
    file.write_text(_RECIPE, encoding="utf-8")
    recipe, _ = loading.read_recipe(str(file))
    running.run(Request(recipe, file, "verify", choose_targets(recipe, [])), home / "build", Silent())
    return home


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Phone]:
    """A phone on a cable of its own."""
    monkeypatch.setenv("HOME", os.environ["HOME"])
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "5099")
    with phones.network(), phones.plugged_in(tmp_path / "phone") as found:
        yield found


def row(phone: Phone, **changes: object) -> Device:
    """Return the phone's row."""
    given = {
        "name": "pixel",
        "transport": "adb",
        "summary": "a phone",
        "address": ADDRESS,
        "storage": str(phone.storage),
    }
    return Device.model_validate(given | changes)


def one_turn(made: Path) -> Recipe:
    """Return the recipe with one pass over the texts, so that the app is started once."""
    recipe, _ = loading.read_recipe(str(made / "measured.toml"))
    return recipe.model_copy(update={"benchmark": recipe.benchmark.model_copy(update={"text_passes": 1})})


def measure(made: Path, device: Device, build: Path) -> list[shipped.MeasuredFile]:
    """Measure one of the recipe's targets in one turn."""
    recipe = one_turn(made)
    chosen = choose_targets(recipe, ["litert:int8_dynamic"])
    texts = ["A man is playing a guitar.", "It rained all day.", "The shop closes at six."]
    return shipped.measure(
        recipe, build, chosen, device, adb.AndroidPhone(device), texts, lambda what, share: None, patience=_PATIENCE
    )


@pytest.fixture
def build(made: Path, tmp_path: Path) -> Path:
    """A build folder of the test's own, with the finished files."""
    return shutil.copytree(made / "build", tmp_path / "build", symlinks=True)


def test_there_and_back_by_the_command(made: Path, build: Path, phone: Phone) -> None:
    """Both files are pushed, measured and fetched; a second run measures nothing, and leaves nothing on the phone."""
    table = (
        f'[devices.pixel]\ntransport = "adb"\nsummary = "a phone"\naddress = "{ADDRESS}"\nstorage = "{phone.storage}"\n'
    )
    (made / "devices.toml").write_text(table)
    steered = {name: os.environ[name] for name in ("HOME", "ANDROID_ADB_SERVER_PORT")}
    # Two seconds.
    given = ["benchmark", "measured.toml", "--device", "pixel", "--build", str(build), "--sustained", "0.03", "--json"]
    first = run_command(*given, cwd=made, **steered)
    assert first.rc == 0, first.stderr
    found = {one["target"]: one for one in first.document["records"]}
    assert {name: one["kept"] for name, one in found.items()} == {"litert-fp32": False, "litert-int8_dynamic": False}
    assert phone.runs() == []
    records = read_all(build / "measured/benchmark-pixel")
    assert [record.source for record in records] == ["device", "device"]
    assert all(len(one.latencies_ms) >= 20 for record in records for one in record.timing.lengths)
    # Three passes over the texts are three starts of the app, in which the two files take turns.
    assert [record.turns for record in records] == [3, 3]
    turns = {(name, turn): _turn(build, name, turn) for name in found for turn in range(3)}
    places = {one: build / f"measured/benchmark-pixel/turns/{one[0]}-{one[1]}.json" for one in turns}
    began = sorted(turns, key=lambda one: places[one].stat().st_mtime_ns)
    first_one, other = "litert-fp32", "litert-int8_dynamic"
    assert [name for name, _ in began] == [first_one, other, other, first_one, first_one, other]
    for record in records:
        (name,) = (name for name in found if record.model.scheme == name.partition("-")[2])
        parts = [turns[name, turn] for turn in range(3)]
        for place, length in enumerate(record.timing.lengths):
            assert length.latencies_ms == [ms for part in parts for ms in part.timing.lengths[place].latencies_ms]
        assert len(record.timing.texts.latencies_ms) == 3 * record.timing.texts.texts
        assert [part.timing.sustained is None for part in parts] == [True, True, False]
        ran = record.timing.sustained
        assert ran is not None
        assert ran.seq_len == 64
        assert sum(part.seconds for part in ran.parts) == pytest.approx(1.8, abs=1.0)
        assert "whether it was charging" not in str(energy(record))
    again = run_command(*given, cwd=made, **steered)
    assert {one["kept"] for one in again.document["records"]} == {True}
    listed = run_command("devices", "--json", cwd=made, **steered)
    assert listed.document["devices"]["pixel"]["address"] == ADDRESS
    assert listed.document["attached"] == [{"serial": ADDRESS, "state": "device", "model": None}]


def _turn(build: Path, target: str, turn: int) -> BenchmarkRecord:
    file = build / f"measured/benchmark-pixel/turns/{target}-{turn}.json"
    return BenchmarkRecord.model_validate_json(file.read_bytes())


SAID = {
    "is killed": "the app was killed or has crashed (at 'opening the model')",
    "stands still": "the app is running and makes no progress (at 'opening the model')",
    "says nothing": "30 s after its start the app runs, and says nothing",
    "is hot": "the run ended as too hot: it did not cool down to 37 °C",
    "poses": "the record of measured/litert-int8_dynamic is refused: its source is emulated-arm64",
    "mixes up": "the record of measured/litert-int8_dynamic is refused: it is of another model",
    "goes to the background": "is refused: the app was in the background while it ran",
    "saves power": "is refused: power saving was on",
    "shares its pool": "is refused: 1 threads were asked for, and the runtime's pool had 4 at the end",
}


@pytest.mark.parametrize("behaves", SAID)
def test_an_app_that_does_not_do_what_it_should(behaves: str, made: Path, build: Path, phone: Phone) -> None:
    phone.behaves(behaves)
    with pytest.raises(DeviceError) as raised:
        measure(made, row(phone), build)
    assert SAID[behaves] in str(raised.value)
    assert raised.value.exit_code == 3
    assert not list((build / "measured").glob("benchmark-pixel/**/*.json"))
    # The next run is not misled by what the last one left.
    phone.behaves("")
    (one,) = measure(made, row(phone), build)
    assert not one.kept


def test_what_a_runtime_quietly_ran_elsewhere_stands_in_no_table(
    made: Path, build: Path, phone: Phone, tmp_path: Path
) -> None:
    """The GPU was asked for, and the record says that the processor ran it all."""
    recipe = one_turn(made)
    (target,) = choose_targets(recipe, ["litert:int8_dynamic"])
    folder, device = build / "measured", row(phone)
    model = finished_model(folder, target)
    said = apps.checked(recipe, folder, target, model, allow_not_run=False, thorough=None)

    def asked(units: str | None) -> shipped.TimedFile:
        requests = shipped.requests_of(recipe.benchmark, model, said, ["A text."], device)
        named = [one.model_copy(update={"compute_units": units}) for one in requests]
        return shipped.TimedFile(str(target), model, said, named)

    def ran(units: str | None) -> list[shipped.MeasuredFile]:
        transport = adb.AndroidPhone(device)
        return shipped.in_turns(
            [asked(units)], tmp_path / "out", "pixel", transport, lambda what, share: None, patience=_PATIENCE
        )

    # It is kept, since the phone would do the same again, and the other files are measured.
    (one,) = ran("GPU")
    assert _elsewhere(one.record.backend) == "GPU was asked for, and GPU ran none of it (CPU 100%)"
    (one,) = ran(None)
    assert one.record.backend.share_by_unit == {"CPU": 1.0}


def test_what_a_phone_lacks_is_said(made: Path, build: Path, phone: Phone) -> None:
    for file, said in (
        ("no_app", "the demo app pocketbert.app is not installed"),
        ("full", r"pixel has 1 MB free in /tmp/.*, and the run needs "),
        ("full_data", "pixel has 1 MB free in /data/local/tmp, and the run needs "),
        ("no_activity", "the app cannot be started: Error: Activity class"),
    ):
        (phone.home / file).touch()
        with pytest.raises(DeviceError, match=said):
            measure(made, row(phone), build)
        (phone.home / file).unlink()
    phone.lock()
    with pytest.raises(DeviceError, match="pixel is locked: unlock it"):
        measure(made, row(phone), build)


def test_a_cable_that_is_pulled_loses_nothing(made: Path, build: Path, phone: Phone) -> None:
    """The app goes on without us; the next command finds its run and does not start another."""
    phone.behaves("is slow")
    device = row(phone)
    told: list[str] = []

    def tell(what: str, share: float) -> None:
        told.append(what)
        if "step 2" in what:
            phone.pull_the_cable()

    recipe = one_turn(made)
    chosen = choose_targets(recipe, ["litert:int8_dynamic"])
    with pytest.raises(DeviceError, match="Finished measurements are kept"):
        shipped.measure(recipe, build, chosen, device, adb.AndroidPhone(device), ["A text."], tell, patience=_PATIENCE)
    app = (phone.home / "app.pid").read_text()
    phone.plug_in()
    (one,) = shipped.measure(
        recipe, build, chosen, device, adb.AndroidPhone(device), ["A text."], tell, patience=_PATIENCE
    )
    assert not one.kept
    assert (phone.home / "app.pid").read_text() == app
    assert sum("pushing" in what and "request" in what for what in told) == 1


def test_a_cable_that_is_pulled_in_the_middle_of_a_file(made: Path, build: Path, phone: Phone) -> None:
    device = row(phone)

    def tell(what: str, share: float) -> None:
        if "pushing" in what and "tokenizer.json" in what:
            phone.pull_the_cable()

    recipe = one_turn(made)
    chosen = choose_targets(recipe, ["litert:int8_dynamic"])
    with pytest.raises(DeviceError, match="pixel"):
        shipped.measure(recipe, build, chosen, device, adb.AndroidPhone(device), ["A text."], tell, patience=_PATIENCE)
    phone.plug_in()
    # Half of a model lies there and is not taken for one.
    (one,) = shipped.measure(
        recipe,
        build,
        chosen,
        device,
        adb.AndroidPhone(device),
        ["A text."],
        lambda what, share: None,
        patience=_PATIENCE,
    )
    assert one.record.timing.texts.texts == 1


def test_this_phone_refuses_what_android_refuses(phone: Phone) -> None:
    """A push outside /data, and an app's writing in a folder that the shell has made for it."""
    reached, device = adb.AndroidPhone(row(phone)), AdbClient().device(ADDRESS)
    with pytest.raises(AdbError, match="FAIL"):
        device.sync.push(b"a", f"{phone.storage}/a")
    assert not (phone.storage / "a").exists()
    device.sync.push(b"a", "/data/local/tmp/a", check=True)
    assert (phone.temporary / "a").read_bytes() == b"a"
    (phone.storage / "Android/data/pocketbert.app/files/runs/run").mkdir(parents=True)
    reached.start("run")
    assert not reached.alive()
    assert "EACCES" in (phone.home / "app.log").read_text()


def test_the_app_makes_its_own_folder_first(phone: Phone, monkeypatch: pytest.MonkeyPatch) -> None:
    def put() -> None:
        reached.put("run", {"models/a": b"a", "request.json": b"{}"}, lambda what, share: None)

    reached, folder = adb.AndroidPhone(row(phone)), phone.storage / "Android/data/pocketbert.app"
    # As a PocketBERT before this one left it: made by the shell, which is root here.
    (folder / "files/runs/run").mkdir(parents=True)
    put()
    assert folder.stat().st_uid == 10123
    assert (folder / "files/runs/run/models/a").read_bytes() == b"a"
    assert not reached.alive()
    assert list(phone.temporary.iterdir()) == []
    (phone.home / "makes_nothing").touch()
    reached.remove("run")
    shutil.rmtree(folder)
    monkeypatch.setattr(adb, "_OPEN_S", 0.1)
    with pytest.raises(
        DeviceError, match=r"pixel: the app pocketbert\.app was started and made no folder /tmp/.* open"
    ):
        put()


def test_which_phone_is_meant_is_never_guessed(phone: Phone) -> None:
    with pytest.raises(DeviceError, match="no phone with serial R5CT is attached; there are: 127"):
        adb.AndroidPhone(row(phone, serial="R5CT"))
    adb.AndroidPhone(row(phone))
    phone.pull_the_cable()
    with pytest.raises(DeviceError, match="pixel"):
        adb.AndroidPhone(row(phone))


def test_a_record_of_somebody_else_is_taken_or_refused(made: Path, build: Path, phone: Phone, tmp_path: Path) -> None:
    (one,) = measure(made, row(phone), build)
    recipe, _ = loading.read_recipe(str(made / "measured.toml"))
    model: Artifact = finished_model(build / "measured", choose_targets(recipe, ["litert:int8_dynamic"])[0])
    assert one.record.model.sha256 == model.digest
    file = tmp_path / "record.json"

    def imported(record: BenchmarkRecord) -> str:
        file.write_text(record.model_dump_json())
        outcome = run_command(
            "import", str(made / "measured.toml"), str(file), "--device", "colleague", "--build", str(build), cwd=made
        )
        return "taken" if outcome.rc == 0 else f"{outcome.rc} {' '.join(outcome.stderr.split())}"

    good = one.record
    assert imported(good) == "taken"
    assert read_all(build / "measured/benchmark-colleague") == [good]
    lengths = [one.model_copy(update={"latencies_ms": one.latencies_ms[:5]}) for one in good.timing.lengths]
    backwards = [one.model_copy(update={"latencies_ms": [-1.0, *one.latencies_ms[1:]]}) for one in good.timing.lengths]
    cases: dict[str, dict[str, Any]] = {
        "its source is emulated-arm64": {"source": "emulated-arm64"},
        "is none of those in": {"model": good.model.model_copy(update={"sha256": "0" * 64})},
        "it has fewer than 20 samples at 16, 64": {"timing": good.timing.model_copy(update={"lengths": lengths})},
        "its clock ran backwards": {"timing": good.timing.model_copy(update={"lengths": backwards})},
        "the phone was throttled": {"conditions": good.conditions.model_copy(update={"thermal_after": "severe"})},
    }
    for said, change in cases.items():
        answer = imported(good.model_copy(update=change))
        assert answer.startswith("2 ")
        assert said in answer
    file.write_text(json.dumps({"schema_version": 2}))
    outcome = run_command(
        "import", str(made / "measured.toml"), str(file), "--device", "x", "--build", str(build), cwd=made
    )
    assert outcome.rc == 2
    assert "is no latency record" in outcome.stderr


def test_the_comparison_on_a_phone(tiny: Path, phone: Phone, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file takes turns with BERT-base's on the phone, and both stand on the page beside this machine's."""
    monkeypatch.chdir(tiny)
    # Workers import `benchmarks`, which is no installed package.
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    (tiny / "devices.toml").write_text(
        f'[devices.pixel]\ntransport = "adb"\nsummary = "a phone"\naddress = "{ADDRESS}"\nstorage = "{phone.storage}"\n'
    )
    assert compare.main(["--device", "pixel"]) == 0
    places = {place.stem: place for place in (tiny / "results/device-pixel").glob("*.json")}
    cells = {name: compare_record.read(compare_record.Cell, place) for name, place in places.items()}
    student = cells["distilbert-litert-fp32"]
    assert student
    assert student.record
    assert student.beside
    assert (student.record.source, student.record.turns, student.beside.turns) == ("device", 2, 2)
    # Three rounds of seven, so that there are twenty.
    assert len(student.at(384).latencies_ms) == 21
    ratio = student.against(384)
    assert ratio
    assert ratio.low <= ratio.value <= ratio.high
    assert phone.runs() == []
    page = (tiny / "COMPARISON.md").read_text(encoding="utf-8")
    # A measured row for this machine and one for the phone; Core ML has sizes, and what others published has no ratio.
    assert len(re.findall(r"^\| DistilBERT \| [0-9.]+ \|", page, flags=re.MULTILINE)) == 2
    before = {place: place.stat().st_mtime_ns for place in places.values()}
    assert compare.main(["--device", "pixel"]) == 0
    assert {place: place.stat().st_mtime_ns for place in places.values()} == before
    assert compare.main(["--device", "host"]) == 2
    phone.pull_the_cable()
    assert compare.main(["--device", "pixel"]) == 3


_BENCHMARK_MODEL = """#!/bin/sh
case "$*" in *--signature_to_run_for=serving_default*) us=2000 ;; *) us=500 ;; esac
[ -f "$PHONE/no_delegate" ] && { echo "ERROR: Failed to apply XNNPACK delegate."; exit 1; }
[ -f "$PHONE/says_nothing" ] && exit 0
echo "INFO: Initialized session in 12.5ms."
echo "count=5 first=9000 curr=700 min=600 max=9000 avg=2300.5 std=3300"
echo "count=50 first=${us} curr=${us} min=${us} max=$((us * 2)) avg=${us}.5 std=20 p5=${us} median=${us} p95=${us}"
echo "INFO: Inference timings in us: Init: 12500, First inference: 9000, Warmup (avg): 2300.5, Inference (avg): ${us}.5"
"""
"""What LiteRT's benchmark_model writes, after its source; a script stands for the program."""


def test_without_the_app_by_the_runtimes_own_runner(made: Path, build: Path, phone: Phone, tmp_path: Path) -> None:
    runner = tmp_path / "benchmark_model"
    runner.write_text(_BENCHMARK_MODEL)
    model = finished_model(build / "measured", choose_targets(one_turn(made), ["litert:int8_dynamic"])[0]).path
    claimed = signature.read(model)
    reached, folder = adb.AndroidPhone(row(phone)), phone.temporary / "pocketbert"

    def ran(program: Path = runner) -> list[plain.RunnerTimes]:
        return plain.measure(
            reached, program, "litert-int8_dynamic", model, claimed, [16, 64], lambda what, share: None
        )

    found = ran()
    assert [(one.seq_len, one.runs, one.mean_ms, one.p50_ms, one.load_ms) for one in found] == [
        (16, 50, 0.5005, 0.5, 12.5),
        (64, 50, 2.0005, 2.0, 12.5),
    ]
    assert not folder.exists()
    for file, said in (
        ("no_delegate", "benchmark_model ended with exit code 1: ERROR: Failed to apply XNNPACK delegate"),
        ("says_nothing", "benchmark_model gave no timings of litert-int8_dynamic: it says nothing"),
    ):
        (phone.home / file).touch()
        with pytest.raises(DeviceError, match=said):
            ran()
        (phone.home / file).unlink()
        assert not folder.exists()
    with pytest.raises(InputError, match=r"there is no runner .* Build benchmark_model for the phone"):
        ran(tmp_path / "nowhere")


_EXECUTOR_RUNNER = """#!/bin/sh
said="Model executed successfully 50 time(s) in 250.000000 ms."
case "$*" in *--method_name=serving_default*) ;; *) exit 1 ;; esac
case "$(cat "$PHONE/build")" in
android) echo "$(date '+%Y-%m-%d %H:%M:%S.%N') $said" >>"$PHONE/log.ExecuTorch" ;;
posix) echo "I 00:00:00.001 executorch:executor_runner.cpp:789] $said" >&2 ;;
esac
echo "OutputX 0: tensor(sizes=[1, 16])"
"""
"""What ExecuTorch's executor_runner writes where, after its source and those of its two platforms."""


def test_executorchs_runner_says_its_time_in_the_log_of_the_phone(
    made: Path, build: Path, phone: Phone, tmp_path: Path
) -> None:
    runner = tmp_path / "executor_runner"
    runner.write_text(_EXECUTOR_RUNNER)
    model = finished_model(build / "measured", choose_targets(one_turn(made), ["litert:int8_dynamic"])[0]).path
    claimed = signature.read(model).model_copy(update={"backend": "executorch"})
    reached = adb.AndroidPhone(row(phone))
    # Of an earlier run, which is not this one's.
    (phone.home / "log.ExecuTorch").write_text(
        "2026-01-01 00:00:00.000000000 Model executed successfully 50 time(s) in 1.000000 ms.\n"
    )

    def ran(how: str) -> list[plain.RunnerTimes]:
        (phone.home / "build").write_text(how)
        return plain.measure(reached, runner, "executorch-fp32", model, claimed, [16], lambda what, share: None)

    for how in ("android", "posix"):
        (found,) = ran(how)
        assert (found.seq_len, found.runs, found.mean_ms, found.p50_ms) == (64, 50, 5.0, None)
    (phone.home / "log.ExecuTorch").unlink()
    with pytest.raises(DeviceError, match="gave no timings of executorch-fp32, neither to its console nor to the"):
        ran("without logging")
