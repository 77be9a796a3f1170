"""The report shows what the records say: no Python values, nothing hostile as markup, equal bytes for equal records."""

import math
import random
import re
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Literal

import pytest
from study.records import record as study_record
from study.records import trial

from pipeline import tasks
from pipeline.artifact import Artifact, FileEntry, Manifest, digest_of
from pipeline.benchmark.record import (
    BackendInfo,
    BenchmarkRecord,
    Conditions,
    LengthTiming,
    Memory,
    ModelInfo,
    Sustained,
    SustainedPart,
    TextTiming,
    Timing,
)
from pipeline.checkpoint import integers
from pipeline.checkpoint.ranges import FILE, Activation, Linear, Ranges, Training
from pipeline.devices.host import Machine
from pipeline.errors import ArtifactError
from pipeline.formats.signature import INPUTS, SIGNATURE, Function, Signature, Tensor
from pipeline.fronts.record import RECORD, SHIPPED, Answer
from pipeline.recipe import loading
from pipeline.report import headline, measured, wording
from pipeline.report import page as filled
from pipeline.report import stage as report
from pipeline.report.record import FileBeside, PhoneReport, Report, StudentBeside
from pipeline.report.table import Cell, Column, Part, Row, Table
from pipeline.schemes import SCHEMES
from pipeline.verify.emulated import Counts, EmulatedRuns
from pipeline.verify.record import (
    PARITY,
    GateResult,
    Group,
    Input,
    Measures,
    Parity,
    Ranked,
    Retrieval,
    TaskScore,
    Verdict,
)
from pipeline.verify.wording import quantity

LENGTHS = (16, 64, 128)
PARAMETERS = 22_713_216
HOSTILE = "</td><script>alert(1)</script>\x00\x1b[31m \u202egnp \ufffe\u2028 & \"'> {{ 7 * 7 }} 你好 👩‍💻 مرحبا | `x`"
REASONS = {
    "passed": [],
    "failed": [f"min_mean_cosine is low; worst on {HOSTILE!r}"],
    "not_run": ["the interpreter does not know the operation lstm."],
}
MACHINE = Machine(
    platform="linux",
    model_id="Test CPU <8>",
    soc=None,
    os="Linux 6",
    os_build=None,
    ram_bytes=16 << 30,
    cores=4,
    abi="x86_64",
    page_size=4096,
    cpu_features=["avx2", "avx512_vnni"],
)
RECIPE = loading.checked(
    {
        "name": "tiny",
        "task": "embedding",
        "student": {"source": "bundled:all-MiniLM-L6-v2"},
        "convert": {"sequence_lengths": list(LENGTHS)},
        "targets": {
            "litert": {"schemes": ["fp32", "int8_dynamic"]},
            "coreml": {"schemes": ["fp16"]},
            "executorch": {"schemes": ["fp32", "int8_dynamic"]},
        },
    },
    Path("tiny.toml"),
)
VOID = {"meta", "br", "link", "img", "input", "hr", "col"}
NAMES = ("litert-fp32", "litert-int8_dynamic", "coreml-fp16", "executorch-fp32", "executorch-int8_dynamic")


def manifest(name: str, stage: str, metrics: dict, params: dict | None = None) -> Manifest:
    files = [FileEntry(path="file", sha256=digest_of([name, stage]), bytes=1)]
    return Manifest(
        schema_version=1,
        stage=stage,
        stage_version=1,
        key=name,
        inputs={},
        params=params or {},
        metrics=metrics,
        tools={"torch": "2.13.0"},
        files=files,
    )


def student(*, licence: str | None = "Apache-2.0") -> Manifest:
    metrics = {"parameters": PARAMETERS, "model_type": "bert", "layers": 6, "hidden_size": 384, "labels": None}
    params = {"origin": "sentence-transformers/all-MiniLM-L6-v2", "licence": licence}
    return manifest("student", "student", metrics, params)


def parity_of(
    name: str, *, verdict: Verdict = "passed", error: float = 1e-6, kind: Literal["cosine", "sqnr_db"] = "cosine"
) -> Parity:
    backend, scheme = name.split("-")
    ran = verdict != "not_run"
    score = 1 - error if kind == "cosine" else -10 * math.log10(error)
    measures = Measures(
        rows=300,
        padded_rows=100,
        all_pad_rows=3,
        repeated_rows=20,
        unit=1.0,
        mean_score=score,
        worst_score=score - 5 * error,
        sqnr_db=-10 * math.log10(error),
        max_abs_error=error,
        mean_shift=None,
        max_all_pad_error=0.0 if kind == "cosine" else None,
        max_pad_difference=error / 2,
        usual_pad_difference=error / 2,
        deterministic=True,
        max_thread_difference=0.0 if backend != "coreml" else None,
        agreement=None if kind == "cosine" else 0.99,
        kl=None if kind == "cosine" else error,
    )
    passed = verdict == "passed"
    gates = [
        GateResult(name="finite", bound=None, found=None, passed=True, detail="every number is finite"),
        GateResult(name="min_mean_cosine", bound=0.99, found=score, passed=passed, detail="" if passed else "too low"),
    ]
    task = TaskScore(
        dataset="graded_pairs",
        metric="spearman",
        rows=120,
        chance=0.0,
        reference=0.8412,
        found=0.8412 - error,
        drop=error,
        drop_low=-error,
        drop_high=3 * error,
        mean_score=score,
        worst_score=score - 5 * error,
    )
    group = Group(rows=20, mean_score=score, worst_score=score - 5 * error)
    worst = Input(id="hostile-1", kind="unicode", text=HOSTILE, second=None, tokens=40, length=64, score=score)
    return Parity(
        backend=backend,
        scheme=scheme,
        task="embedding" if kind == "cosine" else "classification",
        output_kind="embedding" if kind == "cosine" else "logits",
        score=kind,
        evaluator="Test runtime 1.0" if ran else None,
        evaluator_stands_in="Core ML's own kernels" if ran and backend == "coreml" else None,
        other_evaluators=[],
        verdict=verdict,
        reasons=REASONS[verdict],
        file_bytes=PARAMETERS * {"fp32": 4, "fp16": 2}.get(scheme, 1) + 500_000,
        parameters=PARAMETERS,
        ops_delegated=120 if ran else None,
        ops_total=130,
        random_weights=False,
        thorough=False,
        measures=measures if ran else None,
        control=None,
        gates=gates if ran else gates[:1],
        groups={"short": group, "emoji": group} if ran else {},
        datasets=[task] if ran else [],
        datasets_skipped={"stsb": "POCKETBERT_DATA is not set"},
        worst=[worst] if ran else [],
    )


