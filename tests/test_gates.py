"""Every gate fires. A clean copy passes all of them; one broken in one way fails by that gate, and names the input."""

import functools
import math
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from pipeline import tasks
from pipeline.convert.stage import Target
from pipeline.execution.worker import Worker
from pipeline.formats.coreml import session as coreml_session
from pipeline.formats.signature import Function, Signature, Tensor
from pipeline.kinds import KINDS, OutputKind
from pipeline.metrics import measures
from pipeline.metrics.outputs import RowOutputs, best_span, word_spans
from pipeline.metrics.scoring import Labels
from pipeline.schemes import SCHEMES, Gates
from pipeline.student.reference import Reference
from pipeline.text.bundled import Text, verification_texts
from pipeline.text.encoding import Row
from pipeline.verify import gates as judging
from pipeline.verify import stage as verify
from pipeline.verify.measure import FileMeasurements, Repeated, Run
from pipeline.verify.record import Control, Evaluation, GateResult, VerifyRequest

EVERY = get_args(OutputKind)
# SQuAD's own metric comes with transformers.
EVERY_KIND = [pytest.param(kind, marks=pytest.mark.toolchain) if kind == "spans" else kind for kind in EVERY]
WIDTHS = {"embedding": 32, "logits": 3, "value": 1, "token_logits": 3, "spans": 2, "multi_label": 3, "values": 3}
TASK_OF = {tasks.get(name).output_kind: name for name in reversed(tasks.TASKS)}
TAGS = ["O", "B-a", "B-b"]
CHECKED = 48
PAIRS = 40
LONGEST = 64
PARAMETERS = 10_000_000


@dataclass(frozen=True)
class Case:
    """What `judge` is handed."""

    signature: Signature
    reference: Reference
    found: FileMeasurements
    model_metrics: dict[str, Any]

    def judge(self, gates: Gates, **said: Any) -> verify.Parity:
        asked = VerifyRequest(
            Target(self.signature.backend, self.signature.scheme), gates, said.pop("random_weights", False)
        )
        said = {"not_run": None, "crash": None} | said
        found = None if said["not_run"] or said["crash"] else self.found
        return judging.judge(self.signature, self.reference, found, asked, self.model_metrics, **said)

    def with_repeated(self, **changes: Any) -> "Case":
        return self.with_found(repeated=replace(self.found.repeated, **changes))

    def with_found(self, **changes: Any) -> "Case":
        return replace(self, found=replace(self.found, **changes))


CONTROL = Control(
    rows=9,
    lengths=5,
    ids=100,
    vocabulary=100,
    sqnr_db=120.0,
    worst_row_db=112.0,
    worst_row="a row of 3 tokens",
    masked_difference=0.0,
    masked_row="a row of 5 tokens",
    file_sqnr_db=115.0,
    file_worst_row_db=111.0,
    file_worst_row="a row of 9 tokens",
)


def clean(kind: OutputKind, seed: int, scheme: str = "fp32") -> Case:
    """Return a reference of random vectors and a file that reproduces it exactly."""
    known = random_reference(kind, np.random.default_rng(seed))
    natural = [Run(number, len(row)) for number, row in enumerate(known.rows)]
    padded = [Run(number, LONGEST) for number in range(0, CHECKED, 3)]
    whole = LONGEST if KINDS[kind].per_token else 1
    found = FileMeasurements(
        evaluator="a runtime 1.0",
        evaluator_stands_in=None,
        natural=natural,
        outputs=known.outputs,
        padded=padded,
        padded_outputs=known.outputs.take([run.row for run in padded]),
        all_pad_lengths=[16, LONGEST],
        all_pad_outputs=RowOutputs.of([np.zeros((whole, WIDTHS[kind]), np.float32)] * 2),
        all_pad_flushed=RowOutputs.of([np.zeros((whole, WIDTHS[kind]), np.float32)] * 2),
        repeated=repeated(known.outputs, natural[:CHECKED:8]),
        wrong_ids=[],
        static_gates=[GateResult(name="weights", bound=None, found=None, passed=True, detail="")],
        control=CONTROL,
        worst_linear=None,
    )
    file_bytes = int(SCHEMES[scheme].weight_bytes * PARAMETERS)
    return Case(signature_of(kind, scheme), known, found, {"file_bytes": file_bytes})


