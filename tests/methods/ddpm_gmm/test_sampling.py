"""Draws of DDPM: exactness on a point mass, long schedules, dtypes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxicml.diffusion import gmm, schedules
from jaxicml.methods import ddpm_gmm as lab

POINT = (2.0, -1.0)


def point_mass():
    return gmm.gaussian_mixture(jnp.ones(1), jnp.array([POINT]), 0.0)


@functools.cache
def drawn():
    made = schedules.theory(25)
    score = lab.mixture_score(point_mass(), made)
    run = jax.jit(
        lambda key: lab.ddpm_sample(
            key, score, made, (20_000, 2), variance="posterior", trajectory=True
        )
    )
    return run(jax.random.key(0))


def test_a_point_mass_is_exact():
    """Y_1 = √ᾱ_1 μ + √(1 − ᾱ_1) z under "posterior"."""
    abar = 1 - 25.0**-2
    x = (np.asarray(drawn().x) - np.sqrt(abar) * np.array(POINT)) / np.sqrt(1 - abar)
    for coordinate in x.T:
        assert scipy.stats.kstest(coordinate, scipy.stats.norm.cdf).pvalue > 1e-3
    assert abs(np.corrcoef(x.T)[0, 1]) < 4 / np.sqrt(len(x))


def test_trajectory_runs_from_noise_to_the_draws():
    path = drawn().trajectory
    assert path.shape == (25, 20_000, 2)  # T levels, T − 1 steps
    np.testing.assert_array_equal(path[-1], drawn().x)
    for coordinate in np.asarray(path[0]).T:
        assert scipy.stats.kstest(coordinate, scipy.stats.norm.cdf).pvalue > 1e-3


@pytest.mark.slow
def test_a_hundred_thousand_steps():
    T = 100_000
    made = schedules.theory(T)
    score = lab.mixture_score(gmm.gaussian_mixture(jnp.ones(1), jnp.array([POINT]), 0.25), made)
    x = jax.jit(
        lambda key: lab.ddpm_sample(key, score, made, (500, 2), variance="component", sigma2=0.25).x
    )(jax.random.key(0))
    for coordinate, mean in zip(np.asarray(x).T, POINT, strict=True):
        assert scipy.stats.kstest(coordinate, scipy.stats.norm(mean, 0.5).cdf).pvalue > 1e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sampler", ["ddpm", "ddim", "unadjusted_langevin"])
def test_draws_have_the_dtype(sampler, dtype):
    made, key = schedules.theory(9), jax.random.key(0)
    score = lambda x, t: -x
    if sampler == "ddpm":
        run = lambda key: lab.ddpm_sample(key, score, made, (4,), variance="beta", dtype=dtype).x
    else:
        run = lambda key: lab.baseline_sample(
            key, sampler, score, made, (4,), step_size=0.1, dtype=dtype
        )
    assert jax.eval_shape(run, key).dtype == dtype


@pytest.mark.slow
def test_blocks_of_components_change_nothing():
    made = schedules.theory(9)
    g = lab.simplex(7, 9, 3.0)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 9)), "float32")
    whole, blocks = (lab.mixture_score(g, made, block=block)(x, 3) for block in (None, 2))
    np.testing.assert_allclose(blocks, whole, rtol=1e-4, atol=1e-5)


def test_bad_input(as_user):
    made = schedules.theory(9)

    def sample(score=lambda x, t: -x, shape=(4, 1), **options):
        run = lambda: lab.ddpm_sample(
            jax.random.key(0), score, made, shape, **{"variance": "component", **options}
        )
        return jax.eval_shape(run)

    with pytest.raises(ValueError, match=r"variance: expected one of .*got 'gamma'"):
        sample(variance="gamma")
    with pytest.raises(ValueError, match="sigma2: expected one number, got an array of shape"):
        sample(sigma2=jnp.array([0.1, 0.2]))
    with pytest.raises(ValueError, match=r"sigma2: expected values in \[0.0, inf\], got -1"):
        sample(sigma2=-1.0)
    with pytest.raises(ValueError, match=r"number of dimensions of shape: expected .* got 0"):
        sample(shape=())
    with pytest.raises(ValueError, match="score_fn: expected a function, got int"):
        sample(score=1)
    with pytest.raises(ValueError, match=r"x: expected shape \(4, 2\), got \(4, 1\)"):
        sample(score=lab.mixture_score(point_mass(), made))
    with pytest.raises(ValueError, match="T: expected a whole number of at least 2, got 1"):
        schedules.theory(1)
    with pytest.raises(ValueError, match=r"c1 · log\(T\) / T: expected a number below 1"):
        schedules.theory(8)
