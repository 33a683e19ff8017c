"""Gaussian mixtures and their exact diffusion: density, score, denoiser, Hessian trace.

    p_0 = Σ_k π_k N(μ_k, Σ_k),   x_t = a x_0 + b ε,  a = √ᾱ_t,  b² = 1 − ᾱ_t
    x_t ~ Σ_k π_k N(a μ_k, V_k),   V_k = a² Σ_k + b² I,   r_k(x) = P(k | x_t = x)
    score  s = Σ_k r_k V_k⁻¹ (a μ_k − x)
    denoiser  E[x_0 | x] = Σ_k r_k (μ_k + a Σ_k V_k⁻¹ (x − a μ_k))
    tr ∇² log p_t = Σ_k r_k (‖s_k‖² − tr V_k⁻¹) − ‖s‖²,   s_k = V_k⁻¹ (a μ_k − x)

Squares are expanded above eight dimensions and wherever components are streamed, so a point whose
squared distance from the centre, over v, exceeds the digits of the dtype loses them: float64 then.

With Σ_k = σ² I the responsibilities are softmax(a x·μ_k / v − a²‖μ_k‖² / 2v + log π_k): the score
is attention with queries x, keys and values μ, and a key bias, so it streams over components. With
unequal σ_k the squared norm of x joins the query. Full covariances are kept as eigenvectors and
eigenvalues, so that no step of a diffusion factorises anything; there components run one by one.

References:
    Anderson, "Reverse-time diffusion equation models", 1982. Dao et al., "FlashAttention",
    arXiv:2205.14135.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxicml_kernels.streaming_attention import streaming_attention_with_lse
from jaxtyping import Array, Float

from jaxicml import checks
from jaxicml.diffusion.gmm import (
    GMM,
    draw_labels,
    gaussian_mixture,
    gmm_marginal,
    gmm_sample,
    signal_and_noise,
)
from jaxicml.types import Scalar

__all__ = [
    "GMM",
    "draw_labels",
    "gaussian_mixture",
    "gmm_denoise",
    "gmm_eps",
    "gmm_hess_trace",
    "gmm_log_prob",
    "gmm_marginal",
    "gmm_responsibilities",
    "gmm_sample",
    "gmm_score",
]

_FEW_DIMENSIONS = 8
"""Up to here squared distances are summed directly; above, a matrix product is far cheaper."""


def gmm_log_prob(
    g: GMM,
    x: Float[Array, "*batch d"],
    abar: Scalar = 1.0,
    *,
    noise: Scalar | None = None,
    block: int | None = None,
    axis_name: str | None = None,
) -> Float[Array, "*batch"]:
    """Logarithm of the density p_t at x.

    Args:
        g: law of x_0.
        x: points.
        abar: ᾱ_t; 1 is the mixture itself.
        noise: √(1 − ᾱ) where the caller knows it to more digits (a schedule does).
        block: components at a time, with memory O(points · d + block · d) beside the mixture for
            one σ² (unequal ones, and the Hessian trace, copy the means); gradients then exist in
            reverse mode, once. None holds all (points, K) responsibilities.
        axis_name: of a mapped axis over which components are sharded; log weights are then those
            of the whole mixture.

    Returns:
        Log densities in nats.

    Raises:
        ValueError: `x` has another dimension than the mixture, `abar` outside [0, 1].

    >>> import jax.numpy as jnp
    >>> g = gaussian_mixture(jnp.array([0.5, 0.5]), jnp.array([[-1.0], [1.0]]), 1.0)
    >>> gmm_log_prob(g, jnp.array([0.0]))  # both components have density φ(1) there
    Array(-1.4189, dtype=float32)
    """
    at = _at(g, x, abar, noise)
    return _shaped(x, _expect(at, _SCORE, block, axis_name)[1])


def gmm_score(
    g: GMM,
    x: Float[Array, "*batch d"],
    abar: Scalar = 1.0,
    *,
    noise: Scalar | None = None,
    block: int | None = None,
    axis_name: str | None = None,
) -> Float[Array, "*batch d"]:
    """∇ log p_t(x); 4·points·K·d floating point operations for isotropic components.

    Args and Raises are those of `gmm_log_prob`.

    Returns:
        The score at each point.

    >>> import jax.numpy as jnp
    >>> g = gaussian_mixture(jnp.ones(1), jnp.array([[2.0]]), 0.5)
    >>> gmm_score(g, jnp.array([0.0]), 1.0)  # (2 − 0) / .5
    Array([4.], dtype=float32)
    """
    at = _at(g, x, abar, noise)
    return _shaped(x, _expect(at, _SCORE, block, axis_name)[0])


def gmm_eps(
    g: GMM,
    x: Float[Array, "*batch d"],
    abar: Scalar,
    *,
    noise: Scalar | None = None,
    block: int | None = None,
    axis_name: str | None = None,
) -> Float[Array, "*batch d"]:
    """E[ε | x_t = x] = −√(1 − ᾱ) s(x), what an ε-predicting network should return.

    Args and Raises are those of `gmm_log_prob`.

    Returns:
        The expected noise at each point.

    >>> import jax.numpy as jnp
    >>> g = gaussian_mixture(jnp.ones(1), jnp.zeros((1, 1)), 1.0)
    >>> gmm_eps(g, jnp.array([1.0]), 0.75)  # √.25 · 1
    Array([0.5], dtype=float32)
    """
    at = _at(g, x, abar, noise)
    return _shaped(x, -jnp.sqrt(at.b2) * _expect(at, _SCORE, block, axis_name)[0])


def gmm_denoise(
    g: GMM,
    x: Float[Array, "*batch d"],
    abar: Scalar,
    *,
    noise: Scalar | None = None,
    block: int | None = None,
    axis_name: str | None = None,
) -> Float[Array, "*batch d"]:
    """E[x_0 | x_t = x], also where ᾱ = 0 (the mean of the mixture) or 1 (x itself).

    At ᾱ = 1 with σ = 0 the law of x_t has atoms and no density: NaN.

    Args and Raises are those of `gmm_log_prob`.

    Returns:
        The expected clean point for each noisy one.

    >>> import jax.numpy as jnp
    >>> g = gaussian_mixture(jnp.ones(1), jnp.array([[2.0]]), 1.0)
    >>> gmm_denoise(g, jnp.array([5.0]), 0.0)
    Array([2.], dtype=float32)
    """
    at = _at(g, x, abar, noise)
    return _shaped(x, g.center + _expect(at, _CLEAN, block, axis_name)[0])


def gmm_hess_trace(
    g: GMM,
    x: Float[Array, "*batch d"],
    abar: Scalar = 1.0,
    *,
    noise: Scalar | None = None,
    block: int | None = None,
    axis_name: str | None = None,
) -> Float[Array, "*batch"]:
    """Divergence of the score, tr ∇² log p_t(x).

    Args and Raises are those of `gmm_log_prob`.

    Returns:
        The trace at each point.

    >>> import jax.numpy as jnp
    >>> g = gaussian_mixture(jnp.ones(1), jnp.zeros((1, 3)), 0.5)
    >>> gmm_hess_trace(g, jnp.ones(3))  # −3 / .5
    Array(-6., dtype=float32)
    """
    at = _at(g, x, abar, noise)
    mean = _expect(at, _CURVATURE, block, axis_name)[0]
    return _shaped(x, mean[:, -1] - jnp.sum(mean[:, :-1] ** 2, -1))


def gmm_responsibilities(
    g: GMM, x: Float[Array, "*batch d"], abar: Scalar = 1.0, *, noise: Scalar | None = None
) -> Float[Array, "*batch K"]:
    """P(k | x_t = x) for every component.

    Args:
        g: law of x_0.
        x: points.
        abar: ᾱ_t; 1 is the mixture itself.
        noise: √(1 − ᾱ) where the caller knows it to more digits (a schedule does).

    Returns:
        Rows that sum to one.

    Raises:
        ValueError: `x` has another dimension than the mixture, `abar` outside [0, 1].

    >>> import jax.numpy as jnp
    >>> g = gaussian_mixture(jnp.array([0.5, 0.5]), jnp.array([[-1.0], [1.0]]), 1.0)
    >>> gmm_responsibilities(g, jnp.array([0.0]))
    Array([0.5, 0.5], dtype=float32)
    """
    at = _at(g, x, abar, noise)
    logits = _isotropic_logits(at) if g.is_isotropic else _general_logits(at)
    return _shaped(x, jax.nn.softmax(logits, -1))


class _At(NamedTuple):
    """Points of one noise level: x relative to the centre of x_t's law, a, b² and V_k."""

    g: GMM
    x: Float[Array, "n d"]
    a: Float[Array, ""]
    b2: Float[Array, ""]
    v: Float[Array, "..."]

    @property
    def shared(self) -> bool:
        """Whether one variance serves all components."""
        return self.g.variances.ndim == 0