def record(name: str, digest: str, threads: int, *, ms: float, runs: int, memory: bool = True) -> BenchmarkRecord:
    draw = random.Random(f"{name}-{threads}")
    backend, scheme = name.split("-")
    runtime = {"litert": "LiteRT", "executorch": "ExecuTorch", "pytorch": "PyTorch eager"}[backend]

    def samples(middle: float, count: int) -> list[float]:
        return [middle * (1 + 0.1 * draw.random()) for _ in range(count)]

    lengths = [
        LengthTiming(seq_len=n, ran_at=n, latencies_ms=samples(ms * n, runs), cpu_ms=samples(ms * n, runs))
        for n in LENGTHS
    ]
    texts = TextTiming(
        passes=3,
        texts=10,
        tokens=[9] * 10,
        ran_at=[16] * 10,
        latencies_ms=samples(ms * 16, 30),
        cpu_ms=samples(ms * 16, 30),
        tokenise_ms=samples(0.05, 30),
    )
    return BenchmarkRecord(
        run_id=f"run{threads}",
        started_utc="2026-01-02T03:04:05+00:00",
        source="host",
        device=MACHINE,
        app={"pocketbert": "0.1.0", "torch": "2.13.0"},
        model=ModelInfo(id=name, file="model", sha256=digest, bytes=PARAMETERS, scheme=scheme, lengths=list(LENGTHS)),
        backend=BackendInfo(
            runtime=runtime, delegate=None, compute_units=None, threads=threads, ops_delegated=None, ops_total=None
        ),
        timing=Timing(
            clock="test clock", load_ms=12.5, first_inference_ms=3.2, warmup_runs=3, lengths=lengths, texts=texts
        ),
        memory=Memory(baseline_bytes=1_000_000 if memory else None, peak_bytes=60_000_000 if memory else None),
        conditions=Conditions(
            thermal_before=None,
            thermal_after=None,
            low_power=None,
            battery_fraction=None,
            charging=None,
            foreground=None,
            busy_before_fraction=0.02,
            load_average_before=0.1,
            load_average_after=None,
        ),
        errors=[],
    )


def finish(folder: Path, name: str, parity: Parity) -> tuple[Artifact, Artifact]:
    place = folder / name
    place.mkdir(parents=True)
    (place / PARITY).write_text(parity.model_dump_json(), encoding="utf-8")
    task = tasks.get(parity.task)
    outputs = tuple(Tensor(name=name, dtype="float32", shape=(1, 2)) for name in task.output_names)
    functions = tuple(
        Function(
            name=f"seq_{length}",
            min_length=length,
            max_length=length,
            inputs=tuple(Tensor(name=name, dtype="int32", shape=(1, length)) for name in INPUTS),
            outputs=outputs,
        )
        for length in LENGTHS
    )
    facts = Signature(
        backend=parity.backend,
        scheme=parity.scheme,
        task=parity.task,
        output_kind=parity.output_kind,
        file="model",
        minimum_runtime="1.0.0",
        pad_token_id=0,
        labels=("no", "yes") if task.has_labels else None,
        functions=functions,
        parameters=PARAMETERS,
    )
    (place / SIGNATURE).write_text(facts.model_dump_json(), encoding="utf-8")
    metrics = {"file_bytes": parity.file_bytes, "ops_total": 130, "convert_seconds": 12.3, "extra": "kept aside"}
    return Artifact(place, manifest(name, "convert", metrics)), Artifact(place, manifest(name, "verify", {}))


def write_records(folder: Path, records: list[BenchmarkRecord]) -> Path:
    folder.mkdir(parents=True)
    names = [f'"{number}.json"' for number in range(len(records))]
    for number, one in enumerate(records):
        (folder / f"{number}.json").write_text(one.model_dump_json())
    (folder / "records.json").write_text(f"[{', '.join(names)}]")
    return folder