def repeated(outputs: RowOutputs, runs: list[Run]) -> Repeated:
    """Return a repetition that gave the same bytes everywhere."""
    same = outputs.take([run.row for run in runs])
    return Repeated(runs, same, same, same, {"another runtime 2.0": same})


def random_reference(kind: OutputKind, rng: np.random.Generator) -> Reference:
    """Return random outputs of real texts, with labels that the outputs themselves get right."""
    texts = verification_texts()[:CHECKED]
    texts += [Text(f"labelled-{number}", "labelled", f"text {number}") for number in range(2 * PAIRS)]
    rows = [Row(tuple(range(number % 14 + 2)), (0,) * (number % 14 + 2)) for number in range(len(texts))]
    outputs = random_outputs(kind, rows, rng)
    return Reference(
        task=TASK_OF[kind],
        max_length=LONGEST,
        pad_token_id=0,
        labels=TAGS if KINDS[kind].named else None,
        checkpoint={},
        texts=texts,
        rows=rows,
        outputs=outputs,
        checked=CHECKED,
        datasets=[right_labels(kind, outputs)],
        skipped={},
    )


def random_outputs(kind: OutputKind, rows: list[Row], rng: np.random.Generator) -> RowOutputs:
    items = [len(row) if KINDS[kind].per_token else 1 for row in rows]
    outputs = [rng.normal(size=(count, WIDTHS[kind])).astype(np.float32) for count in items]
    if kind == "embedding":
        outputs = [row / np.linalg.norm(row) for row in outputs]
    return RowOutputs.of(outputs)


def right_labels(kind: str, outputs: RowOutputs) -> Labels:
    rows, others = list(range(CHECKED, CHECKED + PAIRS)), list(range(CHECKED + PAIRS, CHECKED + 2 * PAIRS))
    if kind == "embedding":
        scores = measures.cosine(outputs.take(rows).values, outputs.take(others).values)
        return Labels("graded", rows, others, [float(score) for score in scores], "spearman", [])
    if kind == "value":
        return Labels("graded", rows, None, [float(outputs[row][0, 0]) for row in rows], "spearman", [])
    if kind == "values":
        return Labels("graded", rows, None, [outputs[row][0].tolist() for row in rows], "mean_spearman", TAGS)
    if kind == "multi_label":
        given = [(outputs[row][0] >= 0).astype(float).tolist() for row in rows]
        return Labels("labelled", rows, None, given, "micro_f1", TAGS)
    if kind == "logits":
        return Labels("classes", rows, None, [float(outputs[row][0].argmax()) for row in rows], "accuracy", TAGS)
    if kind == "token_logits":
        tags = [{"at": list(range(len(outputs[row]))), "tags": outputs[row].argmax(-1).tolist()} for row in rows]
        return Labels("tagged", rows, None, tags, "entity_f1", TAGS)
    return Labels("asked", rows, None, [asked(outputs, row) for row in rows], "squad_f1", [])


def asked(outputs: RowOutputs, row: int) -> dict[str, Any]:
    """Return a question whose passage has a word for each token, and whose answer is what the outputs say."""
    words = [f"w{row}x{number}" for number in range(len(outputs[row]))]
    passage = " ".join(words)
    places = word_spans(passage)
    span = best_span([(outputs[row], places)])
    answers = [passage[span.start : span.end]]
    return {"windows": [row], "offsets": [places], "passage": passage, "answers": answers}


def signature_of(kind: OutputKind, scheme: str) -> Signature:
    output = Tensor(name="output", dtype="float32", shape=(1, WIDTHS[kind]))
    function = Function(name="f", min_length=LONGEST, max_length=LONGEST, inputs=(output,), outputs=(output,))
    return Signature(
        backend="litert",
        scheme=scheme,
        task=TASK_OF[kind],
        output_kind=kind,
        file="model.tflite",
        minimum_runtime="1.0",
        pad_token_id=0,
        labels=tuple(TAGS) if KINDS[kind].named else None,
        functions=(function,),
        parameters=PARAMETERS,
    )


