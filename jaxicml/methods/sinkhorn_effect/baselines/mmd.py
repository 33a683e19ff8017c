r"""Half the squared maximum mean discrepancy in the place of the Sinkhorn divergence.

    D(P₁, P₀) = ½ Δᵀ g Δ,   Δ = P₁ − P₀,   g(y, y') = exp(−‖y − y'‖²/(2ε))
    υ₁ = gΔ = −υ₀,   I2 = L g Lᵀ

Estimates, null and aggregation are those of the Sinkhorn treatment effect. D is exactly quadratic:
its second-order expansion has no remainder and its regime ratio is one.

References:
    Agarwal, Luedtke, "Sinkhorn Treatment Effects", 2026, arXiv 2605.08485 (Appendix F).
    Gretton et al., "A kernel two-sample test", 2012.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxicml import checks
from jaxicml.methods.sinkhorn_effect import estimator
from jaxicml.methods.sinkhorn_effect import influence as eif
from jaxicml.methods.sinkhorn_effect import potentials as ot
from jaxicml.methods.sinkhorn_effect.estimator import AggResult, EffectResult, FoldTerms
from jaxicml.methods.sinkhorn_effect.grid import checked_grid
from jaxicml.methods.sinkhorn_effect.laws import ConditionalLaw
from jaxicml.types import Key, Scalar

__all__ = ["mmd_effect_aggregated", "mmd_fold_terms", "mmd_treatment_effect"]


def mmd_treatment_effect(
    key: Key,
    outcome: Float[Array, "n d"],
    treatment: Float[Array, " n"],
    propensity: Float[Array, " n"],
    law: ConditionalLaw,
    *,
    epsilon: Scalar,
    alpha: Scalar = 0.05,
    num_null: int = 2000,
    clip: Scalar = 0.02,
) -> EffectResult:
    """Estimate, interval and test of half the squared MMD between P₁ and P₀.

    Everything is as for the Sinkhorn treatment effect, but values have no unit. `plugin` is
    differentiable in atoms and weights of `law`. Memory: three (n + m)² matrices.

    Args:
        key: draws of the null law.
        outcome: outcomes of the evaluation sample.
        treatment: 0 or 1.
        propensity: estimated P(A = 1 | x) of each observation.
        law: conditional outcome laws, estimated on other observations.
        epsilon: squared bandwidth of the Gaussian kernel, in outcome units squared.
        alpha: level of the test and of the interval.
        num_null: draws of the null law, at least 99.
        clip: propensities are moved into [clip, 1 − clip].

    Returns:
        The result; `converged` is always true.

    Raises:
        ValueError: shapes, values or options are not as described.

    >>> import jax, jax.numpy as jnp
    >>> from jaxicml.methods.sinkhorn_effect.laws import conditional_law
    >>> y = jax.random.normal(jax.random.key(0), (40, 1)) + jnp.arange(40)[:, None] % 2
    >>> uniform = jnp.full((40, 20), 1 / 20)
    >>> law = conditional_law(y[1::2], y[::2], uniform, uniform)
    >>> out = mmd_treatment_effect(
    ...     jax.random.key(1), y, jnp.arange(40.0) % 2, jnp.full(40, 0.5), law, epsilon=1.0)
    >>> bool(out.p_value < 0.05)
    True
    """
    sample = outcome, treatment, propensity, law
    eif.check_sample(*sample)
    epsilon = ot.checked_epsilon("epsilon", epsilon, outcome.dtype)
    checks.check_key("key", key)
    estimator.check_test(num_null, clip, alpha=alpha)
    return estimator.evaluate_one(
        mmd_fold_terms, key, sample, epsilon, alpha, clip, num_null=num_null
    )


def mmd_effect_aggregated(
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
    clip: Scalar = 0.02,
) -> AggResult:
    """MTEAgg: one test over a grid of kernel widths, calibrated by a joint null.

    Args:
        key: draws of the null law, shared by all widths.
        outcome: outcomes of the evaluation sample.
        treatment: 0 or 1.
        propensity: estimated P(A = 1 | x) of each observation.
        law: conditional outcome laws, estimated on other observations.
        epsilons: squared bandwidths, in outcome units squared.
        alpha: level of the test and of the intervals.
        beta: each width is measured in its own upper β-quantile; `alpha` by default.
        num_null: draws of the null law, at least 99.
        clip: propensities are moved into [clip, 1 − clip].

    Returns:
        The aggregated test; every width takes part.

    Raises:
        ValueError: shapes, values, grid or options are not as described.

    >>> import jax, jax.numpy as jnp
    >>> from jaxicml.methods.sinkhorn_effect.laws import conditional_law
    >>> y = jax.random.normal(jax.random.key(0), (40, 1)) + jnp.arange(40)[:, None] % 2
    >>> uniform = jnp.full((40, 20), 1 / 20)
    >>> law = conditional_law(y[1::2], y[::2], uniform, uniform)
    >>> out = mmd_effect_aggregated(
    ...     jax.random.key(1), y, jnp.arange(40.0) % 2, jnp.full(40, 0.5), law,
    ...     epsilons=jnp.array([0.5, 2.0]))
    >>> print(out.reject, out.kept)
    True [ True  True]
    """
    sample = outcome, treatment, propensity, law
    eif.check_sample(*sample)
    beta = alpha if beta is None else beta
    checks.check_key("key", key)
    estimator.check_test(num_null, clip, alpha=alpha, beta=beta)
    epsilons = checked_grid("epsilons", epsilons, outcome.dtype)
    options = {"num_null": num_null, "regime_tol": None}
    return estimator.evaluate(mmd_fold_terms, key, sample, epsilons, alpha, beta, clip, **options)


def mmd_fold_terms(
    key: Key,
    outcome: Float[Array, "n d"],
    treatment: Float[Array, " n"],
    propensity: Float[Array, " n"],
    law: ConditionalLaw,
    epsilons: Float[Array, " e"],
    *,
    num_null: int,
) -> FoldTerms:
    """What one evaluation sample says of ½MMD² at each ε: `estimator.fold_terms` for this kernel.

    With the key of `fold_terms` the null draws come from the same Gaussians. Nothing is checked or
    clipped here. Cost: two products of (n + m)² n an ε, which are taken in turn.

    Args:
        key: draws of the null law, shared by all ε.
        outcome: outcomes of the evaluation sample.
        treatment: 0 or 1.
        propensity: P(A = 1 | x), already clipped away from 0 and 1.
        law: conditional outcome laws, estimated on other observations.
        epsilons: squared bandwidths.
        num_null: draws of the null law.

    Returns:
        Terms that `estimator.summarise` adds up over folds.

    >>> import jax, jax.numpy as jnp
    >>> from jaxicml.methods.sinkhorn_effect.laws import conditional_law
    >>> y, half = jnp.array([[0.0], [1.0]]), jnp.full(2, 0.5)
    >>> law = conditional_law(y[1:], y[:1], jnp.ones((2, 1)), jnp.ones((2, 1)))
    >>> terms = mmd_fold_terms(
    ...     jax.random.key(0), y, jnp.array([0.0, 1.0]), half, law, jnp.ones(1), num_null=99)
    >>> print(terms.plugin)  # 1 − exp(−½)
    [0.3935]
    """
    fixed = eif.design(outcome, treatment, propensity, law)
    return estimator.terms_of(key, fixed, _influence, epsilons, num_null)


def _influence(fixed: eif.Design, epsilon) -> eif.Influence:
    """Plug-in value and both influence functions of D at one ε."""
    constant = jax.lax.stop_gradient(fixed)
    difference = jnp.concatenate([jnp.zeros_like(fixed.treated), fixed.p1 - fixed.p0])
    # Δ and the rows of L sum to zero: g − 1 says the same as g, without cancellation
    kernel = jnp.expm1(-fixed.cost / epsilon)
    witness = kernel @ difference
    plugin = difference @ witness / 2
    kernel, witness = jax.lax.stop_gradient((kernel, witness))
    eif1 = eif.first_order_from_witnesses(constant, witness, -witness)
    eif2 = constant.rows @ kernel @ constant.rows.T
    one = jnp.ones((), kernel.dtype)
    return eif.Influence(plugin, eif1, eif2, one, one > 0)
