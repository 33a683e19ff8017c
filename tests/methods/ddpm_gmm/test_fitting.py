"""Spherical mixtures by EM, against the same in NumPy and scikit-learn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from sklearn.mixture import GaussianMixture

from jaxicml.methods import ddpm_gmm as lab
from jaxicml.methods.ddpm_gmm import fitting

N, K, D, ROUNDS = 101, 3, 2, 400


@functools.cache
def data():
    rng = np.random.default_rng(0)
    centers = np.array([[-2.0, 0.0], [0.5, 1.5], [2.5, -1.0]])
    return centers[rng.integers(3, size=N)] + rng.normal(size=(N, D)) * rng.uniform(0.3, 1, (N, 1))


def first_means(key, x):
    """The data points from which a fit starts."""
    return x[np.asarray(fitting._distinct_rows(key, jnp.asarray(x - x.mean(0)), K))]


def fit(x, *, shared, n_iter=ROUNDS):
    with jax.enable_x64(True):
        return lab.fit_spherical_gmm(
            jax.random.key(1), jnp.asarray(x), K, n_iter=n_iter, shared_var=shared
        )


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """101 points in chunks of 40: the last one is not full."""
    monkeypatch.setattr(fitting, "_CHUNK", 40)


def numpy_em(x, means, rounds):
    """EM with one σ², as the equations stand."""
    n, d = x.shape
    weights, sigma2, trace = np.full(K, 1 / K), ((x - x.mean(0)) ** 2).mean(), []
    for _ in range(rounds):
        squares = ((x[:, None] - means) ** 2).sum(-1)
        logs = np.log(weights) - squares / (2 * sigma2) - d / 2 * np.log(2 * np.pi * sigma2)
        lse = scipy.special.logsumexp(logs, axis=1)
        trace.append(lse.mean())
        r = np.exp(logs - lse[:, None])
        weights, means = r.mean(0), r.T @ x / r.sum(0)[:, None]
        sigma2 = (r * ((x[:, None] - means) ** 2).sum(-1)).sum() / (n * d)
    return weights, means, sigma2, np.array(trace)


def test_one_variance_equals_numpy():
    g, trace = fit(data(), shared=True)
    with jax.enable_x64(True):
        start = first_means(jax.random.key(1), data())
    weights, means, sigma2, want = numpy_em(data(), start, ROUNDS)
    np.testing.assert_allclose(trace, want, rtol=1e-9)
    np.testing.assert_allclose(np.exp(g.log_weights), weights, rtol=1e-7)
    np.testing.assert_allclose(np.asarray(g.center + g.offsets), means, atol=1e-7)
    np.testing.assert_allclose(g.variances, sigma2, rtol=1e-8)
    assert np.diff(trace).min() > -1e-12


def test_own_variances_equal_sklearn():
    """Both climb to the same summit from the same means."""
    g, trace = fit(data(), shared=False)
    assert np.diff(trace).min() > -1e-12
    with jax.enable_x64(True):
        start = first_means(jax.random.key(1), data())
    theirs = GaussianMixture(
        K, covariance_type="spherical", means_init=start, weights_init=np.full(K, 1 / K),
        precisions_init=np.full(K, 1 / data().var(0).mean()), tol=1e-12, max_iter=5000,
        reg_covar=0.0,
    ).fit(data())  # fmt: skip
    np.testing.assert_allclose(trace[-1], theirs.score(data()), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(g.center + g.offsets), theirs.means_, atol=2e-3)
    np.testing.assert_allclose(g.variances, theirs.covariances_, rtol=5e-3)
    np.testing.assert_allclose(np.exp(g.log_weights), theirs.weights_, rtol=5e-3)


def duplicates(value=0.0):
    """Two distinct points, or one, many times over."""
    x = np.full((N, D), 3.0)
    x[: N // 2] += value
    return x


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("value", [1.0, 0.0])
def test_equal_points(shared, value):
    """More components than distinct points, or no spread at all: everything stays finite."""
    g, trace = fit(duplicates(value), shared=shared)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((g, trace)))
    means, weights = np.asarray(g.center + g.offsets), np.exp(g.log_weights)
    np.testing.assert_allclose(weights @ means, duplicates(value).mean(0), rtol=1e-5)
    assert np.all(np.asarray(g.variances) > 0)
    assert np.diff(trace).min() > -1e-6


def test_the_first_means_differ():
    """Of 300 rows but 3 are distinct."""
    x = jnp.repeat(jnp.asarray(np.random.default_rng(0).normal(size=(3, 50)), "float32"), 100, 0)
    rows = jax.jit(jax.vmap(lambda key: fitting._distinct_rows(key, x, 3)))
    chosen = np.asarray(rows(jax.random.split(jax.random.key(0), 50)))
    np.testing.assert_array_equal(np.sort(chosen // 100, 1), np.tile(np.arange(3), (50, 1)))


def test_an_empty_component_survives(x64):
    """Its mean stays, its weight is one point in a million."""
    g = (jnp.log(jnp.full(2, 0.5)), jnp.array([[0.0], [1e3]]), jnp.ones(2))
    rows, known = jnp.asarray([[[-1.0], [1.0], [2.0], [0.0]]]), jnp.array([[1.0, 1.0, 1.0, 0.0]])
    once = lambda g: fitting._maximisation(g, fitting._expectation(g, rows, known), 3, 1, 1.0)
    log_weights, means, variances = jax.jit(once)(g)
    np.testing.assert_allclose(means[:, 0], [2 / 3, 1e3], rtol=1e-12)
    np.testing.assert_allclose(np.exp(log_weights), [1, 1e-6], rtol=2e-6)
    np.testing.assert_allclose(variances, [np.var([-1.0, 1.0, 2.0]), 1.0], rtol=1e-12)


def test_kernel_mixture_is_the_density_estimate(x64):
    x = data()[:7]
    g = lab.kernel_mixture(jnp.asarray(x), 0.3)
    np.testing.assert_allclose(g.means, x, atol=1e-12)
    np.testing.assert_allclose(np.exp(g.log_weights), 1 / 7, rtol=1e-12)
    assert float(g.variances) == 0.3


def test_bad_input(as_user):
    key = jax.random.key(0)
    with pytest.raises(ValueError, match=r"num_components: expected .* at most 4, got 5"):
        lab.fit_spherical_gmm(key, jnp.ones((4, 2)), 5)
    with pytest.raises(ValueError, match=r"num_components: expected .* at least 1 .*got 0"):
        lab.fit_spherical_gmm(key, jnp.ones((4, 2)), 0)
    with pytest.raises(ValueError, match="n_iter: expected a whole number of at least 1, got 0"):
        lab.fit_spherical_gmm(key, jnp.ones((4, 2)), 2, n_iter=0)
    with pytest.raises(ValueError, match="x: expected finite values, got 1 NaN"):
        lab.fit_spherical_gmm(key, jnp.ones((4, 2)).at[1, 1].set(jnp.nan), 2)
    with pytest.raises(ValueError, match="x: expected at least 1 rows, got 0"):
        lab.kernel_mixture(jnp.ones((0, 2)), 0.1)