def failed_gates(parity: verify.Parity) -> set[str]:
    return {gate.name.partition(":")[0] for gate in parity.gates if not gate.passed}


def failed_names(parity: verify.Parity) -> list[str]:
    return [gate.name for gate in parity.gates if not gate.passed]


def changed(
    outputs: RowOutputs, row: int, change: Callable[[np.ndarray], Any] | float, column: Any = ...
) -> RowOutputs:
    """Return outputs with one row, or a column of its first item, changed by a function or set to a number."""
    rows = [one.copy() for one in outputs]
    place = (0, column) if column is not ... else ...
    rows[row][place] = change(rows[row][place]) if callable(change) else change
    return RowOutputs.of(rows)


def scaled(outputs: RowOutputs, factor: float) -> RowOutputs:
    return replace(outputs, values=outputs.values * np.float32(factor))


def moved(outputs: RowOutputs, change: Callable[[list[np.ndarray]], list[np.ndarray]]) -> RowOutputs:
    return RowOutputs.of(change([row.copy() for row in outputs]))


# --- one way to break a file for each bound ----------------------------------------------------------------------

WORST = 7
"""The row that is broken where one row is; not among those that run padded as well."""


def turn_all(case: Case) -> Case:
    """Move every natural row a little towards another direction."""
    outputs = case.found.outputs
    return case.with_found(outputs=replace(outputs, values=outputs.values + 0.4 * np.roll(outputs.values, 1, axis=1)))


def turn_one(case: Case) -> Case:
    """Replace one row by forty times its opposite; a row that is small by chance is the worst then, too."""
    return case.with_found(outputs=changed(case.found.outputs, WORST, lambda value: -40 * value))


def nudge_one(case: Case) -> Case:
    """Move a single number of one row."""
    return case.with_found(outputs=changed(case.found.outputs, WORST, lambda value: value + 0.02, 0))


def shuffle_all(case: Case) -> Case:
    """Give the rows of the labelled data each other's outputs; the verification texts stay right."""
    outputs = moved(case.found.outputs, lambda rows: rows[:CHECKED] + rows[CHECKED + 7 :] + rows[CHECKED : CHECKED + 7])
    return case.with_found(outputs=outputs)


def shuffle_some(case: Case) -> Case:
    """Exchange the outputs of a few labelled rows."""
    first, last = CHECKED, CHECKED + 7
    outputs = case.found.outputs
    order = [*range(first), last, *range(first, last), *range(last + 1, len(outputs))]
    return case.with_found(outputs=outputs.take(order))


def flip_winners(case: Case) -> Case:
    """Let another class win in every fifth of the verification texts."""
    outputs = case.found.outputs
    for row in range(0, CHECKED, 5):
        outputs = changed(outputs, row, lambda values: np.roll(values, 1, axis=1))
    return case.with_found(outputs=outputs)


def leak_into_all_pad(case: Case) -> Case:
    """Give a row of padding a direction."""
    return case.with_found(all_pad_outputs=changed(case.found.all_pad_outputs, 1, 1e-3, 0))


def leak_padding(case: Case) -> Case:
    """Let padding change one row's output."""
    return case.with_found(padded_outputs=changed(case.found.padded_outputs, 2, lambda value: value + 0.5, 0))


def leak_much_padding(case: Case, every: int = 10, by: float = 0.045) -> Case:
    """Let padding change a little in one row of so many."""
    outputs = case.found.padded_outputs
    for row in range(0, len(case.found.padded), every):
        outputs = changed(outputs, row, lambda value: value + by, 0)
    return case.with_found(padded_outputs=outputs)


def break_threads(case: Case) -> Case:
    """Let two threads give another number."""
    again = case.found.repeated
    assert again.threaded is not None
    return case.with_repeated(threaded=changed(again.threaded, 1, lambda value: value + 0.5, 0))


def sharpen_logits(case: Case) -> Case:
    """Make every row surer of the same winner."""
    return case.with_found(outputs=scaled(case.found.outputs, 3))


