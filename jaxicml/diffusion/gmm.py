"""The Gaussian mixture as a type: building it, diffusing it, drawing from it.

p_0 = Σ_k π_k N(μ_k, Σ_k)
√ᾱ x_0 + √(1 − ᾱ) ε  ~  Σ_k π_k N(√ᾱ μ_k, ᾱ Σ_k + (1 − ᾱ) I)
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxicml import checks
from jaxicml.types import Key, Scalar

__all__ = [
    "GMM",
    "draw_labels",
    "gaussian_mixture",
    "gmm_marginal",
    "gmm_sample",
    "signal_and_noise",
]


class GMM(eqx.Module):
    """A mixture of Gaussians; build it with `gaussian_mixture`.

    Means are kept relative to the centre: products of x and μ_k then lose no digits to a common
    offset.

    Attributes:
        log_weights: log π_k.
        offsets: μ_k minus the centre.
        center: Σ_k π_k μ_k.
        variances: σ² of all, one per component, or the eigenvalues of each covariance.
        axes: eigenvectors in columns; None for isotropic or axis-parallel components.
    """

    log_weights: Float[Array, " K"]
    offsets: Float[Array, "K d"]
    center: Float[Array, " d"]
    variances: Float[Array, ""] | Float[Array, " K"] | Float[Array, "K d"]
    axes: Float[Array, "K d d"] | None = None

    @property
    def means(self) -> Float[Array, "K d"]:
        """μ_k."""
        return self.center + self.offsets

    @property
    def num_components(self) -> int:
        """K."""
        return self.offsets.shape[0]

    @property
    def dim(self) -> int:
        """The dimension d."""
        return self.offsets.shape[1]

    @property
    def is_isotropic(self) -> bool:
        """Whether every covariance is a multiple of the identity."""
        return self.variances.ndim < 2


def gaussian_mixture(
    weights: Float[Array, " K"],
    means: Float[Array, "K d"],
    cov: Scalar | Float[Array, " K"] | Float[Array, "K d"] | Float[Array, "K d d"],
) -> GMM:
    """A mixture Σ_k π_k N(μ_k, Σ_k).

    Args:
        weights: π_k, above zero, summing to one.
        means: μ_k.
        cov: σ² of all components, σ_k² of each, the diagonal of each covariance, or full
            covariances. Zero variances are allowed (the law then has atoms).

    Returns:
        The mixture, in the dtype of `means`.

    Raises:
        ValueError: weights that are not above zero or do not sum to one within 1e-6, NaN,
            a negative variance, a covariance that is not symmetric and positive semi-definite,
            shapes that do not match.

    >>> import jax.numpy as jnp
    >>> g = gaussian_mixture(jnp.array([0.5, 0.5]), jnp.array([[-1.0], [3.0]]), 0.25)
    >>> g.center
    Array([1.], dtype=float32)
    """
    checks.check_floats("means", means, (None, None))
    checks.check_min_rows("means", means, 1)
    K, d = means.shape
    checks.check_integer("number of columns of means", d, low=1)
    checks.check_array("weights", weights, (K,))
    checks.check_row_stochastic("weights", weights[None])
    checks.check_positive("weights", weights)
    variances, axes = _eigen(jnp.asarray(cov, means.dtype), K, d)
    log_weights = jnp.asarray(_log(weights), means.dtype)
    center = jnp.asarray(weights, means.dtype) @ means
    return GMM(log_weights, means - center, center, variances, axes)


def _log(weights):
    """The logarithm, of known weights on the host: float32 has no number for the smallest."""
    if checks.is_traced(weights):
        return jnp.log(weights)
    return np.log(np.asarray(weights, np.float64))


def _eigen(cov: Array, K: int, d: int) -> tuple[Array, Array | None]:
    checks.check_finite("cov", cov)
    if cov.ndim < 3:
        shapes = {0: (), 1: (K,), 2: (K, d)}
        checks.check_shape("cov", cov, shapes[cov.ndim])
        checks.check_not_negative("cov", cov)
        return cov, None
    checks.check_shape("cov", cov, (K, d, d))
    checks.check_symmetric("cov", cov)
    # component by component: batched factorisations may block one another on the CPU
    values, axes = jax.lax.map(lambda c: jnp.linalg.eigh(c), cov)
    tiny = 1e-6 if cov.dtype == jnp.float32 else 1e-12
    checks.check_not_negative("cov (eigenvalues)", values + tiny * jnp.abs(values).max())
    return jnp.maximum(values, 0), axes


def gmm_marginal(g: GMM, abar: Scalar, *, noise: Scalar | None = None) -> GMM:
    """The law of √ᾱ x_0 + √(1 − ᾱ) ε, again a mixture.

    Args:
        g: law of x_0.
        abar: ᾱ, in [0, 1].
        noise: √(1 − ᾱ) where the caller knows it to more digits (a schedule does).

    Returns:
        The mixture of x_t.

    Raises:
        ValueError: `abar` outside [0, 1].

    >>> import jax.numpy as jnp
    >>> g = gaussian_mixture(jnp.ones(1), jnp.array([[2.0]]), 0.5)
    >>> gmm_marginal(g, 0.25).variances
    Array(0.875, dtype=float32)
    """
    a, b2 = signal_and_noise(g, abar, noise)
    variances = a * a * g.variances + b2
    return GMM(g.log_weights, a * g.offsets, a * g.center, variances, g.axes)


def gmm_sample(key: Key, g: GMM, n: int) -> tuple[Float[Array, "n d"], Int[Array, " n"]]:
    """Draws from the mixture.

    Args:
        key: random key.
        g: the mixture.
        n: how many draws.

    Returns:
        Points and the component each came from.

    Raises:
        ValueError: n is no whole number of at least 1.
    """
    checks.check_integer("n", n, low=1)
    label_key, noise_key = jax.random.split(key)
    labels = draw_labels(label_key, g.log_weights, n)
    z = jax.random.normal(noise_key, (n, g.dim), g.offsets.dtype)
    if g.is_isotropic:
        scaled = jnp.sqrt(jnp.broadcast_to(g.variances, (g.num_components,)))[labels, None] * z
    else:
        scaled = jnp.sqrt(g.variances)[labels] * z
    if g.axes is not None:
        scaled = jnp.einsum("nij,nj->ni", g.axes[labels], scaled)
    return g.center + g.offsets[labels] + scaled, labels


def draw_labels(key: Key, log_weights: Float[Array, " K"], n: int) -> Int[Array, " n"]:
    """Draws n components by inverting the distribution function: memory O(n + K), not O(n K).

    Args:
        key: random key.
        log_weights: log π_k.
        n: how many draws.

    Returns:
        Indices in 0..K − 1.

    Raises:
        ValueError: log weights that are no vector, n is no whole number of at least 1.

    >>> import jax, jax.numpy as jnp
    >>> draw_labels(jax.random.key(0), jnp.log(jnp.array([0.0, 1.0])), 3)
    Array([1, 1, 1], dtype=int32)
    """
    checks.check_floats("log_weights", log_weights, (None,), finite=False)
    checks.check_min_rows("log_weights", log_weights, 1)
    checks.check_integer("n", n, low=1)
    below = jnp.cumsum(jnp.exp(log_weights))
    # u in [0, 1) times the sum can round up to the sum itself: the last index at most
    at = jax.random.uniform(key, (n,), below.dtype) * below[-1]
    return jnp.minimum(jnp.searchsorted(below, at, side="right"), log_weights.size - 1)


def signal_and_noise(g: GMM, abar: Scalar, noise: Scalar | None) -> tuple[Array, Array]:
    """√ᾱ and 1 − ᾱ."""
    checks.check_scalar("abar", abar)
    checks.check_range("abar", abar, 0.0, 1.0)
    abar = jnp.asarray(abar, g.offsets.dtype)
    b2 = 1 - abar if noise is None else jnp.asarray(noise, g.offsets.dtype) ** 2
    return jnp.sqrt(abar), b2
