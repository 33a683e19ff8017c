"""The estimators and the tests: one ε, a family of ε, and cross-fitting.

    Ŝ = S + mean(I1)                    one-step; Wald interval Ŝ ± z sd(I1)/√n, away from the null
    S̄ = Ŝ + U/2                         U = (1ᵀ I2 1 − tr I2)/(n(n−1))  (eq. 12)
    T = n S̄  →  Σ_j (λ_j/2)(N_j² − 1)   at the null; drawn as (gᵀ I2 g − tr I2)/(2n), g ~ N(0, I)
    STEAgg = max_ε T_ε / q_ε            q_ε the upper quantile of T_ε's null; one g for all ε

Under K folds S̄ and the draws add up over folds, each weighted by its size.

References:
    Agarwal, Luedtke, "Sinkhorn Treatment Effects", 2026, arXiv 2605.08485 (Theorem 4.1, §4.3-4.4).
"""

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxicml import checks
from jaxicml.methods.sinkhorn_effect import influence as eif
from jaxicml.methods.sinkhorn_effect import potentials as ot
from jaxicml.methods.sinkhorn_effect.laws import ConditionalLaw
from jaxicml.methods.sinkhorn_effect.propensity import clip_propensity
from jaxicml.stats import significance
from jaxicml.types import Key, Scalar

__all__ = [
    "DEFAULT_MULTIPLES",
    "AggResult",
    "EffectResult",
    "FoldTerms",
    "cross_fit",
    "cross_fit_terms",
    "epsilon_grid",
    "fold_terms",
    "median_cost",
    "sinkhorn_effect_aggregated",
    "sinkhorn_treatment_effect",
    "summarise",
]

DEFAULT_MULTIPLES = (0.5, 1.0, 2.0, 4.0, 8.0)
"""η of the grid ε = η · median cost."""


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
    eif.check_sample(outcome, treatment, propensity, law)
    ot.check_solver(epsilon, tol)
    _check_options(alpha, num_null, reference, clip, max_iter)
    aggregated = _evaluate(
        key,
        outcome,
        treatment,
        propensity,
        law,
        jnp.asarray(epsilon, outcome.dtype)[None],
        jnp.asarray(alpha, outcome.dtype),
        jnp.asarray(alpha, outcome.dtype),
        jnp.asarray(clip, outcome.dtype),
        num_null=num_null,
        reference=reference,
        regime_tol=None,
        tol=tol,
        max_iter=max_iter,
    )
    return jax.tree.map(lambda leaf: leaf[0], aggregated.per_eps)


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
    eif.check_sample(outcome, treatment, propensity, law)
    _check_guard(regime_tol, tol)
    beta = alpha if beta is None else beta
    _check_options(alpha, num_null, reference, clip, max_iter)
    checks.check_open_unit("beta", beta)
    return _evaluate(
        key,
        outcome,
        treatment,
        propensity,
        law,
        check_grid(epsilons).astype(outcome.dtype),
        jnp.asarray(alpha, outcome.dtype),
        jnp.asarray(beta, outcome.dtype),
        jnp.asarray(clip, outcome.dtype),
        num_null=num_null,
        reference=reference,
        regime_tol=regime_tol,
        tol=tol,
        max_iter=max_iter,
    )


_STATIC = ("num_null", "reference", "regime_tol", "tol", "max_iter")


@functools.partial(jax.jit, static_argnames=_STATIC)
def _evaluate(
    key, outcome, treatment, propensity, law, epsilons, alpha, beta, clip, *, regime_tol, **options
):
    propensity, clipped = clip_propensity(propensity, clip)
    terms = fold_terms(key, outcome, treatment, propensity, law, epsilons, **options)
    return summarise([terms], epsilons, clipped, alpha, beta, regime_tol)


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
    """Everything that one evaluation sample says, for each ε in turn.

    The same Gaussians serve every ε, so that the draws are joint.
    """
    dtype = outcome.dtype
    tol = ot.default_tolerance(dtype) if tol is None else tol
    n = outcome.shape[0]
    fixed = eif.design(outcome, treatment.astype(dtype), propensity, law)
    gaussians = jax.random.normal(key, (num_null, n), dtype)

    def at(epsilon):
        local = eif.influence(fixed, epsilon, reference=reference, tol=tol, max_iter=max_iter)
        off_diagonal = local.eif2.sum() - jnp.trace(local.eif2)
        null = significance.quadratic_form_draws(gaussians, local.eif2) / (2 * n)
        return FoldTerms(
            local.plugin,
            local.eif1,
            off_diagonal / (n * (n - 1)),
            null,
            local.regime,
            local.converged,
        )

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


