r"""Tests by weighted samples: cross U-statistic, weighted embeddings, raw Sinkhorn divergences.

    DR-xKTE     f_i = ⟨φ_i, mean of φ over the other half⟩,   T = √n_h f̄/sd(f) ~ N(0, 1)
                φ_i = a_i/e_i (δ_{y_i} − W₁[i]) − (1−a_i)/(1−e_i) (δ_{y_i} − W₀[i]) + W₁[i] − W₀[i]
    KTE         k̄₁₁ + k̄₀₀ − 2 k̄₁₀,   k̄ the mean of k(y_i, y_j) over pairs i ≠ j with weights
                w₁ ∝ a/e,   w₀ ∝ (1−a)/(1−e)
    plug-in     S_ε(Σ_i w₁ᵢ δ_{y_i}, Σ_i w₀ᵢ δ_{y_i}), not debiased
    naive       the same with w₁ ∝ a, w₀ ∝ 1−a, whatever the confounding

References:
    Martinez-Taboada, Ramdas, Kennedy, "An efficient doubly-robust test for the kernel treatment
    effect", 2023 (DR-xKTE). Muandet, Kanagawa, Saengkyongam, Marukatat, "Counterfactual mean
    embeddings", 2021 (KTE). Ramdas, Garcia Trillos, Cuturi, "On Wasserstein two-sample testing and
    related families of nonparametric tests", 2017 (Sinkhorn between samples).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxicml import checks
from jaxicml.methods.sinkhorn_effect import influence as eif
from jaxicml.methods.sinkhorn_effect import potentials as ot
from jaxicml.methods.sinkhorn_effect.laws import ConditionalLaw
from jaxicml.methods.sinkhorn_effect.propensity import check_clip, clip_propensity
from jaxicml.stats import significance
from jaxicml.types import Key, Scalar

__all__ = [
    "HypothesisTest",
    "dr_xkte",
    "ipw_kte_permutation",
    "ipw_sinkhorn_plugin",
    "naive_two_sample",
]


class HypothesisTest(NamedTuple):
    """A test of no effect; large statistics reject, NaN where it is undefined."""

    statistic: Float[Array, ""]
    p_value: Float[Array, ""]


def dr_xkte(
    outcome: Float[Array, "n d"],
    treatment: Float[Array, " n"],
    propensity: Float[Array, " n"],
    law: ConditionalLaw,
    *,
    bandwidth: Scalar,
    clip: Scalar = 0.02,
) -> HypothesisTest:
    """Doubly robust kernel test by a cross U-statistic, normal under the null (DR-xKTE).

    φ_i is the augmented weighted embedding of observation i. Rows of the first half are measured
    along the mean of the second, so that rows must come in random order; the price of a known null
    law is half the sample. One-sided: under the alternative the two halves agree.

    Args:
        outcome: outcomes of the evaluation sample, in random order.
        treatment: 0 or 1.
        propensity: estimated P(A = 1 | x) of each observation.
        law: conditional outcome laws, estimated on other observations.
        bandwidth: ε of the kernel exp(−‖y − y'‖²/(2ε)), in outcome units squared.
        clip: propensities are moved into [clip, 1 − clip].

    Returns:
        T and its upper normal tail; NaN where the first half does not vary.

    Raises:
        ValueError: shapes, values or options are not as described, or fewer than four rows.

    >>> import jax, jax.numpy as jnp
    >>> from jaxicml.methods.sinkhorn_effect.laws import conditional_law
    >>> y = jax.random.normal(jax.random.key(0), (40, 1)) + 2 * (jnp.arange(40)[:, None] % 2)
    >>> uniform = jnp.full((40, 20), 1 / 20)
    >>> law = conditional_law(y[1::2], y[::2], uniform, uniform)
    >>> out = dr_xkte(y, jnp.arange(40.0) % 2, jnp.full(40, 0.5), law, bandwidth=1.0)
    >>> bool(out.p_value < 0.05)
    True
    """
    eif.check_sample(outcome, treatment, propensity, law)
    checks.check_min_rows("outcome", outcome, 4)
    bandwidth = ot.checked_epsilon("bandwidth", bandwidth, outcome.dtype)
    check_clip("clip", clip)
    return _dr_xkte(outcome, treatment, propensity, law, bandwidth, clip)


@jax.jit
def _dr_xkte(outcome, treatment, propensity, law, bandwidth, clip):
    n, half = outcome.shape[0], outcome.shape[0] // 2
    propensity, _ = clip_propensity(propensity, clip)
    fixed = eif.design(outcome, treatment, propensity, law)
    # rows without −p₁ + p₀: embeddings of the observations, not of their deviations
    rows = fixed.rows.at[:, n:].add(fixed.p1 - fixed.p0)
    # rows sum to zero: k − 1 says the same as k, without cancellation
    kernel = jnp.expm1(-fixed.cost / bandwidth)
    along = rows[:half] @ (kernel @ rows[half:].mean(0))
    deviation = along.std()
    statistic = jnp.where(deviation > 0, jnp.sqrt(half) * along.mean() / deviation, jnp.nan)
    statistic = statistic.astype(outcome.dtype)
    return HypothesisTest(statistic, jax.scipy.stats.norm.sf(statistic))


def ipw_kte_permutation(
    key: Key,
    outcome: Float[Array, "n d"],
    treatment: Float[Array, " n"],
    propensity: Float[Array, " n"],
    *,
    bandwidth: Scalar,
    num_permutations: int = 200,
    clip: Scalar = 0.02,
) -> HypothesisTest:
    """Kernel treatment effect by inverse-probability weights, with a randomisation null (KTE).

    The statistic is the unbiased squared distance of the two weighted mean embeddings: pairs i = i
    are left out, weights sum to one in each arm. With equal weights it is the U-statistic of MMD².

    The null draws treatments anew, A_i ~ Bernoulli(e_i), and keeps outcomes and covariates. It is
    exact where A is independent of Y given X and `propensity` is the truth, within the clipping
    bounds. With an estimated propensity, or laws that agree only on average over X, it is an
    approximation. A plain permutation of treatments is wrong as soon as the propensity varies.

    Args:
        key: draws of treatments.
        outcome: outcomes.
        treatment: 0 or 1.
        propensity: P(A = 1 | x) of each observation.
        bandwidth: ε of the kernel exp(−‖y − y'‖²/(2ε)), in outcome units squared.
        num_permutations: draws of the null law, at least 99.
        clip: propensities are moved into [clip, 1 − clip].

    Returns:
        Squared distance of the embeddings (below zero by chance) and its Monte-Carlo p-value.

    Raises:
        ValueError: shapes, values or options are not as described.

    >>> import jax, jax.numpy as jnp
    >>> y, a = jnp.arange(40.0)[:, None] % 2, jnp.arange(40.0) % 2
    >>> out = ipw_kte_permutation(jax.random.key(0), y, a, jnp.full(40, 0.5), bandwidth=1.0)
    >>> print(out.statistic, out.p_value)  # 2 (1 − exp(−½)), and 1/201
    0.7869 0.00498
    """
    checks.check_key("key", key)
    _check_weighted(outcome, treatment, propensity, clip)
    bandwidth = ot.checked_epsilon("bandwidth", bandwidth, outcome.dtype)
    checks.check_integer("num_permutations", num_permutations, low=99)
    return _ipw_kte(
        key, outcome, treatment, propensity, bandwidth, clip, num_permutations=num_permutations
    )


@functools.partial(jax.jit, static_argnames="num_permutations")
def _ipw_kte(key, outcome, treatment, propensity, bandwidth, clip, *, num_permutations):
    dtype = outcome.dtype
    cost = ot.half_squared_cost(outcome, outcome)
    # weights sum to one in each arm: k − 1 says the same as k, and its diagonal is zero
    kernel = jnp.expm1(-cost / bandwidth)
    kernel = jnp.fill_diagonal(kernel, 0, inplace=False)
    probability, _ = clip_propensity(propensity, clip)

    def statistic(labels):
        p1, p0 = _arm_weights(*inverse_probabilities(dtype, labels, propensity, clip))
        return _pair_mean(kernel, p1) + _pair_mean(kernel, p0) - 2 * p1 @ kernel @ p0

    reassign = lambda draw_key, labels: jax.random.bernoulli(draw_key, probability).astype(dtype)
    labels = treatment.astype(dtype)
    return _randomisation_test(key, jax.vmap(statistic), labels, reassign, num_permutations)


def _pair_mean(kernel, weights):
    """Weighted mean of k − 1 over pairs of different members; 0, its largest, without pairs."""
    pairs = weights.sum() ** 2 - weights @ weights
    return weights @ kernel @ weights / jnp.where(pairs > 0, pairs, 1)


def ipw_sinkhorn_plugin(
    outcome: Float[Array, "n d"],
    treatment: Float[Array, " n"],
    propensity: Float[Array, " n"],
    *,
    epsilon: Scalar,
    clip: Scalar = 0.02,
    tol: float | None = None,
    max_iter: int = 2000,
) -> Float[Array, ""]:
    """Sinkhorn divergence of the inverse-probability weighted arms, without any debiasing.

    Args:
        outcome: outcomes.
        treatment: 0 or 1.
        propensity: P(A = 1 | x) of each observation.
        epsilon: regularisation, in outcome units squared.
        clip: propensities are moved into [clip, 1 − clip].
        tol: marginal error; by default 1e-9 in float64 and 1e-5 in float32.
        max_iter: bound on Sinkhorn iterations.

    Returns:
        The divergence, in outcome units squared; NaN where Sinkhorn did not converge.

    Raises:
        ValueError: shapes, values or options are not as described.

    >>> import jax.numpy as jnp
    >>> y, a = jnp.array([[0.0], [2.0], [1.0], [3.0]]), jnp.array([0.0, 1.0, 0.0, 1.0])
    >>> print(ipw_sinkhorn_plugin(y, a, jnp.full(4, 0.5), epsilon=1.0))  # a shift by 2 costs ½·2²
    2.0
    """
    _check_weighted(outcome, treatment, propensity, clip)
    epsilon = ot.checked_epsilon("epsilon", epsilon, outcome.dtype)
    ot.check_solver(tol, max_iter)
    return _ipw_sinkhorn(outcome, treatment, propensity, epsilon, clip, tol=tol, max_iter=max_iter)


@functools.partial(jax.jit, static_argnames=("tol", "max_iter"))
def _ipw_sinkhorn(outcome, treatment, propensity, epsilon, clip, *, tol, max_iter):
    ratios = inverse_probabilities(outcome.dtype, treatment, propensity, clip)
    return _divergence(outcome, *_arm_weights(*ratios), epsilon, tol, max_iter)


def naive_two_sample(
    key: Key,
    outcome: Float[Array, "n d"],
    treatment: Float[Array, " n"],
    *,
    epsilon: Scalar,
    num_permutations: int = 200,
    tol: float = 1e-4,
    max_iter: int = 2000,
) -> HypothesisTest:
    """Two-sample test by the Sinkhorn divergence of the raw arms, which ignores confounding.

    The null permutes treatments: exact where treatment is independent of the outcome, as in a
    trial with a constant propensity and no effect. Cost: three Sinkhorn problems on n × n a
    permutation, on all outcomes with zero weights, so that shapes do not depend on the arms.

    Args:
        key: permutations.
        outcome: outcomes.
        treatment: 0 or 1.
        epsilon: regularisation, in outcome units squared.
        num_permutations: draws of the null law, at least 99.
        tol: marginal error; a coarse one keeps the null exact, as all draws share it.
        max_iter: bound on Sinkhorn iterations.

    Returns:
        Divergence of the arms in outcome units squared and its permutation p-value; NaN where
        Sinkhorn did not converge.

    Raises:
        ValueError: shapes, values or options are not as described.

    >>> import jax, jax.numpy as jnp
    >>> y, a = jnp.arange(20.0)[:, None] % 2, jnp.arange(20.0) % 2
    >>> out = naive_two_sample(jax.random.key(0), y, a, epsilon=1.0, num_permutations=99)
    >>> print(out.statistic, out.p_value)
    0.5 0.01
    """
    checks.check_key("key", key)
    _check_observed(outcome, treatment)
    epsilon = ot.checked_epsilon("epsilon", epsilon, outcome.dtype)
    ot.check_solver(tol, max_iter)
    checks.check_integer("num_permutations", num_permutations, low=99)
    options = {"num_permutations": num_permutations, "tol": tol, "max_iter": max_iter}
    return _naive_two_sample(key, outcome, treatment, epsilon, **options)


@functools.partial(jax.jit, static_argnames=("num_permutations", "tol", "max_iter"))
def _naive_two_sample(key, outcome, treatment, epsilon, *, num_permutations, tol, max_iter):
    def statistic(labels):
        return _divergence(outcome, *_arm_weights(labels, 1 - labels), epsilon, tol, max_iter)

    labels = treatment.astype(outcome.dtype)
    one_by_one = functools.partial(jax.lax.map, statistic)
    return _randomisation_test(key, one_by_one, labels, jax.random.permutation, num_permutations)


def _randomisation_test(key, statistics, labels, redraw, num_draws):
    """Monte-Carlo test over redrawn labels; `statistics` maps rows of labels to numbers.

    The observed labels go through the same program as the draws: equal labels then give equal
    bits, so that ties count, and the statistic is compiled once. Holds draws × n labels.
    """
    drawn = jax.vmap(redraw, in_axes=(0, None))(jax.random.split(key, num_draws), labels)
    values = statistics(jnp.concatenate([labels[None], drawn]))
    return HypothesisTest(values[0], significance.monte_carlo_p_value(values[0], values[1:]))


def inverse_probabilities(dtype, treatment, propensity, clip):
    """a/e and (1−a)/(1−e) with clipped propensities."""
    propensity, _ = clip_propensity(propensity, clip)
    treatment = treatment.astype(dtype)
    return treatment / propensity, (1 - treatment) / (1 - propensity)


def _arm_weights(treated, control):
    """Weights that sum to one in each arm; an arm that a random draw left empty has none."""
    share = lambda weights: weights / jnp.where(weights.sum() > 0, weights.sum(), 1)
    return share(treated), share(control)


def _divergence(outcome, p1, p0, epsilon, tol, max_iter):
    value, potentials = ot.sinkhorn_divergence(
        outcome, outcome, p1, p0, epsilon=epsilon, tol=tol, max_iter=max_iter
    )
    return jnp.where(potentials.converged, value, jnp.nan)


def _check_observed(outcome, treatment) -> None:
    checks.check_floats("outcome", outcome, (None, None))
    checks.check_array("treatment", treatment, (outcome.shape[0],))
    checks.check_binary("treatment", treatment)


def _check_weighted(outcome, treatment, propensity, clip) -> None:
    _check_observed(outcome, treatment)
    checks.check_floats("propensity", propensity, treatment.shape, finite=False)
    checks.check_open_unit("propensity", propensity)
    check_clip("clip", clip)
