"""What a diffusion network predicts, and conversion between the four kinds.

With x_t = a x_0 + b ε:

    eps     ε
    x0      x_0 = (x_t − b ε) / a
    v       v = a ε − b x_0, so x_0 = a x_t − b v and ε = a v + b x_t   (a² + b² = 1)
    score   ∇ log p_t(x_t) = −ε / b

Where the asked quantity is not determined (ε from x_0 at b = 0, x_0 from ε at a = 0) the result is
0 with gradient 0, so that a step which gives it no weight stays finite. At zero signal (a = 0) a v
or x_0 prediction determines everything.

Noise added to unscaled data, x = x_0 + σ ε, is the case a = 1, b = σ (without v). EDM
preconditioning writes the denoiser as D(x, σ) = c_skip x + c_out F(c_in x, c_noise), which keeps
input and target of the network F at unit variance for data of standard deviation σ_data.

References:
    Ho, Jain, Abbeel, "Denoising diffusion probabilistic models", 2020, arXiv 2006.11239 (ε).
    Song et al., "Score-based generative modeling through stochastic differential equations", 2021,
    arXiv 2011.13456 (score). Salimans, Ho, "Progressive distillation for fast sampling of
    diffusion models", 2022, arXiv 2202.00512 (v). Karras et al., "Elucidating the design space of
    diffusion-based generative models", 2022, arXiv 2206.00364 (preconditioning).
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax.numpy as jnp
from jaxtyping import Array, Float, Real

from jaxicml import checks
from jaxicml.types import Scalar

__all__ = [
    "EDMScalings",
    "Level",
    "Prediction",
    "add_noise",
    "edm_denoiser",
    "edm_scalings",
    "to_eps",
    "to_score",
    "to_v",
    "to_x0",
]

_FLOATS = ("float16", "bfloat16", "float32", "float64")

Prediction = Literal["eps", "x0", "v", "score"]
"""What the output of a network means."""

Level = Scalar | Real[Array, "..."]
"""Signal a, noise b or σ: one number, or an array that broadcasts against the data."""


def add_noise(
    x0: Float[Array, "*shape"], eps: Float[Array, "*shape"], a: Level, b: Level
) -> Float[Array, "*shape"]:
    """x_t = a x_0 + b ε.

    Args:
        x0: clean data.
        eps: standard normal noise.
        a: signal.
        b: noise.

    Returns:
        The noisy data.

    Raises:
        ValueError: shapes that differ.

    >>> print(f"{add_noise(jnp.array(2.0), jnp.array(1.0), 0.6, 0.8):.4f}")
    2.0000
    """
    check_dtype("x0", x0)
    checks.check_shape("eps", eps, x0.shape)
    wide_x0, wide_eps, a, b = _wide(x0.dtype, x0, eps, a, b)
    return (a * wide_x0 + b * wide_eps).astype(x0.dtype)


def to_eps(
    out: Float[Array, "*shape"], x_t: Float[Array, "*shape"], a: Level, b: Level, kind: Prediction
) -> Float[Array, "*shape"]:
    """The noise ε that an output stands for.

    Args:
        out: output of the network.
        x_t: its noisy input.
        a: signal at its level.
        b: noise at its level.
        kind: what the output means.

    Returns:
        ε in the dtype of `x_t`; 0 from "x0" where b is 0.

    Raises:
        ValueError: shapes that differ or an unknown kind.

    >>> x0, x = jnp.array(2.0), jnp.array(2.0)
    >>> print(f"{to_eps(x0, x, 0.6, 0.8, 'x0'):.4f}")
    1.0000
    """
    out, x, a, b = _prepare(out, x_t, a, b, kind)
    if kind == "eps":
        eps = out
    elif kind == "x0":
        eps = _divide(x - a * out, b)
    elif kind == "v":
        eps = a * out + b * x
    else:
        eps = -b * out
    return eps.astype(x_t.dtype)


def to_x0(
    out: Float[Array, "*shape"], x_t: Float[Array, "*shape"], a: Level, b: Level, kind: Prediction
) -> Float[Array, "*shape"]:
    """The clean data x_0 that an output stands for.

    Args:
        out: output of the network.
        x_t: its noisy input.
        a: signal at its level.
        b: noise at its level.
        kind: what the output means.

    Returns:
        x_0 in the dtype of `x_t`; 0 from "eps" and "score" where a is 0.

    Raises:
        ValueError: shapes that differ or an unknown kind.

    >>> eps, x = jnp.array(1.0), jnp.array(2.0)
    >>> print(f"{to_x0(eps, x, 0.6, 0.8, 'eps'):.4f}")
    2.0000
    """
    out, x, a, b = _prepare(out, x_t, a, b, kind)
    if kind == "eps":
        x0 = _divide(x - b * out, a)
    elif kind == "x0":
        x0 = out
    elif kind == "v":
        x0 = a * x - b * out
    else:
        x0 = _divide(x + b**2 * out, a)
    return x0.astype(x_t.dtype)


def to_v(
    out: Float[Array, "*shape"], x_t: Float[Array, "*shape"], a: Level, b: Level, kind: Prediction
) -> Float[Array, "*shape"]:
    """The velocity v = a ε − b x_0 that an output stands for; needs a² + b² = 1.

    Args:
        out: output of the network.
        x_t: its noisy input.
        a: signal at its level.
        b: noise at its level.
        kind: what the output means.

    Returns:
        v in the dtype of `x_t`; 0 from "eps" and "score" where a is 0 and from "x0" where b is 0.

    Raises:
        ValueError: shapes that differ or an unknown kind.

    >>> eps, x = jnp.array(1.0), jnp.array(2.0)
    >>> print(f"{to_v(eps, x, 0.6, 0.8, 'eps'):.4f}")  # 0.6 · 1 − 0.8 · 2
    -1.0000
    """
    out, x, a, b = _prepare(out, x_t, a, b, kind)
    if kind == "eps":
        v = _divide(out - b * x, a)
    elif kind == "x0":
        v = _divide(a * x - out, b)
    elif kind == "v":
        v = out
    else:
        v = _divide(-b * (out + x), a)
    return v.astype(x_t.dtype)


def to_score(
    out: Float[Array, "*shape"], x_t: Float[Array, "*shape"], a: Level, b: Level, kind: Prediction
) -> Float[Array, "*shape"]:
    """The score ∇ log p_t(x_t) = −ε/b that an output stands for.

    Args:
        out: output of the network.
        x_t: its noisy input.
        a: signal at its level.
        b: noise at its level.
        kind: what the output means.

    Returns:
        The score in the dtype of `x_t`; 0 from the other kinds where b is 0.

    Raises:
        ValueError: shapes that differ or an unknown kind.

    >>> eps, x = jnp.array(1.0), jnp.array(2.0)
    >>> print(f"{to_score(eps, x, 0.6, 0.8, 'eps'):.4f}")
    -1.2500
    """
    wide_out, x, a, b = _prepare(out, x_t, a, b, kind)
    if kind == "score":
        return wide_out.astype(x_t.dtype)
    return _divide(-to_eps(wide_out, x, a, b, kind), b).astype(x_t.dtype)


class EDMScalings(NamedTuple):
    """Scalings of input and output of a network by noise level."""

    c_skip: Float[Array, "..."]
    """Share of the input that passes by the network."""
    c_out: Float[Array, "..."]
    """Scale of the network's output."""
    c_in: Float[Array, "..."]
    """Scale of the network's input."""
    c_noise: Float[Array, "..."]
    """The level as the network sees it, ¼ log σ."""