def shift_all(case: Case) -> Case:
    """Add the same to every number, as a lost bias does; no order changes."""
    outputs = case.found.outputs
    return case.with_found(outputs=RowOutputs(outputs.values + np.float32(1), outputs.counts))


def grow(case: Case) -> Case:
    """Store three times the bytes."""
    return replace(case, model_metrics={"file_bytes": 3 * case.model_metrics["file_bytes"]})


@dataclass(frozen=True)
class Firing:
    """How to make one bound's gate fire."""

    kind: OutputKind
    bound: float
    breaking: Callable[[Case], Case]
    blame: str
    """What its message has to name."""


def text_id(row: int) -> str:
    return verification_texts()[row].id


FIRINGS: dict[str, Firing] = {
    "min_mean_cosine": Firing("embedding", 0.999, turn_all, "worst on "),
    "min_worst_cosine": Firing("embedding", 0.9, turn_one, f"worst on {text_id(WORST)}"),
    "min_sqnr_db": Firing("logits", 40.0, turn_one, f"worst on {text_id(WORST)}"),
    "min_agreement": Firing("logits", 0.9, flip_winners, "worst on "),
    "max_abs_error": Firing("embedding", 1e-3, nudge_one, f"worst on {text_id(WORST)}"),
    "max_mean_shift": Firing("value", 0.01, shift_all, "mean over all rows"),
    "max_all_pad_error": Firing("embedding", 1e-6, leak_into_all_pad, "all padding"),
    "max_pad_difference": Firing("embedding", 0.1, leak_padding, f"worst on {text_id(6)} "),
    "max_usual_pad_difference": Firing("embedding", 0.01, leak_much_padding, "but the 2 %"),
    "max_thread_difference": Firing("logits", 0.1, break_threads, "two threads"),
    "max_kl": Firing("logits", 1e-4, sharpen_logits, "mean over all rows"),
    "max_task_drop": Firing("embedding", 0.01, shuffle_all, "fell to"),
    "max_bytes_per_parameter": Firing("logits", 4.3, grow, "larger than its scheme promises"),
}


def test_units_that_an_app_does_not_offer_fail_no_file(monkeypatch):
    monkeypatch.setattr(coreml_session, "no_runtime", lambda: None)
    monkeypatch.setattr(platform, "mac_ver", lambda: ("15.0", ("", "", ""), ""))
    others = [
        Evaluation(evaluator=one.name, rows=9, sqnr_db=3.0, max_difference=1.0)
        for one in coreml_session.evaluators()
        if one.unit
    ]
    for scheme, gated in (
        ("fp16", ["ALL", "CPU_AND_NE", "CPU_AND_GPU", "CPU_ONLY"]),
        ("int4_weight_only", ["CPU_ONLY"]),
    ):
        signature = signature_of("embedding", scheme).model_copy(update={"backend": "coreml"})
        fired = judging._other_gates(signature, SCHEMES[scheme].gates["embedding"], others)
        assert [gate.name.split()[2] for gate in fired if not gate.passed] == gated


@pytest.mark.parametrize("kind", ["embedding", "token_logits"])
def test_one_padded_row_may_flip_an_activation_and_many_may_not(kind, seed):
    case = clean(kind, seed, "int8_dynamic")
    gates = SCHEMES["int8_dynamic"].gates[kind]
    measures = case.judge(gates).measures
    assert measures is not None
    unit = measures.unit
    once = leak_much_padding(case, every=len(case.found.padded), by=0.045 * unit)
    assert once.judge(gates).verdict == "passed"
    often = leak_much_padding(case, every=2, by=0.045 * unit).judge(gates)
    assert [gate.name for gate in often.gates if not gate.passed] == ["max_usual_pad_difference"]
    far = leak_much_padding(case, every=len(case.found.padded), by=0.16 * unit).judge(gates)
    assert "max_pad_difference" in [gate.name for gate in far.gates if not gate.passed]