def cross_fit(
    key: Key,
    x: Float[Array, "n p"],
    treatment: Float[Array, " n"],
    outcome: Float[Array, "n d"],
    *,
    propensity_fn: Callable,
    law_fn: Callable,
    epsilons: Float[Array, " e"],
    num_folds: int = 2,
    alpha: Scalar = 0.05,
    beta: Scalar | None = None,
    num_null: int = 2000,
    reference: str = "balanced",
    regime_tol: float | None = 0.1,
    clip: Scalar = 0.02,
    tol: float | None = None,
    max_iter: int = 2000,
) -> AggResult:
    """The whole analysis with nuisances fitted on the other folds.

    With one fold, the sample is split once in halves: nuisances on the first, evaluation on the
    second, the paper's plain split. Influence functions come in the order of the folds.

    Args:
        key: the split, the nuisances and the null.
        x: covariates.
        treatment: 0 or 1.
        outcome: outcomes.
        propensity_fn: `(key, x, treatment) -> f` with `f(x)` the probability of treatment.
        law_fn: `(key, x, treatment, outcome, x_eval) -> ConditionalLaw` at `x_eval`.
        epsilons: the grid in outcome units squared, no value twice.
        num_folds: K; 1 is the plain split.
        alpha: level of the tests and intervals.
        beta: level of the scaling quantiles, `alpha` by default.
        num_null: draws of the null law, at least 99.
        reference: law of the second-order kernel.
        regime_tol: guard of the quadratic regime, or None.
        clip: propensities are moved into [clip, 1 − clip].
        tol: marginal error of the potentials.
        max_iter: bound on Sinkhorn iterations.

    Raises:
        ValueError: shapes, values, grid or options are not as described, or an arm is empty in
            some fold.
    """
    checks.check_shape("outcome", outcome, (None, None))
    checks.check_shape("x", x, (None, None))
    checks.check_shape("treatment", treatment, (None,))
    checks.check_same_length(x=x, treatment=treatment, outcome=outcome)
    checks.check_integer("num_folds", num_folds, low=1, high=max(1, x.shape[0] // 4))
    for name, floats in (("x", x), ("outcome", outcome)):
        checks.check_floating(name, floats)
        checks.check_finite(name, floats)
    checks.check_binary("treatment", treatment)
    _check_guard(regime_tol, tol)
    beta = alpha if beta is None else beta
    _check_options(alpha, num_null, reference, clip, max_iter)
    checks.check_open_unit("beta", beta)
    epsilons = check_grid(epsilons).astype(outcome.dtype)

    options = {"num_null": num_null, "reference": reference, "tol": tol, "max_iter": max_iter}
    folds, clipped = cross_fit_terms(
        key, x, treatment, outcome, propensity_fn, law_fn, epsilons, num_folds, clip, **options
    )
    return summarise(folds, epsilons, clipped, alpha, beta, regime_tol)


def cross_fit_terms(
    key: Key,
    x: Float[Array, "n p"],
    treatment: Float[Array, " n"],
    outcome: Float[Array, "n d"],
    propensity_fn: Callable,
    law_fn: Callable,
    epsilons: Float[Array, " e"],
    num_folds: int,
    clip: Scalar,
    **options,
) -> tuple[list[FoldTerms], Float[Array, ""]]:
    """The terms of every fold and the fraction of clipped propensities, see `cross_fit`.

    Raises:
        ValueError: an arm is empty in some fold.
    """
    split_key, fold_key = jax.random.split(key)
    splits = split_indices(split_key, x.shape[0], num_folds)
    if not checks.is_traced(treatment, splits):
        _check_arms(treatment, splits)

    def one_fold(inputs):
        key, train, evaluate = inputs
        propensity_key, law_key, null_key = jax.random.split(key, 3)
        propensity = propensity_fn(propensity_key, x[train], treatment[train])(x[evaluate])
        law = law_fn(law_key, x[train], treatment[train], outcome[train], x[evaluate])
        # the checks of known values see nothing here: what is no probability ends as NaN
        propensity = jnp.where((propensity >= 0) & (propensity <= 1), propensity, jnp.nan)
        eif.check_sample(outcome[evaluate], treatment[evaluate], propensity, law)
        propensity, clipped = clip_propensity(propensity, clip)
        terms = fold_terms(
            null_key, outcome[evaluate], treatment[evaluate], propensity, law, epsilons, **options
        )
        return terms, clipped

    folds, clipped = {}, {}
    for members, group, keys in _equal_sizes(splits, jax.random.split(fold_key, num_folds)):
        terms, fractions = jax.lax.map(one_fold, (keys, *group))
        for i, member in enumerate(members):
            folds[member] = jax.tree.map(lambda leaf, i=i: leaf[i], terms)
            clipped[member] = fractions[i]
    fractions = jnp.stack([clipped[k] for k in range(num_folds)])
    return [folds[k] for k in range(num_folds)], fractions.mean()


def split_indices(key: Key, n: int, num_folds: int) -> list[tuple[Array, Array]]:
    """Random (train, evaluate) index pairs; one fold means halves, first trained on."""
    order = jax.random.permutation(key, n)
    if num_folds == 1:
        return [(order[: n // 2], order[n // 2 :])]
    bounds = [round(k * n / num_folds) for k in range(num_folds + 1)]
    return [
        (jnp.concatenate([order[:low], order[high:]]), order[low:high])
        for low, high in itertools.pairwise(bounds)
    ]


def _equal_sizes(splits, keys):
    """Groups folds of equal size, so that each group is one `lax.map`."""
    sizes = [evaluate.shape[0] for _, evaluate in splits]
    for size in sorted(set(sizes)):
        members = [i for i, other in enumerate(sizes) if other == size]
        train, evaluate = zip(*(splits[i] for i in members), strict=True)
        yield members, (jnp.stack(train), jnp.stack(evaluate)), keys[jnp.array(members)]


def _check_arms(treatment, splits) -> None:
    for train, evaluate in splits:
        checks.check_binary("treatment (in a training fold)", treatment[train])
        checks.check_binary("treatment (in an evaluation fold)", treatment[evaluate])


def _check_guard(regime_tol, tol) -> None:
    if regime_tol is not None:
        if not isinstance(regime_tol, (int, float)):
            got = type(regime_tol).__name__
            raise ValueError(f"regime_tol: expected a Python number or None, got {got}")
        checks.check_range("regime_tol", regime_tol, 0.0, float("inf"))
    ot.check_solver(1.0, tol)


def _check_options(alpha, num_null, reference, clip, max_iter) -> None:
    checks.check_scalar("alpha", alpha)
    checks.check_scalar("clip", clip)
    checks.check_open_unit("alpha", alpha)
    checks.check_integer("num_null", num_null, low=99)
    checks.check_choice("reference", reference, eif.REFERENCES)
    checks.check_open_unit("2 * clip", 2 * clip)
    checks.check_integer("max_iter", max_iter, low=1)


def check_grid(epsilons) -> Float[Array, " e"]:
    """Checks a grid of ε: not empty, all above zero, no value twice."""
    epsilons = jnp.asarray(epsilons) * 1.0
    checks.check_shape("epsilons", epsilons, (None,))
    if epsilons.shape[0] == 0:
        raise ValueError("epsilons: expected at least one value, got none")
    checks.check_positive("epsilons", epsilons)
    checks.check_distinct("epsilons", epsilons)
    return epsilons


def median_cost(outcome: Float[Array, "n d"]) -> Float[Array, ""]:
    """Median of ½‖y_i − y_j‖² over pairs i < j; outcome units squared."""
    checks.check_shape("outcome", outcome, (None, None))
    checks.check_floating("outcome", outcome)
    checks.check_min_rows("outcome", outcome, 2)
    checks.check_finite("outcome", outcome)
    n = outcome.shape[0]
    first, second = jnp.triu_indices(n, 1)
    return jnp.median(ot.half_squared_cost(outcome, outcome)[first, second])


def epsilon_grid(
    outcome: Float[Array, "n d"], multiples: tuple[float, ...] = DEFAULT_MULTIPLES
) -> Float[Array, " e"]:
    """The grid ε = η · median cost of the given outcomes.

    >>> import jax.numpy as jnp
    >>> epsilon_grid(jnp.array([[0.0], [1.0], [2.0]]), (1.0, 4.0))
    Array([0.5, 2. ], dtype=float32)
    """
    return jnp.asarray(multiples, outcome.dtype) * median_cost(outcome)
