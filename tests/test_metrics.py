"""Each measure against values worked out by hand, or by scipy; NaN and empty input never look like success."""

import math

import numpy as np
import pytest
from scipy import stats

from pipeline import metrics

NAN = math.nan


def test_only_finite_numbers_are_finite():
    assert metrics.all_finite(np.array([[0.0, -1e30]]))
    assert not metrics.all_finite(np.array([[0.0, NAN]]))
    assert not metrics.all_finite(np.array([[0.0, np.inf]]))
    assert metrics.all_finite(np.zeros((0, 3)))


def test_max_abs_error_is_the_largest_difference_of_any_number():
    assert metrics.max_abs_error(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 2.5], [3.0, 3.75]])) == 0.5


def test_max_abs_error_is_taken_in_double_precision():
    large = np.array([16777216.0, 0.25], np.float32)
    assert metrics.max_abs_error(large, large.astype(np.float64) + 0.5) == 0.5


def test_cosine_of_known_angles():
    truth = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [3.0, 4.0]])
    values = np.array([[7.0, 0.0], [0.0, 2.0], [-1.0, 0.0], [4.0, 3.0]])
    np.testing.assert_allclose(metrics.cosine(truth, values), [1.0, 0.0, -1.0, 24 / 25], atol=1e-15)


def test_cosine_of_a_zero_row_is_nan_not_one():
    assert np.isnan(metrics.cosine(np.zeros((1, 4)), np.ones((1, 4)))).all()
    assert np.isnan(metrics.cosine(np.zeros((1, 4)), np.zeros((1, 4)))).all()


def test_sqnr_in_decibels():
    # Signal 100, noise 1: 10 log10(100) = 20 dB.
    assert metrics.sqnr_db(np.array([10.0, 0.0]), np.array([9.0, 0.0])) == pytest.approx(20.0)
    assert metrics.sqnr_db(np.array([1.0, 1.0]), np.array([1.0, 1.0])) == math.inf
    assert metrics.sqnr_db(np.zeros(3), np.ones(3)) == -math.inf


def test_sqnr_of_scaled_noise_follows_its_power(seed):
    truth = np.random.default_rng(seed).normal(size=10_000)
    noise = np.random.default_rng(seed + 1).normal(size=10_000)
    assert metrics.sqnr_db(truth, truth + 0.01 * noise) == pytest.approx(40, abs=0.3)


def test_agreement_counts_equal_winners():
    truth = np.array([[0.1, 0.9], [0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
    values = np.array([[5.0, 6.0], [1.0, 2.0], [-3.0, -2.0], [0.7, 0.3]])
    assert metrics.agreement(truth, values) == 0.75


def test_agreement_leaves_near_ties_out_unless_nothing_else_is_there():
    truth = np.array([[1.0, -1.0], [0.05, -0.05], [-1.0, 1.0]])
    flipped = truth * np.array([[1.0], [-1.0], [1.0]])
    assert metrics.agreement(truth, flipped) == 1.0
    assert metrics.agreement(truth, -truth) == 0.0
    ties = np.array([[5.0, 5.1], [5.1, 5.0]])
    assert metrics.agreement(ties, ties[::-1]) == 0.0


def test_accuracy_is_a_fraction_not_percent():
    logits = np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0], [0.0, 3.0, 2.0]])
    assert metrics.accuracy(logits, np.array([0.0, 2.0, 0.0])) == pytest.approx(2 / 3)


def test_spearman_equals_scipy_and_ignores_monotone_maps(seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 6, 50).astype(float)
    values = labels + rng.normal(size=50)
    found = metrics.spearman(values, labels)
    assert found == pytest.approx(stats.spearmanr(values, labels).statistic)
    assert metrics.spearman(np.exp(values), labels) == pytest.approx(found)
    assert metrics.spearman(-values, labels) == pytest.approx(-found)


def test_spearman_of_ties_takes_mean_ranks():
    # Ranks (1, 2.5, 2.5, 4) and (1, 2, 3, 4): covariance 4.5 over sqrt(4.5 * 5).
    assert metrics.spearman(np.array([1.0, 2.0, 2.0, 3.0]), np.arange(4.0)) == pytest.approx(4.5 / math.sqrt(22.5))