@pytest.mark.parametrize(
    ("found", "fired"),
    [
        ({"sqnr_db": 41.0, "worst_row_db": 30.0}, {"control_sqnr_db", "control_worst_row_db"}),
        ({"worst_row_db": 52.0}, {"control_worst_row_db"}),
        ({"masked_difference": 3e-6}, {"masked_difference"}),
        ({"file_worst_row_db": 1.0}, {"every_length_worst_row_db"}),
    ],
)
def test_a_graph_that_is_not_the_checkpoint_s_in_single_precision_fails_whatever_its_scheme(found, fired, seed):
    case = clean("embedding", seed, "int8_dynamic")
    gates = SCHEMES["int8_dynamic"].gates["embedding"]
    assert case.judge(gates).verdict == "passed"
    parity = case.with_found(control=CONTROL.model_copy(update=found)).judge(gates)
    assert failed_gates(parity) == fired
    rows = {"file_worst_row_db": CONTROL.file_worst_row, "masked_difference": CONTROL.masked_row}
    assert parity.reasons[0].endswith(rows.get(next(iter(found)), CONTROL.worst_row))


OF_SEARCH = {"min_recall_kept", "min_recall_kept_small"}
"""Bounds that fire in tests/test_retrieval.py: without collections nothing is compared with them."""


def test_every_bound_of_gates_has_a_firing_test():
    assert set(FIRINGS) | OF_SEARCH == set(Gates.model_fields)


@pytest.mark.parametrize("bound", FIRINGS)
def test_the_bound_alone_passes_clean_and_fires_on_broken(bound, seed):
    firing = FIRINGS[bound]
    gates, case = Gates(**{bound: firing.bound}), clean(firing.kind, seed)
    assert case.judge(gates).verdict == "passed"

    parity = firing.breaking(case).judge(gates)
    assert parity.verdict == "failed"
    assert failed_gates(parity) == {bound}
    assert firing.blame in parity.reasons[0]
    assert f"{firing.bound:g}" in parity.reasons[0]


@pytest.mark.parametrize("bound", FIRINGS)
def test_the_bound_switched_off_lets_the_broken_file_pass(bound, seed):
    firing = FIRINGS[bound]
    assert firing.breaking(clean(firing.kind, seed)).judge(Gates()).verdict == "passed"


@pytest.mark.parametrize("bound", FIRINGS)
def test_the_value_found_is_on_record_and_its_own_bound_would_pass(bound, seed):
    firing = FIRINGS[bound]
    broken = firing.breaking(clean(firing.kind, seed))
    gates = [g for g in broken.judge(Gates(**{bound: firing.bound})).gates if g.name.startswith(bound)]
    assert gates[0].bound == firing.bound
    worst = (min if bound.startswith("min") else max)(gate.found for gate in gates if gate.found is not None)
    assert broken.judge(Gates(**{bound: worst})).verdict == "passed"


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_clean_copy_passes_all_default_gates(kind, scheme, seed):
    parity = clean(kind, seed, scheme).judge(SCHEMES[scheme].gates[kind])
    assert (parity.verdict, parity.reasons) == ("passed", [])
    bounds = {name for name, value in SCHEMES[scheme].gates[kind].model_dump().items() if value is not None}
    assert bounds - OF_SEARCH <= {gate.name.partition(":")[0] for gate in parity.gates}


DEFAULTS = [
    (bound, scheme)
    for bound, firing in FIRINGS.items()
    for scheme in SCHEMES
    if getattr(SCHEMES[scheme].gates[firing.kind], bound) is not None
]


def test_every_bound_is_a_default_of_some_scheme():
    assert {bound for bound, _ in DEFAULTS} == set(FIRINGS)


@pytest.mark.parametrize(("bound", "scheme"), DEFAULTS)
def test_the_default_gates_fire_too(bound, scheme, seed):
    firing = FIRINGS[bound]
    gates = SCHEMES[scheme].gates[firing.kind]
    assert bound in failed_gates(firing.breaking(clean(firing.kind, seed, scheme)).judge(gates))


# --- what has no bound: finite numbers, ids, chance, crashes -----------------------------------------------------