def quantised_checkpoints(folder: Path) -> dict[str, Path]:
    """Write the records of three checkpoints: gains, ranges, and codes that were trained."""
    layer = "encoder.layer.1.attention.self."
    given: dict[str, Any] = {
        "alpha": 0.5,
        "output_gain": False,
        "error_before": 8e-3,
        "error": 1e-3,
        "largest_channel": 13.25,
    }
    dynamic = [Linear(path=f"{layer}{name}", **given) for name in ("query", "key", "value")]
    dynamic.append(Linear(path="pooler.dense", **given | {"error": 4e-3, "largest_channel": 2.0}))
    read = Activation(low=-1.5, high=5.5, lowest=-1.75, highest=25.0, counts=(3, 90, 400, 20, 0, 0, 1, 2))
    outputs: dict[str, Any] = {"input": read, "output": read, "output_error": 2e-3, "output_error_before": 5e-2}
    static = [Linear(path=f"{layer}{name}", **given, **outputs) for name in ("query", "key")]
    shared: dict[str, Any] = {"observer": None, "texts": 355, "tokens": 2048, "identity_error": 1e-7}
    training = Training(
        texts=900, held_out=100, steps=1500, seconds=60.0, resumed_at=(), distance_before=0.0625, distance=0.0125,
        first_loss=1.0, final_loss=0.1,
    )  # fmt: skip
    codes = [
        integers.Rounded(name=f"encoder.layer.{number}.dense.weight", error_nearest=1e-2, error=error, bits=4, block=32)
        for number, error in enumerate((1e-3, 0.0, 2e-3, 4e-3, 5e-3, 3e-3))
    ]
    table = integers.Rounded(name="words.weight", error_nearest=None, error=None, bits=8, block=384)
    records = {
        "int8_dynamic": (FILE, Ranges(scheme="int8_dynamic", linears=tuple(dynamic), **shared)),
        "int8_static": (FILE, Ranges(scheme="int8_static", linears=tuple(static), **shared)),
        "int4_dynamic": (
            integers.RECORD,
            integers.Record(scheme="int4_dynamic", texts=355, weights=(table, *codes), training=training),
        ),
    }
    for scheme, (name, found) in records.items():
        (folder / scheme).mkdir(parents=True)
        (folder / scheme / name).write_text(found.model_dump_json())
    return {scheme: folder / scheme for scheme in records}


def build(
    folder: Path,
    parities: dict[str, Parity],
    *,
    quantised: bool = False,
    runs: int = 30,
    timed: bool = True,
    beside: dict[str, Path] | None = None,
) -> Path:
    """Write records by hand and make a report of them."""
    folder.mkdir(parents=True, exist_ok=True)
    done = {name: finish(folder / "targets", name, parity) for name, parity in parities.items()}
    records = []
    for threads in (1, 4) if timed else ():
        records.append(record("pytorch-fp32", student().digest, threads, ms=0.1 / threads, runs=runs))
        for number, (name, (model, _)) in enumerate(done.items()):
            if parities[name].verdict != "not_run" and parities[name].evaluator_stands_in is None:
                speed = 0.05 / (1 + number) / threads
                records.append(record(name, model.digest, threads, ms=speed, runs=runs, memory=number > 0))
    out = folder / "report"
    out.mkdir()
    report.make(
        report.RecipeResults(
            RECIPE, student(licence=None), done, quantised=quantised_checkpoints(folder / "made") if quantised else {}
        ),
        [],
        write_records(folder / "benchmark", records),
        out,
        beside,
    )
    return out


def usual() -> dict[str, Parity]:
    verdicts: dict[str, Verdict] = {"coreml-fp16": "not_run", "executorch-int8_dynamic": "failed"}
    errors = {name: 1e-2 if "int8" in name else 1e-7 for name in NAMES}
    return {name: parity_of(name, verdict=verdicts.get(name, "passed"), error=errors[name]) for name in NAMES}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("usual"), usual(), quantised=True)


class Page(HTMLParser):
    """Text, attributes, and whether tags close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


def page(out: Path) -> Page:
    return Page((out / "index.html").read_text(encoding="utf-8"))


def read(out: Path) -> Report:
    return Report.model_validate_json((out / "report.json").read_bytes())


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the figures of a page empty for a test of its words: a page's take half a second to draw."""
    monkeypatch.setattr(filled, "inline", lambda figure, prefix, title: f"<svg><title>{title}</title></svg>")


def test_tags_close_in_order(made: Path) -> None:
    assert page(made).open == []


def test_ids_are_unique_and_anchors_lead_somewhere(made: Path) -> None:
    found = page(made).attributes
    ids = [value for _, name, value in found if name == "id"]
    assert len(ids) == len(set(ids))
    links = [value[1:] for tag, name, value in found if name in ("href", "xlink:href") and value]
    assert links
    assert set(links) <= set(ids)


def test_page_asks_for_no_other_file(made: Path) -> None:
    text = (made / "index.html").read_text(encoding="utf-8")
    for tag, name, value in page(made).attributes:
        if name in ("src", "href", "xlink:href", "srcset", "data", "action"):
            assert (value or "").startswith("#"), (tag, name, value)
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)


@pytest.mark.parametrize("name", ["index.html", "RESULTS.md"])
def test_no_python_values_and_no_control_characters(made: Path, name: str) -> None:
    text = (made / name).read_text(encoding="utf-8")
    shown = page(made).text if name.endswith("html") else text
    assert not re.search(r"\b(None|nan|inf|True|False|Undefined)\b", shown)
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\u2028]", text)


