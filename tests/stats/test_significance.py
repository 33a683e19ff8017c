import functools
import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from jaxicml.stats import significance

P_VALUE = jax.jit(significance.monte_carlo_p_value)
QUANTILE = jax.jit(significance.upper_quantile)
FORM = jax.jit(significance.quadratic_form_draws)
MAXIMUM = jax.jit(significance.max_over_family)
DISCOVERIES = jax.jit(significance.benjamini_hochberg)


def permutation_p_value(seed, statistic, labels, **options):
    """As one program."""
    test = functools.partial(significance.permutation_p_value, statistic=statistic, **options)
    return float(
        jax.jit(lambda key, labels: test(key, labels=labels))(jax.random.key(seed), labels)
    )


def test_identity_form_is_a_chi_square(x64):
    n = 5
    draws = FORM(np.random.default_rng(0).normal(size=(4000, n)), np.eye(n))
    assert scipy.stats.kstest(np.asarray(draws) + n, scipy.stats.chi2(n).cdf).pvalue > 0.01


def test_form_has_the_law_of_its_eigenvalues(x64):
    rng = np.random.default_rng(1)
    root = rng.normal(size=(6, 6)) * np.geomspace(1, 0.01, 6)
    form = root @ root.T
    ours = FORM(rng.normal(size=(4000, 6)), form)
    by_eigenvalues = (rng.normal(size=(4000, 6)) ** 2 - 1) @ np.linalg.eigvalsh(form)
    assert scipy.stats.ks_2samp(np.asarray(ours), by_eigenvalues).pvalue > 0.01


def test_form_equals_its_definition(x64):
    rng = np.random.default_rng(2)
    g, form = rng.normal(size=(3, 4)), rng.normal(size=(4, 4))
    brute = [
        sum(g[b, i] * form[i, j] * g[b, j] for i in range(4) for j in range(4))
        - sum(form[i, i] for i in range(4))
        for b in range(3)
    ]
    ours = FORM(g, form)
    np.testing.assert_allclose(ours, brute, rtol=1e-12)


@pytest.mark.parametrize(("statistic", "p"), [(0.0, 1.0), (2.0, 0.6), (3.5, 0.2)])
def test_p_value_counts_ties(statistic, p):
    np.testing.assert_allclose(P_VALUE(statistic, np.array([1.0, 2.0, 3.0, 1.5])), p)


@pytest.mark.parametrize(("statistic", "draw"), [(np.nan, 1.0), (1.0, np.nan)])
def test_nan_is_no_evidence(statistic, draw):
    null = np.array([draw, 0.0])
    assert np.isnan(P_VALUE(statistic, null))
    assert np.isnan(QUANTILE(null, 0.5)) == np.isnan(draw)