def test_a_constant_side_ranks_nothing():
    assert metrics.spearman(np.full(5, 0.3), np.arange(5.0)) == 0.0
    assert metrics.spearman(np.arange(5.0), np.full(5, 0.3)) == 0.0


def test_nan_is_never_a_good_score():
    truth, broken = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, NAN], [3.0, 4.0]])
    assert math.isnan(metrics.max_abs_error(truth, broken))
    assert math.isnan(metrics.max_abs_error(broken, truth))
    assert math.isnan(metrics.sqnr_db(truth, broken))
    assert np.isnan(metrics.cosine(truth, broken)).tolist() == [True, False]
    assert math.isnan(metrics.spearman(np.array([NAN, 1.0, 2.0]), np.arange(3.0)))


def test_empty_arrays_have_no_error():
    assert metrics.max_abs_error(np.zeros((0, 4)), np.zeros((0, 4))) == 0.0
    assert metrics.cosine(np.zeros((0, 4)), np.zeros((0, 4))).shape == (0,)


def test_chance_is_the_commonest_class():
    assert metrics.chance_level("accuracy", np.array([0.0, 0.0, 0.0, 1.0])) == 0.75
    assert metrics.chance_level("spearman", np.arange(4.0)) == 0.0


def test_standard_errors_at_chance():
    assert metrics.standard_error("spearman", 0.0, 101) == pytest.approx(0.1)
    assert metrics.standard_error("accuracy", 0.5, 100) == pytest.approx(0.05)
    assert metrics.standard_error("spearman", 0.0, 1) == 1.0
    assert metrics.standard_error("accuracy", 0.5, 0) == 0.5


def test_the_spearman_error_is_that_of_independent_rankings(seed):
    rng = np.random.default_rng(seed)
    found = [metrics.spearman(rng.normal(size=30), rng.normal(size=30)) for _ in range(400)]
    assert np.std(found) == pytest.approx(metrics.standard_error("spearman", 0.0, 30), rel=0.15)


def test_kl_divergence_is_scipys():
    rng = np.random.default_rng(5)
    truth, values = rng.normal(size=(6, 4)), rng.normal(size=(6, 4))
    soft = [np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in (truth, values)]
    assert metrics.kl_divergence(truth, values) == pytest.approx(stats.entropy(soft[0], soft[1], axis=1))


def test_kl_divergence_of_equal_and_shifted_logits_is_zero_and_large_ones_stay_finite():
    logits = np.array([[1.0, 2.0, 3.0], [900.0, -900.0, 0.0]])
    assert metrics.kl_divergence(logits, logits + 7) == pytest.approx([0.0, 0.0], abs=1e-12)
    assert np.isfinite(metrics.kl_divergence(logits, -logits)).all()


@pytest.mark.parametrize("metric", metrics.INTERVALS)
def test_the_interval_of_no_change_is_zero_and_of_a_change_holds_its_drop(metric):
    rng = np.random.default_rng(7)
    labels = rng.integers(0, 3, 200).astype(np.float64)
    if metric == "accuracy":
        truth = np.eye(3)[labels.astype(int)] + rng.normal(0, 0.5, (200, 3))
        values = truth + rng.normal(0, 0.3, (200, 3))
    else:
        truth = labels + rng.normal(0, 0.5, 200)
        values = truth + rng.normal(0, 0.3, 200)
    score = metrics.TASK_METRICS[metric]
    assert metrics.INTERVALS[metric](truth, truth, labels) == (0.0, 0.0)
    low, high = metrics.INTERVALS[metric](truth, values, labels)
    assert low < score(truth, labels) - score(values, labels) < high


def test_the_interval_agrees_with_scipys_bootstrap():
    rng = np.random.default_rng(9)
    labels = rng.normal(size=80)
    truth, values = labels + rng.normal(0, 0.4, 80), labels + rng.normal(0, 0.7, 80)

    def drop(a, b, c):
        return metrics.spearman(a, c) - metrics.spearman(b, c)

    wanted = stats.bootstrap(
        (truth, values, labels),
        drop,
        paired=True,
        vectorized=False,
        method="percentile",
        n_resamples=1000,
        rng=np.random.default_rng(1),
    ).confidence_interval
    found = metrics.INTERVALS["spearman"](truth, values, labels)
    assert found == pytest.approx((wanted.low, wanted.high), abs=0.02)