def test_hostile_text_is_shown_and_never_markup(made: Path) -> None:
    text = (made / "index.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "alert(1)" in page(made).text
    assert "⟨U+0000⟩" in text
    assert "⟨U+202E⟩" in text
    assert "{{ 7 * 7 }}" in page(made).text
    assert "👩\u200d💻" in text
    assert "مرحبا" in text


def test_equal_records_give_equal_bytes(made: Path, tmp_path: Path) -> None:
    first, second = made, build(tmp_path / "second", usual(), quantised=True)
    for name in ("index.html", "report.json", "RESULTS.md"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


@pytest.mark.parametrize("name", ["index.html", "RESULTS.md"])
def test_not_run_and_failed_targets_come_with_their_reasons(made: Path, name: str) -> None:
    text = (made / name).read_text(encoding="utf-8")
    assert "does not know the operation lstm" in text
    assert "min_mean_cosine is low" in text
    assert "not run" in text
    assert "POCKETBERT_DATA is not set" in text


@pytest.mark.usefixtures("undrawn")
def test_units_on_which_no_such_file_has_passed_are_named_with_what_is_known(made: Path) -> None:
    found = read(made)
    coreml = next(target for target in found.targets if target.parity.backend == "coreml")
    known = SCHEMES["int4_weight_only"].support["coreml"].untried_units["ALL"]
    assert known not in Page(filled.html(found)).text
    found = found.model_copy(update={"targets": [coreml.model_copy(update={"scheme": "int4_weight_only"})]})
    shown = Page(filled.html(found)).text
    assert "int4_weight_only on ALL, CPU_AND_NE, CPU_AND_GPU: no such file has passed there yet" in shown
    assert shown.count(known) == 1


def counted_record(counts: list[Counts], digest: str = "0" * 64) -> EmulatedRuns:
    """Return what `pocketbert arm64` would write of some counts."""
    return EmulatedRuns(
        target="litert-int8_dynamic",
        digest=digest,
        runtime="ai-edge-litert 2.3.0",
        rows=1,
        lengths=[12],
        measure="cosine",
        bound=0.9,
        processors=[],
        counts=counts,
        stubs=[],
        answered=[],
    )


@pytest.mark.usefixtures("undrawn")
def test_counted_instructions_are_tables_that_say_what_they_are_not(made: Path) -> None:
    counts = [
        Counts(cpu="cortex-a76", page_size=16384, instructions={16: 20555952, 128: 197370976}, spread=0.001),
        Counts(cpu="cortex-a710", page_size=16384, instructions={16: 14760416}, spread=0.001),
    ]
    found = read(made)
    counted = found.targets[1].model_copy(update={"emulated": counted_record(counts)})
    found = found.model_copy(update={"targets": [found.targets[0], counted, *found.targets[2:]]})
    shown = Page(filled.html(found))
    assert shown.open == []
    assert ("details", "id", "instructions") in shown.attributes
    for text in (shown.text, filled.markdown(found)):
        assert "Instructions per inference, counted on emulated processors; not a latency" in text
        assert "197.37" in text
        assert "14.76" in text
    assert "not counted at this length" in str(shown.attributes)
    (table,) = re.findall(r"^\| File, emulated processor \|.*\n(?:^\|.*\n)+", filled.markdown(found), re.MULTILINE)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()} == {5}
    assert ("details", "id", "instructions") not in page(made).attributes


def test_json_holds_the_records(made: Path) -> None:
    found = read(made)
    assert found.counts == {"passed": 3, "failed": 1, "not_run": 1}
    assert [target.name for target in found.targets] == list(NAMES)
    assert found.targets[1].parity == usual()["litert-int8_dynamic"]
    assert found.threads == [1, 4]
    assert found.seq_lens == list(LENGTHS)
    assert found.versions["torch"] == ["2.13.0"]
    assert [one.target for one in found.with_threads(4)] == [None, *NAMES[:2], *NAMES[3:]]


def test_linears_that_lose_most_are_drawn_with_what_they_read(made: Path) -> None:
    rows = {one.scheme: one for one in read(made).quantised}
    assert list(rows) == ["int8_dynamic", "int8_static", "int4_dynamic"]
    dynamic, static, codes = rows.values()
    alone, together = dynamic.worst
    assert alone.label == "pooler.dense"
    assert together.label == "encoder.layer.1.attention.self.query, key, value"
    assert (dynamic.linears, together.error_before, together.input) == (4, 8e-3, None)
    assert [one.error for one in static.worst] == pytest.approx([3e-3])
    assert static.worst[0].error_before == pytest.approx(5.8e-2)
    assert static.worst[0].input is not None
    assert static.worst[0].input.highest == 25.0
    # Six linears, of which five are shown; a table has no outputs.
    assert codes.linears == 6
    assert [one.error for one in codes.worst] == [5e-3, 4e-3, 3e-3, 2e-3, 1e-3]
    shown = page(made)
    titles = [value or "" for _, name, value in shown.attributes if name == "aria-label"]
    assert any("lose most by quantisation" in title for title in titles)
    for said in ("int4_dynamic: worst of 6 linears, before training", "13.2×", "−1.5 … 5.5", "of −1.75 … 25",
                 "from 0.0625 to 0.0125", "What quantising chose"):  # fmt: skip
        assert said in shown.text, said


def test_best_file_passed_even_where_a_failed_one_is_faster(made: Path) -> None:
    found = read(made)
    failed = next(one for one in found.variants if one.target == "executorch-int8_dynamic")
    assert found.best is not None
    assert found.best.target == "litert-int8_dynamic"
    assert failed.texts.mean_ms < found.best.mean_ms
    assert found.best.speedup_texts == pytest.approx(4, rel=0.1)


@pytest.mark.usefixtures("undrawn")
def test_without_a_passed_int8_file_a_larger_one_is_recommended_and_said_so(tmp_path: Path) -> None:
    parities = usual() | {"litert-int8_dynamic": parity_of("litert-int8_dynamic", verdict="failed", error=0.1)}
    out = build(tmp_path, parities)
    best, (android, _) = read(out).best, read(out).recommendations
    assert best is not None
    assert best.target == android.target == "executorch-fp32"
    assert "No int8 file passed" in page(out).text


@pytest.mark.usefixtures("undrawn")
def test_percentiles_of_too_few_runs_are_left_out(tmp_path: Path) -> None:
    out = build(tmp_path, usual(), runs=2)
    row = read(out).variants[0].lengths[0]
    assert row.wall.p50 is None
    assert row.speedup is None
    assert "too few runs" in page(out).text
    assert "16 tokens" not in page(out).text


def test_a_report_without_any_timing_is_still_a_page(tmp_path: Path) -> None:
    out = build(tmp_path, {"coreml-fp16": parity_of("coreml-fp16", verdict="not_run")}, timed=False)
    assert "No file passed here" in page(out).text
    assert "Charts" not in page(out).text
    assert "Latency" not in page(out).text
    assert "What quantising chose" not in page(out).text
    assert page(out).open == []


@pytest.mark.usefixtures("undrawn")
def test_logits_are_judged_in_decibels(tmp_path: Path) -> None:
    out = build(tmp_path, {"litert-fp32": parity_of("litert-fp32", error=1e-3, kind="sqnr_db")})
    assert "30.0 dB" in page(out).text
    assert "Worst SQNR" in page(out).text
    assert "99.0 %" in page(out).text


def test_an_unfinished_target_is_refused(tmp_path: Path) -> None:
    timings = write_records(tmp_path / "benchmark", [])
    with pytest.raises(ArtifactError, match="litert-fp32 has no finished model"):
        report.make(report.RecipeResults(RECIPE, student(), {"litert-fp32": (None, None)}), [], timings, tmp_path)


@pytest.mark.usefixtures("undrawn")
def test_a_record_from_another_run_is_not_compared(tmp_path: Path) -> None:
    model, parity = finish(tmp_path, "litert-fp32", parity_of("litert-fp32"))
    records = [
        record("pytorch-fp32", student().digest, 1, ms=0.1, runs=30),
        record("litert-fp32", model.digest, 1, ms=0.05, runs=30).model_copy(update={"run_id": "another"}),
    ]
    out = tmp_path / "report"
    out.mkdir()
    timings = write_records(tmp_path / "benchmark", records)
    report.make(report.RecipeResults(RECIPE, student(), {"litert-fp32": (model, parity)}), [], timings, out)
    assert [one.texts.speedup for one in read(out).variants] == [1.0, None]


def test_an_idle_machine_gives_no_warning(made: Path) -> None:
    assert read(made).disturbances == []
    assert "The machine was busy" not in page(made).text


@pytest.mark.usefixtures("undrawn")
def test_times_from_a_busy_machine_are_marked(tmp_path: Path) -> None:
    model, parity = finish(tmp_path, "litert-fp32", parity_of("litert-fp32"))
    one, four = (record("litert-fp32", model.digest, threads, ms=0.1, runs=30) for threads in (1, 4))
    half = [value / 2 for value in one.timing.texts.cpu_ms or []]
    texts = one.timing.texts.model_copy(update={"cpu_ms": half})
    one = one.model_copy(update={"timing": one.timing.model_copy(update={"texts": texts})})
    four = four.model_copy(update={"conditions": four.conditions.model_copy(update={"busy_before_fraction": 0.9})})
    out = tmp_path / "report"
    out.mkdir()
    timings = write_records(tmp_path / "benchmark", [one, four])
    report.make(report.RecipeResults(RECIPE, student(), {"litert-fp32": (model, parity)}), [], timings, out)
    waited, loaded = read(out).disturbances
    assert re.search(r"waited for a core during (49|50|51) % of its wall clock", waited)
    assert "other work took 90 % of 4 cores just before" in loaded
    assert "The machine was busy" in page(out).text
    assert "The machine was busy" in (out / "RESULTS.md").read_text(encoding="utf-8")


def test_markdown_tables_keep_their_columns(made: Path) -> None:
    text = (made / "RESULTS.md").read_text(encoding="utf-8")
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) == 5
    for table in tables:
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(counts) == 1, table


