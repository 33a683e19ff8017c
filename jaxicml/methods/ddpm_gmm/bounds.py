"""Total variation in many dimensions, from above and from below.

Above: the data-processing inequality along the path,
    KL(X_1 ‖ Y_1) ≤ KL(X_T ‖ N(0, I)) + Σ_t E KL(X_{t-1} | X_t ‖ N(m̄, sd_t² I)),
where X_{t-1} | X_t = x is Σ_k r_k N(m_k, w_t I) with w_t = (1 − α_t) v_{t-1}/v_t and
m_k − m̄ = √ᾱ_{t-1} (1 − α_t)/v_t · (μ_k − Σ r μ). Then TV ≤ min(1, √(KL/2)) (Pinsker). The bound
falls like log T / √T, slower than the distance itself: it is a bound, not an estimate.

Below: any event separates two laws by at most their total variation. Two are tried: a threshold on
a statistic, with a Dvoretzky-Kiefer-Wolfowitz band, and a set of labels, chosen on one half of the
samples and judged on the other.

References:
    Massart, "The tight constant in the Dvoretzky-Kiefer-Wolfowitz inequality", 1990.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxicml import checks
from jaxicml.diffusion.gmm import GMM, draw_labels
from jaxicml.diffusion.schedules import Schedule, Variance, reverse_variance
from jaxicml.methods.ddpm_gmm.density import check_shared_variance
from jaxicml.types import Key, Scalar

__all__ = [
    "Estimate",
    "LowerBound",
    "kl_to_tv",
    "path_kl_bound",
    "tv_from_ratios",
    "tv_lower_bound",
]


_RESPONSIBILITIES = 2**23
"""Of draws and components, held at once."""


class Estimate(NamedTuple):
    """A Monte Carlo estimate.

    Attributes:
        value: the estimate.
        se: its standard error.
    """

    value: Float[Array, "..."]
    se: Float[Array, "..."]


class LowerBound(NamedTuple):
    """How far two samples are apart at least.

    Attributes:
        value: the difference seen.
        low: what remains with the asked confidence; the total variation is not below it.
    """

    value: Float[Array, ""]
    low: Float[Array, ""]


def path_kl_bound(
    key: Key,
    g: GMM,
    schedule: Schedule,
    variance: Variance,
    n_mc: int,
    *,
    num_outer: Scalar = 0,
) -> Estimate:
    """An upper bound of KL(X_1 ‖ Y_1) for DDPM with the exact score.

    Cost O(T n_mc K r) for a mixture in r dimensions; memory O(n_mc r + K r), and a bounded number
    of responsibilities. Where the components are close, the quadratic term of the log-likelihood
    ratio, whose mean is known, is a control variate.

    Args:
        key: random key.
        g: the mixture, with one σ²; inside the span of its means (`split_subspace`) the cost is
            free of the ambient dimension.
        schedule: T noise levels.
        variance: reverse variance, as in `reverse_variance`.
        n_mc: draws of X_t at each of the T levels.
        num_outer: dimensions outside the span; their part has closed form and vanishes under
            "component" but for the start.

    Returns:
        The bound in nats and its standard error.

    Raises:
        ValueError: components of different covariance, an unknown rule, n_mc below 2.

    >>> import jax, jax.numpy as jnp
    >>> from jaxicml.diffusion import gmm, schedules
    >>> g = gmm.gaussian_mixture(jnp.ones(1), jnp.zeros((1, 2)), 0.25)
    >>> bound = path_kl_bound(jax.random.key(0), g, schedules.theory(50), "component", 16)
    >>> bool(bound.value < 1e-3)  # one component: the rule is exact, the start nearly
    True
    """
    checks.check_choice("variance", variance, get_args(Variance))
    checks.check_integer("n_mc", n_mc, low=2)
    checks.check_scalar("num_outer", num_outer)
    checks.check_not_negative("num_outer", num_outer)
    check_shared_variance(g)
    return _path_kl_bound(key, g, schedule, variance, n_mc, num_outer)


@partial(jax.jit, static_argnames=("variance", "n_mc"))
def _path_kl_bound(key, g, schedule, variance, n_mc, num_outer) -> Estimate:
    sigma2 = g.variances.ravel()[0]
    v = schedule.abar * sigma2 + schedule.noise**2
    # "component" has the variance of the components: nothing but rounding would be left
    rule = jnp.zeros_like if variance == "component" else jnp.ones_like
    sd2 = reverse_variance(schedule, variance, sigma2)
    w = schedule.betas[1:] * v[:-1] / v[1:]
    shift = schedule.signal[:-1] * schedule.betas[1:] / v[1:]
    keys = jax.random.split(key, schedule.num_steps)
    levels = (keys[1:], schedule.signal[1:], v[1:], w, shift, sd2[1:])

    def step(total, level):
        key, a, v, w, shift, sd2 = level
        kl, square = _step_kl(key, g, n_mc, a, v, w, shift, sd2)
        outside = (g.dim + num_outer) * rule(w) * _variance_kl(w, sd2)
        return (total[0] + kl + outside, total[1] + square), None

    start, square = _start_kl(keys[0], g, n_mc, schedule.signal[-1], v[-1])
    start += num_outer * _variance_kl(v[-1], 1.0)
    (value, square), _ = jax.lax.scan(step, (start, square), levels)
    # traced variances cannot be refused
    known = jnp.all(g.variances == sigma2)
    return Estimate(jnp.where(known, value, jnp.nan), jnp.sqrt(square))


def _variance_kl(w, sd2):
    """KL(N(0, w) ‖ N(0, sd²))."""
    ratio = w / sd2
    return 0.5 * (ratio - 1 - jnp.log(ratio))


def _draw(key, g, n, a, v):
    """X_t relative to the centre's image."""
    label_key, noise_key = jax.random.split(key)
    labels = draw_labels(label_key, g.log_weights, n)
    noise = jax.random.normal(noise_key, (n, g.dim), g.offsets.dtype)
    return a * g.offsets[labels] + jnp.sqrt(v) * noise


