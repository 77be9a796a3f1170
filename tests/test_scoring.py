"""Task metrics against the libraries that the field uses, intervals against scipy's, decoding against brute force."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import stats
from seqeval.metrics import f1_score as seqeval_f1
from sklearn.metrics import f1_score, matthews_corrcoef

from pipeline.data import datasets as data
from pipeline.kinds import OutputKind
from pipeline.metrics import scoring
from pipeline.metrics.outputs import LONGEST_ANSWER, RowOutputs, best_span, entities, first_tokens, word_spans
from pipeline.metrics.scoring import METRICS, Labels

TAGS = list(data.WNUT17_TAGS)


def labels(metric: str, gold: list[Any], **changes: Any) -> Labels:
    values = {"rows": list(range(len(gold))), "second": None, "names": []} | changes
    return Labels("set", gold=gold, metric=metric, **values)


def single(values: np.ndarray) -> RowOutputs:
    """One item a row."""
    return RowOutputs.of(list(values))


def classes(rng: np.random.Generator, rows: int, right: float) -> tuple[RowOutputs, list[float]]:
    gold = rng.integers(0, 2, rows)
    said = np.where(rng.random(rows) < right, gold, 1 - gold)
    return single(np.eye(2)[said] + rng.normal(0, 0.1, (rows, 2))), [float(one) for one in gold]


@pytest.mark.parametrize(
    ("metric", "oracle"),
    [
        ("accuracy", lambda gold, said: float(np.mean(gold == said))),
        ("f1", f1_score),
        ("matthews", matthews_corrcoef),
    ],
)
def test_metrics_of_classes_are_scikit_learns(metric, oracle, seed):
    outputs, gold = classes(np.random.default_rng(seed), 200, 0.7)
    expected = oracle(np.asarray(gold), outputs.values.argmax(1))
    assert scoring.score("logits", labels(metric, gold), outputs) == pytest.approx(expected)


@pytest.mark.parametrize("metric", ["f1", "matthews"])
def test_one_class_alone_scores_nothing(metric):
    outputs = single(np.tile([1.0, 0.0], (5, 1)))
    assert scoring.score("logits", labels(metric, [0.0] * 5), outputs) == 0.0


@pytest.mark.parametrize(("metric", "oracle"), [("spearman", stats.spearmanr), ("pearson", stats.pearsonr)])
def test_correlations_are_scipys_with_ties(metric, oracle, seed):
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, 6, 60).astype(float)
    values = np.round(gold + rng.normal(size=60), 1)
    found = scoring.score("value", labels(metric, list(gold)), single(values[:, None]))
    assert found == pytest.approx(oracle(values, gold).statistic)


def several(rng: np.random.Generator, rows: int) -> tuple[RowOutputs, list[list[float]]]:
    """Return logits of four labels, one of them rare, that are mostly right; and the gold labels."""
    gold = rng.random((rows, 4)) < [0.5, 0.3, 0.2, 0.05]
    return single(np.where(gold, 1.0, -1.0) + rng.normal(0, 0.8, gold.shape)), gold.astype(float).tolist()


@pytest.mark.parametrize("thresholds", [None, [0.5, 0.3, 0.7, 0.1]])
@pytest.mark.parametrize("average", ["micro", "macro"])
def test_f1_of_several_labels_is_scikit_learns(average, thresholds, seed):
    outputs, gold = several(np.random.default_rng(seed), 200)
    given = 1 / (1 + np.exp(-outputs.values.astype(float))) >= (thresholds or 0.5)
    expected = f1_score(np.array(gold), given, average=average, zero_division=0)
    found = scoring.score("multi_label", labels(f"{average}_f1", gold, thresholds=thresholds), outputs)
    assert 0.3 < found == pytest.approx(expected)


def test_macro_f1_is_reported_beside_micro_f1(seed):
    outputs, gold = several(np.random.default_rng(seed), 200)
    found = scoring.reported("multi_label", labels("micro_f1", gold), outputs)
    assert found == {
        name: scoring.score("multi_label", labels(name, gold), outputs) for name in ("micro_f1", "macro_f1")
    }
    assert found["micro_f1"] != found["macro_f1"]


def test_a_label_that_is_neither_given_nor_gold_scores_nothing():
    outputs, gold = single(np.array([[3.0, -3.0], [-3.0, -3.0]])), [[1.0, 0.0], [0.0, 0.0]]
    assert scoring.score("multi_label", labels("micro_f1", gold), outputs) == 1.0
    assert scoring.score("multi_label", labels("macro_f1", gold), outputs) == 0.5


def test_the_mean_spearman_is_scipys_over_the_outputs(seed):
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, 6, (60, 3)).astype(float)
    values = np.round(gold * [1, -1, 1] + rng.normal(size=gold.shape), 1)
    each = [stats.spearmanr(values[:, at], gold[:, at]).statistic for at in range(3)]
    found = scoring.score("values", labels("mean_spearman", gold.tolist()), single(values))
    assert found == pytest.approx(np.mean(each))


@pytest.mark.parametrize(("metric", "average"), [("micro_f1", "micro"), ("macro_f1", "macro")])
def test_the_chance_of_labels_is_the_best_constant(metric, average, seed):
    _, gold = several(np.random.default_rng(seed), 90)
    constants = [np.tile(one, (90, 1)) for one in product([0, 1], repeat=4)]
    best = max(f1_score(np.array(gold), one, average=average, zero_division=0) for one in constants)
    assert METRICS[metric].chance(labels(metric, gold)) == pytest.approx(best)


def test_labels_near_their_thresholds_tell_as_little_as_they_can_move_the_metric():
    gold = [[1.0, 0.0]] * 20 + [[0.0, 1.0]] * 20
    logits = np.array(gold) * 8 - 4
    logits[0, 1], thresholds = 1.4, [0.5, 0.8]  # its threshold's logit is 1.386
    tied = scoring.undecided("multi_label", labels("micro_f1", gold, thresholds=thresholds), single(logits))
    # Given, it is one wrong label beside 40 right ones.
    assert tied == pytest.approx(1 - 80 / 81)
    assert scoring.undecided("multi_label", labels("micro_f1", gold), single(logits)) == 0.0


def test_pairs_of_embeddings_are_scored_by_their_cosine():
    vectors = np.array([[1.0, 0.0], [1.0, 0.1], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    pairs = labels("spearman", [5.0, 0.0, 3.0], rows=[0, 2, 4], second=[1, 3, 5])
    assert scoring.score("embedding", pairs, single(vectors)) == pytest.approx(1.0)
    swapped = labels("spearman", [0.0, 5.0, 3.0], rows=[0, 2, 4], second=[1, 3, 5])
    assert scoring.score("embedding", swapped, single(vectors)) == pytest.approx(-1.0)


@pytest.mark.parametrize("metric", ["spearman", "pearson"])
def test_a_constant_side_tells_nothing(metric):
    outputs = single(np.full((5, 1), 0.3))
    assert scoring.score("value", labels(metric, list(np.arange(5.0))), outputs) == 0.0


def tagged(rng: np.random.Generator, sentences: int) -> tuple[RowOutputs, list[dict[str, Any]]]:
    """Return logits whose winners are wrong in a quarter of the words, and the gold tags."""
    rows, gold = [], []
    for _ in range(sentences):
        words = int(rng.integers(3, 12))
        tags = rng.integers(0, len(TAGS), words)
        said = np.where(rng.random(words) < 0.75, tags, rng.integers(0, len(TAGS), words))
        rows.append(np.eye(len(TAGS))[np.concatenate([[0], said, [0]])])
        gold.append({"at": list(range(1, words + 1)), "tags": tags.tolist()})
    return RowOutputs.of(rows), gold


def test_entity_f1_is_seqevals(seed):
    outputs, gold = tagged(np.random.default_rng(seed), 60)
    true = [[TAGS[tag] for tag in one["tags"]] for one in gold]
    said = [[TAGS[row[at].argmax()] for at in one["at"]] for row, one in zip(outputs, gold, strict=True)]
    found = scoring.score("token_logits", labels("entity_f1", gold, names=TAGS), outputs)
    assert 0.1 < found == pytest.approx(seqeval_f1(true, said))


def test_a_word_that_truncation_cut_off_has_no_tag():
    outputs = RowOutputs.of([np.eye(len(TAGS), dtype=np.float32)[[0, TAGS.index("B-person")]]])
    gold = [{"at": [1, None], "tags": [TAGS.index("B-person"), TAGS.index("B-person")]}]
    assert scoring.score("token_logits", labels("entity_f1", gold, names=TAGS), outputs) == pytest.approx(2 / 3)


PASSAGE = "the canal has sixteen locks and no bridge"
PLACES = word_spans(PASSAGE)


def pointing_at(start: int, end: int) -> np.ndarray:
    logits = np.zeros((len(PLACES), 2), np.float32)
    logits[start, 0] = logits[end, 1] = 9
    return logits


@pytest.mark.toolchain
@pytest.mark.parametrize(
    ("span", "f1", "em"), [((3, 3), 1.0, 1.0), ((3, 4), 2 / 3, 0.0), ((0, 0), 0.0, 0.0), ((2, 4), 0.5, 0.0)]
)
def test_squad_metrics_by_hand(span, f1, em):
    gold = [{"windows": [0], "offsets": [PLACES], "passage": PASSAGE, "answers": ["sixteen", "bridges"]}]
    outputs = RowOutputs.of([pointing_at(*span)])
    assert scoring.score("spans", labels("squad_f1", gold), outputs) == pytest.approx(f1)
    assert scoring.score("spans", labels("squad_em", gold), outputs) == em


def test_the_best_span_is_that_of_brute_force(seed):
    rng = np.random.default_rng(seed)
    places: list[tuple[int, int] | None] = [None, None, *((10 * n, 10 * n + 9) for n in range(50)), None]
    logits = rng.normal(size=(len(places), 2))
    pairs = [(a, b) for a, b in product(range(2, 52), repeat=2) if a <= b < a + LONGEST_ANSWER]
    start, end = max(pairs, key=lambda pair: logits[pair[0], 0] + logits[pair[1], 1])
    found = best_span([(logits, places)])
    first, last = places[start], places[end]
    assert first
    assert last
    assert (found.start, found.end) == (first[0], last[1])
    assert found.score == pytest.approx(logits[start, 0] + logits[end, 1])


def test_the_best_window_wins_and_no_token_of_the_passage_is_no_answer():
    weak, strong = pointing_at(0, 0) / 3, pointing_at(3, 3)
    found = best_span([(weak, PLACES), (strong, PLACES)])
    assert PASSAGE[found.start : found.end] == "sixteen"
    assert best_span([(weak, [None] * len(PLACES))]).score == -math.inf


def test_tags_become_entities():
    text = "Ana Lopez met Bo in Rio today"
    tags = ["B-person", "I-person", "O", "B-person", "O", "I-place", "I-person"]
    found = entities(text, tags, [0.9, 0.7, 1, 0.5, 1, 0.6, 0.4], word_spans(text))
    assert [(entity.kind, text[entity.start : entity.end]) for entity in found] == [
        ("person", "Ana Lopez"),
        ("person", "Bo"),
        ("place", "Rio"),
        ("person", "today"),
    ]
    assert (found[0].start, found[0].end) == (0, 9)
    assert found[0].score == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("text", "entity"),
    [
        ("(Rio de Janeiro), then", "Rio de Janeiro"),
        ("in O'Hare. Bye", "O'Hare"),
        ("¿Bogotá? no", "Bogotá"),
        ("at ... x", "..."),
    ],
)
def test_punctuation_at_its_ends_is_no_part_of_an_entity(text, entity):
    words = word_spans(text)
    inside = [text.index(entity) < end and start < text.index(entity) + len(entity) for start, end in words]
    tags = [
        "B-place" if ours and not inside[max(0, number - 1)] else "I-place" if ours else "O"
        for number, ours in enumerate(inside)
    ]
    (found,) = entities(text, tags, [1.0] * len(words), words)
    assert text[found.start : found.end] == entity


def test_a_word_of_punctuation_alone_ends_no_entity():
    text = "Rio de – now"
    (found,) = entities(text, ["B-place", "I-place", "I-place", "O"], [1.0] * 4, word_spans(text))
    assert text[found.start : found.end] == "Rio de"


def test_a_label_may_be_an_empty_text():
    text = "a b c d e f"
    found = entities(text, ["", "", "B-", "I-", "O", ""], [0.5, 0.7, 1, 0.6, 1, 0.4], word_spans(text))
    assert [(entity.kind, entity.start, entity.end) for entity in found] == [("", 0, 3), ("", 4, 7), ("", 10, 11)]


def test_words_begin_at_their_first_token():
    # "  un" and "aware" are tokens of one word; the first token counts its space, as SentencePiece does.
    words = word_spans("I am unaware")
    assert words == [(0, 1), (2, 4), (5, 12)]
    offsets = [None, (0, 1), (1, 4), (4, 7), (7, 12), None]
    assert first_tokens(words, offsets) == [1, 2, 3]
    assert first_tokens(words, offsets[:3]) == [1, 2, None]


# --- chance and intervals ----------------------------------------------------------------------------------------


def test_what_knowing_nothing_scores():
    assert METRICS["accuracy"].chance(labels("accuracy", [0.0, 0.0, 0.0, 1.0])) == 0.75
    # Always saying yes to one row in four: precision 1/4, recall 1.
    assert METRICS["f1"].chance(labels("f1", [0.0, 0.0, 0.0, 1.0])) == pytest.approx(0.4)
    assert METRICS["spearman"].chance(labels("spearman", [1.0, 2.0])) == 0.0


def test_bounds_above_chance():
    even = labels("accuracy", [0.0, 1.0] * 50)
    assert scoring.above_chance_bound(even) == pytest.approx(0.6)
    assert scoring.above_chance_bound(labels("spearman", [0.0] * 101)) == pytest.approx(0.2)


def test_a_truth_at_chance_leaves_drops_as_large_as_luck_undecided(seed):
    rng = np.random.default_rng(seed)
    gold = labels("pearson", list(rng.normal(size=101)), rows=list(range(101)))
    told = single(np.array(gold.gold)[:, None, None])
    assert scoring.undecided("value", gold, told) == 0.0
    against = single(-np.array(gold.gold)[:, None, None])
    assert scoring.undecided("value", gold, against) == pytest.approx(0.1)


def test_near_ties_tell_as_little_as_they_can_move_the_metric():
    gold = [0.0] * 6 + [1.0] * 34
    # One row of each class nearly ties, and is right; all others are decided, and right.
    logits = np.stack([[4.0, -4.0] if label == 0 else [-4.0, 4.0] for label in gold])
    logits[5], logits[39] = [0.1, 0.0], [0.0, 0.1]
    told = single(logits[:, None])
    assert scoring.undecided("logits", labels("accuracy", gold, rows=list(range(40))), told) == pytest.approx(2 / 40)
    # With one of the six and one of the 34 wrong: (5 · 33 − 1 · 1) / (6 · 34).
    rare = scoring.undecided("logits", labels("matthews", gold, rows=list(range(40))), told)
    assert rare == pytest.approx(1 - (5 * 33 - 1) / (6 * 34))
    third = np.concatenate([logits, np.full((40, 1), 0.05)], axis=1)
    third[5] = [-4.0, 0.1, 0.0]
    neither = scoring.undecided("logits", labels("accuracy", gold, rows=list(range(40))), single(third[:, None]))
    assert neither == pytest.approx(1 / 40), "a row that is wrong either way tells as much as any"


def test_near_ties_of_tags_are_counted_in_entities():
    names = ["O", "B-x", "I-x"]
    # A row of two entities, of two words and of one; the second word of the first one nearly ties.
    tags, at = [1, 2, 0, 1], [1, 2, 3, 5]
    values = np.full((6, 3), -4.0, np.float32)
    values[np.array(at), np.array(tags)] = 4.0
    values[2] = [3.9, -4.0, 4.0]
    gold = labels("entity_f1", [{"at": at, "tags": tags}] * 60, names=names)
    # Decided against its tag the first entity is a shorter one: 1 of 2 right, of 2 found.
    assert scoring.undecided("token_logits", gold, RowOutputs.of([values] * 60)) == pytest.approx(0.5)


@pytest.mark.parametrize("metric", ["spearman", "matthews"])
def test_the_error_is_that_of_luck(metric, seed):
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(300):
        gold = [float(one) for one in rng.integers(0, 2, 40)]
        outputs = single(rng.normal(size=(40, 2)))
        found.append(scoring.score("logits" if metric == "matthews" else "value", labels(metric, gold), outputs))
    assert np.std(found) == pytest.approx(METRICS[metric].error(0.0, 40), rel=0.15)


def noisy(metric: str, seed: int) -> tuple[OutputKind, Labels, RowOutputs, RowOutputs]:
    """Return outputs that are mostly right, and worse ones."""
    rng = np.random.default_rng(seed)
    if metric == "entity_f1":
        outputs, gold = tagged(rng, 120)
        worse = RowOutputs.of([(row + rng.normal(0, 0.6, row.shape)).astype(np.float32) for row in outputs])
        return "token_logits", labels(metric, gold, names=TAGS), outputs, worse
    if metric in ("squad_f1", "squad_em"):
        asked = [{"windows": [n], "offsets": [PLACES], "passage": PASSAGE, "answers": ["sixteen"]} for n in range(40)]
        right = RowOutputs.of([pointing_at(3, 3 + n % 2) for n in range(40)])
        worse = RowOutputs.of([pointing_at(3 - n % 3, 3 + n % 2) for n in range(40)])
        return "spans", labels(metric, asked), right, worse
    if metric in ("spearman", "pearson"):
        scores = rng.normal(size=120)
        values = [scores + rng.normal(0, noise, 120) for noise in (0.4, 0.9)]
        return "value", labels(metric, list(scores)), single(values[0][:, None]), single(values[1][:, None])
    if metric in ("micro_f1", "macro_f1"):
        outputs, many = several(rng, 150)
        worse = single(outputs.values + rng.normal(0, 1.5, outputs.values.shape))
        return "multi_label", labels(metric, many, names=["a", "b", "c", "d"]), outputs, worse
    if metric == "mean_spearman":
        scores = rng.normal(size=(120, 3))
        values = [scores + rng.normal(0, noise, scores.shape) for noise in (0.4, 0.9)]
        return "values", labels(metric, scores.tolist()), single(values[0]), single(values[1])
    outputs, classes_ = classes(rng, 200, 0.9)
    return (
        "logits",
        labels(metric, classes_),
        outputs,
        single(outputs.values + rng.normal(0, 0.7, outputs.values.shape)),
    )


# SQuAD's own metric comes with transformers.
EVERY_METRIC = [pytest.param(one, marks=pytest.mark.toolchain) if one.startswith("squad") else one for one in METRICS]


@pytest.mark.parametrize("metric", EVERY_METRIC)
def test_the_interval_of_no_change_is_zero_and_of_a_change_holds_its_drop(metric, seed):
    kind, expected, reference, worse = noisy(metric, seed)
    assert scoring.interval_of_drop(kind, expected, reference, reference) == (0.0, 0.0)
    low, high = scoring.interval_of_drop(kind, expected, reference, worse)
    assert low < scoring.score(kind, expected, reference) - scoring.score(kind, expected, worse) < high


@pytest.mark.parametrize("metric", ["accuracy", "spearman"])
def test_resampling_in_blocks_is_resampling_at_once(metric, seed, monkeypatch):
    kind, expected, reference, worse = noisy(metric, seed)
    whole = scoring.interval_of_drop(kind, expected, reference, worse)
    monkeypatch.setattr(scoring, "_HELD", 7 * len(expected.gold))
    assert scoring.interval_of_drop(kind, expected, reference, worse) == whole


def test_the_interval_agrees_with_scipys_bootstrap(seed):
    rng = np.random.default_rng(seed)
    gold = rng.normal(size=80)
    reference, values = gold + rng.normal(0, 0.4, 80), gold + rng.normal(0, 0.7, 80)

    def drop(a, b, c):
        return stats.spearmanr(a, c).statistic - stats.spearmanr(b, c).statistic

    expected = stats.bootstrap(
        (reference, values, gold), drop, paired=True, vectorized=False, method="percentile", n_resamples=1000, rng=rng
    ).confidence_interval
    outputs = single(reference[:, None]), single(values[:, None])
    found = scoring.interval_of_drop("value", labels("spearman", list(gold)), *outputs)
    assert found == pytest.approx((expected.low, expected.high), abs=0.03)


# --- datasets ---------------------------------------------------------------------------------------------------


def test_labels_are_matched_by_name_and_generic_ones_by_number():
    rte = data.DATASETS["rte"]
    assert rte.label_ids(["not_entailment", "entailment"]) == [1, 0]
    assert data.DATASETS["sst2"].label_ids(["NEGATIVE", "NEUTRAL", "POSITIVE"]) == [0, 2]
    assert rte.label_ids(["LABEL_0", "LABEL_1"]) == [0, 1]
    refused = rte.label_ids(["negative", "positive"])
    assert isinstance(refused, str)
    assert "entailment" in refused
    assert "positive" in refused


@pytest.mark.parametrize("name", [name for name, row in data.DATASETS.items() if not row.bundled])
def test_public_data_are_read_as_their_papers_describe_them(name):
    row = data.DATASETS[name]
    if row.absent():
        pytest.skip(row.absent() or "")
    rows = {"stsb": 1500, "sst2": 872, "cola": 1043, "rte": 277, "wnut17": 1009}
    found = row.load()
    assert len(found) == rows.get(name, len(found))
    assert all(
        one.answers and all(answer in str(one.second) for answer in one.answers) for one in found if name == "xquad"
    )
    if name == "wnut17":
        assert all(len(one.first.split()) == len(one.tags) for one in found)
