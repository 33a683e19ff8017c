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

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxicml import checks
from jaxicml.methods.sinkhorn_effect.potentials import checked_epsilon, sinkhorn_divergence
from jaxicml.types import Scalar

__all__ = ["BimodalCurve", "bimodal_curve", "gaussian_sinkhorn_divergence"]


class BimodalCurve(NamedTuple):
    """Exact effects along the bimodal family, one entry a θ."""

    sinkhorn: Float[Array, " t"]
    """S_ε, in outcome units squared."""
    half_mmd: Float[Array, " t"]
    """½MMD², without unit."""


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
        cov1: its covariance, positive definite.
        mean0: mean of the second law.
        cov0: its covariance, likewise.
        epsilon: regularisation, in outcome units squared.

    Raises:
        ValueError: shapes that do not match, NaN, a covariance that is not symmetric or not
            positive definite, or ε not above zero.

    >>> import jax.numpy as jnp
    >>> one = jnp.eye(1)
    >>> value = gaussian_sinkhorn_divergence(
    ...     jnp.zeros(1), one, jnp.ones(1), 2.25 * one, epsilon=1.0)
    >>> round(float(value), 4)
    0.6186
    """
    checks.check_floats("mean1", mean1, (None,))
    checks.check_floats("mean0", mean0, mean1.shape)
    for name, covariance in (("cov1", cov1), ("cov0", cov0)):
        checks.check_floats(name, covariance, finite=False)
        checks.check_covariance(name, covariance, mean1.shape[0])
    epsilon = checked_epsilon("epsilon", epsilon, mean1.dtype)
    bures = lambda a, b: _entropic_bures(a, b, epsilon)
    spread = bures(cov1, cov0) - (bures(cov1, cov1) + bures(cov0, cov0)) / 2
    return ((mean1 - mean0) ** 2).sum() / 2 + spread / 2


def _entropic_bures(a, b, epsilon):
    # LᵀBL has the eigenvalues of A^½BA^½, and a gradient where those of A coincide
    factor = jnp.linalg.cholesky(a)
    squared = 4 * jnp.linalg.eigvalsh(factor.T @ b @ factor)
    d = jnp.sqrt(jnp.maximum(squared, 0) + epsilon**2)
    return jnp.trace(a) + jnp.trace(b) - d.sum() + epsilon * jnp.log(d + epsilon).sum()


def bimodal_curve(
    thetas: Float[Array, " t"], *, epsilon: Scalar, num_points: int = 600
) -> BimodalCurve:
    """Exact S_ε and ½MMD² of the bimodal family in the plane.

    The quadrature has equal distances, which converges faster than any power for these analytic
    integrands once they are well below √ε and 1; halve them (double `num_points`) to see how many
    digits hold. Give `thetas` in float64 where more than four digits matter.

    Args:
        thetas: half distances of the modes, along each axis.
        epsilon: regularisation of S and width² of the kernel.
        num_points: quadrature points of the one-dimensional problem.

    Returns:
        Both curves; S is NaN where Sinkhorn did not converge.

    Raises:
        ValueError: NaN in `thetas`, ε not above zero, or fewer than 50 points.

    >>> import jax.numpy as jnp
    >>> curve = bimodal_curve(jnp.array([0.0, 2.0]), epsilon=1.0)
    >>> curve.half_mmd.round(4).tolist()
    [0.0, 0.1625]
    """
    checks.check_floats("thetas", thetas, (None,))
    checks.check_min_rows("thetas", thetas, 1)
    epsilon = checked_epsilon("epsilon", epsilon, thetas.dtype)
    checks.check_integer("num_points", num_points, low=50)
    return _curve(thetas, epsilon, num_points)


@functools.partial(jax.jit, static_argnames="num_points")
def _curve(thetas, epsilon, num_points) -> BimodalCurve:
    # the modes lie at ±θ1, so at ±√2 θ along the diagonal
    offsets = jnp.sqrt(2.0).astype(thetas.dtype) * thetas
    reach = jnp.abs(offsets).max() + 8
    points = jnp.linspace(-reach, reach, num_points, dtype=thetas.dtype)
    density = lambda centre: jnp.exp(-((points - centre) ** 2) / 2)
    normalised = lambda weights: weights / weights.sum()

    def divergence(offset):
        mixture = normalised(density(offset) + density(-offset))
        x, normal = points[:, None], normalised(density(0.0))
        value, potentials = sinkhorn_divergence(
            x, x, mixture, normal, epsilon=epsilon, max_iter=20_000
        )
        return jnp.where(potentials.converged, value, jnp.nan)

    return BimodalCurve(jax.lax.map(divergence, offsets), _half_mmd(offsets, epsilon))


def _half_mmd(offset, epsilon):
    """½MMD² from E exp(−‖Z + m‖²/(2ε)) with Z ~ N(0, 2I₂), the difference of two draws."""
    shrink = epsilon / (epsilon + 2)
    kernel = lambda distance: shrink * jnp.exp(-(distance**2) / (2 * (epsilon + 2)))
    within = (kernel(0.0) + kernel(2 * offset)) / 2
    return (kernel(0.0) + within - 2 * kernel(offset)) / 2
