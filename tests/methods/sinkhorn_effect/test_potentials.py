"""Potentials and divergence against ott-jax, POT, NumPy loops and closed forms.

Nearly all tests ask one compiled program, whose 30 and 30 atoms hold smaller problems as well:
atoms without weight do not exist.
"""

import functools
import warnings

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ott.geometry import geometry, pointcloud
from ott.problems.linear import linear_problem
from ott.solvers.linear import sinkhorn

from jaxicml.methods.sinkhorn_effect import potentials as ot
from tests.methods.sinkhorn_effect import reference as ref

M = 30
TOL = 1e-11


def divergence(x, y, a, b, epsilon, max_iter=20_000):
    """(S_ε, potentials) as NumPy arrays, of NumPy arrays."""
    arrays = map(jnp.asarray, (x, y, a, b))
    out = ot.sinkhorn_divergence(*arrays, epsilon=epsilon, tol=TOL, max_iter=max_iter)
    return jax.tree.map(np.asarray, out)


def cloud(seed, m=M, k=M, zeros=(0, 0)):
    """Points in the plane and weights; the first and the last weights are zero."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(m, 2)), 1.5 * rng.normal(size=(k, 2)) + 0.5
    a, b = rng.random(m) + 0.1, rng.random(k) + 0.1
    a[: zeros[0]], b[k - zeros[1] :] = 0, 0
    return x, y, a / a.sum(), b / b.sum()


def plan(x, y, a, b, potentials, epsilon):
    exponent = potentials.f[:, None] + potentials.g[None, :] - ref.cost(x, y)
    return a[:, None] * b[None, :] * np.exp(exponent / epsilon)


@jax.jit
def by_ott(x, y, a, b, epsilon):
    """The cost ½‖x − y‖² of ott, its potentials without their weights, and its OT_ε."""
    cost = pointcloud.PointCloud(x, y).cost_matrix / 2
    problem = linear_problem.LinearProblem(geometry.Geometry(cost, epsilon=epsilon), a, b)
    out = sinkhorn.Sinkhorn(threshold=1e-12, max_iterations=50_000)(problem)
    return cost, out.f - epsilon * jnp.log(a), out.g - epsilon * jnp.log(b), out.reg_ot_cost


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_potentials_and_values_equal_those_of_loops(epsilon, x64):
    x, y, a, b = case = cloud(0)
    value, ours = divergence(*case, epsilon)
    f, g = ref.cross(ref.cost(x, y), a, b, epsilon)
    constant = (ours.f - f).mean()
    chex.assert_trees_all_close((ours.f, ours.g), (f + constant, g - constant), atol=1e-8)
    np.testing.assert_allclose(ours.cost, a @ f + b @ g, rtol=1e-9)
    own = [ref.symmetric(ref.cost(z, z), w, epsilon) for z, w in ((x, a), (y, b))]
    np.testing.assert_allclose(value, a @ f + b @ g - a @ own[0] - b @ own[1], rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.05, 0.5, 3.0])
def test_potentials_and_cost_equal_those_of_ott(epsilon, x64):
    case = cloud(0)
    _, ours = divergence(*case, epsilon)
    cost, f, g, value = map(np.asarray, by_ott(*map(jnp.asarray, case), epsilon))
    constant = (ours.f - f).mean()
    chex.assert_trees_all_close((ours.f, ours.g), (f + constant, g - constant), atol=1e-8)
    np.testing.assert_allclose(ours.cost, value, rtol=1e-9)
    np.testing.assert_allclose(cost, ref.cost(*case[:2]), atol=1e-13)


half_squared_cost = jax.jit(ot.half_squared_cost)


@pytest.mark.parametrize(("shift", "rtol", "atol"), [(0.0, 0.0, 1e-13), (1e6, 1e-6, 1e-7)])
def test_cost_matrix_also_at_large_means(shift, rtol, atol, x64):
    x, y, _, _ = cloud(2)
    ours = half_squared_cost(*map(jnp.asarray, (x + shift, y + shift)))
    np.testing.assert_allclose(ours, ref.cost(x, y), rtol, atol)


def test_self_potentials_equal_alternating_updates(x64):
    x, y, a, b = case = cloud(3)
    _, ours = divergence(*case, 0.7)
    for points, weights, own in ((x, a, ours.f_self), (y, b, ours.g_self)):
        f, g = ref.cross(ref.cost(points, points), weights, weights, 0.7)
        np.testing.assert_allclose(own, (f + g) / 2, atol=1e-8)


@pytest.mark.parametrize("epsilon", [0.02, 0.5])
def test_marginals_of_the_plan(epsilon, x64):
    """Both regimes: 0.02 is out of reach of the scaling form for one far point."""
    x, y, a, b = cloud(4, zeros=(M - 15, M - 12))
    x[-1] = 6.0
    _, out = divergence(x, y, a, b, epsilon)
    pi = plan(x, y, a, b, out, epsilon)
    np.testing.assert_allclose(pi.sum(1), a, atol=1e-9)
    np.testing.assert_allclose(pi.sum(0), b, atol=1e-9)
    assert out.converged


def test_zero_weights_are_as_if_absent(x64):
    x, y, a, b = cloud(5, zeros=(M - 6, M - 5))
    whole, potentials = divergence(x, y, a, b, 0.7)
    # the reference drops points without weight
    points, nothing = np.vstack([x, y]), np.zeros(M)
    part = ref.divergence(points, np.append(a, nothing), np.append(nothing, b), 0.7)
    np.testing.assert_allclose(whole, part, atol=1e-10)
    chex.assert_tree_all_finite(potentials)
    reduced, _ = ref.cross(ref.cost(x[-6:], y[:5]), a[-6:], b[:5], 0.7)
    constant = (potentials.f[-6:] - reduced).mean()
    np.testing.assert_allclose(potentials.f[-6:], reduced + constant, atol=1e-9)
    # where there is no weight the potentials are those of a vanishing one
    extended = ref.softmin(ref.log(b) + potentials.g / 0.7, ref.cost(x, y), 0.7)
    np.testing.assert_allclose(potentials.f, extended, atol=1e-9)


@jax.jit
@functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
def small_divergence(x, a, y, b, epsilon):
    """Value, potentials and gradient for 6 and 5 atoms."""
    return ot.sinkhorn_divergence(x, y, a / a.sum(), b, epsilon=epsilon, tol=TOL)


def small(x, y, a, b, epsilon):
    (value, potentials), gradients = small_divergence(*map(jnp.asarray, (x, a, y, b)), epsilon)
    return float(value), jax.tree.map(np.asarray, potentials), gradients


@pytest.mark.slow
def test_gradient_equals_finite_differences(x64):
    x, y, a, b = cloud(11, m=6, k=5)
    _, _, grads = small(x, y, a, b, 0.6)
    of = lambda dx, da: small(x + dx, y, a + da, b, 0.6)[0]
    still, h = (np.zeros_like(x), np.zeros_like(a)), 1e-5
    for i in range(6):
        step = still[0].copy()
        step[i, i % 2] = h
        slope = (of(step, still[1]) - of(-step, still[1])) / (2 * h)
        np.testing.assert_allclose(grads[0][i, i % 2], slope, rtol=1e-5)
        step = h * np.eye(6)[i]
        slope = (of(still[0], step) - of(still[0], -step)) / (2 * h)
        np.testing.assert_allclose(grads[1][i], slope, rtol=1e-5, atol=1e-9)


extend = jax.jit(ot.extend_potential)


def test_extension_reproduces_the_atoms(x64):
    x, y, _, b = case = cloud(6)
    _, out = divergence(*case, 0.5)
    ours = extend(*map(jnp.asarray, (out.g, b, ref.cost(x, y))), 0.5)
    np.testing.assert_allclose(ours, out.f, atol=1e-10)


def gauss_hermite(mean, deviation):
    """A normal law on the nodes of its quadrature, on a line in the plane."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(M)
    return np.stack([mean + deviation * nodes, np.zeros(M)], 1), weights / weights.sum()


