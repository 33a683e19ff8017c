"""Targets: mixtures whose means lie on a line, a simplex or a sphere, and laws near a mixture."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxicml import checks
from jaxicml.diffusion.gmm import GMM, draw_labels, gaussian_mixture
from jaxicml.types import Key, Scalar

__all__ = [
    "StudentMixture",
    "anisotropic",
    "collinear",
    "random_means",
    "simplex",
    "student_mixture",
    "three_modes",
]


def three_modes(d: int = 1, sigma2: Scalar = 0.25) -> GMM:
    """Weights (.3, .5, .2) at −3, .5 and 3 on the first axis of R^d.

    Raises:
        ValueError: d below 1, σ² below zero.

    >>> three_modes(2).means[:, 0]
    Array([-3. ,  0.5,  3. ], dtype=float32)
    """
    return gaussian_mixture(
        jnp.array([0.3, 0.5, 0.2]), _on_first_axis(jnp.array([-3.0, 0.5, 3.0]), d), sigma2
    )


def collinear(num_components: int, spread: Scalar = 4.0, sigma2: Scalar = 0.04, d: int = 1) -> GMM:
    """Equal weights at K equidistant points from −spread to spread on the first axis.

    Raises:
        ValueError: no component, d below 1, σ² below zero.

    >>> collinear(3).means[:, 0]
    Array([-4.,  0.,  4.], dtype=float32)
    """
    checks.check_integer("num_components", num_components, low=1)
    checks.check_scalar("spread", spread)
    points = spread * jnp.linspace(-1.0, 1.0, num_components)
    return gaussian_mixture(_uniform(num_components), _on_first_axis(points, d), sigma2)


def simplex(num_components: int, d: int, separation: Scalar, sigma2: Scalar = 0.25) -> GMM:
    """Equal weights at K points with equal distances, around the origin.

    Raises:
        ValueError: fewer than one component, d below K, σ² below zero.

    >>> g = simplex(3, 4, 2.0)
    >>> jnp.linalg.norm(g.means[0] - g.means[2])
    Array(2., dtype=float32)
    """
    checks.check_integer("num_components", num_components, low=1)
    checks.check_integer("d", d, low=num_components)
    checks.check_scalar("separation", separation)
    corners = separation / jnp.sqrt(2.0) * jnp.eye(num_components, d)
    return gaussian_mixture(_uniform(num_components), corners - corners.mean(0), sigma2)


def random_means(
    key: Key, num_components: int, d: int, radius: Scalar, sigma2: Scalar = 0.25
) -> GMM:
    """Equal weights at K points drawn uniformly from a sphere.

    Raises:
        ValueError: fewer than one component, d below 1, σ² below zero.

    >>> g = random_means(jax.random.key(0), 5, 3, 2.0)
    >>> bool(jnp.allclose(jnp.linalg.norm(g.means, axis=1), 2))
    True
    """
    checks.check_integer("num_components", num_components, low=1)
    checks.check_integer("d", d, low=1)
    checks.check_scalar("radius", radius)
    points = jax.random.normal(key, (num_components, d))
    points *= radius / jnp.linalg.norm(points, axis=1, keepdims=True)
    return gaussian_mixture(_uniform(num_components), points, sigma2)


def anisotropic(key: Key, g: GMM, rho: Scalar) -> GMM:
    """Each component gets eigenvalues σ²(1 ± ρ), half of each, in random directions.

    Args:
        key: random key.
        g: a mixture with isotropic components.
        rho: ρ in [0, 1].

    Returns:
        A mixture of general components, near `g` for small ρ.

    Raises:
        ValueError: components that are not isotropic, ρ outside [0, 1].
    """
    checks.check_range("number of dimensions of g.variances", g.variances.ndim, 0, 1)
    checks.check_scalar("rho", rho)
    checks.check_range("rho", rho, 0.0, 1.0)
    K, d = g.offsets.shape
    gaussians = jax.random.normal(key, (K, d, d), g.offsets.dtype)
    axes = jax.lax.map(lambda a: jnp.linalg.qr(a)[0], gaussians)
    sign = jnp.where(jnp.arange(d) % 2, -1.0, 1.0)
    sigma2 = jnp.broadcast_to(g.variances, (K,))
    values = sigma2[:, None] * (1 + rho * sign)
    return GMM(g.log_weights, g.offsets, g.center, values.astype(g.offsets.dtype), axes)


class StudentMixture(NamedTuple):
    """A mixture of Student-t laws with the means and variances of a Gaussian mixture.

    Attributes:
        g: the Gaussian mixture it resembles.
        dof: degrees of freedom, above 2.
    """

    g: GMM
    dof: Scalar

    def sample(self, key: Key, n: int) -> Float[Array, "n d"]:
        """Draws: a Gaussian over the root of a scaled χ², one scale a draw."""
        checks.check_integer("n", n, low=1)
        label_key, noise_key, scale_key = jax.random.split(key, 3)
        labels = draw_labels(label_key, self.g.log_weights, n)
        z = jax.random.normal(noise_key, (n, self.g.dim), self.g.offsets.dtype)
        chi2 = jax.random.chisquare(scale_key, self.dof, (n, 1), z.dtype)
        sigma = jnp.sqrt(jnp.broadcast_to(self.g.variances, (self.g.num_components,)))[labels]
        # the variance of a t law is ν/(ν − 2) times its squared scale
        return self.g.means[labels] + sigma[:, None] * z * jnp.sqrt((self.dof - 2) / chi2)

    def log_prob(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
        """Log density in nats."""
        checks.check_shape("x", x, (*jnp.shape(x)[:-1], self.g.dim))
        g, dof, d = self.g, jnp.asarray(self.dof, x.dtype), self.g.dim
        scale2 = jnp.broadcast_to(g.variances, (g.num_components,)) * (dof - 2) / dof
        squares = jnp.sum((x[..., None, :] - g.means) ** 2, -1) / scale2
        log_c = jax.lax.lgamma((dof + d) / 2) - jax.lax.lgamma(dof / 2)
        log_c = log_c - d / 2 * jnp.log(dof * jnp.pi * scale2)
        kernel = -(dof + d) / 2 * jnp.log1p(squares / dof)
        return jax.nn.logsumexp(g.log_weights + log_c + kernel, -1)


def student_mixture(g: GMM, dof: Scalar) -> StudentMixture:
    """Heavy-tailed components in place of Gaussian ones; near `g` for many degrees of freedom.

    Raises:
        ValueError: components that are not isotropic, no more than 2 degrees of freedom.

    >>> student_mixture(three_modes(), 5.0).log_prob(jnp.array([0.5]))
    Array(-0.7126, dtype=float32)
    """
    checks.check_range("number of dimensions of g.variances", g.variances.ndim, 0, 1)
    checks.check_scalar("dof", dof)
    checks.check_positive("dof - 2", dof - 2)
    return StudentMixture(g, dof)


def _uniform(num_components: int) -> Float[Array, " K"]:
    return jnp.full(num_components, 1 / num_components)


def _on_first_axis(points: Array, d: int) -> Array:
    checks.check_integer("d", d, low=1)
    return jnp.zeros((points.size, d), points.dtype).at[:, 0].set(points)