def simulated(name: str, **facts: Any) -> Parity:
    return parity_of(name, **facts).model_copy(update={"evaluator_stands_in": "It computes what phones do not."})


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report in which Core ML's files passed in a simulation."""
    names = ("coreml-fp16", "coreml-int8_weight_only")
    return build(tmp_path_factory.mktemp("shipped"), usual() | {name: simulated(name, error=1e-4) for name in names})


def test_each_system_has_one_recommendation_with_its_file_and_command(shipped: Path) -> None:
    android, ios = read(shipped).recommendations
    assert (android.system, android.target) == ("Android", "litert-int8_dynamic")
    assert android.file == "tiny/litert-int8_dynamic/model/model"
    assert "ms per text on this machine; not yet timed on a phone" in android.reason
    # Its runtime comes with the system, and none of its files can be timed here.
    assert (ios.system, ios.target) == ("iOS", "coreml-int8_weight_only")
    assert ios.reason.startswith("Not timed, since its runtime is not on this machine.")
    shown = page(shipped).text
    assert "pocketbert ship tiny --target litert:int8_dynamic" in shown
    assert "pocketbert ship tiny --target coreml:int8_weight_only" in shown


@pytest.mark.usefixtures("undrawn")
def test_a_system_none_of_whose_files_passed_has_no_command(tmp_path: Path) -> None:
    out = build(tmp_path, {"litert-fp32": parity_of("litert-fp32", verdict="failed", error=0.1)})
    for one in read(out).recommendations:
        assert (one.target, one.command) == (None, None)
        assert one.reason.startswith("None of its 1 files passed")
    assert "pocketbert ship" not in page(out).text