@pytest.mark.parametrize(
    ("epsilon", "value"), [(0.5, 0.62330307), (1.0, 0.61863516), (3.0, 0.58927833)]
)
def test_gaussian_closed_form(epsilon, value, x64):
    """N(0, 1) against N(1, 1.5²): published closed form, met by quadrature."""
    (x, a), (y, b) = gauss_hermite(0, 1), gauss_hermite(1, 1.5)
    np.testing.assert_allclose(divergence(x, y, a, b, epsilon)[0], value, atol=2e-6)


def test_translation_costs_half_the_squared_distance(x64):
    x, _, a, _ = cloud(7)
    value, _ = divergence(x, x + np.array([1.0, -2.0]), a, a, 0.3)
    np.testing.assert_allclose(value, 2.5, rtol=1e-9)


def test_large_epsilon_sees_means_only(x64):
    """S_ε → ½‖mean difference‖² with an error that falls like 1/ε."""
    x, y, a, b = case = cloud(8)
    limit = ((a @ x - b @ y) ** 2).sum() / 2
    near, far = (divergence(*case, epsilon)[0] - limit for epsilon in (1e3, 1e4))
    np.testing.assert_allclose(near / far, 10, rtol=0.05)


@pytest.mark.oracle
def test_small_epsilon_is_half_of_pots_squared_wasserstein(x64):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pot = pytest.importorskip("ot")
    x, y, a, b = case = cloud(9, m=15, k=12)
    value, _ = divergence(*case, 0.005, max_iter=200_000)
    np.testing.assert_allclose(value, pot.emd2(a, b, ref.cost(x, y)), rtol=0.01)


