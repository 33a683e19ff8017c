"""Classifier-free guidance, its rescaling and its interval.

    ε = ε_u + w (ε_c − ε_u)

with an unconditional and a conditional prediction; w = 1 is the conditional one. Any kind of
prediction that is affine in ε at a fixed x (x_0, v, score) may be guided alike. A large w inflates
the contrast of the result: rescaling brings the standard deviation of the guided prediction back to
that of the conditional one, mixed by φ; an interval guides at middle noise levels only, where it
helps. Inside a network for the samplers:

    def denoise(x, t, carry):
        conditional, unconditional = network(x, t, prompt), network(x, t, empty)
        w = interval_weight(7.5, t, 200, 800)
        return rescale(guide(unconditional, conditional, w), conditional, 0.7), carry

References:
    Ho, Salimans, "Classifier-free diffusion guidance", 2022, arXiv 2207.12598. Lin et al., "Common
    diffusion noise schedules and sample steps are flawed", 2023, arXiv 2305.08891 (rescaling).
    Kynkäänniemi et al., "Applying guidance in a limited interval improves sample and distribution
    quality in diffusion models", 2024, arXiv 2404.07724.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Real

from jaxicml import checks
from jaxicml.types import Scalar

__all__ = ["guide", "interval_weight", "rescale"]


def guide(
    unconditional: Float[Array, "*shape"],
    conditional: Float[Array, "*shape"],
    weight: Scalar | Real[Array, "..."],
) -> Float[Array, "*shape"]:
    """Moves from the unconditional to the conditional prediction, and beyond for w > 1.

    Args:
        unconditional: prediction without the condition.
        conditional: prediction with it.
        weight: w, one number or an array that broadcasts against the predictions.

    Returns:
        The guided prediction.

    Raises:
        ValueError: shapes that differ.

    >>> print(f"{guide(jnp.array(1.0), jnp.array(2.0), 7.5):.4f}")
    8.5000
    """
    checks.check_shape("conditional", conditional, unconditional.shape)
    wide = jnp.promote_types(unconditional.dtype, jnp.float32)
    base, other = unconditional.astype(wide), conditional.astype(wide)
    return (base + jnp.asarray(weight, wide) * (other - base)).astype(unconditional.dtype)


def rescale(
    guided: Float[Array, "*shape"],
    conditional: Float[Array, "*shape"],
    phi: Scalar = 0.7,
    *,
    axis: tuple[int, ...] | None = None,
) -> Float[Array, "*shape"]:
    """Brings the spread of a guided prediction back to that of the conditional one.

    φ · guided · std(conditional)/std(guided) + (1 − φ) · guided, each example by itself.

    Args:
        guided: guided prediction.
        conditional: prediction with the condition.
        phi: share φ of the rescaled prediction, 0 leaves the guided one.
        axis: axes of one example; all but the first by default.

    Returns:
        The rescaled prediction; a constant one is left as it is.

    Raises:
        ValueError: shapes that differ, or φ outside [0, 1].

    >>> guided, conditional = jnp.array([[-4.0, 4.0]]), jnp.array([[-1.0, 1.0]])
    >>> rescale(guided, conditional, 0.5)
    Array([[-2.5,  2.5]], dtype=float32)
    """
    checks.check_shape("conditional", conditional, guided.shape)
    checks.check_scalar("phi", phi)
    checks.check_range("phi", phi, 0.0, 1.0)
    axis = tuple(range(1, guided.ndim)) if axis is None else axis
    wide = jnp.promote_types(guided.dtype, jnp.float32)
    full, phi = guided.astype(wide), jnp.asarray(phi, wide)
    variance = full.var(axis, keepdims=True)
    wanted = conditional.astype(wide).var(axis, keepdims=True)
    ratio = _ratio_of_roots(wanted, variance)
    return ((phi * ratio + (1 - phi)) * full).astype(guided.dtype)


def interval_weight(
    weight: Scalar, level: Real[Array, "..."] | float, low: Scalar, high: Scalar
) -> Float[Array, "..."]:
    """The guidance weight at a level: w inside (low, high], 1 (no guidance) outside.

    Args:
        weight: w.
        level: timestep or σ.
        low: lower end of the interval, in units of the level.
        high: upper end.

    Returns:
        A weight in the shape of `level`.

    Raises:
        ValueError: an interval whose ends are not in order, a level that is no number.

    >>> interval_weight(3.0, jnp.array([100, 500, 900]), 200, 800)
    Array([1., 3., 1.], dtype=float32)
    """
    if not checks.is_traced(low, high):
        checks.check_range("high - low", high - low, 0.0, float("inf"))
    level = jnp.asarray(level)
    checks.check_array("level", level)
    inside = (low < level) & (level <= high)
    dtype = jnp.result_type(level.dtype, jnp.float32)
    return jnp.where(inside, jnp.asarray(weight, dtype), jnp.ones((), dtype))


def _ratio_of_roots(above, below):
    """√(above/below), 1 where either vanishes (a constant prediction, or no finite slope)."""
    fine = (above > 0) & (below > 0)
    return jnp.sqrt(jnp.where(fine, above, 1) / jnp.where(fine, below, 1))