PLACES = {
    "outputs": text_id(WORST),
    "padded_outputs": text_id(6),
    "all_pad_outputs": f"a row of {LONGEST} padding tokens",
    "all_pad_flushed": f"a row of {LONGEST} padding tokens where subnormal numbers of half precision are zero",
}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_number_that_is_not_finite_fails_whatever_the_bounds(kind, place, value, seed):
    case = clean(kind, seed)
    row = {"outputs": WORST, "padded_outputs": 2, "all_pad_outputs": 1, "all_pad_flushed": 1}[place]
    broken = case.with_found(**{place: changed(getattr(case.found, place), row, value, -1)})
    parity = broken.judge(Gates())
    assert parity.verdict == "failed"
    assert failed_gates(parity) == {"finite"}
    assert "NaN or infinity" in parity.reasons[0]
    assert PLACES[place] in parity.reasons[0]
    assert parity.measures is None


def test_nan_in_a_labelled_row_fails_too(seed):
    case = clean("embedding", seed)
    parity = case.with_found(outputs=changed(case.found.outputs, -1, math.nan)).judge(Gates())
    assert failed_gates(parity) == {"finite"}
    assert f"labelled-{2 * PAIRS - 1}" in parity.reasons[0]


def test_an_output_of_zeros_is_the_worst_although_its_cosine_is_undefined(tmp_path, seed):
    case = clean("embedding", seed)
    broken = case.with_found(outputs=changed(case.found.outputs, WORST, 0.0))
    parity = broken.judge(Gates(min_worst_cosine=0.5))
    assert failed_gates(parity) == {"min_worst_cosine"}
    assert parity.worst[0].id == text_id(WORST)
    assert text_id(WORST) in parity.reasons[0]


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_file_that_gives_nothing_but_zeros_fails_with_a_record_that_can_be_read(kind, tmp_path, seed):
    case = clean(kind, seed)
    zeros = {name: scaled(getattr(case.found, name), 0) for name in ("outputs", "padded_outputs")}
    parity = case.with_found(**zeros).judge(SCHEMES["int8_dynamic"].gates[kind])
    assert parity.verdict == "failed"
    assert "max_task_drop" in failed_gates(parity)
    (tmp_path / verify.PARITY).write_text(parity.model_dump_json())
    assert verify.read_parity(tmp_path) == parity


def test_a_tokenizer_that_gives_other_ids_fails(seed):
    parity = clean("embedding", seed).with_found(wrong_ids=[WORST, 9]).judge(Gates())
    assert parity.verdict == "failed"
    assert failed_gates(parity) == {"tokenizer"}
    assert text_id(WORST) in parity.reasons[0]


def at_chance(case: Case) -> Case:
    """Give the reference labels that have nothing to do with its outputs."""
    row = case.reference.datasets[0]
    gold = [row.gold[(number + 11) % len(row.gold)] for number in range(len(row.gold))]
    if row.metric == "squad_f1":
        gold = [one | {"answers": ["nothing of the kind"]} for one in row.gold]
    if row.metric == "entity_f1":
        gold = [one | {"tags": [0] * len(one["tags"])} for one in row.gold]
    return replace(case, reference=replace(case.reference, datasets=[replace(row, gold=gold)]))


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_reference_at_chance_is_broken(kind, seed):
    parity = at_chance(clean(kind, seed)).judge(Gates())
    assert parity.verdict == "failed"
    assert failed_gates(parity) == {"reference_above_chance"}
    assert "the reference is broken" in parity.reasons[0]


def test_a_fraction_is_not_compared_with_percent(seed):
    # Public gates compare accuracy 0.34 with "above 33"; here chance of three classes is a third, and so is the metric.
    parity = at_chance(clean("logits", seed)).judge(Gates())
    (gate,) = (gate for gate in parity.gates if gate.name == "reference_above_chance:classes")
    assert gate.bound is not None
    assert gate.found is not None
    assert 0 < gate.found < gate.bound < 1
    assert parity.datasets[0].chance < gate.bound


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_declared_random_weights_are_exempt_from_chance_and_say_so(kind, seed):
    parity = at_chance(clean(kind, seed)).judge(SCHEMES["fp32"].gates[kind], random_weights=True)
    assert parity.verdict == "passed"
    assert parity.random_weights
    assert "random" in parity.reasons[0]
    assert "no dataset has to be above chance" in parity.reasons[0]


