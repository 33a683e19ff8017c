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

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxicml import checks
from jaxicml.diffusion.gmm import GMM
from jaxicml.diffusion.schedules import Schedule, Variance, reverse_variance
from jaxicml.methods.ddpm_gmm.density import check_shared_variance
from jaxicml.types import Key, Scalar

__all__ = ["Estimate", "LowerBound", "kl_to_tv", "path_kl_bound", "tv_lower_bound"]


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

    Cost O(T n_mc K r) for a mixture in r dimensions; of the K by n_mc arrays a few are held. Where
    the components are close, the quadratic term of the log-likelihood ratio, whose mean is known,
    is a control variate.

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
    labels = jax.random.categorical(label_key, g.log_weights, shape=(n,))
    noise = jax.random.normal(noise_key, (n, g.dim), g.offsets.dtype)
    return a * g.offsets[labels] + jnp.sqrt(v) * noise


def _logits(g, x, a, v):
    return a / v * (x @ g.offsets.T) - a**2 * jnp.sum(g.offsets**2, 1) / (2 * v) + g.log_weights


def _mean_and_square(values):
    return values.mean(), values.var(ddof=1) / values.size


def _start_kl(key, g, n, a, v):
    """KL(X_T ‖ N(0, I)), with the centre back in."""
    x = _draw(key, g, n, a, v)
    square = jnp.sum(x**2, 1)
    log_p = jax.nn.logsumexp(_logits(g, x, a, v), 1) - square / (2 * v) - 0.5 * g.dim * jnp.log(v)
    return _mean_and_square(log_p + 0.5 * jnp.sum((x + a * g.center) ** 2, 1))


def _step_kl(key, g, n, a, v, w, shift, sd2):
    """E KL(Σ_k r_k N(m_k, w I) ‖ N(m̄, sd² I)) over X_t, and the square of its standard error.

    Without the d/2 (w/sd² − 1 − log(w/sd²)) that every dimension adds.
    """
    x_key, label_key, noise_key = jax.random.split(key, 3)
    logits = _logits(g, _draw(x_key, g, n, a, v), a, v)
    log_r = jax.nn.log_softmax(logits, 1)
    r = jnp.exp(log_r)
    mean = r @ g.offsets
    norms = jnp.sum(g.offsets**2, 1)
    mean_square = jnp.sum(mean**2, 1)
    spread = jnp.maximum(r @ norms - mean_square, 0)

    noise = jax.random.normal(noise_key, mean.shape, mean.dtype)
    label = jax.random.categorical(label_key, log_r)
    y = shift * (g.offsets[label] - mean) + jnp.sqrt(w) * noise
    # log Σ_k r_k exp(δ_k·y/w − ‖δ_k‖²/2w) with δ_k = shift (μ_k − mean)
    query = shift / w * y + shift**2 / w * mean
    inner = query @ g.offsets.T - shift**2 / (2 * w) * norms
    rest = shift / w * jnp.sum(mean * y, 1) + shift**2 / (2 * w) * mean_square
    log_ratio = jax.nn.logsumexp(log_r + inner, 1) - rest

    along = noise @ g.offsets.T
    quadratic = jnp.sum(r * along**2, 1) - jnp.sum(r * along, 1) ** 2 - spread
    control = shift**2 / (2 * w) * quadratic
    rule = 0.5 * shift**2 * spread * (1 / sd2 - 1 / w)
    return _mean_and_square(log_ratio - control + rule)


def kl_to_tv(kl: Float[Array, "..."]) -> Float[Array, "..."]:
    """Pinsker's bound min(1, √(KL/2)) of the total variation.

    >>> import jax.numpy as jnp
    >>> kl_to_tv(jnp.array([0.02, 8.0]))
    Array([0.1, 1. ], dtype=float32)
    """
    return jnp.minimum(jnp.sqrt(jnp.maximum(kl, 0) / 2), 1)


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
