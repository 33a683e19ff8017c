"""Exact Sinkhorn divergences, to measure estimators against.

Gaussian laws, cost ½‖·‖² [Janati et al. 2020]:
    S_ε = ½‖a − b‖² + ½[B(A, B) − ½B(A, A) − ½B(B, B)],
    B(A, B) = tr A + tr B − tr D + ε log det(D + εI),   D = (4 A^½ B A^½ + ε²I)^½

Bimodal family N(0, I₂) against ½N(−θ1, I₂) + ½N(θ1, I₂): the two laws differ along 1/√2 alone and
share an independent standard normal across it, so S is that of the one-dimensional laws N(0, 1)
and ½N(±√2 θ, 1), found by quadrature. ½MMD² with the kernel exp(−‖·‖²/(2ε)) is a sum of Gaussians.

References:
    Janati, Muzellec, Peyré, Cuturi, "Entropic optimal transport between unbalanced Gaussian
    measures has a closed form", 2020, arXiv 2006.02572.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxicml import checks
from jaxicml.methods.sinkhorn_effect.potentials import sinkhorn_divergence
from jaxicml.types import Scalar

__all__ = ["BimodalCurve", "bimodal_curve", "gaussian_sinkhorn_divergence"]


class BimodalCurve(NamedTuple):
    """Exact effects along the bimodal family, one entry a θ; outcome units squared and none."""

    sinkhorn: Float[Array, " t"]
    half_mmd: Float[Array, " t"]


def gaussian_sinkhorn_divergence(
    mean1: Float[Array, " d"],
    cov1: Float[Array, "d d"],
    mean0: Float[Array, " d"],
    cov0: Float[Array, "d d"],
    *,
    epsilon: Scalar,
) -> Float[Array, ""]:
    """S_ε between two Gaussian laws, cost ½‖y − y'‖².

    Args:
        mean1: mean of the first law.
        cov1: its covariance.
        mean0: mean of the second law.
        cov0: its covariance.
        epsilon: regularisation.

    Raises:
        ValueError: shapes that do not match, or ε not above zero.

    >>> import jax.numpy as jnp
    >>> one = jnp.eye(1)
    >>> value = gaussian_sinkhorn_divergence(
    ...     jnp.zeros(1), one, jnp.ones(1), 2.25 * one, epsilon=1.0)
    >>> round(float(value), 4)
    0.6186
    """
    d = mean1.shape[0]
    checks.check_shape("mean0", mean0, (d,))
    checks.check_shape("cov1", cov1, (d, d))
    checks.check_shape("cov0", cov0, (d, d))
    checks.check_positive("epsilon", epsilon)
    bures = lambda a, b: _entropic_bures(a, b, epsilon)
    spread = bures(cov1, cov0) - (bures(cov1, cov1) + bures(cov0, cov0)) / 2
    return ((mean1 - mean0) ** 2).sum() / 2 + spread / 2


def _entropic_bures(a, b, epsilon):
    root = _square_root(a)
    squared = jnp.linalg.eigvalsh(4 * root @ b @ root)
    d = jnp.sqrt(jnp.maximum(squared, 0) + epsilon**2)
    return jnp.trace(a) + jnp.trace(b) - d.sum() + epsilon * jnp.log(d + epsilon).sum()


def _square_root(a):
    values, vectors = jnp.linalg.eigh(a)
    return (vectors * jnp.sqrt(jnp.maximum(values, 0))) @ vectors.T


def bimodal_curve(
    thetas: Float[Array, " t"], *, epsilon: float, num_points: int = 600
) -> BimodalCurve:
    """Exact S_ε and ½MMD² of the bimodal family in the plane.

    Args:
        thetas: half distances of the modes, along each axis.
        epsilon: regularisation of S and width² of the kernel.
        num_points: quadrature points of the one-dimensional problem, at equal distances.

    Raises:
        ValueError: ε not above zero.
    """
    checks.check_positive("epsilon", epsilon)
    checks.check_integer("num_points", num_points, low=50)
    offsets = np.sqrt(2.0) * np.asarray(thetas)
    reach = float(np.abs(offsets).max(initial=0)) + 8
    points = jnp.linspace(-reach, reach, num_points)
    density = lambda centre: jnp.exp(-((points - centre) ** 2) / 2)
    normal = density(0.0) / density(0.0).sum()

    def divergence(offset):
        mixture = density(offset) + density(-offset)
        x = points[:, None]
        options = {"epsilon": epsilon, "max_iter": 20_000}
        return sinkhorn_divergence(x, x, mixture / mixture.sum(), normal, **options)[0]

    sinkhorn = jax.lax.map(divergence, jnp.asarray(offsets, points.dtype))
    return BimodalCurve(sinkhorn, _half_mmd(jnp.asarray(offsets, points.dtype), epsilon))


def _half_mmd(offset, epsilon):
    """½ E-form of MMD² with E exp(−‖Z + m‖²/(2ε)), Z ~ N(0, 2I₂) between independent draws."""
    shrink = epsilon / (epsilon + 2)
    kernel = lambda distance: shrink * jnp.exp(-(distance**2) / (2 * (epsilon + 2)))
    within = (kernel(0.0) + kernel(2 * offset)) / 2
    return (kernel(0.0) + within - 2 * kernel(offset)) / 2