@pytest.mark.parametrize("bound", FIRINGS)
def test_random_weights_are_exempt_from_nothing_else(bound, seed):
    firing = FIRINGS[bound]
    parity = firing.breaking(clean(firing.kind, seed)).judge(Gates(**{bound: firing.bound}), random_weights=True)
    assert parity.verdict == "failed"


def test_a_crash_fails_and_its_words_come_first(seed):
    parity = clean("embedding", seed).judge(SCHEMES["fp32"].gates["embedding"], crash="ended by SIGABRT")
    assert parity.verdict == "failed"
    assert parity.reasons[0] == "ended by SIGABRT"
    assert parity.measures is None


def test_a_file_that_cannot_run_here_is_not_run_with_the_reason(seed):
    parity = clean("embedding", seed).judge(SCHEMES["fp32"].gates["embedding"], not_run="needs macOS.")
    assert parity.verdict == "not_run"
    assert parity.reasons == ["needs macOS."]
    assert parity.evaluator is None


def test_what_can_be_judged_without_running_is_judged(seed):
    parity = grow(clean("embedding", seed)).judge(SCHEMES["fp32"].gates["embedding"], not_run="needs macOS.")
    assert parity.verdict == "failed"
    assert "max_bytes_per_parameter" in failed_gates(parity)


def test_other_bytes_in_a_fresh_session_fail(seed):
    case = clean("embedding", seed)
    again = case.found.repeated.again
    nudged = changed(again, 0, lambda value: np.nextafter(value, np.float32(2)), 0)
    parity = case.with_repeated(again=nudged).judge(Gates())
    assert failed_gates(parity) == {"deterministic"}
    assert parity.measures is not None
    assert not parity.measures.deterministic


def test_an_evaluator_that_heeds_no_threads_has_no_thread_difference(seed):
    parity = clean("embedding", seed).with_repeated(threaded=None).judge(SCHEMES["fp32"].gates["embedding"])
    assert parity.verdict == "passed"
    assert parity.measures is not None
    assert parity.measures.max_thread_difference is None


def test_another_evaluator_is_compared_with_the_first_and_held_to_the_schemes_bound(seed):
    case, gates = clean("embedding", seed), SCHEMES["fp32"].gates["embedding"]
    (other,) = case.judge(gates).other_evaluators
    assert (other.evaluator, other.max_difference, other.sqnr_db) == ("another runtime 2.0", 0.0, 999.0)

    wrong = {"another runtime 2.0": scaled(case.found.repeated.outputs, 1.1)}
    parity = case.with_repeated(others=wrong).judge(gates)
    assert failed_gates(parity) == {"min_sqnr_db"}
    assert "another runtime 2.0" in parity.reasons[0]


def test_nan_of_another_evaluator_fails(seed):
    case = clean("embedding", seed)
    wrong = {"another runtime 2.0": scaled(case.found.repeated.outputs, math.nan)}
    assert case.with_repeated(others=wrong).judge(SCHEMES["fp32"].gates["embedding"]).verdict == "failed"


def test_what_was_judged_without_running_counts(seed):
    wrong = GateResult(name="epsilon", bound=None, found=None, passed=False, detail="epsilon: 1e-5")
    parity = clean("embedding", seed).with_found(static_gates=[wrong]).judge(Gates())
    assert (parity.verdict, parity.reasons) == ("failed", ["epsilon: 1e-5"])


def test_the_bad_end_of_the_intervals_drop_is_gated_as_far_as_the_rows_can_tell(seed):
    """Forty rows tell no less than 3 / 40."""
    case = shuffle_some(clean("embedding", seed))
    (row,) = case.judge(Gates(max_task_drop=0.1)).datasets
    assert row.drop_low < row.drop < row.drop_high
    bounds = [gate.bound for gate in case.judge(Gates(max_task_drop=0.01)).gates if "max_task_drop" in gate.name]
    assert bounds == pytest.approx([0.01, 3 / 40])
    between = (row.drop + row.drop_high) / 2
    assert between > 3 / 40
    assert failed_names(case.judge(Gates(max_task_drop=between))) == ["max_task_drop:graded, bad end of the interval"]
    assert failed_names(case.judge(Gates(max_task_drop=between), random_weights=True)) == []


