"""Scores with a known error, for experiments on how much of it a sampler bears.

    ε_score² = (1/T) Σ_t E ‖ŝ_t(X_t) − s_t(X_t)‖²

`constant` adds δ times a unit vector, so that ε_score = δ exactly; `fourier` adds a smooth random
field of root mean square δ; `misfit` is the exact score of a mixture with other means and weights.
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
    key: Key, kind: Literal["constant", "fourier"], delta: Scalar, dim: int
) -> Callable[[Array, Array], Array]:
    """What is added to a score.

    Args:
        key: random key.
        kind: "constant" (δ u with a random unit vector u) or "fourier" (δ times the sum of 64
            random Fourier features of bandwidth 1, of unit root mean square in all).
        delta: δ, the size.
        dim: dimension of x.

    Returns:
        (x of shape (..., dim), t) -> shift of the same shape; it does not depend on t.

    Raises:
        ValueError: an unknown kind, a size that is no number, a dimension below 1.

    >>> import jax, jax.numpy as jnp
    >>> shift = score_shift(jax.random.key(0), "constant", 0.5, 3)
    >>> jnp.linalg.norm(shift(jnp.zeros(3), 0))
    Array(0.5, dtype=float32)
    """
    checks.check_choice("kind", kind, ("constant", "fourier"))
    checks.check_integer("dim", dim, low=1)
    checks.check_scalar("delta", delta)
    if kind == "constant":
        u = jax.random.normal(key, (dim,))
        u /= jnp.linalg.norm(u)

        def constant(x, t):
            checks.check_shape("x", x, (*jnp.shape(x)[:-1], dim))
            return jnp.broadcast_to(delta * u, x.shape).astype(x.dtype)

        return constant
    w_key, phase_key = jax.random.split(key)
    frequencies = jax.random.normal(w_key, (dim, NUM_FEATURES, dim))
    phases = jax.random.uniform(phase_key, (dim, NUM_FEATURES), maxval=2 * math.pi)
    size = delta * math.sqrt(2 / (NUM_FEATURES * dim))

    def fourier(x, t):
        checks.check_shape("x", x, (*jnp.shape(x)[:-1], dim))
        waves = jnp.cos(jnp.einsum("...j,ifj->...if", x, frequencies) + phases)
        return (size * waves.sum(-1)).astype(x.dtype)

    return fourier


def misfit_mixture(key: Key, g: GMM, delta: Scalar) -> GMM:
    """The mixture with δ-sized errors in its means (per coordinate) and log weights.

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
    """A score function with an error of size δ.

    Args:
        key: random key.
        score_fn: (x, t) -> score.
        kind: "constant", "fourier", or "misfit", which replaces `score_fn` by the score of
            `misfit_mixture`.
        delta: δ.
        dim: dimension of x.
        mixture: the target; "misfit" needs it.
        schedule: its noise levels; "misfit" needs them.

    Returns:
        (x, t) -> score with error.

    Raises:
        ValueError: an unknown kind, "misfit" without mixture and schedule.
    """
    checks.check_choice("kind", kind, get_args(Perturbation))
    if kind == "misfit":
        checks.check_given("mixture", mixture, "for a misfit")
        checks.check_given("schedule", schedule, "for a misfit")
        assert mixture is not None
        assert schedule is not None
        return mixture_score(misfit_mixture(key, mixture, delta), schedule)
    shift = score_shift(key, kind, delta, dim)
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
