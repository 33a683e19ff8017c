"""Exponential moving average of parameters, with warm-up.

After n updates the decay is min(decay, (1 + n)/(10 + n)): the first averages forget their start
quickly, so that short trainings are not dominated by it.

References:
    Polyak, Juditsky, "Acceleration of stochastic approximation by averaging", 1992. The warm-up is
    that of TensorFlow's ExponentialMovingAverage.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from jaxicml import checks
from jaxicml.types import Scalar

__all__ = ["decay_at", "update"]


def decay_at(count: Scalar, decay: Scalar = 0.999) -> Float[Array, ""]:
    """The decay of an update: min(decay, (1 + n)/(10 + n)).

    Args:
        count: number n of updates made so far.
        decay: the decay in the long run.

    Returns:
        The decay.

    Raises:
        ValueError: a decay outside [0, 1] or a negative count.

    >>> print(f"{decay_at(0):.4f} {decay_at(90):.4f} {decay_at(100_000):.4f}")
    0.1000 0.9100 0.9990
    """
    checks.check_scalar("count", count)
    checks.check_range("count", count, 0.0, float("inf"))
    checks.check_scalar("decay", decay)
    checks.check_range("decay", decay, 0.0, 1.0)
    count = jnp.asarray(count, jnp.result_type(float))
    return jnp.minimum(decay, (1 + count) / (10 + count))


def update(average: PyTree, params: PyTree, count: Scalar, decay: Scalar = 0.999) -> PyTree:
    """One update of the average: decay · average + (1 − decay) · params.

    Args:
        average: what `params` averaged to so far; start it with the parameters themselves.
        params: new parameters, any pytree of the same structure.
        count: number of updates made so far.
        decay: the decay in the long run.

    Returns:
        The new average in the dtypes of the old; leaves that are no float arrays are those of
        `params`.

    Raises:
        ValueError: structures that differ, a decay outside [0, 1] or a negative count.

    >>> update(jnp.array([0.0]), jnp.array([1.0]), count=0)  # decay 0.1 at first
    Array([0.9], dtype=float32)
    """
    old, _ = eqx.partition(average, eqx.is_inexact_array)
    new, fixed = eqx.partition(params, eqx.is_inexact_array)
    mixed = optax.incremental_update(new, old, 1 - decay_at(count, decay))
    mixed = jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), mixed, old)
    return eqx.combine(mixed, fixed)
