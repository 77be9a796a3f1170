"""Documents of every schema, wrong in one place each: the cores have to take and refuse what pydantic does."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apps import contract
from docs.schemas import LATER, MODELS
from pipeline import strict
from pipeline.benchmark.record import BenchmarkRecord
from pipeline.devices.headless import BenchmarkRequest, BenchmarkStatus
from pipeline.ship.placing import Entry, Index
from pipeline.student.golden import Golden, GoldenRow

_OTHERS: tuple[Any, ...] = (None, True, 0, 1, -1, 1.5, 1.0, 2, "", "1", [], [None], {}, {"x": 1})
"""What every value of a document is replaced by, one after the other."""

_FREE = (("app",), ("ops_by_unit",), ("prompts",))
_LATER = {name for names in LATER.values() for name in names}


def write(file: Path) -> tuple[int, int]:
    """Write one case a line, and return how many are valid and how many are not."""
    rows = []
    for name, document in _documents().items():
        for text, is_whole in _variants(document):
            rows.append({"schema": name, "document": text, "valid": is_whole and _is_valid(name, text)})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    valid = sum(bool(row["valid"]) for row in rows)
    return valid, len(rows) - valid


def _is_valid(name: str, text: str) -> bool:
    try:
        strict.read(MODELS[name], text.encode("utf-8"))
    except ValueError:
        return False
    return True


def _variants(document: Any) -> Iterator[tuple[str, bool]]:
    """Yield texts of a document, and whether each field is there: who writes states them all."""
    yield json.dumps(document), True
    for path in list(_paths(document)):
        for other in _OTHERS:
            changed = copy.deepcopy(document)
            _parent(changed, path)[path[-1]] = other
            yield json.dumps(changed), True
        here = _parent(document, path)
        if isinstance(here, dict):
            changed = copy.deepcopy(document)
            del _parent(changed, path)[path[-1]]
            # Of a mapping with free keys, as the versions of a record are, nothing is missing; older files lack some.
            yield json.dumps(changed), path[-2:-1] in _FREE or path[-1] in _LATER
            changed = copy.deepcopy(document)
            _parent(changed, path)[f"{path[-1]}x"] = here[path[-1]]
            yield json.dumps(changed), True
    text = json.dumps(document)
    for damage in (
        text[:-1],
        text + "}",
        text.replace("1", "01", 1),
        text.replace(": ", " ", 1),
        text.replace('"', "'"),
    ):
        yield damage, True
    first = text[1:].partition(",")[0]
    yield "{" + first + ", " + text[1:], True
    yield text.replace("{", '{"\\u0061": 1, "a": 2, ', 1), True


def _paths(document: Any) -> Iterator[tuple[Any, ...]]:
    pairs = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in pairs:
        yield (key,)
        yield from ((key, *rest) for rest in _paths(value))


def _parent(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        document = document[key]
    return document


def _documents() -> dict[str, Any]:
    """Return a document for each schema."""
    entry = Entry(
        folder="a/litert-fp32",
        recipe="a",
        backend="litert",
        scheme="fp32",
        task="embedding",
        digest="0" * 64,
        bytes=1 << 40,
    )
    row = GoldenRow(first="a", second=None, window=None, input_ids=[1, 2], token_type_ids=[0, 0], output=[0.5, 1.0])
    golden = Golden(task="embedding", max_length=64, min_cosine=0.9, min_sqnr_db=None, rows=[row])
    request = BenchmarkRequest(
        run_id="r", model="a/litert-fp32", compute_units=None, threads=1, lengths=[16], texts=["a"], rounds=1,
        runs_per_round=1, round_ms=0.0, text_passes=1, time_limit_s=1.5, start_below_c=None,
    )  # fmt: skip
    status = BenchmarkStatus(run_id="r", state="running", done=0.5, doing="texts", message=None, beats=3)
    shipped = contract.shipped("mood/litert-int8_dynamic")
    models = {
        "models": Index(models=[entry]),
        "shipped": shipped,
        # What the numbers of `vectors` say of each other no schema tells: the folders of `contract` are of that.
        "signature": contract.embedding().model_copy(update={"thresholds": (0.5,), "vectors": None}),
        "golden": golden,
        "benchmark-request": request,
        "benchmark-status": status,
        "benchmark-record": record(),
    }
    return {name: model.model_dump(mode="json") for name, model in models.items()}


def record() -> BenchmarkRecord:
    """Return a record with a value in every field."""
    length = {"seq_len": 16, "ran_at": 16, "latencies_ms": [1.5, 2], "cpu_ms": [1.0]}
    conditions: dict[str, Any] = {
        "thermal_before": "none", "thermal_after": None, "temperature_before_c": 30.5, "temperature_after_c": None,
        "clocks_before_mhz": [1800, 2400], "clocks_after_mhz": None, "low_power": False, "battery_fraction": 0.5,
        "battery_after_fraction": None, "battery_charge_before_uah": 3_000_000, "battery_charge_after_uah": None,
        "charging": None, "foreground": True, "busy_before_fraction": None, "load_average_before": None,
        "load_average_after": 0.5, "governors": ["schedutil"], "cores_allowed": [0, 1],
    }  # fmt: skip
    document = {
        "schema_version": 1, "run_id": "r", "started_utc": "2026-11-25T04:40:00+00:00", "source": "device",
        "device": {
            "platform": "android", "model_id": "a", "soc": None, "os": "Android 15", "os_build": None,
            "ram_bytes": 1 << 33, "cores": 8, "abi": "arm64-v8a", "page_size": 16384, "core_max_mhz": [2000],
            "cpu_features": ["dotprod"],
        },
        "app": {"pocketbert": "0.1.0"},
        "model": {
            "id": "litert-fp32", "file": "model.tflite", "sha256": "0", "file_sha256": None, "bytes": 1,
            "scheme": "fp32", "lengths": [16],
        },
        "backend": {
            "runtime": "LiteRT", "version": "2.3.0", "delegate": None, "compute_units": None, "threads": 1,
            "ops_delegated": 1, "ops_total": 2, "ops_by_unit": {"GPU": 1, "CPU": 1},
        },
        "timing": {
            "clock": "c", "load_ms": 1.0, "first_inference_ms": 2.0,
            "cold_start": {
                "process_to_ready_ms": None, "tokenizer_ms": 1.0, "load_ms": 1.0, "first_inference_ms": 1.0,
            },
            "warmup_runs": 1, "lengths": [length],
            "texts": {
                "passes": 1, "texts": 1, "tokens": [3], "ran_at": [16], "latencies_ms": [1.0], "cpu_ms": None,
                "tokenise_ms": [0.1],
            },
            "texts_sha256": "0",
            "sustained": {
                "seq_len": 16, "ran_at": 16,
                "parts": [
                    {
                        "begins_s": 0.0, "seconds": 60.0, "runs": 100, "p50_ms": 1.0, "p90_ms": None, "thermal": "none",
                        "temperature_c": 35.5, "clocks_mhz": [1800], "battery_charge_uah": 3_000_000,
                        "battery_mv": 3900,
                    },
                ],
            },
        },
        "memory": {"baseline_bytes": 1, "peak_bytes": 2, "retained_bytes": None, "kind": "pss", "pss_open_bytes": 1},
        "conditions": conditions,
        "errors": [],
    }  # fmt: skip
    return BenchmarkRecord.model_validate(document)
