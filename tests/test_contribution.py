"""Records that are handed in: signed, and refused for one reason each."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, run_command_here
from test_phones import changed

from benchmarks import device_records
from pipeline.benchmark.record import BenchmarkRecord, texts_digest
from pipeline.errors import InputError
from pipeline.ship import contribution
from pipeline.text.bundled import everyday_sentences
from pipeline.trust import signing

Tamper = Callable[[Path, Path], None]
"""Takes the folder of the contribution and the one of all."""


def good(**changes: Any) -> BenchmarkRecord:
    """Return a record that may stand in the table."""
    length = {"seq_len": 16, "ran_at": 16, "latencies_ms": [1.5] * 30, "cpu_ms": None}
    texts = changed().timing.texts.model_dump() | {"latencies_ms": [1.0], "tokenise_ms": [0.1]}
    given = {
        "device__model_id": "Google Pixel 8",
        "timing__lengths": [length],
        "timing__texts": texts,
        "timing__texts_sha256": texts_digest(everyday_sentences()[:1]),
        "model__sha256": "f" * 64,
    }
    return changed(**given | changes)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of contributions that knows one model."""
    folder = tmp_path / "devices"
    folder.mkdir()
    (folder / contribution.MODELS).write_text(f'[models]\n{"f" * 64} = "minilm/litert-fp32, 0.1.0"\n')
    return folder


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return signing.new_key(tmp_path / "ada.key")[0]


def put(folder: Path, record: BenchmarkRecord, name: str = "litert-fp32.json") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(record.model_dump_json())
    (folder / "records.json").write_text(json.dumps([name]))
    return folder


def test_what_is_handed_in_stands_in_the_table(root: Path, key: Path, tmp_path: Path) -> None:
    records = put(tmp_path / "benchmark-pixel-8", good())
    outcome = run_command_here(
        "hand-in", str(records), "--as", "ada/pixel-8", "--key", str(key), "--into", str(root), cwd=tmp_path
    )
    assert outcome.rc == 0, outcome.stderr
    assert device_records.main([], root) == 0
    page = (root / "RESULTS.md").read_text(encoding="utf-8")
    assert "| Google Pixel 8" in page
    assert "16: 1.50 / 1.50 (30)" in page
    assert device_records.main(["--check"], root) == 0
    (root / "RESULTS.md").write_text(page.replace("1.50", "1.00"))
    assert device_records.main(["--check"], root) == 1


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a host": ({"source": "host"}, "its source is host"),
    "an emulator": ({"source": "emulated-arm64"}, "only device and host are latencies"),
    "an emulator that poses": ({"device__model_id": "Google sdk_gphone64_arm64"}, "emulators are no latency"),
    "a PC that poses": ({"device__abi": "x86_64"}, "no android phone has the ABI x86_64"),
    "few samples": (
        {"timing__lengths": [{"seq_len": 16, "ran_at": 16, "latencies_ms": [1.0] * 5, "cpu_ms": None}]},
        "fewer than 20 samples at 16",
    ),
    "a clock": (
        {"timing__lengths": [{"seq_len": 16, "ran_at": 16, "latencies_ms": [-1.0] * 30, "cpu_ms": None}]},
        "its clock ran backwards",
    ),
    "heat": ({"conditions__thermal_after": "severe"}, "the phone was throttled"),
    "other texts": ({"timing__texts_sha256": "0"}, "its texts are not PocketBERT's own sentences"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_record_that_is_no_latency_of_a_phone(name: str, root: Path, key: Path, tmp_path: Path) -> None:
    """Neither handed in by the command, nor taken where somebody signed it all the same."""
    changes, said = REFUSED[name]
    with pytest.raises(InputError, match=said):
        contribution.hand_in(put(tmp_path / "records", good(**changes)), "ada/pixel-8", key, root)
    folder = root / "ada/pixel-8"
    folder.parent.mkdir()
    put(folder, good(**changes))
    (folder / "records.json").unlink()
    private = signing.read_key(key)
    (folder.parent / contribution.KEY).write_text(signing.public_pem(private))
    signing.sign(folder, "ada/pixel-8", private)
    (found,) = contribution.contributed_records(root)
    assert said in (found.reason or "")
    assert device_records.main(["--check"], root) == 1


def _other_model(folder: Path, root: Path) -> None:
    (root / contribution.MODELS).write_text(f'[models]\n{"0" * 64} = "another"\n')


def _altered(folder: Path, root: Path) -> None:
    file = folder / "litert-fp32.json"
    file.write_text(file.read_text().replace("1.5", "1.2"))


def _added(folder: Path, root: Path) -> None:
    (folder / "more.json").write_text((folder / "litert-fp32.json").read_text())


def _other_key(folder: Path, root: Path) -> None:
    private, _ = signing.new_key(root.parent / "eve.key")
    (folder.parent / contribution.KEY).write_text(signing.public_pem(signing.read_key(private)))


def _of_another(folder: Path, root: Path) -> None:
    folder.rename(folder.parent / "iphone-15")


TAMPERED: dict[str, tuple[Tamper, str]] = {
    "a model that nobody knows": (_other_model, "is none of models.toml"),
    "an altered time": (_altered, "its signature is refused (changed)"),
    "an added record": (_added, "its signature is refused (added)"),
    "another's key": (_other_key, "its signature is refused (other_key)"),
    "the record of another phone": (_of_another, "its signature is refused (other_bundle)"),
    "no signature": (lambda folder, root: (folder / "model.sig").unlink(), "its signature is refused (unsigned)"),
    "no key": (lambda folder, root: (folder.parent / contribution.KEY).unlink(), "key.pub"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_what_was_changed_after_it_was_handed_in(name: str, root: Path, key: Path, tmp_path: Path) -> None:
    contribution.hand_in(put(tmp_path / "records", good()), "ada/pixel-8", key, root)
    assert [one.reason for one in contribution.contributed_records(root)] == [None]
    tamper, said = TAMPERED[name]
    tamper(root / "ada/pixel-8", root)
    assert said in " ".join(one.reason or "" for one in contribution.contributed_records(root))


def test_the_records_of_the_repository_are_valid() -> None:
    assert device_records.main(["--check"]) == 0
    assert (REPOSITORY / "benchmarks/devices/README.md").is_file()


@pytest.mark.parametrize("name", ["ada", "ada/../x", "/ada/pixel", "a b/pixel"])
def test_a_name_that_leads_elsewhere_is_refused(name: str, root: Path, key: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no WHO/DEVICE"):
        contribution.hand_in(put(tmp_path / "records", good()), name, key, root)
