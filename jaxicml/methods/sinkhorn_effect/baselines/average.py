r"""The average treatment effect of a vector outcome by augmented inverse-probability weights.

    ψ_i = m₁(x_i) − m₀(x_i) + a_i/e_i (y_i − m₁(x_i)) − (1−a_i)/(1−e_i) (y_i − m₀(x_i))
    ψ̄ ± z sd(ψ)/√n,    n ψ̄ᵀ cov(ψ)⁻¹ ψ̄ ~ χ²_d

References:
    Robins, Rotnitzky, Zhao, "Estimation of regression coefficients when some regressors are not
    always observed", 1994.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxicml import checks
from jaxicml.methods.sinkhorn_effect import influence as eif
from jaxicml.methods.sinkhorn_effect.baselines import weighted
from jaxicml.methods.sinkhorn_effect.laws import ConditionalLaw
from jaxicml.methods.sinkhorn_effect.linalg import inverse_form
from jaxicml.methods.sinkhorn_effect.propensity import check_clip
from jaxicml.types import Scalar

__all__ = ["AteResult", "ate_aipw"]


class AteResult(NamedTuple):
    """The average treatment effect of each outcome component, and one test of all of them.

    Attributes:
        effect: estimate; outcome units.
        se: its standard error.
        ci_low: lower end of the Wald interval of each component by itself.
        ci_high: upper end.
        statistic: squared distance of `effect` from zero in its own covariance.
        p_value: of no effect in any component; NaN where the covariance is singular.
    """

    effect: Float[Array, " d"]
    se: Float[Array, " d"]
    ci_low: Float[Array, " d"]
    ci_high: Float[Array, " d"]
    statistic: Float[Array, ""]
    p_value: Float[Array, ""]


def ate_aipw(
    outcome: Float[Array, "n d"],
    treatment: Float[Array, " n"],
    propensity: Float[Array, " n"],
    law: ConditionalLaw,
    *,
    alpha: Scalar = 0.05,
    clip: Scalar = 0.02,
) -> AteResult:
    """Average treatment effect by augmented inverse-probability weighting, and its Wald test.

    The regressions are the means of the conditional laws, so that this test has the nuisances of
    the distributional ones. The test refers Hotelling's form to χ² with d degrees of freedom; for
    d = 1 it is the two-sided z test. It is a constant of every gradient.

    Args:
        outcome: outcomes of the evaluation sample.
        treatment: 0 or 1.
        propensity: estimated P(A = 1 | x) of each observation.
        law: conditional outcome laws, estimated on other observations.
        alpha: one minus the level of the intervals.
        clip: propensities are moved into [clip, 1 − clip].

    Returns:
        Estimates, intervals and the test.

    Raises:
        ValueError: shapes, values or options are not as described.

    >>> import jax.numpy as jnp
    >>> from jaxicml.methods.sinkhorn_effect.laws import conditional_law
    >>> y, a = jnp.array([[0.0], [2.0], [1.0], [3.0]]), jnp.array([0.0, 1.0, 0.0, 1.0])
    >>> uniform = jnp.full((4, 2), 0.5)
    >>> law = conditional_law(y[1::2], y[::2], uniform, uniform)
    >>> ate = ate_aipw(y, a, jnp.full(4, 0.5), law)
    >>> print(ate.effect, ate.se)  # sd(ψ) = 1 in a sample of four
    [2.] [0.5]
    """
    eif.check_sample(outcome, treatment, propensity, law)
    checks.check_scalar("alpha", alpha)
    checks.check_open_unit("alpha", alpha)
    check_clip("clip", clip)
    return _ate_aipw(outcome, treatment, propensity, law, alpha, clip)


@jax.jit
def _ate_aipw(outcome, treatment, propensity, law, alpha, clip):
    treated, control = weighted.inverse_probabilities(outcome.dtype, treatment, propensity, clip)
    # differences of outcomes only: large means cost no digits
    centre = outcome.mean(0)
    outcome = outcome - centre
    mean1 = law.weights1 @ (law.atoms1 - centre)
    mean0 = law.weights0 @ (law.atoms0 - centre)
    correction1 = treated[:, None] * (outcome - mean1)
    correction0 = control[:, None] * (outcome - mean0)
    psi = mean1 - mean0 + correction1 - correction0
    effect, deviation = psi.mean(0), psi.std(0)
    root_n = jnp.sqrt(jnp.asarray(len(psi), psi.dtype))
    half = jax.scipy.stats.norm.ppf(1 - jnp.asarray(alpha, psi.dtype) / 2) * deviation / root_n

    statistic = _hotelling(jax.lax.stop_gradient(psi), jnp.abs(outcome).max(0))
    p_value = jax.scipy.special.gammaincc(len(effect) / 2, statistic / 2)
    return AteResult(effect, deviation / root_n, effect - half, effect + half, statistic, p_value)


def _hotelling(psi, magnitude):
    """Returns n ψ̄ᵀ cov(ψ)⁻¹ ψ̄ by way of correlations; NaN where the covariance is singular."""
    n, d = psi.shape
    mean, deviation = psi.mean(0), psi.std(0)
    # below this a component varies by rounding alone
    varies = deviation > 100 * jnp.finfo(psi.dtype).eps * magnitude
    scale = jnp.where(varies, deviation, jnp.inf)
    standardised = (psi - mean) / scale
    rows = jnp.concatenate([(mean / scale)[None], jnp.eye(d, dtype=psi.dtype)])
    form = inverse_form(standardised.T @ standardised / n, rows)
    # the diagonal of R⁻¹ holds the variance inflation factors of the components
    inflation = jnp.diagonal(form)[1:].max()
    regular = inflation * 10 * d * jnp.finfo(form.dtype).eps < 1
    return jnp.where(regular, n * form[0, 0], jnp.nan)
