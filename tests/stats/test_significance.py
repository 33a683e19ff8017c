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


def test_identity_form_is_a_chi_square(x64):
    n = 5
    draws = significance.quadratic_form_draws(
        jax.random.normal(jax.random.key(0), (4000, n)), jnp.eye(n)
    )
    assert scipy.stats.kstest(np.asarray(draws) + n, scipy.stats.chi2(n).cdf).pvalue > 0.01


def test_form_has_the_law_of_its_eigenvalues(x64):
    rng = np.random.default_rng(1)
    root = rng.normal(size=(6, 6)) * np.geomspace(1, 0.01, 6)
    form = root @ root.T
    ours = significance.quadratic_form_draws(
        jnp.asarray(rng.normal(size=(4000, 6))), jnp.asarray(form)
    )
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
    ours = significance.quadratic_form_draws(jnp.asarray(g), jnp.asarray(form))
    np.testing.assert_allclose(ours, brute, rtol=1e-12)


@pytest.mark.parametrize(("statistic", "p"), [(0.0, 1.0), (2.0, 0.6), (3.5, 0.2)])
def test_p_value_counts_ties(statistic, p):
    null = jnp.array([1.0, 2.0, 3.0, 1.5])
    np.testing.assert_allclose(significance.monte_carlo_p_value(statistic, null), p)


@pytest.mark.parametrize(("statistic", "draw"), [(np.nan, 1.0), (1.0, np.nan)])
def test_nan_is_no_evidence(statistic, draw):
    null = jnp.array([draw, 0.0])
    assert np.isnan(significance.monte_carlo_p_value(statistic, null))
    assert np.isnan(significance.upper_quantile(null, 0.5)) == np.isnan(draw)


