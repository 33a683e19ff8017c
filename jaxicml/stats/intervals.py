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
import numpy as np
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
    counts = _counts(successes=successes, trials=trials)
    _check_level(level)
    dtype = jnp.result_type(*counts, float)
    return _wilson(*(jnp.asarray(value, dtype) for value in (*counts, level)))


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
    checks.check_floats("values", values, finite=False)
    checks.check_min_rows("values", values, 2)
    _check_level(level)
    values = jnp.asarray(values)
    return _mean_interval(values, jnp.asarray(level, values.dtype))


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
    checks.check_key("key", key)
    checks.check_floats("values", values, finite=False)
    checks.check_min_rows("values", values, 1)
    checks.check_integer("num_samples", num_samples, low=2)
    _check_level(level)
    if statistic is not None:
        checks.check_callable("statistic", statistic)
    values = jnp.asarray(values)
    return _bootstrap(key, values, jnp.asarray(level, values.dtype), num_samples, statistic)


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
    checks.check_floats("x", x, (None,), finite=False)
    checks.check_floats("y", y, (None, x.shape[0]), finite=False)
    checks.check_min_rows("x", x, 2)
    checks.check_min_rows("y", y, 2)
    if not checks.is_traced(x):
        checks.check_positive("spread of x", np.ptp(np.asarray(x)))
    _check_level(level)
    x, y = jnp.asarray(x), jnp.asarray(y)
    return _slope_interval(x, y, jnp.asarray(level, y.dtype))


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
    _check_level(level)
    checks.check_scalar("dof", dof)
    checks.check_positive("dof", dof)
    dtype = jnp.result_type(float) if dtype is None else dtype
    return _t_quantile(jnp.asarray(level, dtype), jnp.asarray(dof, dtype))


def _check_level(level) -> None:
    checks.check_scalar("level", level)
    checks.check_open_unit("level", level)


def _counts(**given) -> list:
    """Successes and trials, checked; lists become arrays."""
    for name, count in given.items():
        if not checks.is_traced(count):
            known = checks.as_numbers(name, count)
            given[name] = known if isinstance(count, (list, tuple)) else count
    checks.check_broadcast(**given)
    successes, trials = given.values()
    checks.check_positive("trials", trials)
    if not checks.is_traced(successes, trials):
        checks.check_range("successes / trials", np.divide(successes, trials), 0.0, 1.0)
    return [successes, trials]


@jax.jit
def _wilson(x: Array, n: Array, level: Array) -> Interval:
    z2 = ndtri((1 + level) / 2) ** 2  # P(|N(0, 1)| ≤ z) = level
    return Interval(_wilson_low(x, n, z2), 1 - _wilson_low(n - x, n, z2))


def _wilson_low(x: Array, n: Array, z2: Array) -> Array:
    """Smaller root of (n + z²) p² − (2x + z²) p + x²/n = 0, free of cancellation."""
    larger = x + z2 / 2 + jnp.sqrt(z2 * (x * (n - x) / n + z2 / 4))
    return x * x / n / larger


@jax.jit
def _mean_interval(values: Array, level: Array) -> Interval:
    n = values.shape[0]
    half = _t_quantile(level, jnp.asarray(n - 1, values.dtype))
    half = half * values.std(axis=0, ddof=1) / jnp.sqrt(jnp.asarray(n, values.dtype))
    return Interval(values.mean(axis=0) - half, values.mean(axis=0) + half)


@jax.jit
def _slope_interval(x: Array, y: Array, level: Array) -> Interval:
    centred = x - x.mean()
    return _mean_interval(y @ centred / (centred @ centred), level)


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
def _bootstrap(key: Key, values: Array, level: Array, num_samples: int, statistic) -> Interval:
    n = values.shape[0]

    def resampled(sample_key):
        rows = values[jax.random.randint(sample_key, (n,), 0, n)]
        if statistic is None:
            return rows.mean(axis=0)
        found = statistic(rows)
        checks.check_array("statistic(values)", found)
        return found

    draws = jax.lax.map(resampled, jax.random.split(key, num_samples), batch_size=50)
    tail = (1 - level.astype(draws.dtype)) / 2
    low, high = (jnp.quantile(draws, share, axis=0) for share in (tail, 1 - tail))
    return Interval(low, high)
