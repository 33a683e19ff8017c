import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxicml.stats import intervals

MEAN = jax.jit(intervals.mean_interval)
BOOTSTRAP = jax.jit(intervals.bootstrap_interval, static_argnames=("num_samples", "statistic"))
T_QUANTILES = jax.jit(jax.vmap(intervals.student_t_quantile, (0, None)))


@pytest.mark.parametrize(
    ("successes", "trials", "expected"),
    [
        (81, 263, (0.2553, 0.3662)),
        (15, 148, (0.0624, 0.1605)),
        (0, 20, (0, 0.1611)),
        (1, 29, (0.0061, 0.1718)),
    ],
)
def test_wilson_textbook_values(successes, trials, expected, x64):
    # Newcombe (1998), table I, method 3
    np.testing.assert_allclose(
        intervals.wilson_interval(successes, trials), expected, atol=5.1e-5, rtol=0
    )


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_wilson_against_scipy(level, x64):
    cases = [(0, 1), (1, 1), (3, 200), (100, 200), (19_999, 20_000)]
    for successes, trials in cases:
        theirs = scipy.stats.binomtest(successes, trials).proportion_ci(level, method="wilson")
        ours = intervals.wilson_interval(successes, trials, level=level)
        np.testing.assert_allclose(ours, (theirs.low, theirs.high), rtol=1e-11, atol=1e-13)


@pytest.mark.oracle
def test_wilson_against_statsmodels(x64):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        proportion = pytest.importorskip("statsmodels.stats.proportion")
    successes, trials = np.array([0, 4, 50]), np.array([9, 30, 50])
    theirs = proportion.proportion_confint(successes, trials, alpha=0.1, method="wilson")
    ours = intervals.wilson_interval(jnp.asarray(successes), jnp.asarray(trials), level=0.9)
    np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-13)


def test_wilson_stays_inside_the_unit_interval_in_float32():
    low, high = intervals.wilson_interval(jnp.array([0, 7, 100_000]), jnp.array([7, 7, 100_000]))
    assert low[0] == 0
    assert (high[1:] == 1).all()
    assert (low >= 0).all()


@pytest.mark.parametrize("dof", [1, 2, 7.5, 400, 1e6])
def test_t_quantile_against_scipy(dof, x64):
    levels = np.array([1e-3, 0.5, 0.95, 0.9999])
    ours = T_QUANTILES(levels, float(dof))
    np.testing.assert_allclose(ours, scipy.stats.t.ppf((1 + levels) / 2, dof), rtol=1e-9)


def test_t_quantile_in_float32():
    ours = [intervals.student_t_quantile(0.95, dof) for dof in (1, 4, 30)]
    np.testing.assert_allclose(ours, scipy.stats.t.ppf(0.975, [1, 4, 30]), rtol=1e-4)


def test_mean_interval_against_scipy(x64):
    values = np.random.default_rng(0).normal(size=(12, 3))
    theirs = scipy.stats.ttest_1samp(values, 0, axis=0).confidence_interval(0.9)
    ours = MEAN(values, level=0.9)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_bootstrap_enumerates_a_sample_of_two(x64):
    # the mean of two resamples of {0, 1} is 0, 1/2, 1 with probability 1/4, 1/2, 1/4
    key, values = jax.random.key(0), np.array([0.0, 1.0])
    for level, expected in ((0.4, (0.5, 0.5)), (0.6, (0.0, 1.0))):
        np.testing.assert_allclose(BOOTSTRAP(key, values, level=level), expected, atol=1e-15)


def test_bootstrap_against_scipy(x64):
    values = np.random.default_rng(1).exponential(size=60)
    theirs = scipy.stats.bootstrap(
        (values,), np.median, n_resamples=20_000, method="percentile", rng=2
    ).confidence_interval
    ours = BOOTSTRAP(jax.random.key(3), values, num_samples=20_000, statistic=jnp.median)
    # both ends are order statistics of 60 values: equal unless the resamples disagree by much
    np.testing.assert_allclose(ours, theirs, atol=0.02)


def test_bootstrap_keeps_rows_together(x64):
    values = np.random.default_rng(4).normal(size=(30, 1))
    both = np.hstack([values, -values])
    low, high = map(np.asarray, BOOTSTRAP(jax.random.key(5), both, num_samples=500))
    np.testing.assert_allclose((low[0], high[0]), (-high[1], -low[1]), rtol=1e-12)


def test_slope_interval_against_linregress(x64):
    rng = np.random.default_rng(6)
    x, y = rng.normal(size=8), rng.normal(size=(5, 8))
    slopes = [scipy.stats.linregress(x, curve).slope for curve in y]
    theirs = scipy.stats.ttest_1samp(slopes, 0).confidence_interval()
    ours = jax.jit(intervals.slope_interval)(x, y)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_nan_values_give_nan_intervals():
    values = np.array([1.0, np.nan, 2.0])
    assert np.isnan(MEAN(values)).all()
    assert np.isnan(BOOTSTRAP(jax.random.key(0), values, num_samples=100)).all()