@given(
    st.lists(st.integers(-20, 20), min_size=19, max_size=19),
    st.integers(-21, 21),
    st.integers(1, 99),
)
def test_exceeding_the_quantile_is_a_small_p_value(null, statistic, percent):
    null, statistic, alpha = jnp.asarray(null, "float32"), float(statistic), percent / 100
    p = (1 + sum(value >= statistic for value in null.tolist())) / 20
    assert bool(statistic > QUANTILE(null, alpha)) == (p <= alpha + 1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_quantile_rank_is_not_lost_to_rounding(dtype, x64):
    null = jnp.arange(1, 100, dtype=dtype)
    ours = [significance.upper_quantile(null, percent / 100) for percent in range(1, 100)]
    np.testing.assert_array_equal(ours, np.arange(99, 0, -1))


def test_quantile_is_infinite_when_no_p_value_can_reach_alpha():
    assert significance.upper_quantile(jnp.arange(9.0), 0.05) == jnp.inf


def test_max_over_family_by_hand():
    statistics, scales = np.array([2.0, 9.0, 3.0, 50.0]), np.array([1.0, 2.0, 2.0, -1.0])
    nulls = np.random.default_rng(3).normal(size=(4, 6))
    keep = np.array([True, False, True, True])
    top = significance.max_over_family(
        jnp.asarray(statistics), jnp.asarray(nulls), jnp.asarray(scales), jnp.asarray(keep)
    )
    np.testing.assert_allclose(top.statistic, 2.0)
    np.testing.assert_allclose(top.null, np.maximum(nulls[0], nulls[2] / 2), rtol=1e-6)


def test_max_over_an_empty_family_is_nan():
    top = significance.max_over_family(
        jnp.ones(2), jnp.ones((2, 5)), jnp.ones(2), jnp.zeros(2, bool)
    )
    assert np.isnan(significance.monte_carlo_p_value(top.statistic, top.null))


def test_left_out_members_may_be_nan():
    top = significance.max_over_family(
        jnp.array([1.0, jnp.nan]),
        jnp.stack([jnp.zeros(4), jnp.full(4, jnp.nan)]),
        jnp.array([1.0, jnp.nan]),
        jnp.array([True, False]),
    )
    np.testing.assert_allclose(significance.monte_carlo_p_value(*top), 0.2)


def test_permutation_test_against_enumeration(x64):
    y, labels = np.array([0.3, 1.7, 2.2, -0.4, 1.1, 2.9]), np.array([0, 0, 1, 0, 1, 1])
    exact = np.mean([y[list(c)].sum() >= y @ labels for c in itertools.combinations(range(6), 3)])
    count = 8000
    ours = significance.permutation_p_value(
        jax.random.key(4),
        lambda a: jnp.asarray(y) @ a,
        jnp.asarray(labels),
        num_permutations=count,
        batch_size=500,
    )
    assert 0 < exact < 1
    assert abs(ours - exact) < 4 * np.sqrt(exact * (1 - exact) / count)


def test_batches_do_not_change_the_p_value():
    y, labels = jnp.linspace(-1, 1, 10) ** 3, jnp.arange(10) % 3 == 0
    p_values = [
        significance.permutation_p_value(
            jax.random.key(5), lambda a: y @ a, labels, num_permutations=99, batch_size=size
        )
        for size in (7, 500)
    ]
    assert p_values[0] == p_values[1]
    assert 0.1 < p_values[0] < 0.9


def test_resampling_by_a_propensity_keeps_the_size(x64):
    # labels and outcomes both depend on x: the uniform permutation test rejects, this one not
    data_key, label_key, test_key = jax.random.split(jax.random.key(6), 3)
    x = jax.random.normal(data_key, (300,))
    e = jax.nn.sigmoid(2 * x)
    labels = jax.random.bernoulli(label_key, e).astype(float)
    draw = lambda key, _: jax.random.bernoulli(key, e).astype(labels.dtype)
    test = lambda **how: significance.permutation_p_value(
        test_key, lambda a: x @ a, labels, num_permutations=200, batch_size=200, **how
    )
    assert test() == 1 / 201
    assert test(permute=draw) > 0.05


def test_permuting_within_strata_is_uniform_on_each(x64):
    strata, labels = jnp.array([1, 0, 1, 0, 1]), jnp.array([10, 0, 11, 1, 12])
    draws = jax.vmap(lambda key: significance.permute_within_strata(key, labels, strata))(
        jax.random.split(jax.random.key(7), 2400)
    )
    seen, counts = np.unique(np.asarray(draws), axis=0, return_counts=True)
    assert {tuple(row) for row in seen} == {
        (a, s, b, t, c)
        for a, b, c in itertools.permutations([10, 11, 12])
        for s, t in itertools.permutations([0, 1])
    }
    assert scipy.stats.chisquare(counts).pvalue > 0.01


def test_quantile_strata_are_balanced_and_ordered():
    scores = np.random.default_rng(8).normal(size=23)
    strata = np.asarray(significance.quantile_strata(jnp.asarray(scores), num_strata=4))
    assert np.ptp(np.bincount(strata)) <= 1
    assert (np.diff(strata[np.argsort(scores)]) >= 0).all()


@pytest.mark.parametrize("n", [1, 2, 17])
def test_discoveries_against_scipy(n, x64):
    p_values = np.random.default_rng(n).beta(0.5, 2, size=n)
    found = significance.benjamini_hochberg(jnp.asarray(p_values), level=0.2)
    np.testing.assert_allclose(found.adjusted, scipy.stats.false_discovery_control(p_values))
    np.testing.assert_array_equal(found.reject, np.asarray(found.adjusted) <= 0.2)


@pytest.mark.oracle
def test_discoveries_against_statsmodels(x64):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        multitest = pytest.importorskip("statsmodels.stats.multitest")
    p_values = np.random.default_rng(9).beta(0.3, 2, size=40)
    reject, adjusted, _, _ = multitest.multipletests(p_values, 0.1, method="fdr_bh")
    found = significance.benjamini_hochberg(jnp.asarray(p_values), level=0.1)
    np.testing.assert_array_equal(found.reject, reject)
    np.testing.assert_allclose(found.adjusted, adjusted, rtol=1e-12)


def test_a_missing_p_value_is_never_a_discovery():
    found = significance.benjamini_hochberg(jnp.array([0.001, jnp.nan]), level=0.05)
    np.testing.assert_allclose(found.adjusted, [0.002, np.nan], rtol=1e-6)
    np.testing.assert_array_equal(found.reject, [True, False])
