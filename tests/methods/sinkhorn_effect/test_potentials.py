"""Potentials and divergence against ott-jax, POT, closed forms and finite differences."""

import functools
import warnings

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from ott.geometry import geometry, pointcloud
from ott.problems.linear import linear_problem
from ott.solvers.linear import sinkhorn

from jaxicml.methods.sinkhorn_effect import potentials as ot

divergence = functools.partial(ot.sinkhorn_divergence, tol=1e-11)


def cloud(seed, m=15, k=12, d=2, zeros=0):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(m, d)), 1.5 * rng.normal(size=(k, d)) + 0.5
    a, b = rng.random(m) + 0.1, rng.random(k) + 0.1
    if zeros:
        a[:zeros] = 0
        b[-zeros:] = 0
    return tuple(map(jnp.array, (x, y, a / a.sum(), b / b.sum())))


def by_ott(x, y, a, b, epsilon):
    geom = geometry.Geometry(cost_matrix=ot.half_squared_cost(x, y), epsilon=epsilon)
    solver = sinkhorn.Sinkhorn(threshold=1e-12, max_iterations=50_000)
    return jax.jit(solver)(linear_problem.LinearProblem(geom, a, b))


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 3.0])
def test_cross_potentials_equal_those_of_ott(epsilon, x64):
    x, y, a, b = cloud(0)
    ours = ot.cross_potentials(ot.half_squared_cost(x, y), a, b, epsilon, tol=1e-11, max_iter=20000)
    theirs = by_ott(x, y, a, b, epsilon)
    f = theirs.f - epsilon * jnp.log(a)
    g = theirs.g - epsilon * jnp.log(b)
    constant = (ours.f - f).mean()
    chex.assert_trees_all_close((ours.f, ours.g), (f + constant, g - constant), atol=1e-8)


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 3.0])
def test_cost_equals_reg_ot_cost_of_ott(epsilon, x64):
    x, y, a, b = cloud(1)
    _, ours = divergence(x, y, a, b, epsilon=epsilon, max_iter=20000)
    np.testing.assert_allclose(ours.cost, by_ott(x, y, a, b, epsilon).reg_ot_cost, rtol=1e-9)


def test_half_cost_is_half_of_otts_squared_distance(x64):
    x, y, _, _ = cloud(2)
    np.testing.assert_allclose(
        2 * ot.half_squared_cost(x, y), pointcloud.PointCloud(x, y).cost_matrix, atol=1e-13
    )


def test_cost_matrix_survives_large_means(x64):
    x, y, _, _ = cloud(2)
    np.testing.assert_allclose(
        ot.half_squared_cost(x + 1e6, y + 1e6), ot.half_squared_cost(x, y), rtol=1e-6, atol=1e-7
    )


def test_self_potential_equals_alternating_updates(x64):
    x, _, a, _ = cloud(3)
    ours = ot.self_potential(ot.half_squared_cost(x, x), a, 0.4, tol=1e-12)
    theirs = by_ott(x, x, a, a, 0.4)
    symmetric = (theirs.f + theirs.g) / 2 - 0.4 * jnp.log(a)
    np.testing.assert_allclose(ours.f, symmetric, atol=1e-8)


@pytest.mark.parametrize("epsilon", [0.02, 0.5])
def test_marginals_of_the_plan(epsilon, x64):
    """Both regimes: 0.02 is out of reach of the scaling form for one far point."""
    x, y, a, b = cloud(4)
    x = x.at[0].set(6.0)
    cost = ot.half_squared_cost(x, y)
    out = ot.cross_potentials(cost, a, b, epsilon, tol=1e-10, max_iter=20000)
    plan = a[:, None] * b[None, :] * jnp.exp((out.f[:, None] + out.g[None, :] - cost) / epsilon)
    np.testing.assert_allclose(plan.sum(1), a, atol=1e-9)
    np.testing.assert_allclose(plan.sum(0), b, atol=1e-9)
    assert out.error <= 1e-10


def test_zero_weights_are_as_if_absent(x64):
    x, y, a, b = cloud(5, zeros=4)
    whole, potentials = divergence(x, y, a, b, epsilon=0.7)
    part, reduced = divergence(x[4:], y[:-4], a[4:], b[:-4], epsilon=0.7)
    np.testing.assert_allclose(whole, part, atol=1e-10)
    chex.assert_tree_all_finite(potentials)
    constant = (potentials.f[4:] - reduced.f).mean()
    np.testing.assert_allclose(potentials.f[4:], reduced.f + constant, atol=1e-9)


def test_extension_reproduces_the_atoms(x64):
    x, y, a, b = cloud(6)
    cost = ot.half_squared_cost(x, y)
    out = ot.cross_potentials(cost, a, b, 0.5, tol=1e-12)
    np.testing.assert_allclose(ot.extend_potential(out.g, b, cost, 0.5), out.f, atol=1e-10)


def quantile_grid(mean, sd, m=400):
    """A normal law as equally weighted midpoint quantiles."""
    return jnp.array(scipy.stats.norm.ppf((np.arange(m) + 0.5) / m) * sd + mean)[:, None]