def edm_scalings(sigma: Float[Array, "..."], sigma_data: Scalar = 0.5) -> EDMScalings:
    """The preconditioning of Karras et al. (their table 1).

    Args:
        sigma: noise level in data units, at least 0.
        sigma_data: standard deviation of the data.

    Returns:
        c_skip, c_out, c_in and c_noise in the shape of `sigma`; c_noise stays finite at σ = 0.

    Raises:
        ValueError: a negative level, or a standard deviation that is not above 0.

    >>> skip, out, scale, noise = edm_scalings(jnp.array(0.5))
    >>> print(f"{skip:.4f} {out:.4f} {scale:.4f} {noise:.4f}")
    0.5000 0.3536 1.4142 -0.1733
    """
    checks.check_range("sigma", sigma, 0.0, float("inf"))
    checks.check_scalar("sigma_data", sigma_data)
    checks.check_positive("sigma_data", sigma_data)
    sigma_data = jnp.asarray(sigma_data, sigma.dtype)
    length = jnp.hypot(sigma, sigma_data)
    return EDMScalings(
        c_skip=(sigma_data / length) ** 2,
        c_out=sigma * sigma_data / length,
        c_in=1 / length,
        c_noise=jnp.log(jnp.maximum(sigma, jnp.finfo(sigma.dtype).tiny)) / 4,
    )


def edm_denoiser(
    network: Callable[[Array, Array, Any], tuple[Array, Any]], sigma_data: Scalar = 0.5
) -> Callable[[Array, Array, Any], tuple[Array, Any]]:
    """Wraps a raw network F as the denoiser D(x, σ) = c_skip x + c_out F(c_in x, c_noise).

    Args:
        network: `network(x, c_noise, carry) -> (out, carry)`.
        sigma_data: standard deviation of the data.

    Returns:
        `denoise(x, sigma, carry) -> (x0, carry)`, an "x0" prediction for the EDM samplers.

    Raises:
        ValueError: a standard deviation that is not above 0.

    >>> zero = lambda x, c_noise, carry: (0 * x, carry)
    >>> x0, _ = edm_denoiser(zero, sigma_data=0.5)(jnp.ones(2), jnp.array(0.5), None)
    >>> x0
    Array([0.5, 0.5], dtype=float32)
    """
    checks.check_positive("sigma_data", sigma_data)

    def denoise(x, sigma, carry):
        wide_x, sigma = _wide(x.dtype, x, sigma)
        c = edm_scalings(sigma, sigma_data)
        out, carry = network((c.c_in * wide_x).astype(x.dtype), c.c_noise, carry)
        return (c.c_skip * wide_x + c.c_out * out).astype(x.dtype), carry

    return denoise


def check_prediction(prediction: str) -> None:
    """Checks the option that says what a network predicts.

    Raises:
        ValueError: it is unknown.
    """
    checks.check_choice("prediction", prediction, get_args(Prediction))


def check_dtype(name: str, value) -> None:
    """Checks for a float dtype, half precisions included.

    Raises:
        ValueError: it is another one.
    """
    checks.check_choice(f"dtype of {name}", str(value.dtype), _FLOATS)


def _prepare(out, x_t, a, b, kind):
    checks.check_choice("kind", kind, get_args(Prediction))
    checks.check_shape("out", out, x_t.shape)
    return _wide(x_t.dtype, out, x_t, a, b)


def _wide(dtype, *values):
    """The values in `dtype`, or in float32 where that is a half precision."""
    wide = jnp.promote_types(dtype, jnp.float32)
    return tuple(jnp.asarray(value, wide) for value in values)


def _divide(numerator, denominator):
    """Numerator / denominator, 0 with gradient 0 where the denominator vanishes."""
    some = jnp.abs(denominator) > jnp.finfo(denominator.dtype).tiny
    return jnp.where(some, numerator, 0) / jnp.where(some, denominator, 1)