def test_a_busy_machine_recommends_by_processor_time_or_says_measure_again(made: Path) -> None:
    found = read(made)
    *_, fp32, failed = found.variants[:5]
    assert failed.verdict == "failed"
    # By wall clock the last one is slowest, since it waited.
    waited = fp32.texts.model_copy(update={"mean_ms": 100.0})
    blind = waited.model_copy(update={"mean_cpu_ms": None})
    targets = [one for one in found.targets if one.digest == fp32.digest]
    for texts, said in ((waited, "by processor time, since the machine was busy: 0.21 ms"), (blind, "measure again")):
        variants = [fp32.model_copy(update={"texts": texts})]
        android, _ = headline.recommend("tiny", "tiny", targets, variants, [], "cpu")
        assert said in android.reason
    assert "busy" not in headline.recommend("tiny", "tiny", targets, [fp32], [], "wall")[0].reason


def test_a_phone_s_times_decide_for_its_system(made: Path) -> None:
    found = read(made)
    android = MACHINE.model_copy(update={"platform": "android"})
    slow, fast = (one for one in found.with_threads(1) if one.scheme == "fp32" and not one.reference)
    swapped = [slow.model_copy(update={"texts": fast.texts}), fast.model_copy(update={"texts": slow.texts})]
    targets = [one for one in found.targets if one.scheme == "fp32"]
    phone = PhoneReport(device="pixel", machines=[android], variants=swapped)
    first, other = headline.recommend("tiny", "tiny", targets, found.variants, [phone], "wall")
    assert (first.target, other.target) == ("litert-fp32", "executorch-fp32")
    assert first.reason.startswith("The fastest on pixel: 0.21 ms per text.")


def test_a_simulated_verdict_says_so(shipped: Path, made: Path) -> None:
    assert "✓ passed, simulated" in page(shipped).text
    assert "2 passed, simulated" in page(shipped).text
    assert "simulated" not in page(made).text
    assert "passed, simulated" in (shipped / "RESULTS.md").read_text(encoding="utf-8")


def test_the_count_in_the_title_is_the_count_in_the_table(shipped: Path) -> None:
    found = read(shipped)
    near = StudentBeside(
        recipe="half",
        student=found.student,
        files=[
            FileBeside(target=target, own_bytes=None, threads=None, mean_ms=None, own_mean_ms=None, metrics=[])
            for target in found.targets[:2]
        ],
    )
    found = found.model_copy(update={"beside": [near]})
    text = filled.html(found)
    (title,) = re.findall(r'<h2 id="files">(.*?)</h2>', text, re.DOTALL)
    table = text.split('<h2 id="files">')[1].split("</table>")[0]
    assert title.startswith("8 files")
    assert table.count('<th scope="row"') == 8
    assert sum(int(count) for count in re.findall(r">(\d+) ", title)) == 8
    assert text.count("<summary><strong>") == 8
    legends = re.findall(r"LiteRT int8_dynamic, half", text)
    assert legends, "a student beside it is in the charts"


def test_gates_are_folded_behind_the_one_that_is_closest_to_its_bound(made: Path) -> None:
    shown = page(made)
    assert not any(tag == "details" and name == "open" for tag, name, _ in shown.attributes)
    assert "2 of 2 passed; closest to its bound: mean cosine 1, at least 0.99 (0 % of the allowed error)" in shown.text
    assert "1 of 2 passed; failed: min_mean_cosine" in shown.text
    assert "1 of 1 passed: all that need no run" in shown.text


@pytest.mark.parametrize(
    ("gate", "found", "bound", "share"),
    [
        ("min_mean_cosine", 0.999, 0.99, 0.1),
        ("min_agreement", 0.9, 0.95, 2.0),
        ("min_sqnr_db", 40.0, 20.0, 0.1),
        ("max_abs_error", 0.5, 2.0, 0.25),
        ("max_task_drop:graded_pairs", -0.01, 0.02, 0.0),
        ("max_all_pad_error", 0.0, 0.0, 0.0),
        ("max_all_pad_error", 1e-9, 0.0, 1.0),
    ],
)
def test_the_share_of_the_allowed_error(gate: str, found: float, bound: float, share: float) -> None:
    measured = quantity(gate, "embedding")
    assert measured is not None
    assert measured.share(found, bound) == pytest.approx(share)


def test_a_column_in_which_nothing_is_known_is_left_out() -> None:
    columns = [Column("File", number=False), Column("Known"), Column("Unknown")]
    rows = [Row([Cell(None), Cell("1"), Cell(None)]), Row([Cell("b"), Cell(None), Cell(None)])]
    found = Table(columns, [Part(rows), Part([])]).without_gaps()
    assert [column.title for column in found.columns] == ["File", "Known"]
    assert [[cell.text for cell in row.cells] for row in found.rows] == [[None, "1"], ["b", None]]
    assert len(found.parts) == 1


def test_columns_of_dashes_are_not_on_the_page(made: Path) -> None:
    """No file of this report has ops by unit, agreement or delegates; each column would be one of dashes."""
    titles = re.findall(r"<th(?: class=\"n\")?>([^<]*)", (made / "index.html").read_text(encoding="utf-8"))
    assert "Memory" in titles
    assert not {"Neural Engine", "Delegate", "Same decisions"} & set(titles)