def _at(g: GMM, x: Array, abar: Scalar, noise: Scalar | None) -> _At:
    checks.check_shape("x", x, (*jnp.shape(x)[:-1], g.dim))
    checks.check_floating("x", x)
    a, b2 = signal_and_noise(g, abar, noise)
    return _At(g, x.reshape(-1, g.dim) - a * g.center, a, b2, a * a * g.variances + b2)


def _shaped(x: Array, flat: Array) -> Array:
    """Back to the leading dimensions and the dtype of x."""
    return flat.reshape(*x.shape[:-1], *flat.shape[1:]).astype(x.dtype)


class _Quantity(NamedTuple):
    """Something averaged over components given x.

    Attributes:
        rows: for isotropic components, what is averaged: a (K, width) table free of x.
        combine: for isotropic components, from the averaged row to the result.
        component: for one general component, the value at every x: of `_At`, its offset, s_k,
            σ²-eigenvalues times s_k (both turned back from the eigenbasis) and tr V_k⁻¹.
    """

    rows: Callable[[_At], Array]
    combine: Callable[[_At, Array], Array]
    component: Callable[[_At, Array, Array, Array, Array], Array]


def _score_rows(at: _At) -> Array:
    if at.shared:
        return at.g.offsets
    v = at.v[:, None]
    return jnp.concatenate([at.a * at.g.offsets / v, 1 / v], 1)


