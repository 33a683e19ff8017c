"""Scores with a known error, for experiments on how much of it a sampler bears.

    ε_score² = (1/T) Σ_t E ‖ŝ_t(X_t) − s_t(X_t)‖²

`constant` adds δ times a unit vector, so that ε_score = δ exactly; `fourier` adds a smooth random
field whose mean square over fields is δ² at every point; `misfit` adds what the exact score of a
mixture with other means and weights differs by, where δ is the size of those differences.
"""

import math
from collections.abc import Callable
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxicml import checks
from jaxicml.diffusion.gmm import GMM, gmm_sample
from jaxicml.diffusion.mixture import gmm_score
from jaxicml.diffusion.schedules import Schedule
from jaxicml.methods.ddpm_gmm.bounds import Estimate
from jaxicml.methods.ddpm_gmm.sampling import ScoreFn, mixture_score
from jaxicml.types import Key, Scalar

__all__ = ["Perturbation", "misfit_mixture", "perturb_score", "score_error", "score_shift"]

Perturbation = Literal["constant", "fourier", "misfit"]

NUM_FEATURES = 64


def score_shift(
    key: Key,
    kind: Perturbation,
    delta: Scalar,
    dim: int,
    *,
    mixture: GMM | None = None,
    schedule: Schedule | None = None,
) -> Callable[[Array, Array], Array]:
    """What is added to a score.

    Args:
        key: random key.
        kind: "constant" (δ u with a random unit vector u), "fourier" (the sum of 64 random waves
            of bandwidth 1, δ in root mean square; O(64 dim) a point), or "misfit" (the score of
            `misfit_mixture` less the exact one).
        delta: δ, the size of the shift; for "misfit" that of the errors in means and log weights.
        dim: dimension of x.
        mixture: the target; "misfit" needs it.
        schedule: its noise levels; "misfit" needs them.

    Returns:
        (x of shape (..., dim), t) -> shift of the same shape; only "misfit" depends on t.

    Raises:
        ValueError: an unknown kind, a size that is no number, a dimension below 1, "misfit"
            without mixture and schedule.

    >>> import jax, jax.numpy as jnp
    >>> shift = score_shift(jax.random.key(0), "constant", 0.5, 3)
    >>> jnp.linalg.norm(shift(jnp.zeros(3), 0))
    Array(0.5, dtype=float32)
    """
    checks.check_choice("kind", kind, get_args(Perturbation))
    checks.check_integer("dim", dim, low=1)
    checks.check_scalar("delta", delta)
    if kind == "misfit":
        return _misfit(key, delta, mixture, schedule)
    field = _constant(key, delta, dim) if kind == "constant" else _fourier(key, delta, dim)

    def shift(x, t):
        checks.check_shape("x", x, (*jnp.shape(x)[:-1], dim))
        return jnp.broadcast_to(field(x), x.shape).astype(x.dtype)

    return shift


def _constant(key, delta, dim):
    u = jax.random.normal(key, (dim,))
    u /= jnp.linalg.norm(u)
    return lambda x: delta * u


def _fourier(key, delta, dim):
    """δ √(2/64) Σ_f a_f cos(w_f·x + φ_f) with unit vectors a_f and normal w_f."""
    frequency_key, phase_key, direction_key = jax.random.split(key, 3)
    frequencies = jax.random.normal(frequency_key, (dim, NUM_FEATURES))
    phases = jax.random.uniform(phase_key, (NUM_FEATURES,), maxval=2 * math.pi)
    directions = jax.random.normal(direction_key, (NUM_FEATURES, dim))
    directions /= jnp.linalg.norm(directions, axis=1, keepdims=True)
    size = delta * math.sqrt(2 / NUM_FEATURES)
    return lambda x: size * jnp.cos(x @ frequencies + phases) @ directions


def _misfit(key, delta, mixture, schedule):
    checks.check_given("mixture", mixture, "for a misfit")
    checks.check_given("schedule", schedule, "for a misfit")
    assert mixture is not None
    assert schedule is not None
    wrong = mixture_score(misfit_mixture(key, mixture, delta), schedule)
    right = mixture_score(mixture, schedule)
    return lambda x, t: wrong(x, t) - right(x, t)


def misfit_mixture(key: Key, g: GMM, delta: Scalar) -> GMM:
    """The mixture with normal errors of deviation δ in each mean's coordinates and log weight.

    Raises:
        ValueError: a size that is no number.
    """
    checks.check_scalar("delta", delta)
    mean_key, weight_key = jax.random.split(key)
    shift = lambda key, like: delta * jax.random.normal(key, like.shape, like.dtype)
    log_weights = jax.nn.log_softmax(g.log_weights + shift(weight_key, g.log_weights))
    means = g.means + shift(mean_key, g.offsets)
    center = jnp.exp(log_weights) @ means
    return GMM(log_weights, means - center, center, g.variances, g.axes)


def perturb_score(
    key: Key,
    score_fn: ScoreFn,
    kind: Perturbation,
    delta: Scalar,
    *,
    dim: int,
    mixture: GMM | None = None,
    schedule: Schedule | None = None,
) -> ScoreFn:
    """A score function with an error added.

    Args:
        key: random key.
        score_fn: (x, t) -> score.
        kind: the kind of error, see `score_shift`.
        delta: its size δ.
        dim: dimension of x.
        mixture: the target; "misfit" needs it.
        schedule: its noise levels; "misfit" needs them.

    Returns:
        (x, t) -> score with error.

    Raises:
        ValueError: as in `score_shift`.
    """
    shift = score_shift(key, kind, delta, dim, mixture=mixture, schedule=schedule)
    return lambda x, t: score_fn(x, t) + shift(x, t)


def score_error(key: Key, score_fn: ScoreFn, g: GMM, schedule: Schedule, n_mc: int) -> Estimate:
    """ε_score² of a score function against the exact one, by Monte Carlo.

    Args:
        key: random key.
        score_fn: (x of shape (n, d), t) -> score.
        g: the target.
        schedule: T noise levels.
        n_mc: draws of X_t at each level.

    Returns:
        The mean over levels of E‖ŝ − s‖² and its standard error.

    Raises:
        ValueError: n_mc below 2.
    """
    checks.check_integer("n_mc", n_mc, low=2)
    checks.check_callable("score_fn", score_fn)
    from_law = jax.random.split(key, schedule.num_steps)

    def at(level):
        t, key = level
        x = noisy_draws(key, g, schedule, t, n_mc)
        exact = gmm_score(g, x, schedule.abar[t], noise=schedule.noise[t])
        squares = jnp.sum((score_fn(x, t) - exact) ** 2, -1)
        return squares.mean(), squares.var(ddof=1) / n_mc

    means, squares = jax.lax.map(at, (jnp.arange(schedule.num_steps), from_law))
    return Estimate(means.mean(), jnp.sqrt(squares.sum()) / schedule.num_steps)


def noisy_draws(key: Key, g: GMM, schedule: Schedule, t: Array, n: int) -> Array:
    """Draws of X_t, of shape (n, d)."""
    clean_key, noise_key = jax.random.split(key)
    clean = gmm_sample(clean_key, g, n)[0]
    return schedule.signal[t] * clean + schedule.noise[t] * jax.random.normal(
        noise_key, clean.shape, clean.dtype
    )
