"""The trace bound: how much of the components' spread a noise level can show.

    mmse(snr) = E tr Cov(μ_k | √snr μ_k + Z),   ∫_0^∞ mmse dsnr = 2 H(π)      (I-MMSE)
mmse falls, so snr · mmse(snr) ≤ 2 H(π) ≤ 2 log K at snr_t = ᾱ_t / v_t: no dimension appears.

References:
    Guo, Shamai, Verdú, "Mutual information and minimum mean-square error in Gaussian channels",
    2005, arXiv cs/0412108.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxicml import checks
from jaxicml.diffusion.gmm import GMM, draw_labels
from jaxicml.diffusion.schedules import Schedule
from jaxicml.methods.ddpm_gmm.bounds import Estimate
from jaxicml.methods.ddpm_gmm.density import check_shared_variance
from jaxicml.types import Key

__all__ = ["mixture_entropy", "mmse_curve", "mmse_on_line", "schedule_snr"]


def mmse_curve(key: Key, g: GMM, snr: Float[Array, " m"], n_mc: int) -> Estimate:
    """Mean squared error of the best guess of μ_k from √snr μ_k + Z, by Monte Carlo.

    The same draws serve every snr, so that the curve is smooth. Cost O(m n_mc K d).

    Args:
        key: random key.
        g: the mixture; only its weights and means matter.
        snr: signal-to-noise ratios, at least 0.
        n_mc: draws.

    Returns:
        mmse at each ratio in units of the means squared, and standard errors.

    Raises:
        ValueError: a ratio below zero, n_mc below 2.
    """
    checks.check_shape("snr", snr, (None,))
    checks.check_not_negative("snr", snr)
    checks.check_integer("n_mc", n_mc, low=2)
    label_key, noise_key = jax.random.split(key)
    mu = g.offsets[draw_labels(label_key, g.log_weights, n_mc)]
    noise = jax.random.normal(noise_key, mu.shape, mu.dtype)
    norms = jnp.sum(g.offsets**2, 1)

    def at(snr):
        logits = (snr * mu + jnp.sqrt(snr) * noise) @ g.offsets.T - snr / 2 * norms
        r = jax.nn.softmax(logits + g.log_weights, 1)
        # where one component is certain, the difference is rounding
        spread = jnp.maximum(r @ norms - jnp.sum((r @ g.offsets) ** 2, 1), 0)
        return spread.mean(), spread.std(ddof=1) / jnp.sqrt(n_mc)

    return Estimate(*jax.lax.map(at, snr))


def mmse_on_line(g: GMM, snr: Float[Array, " m"], *, n_grid: int = 2001) -> Float[Array, " m"]:
    """The same for means on a line, by quadrature; exact to about eight digits in float64.

    Args:
        g: one-dimensional mixture.
        snr: signal-to-noise ratios, at least 0.
        n_grid: quadrature points around every mean.

    Returns:
        mmse at each ratio.

    Raises:
        ValueError: another dimension than one, a ratio below zero.

    >>> import jax.numpy as jnp
    >>> from jaxicml.diffusion import gmm
    >>> g = gmm.gaussian_mixture(jnp.ones(2) / 2, jnp.array([[-1.0], [1.0]]), 0.0)
    >>> mmse_on_line(g, jnp.array([0.0, 1.0]))  # at 0 the variance of the means
    Array([1.    , 0.4496], dtype=float32)
    """
    checks.check_shape("means", g.means, (None, 1))
    checks.check_shape("snr", snr, (None,))
    checks.check_not_negative("snr", snr)
    checks.check_integer("n_grid", n_grid, low=16)
    mu, weights = g.offsets[:, 0], jnp.exp(g.log_weights)
    z = jnp.linspace(-9, 9, n_grid).astype(mu.dtype)
    density = jnp.exp(-(z**2) / 2) / jnp.sqrt(2 * jnp.pi) * (18 / (n_grid - 1))

    def around(snr, center):
        """Spread of the posterior at √snr μ_j + z, averaged over z."""
        y = jnp.sqrt(snr) * center + z
        logits = jnp.sqrt(snr) * y[:, None] * mu - snr / 2 * mu**2 + g.log_weights
        r = jax.nn.softmax(logits, 1)
        return density @ (r @ mu**2 - (r @ mu) ** 2)

    at = lambda snr: weights @ jax.lax.map(lambda center: around(snr, center), mu)
    return jax.lax.map(at, snr)


def schedule_snr(g: GMM, schedule: Schedule) -> Float[Array, " T"]:
    """The ratio ᾱ_t / v_t at every noise level, for one σ² of all components.

    Raises:
        ValueError: components of different covariance.

    >>> import jax.numpy as jnp
    >>> from jaxicml.diffusion import gmm, schedules
    >>> g = gmm.gaussian_mixture(jnp.ones(1), jnp.zeros((1, 1)), 1.0)
    >>> bool(jnp.allclose(schedule_snr(g, schedules.linear(10)), schedules.linear(10).abar))
    True
    """
    check_shared_variance(g)
    return schedule.abar / (schedule.abar * g.variances.ravel()[0] + schedule.noise**2)


def mixture_entropy(g: GMM) -> float:
    """Entropy H(π) in nats, equal means counted as one component; on the host.

    Raises:
        ValueError: a traced mixture.

    >>> import jax.numpy as jnp
    >>> from jaxicml.diffusion import gmm
    >>> means = jnp.array([[0.0], [0.0], [1.0]])
    >>> g = gmm.gaussian_mixture(jnp.array([0.25, 0.25, 0.5]), means, 1.0)
    >>> round(mixture_entropy(g), 4)  # log 2
    0.6931
    """
    checks.check_concrete("means", g.offsets)
    _, group = np.unique(np.asarray(g.offsets), axis=0, return_inverse=True)
    merged = np.bincount(group.ravel(), np.exp(np.asarray(g.log_weights, np.float64)))
    merged = merged[merged > 0]  # a weight below the smallest number adds nothing
    return float(-(merged * np.log(merged)).sum())