@given(
    st.lists(st.integers(-20, 20), min_size=19, max_size=19),
    st.integers(-21, 21),
    st.integers(1, 99),
)
def test_exceeding_the_quantile_is_a_small_p_value(null, statistic, percent):
    null, statistic, alpha = np.asarray(null, "float32"), float(statistic), percent / 100
    p = (1 + sum(value >= statistic for value in null.tolist())) / 20
    assert bool(statistic > QUANTILE(null, alpha)) == (p <= alpha + 1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_quantile_rank_is_not_lost_to_rounding(dtype, x64):
    null = np.arange(1, 100, dtype=dtype)
    ours = [QUANTILE(null, percent / 100) for percent in range(1, 100)]
    np.testing.assert_array_equal(ours, np.arange(99, 0, -1))


def test_quantile_is_infinite_when_no_p_value_can_reach_alpha():
    assert QUANTILE(np.arange(9.0), 0.05) == np.inf


def test_max_over_family_by_hand():
    statistics, scales = np.array([2.0, 9.0, 3.0, 50.0]), np.array([1.0, 2.0, 2.0, -1.0])
    nulls = np.random.default_rng(3).normal(size=(4, 6))
    keep = np.array([True, False, True, True])
    top = MAXIMUM(statistics, nulls, scales, keep)
    np.testing.assert_allclose(top.statistic, 2.0)
    np.testing.assert_allclose(top.null, np.maximum(nulls[0], nulls[2] / 2), rtol=1e-6)


def test_max_over_an_empty_family_is_nan():
    top = MAXIMUM(np.ones(2), np.ones((2, 4)), np.ones(2), np.zeros(2, bool))
    assert np.isnan(P_VALUE(*top))


def test_left_out_members_may_be_nan():
    some = np.array([1.0, np.nan])
    top = MAXIMUM(some, np.stack([np.zeros(4), np.full(4, np.nan)]), some, np.array([True, False]))
    np.testing.assert_allclose(P_VALUE(*top), 0.2)


def test_permutation_test_against_enumeration(x64):
    y, labels = np.array([0.3, 1.7, 2.2, -0.4, 1.1, 2.9]), np.array([0, 0, 1, 0, 1, 1])
    exact = np.mean([y[list(c)].sum() >= y @ labels for c in itertools.combinations(range(6), 3)])
    count = 8000
    options = {"num_permutations": count, "batch_size": 500}
    ours = permutation_p_value(4, lambda a: jnp.asarray(y) @ a, labels, **options)
    assert 0 < exact < 1
    assert abs(ours - exact) < 4 * np.sqrt(exact * (1 - exact) / count)


def test_batches_do_not_change_the_p_value():
    # no two relabellings have nearly equal sums
    y, labels = np.random.default_rng(5).normal(size=10), np.arange(10) % 3 == 0
    test = functools.partial(permutation_p_value, 5, lambda a: jnp.asarray(y) @ a, labels)
    p_values = [test(num_permutations=99, batch_size=size) for size in (7, 500)]
    assert p_values[0] == p_values[1]
    assert 0.1 < p_values[0] < 0.9


def test_resampling_by_a_propensity_keeps_the_size(x64):
    # labels and outcomes both depend on x: the uniform permutation test rejects, this one not
    rng = np.random.default_rng(6)
    x = rng.normal(size=300)
    e = 1 / (1 + np.exp(-2 * x))
    labels = (rng.random(300) < e).astype(float)
    draw = lambda key, labels: jax.random.bernoulli(key, e).astype(labels.dtype)
    options = {"num_permutations": 200, "batch_size": 200}
    test = lambda **how: permutation_p_value(
        6, lambda a: jnp.asarray(x) @ a, labels, **options, **how
    )
    assert test() == 1 / 201
    assert test(permute=draw) > 0.05


def test_permuting_within_strata_is_uniform_on_each(x64):
    strata, labels = np.array([1, 0, 1, 0, 1]), np.array([10, 0, 11, 1, 12])
    permute = jax.jit(jax.vmap(significance.permute_within_strata, (0, None, None)))
    draws = permute(jax.random.split(jax.random.key(7), 2400), labels, strata)
    seen, counts = np.unique(np.asarray(draws), axis=0, return_counts=True)
    assert {tuple(row) for row in seen} == {
        (a, s, b, t, c)
        for a, b, c in itertools.permutations([10, 11, 12])
        for s, t in itertools.permutations([0, 1])
    }
    assert scipy.stats.chisquare(counts).pvalue > 0.01


def test_quantile_strata_are_balanced_and_ordered():
    scores = np.random.default_rng(8).normal(size=23)
    cut = jax.jit(functools.partial(significance.quantile_strata, num_strata=4))
    strata = np.asarray(cut(scores))
    assert np.ptp(np.bincount(strata)) <= 1
    assert (np.diff(strata[np.argsort(scores)]) >= 0).all()


@pytest.mark.parametrize("n", [1, 2, 17])
def test_discoveries_against_scipy(n, x64):
    p_values = np.random.default_rng(n).beta(0.5, 2, size=n)
    found = DISCOVERIES(p_values, level=0.2)
    np.testing.assert_allclose(found.adjusted, scipy.stats.false_discovery_control(p_values))
    np.testing.assert_array_equal(found.reject, np.asarray(found.adjusted) <= 0.2)


@pytest.mark.oracle
def test_discoveries_against_statsmodels(x64):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        multitest = pytest.importorskip("statsmodels.stats.multitest")
    p_values = np.random.default_rng(9).beta(0.3, 2, size=40)
    reject, adjusted, _, _ = multitest.multipletests(p_values, 0.1, method="fdr_bh")
    found = DISCOVERIES(p_values, level=0.1)
    np.testing.assert_array_equal(found.reject, reject)
    np.testing.assert_allclose(found.adjusted, adjusted, rtol=1e-12)


def test_a_missing_p_value_is_never_a_discovery():
    found = DISCOVERIES(np.array([0.001, np.nan]), level=0.05)
    np.testing.assert_allclose(found.adjusted, [0.002, np.nan], rtol=1e-6)
    np.testing.assert_array_equal(found.reject, [True, False])
