"""Other samplers at the same number of score calls, and their exact laws on the line.

DDIM and DPM-Solver++ are deterministic after the start: y = F(z), z ~ N(0, 1), and the law of y is
that of the start carried by F. Langevin dynamics are Markov steps whose law propagates as DDPM's:

    unadjusted  y = x + η s_1(x) + √(2η) z with η = c, at the level of X_1 throughout
    annealed    the same at falling noise levels with η_t = c (1 − ᾱ_t)

References:
    Song, Meng, Ermon, arXiv:2010.02502 (DDIM). Lu et al., arXiv:2211.01095 (DPM-Solver++).
    Song, Ermon, "Generative modeling by estimating gradients of the data distribution",
    arXiv:1907.05600 (annealed Langevin). Roberts, Tweedie, 1996 (unadjusted Langevin).
"""

from functools import partial
from typing import Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from jaxicml import checks
from jaxicml.diffusion.gmm import GMM
from jaxicml.diffusion.samplers import sample_ddim, sample_dpmpp_2m
from jaxicml.diffusion.schedules import Schedule
from jaxicml.methods.ddpm_gmm.density import (
    MASS_TOLERANCE,
    DensityResult,
    LineSteps,
    compare_densities,
    line_grid,
    output_law,
)
from jaxicml.methods.ddpm_gmm.sampling import ScoreFn, check_sample_shape, mixture_score
from jaxicml.types import Key, Scalar

__all__ = ["Baseline", "TunedLaw", "baseline_law_1d", "baseline_sample", "tuned_law_1d"]

Baseline = Literal["ddim", "dpmpp_2m", "annealed_langevin", "unadjusted_langevin"]
"""DDIM is Euler's method on the probability flow in x/√ᾱ."""

_DETERMINISTIC = {"ddim": sample_ddim, "dpmpp_2m": sample_dpmpp_2m}
_NODES = 8001
"""Starts z of a deterministic sampler, over ±8.5."""


class TunedLaw(NamedTuple):
    """The best law over a set of step sizes.

    Attributes:
        step_size: the best one; 1 for samplers without.
        law: its law.
    """

    step_size: Float[Array, ""]
    law: DensityResult


def baseline_sample(
    key: Key,
    kind: Baseline,
    score_fn: ScoreFn,
    schedule: Schedule,
    shape: tuple[int, ...],
    *,
    step_size: Scalar = 1.0,
    dtype=jnp.float32,
) -> Float[Array, "..."]:
    """Draws that should follow X_1, with T − 1 calls of the score like DDPM's.

    Args:
        key: random key.
        kind: which sampler.
        score_fn: (x, t) -> score, t an index of the schedule.
        schedule: T noise levels.
        shape: of the draws, the last entry the dimension.
        step_size: c of the Langevin samplers, in units of 1 − ᾱ at the level in use.
        dtype: of the draws.

    Returns:
        The draws.

    Raises:
        ValueError: an unknown sampler, a step size that is not above zero.

    >>> import jax
    >>> from jaxicml.diffusion import gmm, schedules
    >>> g = gmm.gaussian_mixture(jnp.ones(1), jnp.array([[2.0]]), 0.25)
    >>> made = schedules.theory(50)
    >>> x = baseline_sample(jax.random.key(0), "ddim", mixture_score(g, made), made, (1000, 1))
    >>> print(f"{x.mean():.1f}")
    2.0
    """
    checks.check_choice("kind", kind, get_args(Baseline))
    checks.check_scalar("step_size", step_size)
    checks.check_positive("step_size", step_size)
    check_sample_shape(shape)
    checks.check_callable("score_fn", score_fn)
    start_key, step_key = jax.random.split(key)
    start = jax.random.normal(start_key, shape, dtype)
    if kind in _DETERMINISTIC:
        return _deterministic(kind, score_fn, schedule, start)
    levels, steps = _langevin(kind, schedule, step_size)

    def step(x, row):
        t, gain, sd, key = row
        z = jax.random.normal(key, shape, dtype)
        return (x + gain * score_fn(x, t) + sd * z).astype(dtype), None

    rows = levels, steps.gain, steps.sd, jax.random.split(step_key, levels.size)
    return jax.lax.scan(step, start, rows)[0]


def baseline_law_1d(
    kind: Baseline,
    g: GMM,
    schedule: Schedule,
    *,
    step_size: Scalar = 1.0,
    n_grid: int | None = None,
) -> DensityResult:
    """The law of a baseline's output on the line, against that of X_1.

    Deterministic samplers: cell averages over the grid, since a map that folds has a density with
    poles; their distances are then those of the cell masses, lower by order h². Langevin:
    propagated like DDPM's.

    Args:
        kind: which sampler.
        g: one-dimensional target.
        schedule: T noise levels; float64 is wanted.
        step_size: c of the Langevin samplers.
        n_grid: grid points, see `output_density_1d`.

    Returns:
        Densities, distances and the mass lost.

    Raises:
        ValueError: an unknown sampler, a step size that is not above zero, another dimension than
            one, too coarse a grid.

    >>> from jaxicml.diffusion import schedules
    >>> from jaxicml.methods.ddpm_gmm.targets import three_modes
    >>> with jax.enable_x64(True):
    ...     law = baseline_law_1d("ddim", three_modes(), schedules.theory(100))
    >>> law.tv
    Array(0.0208, dtype=float64)
    """
    checks.check_choice("kind", kind, get_args(Baseline))
    checks.check_scalar("step_size", step_size)
    checks.check_positive("step_size", step_size)
    grid = line_grid(g, schedule, n_grid)
    if kind in _DETERMINISTIC:
        return _pushed_forward(kind, g, schedule, grid)
    sizes = jnp.reshape(jnp.asarray(step_size, grid.dtype), (1,))
    laws = _langevin_laws(kind, g, schedule, grid, sizes)
    return jax.tree.map(lambda leaf: leaf[0], laws)