@pytest.mark.oracle
def test_plan_equals_that_of_pot(x64):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bregman = pytest.importorskip("ot.bregman")
    x, y, a, b = case = cloud(10)
    _, out = divergence(*case, 0.3)
    theirs = bregman.sinkhorn(a, b, ref.cost(x, y), 0.3, method="sinkhorn_log", stopThr=1e-13)
    np.testing.assert_allclose(plan(x, y, a, b, out, 0.3), theirs, atol=1e-9)


def test_tiny_epsilon_is_flagged(x64):
    _, potentials = divergence(*cloud(12), 1e-4)
    assert not potentials.converged
    chex.assert_tree_all_finite(potentials.f)


def plain_updates(cost, a, b, epsilon):
    """How many alternating updates reach a marginal error of `TOL`."""
    kernel, v = np.exp(-cost / epsilon), np.ones(len(b))
    for count in range(1, 100_000):
        u = a / (kernel @ v)
        v = b / (u @ kernel)
        if np.abs(u * (kernel @ v) - a).sum() < TOL:
            return count
    raise AssertionError("no convergence")


def test_few_steps_where_plain_sinkhorn_needs_many(x64):
    """Over-relaxation: a third of the updates of plain alternation, same fixed point."""
    x, y, a, b = case = cloud(13)
    cost = ref.cost(x, y)
    epsilon = 0.05 * float(np.median(cost))
    _, out = divergence(*case, epsilon)
    assert out.converged
    assert out.n_iters < plain_updates(cost, a, b, epsilon) / 3


@hypothesis.given(
    seed=st.integers(0, 2**16),
    zeros=st.sampled_from([(0, 0), (M - 4, M - 4), (M - 7, M - 3)]),
    epsilon=st.floats(1.0, 50.0),
    scale=st.floats(0.1, 10.0),
)
def test_divergence_is_a_divergence(seed, zeros, epsilon, scale):
    """Non-negative, symmetric, zero on the diagonal, quadratic in the scale of the outcome."""
    with jax.enable_x64(True):
        x, y, a, b = cloud(seed, zeros=zeros)
        value, _ = divergence(x, y, a, b, epsilon)
        other, _ = divergence(y, x, b, a, epsilon)
        scaled, _ = divergence(scale * x, scale * y, a, b, scale**2 * epsilon)
        itself, own = divergence(x, x, a, a, epsilon)
        assert value >= -1e-9
        np.testing.assert_allclose(other, value, atol=1e-8)
        np.testing.assert_allclose(scaled, scale**2 * value, rtol=1e-6, atol=1e-8 * scale**2)
        assert own.converged
        np.testing.assert_allclose(itself, 0, atol=1e-9)