def _score_from(at: _At, mean: Array) -> Array:
    if at.shared:
        return (at.a * mean - at.x) / at.v
    return mean[:, :-1] - mean[:, -1:] * at.x


def _clean_rows(at: _At) -> Array:
    if at.shared:
        return at.g.offsets
    v = at.v[:, None]
    return jnp.concatenate([at.b2 * at.g.offsets / v, at.a * at.g.variances[:, None] / v], 1)


def _clean_from(at: _At, mean: Array) -> Array:
    if at.shared:
        return (at.b2 * mean + at.a * at.g.variances * at.x) / at.v
    return mean[:, :-1] + mean[:, -1:] * at.x


def _curvature_rows(at: _At) -> Array:
    offsets = at.g.offsets
    norms = jnp.sum(offsets**2, 1, keepdims=True)
    if at.shared:
        return jnp.concatenate([offsets, norms], 1)
    v = at.v[:, None]
    scaled = at.a * offsets / v
    return jnp.concatenate([scaled, scaled / v, at.a**2 * norms / v**2, 1 / v, 1 / v**2], 1)


def _curvature_from(at: _At, mean: Array) -> Array:
    """The score and, last, Σ_k r_k (‖s_k‖² − tr V_k⁻¹)."""
    d, square = at.g.dim, jnp.sum(at.x**2, 1)
    if at.shared:
        score = _score_from(at, mean[:, :-1])
        # Σ_k r_k ‖s_k‖² = ‖s‖² + a² tr Cov(μ) / v²
        spread = jnp.maximum(mean[:, -1] - jnp.sum(mean[:, :-1] ** 2, 1), 0)
        raised = jnp.sum(score**2, 1) + at.a**2 * spread / at.v**2
        return jnp.concatenate([score, (raised - d / at.v)[:, None]], 1)
    first, second = mean[:, :d], mean[:, d : 2 * d]
    norms, slope, slope2 = mean[:, -3], mean[:, -2], mean[:, -1]
    raised = square * slope2 - 2 * jnp.sum(at.x * second, 1) + norms
    score = first - slope[:, None] * at.x
    return jnp.concatenate([score, (raised - d * slope)[:, None]], 1)


_SCORE = _Quantity(_score_rows, _score_from, lambda at, offset, s, damped, inverse: s)
_CLEAN = _Quantity(
    _clean_rows, _clean_from, lambda at, offset, s, damped, inverse: offset + at.a * damped
)
_CURVATURE = _Quantity(
    _curvature_rows,
    _curvature_from,
    lambda at, offset, s, damped, inverse: jnp.concatenate(
        [s, jnp.sum(s**2, 1, keepdims=True) - inverse], 1
    ),
)


def _expect(at: _At, quantity: _Quantity, block: int | None, axis_name: str | None):
    """Mean of a quantity over the components given x, and log p_t(x)."""
    if block is not None:
        checks.check_integer("block", block, low=1)
    if at.g.is_isotropic:
        mean, log_prob = _attend(at, quantity.rows(at), block)
    else:
        mean, log_prob = _one_by_one(at, quantity)
    if axis_name is not None:
        mean, log_prob = _join(mean, log_prob, axis_name)
    return (quantity.combine(at, mean) if at.g.is_isotropic else mean), log_prob


