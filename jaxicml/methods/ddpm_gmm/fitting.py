"""Spherical mixtures fitted to data by expectation and maximisation.

E: r_ik ∝ π_k N(x_i; μ_k, σ_k² I)      M: π_k = Σ_i r_ik / n,  μ_k = Σ_i r_ik x_i / Σ_i r_ik,
σ² = Σ_ik r_ik ‖x_i − μ_k‖² / (n d), or per component.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxicml import checks
from jaxicml.diffusion.gmm import GMM
from jaxicml.types import Key

__all__ = ["fit_spherical_gmm", "kernel_mixture"]

_CHUNK = 2000
"""Points whose responsibilities are held at once."""


class _Statistics(NamedTuple):
    """Sums over points: responsibilities, r x, r ‖x‖², and the log-likelihood."""

    count: Array
    first: Array
    second: Array
    log_likelihood: Array


def fit_spherical_gmm(
    key: Key,
    x: Float[Array, "n d"],
    num_components: int,
    *,
    n_iter: int = 100,
    shared_var: bool = True,
) -> tuple[GMM, Float[Array, " n_iter"]]:
    """A mixture Σ π_k N(μ_k, σ_k² I) near the data, from random distinct points as first means.

    Cost O(n_iter n K d); memory O(K d) beyond the data. A component that loses all its points
    keeps its mean and a weight of one point in a million.

    Args:
        key: random key of the start.
        x: data.
        num_components: K, at most n.
        n_iter: iterations.
        shared_var: one σ² for all components, or one for each.

    Returns:
        The mixture, and the mean log-likelihood per point before each iteration, in nats.

    Raises:
        ValueError: NaN, more components than points, no iteration.

    >>> import jax, jax.numpy as jnp
    >>> x = jnp.concatenate([jnp.full((50, 1), -1.0), jnp.full((50, 1), 1.0)])
    >>> x += 0.1 * jnp.tile(jnp.array([[-1.0], [1.0]]), (50, 1))
    >>> g, trace = fit_spherical_gmm(jax.random.key(1), x, 2, n_iter=20)
    >>> print(jnp.round(jnp.sort(g.means[:, 0]), 3), f"{g.variances:.3f}")
    [-1.  1.] 0.010
    """
    checks.check_shape("x", x, (None, None))
    checks.check_min_rows("x", x, 1)
    checks.check_floating("x", x)
    checks.check_finite("x", x)
    checks.check_integer("num_components", num_components, low=1, high=len(x))
    checks.check_integer("n_iter", n_iter, low=1)
    return _fit(key, x, num_components, n_iter, shared_var)


@partial(jax.jit, static_argnames=("num_components", "n_iter", "shared_var"))
def _fit(key, x, num_components, n_iter, shared_var):
    n, d = x.shape
    center = x.mean(0)
    x = x - center
    # equal points have none but what rounding adds, and the floor of σ² is a share of it
    limits = jnp.finfo(x.dtype)
    least = (limits.eps * jnp.max(jnp.abs(center))) ** 2 + limits.tiny / limits.eps
    spread = jnp.maximum(jnp.sum(x**2) / (n * d), least)
    start = x[_distinct_rows(key, x, num_components)]
    shape = () if shared_var else (num_components,)
    g = (
        jnp.full(num_components, -jnp.log(num_components), x.dtype),
        start,
        jnp.full(shape, spread, x.dtype),
    )
    chunk = min(_CHUNK, n)
    rows = jnp.pad(x, ((0, -n % chunk), (0, 0))).reshape(-1, chunk, d)
    known = jnp.pad(jnp.ones(n, x.dtype), (0, -n % chunk)).reshape(-1, chunk)

    def step(g, _):
        s = _expectation(g, rows, known)
        return _maximisation(g, s, n, d, spread), s.log_likelihood / n

    (log_weights, means, variances), trace = jax.lax.scan(step, g, None, length=n_iter)
    middle = jnp.exp(log_weights) @ means
    return GMM(log_weights, means - middle, center + middle, variances), trace


def _distinct_rows(key, x, count):
    """Random rows that differ from one another, as far as there are enough.

    Equal components would stay equal: equal rows show in a random projection.
    """
    direction_key, choice_key = jax.random.split(key)
    along = x @ jax.random.normal(direction_key, x.shape[1:], x.dtype)
    order = jnp.argsort(along)
    gaps = jnp.diff(along[order], prepend=-jnp.inf)
    first = gaps > 1e-6 * jnp.std(along)
    weights = jnp.where(first, 1, jnp.finfo(x.dtype).tiny)
    chosen = jax.random.choice(choice_key, len(x), (count,), replace=False, p=weights)
    return order[chosen]


def _expectation(g, rows, known) -> _Statistics:
    log_weights, means, variances = g
    d = means.shape[1]
    norms = jnp.sum(means**2, 1)

    def add(total, chunk):
        x, known = chunk
        squares = jnp.sum(x**2, 1)
        distances = jnp.maximum(squares[:, None] - 2 * x @ means.T + norms, 0)
        logits = log_weights - distances / (2 * variances)
        logits -= d / 2 * jnp.log(2 * jnp.pi * variances)
        lse = jax.nn.logsumexp(logits, 1)
        r = known[:, None] * jnp.exp(logits - lse[:, None])
        new = _Statistics(r.sum(0), r.T @ x, squares @ r, known @ lse)
        return jax.tree.map(jnp.add, total, new), None

    zeros = _Statistics(
        jnp.zeros_like(log_weights), jnp.zeros_like(means),
        jnp.zeros_like(log_weights), jnp.zeros((), means.dtype),
    )  # fmt: skip
    return jax.lax.scan(add, zeros, (rows, known))[0]


def _maximisation(g, s: _Statistics, n, d, spread):
    _, old_means, variances = g
    alive = s.count > 1e-6
    count = jnp.where(alive, s.count, 1)
    means = jnp.where(alive[:, None], s.first / count[:, None], old_means)
    # Σ r ‖x − μ‖² with the mean of the same responsibilities
    residual = jnp.maximum(s.second - count * jnp.sum(means**2, 1), 0)
    floor = 1e-6 * spread
    if variances.ndim:
        variances = jnp.maximum(jnp.where(alive, residual / (count * d), variances), floor)
    else:
        variances = jnp.maximum(jnp.sum(jnp.where(alive, residual, 0)) / (n * d), floor)
    weights = jnp.maximum(s.count / n, 1e-6)
    return jnp.log(weights / weights.sum()), means, variances


def kernel_mixture(x: Float[Array, "n d"], sigma2: Float[Array, ""] | float) -> GMM:
    """One component at every data point: the Gaussian kernel density estimate.

    Args:
        x: data.
        sigma2: σ², the squared bandwidth.

    Returns:
        A mixture of n equal components.

    Raises:
        ValueError: no data, NaN, σ² below zero.

    >>> import jax.numpy as jnp
    >>> kernel_mixture(jnp.array([[0.0], [2.0]]), 0.1).num_components
    2
    """
    checks.check_shape("x", x, (None, None))
    checks.check_min_rows("x", x, 1)
    checks.check_floating("x", x)
    checks.check_finite("x", x)
    checks.check_scalar("sigma2", sigma2)
    checks.check_not_negative("sigma2", sigma2)
    n, center = len(x), x.mean(0)
    return GMM(jnp.full(n, -jnp.log(n), x.dtype), x - center, center, jnp.asarray(sigma2, x.dtype))
