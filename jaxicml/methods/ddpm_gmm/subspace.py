"""A mixture in R^d splits into the span of its means and the rest.

With covariances σ² I, score and sampler act on U = span{μ_k} and on its complement apart, so that
the output there is a Gaussian with closed form and only the part inside U needs work. The two parts
are independent, hence
    max(TV_U, TV_⊥) ≤ TV ≤ TV_U + TV_⊥ − TV_U TV_⊥.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxicml import checks
from jaxicml.diffusion.gmm import GMM
from jaxicml.diffusion.schedules import Schedule, Variance
from jaxicml.methods.ddpm_gmm.density import check_shared_variance, output_density_1d
from jaxicml.methods.ddpm_gmm.gaussian import output_law_gaussian, tv_isotropic
from jaxicml.methods.ddpm_gmm.plane import output_density_2d

__all__ = ["Split", "TVBounds", "output_tv", "split_subspace"]


class Split(NamedTuple):
    """A mixture inside the span of its means, and what is left outside.

    Attributes:
        inner: the mixture in coordinates of the span, of dimension r.
        basis: orthonormal rows that span the means.
        num_outer: d − r.
    """

    inner: GMM
    basis: Float[Array, "r d"]
    num_outer: int


class TVBounds(NamedTuple):
    """Total variation of a sampler's output from X_1.

    Attributes:
        inner: inside the span of the means.
        outer: in its complement.
        lower: of the whole, max of both.
        upper: of the whole, 1 − (1 − inner)(1 − outer).
    """

    inner: Float[Array, ""]
    outer: Float[Array, ""]
    lower: Float[Array, ""]
    upper: Float[Array, ""]


def split_subspace(g: GMM, *, rtol: float = 1e-9) -> Split:
    """Coordinates in which the means fill the space; on the host, since r depends on values.

    The centre stays inside: the sampler starts at zero, so the way to the centre counts. A mixture
    of one component at zero keeps one dimension.

    Args:
        g: the mixture, with one σ² for all components.
        rtol: singular values below this share of the largest count as zero, and below ten times
            the rounding of the means.

    Returns:
        The mixture in r dimensions, the basis and d − r.

    Raises:
        ValueError: components of different or non-isotropic covariance, a traced mixture.

    >>> import jax.numpy as jnp
    >>> from jaxicml.diffusion.gmm import gaussian_mixture
    >>> g = gaussian_mixture(jnp.ones(2) / 2, jnp.array([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]]), 1.0)
    >>> split_subspace(g).inner.means
    Array([[5.],
           [0.]], dtype=float32)
    """
    checks.check_concrete("means", g.offsets)
    check_shared_variance(g)
    means = np.asarray(g.means, np.float64)
    _, singular, rows = np.linalg.svd(means, full_matrices=False)
    # what the rounding of float32 means adds is no dimension
    rtol = max(rtol, 10 * float(jnp.finfo(g.offsets.dtype).eps))
    rank = max(1, int((singular > rtol * singular[0]).sum()))
    basis = rows[:rank]
    # a sign that does not depend on the factorisation: the largest entry is positive
    basis = basis * np.sign(basis[np.arange(rank), np.abs(basis).argmax(1)])[:, None]
    dtype = g.offsets.dtype
    inner = GMM(
        g.log_weights,
        jnp.asarray(np.asarray(g.offsets, np.float64) @ basis.T, dtype),
        jnp.asarray(np.asarray(g.center, np.float64) @ basis.T, dtype),
        g.variances.ravel()[0],
    )
    return Split(inner, jnp.asarray(basis, dtype), g.dim - rank)


def output_tv(
    g: GMM, schedule: Schedule, variance: Variance, *, n_grid: int | None = None
) -> TVBounds:
    """Total variation between DDPM's output and X_1, for means on a line or in a plane.

    Exact up to the quadrature inside the span; the two-sided bound of the whole closes where one
    of the parts vanishes. On the host; float64 is wanted.

    Args:
        g: target in any dimension, with one σ² for all components.
        schedule: T noise levels.
        variance: reverse variance, as in `reverse_variance`.
        n_grid: points per axis inside the span, see `output_density_1d` and `output_density_2d`.

    Returns:
        Both parts and the bounds.

    Raises:
        ValueError: means that span more than a plane (use `path_kl_bound` and `tv_lower_bound`),
            or different covariances.

    >>> import jax, jax.numpy as jnp
    >>> from jaxicml.diffusion import schedules
    >>> from jaxicml.diffusion.gmm import gaussian_mixture
    >>> with jax.enable_x64(True):
    ...     means = jnp.zeros((2, 1000)).at[:, 0].set(jnp.array([-2.0, 2.0]))
    ...     g = gaussian_mixture(jnp.ones(2) / 2, means, 0.25)
    ...     bounds = output_tv(g, schedules.theory(50), "component")
    >>> print(f"{bounds.lower:.4f} {bounds.upper:.4f}")
    0.0349 0.0349
    """
    split = split_subspace(g)
    checks.check_integer("rank of the means", split.inner.dim, low=1, high=2)
    inner = _inner_tv(split.inner, schedule, variance, n_grid)
    law = output_law_gaussian(schedule, split.inner.variances, variance)
    outer = tv_isotropic(split.num_outer, law.output, law.target)
    return TVBounds(inner, outer, jnp.maximum(inner, outer), inner + outer - inner * outer)


def _inner_tv(inner: GMM, schedule: Schedule, variance: Variance, n_grid: int | None) -> Array:
    if inner.dim == 1:
        return output_density_1d(inner, schedule, variance, n_grid=n_grid, throw=True).tv
    return output_density_2d(inner, schedule, variance, n_grid=n_grid, throw=True).tv