def test_captions_tell_of_what_is_drawn(made: Path) -> None:
    """The fastest file that passed is the smallest too, so there is no front."""
    found = read(made)
    assert "Hollow: failed" in page(made).text
    alone = found.model_copy(update={"variants": [one for one in found.variants if one.target == "litert-fp32"]})
    shown = Page(filled.html(alone)).text
    assert "Dashed" not in shown
    assert "Hollow: failed" not in shown
    assert "Not timed here: LiteRT int8_dynamic; Core ML fp16" in shown


def test_the_page_is_small(made: Path, shipped: Path) -> None:
    assert all((out / "index.html").stat().st_size < 400_000 for out in (made, shipped))


def test_names_and_second_lines_do_not_run_together(made: Path) -> None:
    bodies = re.findall(r"<tbody>.*?</tbody>", (made / "index.html").read_text(encoding="utf-8"), re.DOTALL)
    assert any("min_mean_cosine" in body for body in bodies)
    small = [before for body in bodies for before in re.findall(r"(\S{4})\s*<small>", body)]
    assert small
    assert set(small) == {"<br>"}


@pytest.mark.parametrize(
    ("word", "value", "text"),
    [
        (wording.ms, 123.4, "123"),
        (wording.ms, 12.34, "12.3"),
        (wording.ms, 1.234, "1.23"),
        (wording.ms, 0.0123, "0.012"),
        (wording.ms, math.nan, None),
        (wording.ms, None, None),
        (wording.mb, 22_900_000, "22.9"),
        (wording.mb, 1_200, "0.001"),
        (wording.times, 2.414, "2.41×"),
        (wording.times, math.inf, None),
        (wording.points, 0.0012, "lost 0.12 points"),
        (wording.points, -0.0012, "gained 0.12 points"),
        (wording.points, -1e-9, "no change"),
        (wording.points, None, None),
    ],
)
def test_values_read_well(word, value: float | None, text: str | None) -> None:
    assert word(value) == text


def test_scores_read_well() -> None:
    assert wording.score(0.998765, "cosine") == "0.99877"
    assert wording.score(-1e-9, "cosine") == "0.00000"
    assert wording.score(31.24, "sqnr_db") == "31.2 dB"
    assert wording.score(999.0, "sqnr_db") == "exact"
    assert wording.score(math.nan, "sqnr_db") is None


def test_recipe_reads_as_toml() -> None:
    import tomllib

    values = RECIPE.model_dump(mode="json")
    found = tomllib.loads("\n".join(wording.toml_lines(values)))
    assert loading.checked(found, Path("again.toml")) == RECIPE


