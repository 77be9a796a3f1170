"""Each measure against values worked out by hand, or by scipy; NaN and empty input never look like success."""

import math

import numpy as np
import pytest
from scipy import stats

from pipeline.metrics import measures

NAN = math.nan


def test_only_finite_numbers_are_finite():
    assert measures.all_finite(np.array([[0.0, -1e30]]))
    assert not measures.all_finite(np.array([[0.0, NAN]]))
    assert not measures.all_finite(np.array([[0.0, np.inf]]))
    assert measures.all_finite(np.zeros((0, 3)))


def test_max_abs_error_is_the_largest_difference_of_any_number():
    assert measures.max_abs_error(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 2.5], [3.0, 3.75]])) == 0.5


def test_max_abs_error_is_taken_in_double_precision():
    large = np.array([16777216.0, 0.25], np.float32)
    assert measures.max_abs_error(large, large.astype(np.float64) + 0.5) == 0.5


def test_cosine_of_known_angles():
    reference = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [3.0, 4.0]])
    values = np.array([[7.0, 0.0], [0.0, 2.0], [-1.0, 0.0], [4.0, 3.0]])
    np.testing.assert_allclose(measures.cosine(reference, values), [1.0, 0.0, -1.0, 24 / 25], atol=1e-15)


def test_cosine_of_a_zero_row_is_nan_not_one():
    assert np.isnan(measures.cosine(np.zeros((1, 4)), np.ones((1, 4)))).all()
    assert np.isnan(measures.cosine(np.zeros((1, 4)), np.zeros((1, 4)))).all()


def test_sqnr_in_decibels():
    # Signal 100, noise 1: 10 log10(100) = 20 dB.
    assert measures.sqnr_db(np.array([10.0, 0.0]), np.array([9.0, 0.0])) == pytest.approx(20.0)
    assert measures.sqnr_db(np.array([1.0, 1.0]), np.array([1.0, 1.0])) == math.inf
    assert measures.sqnr_db(np.zeros(3), np.ones(3)) == -math.inf


def test_sqnr_of_scaled_noise_follows_its_power(seed):
    reference = np.random.default_rng(seed).normal(size=10_000)
    noise = np.random.default_rng(seed + 1).normal(size=10_000)
    assert measures.sqnr_db(reference, reference + 0.01 * noise) == pytest.approx(40, abs=0.3)


def test_agreement_counts_equal_winners():
    reference = np.array([[0.1, 0.9], [0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
    values = np.array([[5.0, 6.0], [1.0, 2.0], [-3.0, -2.0], [0.7, 0.3]])
    assert measures.agreement(reference, values) == 0.75


def test_agreement_leaves_near_ties_out_unless_nothing_else_is_there():
    reference = np.array([[1.0, -1.0], [0.05, -0.05], [-1.0, 1.0]])
    flipped = reference * np.array([[1.0], [-1.0], [1.0]])
    assert measures.agreement(reference, flipped) == 1.0
    assert measures.agreement(reference, -reference) == 0.0
    ties = np.array([[5.0, 5.1], [5.1, 5.0]])
    assert measures.agreement(ties, ties[::-1]) == 0.0


def test_nan_is_never_a_good_score():
    reference, broken = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, NAN], [3.0, 4.0]])
    assert math.isnan(measures.max_abs_error(reference, broken))
    assert math.isnan(measures.max_abs_error(broken, reference))
    assert math.isnan(measures.sqnr_db(reference, broken))
    assert np.isnan(measures.cosine(reference, broken)).tolist() == [True, False]


def test_empty_arrays_have_no_error():
    assert measures.max_abs_error(np.zeros((0, 4)), np.zeros((0, 4))) == 0.0
    assert measures.cosine(np.zeros((0, 4)), np.zeros((0, 4))).shape == (0,)


def test_kl_divergence_is_scipys():
    rng = np.random.default_rng(5)
    reference, values = rng.normal(size=(6, 4)), rng.normal(size=(6, 4))
    soft = [np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in (reference, values)]
    assert measures.kl_divergence(reference, values) == pytest.approx(stats.entropy(soft[0], soft[1], axis=1))


def test_kl_divergence_of_equal_and_shifted_logits_is_zero_and_large_ones_stay_finite():
    logits = np.array([[1.0, 2.0, 3.0], [900.0, -900.0, 0.0]])
    assert measures.kl_divergence(logits, logits + 7) == pytest.approx([0.0, 0.0], abs=1e-12)
    assert np.isfinite(measures.kl_divergence(logits, -logits)).all()


def test_labels_agree_where_the_set_is_the_same_and_those_near_their_thresholds_are_left_out():
    reference = np.array([[3.0, -3.0], [3.0, 0.1], [0.1, 0.1]])
    assert measures.label_agreement(reference, -reference, None) == 0.0
    flipped = reference * [[1, 1], [1, -1], [-1, -1]]
    assert measures.label_agreement(reference, flipped, None) == 1.0
    one_of_two = reference + np.array([[0, 12], [0, 0], [0, 0]])
    assert measures.label_agreement(reference, one_of_two, None) == 0.5
    # At a threshold of .953 the logit 3 itself is near, and -3 and .1 are not.
    assert measures.label_agreement(reference, one_of_two, [0.953, 0.953]) == pytest.approx(2 / 3)
    ties = np.array([[0.1, -0.1], [0.1, 0.1]]) + 0.0
    far = np.array([[5.0, -5.0]])
    assert measures.label_agreement(np.concatenate([ties, far]), np.concatenate([-ties, far]), None) == 1.0
    assert math.isclose(measures.label_agreement(ties * 0, np.array([[1.0, -1.0], [1.0, 1.0]]), None), 0.5)


def test_nan_is_no_label():
    assert measures.label_agreement(np.array([[3.0]]), np.array([[NAN]]), None) == 0.0


def test_the_divergence_of_labels_is_scipys_of_yes_and_no():
    rng = np.random.default_rng(6)
    reference, values = rng.normal(size=(5, 3)), rng.normal(size=(5, 3))
    chances = [np.stack([1 / (1 + np.exp(-x)), 1 / (1 + np.exp(x))]) for x in (reference, values)]
    assert measures.label_kl_divergence(reference, values) == pytest.approx(stats.entropy(*chances))
    np.testing.assert_allclose(measures.sigmoid(np.array([-800.0, 0.0, 800.0])), [0, 0.5, 1], atol=1e-15)


def test_spans_agree_where_start_and_end_are_the_same_and_near_ties_are_left_out():
    sure = np.array([[9.0, 0.0], [0.0, 0.0], [0.0, 9.0]])
    tie = np.array([[1.0, 0.0], [1.1, 9.0]])
    assert measures.span_agreement([sure, sure], [sure, sure[::-1]]) == 0.5
    assert measures.span_agreement([sure, tie], [sure, tie[::-1]]) == 1.0
    assert measures.span_agreement([tie], [tie[::-1]]) == 0.0


def test_softmax_sums_to_one_and_keeps_large_logits_finite():
    shares = measures.softmax(np.array([[900.0, 0.0], [1.0, 1.0]]))
    np.testing.assert_allclose(shares, [[1.0, 0.0], [0.5, 0.5]])
