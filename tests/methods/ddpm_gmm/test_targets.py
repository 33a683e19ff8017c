"""Targets have the geometry and the moments that their names promise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from scipy.spatial.distance import pdist

from jaxicml.diffusion import gmm
from jaxicml.methods import ddpm_gmm as lab
from tests.methods.ddpm_gmm import cases


def test_simplex_has_equal_distances_around_zero():
    means = np.asarray(lab.simplex(5, 50, 3.0).means)
    np.testing.assert_allclose(pdist(means), 3, rtol=1e-5)
    np.testing.assert_allclose(means.mean(0), 0, atol=1e-6)


def test_sphere_has_its_radius_and_no_direction():
    g = lab.random_means(jax.random.key(0), 2000, 3, 2.0)
    np.testing.assert_allclose(np.linalg.norm(g.means, axis=1), 2, rtol=1e-5)
    # uniform on the sphere of R³: every coordinate is uniform on [−2, 2]
    for coordinate in np.asarray(g.means).T:
        assert scipy.stats.kstest(coordinate, scipy.stats.uniform(-2, 4).cdf).pvalue > 1e-3


def test_lines():
    np.testing.assert_allclose(lab.collinear(5).means[:, 0], [-4, -2, 0, 2, 4], atol=1e-6)
    g = lab.three_modes(3)
    np.testing.assert_allclose(g.means, np.outer([-3, 0.5, 3], [1, 0, 0]), atol=1e-6)
    np.testing.assert_allclose(np.exp(g.log_weights), [0.3, 0.5, 0.2], rtol=1e-6)
    assert float(g.variances) == 0.25


def test_anisotropic_eigenvalues(x64):
    means = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)))
    g = gmm.gaussian_mixture(jnp.array(cases.WEIGHTS), means, jnp.array([0.5, 1.0, 2.0]))
    turned = jax.jit(lambda key: lab.anisotropic(key, g, 0.3))(jax.random.key(0))
    axes, values = np.asarray(turned.axes), np.asarray(turned.variances)
    covariances = np.einsum("kij,kj,klj->kil", axes, values, axes)
    for covariance, sigma2 in zip(covariances, [0.5, 1.0, 2.0], strict=True):
        want = sigma2 * np.array([0.7, 0.7, 1.3, 1.3])
        np.testing.assert_allclose(np.linalg.eigvalsh(covariance), want, rtol=1e-10)
    assert np.abs(covariances[0] - np.diag(np.diag(covariances[0]))).max() > 1e-3
    np.testing.assert_allclose(turned.means, means, rtol=1e-12)


def student():
    g = gmm.gaussian_mixture(
        jnp.array(cases.WEIGHTS),
        jnp.array([[-3.0, 0.0], [0.5, 1.0], [3.0, -1.0]]),
        jnp.array([0.25, 0.5, 1.0]),
    )
    return lab.student_mixture(g, 5.0)


def test_student_density_equals_scipy(x64):
    law, x = student(), np.random.default_rng(0).normal(size=(50, 2), scale=3)
    # variance σ² is scale² ν/(ν − 2)
    logs = [
        np.log(w) + scipy.stats.multivariate_t(mu, s2 * 3 / 5 * np.eye(2), df=5).logpdf(x)
        for w, mu, s2 in zip(cases.WEIGHTS, law.g.means, (0.25, 0.5, 1.0), strict=True)
    ]
    got = jax.jit(lambda x: law.log_prob(x))(jnp.asarray(x))
    np.testing.assert_allclose(got, scipy.special.logsumexp(logs, axis=0), rtol=1e-10)


@pytest.mark.slow
def test_student_draws_have_the_moments():
    law, n = student(), 200_000
    draw = jax.jit(lambda key: law.sample(key, n))
    x = np.asarray(draw(jax.random.key(0)), np.float64)
    weights, means = np.array(cases.WEIGHTS), np.asarray(law.g.means)
    mean = weights @ means
    variance = weights @ (means**2 + np.array([[0.25], [0.5], [1.0]])) - mean**2
    assert np.all(np.abs(x.mean(0) - mean) < 4 * np.sqrt(variance / n))
    spread = x.var(0)
    error = np.sqrt(np.var((x - mean) ** 2, axis=0) / n)
    assert np.all(np.abs(spread - variance) < 4 * error)
    # one scale a draw: the two coordinates of a draw are dependent but the law is that of SciPy
    # around one mean
    alone = lab.student_mixture(gmm.gaussian_mixture(jnp.ones(1), jnp.zeros((1, 2)), 1.0), 5.0)
    radius = np.linalg.norm(alone.sample(jax.random.key(1), 20_000), axis=1)
    f = scipy.stats.f(2, 5)
    assert scipy.stats.kstest(radius**2 / (2 * 3 / 5), f.cdf).pvalue > 1e-3


def test_many_degrees_of_freedom_are_gaussian(x64):
    law = student()
    near = law._replace(dof=1e7)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(50, 2)))
    want = [
        np.log(w) + scipy.stats.multivariate_normal(mu, s2 * np.eye(2)).logpdf(x)
        for w, mu, s2 in zip(cases.WEIGHTS, law.g.means, (0.25, 0.5, 1.0), strict=True)
    ]
    np.testing.assert_allclose(
        jax.jit(lambda x: near.log_prob(x))(x), scipy.special.logsumexp(want, axis=0), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: lab.collinear(0), "num_components: expected a whole number of at least 1, got 0"),
        (lambda: lab.three_modes(0), "d: expected a whole number of at least 1, got 0"),
        (lambda: lab.simplex(4, 3, 1.0), "d: expected a whole number of at least 4, got 3"),
        (lambda: lab.three_modes(1, -0.1), "cov: expected a finite number of at least 0, got -0.1"),
        (
            lambda: lab.random_means(jax.random.key(0), 2, 0, 1.0),
            "d: expected a whole number of at least 1, got 0",
        ),
        (lambda: lab.student_mixture(cases.line(), 2), "dof - 2: expected a finite number above 0"),
        (lambda: student().log_prob(jnp.ones((4, 1))), r"x: expected shape \(4, 2\), got \(4, 1\)"),
        (lambda: student().sample(jax.random.key(0), 0), "n: expected a whole number of at least"),
    ],
)
def test_bad_input(as_user, make, match):
    with pytest.raises(ValueError, match=match):
        make()