def test_the_front_of_a_study_stands_in_the_report_with_recipes_to_copy(tmp_path: Path) -> None:
    answer = Answer(trial=1, fits=True, beyond={}, sentences=[])
    hostile = trial(0, 0.9, 20.0, choice={"prune.compute": HOSTILE})
    found = study_record(
        [hostile, trial(1, 0.88, 12.0, step="files", verdict="passed", drop=(0.02, 0.01, 0.03))], answer
    )
    for name, text in (("tried", found.model_dump_json()), ("damaged", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / RECORD).write_text(text)
    beside = {f"study {name}": tmp_path / name / RECORD for name in ("tried", "damaged")}
    out = build(tmp_path / "made", usual(), timed=False, beside=beside)
    text = (out / "index.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert Page(text).open == []
    for number in (0, 1):
        assert f'xlink:href="#tried-trial-{number}"' in text, "a point leads to its recipe"
        assert f'<pre id="tried-trial-{number}">' in text
    assert "Best within the budget: trial 1" in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    (front,) = read(out).fronts
    assert [row.number for row in front.rows] == [1, 0]
    assert [said for said in read(out).left_out if said.startswith("study damaged cannot be read")]


def test_fronts_of_the_same_student_are_found_and_of_one_name_the_build_folder_s(tmp_path: Path) -> None:
    place = tmp_path / "recipes"
    (place / "student").mkdir(parents=True)

    def put(name: str, source: str, **more: Any) -> Path:
        made = study_record([trial(0, 0.9, 20.0)], Answer(trial=0, fits=True, beyond={}, sentences=[]), **more)
        recipes = {0: {"name": "x", "task": "embedding", "student": {"source": source}}}
        study = made.study.model_copy(update={"name": name})
        folder = tmp_path / "build/studies" / name
        folder.mkdir(parents=True)
        (folder / RECORD).write_text(made.model_copy(update={"recipes": recipes, "study": study}).model_dump_json())
        return folder / RECORD

    mine = put("mine", "../../../recipes/student")
    own = put("minilm", "bundled:all-MiniLM-L6-v2")
    put("ranked", "../../../recipes/student", task="ranking")
    put("other", "../../../recipes")
    find = partial(measured.find_studies, tmp_path / "build", "embedding")
    assert find("student", place) == find("../student", place / "student") == {"study mine": mine}
    assert find("bundled:all-MiniLM-L6-v2", place) == {"study minilm": own}
    assert find("bundled:minilm-8mb", place) == {}
    (shipped,) = measured.find_studies(None, "embedding", "bundled:all-MiniLM-L6-v2", place).values()
    assert shipped.parent == SHIPPED


@pytest.mark.parametrize("student", ["x", {}, {"source": "~nobody-here/x"}, {"source": "a" * 5000}])
def test_a_record_that_names_no_checkpoint_stops_no_run(tmp_path: Path, student: Any) -> None:
    made = study_record([trial(0, 0.9, 20.0)], Answer(trial=0, fits=True, beyond={}, sentences=[]))
    (folder := tmp_path / "build/studies/odd").mkdir(parents=True)
    (folder / RECORD).write_text(made.model_copy(update={"recipes": {0: {"student": student}}}).model_dump_json())
    assert measured.find_studies(tmp_path / "build", "embedding", "student", tmp_path) == {}


def test_a_record_whose_trials_lack_measures_is_left_out(tmp_path: Path) -> None:
    bare = trial(0, 0.9, 20.0).model_copy(update={"measures": {}})
    made = study_record([bare], Answer(trial=0, fits=True, beyond={}, sentences=[]))
    (tmp_path / RECORD).write_text(made.model_copy(update={"recipes": {0: {}}}).model_dump_json())
    found = measured.read({"study bare": tmp_path / RECORD}, [])
    assert not found.fronts
    assert found.left_out == ["study bare cannot be read: 'metric'"]


def test_phones_are_shown_and_what_is_no_latency_is_left_out(tmp_path: Path) -> None:
    """Records beside the run: a phone's, a throttled one's, an emulator's, one of an earlier file, and half a file."""
    out = build(tmp_path, usual())
    digest = read(out).targets[1].digest
    good = record("litert-int8_dynamic", digest, 1, ms=4.0, runs=60)
    part = SustainedPart(
        begins_s=0.0, seconds=60.0, runs=900, p50_ms=5.0, p90_ms=6.0, thermal="none", temperature_c=30.0,
        clocks_mhz=None, battery_charge_uah=None, battery_mv=None,
    )  # fmt: skip
    warm = part.model_copy(update={"begins_s": 60.0, "p50_ms": 8.0, "temperature_c": 41.0})
    ran = Sustained(seq_len=128, ran_at=128, parts=[part, warm])
    phone = good.model_copy(
        update={
            "source": "device",
            "device": MACHINE.model_copy(
                update={"platform": "android", "model_id": "Google Pixel 8", "abi": "arm64-v8a"}
            ),
            "timing": good.timing.model_copy(update={"sustained": ran}),
            "turns": 4,
        }
    )
    hot = phone.model_copy(update={"conditions": phone.conditions.model_copy(update={"thermal_after": "severe"})})
    units = phone.backend.model_copy(update={"ops_by_unit": {"Neural Engine": 90, "GPU": 3, "CPU": 7}})
    cases = {
        "pixel": phone,
        "hot": hot,
        "planned": phone.model_copy(update={"backend": units}),
        "emulator": phone.model_copy(update={"device": MACHINE.model_copy(update={"model_id": "Google sdk_gphone64"})}),
        "earlier": phone.model_copy(update={"model": phone.model.model_copy(update={"sha256": "0" * 64})}),
    }
    folder = tmp_path / "build"
    for name, one in cases.items():
        place = folder / f"benchmark-{name}"
        place.mkdir(parents=True)
        (place / "file.json").write_text(one.model_dump_json())
        (place / "records.json").write_text('["file.json", "../outside.json"]')
    (folder / "benchmark-half").mkdir()
    (folder / "benchmark-half" / "records.json").write_text('["half.json"]')
    (folder / "benchmark-half" / "half.json").write_text(phone.model_dump_json()[:100])
    files = measured.find(folder, "host")
    assert set(files) == {*(f"benchmark-{name}/file.json" for name in cases), "benchmark-half/half.json"}
    found = measured.read(files, [digest])
    assert set(found.phones) == {"pixel", "hot", "planned"}
    reasons = " ".join(found.left_out)
    for said in ("emulators are no latency", "it is of an earlier file", "half.json cannot be read"):
        assert said in reasons
    shown = read(build(tmp_path / "again", usual(), beside=files))
    assert [one.device for one in shown.phones] == ["hot", "pixel", "planned"]
    page_of = Page(filled.html(shown))
    assert page_of.open == []
    for said in ("Google Pixel 8", "throttled: severe", "1.60×", "not measured: the phone does not tell", "Not shown"):
        assert said in page_of.text, said
    assert "90" in page_of.text
    text = filled.markdown(shown)
    assert "## Phone: pixel" in text
    assert "| 5.00 | 8.00 | 1.60× | not measured: the phone does not tell" in text


@pytest.mark.usefixtures("undrawn")
def test_search_has_a_row_for_each_storage_with_its_interval(tmp_path: Path) -> None:
    ranked = Ranked(reference=0.914, found=0.8903, low=-0.0413, high=-0.0079)
    same = Ranked(reference=0.99, found=0.99, low=0.0, high=0.0)
    found = Retrieval(
        collection="xquad_passages",
        queries=629,
        documents=120,
        storage="bits",
        width=384,
        bytes_per_vector=48,
        metrics={"recall_at_1": ranked, "recall_at_10": same, "ndcg_at_10": same, "mrr_at_10": same},
    )
    parity = parity_of("litert-fp32", error=1e-3)
    out = build(tmp_path, {"litert-fp32": parity.model_copy(update={"retrieval": [found]})})
    page = (out / "index.html").read_text(encoding="utf-8")
    markdown = (out / "RESULTS.md").read_text(encoding="utf-8")
    for text in (page, markdown):
        assert "91.40 → 89.03" in text
        assert "-4.13 to -0.79" in text
        assert "629, 120" in text
    plain = build(tmp_path / "plain", {"litert-fp32": parity})
    assert "xquad" not in (plain / "index.html").read_text(encoding="utf-8")