@pytest.mark.parametrize(
    ("backend", "activation", "bound"),
    [("executorch", "gelu_tanh", 60.0), ("executorch", "gelu", 70.0), ("litert", "gelu_tanh", 70.0)],
)
def test_a_declared_form_of_an_activation_has_a_bound_of_its_own(backend, activation, bound, seed):
    case = clean("logits", seed)
    reference = replace(case.reference, checkpoint={"activations": [activation]})
    parity = replace(case, signature=case.signature.model_copy(update={"backend": backend}), reference=reference).judge(
        SCHEMES["fp32"].gates["logits"]
    )
    assert [gate.bound for gate in parity.gates if gate.name == "min_sqnr_db"] == [bound]


def test_rows_in_which_the_truth_nearly_ties_cannot_show_a_drop(seed):
    case = clean("logits", seed)
    rows = case.reference.datasets[0].rows
    tied = case.reference.outputs
    for row in rows[:20]:
        tied = changed(tied, row, lambda values: values * 0 + np.float32(0.5) + np.float32(1e-3) * np.arange(3))
    for number, row in enumerate(rows[20:]):
        tied = changed(tied, row, functools.partial(np.full_like, fill_value=np.roll(np.arange(3), number)))
    labels = replace(case.reference.datasets[0], gold=[float(tied[row][0].argmax()) for row in rows])
    reference = replace(case.reference, outputs=tied, datasets=[labels])
    flipped = tied
    for row in rows[:8]:
        flipped = changed(flipped, row, lambda values: values[:, ::-1])
    gates = Gates(max_task_drop=0.01)
    (score,) = replace(case, reference=reference).with_found(outputs=flipped).judge(gates).datasets
    assert score.undecided == pytest.approx(0.5)
    assert score.drop == pytest.approx(0.2)
    failed = failed_names(replace(case, reference=reference).with_found(outputs=flipped).judge(gates))
    assert failed == ["max_task_drop:classes, good end of the interval"]


def test_the_worst_inputs_are_listed_worst_first(seed):
    parity = turn_one(clean("embedding", seed)).judge(Gates())
    assert parity.worst[0].id == text_id(WORST)
    assert parity.worst[0].score == pytest.approx(-1.0)
    scores = [item.score for item in parity.worst if item.score is not None]
    assert len(scores) == len(parity.worst)
    assert scores == sorted(scores)


def test_the_record_survives_its_own_file(tmp_path, seed):
    parity = turn_one(clean("logits", seed)).judge(SCHEMES["fp32"].gates["logits"])
    (tmp_path / verify.PARITY).write_text(parity.model_dump_json())
    assert verify.read_parity(tmp_path) == parity


@pytest.mark.full
def test_files_judged_one_after_the_other_in_one_worker_are_judged_as_in_a_worker_each(tiny_line, tmp_path):
    # ExecuTorch's pool of threads belongs to the process, and the last session of a file has two.
    names = ("litert-int8_dynamic", "executorch-fp32", "litert-int8_dynamic")

    def judged(worker: Worker, name: str, out: Path) -> bytes:
        out.mkdir()
        folder = tiny_line.folder
        gates = SCHEMES[name.partition("-")[2]].gates["embedding"]
        asked = VerifyRequest(Target(*name.split("-")), gates, random_weights=True)
        reference = folder / "reference-32"
        worker.call(verify.make, folder / name / "model", folder / "student", None, reference, None, asked, out)
        return (out / verify.PARITY).read_bytes()

    with Worker(tmp_path / "log", threads=1) as warm:
        together = [judged(warm, name, tmp_path / f"warm-{number}") for number, name in enumerate(names)]
    alone = []
    for name in names[:2]:
        with Worker(tmp_path / "log", threads=1) as fresh:
            alone.append(judged(fresh, name, tmp_path / f"fresh-{name}"))
    assert together == [*alone, alone[0]]
    assert b'"verdict": "passed"' in together[1]
