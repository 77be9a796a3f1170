"""Benchmarks on an Android phone, against a real adbd: there and back, and everything that can go wrong between."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Silent, run_command

from devices import phone as phones
from devices.phone import ADDRESS, Phone
from pipeline.artifact import Artifact
from pipeline.benchmark.record import BenchmarkRecord, read_all
from pipeline.convert.targets import choose_targets, finished_model
from pipeline.devices import adb
from pipeline.devices.table import Device
from pipeline.devices.transport import DeviceError, Patience
from pipeline.graph import run as running
from pipeline.graph.build import Request
from pipeline.recipe import loading
from pipeline.ship import phones as shipped

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
_PATIENCE = Patience(poll_s=0.1, silent_s=2.0, begin_s=4.0, grace_s=5.0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled student, converted and verified."""
    home = tmp_path_factory.mktemp("measured")
    file = home / "measured.toml"
    file.write_text(_RECIPE, encoding="utf-8")
    recipe, _ = loading.read(str(file))
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


def measure(made: Path, device: Device, build: Path, targets: list[str] | None = None) -> list[shipped.Measured]:
    """Measure the recipe's targets."""
    recipe, _ = loading.read(str(made / "measured.toml"))
    chosen = choose_targets(recipe, targets or ["litert:int8_dynamic"])
    texts = ["A man is playing a guitar.", "It rained all day.", "The shop closes at six."]
    return shipped.measure(
        recipe, build, chosen, device, adb.AndroidPhone(device), texts, lambda what, share: None, patience=_PATIENCE
    )


@pytest.fixture
def build(made: Path, tmp_path: Path) -> Path:
    """A build folder of the test's own, with the finished files."""
    import shutil

    return shutil.copytree(made / "build", tmp_path / "build", symlinks=True)


def test_there_and_back_by_the_command(made: Path, build: Path, phone: Phone) -> None:
    """Both files are pushed, measured and fetched; a second run measures nothing, and leaves nothing on the phone."""
    table = (
        f'[devices.pixel]\ntransport = "adb"\nsummary = "a phone"\naddress = "{ADDRESS}"\nstorage = "{phone.storage}"\n'
    )
    (made / "devices.toml").write_text(table)
    steered = {name: os.environ[name] for name in ("HOME", "ANDROID_ADB_SERVER_PORT")}
    given = ["benchmark", "measured.toml", "--device", "pixel", "--build", str(build), "--json"]
    first = run_command(*given, cwd=made, **steered)
    assert first.rc == 0, first.stderr
    found = {one["target"]: one for one in first.document["records"]}
    assert {name: one["kept"] for name, one in found.items()} == {"litert-fp32": False, "litert-int8_dynamic": False}
    assert phone.runs() == []
    records = read_all(build / "measured/benchmark-pixel")
    assert [record.source for record in records] == ["device", "device"]
    assert all(len(one.latencies_ms) >= 20 for record in records for one in record.timing.lengths)
    again = run_command(*given, cwd=made, **steered)
    assert {one["kept"] for one in again.document["records"]} == {True}
    listed = run_command("devices", "--json", cwd=made, **steered)
    assert listed.document["devices"]["pixel"]["address"] == ADDRESS
    assert listed.document["attached"] == [{"serial": ADDRESS, "state": "device", "model": None}]


SAID = {
    "is killed": "the app was killed or has crashed (at 'opening the model')",
    "stands still": "the app is there and does not go on (at 'opening the model')",
    "says nothing": "4 s after its start the app runs, and says nothing",
    "is hot": "the run ended as too hot: it did not cool down to 37 °C",
    "poses": "the record of measured/litert-int8_dynamic is refused: its source is emulated-arm64",
    "mixes up": "the record of measured/litert-int8_dynamic is refused: it is of another model",
}


@pytest.mark.parametrize("behaves", SAID)
def test_an_app_that_does_not_do_what_it_should(behaves: str, made: Path, build: Path, phone: Phone) -> None:
    phone.behaves(behaves)
    with pytest.raises(DeviceError) as raised:
        measure(made, row(phone), build)
    assert SAID[behaves] in str(raised.value)
    assert raised.value.exit_code == 3
    assert not (build / "measured/benchmark-pixel").exists()
    # The next run is not misled by what the last one left.
    phone.behaves("")
    (one,) = measure(made, row(phone), build)
    assert not one.kept


def test_what_a_phone_lacks_is_said(made: Path, build: Path, phone: Phone) -> None:
    for file, said in (
        ("no_app", "the demo app pocketbert.app is not installed"),
        ("full", "pixel has 1 MB free, and the run needs "),
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

    recipe, _ = loading.read(str(made / "measured.toml"))
    chosen = choose_targets(recipe, ["litert:int8_dynamic"])
    with pytest.raises(DeviceError, match="What was measured so far is kept"):
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

    recipe, _ = loading.read(str(made / "measured.toml"))
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


def test_which_phone_is_meant_is_never_guessed(phone: Phone) -> None:
    with pytest.raises(DeviceError, match="no phone with serial R5CT is attached; there are: 127"):
        adb.AndroidPhone(row(phone, serial="R5CT"))
    adb.AndroidPhone(row(phone))
    phone.pull_the_cable()
    with pytest.raises(DeviceError, match="pixel"):
        adb.AndroidPhone(row(phone))


def test_a_record_of_somebody_else_is_taken_or_refused(made: Path, build: Path, phone: Phone, tmp_path: Path) -> None:
    (one,) = measure(made, row(phone), build)
    recipe, _ = loading.read(str(made / "measured.toml"))
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
