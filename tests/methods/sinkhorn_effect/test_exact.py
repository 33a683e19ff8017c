"""Exact effects against published numbers, sampled transport and each other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxicml.methods.sinkhorn_effect.data import DEFAULT_SIGMA
from jaxicml.methods.sinkhorn_effect.exact import bimodal_curve, gaussian_sinkhorn_divergence
from tests.methods.sinkhorn_effect import reference

SIGMA = np.array(DEFAULT_SIGMA)


@jax.jit
def value_and_slopes(mean1, cov1, mean0, cov0, epsilon):
    """The divergence in the plane, its slope in the scale of the first covariance and in ε."""
    of = lambda scale, epsilon: gaussian_sinkhorn_divergence(
        mean1, scale * cov1, mean0, cov0, epsilon=epsilon
    )
    return jax.value_and_grad(of, (0, 1))(jnp.ones((), epsilon.dtype), epsilon)


def gaussian(mean1, cov1, mean0, cov0, epsilon):
    """Laws on a line are put into the plane, with equal second components of their own."""
    embedded = lambda mean, cov: (np.append(mean, 0.0), np.diag([cov, 1.0]))
    laws = [
        embedded(mean, cov) if np.ndim(mean) == 0 else (mean, cov)
        for mean, cov in ((mean1, cov1), (mean0, cov0))
    ]
    arrays = map(jnp.asarray, (*laws[0], *laws[1], float(epsilon)))
    return value_and_slopes(*arrays)[0]


def covariance(seed, d=2):
    root = np.random.default_rng(seed).normal(size=(d, d))
    return root @ root.T + 0.1 * np.eye(d)


@pytest.mark.parametrize(
    ("epsilon", "value"), [(0.5, 0.62330307), (1.0, 0.61863516), (3.0, 0.58927833)]
)
def test_gaussian_known_values(epsilon, value, x64):
    got = gaussian(0.0, 1.0, 1.0, 2.25, epsilon)
    np.testing.assert_allclose(got, value, atol=5e-9)


def grid(mean, variance, points):
    weights = np.exp(-((points - mean) ** 2) / (2 * variance))
    return weights / weights.sum()


@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_gaussian_equals_quadrature(epsilon, x64):
    points = np.linspace(-7, 8, 150)
    laws = grid(0.0, 1.0, points), grid(1.2, 0.6, points)
    theirs = reference.divergence(points[:, None], *laws, epsilon)
    np.testing.assert_allclose(gaussian(1.2, 0.6, 0.0, 1.0, epsilon), theirs, rtol=1e-7)


@pytest.mark.parametrize(("theta", "value"), [(0.2, 4.133), (0.4, 16.619), (0.8, 67.827)])
def test_effects_of_the_covariance_family(theta, value, x64):
    """The values that fixed the default Σ, with u and v written out by hand."""
    treated = SIGMA + theta * np.diag([1.0, -1.0])
    got = float(gaussian(np.zeros(2), treated, np.zeros(2), SIGMA, 1.9))
    np.testing.assert_allclose(1e3 * got, value, atol=5e-4)


def test_equal_covariances_cost_half_the_squared_distance(x64):
    mean = np.array([0.3, -1.0])
    for epsilon in (0.1, 10.0):
        got = gaussian(mean, covariance(0), np.zeros(2), covariance(0), epsilon)
        np.testing.assert_allclose(got, (0.3**2 + 1) / 2, rtol=1e-12)


def test_small_epsilon_gives_the_bures_distance(x64):
    a, b = np.diag([1.0, 4.0]), np.diag([2.25, 0.25])
    half_wasserstein = ((1 - 1.5) ** 2 + (2 - 0.5) ** 2) / 2
    got = gaussian(np.zeros(2), a, np.zeros(2), b, 1e-9)
    np.testing.assert_allclose(got, half_wasserstein, rtol=1e-6)


def test_large_epsilon_gives_the_distance_of_means(x64):
    mean = np.array([1.0, 2.0])
    got = gaussian(mean, covariance(1), np.zeros(2), covariance(2), 1e7)
    np.testing.assert_allclose(got, (mean**2).sum() / 2, rtol=1e-5)


@pytest.mark.parametrize("d", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_gaussian_divergence_is_symmetric_and_positive(d, x64):
    for seed in range(5):
        a, b = covariance(seed, d), covariance(seed + 10, d)
        mean = np.zeros(d)
        one, other = gaussian(mean, a, mean, b, 0.7), gaussian(mean, b, mean, a, 0.7)
        np.testing.assert_allclose(one, other, rtol=1e-10)
        assert one > 0
        np.testing.assert_allclose(gaussian(mean, a, mean, a, 0.7), 0, atol=1e-12)


def test_gaussian_gradient_where_eigenvalues_coincide(x64):
    """Finite differences, at covariances whose eigenvectors are not unique."""
    laws = lambda scale: (np.zeros(2), scale * np.eye(2), np.ones(2), 2 * np.eye(2))
    slopes = value_and_slopes(*map(jnp.asarray, (*laws(1.0), 0.8)))[1]
    for slope, step in zip(slopes, 1e-5 * np.eye(2), strict=True):
        up, down = (float(gaussian(*laws(1.0 + s * step[0]), 0.8 + s * step[1])) for s in (1, -1))
        np.testing.assert_allclose(slope, (up - down) / 2e-5, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean1": np.zeros((2, 1))}, r"mean1: expected shape \(any\), got \(2, 1\)"),
        ({"mean0": np.zeros(3)}, r"mean0: expected shape \(2\), got \(3,\)"),
        ({"mean0": np.array([0, np.nan])}, "mean0: expected finite values"),
        ({"cov1": np.eye(3)}, r"cov1: expected shape \(2, 2\), got \(3, 3\)"),
        ({"cov0": np.array([[1.0, 0.5], [0.0, 1.0]])}, "cov0: expected a symmetric matrix"),
        ({"cov0": np.diag([1.0, 0.0])}, "cov0: expected a positive definite matrix"),
        ({"cov1": np.full((2, 2), np.inf)}, "cov1: expected finite values"),
        ({"epsilon": 0.0}, r"epsilon: expected a finite number above 0, got 0\.0"),
    ],
)
def test_gaussian_bad_input(change, message, as_user):
    args = {"mean1": np.zeros(2), "cov1": np.eye(2), "mean0": np.ones(2), "cov0": np.eye(2)}
    epsilon = change.get("epsilon", 1.0)
    args = {name: jnp.asarray(change.get(name, value)) for name, value in args.items()}
    with pytest.raises(ValueError, match=message):
        gaussian_sinkhorn_divergence(**args, epsilon=epsilon)


THETAS = np.arange(0, 6.1, 0.5)


coarse_curve = jax.jit(functools.partial(bimodal_curve, num_points=300))


@pytest.fixture(scope="module")
def curve():
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, coarse_curve(jnp.array(THETAS), epsilon=1.0))


def slope(values, part):
    return np.polyfit(THETAS[part], values[part], 1)[0]


@pytest.mark.slow
def test_the_divergence_grows_where_mmd_saturates(curve):
    first, last = slice(0, 5), slice(-5, None)
    assert round(slope(curve.sinkhorn, first), 2) == 1.06
    assert round(slope(curve.sinkhorn, last), 2) == 8.88
    assert round(slope(curve.half_mmd, first), 4) == 0.0837
    assert round(slope(curve.half_mmd, last), 5) == 0.00072
    assert round(slope(curve.half_mmd, last) / slope(curve.half_mmd, first), 4) == 0.0086


@pytest.mark.slow
def test_bimodal_divergence_equals_quadrature_of_another_solver(curve):
    points = np.linspace(-11, 11, 180)
    shift = np.sqrt(2) * THETAS[3]
    modes = (grid(shift, 1.0, points) + grid(-shift, 1.0, points)) / 2
    theirs = reference.divergence(points[:, None], modes, grid(0.0, 1.0, points), 1.0)
    np.testing.assert_allclose(curve.sinkhorn[3], theirs, rtol=1e-7)


@pytest.mark.slow
def test_the_problem_in_the_plane_reduces_to_one_dimension(curve):
    """The product quadrature of the two laws in the plane, axes not along the modes."""
    axis = np.linspace(-5.4, 5.4, 24)
    plane = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    density = lambda centre: np.exp(-((plane - centre) ** 2).sum(1) / 2)
    theta = THETAS[2]
    modes = density(theta) + density(-theta)
    laws = modes / modes.sum(), density(0.0) / density(0.0).sum()
    # the box cuts off 1e-5 of the mass
    theirs = reference.divergence(plane, *laws, 1.0)
    np.testing.assert_allclose(curve.sinkhorn[2], theirs, rtol=1e-3)


@pytest.mark.slow
def test_half_mmd_equals_quadrature_in_the_plane(curve):
    axis = np.linspace(-9, 9, 46)
    plane = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    density = lambda centre: np.exp(-((plane - centre) ** 2).sum(1) / 2)
    normalised = lambda weights: weights / weights.sum()
    kernel = np.exp(-reference.cost(plane, plane))
    for i in (2, 5):
        modes = normalised(density(THETAS[i]) + density(-THETAS[i]))
        signed = modes - normalised(density(0.0))
        np.testing.assert_allclose(curve.half_mmd[i], signed @ kernel @ signed / 2, rtol=1e-6)


@pytest.mark.slow
def test_bimodal_curve_without_jit_and_with_more_points(curve, x64):
    fine = bimodal_curve(jnp.array(THETAS[[0, 2]]), epsilon=1.0)
    np.testing.assert_allclose(curve.sinkhorn[[0, 2]], fine.sinkhorn, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(curve.half_mmd[[0, 2]], fine.half_mmd, rtol=1e-12, atol=1e-15)


@pytest.mark.slow
def test_the_curve_starts_at_zero(curve):
    assert abs(curve.sinkhorn[0]) < 1e-9


@pytest.mark.parametrize(
    ("thetas", "options", "message"),
    [
        (np.ones((2, 2)), {}, r"thetas: expected shape \(any\), got \(2, 2\)"),
        (np.ones(0), {}, "thetas: expected at least 1 rows, got 0"),
        (np.array([1.0, np.nan]), {}, "thetas: expected finite values"),
        (np.ones(1), {"epsilon": -1.0}, "epsilon: expected a finite number above 0"),
        (np.ones(1), {"num_points": 10}, "num_points: expected a whole number of at least 50"),
    ],
)
def test_bimodal_bad_input(thetas, options, message, as_user):
    with pytest.raises(ValueError, match=message):
        bimodal_curve(jnp.asarray(thetas), **({"epsilon": 1.0} | options))