def _join(mean: Array, log_prob: Array, axis_name: str) -> tuple[Array, Array]:
    """Joins what the shards of a mapped axis found."""
    top = jax.lax.pmax(jax.lax.stop_gradient(log_prob), axis_name)
    share = jnp.exp(log_prob - top)
    total = jax.lax.psum(share, axis_name)
    mean = jax.lax.psum(share[:, None] * mean, axis_name) / total[:, None]
    return mean, top + jnp.log(total)


def _attend(at: _At, rows: Array, block: int | None) -> tuple[Array, Array]:
    """Responsibilities times rows, and log p_t, for isotropic components."""
    if block is None:
        logits = _isotropic_logits(at)
        return jax.nn.softmax(logits, 1) @ rows, jax.nn.logsumexp(logits, 1)
    query, keys, bias, scale, rest = _as_attention(at)
    mean, lse = streaming_attention_with_lse(query, keys, rows, bias, scale=scale, block=block)
    return mean, lse + rest


def _isotropic_logits(at: _At) -> Array:
    """Logarithm of π_k N(x; a μ_k, v_k I) for every point and component."""
    if at.g.dim > _FEW_DIMENSIONS:
        query, keys, bias, scale, rest = _as_attention(at)
        return scale * (query @ keys.T) + bias + rest[:, None]
    squares = jnp.sum((at.x[:, None] - at.a * at.g.offsets) ** 2, -1)
    return at.g.log_weights - squares / (2 * at.v) - _log_normaliser(at)


def _as_attention(at: _At) -> tuple[Array, Array, Array, Array | float, Array]:
    """Query, keys, bias, scale, and what each point adds to its log-sum-exp."""
    offsets, a, v = at.g.offsets, at.a, at.v
    bias = at.g.log_weights - a**2 * jnp.sum(offsets**2, 1) / (2 * v) - _log_normaliser(at)
    square = jnp.sum(at.x**2, 1, keepdims=True)
    if at.shared:
        return at.x, offsets, bias, a / v, -square[:, 0] / (2 * v)
    keys = jnp.concatenate([a * offsets / v[:, None], -1 / (2 * v[:, None])], 1)
    return jnp.concatenate([at.x, square], 1), keys, bias, 1.0, jnp.zeros_like(square[:, 0])


def _log_normaliser(at: _At) -> Array:
    return 0.5 * at.g.dim * jnp.log(2 * jnp.pi * at.v)


def _general_component(at: _At, component):
    """Log weight, s_k, eigenvalues times s_k and tr V_k⁻¹ of one component at every point."""
    log_weight, offset, variances, v, axes = component
    turn = (lambda y: y) if axes is None else (lambda y: y @ axes)
    back = (lambda y: y) if axes is None else (lambda y: y @ axes.T)
    difference = turn(at.a * offset - at.x)
    logit = log_weight - 0.5 * jnp.sum(difference**2 / v + jnp.log(2 * jnp.pi * v), 1)
    s = difference / v
    return logit, back(s), back(-variances * s), jnp.sum(1 / v)


def _components(at: _At):
    g = at.g
    return g.log_weights, g.offsets, g.variances, at.v, g.axes


def _one_by_one(at: _At, quantity: _Quantity) -> tuple[Array, Array]:
    """Mean and log p_t for general components: a scan with a running maximum and sum."""

    def step(carry, component):
        top, total, mean = carry
        logit, s, damped, inverse = _general_component(at, component)
        value = quantity.component(at, component[1], s, damped, inverse)
        new_top = jnp.maximum(top, logit)
        # a weight of zero has logit −∞, whose difference from itself is NaN
        new_top = jnp.maximum(new_top, jnp.finfo(new_top.dtype).min)
        keep, add = jnp.exp(top - new_top), jnp.exp(logit - new_top)
        mean = keep[:, None] * mean + add[:, None] * value
        return (new_top, keep * total + add, mean), None

    first = jax.tree.map(lambda leaf: leaf[0], _components(at))
    logit, s, damped, inverse = _general_component(at, first)
    start = logit, jnp.ones_like(logit), quantity.component(at, first[1], s, damped, inverse)
    others = jax.tree.map(lambda leaf: leaf[1:], _components(at))
    (top, total, mean), _ = jax.lax.scan(step, start, others)
    return mean / total[:, None], top + jnp.log(total)


def _general_logits(at: _At) -> Array:
    return jax.lax.map(lambda c: _general_component(at, c)[0], _components(at)).T
