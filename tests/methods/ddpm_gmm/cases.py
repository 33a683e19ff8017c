"""Laws and draws that several tests look at, each made once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxicml.diffusion import gmm, schedules
from jaxicml.methods import ddpm_gmm as lab

WEIGHTS = (0.3, 0.5, 0.2)


def line(means=(-3.0, 0.5, 3.0), sigma2=0.25, axis=(1.0,)):
    """Three components on the line through zero in the direction of `axis`."""
    points = np.outer(means, axis)
    return gmm.gaussian_mixture(jnp.array(WEIGHTS), jnp.array(points), sigma2)


def one_component(sigma2=0.25, d=1):
    """Three equal components: N(0, σ² I) in the shapes of the others."""
    return line((0.0, 0.0, 0.0), sigma2, (1.0,) + (0.0,) * (d - 1))


law_of_steps = jax.jit(lab.output_law)


@functools.cache
def few_steps():
    """The law at T = 9."""
    with jax.enable_x64(True):
        return lab.output_density_1d(line(), schedules.theory(9), "component")


@functools.cache
def law(target, steps):
    """The law at T = 25; `steps` makes them from a schedule."""
    with jax.enable_x64(True):
        g, made = target(), schedules.theory(25)
        return law_of_steps(g, made, lab.line_grid(g, made, 2001), steps(made))


@functools.cache
def draws(n=100_000):
    """What the sampler draws at T = 9 for the three modes."""
    made = schedules.theory(9)
    score = lab.mixture_score(line(), made)
    sample = jax.jit(
        lambda key: lab.ddpm_sample(key, score, made, (n, 1), variance="component", sigma2=0.25).x
    )
    return np.asarray(sample(jax.random.key(0)))


def distribution(law):
    """The distribution function of a law on a grid."""
    grid, q = np.asarray(law.grid), np.exp(law.log_q)
    h = grid[1] - grid[0]
    return lambda y: np.interp(y, grid + h / 2, np.cumsum(q) * h)
