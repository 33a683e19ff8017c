r"""Confidence intervals for proportions, means, statistics of a sample and slopes.

    Wilson:   { p : |x/n − p| ≤ z √(p(1 − p)/n) }             x successes in n trials
    t:        ȳ ± t_{n−1} s/√n
    bootstrap percentile: quantiles (1 ∓ level)/2 of the statistic over resampled rows

Paired comparisons pass differences: both arms of a comparison then share one resampling.

References:
    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", 1927.
    B. Efron, R. J. Tibshirani, "An Introduction to the Bootstrap", 1993.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import betainc, ndtri
from jaxtyping import Array, Float, Real

from jaxicml import checks
from jaxicml.types import Key, Scalar

__all__ = [
    "Interval",
    "bootstrap_interval",
    "mean_interval",
    "slope_interval",
    "student_t_quantile",
    "wilson_interval",
]


class Interval(NamedTuple):
    """A two-sided confidence interval, in the unit of what it covers."""

    low: Float[Array, "..."]
    """Lower end."""
    high: Float[Array, "..."]
    """Upper end."""


def wilson_interval(
    successes: Real[Array, "..."] | Scalar,
    trials: Real[Array, "..."] | Scalar,
    *,
    level: Scalar = 0.95,
) -> Interval:
    """Wilson score interval of a proportion; honest at 0 and at all successes too.

    Args:
        successes: how often it happened, broadcast against `trials`.
        trials: how often it could have.
        level: confidence level.

    Returns:
        The interval, inside [0, 1].

    Raises:
        ValueError: no trials, successes outside [0, trials] or a level outside (0, 1).

    >>> low, high = wilson_interval(8, 200)
    >>> print(f"{low:.4f} {high:.4f}")
    0.0204 0.0769
    """
    checks.check_positive("trials", trials)
    if not checks.is_traced(successes, trials):
        checks.check_range("successes / trials", jnp.divide(successes, trials), 0.0, 1.0)
    checks.check_open_unit("level", level)
    dtype = jnp.result_type(successes, trials, float)
    x, n = (jnp.asarray(value, dtype) for value in (successes, trials))
    z2 = _normal_quantile(level, dtype) ** 2
    return Interval(_wilson_low(x, n, z2), 1 - _wilson_low(n - x, n, z2))


def mean_interval(values: Float[Array, "n ..."], *, level: Scalar = 0.95) -> Interval:
    """Student-t interval of the mean over the first dimension.

    Args:
        values: independent observations along the first dimension.
        level: confidence level.

    Returns:
        The interval, of the shape of one observation.

    Raises:
        ValueError: fewer than two observations or a level outside (0, 1).

    >>> low, high = mean_interval(jnp.array([1.0, 2.0, 3.0, 4.0]))
    >>> print(f"{low:.3f} {high:.3f}")
    0.446 4.554
    """
    checks.check_min_rows("values", values, 2)
    checks.check_open_unit("level", level)
    n = values.shape[0]
    half = student_t_quantile(level, n - 1, dtype=values.dtype)
    half = half * values.std(axis=0, ddof=1) / jnp.sqrt(jnp.asarray(n, values.dtype))
    return Interval(values.mean(axis=0) - half, values.mean(axis=0) + half)


def bootstrap_interval(
    key: Key,
    values: Float[Array, "n ..."],
    *,
    level: Scalar = 0.95,
    num_samples: int = 2000,
    statistic: Callable[[Array], Array] | None = None,
) -> Interval:
    """Percentile bootstrap over rows; pass differences for a paired comparison.

    Rows are resampled whole, so columns of one row stay together. Where all rows are equal the
    interval has no width: for a proportion near 0 or 1 use `wilson_interval`.
    Memory: 50 resampled copies of `values` at a time.

    Args:
        key: random key.
        values: observations along the first dimension.
        level: confidence level.
        num_samples: how many resamples.
        statistic: maps an array shaped like `values` to the statistic; the mean of each column
            by default.

    Returns:
        The interval, of the shape of the statistic.

    Raises:
        ValueError: no observation, fewer than two resamples or a level outside (0, 1).

    >>> differences = jnp.array([0.2, 0.5, 0.1, 0.4, 0.3, 0.6])
    >>> low, high = bootstrap_interval(jax.random.key(0), differences)
    >>> bool(0.1 < low < 0.35 < high < 0.6)
    True
    """
    checks.check_min_rows("values", values, 1)
    checks.check_integer("num_samples", num_samples, low=2)
    checks.check_open_unit("level", level)
    draws = _bootstrap_draws(key, values, num_samples, statistic)
    tail = (1 - jnp.asarray(level, draws.dtype)) / 2
    return Interval(jnp.quantile(draws, tail, axis=0), jnp.quantile(draws, 1 - tail, axis=0))


def slope_interval(
    x: Float[Array, " points"], y: Float[Array, "seeds points"], *, level: Scalar = 0.95
) -> Interval:
    """Student-t interval over seeds of the least-squares slope of y in x.

    Args:
        x: where each curve was measured.
        y: one curve per seed.
        level: confidence level.

    Returns:
        The interval of the mean slope, in units of y over units of x.

    Raises:
        ValueError: shapes that disagree, fewer than two seeds, or `x` without spread.

    >>> y = jnp.array([[0.0, 1.1, 1.9], [0.1, 0.9, 2.1]])
    >>> low, high = slope_interval(jnp.array([0.0, 1.0, 2.0]), y)
    >>> bool(low < 1 < high)
    True
    """
    checks.check_shape("x", x, (None,))
    checks.check_shape("y", y, (None, x.shape[0]))
    checks.check_min_rows("x", x, 2)
    checks.check_min_rows("y", y, 2)
    centred = x - x.mean()
    if not checks.is_traced(x):
        checks.check_positive("spread of x", jnp.abs(centred).max())
    return mean_interval(y @ centred / (centred @ centred), level=level)


def student_t_quantile(level: Scalar, dof: Scalar, *, dtype=None) -> Float[Array, ""]:
    """The t with P(|T| ≤ t) = level for Student's T, by bisection.

    With v = t²/(dof + t²), P(|T| ≤ t) is the incomplete beta function I_v(1/2, dof/2). Bisecting
    log(t²/dof) keeps the relative precision as far as the incomplete beta function of the dtype
    does: in float32 four digits up to a thousand degrees of freedom, in float64 far beyond.

    Args:
        level: two-sided probability in (0, 1).
        dof: degrees of freedom, above 0.
        dtype: float dtype of the result; the default float when None.

    Returns:
        The two-sided quantile.

    Raises:
        ValueError: a level outside (0, 1) or degrees of freedom that are not positive.

    >>> print(f"{student_t_quantile(0.95, 10):.3f}")
    2.228
    """
    checks.check_open_unit("level", level)
    checks.check_positive("dof", dof)
    dtype = jnp.result_type(float) if dtype is None else dtype
    return _t_quantile(jnp.asarray(level, dtype), jnp.asarray(dof, dtype))


@jax.jit
def _t_quantile(level: Array, dof: Array) -> Array:
    half = jnp.asarray(0.5, level.dtype)

    def halve(_, bracket):
        low, high = bracket
        middle = (low + high) / 2
        below = betainc(half, dof / 2, jax.nn.sigmoid(middle)) < level
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    bracket = (jnp.asarray(-60, level.dtype), jnp.asarray(60, level.dtype))
    low, high = jax.lax.fori_loop(0, 60, halve, bracket)
    return jnp.sqrt(dof) * jnp.exp((low + high) / 4)


@partial(jax.jit, static_argnames=("num_samples", "statistic"))
def _bootstrap_draws(key: Key, values: Array, num_samples: int, statistic) -> Array:
    n = values.shape[0]

    def resampled(sample_key):
        rows = values[jax.random.randint(sample_key, (n,), 0, n)]
        return rows.mean(axis=0) if statistic is None else statistic(rows)

    return jax.lax.map(resampled, jax.random.split(key, num_samples), batch_size=50)


def _normal_quantile(level: Scalar, dtype) -> Float[Array, ""]:
    """The z with P(|N(0, 1)| ≤ z) = level."""
    return ndtri((1 + jnp.asarray(level, dtype)) / 2)


def _wilson_low(x: Array, n: Array, z2: Array) -> Array:
    """Smaller root of (n + z²) p² − (2x + z²) p + x²/n = 0, free of cancellation."""
    larger = x + z2 / 2 + jnp.sqrt(z2 * (x * (n - x) / n + z2 / 4))
    return x * x / n / larger