def tuned_law_1d(
    kind: Baseline,
    g: GMM,
    schedule: Schedule,
    step_sizes: Float[Array, " m"],
    *,
    n_grid: int | None = None,
) -> TunedLaw:
    """The step size with the smallest total variation, known exactly: in the baseline's favour.

    Args:
        kind: which sampler; deterministic ones have no step size and run once.
        g: one-dimensional target.
        schedule: T noise levels; float64 is wanted.
        step_sizes: what is tried.
        n_grid: grid points, see `output_density_1d`.

    Returns:
        The best step size and its law; a law that lost mass counts as unusable.

    Raises:
        ValueError: as in `baseline_law_1d`, or nothing to try.
    """
    checks.check_choice("kind", kind, get_args(Baseline))
    checks.check_shape("step_sizes", step_sizes, (None,))
    checks.check_min_rows("step_sizes", step_sizes, 1)
    checks.check_positive("step_sizes", step_sizes)
    if kind in _DETERMINISTIC:
        law = baseline_law_1d(kind, g, schedule, n_grid=n_grid)
        return TunedLaw(jnp.ones((), law.tv.dtype), law)
    grid = line_grid(g, schedule, n_grid)
    laws = _langevin_laws(kind, g, schedule, grid, step_sizes)
    best = jnp.argmin(jnp.where(laws.valid, laws.tv, jnp.inf))
    return TunedLaw(step_sizes[best], jax.tree.map(lambda leaf: leaf[best], laws))


def _langevin_laws(kind, g, schedule, grid, step_sizes) -> DensityResult:
    """The law at each step size."""
    steps = jax.vmap(lambda c: _langevin(kind, schedule, c)[1])(step_sizes)
    return _laws(g, schedule, grid, steps)


@jax.jit
def _laws(g, schedule, grid, steps) -> DensityResult:
    # one program, whatever the kind
    return jax.lax.map(lambda own: output_law(g, schedule, grid, own), steps)


def _langevin(kind, schedule, step_size) -> tuple[Array, LineSteps]:
    """Level of each of the T − 1 steps, and the steps."""
    count = schedule.num_steps - 1
    falling = jnp.arange(count - 1, -1, -1)
    levels = falling if kind == "annealed_langevin" else jnp.zeros_like(falling)
    # the unadjusted chain lives on the scale of the target, the annealed one on that of the noise
    size = schedule.noise[levels] ** 2 if kind == "annealed_langevin" else jnp.ones(count)
    gain = step_size * size.astype(schedule.abar.dtype)
    steps = LineSteps(
        jnp.ones_like(gain), gain, schedule.abar[levels], schedule.noise[levels], jnp.sqrt(2 * gain)
    )
    return levels, steps


def _deterministic(kind, score_fn, schedule, start):
    """From level T down to level 1, where X_1 is."""
    to_first = eqx.tree_at(lambda s: s.final_log_abar, schedule, schedule.log_abar[0])
    timesteps = jnp.arange(schedule.num_steps - 1, 0, -1)
    denoise = lambda x, t, carry: (score_fn(x, t), carry)
    return _DETERMINISTIC[kind](denoise, start, to_first, timesteps, prediction="score").x


@partial(jax.jit, static_argnames="kind")
def _pushed_forward(kind, g, schedule, grid) -> DensityResult:
    """Cell masses of F(z): the mass between two starts lies evenly between their ends."""
    z = jnp.linspace(-8.5, 8.5, _NODES, dtype=grid.dtype)
    ends = _deterministic(kind, mixture_score(g, schedule), schedule, z[:, None])[:, 0]
    low, high = jnp.minimum(ends[1:], ends[:-1]), jnp.maximum(ends[1:], ends[:-1])
    mass = _normal_mass(z[:-1], z[1:])
    h = (grid[-1] - grid[0]) / (grid.size - 1)
    edges = jnp.append(grid - h / 2, grid[-1] + h / 2)
    width = jnp.maximum(high - low, jnp.finfo(grid.dtype).tiny)
    share = lambda y: jnp.clip((y - low) / width, 0, 1) @ mass
    q = jnp.diff(jax.lax.map(share, edges, batch_size=64)) / h
    marginal_sd = jnp.sqrt(schedule.abar[0] * g.variances.ravel() + schedule.noise[0] ** 2)
    means = schedule.signal[0] * g.means[:, 0]
    standard = (edges[:, None] - means) / marginal_sd
    p = _normal_mass(standard[:-1], standard[1:]) @ jnp.exp(g.log_weights) / h
    log_q, log_p = jnp.log(q), jnp.log(p)
    tv, kl, w2 = compare_densities(grid, log_q, log_p)
    lost = jnp.abs(h * q.sum() - 1)
    return DensityResult(grid, log_q, log_p, tv, kl, w2, lost, lost <= MASS_TOLERANCE)


def _normal_mass(low, high):
    """Φ(high) − Φ(low), from the tail that is nearer: the far one has no digits left."""
    turned = low + high > 0
    return ndtr(jnp.where(turned, -low, high)) - ndtr(jnp.where(turned, -high, low))