def _mean_and_square(values):
    return values.mean(), values.var(ddof=1) / values.size


def _each(one, g, *rows):
    """A function of one draw at every draw, as many at once as memory bears."""
    at_once = max(1, _RESPONSIBILITIES // g.num_components)
    n = rows[0].shape[0]
    return jax.lax.map(lambda row: one(*row), rows, batch_size=min(n, at_once))


def _logits(g, norms, x, a, v):
    return a / v * (g.offsets @ x) - a**2 / (2 * v) * norms + g.log_weights


def _start_kl(key, g, n, a, v):
    """KL(X_T ‖ N(0, I)), with the centre back in."""
    norms = jnp.sum(g.offsets**2, 1)

    def one(x):
        log_p = jax.nn.logsumexp(_logits(g, norms, x, a, v)) - x @ x / (2 * v)
        return log_p - 0.5 * g.dim * jnp.log(v) + 0.5 * jnp.sum((x + a * g.center) ** 2)

    return _mean_and_square(_each(one, g, _draw(key, g, n, a, v)))


def _step_kl(key, g, n, a, v, w, shift, sd2):
    """E KL(Σ_k r_k N(m_k, w I) ‖ N(m̄, sd² I)) over X_t, and the square of its standard error.

    Without the d/2 (w/sd² − 1 − log(w/sd²)) that every dimension adds. X_{t-1} is drawn as
    m_l + √w z, so that the log-likelihood ratio needs products of the means with μ_l and z alone.
    """
    x_key, label_key, noise_key = jax.random.split(key, 3)
    norms = jnp.sum(g.offsets**2, 1)
    part = shift**2 / w

    def one(x, z, u):
        r = jax.nn.softmax(_logits(g, norms, x, a, v))
        mean = r @ g.offsets
        spread = jnp.maximum(r @ norms - mean @ mean, 0)
        label = jnp.minimum(jnp.sum(jnp.cumsum(r) <= u), r.size - 1)
        own, along = g.offsets[label], g.offsets @ z
        # log Σ_k r_k exp(δ_k·y/w − ‖δ_k‖²/2w) with δ_k = shift (μ_k − mean), y = δ_l + √w z
        inner = part * (g.offsets @ own - norms / 2) + shift / jnp.sqrt(w) * along
        rest = part * (mean @ own - mean @ mean / 2) + shift / jnp.sqrt(w) * (mean @ z)
        log_ratio = jax.nn.logsumexp(inner, b=r) - rest
        control = part / 2 * (r @ along**2 - (r @ along) ** 2 - spread)
        return log_ratio - control + 0.5 * shift**2 * spread * (1 / sd2 - 1 / w)

    x = _draw(x_key, g, n, a, v)
    z = jax.random.normal(noise_key, x.shape, x.dtype)
    u = jax.random.uniform(label_key, (n,), x.dtype)
    return _mean_and_square(_each(one, g, x, z, u))


def kl_to_tv(kl: Float[Array, "..."]) -> Float[Array, "..."]:
    """Pinsker's bound min(1, √(KL/2)) of the total variation.

    >>> import jax.numpy as jnp
    >>> kl_to_tv(jnp.array([0.02, 8.0]))
    Array([0.1, 1. ], dtype=float32)
    """
    return jnp.minimum(jnp.sqrt(jnp.maximum(kl, 0) / 2), 1)


def tv_from_ratios(log_ratio: Float[Array, " n"]) -> Estimate:
    """Total variation of two laws with known densities, TV(p, q) = E_p max(0, 1 − q/p).

    Args:
        log_ratio: log q(x) − log p(x) at draws x of p; −∞ where q has no density.

    Returns:
        The estimate and its standard error.

    Raises:
        ValueError: fewer than two draws, NaN.

    >>> import jax, jax.numpy as jnp
    >>> x = jax.random.normal(jax.random.key(0), (100_000,))
    >>> apart = tv_from_ratios(0.5 * x - 0.125)  # N(0, 1) and N(½, 1): 2Φ(¼) − 1 = .1974
    >>> print(f"{apart.value:.2f} ± {apart.se:.3f}")
    0.20 ± 0.001
    """
    checks.check_floats("log_ratio", log_ratio, (None,), finite=False)
    checks.check_min_rows("log_ratio", log_ratio, 2)
    checks.check_range("log_ratio", log_ratio, -math.inf, math.inf)
    missing = jnp.maximum(0, -jnp.expm1(log_ratio))
    return Estimate(missing.mean(), missing.std(ddof=1) / math.sqrt(log_ratio.size))


def tv_lower_bound(
    key: Key,
    x: Float[Array, "n d"],
    y: Float[Array, "m d"],
    statistic: Callable[[Array], Array],
    *,
    level: Scalar = 0.95,
) -> LowerBound:
    """A lower bound of the total variation between the laws of two samples.

    Args:
        key: random key; splits the samples where the statistic gives labels.
        x: draws from one law.
        y: draws from the other.
        statistic: points -> one real number each (the best threshold is taken), or one label in
            0, 1, ... each (the best set of labels is).
        level: confidence of `low`.

    Returns:
        The difference of probabilities seen and its lower end; never below zero.

    Raises:
        ValueError: fewer than 4 points, NaN, different dimensions, a level outside (0, 1), a
            statistic that does not return one finite value a point.

    >>> import jax, jax.numpy as jnp
    >>> x = jnp.zeros((1000, 1))
    >>> bound = tv_lower_bound(jax.random.key(0), x, x + 1, lambda x: x[:, 0])
    >>> print(f"{bound.value:.2f} {bound.low:.2f}")
    1.00 0.91
    """
    for name, points in (("x", x), ("y", y)):
        checks.check_shape(name, points, (None, x.shape[-1] if jnp.ndim(x) else None))
        checks.check_min_rows(name, points, 4)
        checks.check_finite(name, points)
    checks.check_scalar("level", level)
    checks.check_open_unit("level", level)
    checks.check_callable("statistic", statistic)
    of_x, of_y = statistic(x), statistic(y)
    checks.check_shape("statistic(x)", of_x, (len(x),))
    checks.check_shape("statistic(y)", of_y, (len(y),))
    checks.check_finite("statistic(x)", of_x)
    checks.check_finite("statistic(y)", of_y)
    if jnp.issubdtype(of_x.dtype, jnp.integer):
        return _by_labels(key, of_x, of_y, level)
    return _by_threshold(of_x, of_y, level)


def _by_threshold(x, y, level) -> LowerBound:
    """Largest difference of distribution functions, less the bands of both."""
    x, y = jnp.sort(x), jnp.sort(y)
    at = jnp.concatenate([x, y])
    below = lambda sample: jnp.searchsorted(sample, at, side="right") / sample.size
    value = jnp.max(jnp.abs(below(x) - below(y)))
    # each band holds with half of what may go wrong
    band = lambda n: jnp.sqrt(jnp.log(4 / (1 - level)) / (2 * n))
    low = value - band(x.size) - band(y.size)
    return LowerBound(value, jnp.maximum(low, 0).astype(value.dtype))


def _by_labels(key, x, y, level) -> LowerBound:
    """Difference on the labels that were more frequent in x in the other half; Hoeffding's band."""
    x_key, y_key = jax.random.split(key)
    x, y = jax.random.permutation(x_key, x), jax.random.permutation(y_key, y)
    split_x, split_y = x.size // 2, y.size // 2
    # frequency of every label at its own places, without knowing how many labels there are
    share = lambda sample, at: (
        (jnp.searchsorted(sample, at, side="right") - jnp.searchsorted(sample, at, side="left"))
        / sample.size
    )
    x1, y1 = jnp.sort(x[:split_x]), jnp.sort(y[:split_y])
    chosen = lambda at: share(x1, at) > share(y1, at)
    hit_x, hit_y = chosen(x[split_x:]), chosen(y[split_y:])
    value = jnp.maximum(hit_x.mean() - hit_y.mean(), 0)
    band = jnp.sqrt(jnp.log(1 / (1 - level)) / 2 * (1 / hit_x.size + 1 / hit_y.size))
    return LowerBound(value, jnp.maximum(value - band, 0).astype(value.dtype))