@pytest.mark.parametrize(
    ("epsilon", "value"), [(0.5, 0.62330307), (1.0, 0.61863516), (3.0, 0.58927833)]
)
def test_gaussian_closed_form(epsilon, value, x64):
    """N(0, 1) against N(1, 1.5²): published closed form, met as the grid is refined."""
    errors = []
    for m in (100, 400):
        grid = quantile_grid(0, 1, m), quantile_grid(1, 1.5, m)
        errors.append(abs(float(divergence(*grid, epsilon=epsilon)[0]) - value))
    assert errors[1] < errors[0] / 2
    assert errors[1] < 0.01


def test_translation_costs_half_the_squared_distance(x64):
    x, _, a, _ = cloud(7)
    shift = jnp.array([1.0, -2.0])
    value, _ = divergence(x, x + shift, a, a, epsilon=0.3)
    np.testing.assert_allclose(value, 2.5, rtol=1e-9)


def test_large_epsilon_sees_means_only(x64):
    """S_ε → ½‖mean difference‖² with an error that falls like 1/ε."""
    x, y, a, b = cloud(8)
    limit = ((a @ x - b @ y) ** 2).sum() / 2
    near, far = (divergence(x, y, a, b, epsilon=epsilon)[0] - limit for epsilon in (1e3, 1e4))
    np.testing.assert_allclose(near / far, 10, rtol=0.05)


@pytest.mark.oracle
def test_small_epsilon_is_half_of_pots_squared_wasserstein(x64):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pot = pytest.importorskip("ot")
    x, y, a, b = cloud(9)
    value, _ = divergence(x, y, a, b, epsilon=0.005, max_iter=200_000)
    exact = pot.emd2(np.array(a), np.array(b), np.array(ot.half_squared_cost(x, y)))
    np.testing.assert_allclose(value, exact, rtol=0.01)


@pytest.mark.oracle
def test_plan_equals_that_of_pot(x64):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bregman = pytest.importorskip("ot.bregman")
    x, y, a, b = cloud(10)
    cost = ot.half_squared_cost(x, y)
    out = ot.cross_potentials(cost, a, b, 0.3, tol=1e-12)
    plan = a[:, None] * b[None, :] * jnp.exp((out.f[:, None] + out.g[None, :] - cost) / 0.3)
    theirs = bregman.sinkhorn(
        np.array(a), np.array(b), np.array(cost), 0.3, method="sinkhorn_log", stopThr=1e-13
    )
    np.testing.assert_allclose(plan, theirs, atol=1e-9)


def test_gradient_equals_finite_differences(x64):
    x, y, a, b = cloud(11, m=6, k=5)
    of = lambda x, a: divergence(x, y, a / a.sum(), b, epsilon=0.6)[0]
    grads = jax.grad(of, argnums=(0, 1))(x, a)
    h = 1e-5
    for i in range(3):
        step = jnp.zeros_like(x).at[i, 0].set(h)
        np.testing.assert_allclose(
            grads[0][i, 0], (of(x + step, a) - of(x - step, a)) / (2 * h), rtol=1e-5
        )
        step = jnp.zeros_like(a).at[i].set(h)
        np.testing.assert_allclose(
            grads[1][i], (of(x, a + step) - of(x, a - step)) / (2 * h), rtol=1e-5, atol=1e-9
        )


def test_tiny_epsilon_is_flagged(x64):
    x, y, a, b = cloud(12)
    _, potentials = ot.sinkhorn_divergence(x, y, a, b, epsilon=1e-4, max_iter=50)
    assert not potentials.converged
    chex.assert_tree_all_finite(potentials.f)


def test_few_steps_where_plain_sinkhorn_needs_many(x64):
    """Over-relaxation: a third of the updates of plain alternation, same fixed point."""
    x, y, a, b = cloud(13, m=80, k=80)
    cost = ot.half_squared_cost(x, y)
    epsilon = 0.05 * float(jnp.median(cost))
    out = ot.cross_potentials(cost, a, b, epsilon, tol=1e-9)
    geom = geometry.Geometry(cost_matrix=cost, epsilon=epsilon)
    solver = sinkhorn.Sinkhorn(threshold=1e-9, inner_iterations=1, max_iterations=20_000)
    plain = jax.jit(solver)(linear_problem.LinearProblem(geom, a, b)).n_iters
    assert out.error <= 1e-9
    assert out.n_iters < plain / 3


@hypothesis.given(
    seed=st.integers(0, 2**16),
    size=st.sampled_from([(4, 4), (7, 3)]),
    epsilon=st.floats(1.0, 50.0),
    scale=st.floats(0.1, 10.0),
)
def test_divergence_is_a_divergence(seed, size, epsilon, scale):
    """Non-negative, symmetric, zero on the diagonal, quadratic in the scale of the outcome."""
    with jax.enable_x64(True):
        x, y, a, b = cloud(seed, *size)
        value, _ = divergence(x, y, a, b, epsilon=epsilon)
        other, _ = divergence(y, x, b, a, epsilon=epsilon)
        scaled, _ = divergence(scale * x, scale * y, a, b, epsilon=scale**2 * epsilon)
        itself, own = divergence(x, x, a, a, epsilon=epsilon)
        assert value >= -1e-9
        np.testing.assert_allclose(other, value, atol=1e-8)
        np.testing.assert_allclose(scaled, scale**2 * value, rtol=1e-6, atol=1e-8 * scale**2)
        assert own.converged
        np.testing.assert_allclose(itself, 0, atol=1e-9)
