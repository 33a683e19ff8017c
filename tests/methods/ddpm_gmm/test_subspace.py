"""The span of the means: coordinates, invariances and the two-sided bound."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from jaxicml.diffusion import gmm, schedules
from jaxicml.methods import ddpm_gmm as lab
from tests.methods.ddpm_gmm import cases


@given(seed=st.integers(0, 10**6), rank=st.integers(1, 3))
@settings(max_examples=8)
def test_rank_and_distances_survive(seed, rank):
    """Means of known rank: found again, turned or not, with the same products."""
    rng = np.random.default_rng(seed)
    inside = rng.normal(size=(3, rank))
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    with jax.enable_x64(True):
        means = jnp.asarray(inside @ turn[:rank])
        split = lab.split_subspace(gmm.gaussian_mixture(jnp.array(cases.WEIGHTS), means, 0.5))
        assert split.inner.dim == rank
        assert split.num_outer == 6 - rank
        basis, found = np.asarray(split.basis), np.asarray(split.inner.means)
    np.testing.assert_allclose(basis @ basis.T, np.eye(rank), atol=1e-12)
    np.testing.assert_allclose(found @ basis, means, atol=1e-12)
    np.testing.assert_allclose(found @ found.T, inside @ inside.T, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounding_is_no_dimension(x64, dtype):
    axis = np.random.default_rng(0).normal(size=40)
    means = jnp.asarray(np.outer([-3.0, 0.5, 3.0], axis), dtype)
    g = gmm.gaussian_mixture(jnp.array(cases.WEIGHTS, dtype), means, 0.25)
    assert lab.split_subspace(g).inner.dim == 1


def test_the_centre_counts(x64):
    """A line that misses the origin spans a plane, one component away from it a line."""
    shifted = cases.line(axis=(1.0, 0.0, 0.0)).means + jnp.array([0.0, 2.0, 0.0])
    weights = jnp.array(cases.WEIGHTS)
    assert lab.split_subspace(gmm.gaussian_mixture(weights, shifted, 0.25)).inner.dim == 2
    one = gmm.gaussian_mixture(jnp.ones(1), jnp.array([[3.0, 4.0]]), 0.25)
    np.testing.assert_allclose(lab.split_subspace(one).inner.means, [[5.0]], rtol=1e-12)
    nothing = lab.split_subspace(cases.one_component(d=4))
    assert (nothing.inner.dim, nothing.num_outer) == (1, 3)


def test_dimensions_do_not_count_under_component(x64):
    made, exact = schedules.theory(9), cases.few_steps()
    for d in (1, 100, 10_000):
        axis = np.zeros(d)
        axis[d // 2] = 1.0
        target = cases.line(axis=axis)
        bounds = lab.output_tv(target, made, "component")
        np.testing.assert_allclose(bounds.inner, exact.tv, rtol=1e-9)
        outer = lab.output_law_gaussian(made, 0.25, "component").excess
        # TV of N(0, (1 + u) I_n) from N(0, I_n) is √(n/π) u / 2 for small u and large n
        assert bounds.outer <= np.sqrt(d / np.pi) * abs(outer) / 2 * 1.05
        assert bounds.lower == jnp.maximum(bounds.inner, bounds.outer)
        whole = 1 - (1 - bounds.inner) * (1 - bounds.outer)
        np.testing.assert_allclose(bounds.upper, whole, rtol=1e-12)


@pytest.mark.slow
def test_the_plane_lies_between_the_bounds(x64):
    """A line in the plane under another rule: both parts are wrong, the whole is known."""
    made, target = schedules.theory(25), cases.line((-2.0, 0.5, 2.0), 1.0, (0.6, 0.8))
    bounds = lab.output_tv(target, made, "posterior")
    whole = lab.output_density_2d(target, made, "posterior", n_grid=128).tv
    assert bounds.lower < whole < bounds.upper
    assert bounds.outer > 0.01


@pytest.mark.slow
def test_turning_the_plane_changes_nothing(x64):
    made, means = schedules.theory(9), jnp.array([[1.0, 0.0], [-1.0, 0.5], [0.0, -1.0]])
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(7, 7)))[0][:2]
    weights = jnp.array(cases.WEIGHTS)
    plane = gmm.gaussian_mixture(weights, means, 1.0)
    turned = gmm.gaussian_mixture(weights, means @ turn, 1.0)
    first, second = (lab.output_tv(g, made, "component", n_grid=128) for g in (plane, turned))
    np.testing.assert_allclose(first.inner, second.inner, rtol=1e-3)


def test_bad_input(as_user):
    made = schedules.theory(9)
    space = gmm.gaussian_mixture(jnp.array(cases.WEIGHTS), jnp.eye(3), 1.0)
    with pytest.raises(ValueError, match=r"rank of the means: expected .* at most 2, got 3"):
        lab.output_tv(space, made, "component")
    unequal = gmm.gaussian_mixture(jnp.array(cases.WEIGHTS), jnp.eye(3), jnp.array([1.0, 2.0, 3.0]))
    with pytest.raises(ValueError, match=r"variances .*: expected equal values"):
        lab.split_subspace(unequal)
    with pytest.raises(ValueError, match="means: expected known values, got a tracer"):
        jax.jit(lambda g: lab.split_subspace(g).inner)(space)
