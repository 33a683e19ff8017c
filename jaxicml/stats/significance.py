r"""Significance tests: Monte-Carlo nulls, quadratic forms, maxima, permutations, discoveries.

    p = (1 + #{null_b ≥ T})/(B + 1)                           valid for every B
    g'Qg − tr Q = Σ_j λ_j (N_j² − 1) in law                   Q = U diag(λ) U', g ~ N(0, I)

References:
    R. B. Davies, "The distribution of a linear combination of χ² random variables", 1980.
    B. Phipson, G. K. Smyth, "Permutation p-values should never be zero", 2010.
    Y. Benjamini, Y. Hochberg, "Controlling the false discovery rate", 1995.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num, Shaped

from jaxicml import checks
from jaxicml.types import Key, Scalar

__all__ = [
    "Discoveries",
    "FamilyMaximum",
    "benjamini_hochberg",
    "max_over_family",
    "monte_carlo_p_value",
    "permutation_p_value",
    "permute_within_strata",
    "quadratic_form_draws",
    "quantile_strata",
    "upper_quantile",
]


class FamilyMaximum(NamedTuple):
    """The largest scaled statistic of a family and its joint null."""

    statistic: Float[Array, ""]
    """Largest statistic over its scale, among the members that are kept."""
    null: Float[Array, " draws"]
    """The same maximum in each joint draw of the null."""


class Discoveries(NamedTuple):
    """Hypotheses after control of the false discovery rate."""

    adjusted: Float[Array, " n"]
    """Adjusted p-values: the smallest level at which each is rejected."""
    reject: Bool[Array, " n"]
    """Which are rejected at the given level."""


def quadratic_form_draws(
    gaussians: Float[Array, "draws n"], form: Float[Array, "n n"]
) -> Float[Array, " draws"]:
    """Draws g'Qg − tr Q of the centred weighted chi-square law Σ_j λ_j (N_j² − 1).

    No eigenvalues are needed: one product of draws × n × n, one array of draws × n.
    The same `gaussians` for several forms give draws of their joint law.

    Args:
        gaussians: standard normal draws, one per row.
        form: symmetric matrix Q with eigenvalues λ.

    Returns:
        One centred draw per row of `gaussians`.

    Raises:
        ValueError: shapes that disagree.

    >>> g = jnp.array([[1.0, 1.0], [2.0, 0.0]])
    >>> print(quadratic_form_draws(g, jnp.diag(jnp.array([1.0, 3.0]))))
    [0. 0.]
    """
    checks.check_floats("gaussians", gaussians, (None, None), finite=False)
    n = gaussians.shape[1]
    checks.check_floats("form", form, (n, n), finite=False)
    return ((gaussians @ form) * gaussians).sum(1) - jnp.trace(form)


def monte_carlo_p_value(statistic: Scalar, null: Float[Array, " draws"]) -> Float[Array, ""]:
    """One-sided p-value (1 + #{null ≥ statistic})/(B + 1), never 0; large statistics reject.

    Args:
        statistic: the observed value.
        null: its B draws under the hypothesis.

    Returns:
        The p-value; NaN when the statistic or a draw is NaN, which is not evidence of anything.

    Raises:
        ValueError: no draws.

    >>> print(monte_carlo_p_value(2.5, jnp.array([1.0, 2.0, 3.0])))
    0.5
    """
    checks.check_scalar("statistic", statistic)
    checks.check_floats("null", null, (None,), finite=False)
    checks.check_min_rows("null", null, 1)
    null = jnp.asarray(null)
    statistic = jnp.asarray(statistic, null.dtype)
    exceed = (null >= statistic).sum().astype(null.dtype)
    p_value = (1 + exceed) / (null.shape[0] + 1)
    return jnp.where(jnp.isnan(statistic) | jnp.isnan(null).any(), jnp.nan, p_value)


def upper_quantile(null: Float[Array, " draws"], alpha: Scalar) -> Float[Array, ""]:
    """Critical value q such that `statistic > q` exactly when the Monte-Carlo p-value is ≤ α.

    Convention: the order statistic of rank B + 1 − ⌊α (B + 1)⌋ among the B draws, without
    interpolation.

    Args:
        null: draws under the hypothesis.
        alpha: level of the test.

    Returns:
        The order statistic; infinite when B is too small for any p-value to reach α, NaN when a
        draw is NaN.

    Raises:
        ValueError: no draws or a level outside (0, 1).

    >>> print(upper_quantile(jnp.arange(1.0, 20.0), 0.1))
    18.0
    """
    checks.check_floats("null", null, (None,), finite=False)
    checks.check_min_rows("null", null, 1)
    checks.check_scalar("alpha", alpha)
    checks.check_open_unit("alpha", alpha)
    null, count = jnp.asarray(null), null.shape[0]
    # α (B + 1) is a whole number for the usual choices: rounding must not push it below
    nudge = 1 + 4 * jnp.finfo(null.dtype).eps
    above = jnp.floor(jnp.asarray(alpha, null.dtype) * (count + 1) * nudge).astype(int)
    ordered = jnp.append(jnp.sort(null), jnp.inf)
    return jnp.where(jnp.isnan(null).any(), jnp.nan, ordered[count - above])


def max_over_family(
    statistics: Float[Array, " k"],
    nulls: Float[Array, "k draws"],
    scales: Float[Array, " k"],
    keep: Bool[Array, " k"] | None = None,
) -> FamilyMaximum:
    """Largest scaled statistic of a family with its null, from joint draws.

    Column b of `nulls` must come from one draw of the data's randomness, so that the maximum
    over members has the right law whatever their dependence.

    Args:
        statistics: one per member.
        nulls: joint draws, one row per member.
        scales: positive number that makes the members comparable, such as a critical value.
        keep: members that take part; all by default.

    Returns:
        The maximum and its null. Members whose scale is not positive are left out; NaN when no
        member is left.

    Raises:
        ValueError: no member, or shapes that disagree.

    >>> top = max_over_family(jnp.array([1.0, 6.0]), jnp.ones((2, 3)), jnp.array([1.0, 2.0]))
    >>> print(top.statistic, top.null)
    3.0 [1. 1. 1.]
    """
    checks.check_floats("statistics", statistics, (None,), finite=False)
    checks.check_min_rows("statistics", statistics, 1)
    k = statistics.shape[0]
    checks.check_floats("nulls", nulls, (k, None), finite=False)
    checks.check_floats("scales", scales, (k,), finite=False)
    keep = jnp.ones(k, bool) if keep is None else keep
    checks.check_array("keep", keep, (k,))
    taking_part = keep.astype(bool) & (scales > 0)
    scale = jnp.where(taking_part, scales, 1)

    def largest(values):
        scaled = values / scale.reshape(-1, *[1] * (values.ndim - 1))
        mask = taking_part.reshape(-1, *[1] * (values.ndim - 1))
        top = jnp.where(mask, scaled, -jnp.inf).max(axis=0)
        return jnp.where(taking_part.any(), top, jnp.nan)

    return FamilyMaximum(largest(statistics), largest(nulls))


def permutation_p_value(
    key: Key,
    statistic: Callable[[Array], Array],
    labels: Shaped[Array, " n"],
    *,
    num_permutations: int = 999,
    batch_size: int = 32,
    permute: Callable[[Key, Array], Array] = jax.random.permutation,
) -> Float[Array, ""]:
    """Permutation test of a statistic of the labels; large values reject.

    Args:
        key: random key.
        statistic: maps labels to a number (the data are closed over).
        labels: observed labels.
        num_permutations: how many random relabellings.
        batch_size: how many are evaluated at once: memory against speed.
        permute: draws labels that are equally likely under the hypothesis. Default: a uniform
            permutation. With `permute_within_strata`, or Bernoulli draws from a propensity, the
            labels may depend on covariates.

    Returns:
        The Monte-Carlo p-value.

    Raises:
        ValueError: labels that are no vector, fewer than one permutation, batches below one, or a
            statistic that is not one number.

    >>> y, labels = jnp.arange(20.0), jnp.repeat(jnp.array([0, 1]), 10)
    >>> print(permutation_p_value(jax.random.key(0), lambda a: y @ a, labels))
    0.001
    """
    checks.check_key("key", key)
    checks.check_callable("statistic", statistic)
    checks.check_callable("permute", permute)
    checks.check_array("labels", labels, (None,))
    checks.check_integer("num_permutations", num_permutations, low=1)
    checks.check_integer("batch_size", batch_size, low=1)
    observed = statistic(labels)
    checks.check_scalar("statistic(labels)", observed)
    null = jax.lax.map(
        lambda draw_key: statistic(permute(draw_key, labels)),
        jax.random.split(key, num_permutations),
        batch_size=batch_size,
    )
    null = null.astype(jnp.result_type(null, float))
    return monte_carlo_p_value(observed, null)


def permute_within_strata(
    key: Key, labels: Shaped[Array, " n"], strata: Int[Array, " n"]
) -> Shaped[Array, " n"]:
    """Permutes labels among the members of each stratum.

    Args:
        key: random key.
        labels: what to permute.
        strata: which stratum each label belongs to.

    Returns:
        The labels with each stratum shuffled by itself.

    Raises:
        ValueError: shapes that disagree.

    >>> strata = jnp.array([0, 0, 1, 1])
    >>> print(permute_within_strata(jax.random.key(0), jnp.array([5, 5, 7, 7]), strata))
    [5 5 7 7]
    """
    checks.check_key("key", key)
    checks.check_array("labels", labels, (None,))
    checks.check_array("strata", strata, labels.shape)
    labels = jnp.asarray(labels)
    shuffled = jax.random.permutation(key, labels.shape[0])
    source = shuffled[jnp.argsort(strata[shuffled], stable=True)]
    target = jnp.argsort(strata, stable=True)
    return labels.at[target].set(labels[source])


def quantile_strata(scores: Num[Array, " n"], *, num_strata: int = 5) -> Int[Array, " n"]:
    """Cuts scores into strata of equal size by rank (ties are cut in the order of the rows).

    Args:
        scores: what to stratify by, such as an estimated propensity.
        num_strata: how many strata, at most one per score.

    Returns:
        Stratum of each score, 0 for the lowest.

    Raises:
        ValueError: scores that are no vector or a number of strata outside [1, n].

    >>> print(quantile_strata(jnp.array([0.9, 0.1, 0.5, 0.2]), num_strata=2))
    [1 0 1 0]
    """
    checks.check_array("scores", scores, (None,))
    n = scores.shape[0]
    checks.check_integer("num_strata", num_strata, low=1, high=n)
    rank = jnp.argsort(jnp.argsort(scores, stable=True), stable=True)
    return rank * num_strata // n


def benjamini_hochberg(p_values: Float[Array, " n"], *, level: Scalar = 0.05) -> Discoveries:
    """Step-up control of the false discovery rate of independent or positively dependent tests.

    Args:
        p_values: one per hypothesis; NaN counts as a test that was made and never rejects.
        level: false discovery rate to control.

    Returns:
        Adjusted p-values and the rejections at `level`.

    Raises:
        ValueError: p-values that are no vector or leave [0, 1], or a level outside (0, 1).

    >>> found = benjamini_hochberg(jnp.array([0.01, 0.02, 0.6, 0.9]))
    >>> print(found.adjusted, found.reject)
    [0.04 0.04 0.8 0.9 ] [ True  True False False]
    """
    checks.check_floats("p_values", p_values, (None,), finite=False)
    checks.check_scalar("level", level)
    checks.check_open_unit("level", level)
    p_values = jnp.asarray(p_values)
    missing = jnp.isnan(p_values)
    known = jnp.where(missing, 1, p_values)
    checks.check_range("p_values", known, 0.0, 1.0)
    n = p_values.shape[0]
    order = jnp.argsort(known)
    inflated = known[order] * n / jnp.arange(1, n + 1, dtype=p_values.dtype)
    step_up = jax.lax.cummin(inflated, reverse=True)
    adjusted = jnp.zeros_like(known).at[order].set(jnp.minimum(step_up, 1))
    adjusted = jnp.where(missing, jnp.nan, adjusted)
    return Discoveries(adjusted, adjusted <= jnp.asarray(level, adjusted.dtype))
