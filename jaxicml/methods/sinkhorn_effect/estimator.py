"""The estimators and the tests on one evaluation sample: one ε, and a family of ε.

    Ŝ = S + mean(I1)                    one-step; Wald interval Ŝ ± z sd(I1)/√n, away from the null
    S̄ = Ŝ + U/2                         U = (1ᵀ I2 1 − tr I2)/(n(n−1))  (eq. 12)
    T = n S̄  →  Σ_j (λ_j/2)(N_j² − 1)   at the null; drawn as (gᵀ I2 g − tr I2)/(2n), g ~ N(0, I)
    STEAgg = max_ε T_ε / q_ε            q_ε the upper quantile of T_ε's null; one g for all ε

Under K folds S̄ and the draws add up over folds, each weighted by its size (`folds`).

References:
    Agarwal, Luedtke, "Sinkhorn Treatment Effects", 2026, arXiv 2605.08485 (Theorem 4.1, §4.3-4.4).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxicml import checks
from jaxicml.methods.sinkhorn_effect import influence as eif
from jaxicml.methods.sinkhorn_effect import potentials as ot
from jaxicml.methods.sinkhorn_effect.grid import checked_grid
from jaxicml.methods.sinkhorn_effect.laws import ConditionalLaw
from jaxicml.methods.sinkhorn_effect.propensity import check_clip, clip_propensity
from jaxicml.stats import significance
from jaxicml.types import Key, Scalar

__all__ = [
    "AggResult",
    "EffectResult",
    "FoldTerms",
    "fold_terms",
    "sinkhorn_effect_aggregated",
    "sinkhorn_treatment_effect",
    "summarise",
    "terms_of",
]


class EffectResult(NamedTuple):
    """A Sinkhorn treatment effect at one ε (a leading axis where stacked over ε).

    Attributes:
        plugin: S_ε of the estimated laws; outcome units squared.
        onestep: debiased estimate; outcome units squared.
        second_order: estimate with the second-order correction, the centre of the test.
        se: standard error of `onestep`, valid away from the null.
        ci_low: lower end of the Wald interval of `onestep`.
        ci_high: upper end.
        statistic: n times `second_order`.
        p_value: of the hypothesis that treatment does not change the outcome's law.
        null_quantile: upper quantile of the simulated null of `statistic`.
        eif1: first-order influence function of each observation.
        clipped: fraction of propensities moved to the clipping bounds.
        converged: whether all potentials met their tolerance; where not, `p_value` is NaN.
    """

    plugin: Float[Array, "..."]
    onestep: Float[Array, "..."]
    second_order: Float[Array, "..."]
    se: Float[Array, "..."]
    ci_low: Float[Array, "..."]
    ci_high: Float[Array, "..."]
    statistic: Float[Array, "..."]
    p_value: Float[Array, "..."]
    null_quantile: Float[Array, "..."]
    eif1: Float[Array, "... n"]
    clipped: Float[Array, "..."]
    converged: Bool[Array, "..."]


class AggResult(NamedTuple):
    """The aggregated test over a grid of ε.

    Attributes:
        per_eps: the single-ε results, stacked over the grid.
        epsilons: the grid.
        statistic: max over kept ε of T_ε/q_ε.
        p_value: from the joint null; NaN where no ε is usable.
        reject: p_value ≤ α.
        regime_ratio: ρ_ε = 2S/(Δᵀ k Δ), the fold furthest from one.
        kept: which ε take part in the maximum.
    """

    per_eps: EffectResult
    epsilons: Float[Array, " e"]
    statistic: Float[Array, ""]
    p_value: Float[Array, ""]
    reject: Bool[Array, ""]
    regime_ratio: Float[Array, " e"]
    kept: Bool[Array, " e"]


class FoldTerms(NamedTuple):
    """What one fold contributes at each ε of a grid."""

    plugin: Float[Array, " e"]
    eif1: Float[Array, "e n"]
    correction: Float[Array, " e"]
    """U: the mean of I2 off its diagonal."""
    null: Float[Array, "e b"]
    """Draws of the null law of n S̄."""
    regime: Float[Array, " e"]
    converged: Bool[Array, " e"]


def sinkhorn_treatment_effect(
    key: Key,
    outcome: Float[Array, "n d"],
    treatment: Float[Array, " n"],
    propensity: Float[Array, " n"],
    law: ConditionalLaw,
    *,
    epsilon: Scalar,
    alpha: Scalar = 0.05,
    num_null: int = 2000,
    reference: str = "balanced",
    clip: Scalar = 0.02,
    tol: float | None = None,
    max_iter: int = 2000,
) -> EffectResult:
    """Estimate, interval and test of S_ε(P₁, P₀) on an evaluation sample.

    `plugin` is differentiable in atoms and weights of `law`; every other field is a constant of the
    gradient. Memory: about six (n + m)² matrices, for n observations and m atoms.

    Args:
        key: draws of the null law.
        outcome: outcomes of the evaluation sample.
        treatment: 0 or 1.
        propensity: estimated P(A = 1 | x) of each observation.
        law: conditional outcome laws, estimated on other observations.
        epsilon: regularisation, in outcome units squared.
        alpha: level of the test and of the interval.
        num_null: draws of the null law, at least 99.
        reference: law of the second-order kernel, "balanced", "pooled" or "arm1".
        clip: propensities are moved into [clip, 1 − clip].
        tol: marginal error; by default 1e-9 in float64 and 1e-5 in float32.
        max_iter: bound on Sinkhorn iterations.

    Returns:
        The result; where Sinkhorn did not converge `converged` is False and `p_value` NaN.

    Raises:
        ValueError: shapes, values or options are not as described.

    >>> import jax, jax.numpy as jnp
    >>> from jaxicml.methods.sinkhorn_effect.laws import conditional_law
    >>> y = jax.random.normal(jax.random.key(0), (40, 1)) + jnp.arange(40)[:, None] % 2
    >>> a = jnp.arange(40.0) % 2
    >>> uniform = jnp.full((40, 20), 1 / 20)
    >>> law = conditional_law(y[1::2], y[::2], uniform, uniform)
    >>> out = sinkhorn_treatment_effect(
    ...     jax.random.key(1), y, a, jnp.full(40, 0.5), law, epsilon=1.0)
    >>> bool(out.p_value < 0.05)
    True
    """
    sample = outcome, treatment, propensity, law
    eif.check_sample(*sample)
    epsilon = ot.checked_epsilon("epsilon", epsilon, outcome.dtype)
    checks.check_key("key", key)
    check_test(num_null, clip, alpha=alpha)
    check_expansion(reference, None, tol, max_iter)
    options = {"num_null": num_null, "reference": reference, "tol": tol, "max_iter": max_iter}
    return evaluate_one(fold_terms, key, sample, epsilon, alpha, clip, **options)


def sinkhorn_effect_aggregated(
    key: Key,
    outcome: Float[Array, "n d"],
    treatment: Float[Array, " n"],
    propensity: Float[Array, " n"],
    law: ConditionalLaw,
    *,
    epsilons: Float[Array, " e"],
    alpha: Scalar = 0.05,
    beta: Scalar | None = None,
    num_null: int = 2000,
    reference: str = "balanced",
    regime_tol: float | None = 0.1,
    clip: Scalar = 0.02,
    tol: float | None = None,
    max_iter: int = 2000,
) -> AggResult:
    """STEAgg: one test over a grid of ε, calibrated by a joint null.

    Args:
        key: draws of the null law, shared by all ε.
        outcome: outcomes of the evaluation sample.
        treatment: 0 or 1.
        propensity: estimated P(A = 1 | x) of each observation.
        law: conditional outcome laws, estimated on other observations.
        epsilons: the grid, no value twice.
        alpha: level of the test and of the intervals.
        beta: each ε is measured in its own upper β-quantile; `alpha` by default.
        num_null: draws of the null law, at least 99.
        reference: law of the second-order kernel, "balanced", "pooled" or "arm1".
        regime_tol: an ε takes part where |ρ_ε − 1| is at most this, the largest always; None
            takes the plain maximum of the paper.
        clip: propensities are moved into [clip, 1 − clip].
        tol: marginal error; by default 1e-9 in float64 and 1e-5 in float32.
        max_iter: bound on Sinkhorn iterations.

    Raises:
        ValueError: shapes, values, grid or options are not as described.
    """
    sample = outcome, treatment, propensity, law
    eif.check_sample(*sample)
    beta = alpha if beta is None else beta
    checks.check_key("key", key)
    check_test(num_null, clip, alpha=alpha, beta=beta)
    check_expansion(reference, regime_tol, tol, max_iter)
    epsilons = checked_grid("epsilons", epsilons, outcome.dtype)
    options = {"num_null": num_null, "reference": reference, "tol": tol, "max_iter": max_iter}
    return evaluate(
        fold_terms, key, sample, epsilons, alpha, beta, clip, regime_tol=regime_tol, **options
    )


_OPTIONS = ("num_null", "reference", "tol", "max_iter")


@functools.partial(jax.jit, static_argnames=("terms_fn", "regime_tol", *_OPTIONS))
def evaluate(
    terms_fn: Callable[..., FoldTerms],
    key: Key,
    sample: tuple,
    epsilons: Float[Array, " e"],
    alpha: Scalar,
    beta: Scalar,
    clip: Scalar,
    *,
    regime_tol: float | None,
    **options,
) -> AggResult:
    """The test over a grid from one checked sample, as one program.

    Args:
        terms_fn: `fold_terms`, or the like for another discrepancy.
        key: draws of the null law.
        sample: outcome, treatment, propensity and law.
        epsilons: the grid.
        alpha: level.
        beta: level of the scaling quantiles.
        clip: bound of the propensities.
        regime_tol: guard of the quadratic regime, or None.
        options: of `terms_fn`.
    """
    outcome, treatment, propensity, law = sample
    propensity, clipped = clip_propensity(propensity, clip)
    terms = terms_fn(key, outcome, treatment, propensity, law, epsilons, **options)
    return summarise([terms], epsilons, clipped, alpha, beta, regime_tol)


@functools.partial(jax.jit, static_argnames=("terms_fn", *_OPTIONS))
def evaluate_one(terms_fn, key, sample, epsilon, alpha, clip, **options) -> EffectResult:
    """`evaluate` at a single ε."""
    aggregated = evaluate(
        terms_fn, key, sample, epsilon[None], alpha, alpha, clip, regime_tol=None, **options
    )
    return jax.tree.map(lambda leaf: leaf[0], aggregated.per_eps)


def fold_terms(
    key: Key,
    outcome: Float[Array, "n d"],
    treatment: Float[Array, " n"],
    propensity: Float[Array, " n"],
    law: ConditionalLaw,
    epsilons: Float[Array, " e"],
    *,
    num_null: int,
    reference: str,
    tol: float | None,
    max_iter: int,
) -> FoldTerms:
    """Everything that one evaluation sample says, for each ε in turn; see `terms_of`."""
    tol = ot.default_tolerance(outcome.dtype) if tol is None else tol
    fixed = eif.design(outcome, treatment, propensity, law)
    options = {"reference": reference, "tol": tol, "max_iter": max_iter}
    return terms_of(key, fixed, functools.partial(eif.influence, **options), epsilons, num_null)


def terms_of(
    key: Key,
    fixed: eif.Design,
    influence: Callable[[eif.Design, Array], eif.Influence],
    epsilons: Float[Array, " e"],
    num_null: int,
) -> FoldTerms:
    """What the influence functions of a discrepancy say of one evaluation sample, for each ε.

    The same Gaussians serve every ε, so that the draws are joint.

    Args:
        key: draws of the null law.
        fixed: the sample and its nuisances.
        influence: both influence functions at one ε.
        epsilons: the grid.
        num_null: draws of the null law.
    """
    n = fixed.rows.shape[0]
    gaussians = jax.random.normal(key, (num_null, n), fixed.cost.dtype)

    def at(epsilon):
        local = influence(fixed, epsilon)
        off_diagonal = local.eif2.sum() - jnp.trace(local.eif2)
        null = significance.quadratic_form_draws(gaussians, local.eif2) / (2 * n)
        correction = off_diagonal / (n * (n - 1))
        return FoldTerms(local.plugin, local.eif1, correction, null, local.regime, local.converged)

    return jax.lax.map(at, epsilons)


def summarise(
    folds: list[FoldTerms],
    epsilons: Float[Array, " e"],
    clipped: Scalar,
    alpha: Scalar,
    beta: Scalar,
    regime_tol: float | None,
) -> AggResult:
    """Adds up the folds and tests, at each ε and over the grid.

    Args:
        folds: the terms of each fold.
        epsilons: the grid.
        clipped: fraction of clipped propensities.
        alpha: level of the tests and intervals.
        beta: level of the quantiles that scale the aggregated statistic.
        regime_tol: guard of the quadratic regime, or None.
    """
    alpha = jnp.asarray(alpha, epsilons.dtype)
    sizes = jnp.array([fold.eif1.shape[1] for fold in folds], epsilons.dtype)
    total = sizes.sum()
    by_fold = lambda field: jnp.stack([getattr(fold, field) for fold in folds])
    plugins = by_fold("plugin")
    onesteps = jax.lax.stop_gradient(plugins) + jnp.stack([fold.eif1.mean(1) for fold in folds])
    second_orders = onesteps + by_fold("correction") / 2
    eif1 = jnp.concatenate([fold.eif1 for fold in folds], axis=1)
    null = by_fold("null").sum(0)
    converged = by_fold("converged").all(0)

    onestep = onesteps.mean(0)
    se = eif1.std(1) / jnp.sqrt(total)
    z = jax.scipy.stats.norm.ppf(1 - alpha / 2)
    statistic = jnp.where(converged, sizes @ second_orders, jnp.nan)
    quantiles = jax.vmap(significance.upper_quantile, (0, None))
    per_eps = EffectResult(
        plugin=plugins.mean(0),
        onestep=onestep,
        second_order=second_orders.mean(0),
        se=se,
        ci_low=onestep - z * se,
        ci_high=onestep + z * se,
        statistic=statistic,
        p_value=jax.vmap(significance.monte_carlo_p_value)(statistic, null),
        null_quantile=quantiles(null, alpha),
        eif1=eif1,
        clipped=jnp.full(epsilons.shape, clipped, epsilons.dtype),
        converged=converged,
    )

    regimes = by_fold("regime")
    furthest = jnp.abs(regimes - 1).argmax(0)
    regime = jnp.take_along_axis(regimes, furthest[None], axis=0)[0]
    scales = quantiles(null, beta)
    quadratic = True if regime_tol is None else jnp.abs(regime - 1) <= regime_tol
    largest = epsilons == epsilons.max()
    usable = converged & (scales > 0)
    kept = (quadratic | largest) & usable
    maximum, null_maximum = significance.max_over_family(statistic, null, scales, kept)
    p_value = significance.monte_carlo_p_value(maximum, null_maximum)
    # without the largest ε the guard's one certain member is missing: say nothing
    p_value = jnp.where((usable | ~largest).all(), p_value, jnp.nan)
    return AggResult(per_eps, epsilons, maximum, p_value, p_value <= alpha, regime, kept)


def check_test(num_null, clip, **levels) -> None:
    """Checks what every test by a simulated null takes: draws, clipping bound and levels."""
    for name, level in levels.items():
        checks.check_scalar(name, level)
        checks.check_open_unit(name, level)
    checks.check_integer("num_null", num_null, low=99)
    check_clip("clip", clip)


def check_expansion(reference, regime_tol, tol, max_iter) -> None:
    """Checks the options of the second-order expansion and of its potentials."""
    checks.check_choice("reference", reference, eif.REFERENCES)
    if regime_tol is not None:
        checks.check_static_number("regime_tol", regime_tol)
        checks.check_range("regime_tol", regime_tol, 0.0, float("inf"))
    ot.check_solver(tol, max_iter)
