"""Denoising losses, uniform or with min-SNR weights.

With x_t = a x_0 + b ε, t uniform and ε standard normal, a network is scored by the mean square of
its output less the target ε, x_0 or v = a ε − b x_0. A score network is scored on the noise that
its output stands for, (b s + ε)², the weight b² of denoising score matching.

min-SNR weights cap the pull of nearly clean levels: with SNR = a²/b², every prediction is weighted
as if x_0 were scored with min{SNR, γ},

    x0: min{SNR, γ}     eps, score: min{SNR, γ}/SNR     v: min{SNR, γ}/(SNR + 1)

with the limits 1 (eps) and 0 (x0, v) at zero SNR.

References:
    Ho, Jain, Abbeel, "Denoising diffusion probabilistic models", 2020, arXiv 2006.11239. Song et
    al., "Score-based generative modeling through stochastic differential equations", 2021, arXiv
    2011.13456. Hang et al., "Efficient diffusion training via min-SNR weighting strategy", 2023,
    arXiv 2303.09556.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxicml import checks
from jaxicml.diffusion import parameterization as P
from jaxicml.diffusion import schedules
from jaxicml.diffusion.samplers import Denoise
from jaxicml.types import Key, Scalar

__all__ = ["diffusion_loss", "min_snr_weight", "prediction_target"]


def diffusion_loss(
    key: Key,
    denoise: Denoise,
    x0: Float[Array, "batch ..."],
    schedule: schedules.Schedule,
    *,
    prediction: P.Prediction = "eps",
    weighting: Literal["uniform", "min_snr"] = "uniform",
    gamma: Scalar = 5.0,
    carry: Any = None,
) -> Float[Array, ""]:
    """Mean weighted square error of a network at random levels of a batch.

    Args:
        key: random key of timesteps and noise.
        denoise: the network, `denoise(x_t, t, carry) -> (out, carry)` with one t an example.
        x0: clean data.
        schedule: the forward process.
        prediction: what the output of the network means.
        weighting: every level alike, or min-SNR.
        gamma: γ of min-SNR.
        carry: handed to the network, and dropped after the call.

    Returns:
        The loss, in float32 or better; mean over examples and their entries.

    Raises:
        ValueError: unknown options, γ not above 0, or an output of another shape.

    >>> made = schedules.linear(100)
    >>> silent = lambda x, t, carry: (jnp.zeros_like(x), carry)
    >>> loss = diffusion_loss(jax.random.key(0), silent, jnp.ones((8, 9000)), made)
    >>> print(f"{loss:.1f}")  # the mean square of ε
    1.0
    """
    P.check_prediction(prediction)
    checks.check_choice("weighting", weighting, ["uniform", "min_snr"])
    checks.check_scalar("gamma", gamma)
    checks.check_positive("gamma", gamma)
    checks.check_min_rows("x0", x0, 1)
    P.check_dtype("x0", x0)
    time_key, noise_key = jax.random.split(key)
    wide = jnp.promote_types(x0.dtype, jnp.float32)
    per_example = (x0.shape[0],) + (1,) * (x0.ndim - 1)
    t = jax.random.randint(time_key, x0.shape[:1], 0, schedule.num_steps)
    a, b = (
        table[t].astype(wide).reshape(per_example) for table in (schedule.signal, schedule.noise)
    )
    clean, eps = x0.astype(wide), jax.random.normal(noise_key, x0.shape, wide)
    out, _ = denoise(P.add_noise(clean, eps, a, b).astype(x0.dtype), t, carry)
    checks.check_shape("output of denoise", out, x0.shape)
    out = out.astype(wide)
    if prediction == "score":
        error = b * out + eps
    else:
        error = out - prediction_target(clean, eps, a, b, prediction)
    if weighting == "uniform":
        return jnp.mean(error**2)
    return jnp.mean(min_snr_weight((a / b) ** 2, prediction, gamma) * error**2)


def prediction_target(
    x0: Float[Array, "*shape"],
    eps: Float[Array, "*shape"],
    a: P.Level,
    b: P.Level,
    prediction: P.Prediction,
) -> Float[Array, "*shape"]:
    """What a network should say of x_t = a x_0 + b ε.

    Args:
        x0: clean data.
        eps: the noise in it.
        a: signal.
        b: noise.
        prediction: what the output of the network means.

    Returns:
        The target.

    Raises:
        ValueError: shapes that differ or an unknown prediction.

    >>> print(f"{prediction_target(jnp.array(2.0), jnp.array(1.0), 0.6, 0.8, 'v'):.4f}")
    -1.0000
    """
    checks.check_shape("eps", eps, x0.shape)
    P.check_prediction(prediction)
    if prediction == "x0":
        return x0
    if prediction == "eps":
        return eps
    if prediction == "v":
        return P.add_noise(eps, -x0, a, b)
    return P.to_score(eps, eps, a, b, "eps")


def min_snr_weight(
    snr: Float[Array, "..."], prediction: P.Prediction, gamma: Scalar = 5.0
) -> Float[Array, "..."]:
    """The min-SNR-γ weight of a square error.

    Args:
        snr: a²/b², from 0 to infinity.
        prediction: what the error is of.
        gamma: γ.

    Returns:
        Weights in the shape of `snr`.

    Raises:
        ValueError: a negative SNR, γ not above 0 or an unknown prediction.

    >>> min_snr_weight(jnp.array([0.0, 1.0, 10.0]), "eps")
    Array([1. , 1. , 0.5], dtype=float32)
    """
    checks.check_range("snr", snr, 0.0, float("inf"))
    P.check_prediction(prediction)
    checks.check_scalar("gamma", gamma)
    checks.check_positive("gamma", gamma)
    gamma = jnp.asarray(gamma, snr.dtype)
    capped = jnp.minimum(snr, gamma)
    if prediction == "x0":
        return capped
    if prediction == "v":
        return capped / (snr + 1)
    return gamma / jnp.maximum(snr, gamma)
