"""First- and second-order influence functions of the Sinkhorn treatment effect.

With S = S_ε(P₁, P₀), centred potentials υ_a (cross minus self), conditional laws
W_a[i, j] = P̂(Y = t_j | a, x_i) and m_a(i) = Σ_j W_a[i, j] υ_a(t_j), the efficient influence
function is

    I1_i = a_i/e_i (υ₁(y_i) − m₁(i)) + (1−a_i)/(1−e_i) (υ₀(y_i) − m₀(i)) + m(i) − mean_k m(k),
    m(i) = m₁(i) + m₀(i)

Where P₁ = P₀ it vanishes, and the second order takes over. With a reference law μ of symmetric
potential f, ξ(y, y') = exp((f(y) + f(y') − c(y, y'))/ε), and T the operator of ξ on L²(μ), the
Hessian of S is the kernel of ε (I − T²)⁻¹ (ξ − 1), and

    I2 = L k(z, z) Lᵀ,   z = [y₁..y_n; t],   rows of L: the signed measures of the n observations.

The inverse exists only off the constants. In the symmetric scaling s = √μ the deflated operator is
M = s (ξ − 1) s, for which k = ε s⁻¹ M (I − M²)⁻¹ s⁻¹ and ½[(I − M)⁻¹ − (I + M)⁻¹] = M (I − M²)⁻¹:
two Cholesky factors, no product of n³ and no pseudo-inverse.

References:
    Agarwal, Luedtke, "Sinkhorn Treatment Effects", 2026, arXiv 2605.08485 (Lemma 3.1, Theorem 3.2,
    Lemma C.1, eq. 10). Kokot, Luedtke, "Coreset selection for the Sinkhorn divergence", 2025, and
    Lavenant et al., "The Riemannian geometry of Sinkhorn divergences", 2024 (the Hessian).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxicml import checks
from jaxicml.methods.sinkhorn_effect import potentials as ot
from jaxicml.methods.sinkhorn_effect.laws import ConditionalLaw, check_atoms
from jaxicml.methods.sinkhorn_effect.linalg import inverse_form
from jaxicml.types import Scalar

__all__ = [
    "REFERENCES",
    "Design",
    "Influence",
    "design",
    "first_order_eif",
    "first_order_from_witnesses",
    "hadamard_kernel",
    "influence",
    "second_order_eif",
]

REFERENCES = ("balanced", "pooled", "arm1")
"""Laws at which the second-order kernel may be taken."""


class Design(NamedTuple):
    """One evaluation sample and its nuisances, on common points; the same for every ε.

    Attributes:
        cost: ½‖z − z'‖² over z = [outcomes; atoms].
        p1: weights of the treated law on the atoms.
        p0: weights of the control law on the atoms.
        rows: signed measures L of the observations over z; every row sums to zero.
        treated: a/e, the inverse-probability weight in the treated arm.
        control: (1−a)/(1−e), in the control arm.
        weights1: conditional law of the treated outcome, one row an observation.
        weights0: conditional law of the control outcome.
        valid: whether propensities and laws are probabilities; they may have been traced, where
            no check can look at them.
    """

    cost: Float[Array, "z z"]
    p1: Float[Array, " m"]
    p0: Float[Array, " m"]
    rows: Float[Array, "n z"]
    treated: Float[Array, " n"]
    control: Float[Array, " n"]
    weights1: Float[Array, "n m"]
    weights0: Float[Array, "n m"]
    valid: Bool[Array, ""]


class Influence(NamedTuple):
    """Influence functions of one evaluation sample at one ε.

    Attributes:
        plugin: S_ε of the two estimated laws, in units of the cost.
        eif1: first-order influence function of each observation.
        eif2: second-order influence function of each pair.
        regime: 2S/(Δᵀ k Δ) with Δ = P̂₁ − P̂₀; one where S is quadratic around its null.
        converged: whether every Sinkhorn problem met its tolerance.
    """

    plugin: Float[Array, ""]
    eif1: Float[Array, " n"]
    eif2: Float[Array, "n n"]
    regime: Float[Array, ""]
    converged: Bool[Array, ""]


def design(
    outcome: Float[Array, "n d"],
    treatment: Float[Array, " n"],
    propensity: Float[Array, " n"],
    law: ConditionalLaw,
) -> Design:
    """Lays out points, weights and signed rows; everything that does not depend on ε.

    Args:
        outcome: outcomes of the evaluation sample.
        treatment: 0 or 1.
        propensity: P(A = 1 | x), already clipped away from 0 and 1.
        law: estimated conditional outcome laws at the covariates of the evaluation sample.
    """
    treatment = treatment.astype(outcome.dtype)
    atoms, weights1, weights0 = _common_atoms(law)
    valid = ((propensity > 0) & (propensity < 1)).all() & _stochastic(weights1)
    valid &= _stochastic(weights0)
    # rows may be off by rounding; transport needs equal masses to its own tolerance
    weights1 = weights1 / weights1.sum(1, keepdims=True)
    weights0 = weights0 / weights0.sum(1, keepdims=True)
    points = jnp.concatenate([outcome, atoms])
    p1, p0 = weights1.mean(0), weights0.mean(0)
    treated, control = treatment / propensity, (1 - treatment) / (1 - propensity)
    on_atoms = (1 - treated)[:, None] * weights1 - (1 - control)[:, None] * weights0 - p1 + p0
    rows = jnp.concatenate([jnp.diag(treated - control), on_atoms], axis=1)
    cost = ot.half_squared_cost(points, points)
    return Design(cost, p1, p0, rows, treated, control, weights1, weights0, valid)


def _stochastic(weights) -> Bool[Array, ""]:
    slack = 1e-6 if weights.dtype == jnp.float64 else 1e-5
    return (weights >= 0).all() & (jnp.abs(weights.sum(1) - 1) <= slack).all()


def _common_atoms(law: ConditionalLaw):
    """Both conditional laws over one list of atoms, with zero weights where an arm has none."""
    if law.shared:
        return law.atoms1, law.weights1, law.weights0
    atoms = jnp.concatenate([law.atoms1, law.atoms0])
    weights1 = jnp.pad(law.weights1, ((0, 0), (0, law.atoms0.shape[0])))
    weights0 = jnp.pad(law.weights0, ((0, 0), (law.atoms1.shape[0], 0)))
    return atoms, weights1, weights0


def influence(
    fixed: Design, epsilon: Scalar, *, reference: str = "balanced", tol: float, max_iter: int
) -> Influence:
    """Both influence functions at one ε.

    Cost, with n observations, m atoms and N = n + m: two Cholesky factors N³/3, four solves and
    products N²n. Some six N x N matrices are held at the peak.

    Args:
        fixed: points, weights and signed rows.
        epsilon: regularisation.
        reference: law at which the kernel is taken, one of `REFERENCES`.
        tol: marginal error of the Sinkhorn problems.
        max_iter: bound on their iterations.
    """
    plugin, eif1, first_error = _first_order(fixed, epsilon, tol, max_iter)
    eif2, quadratic, second_error = _second_order(fixed, epsilon, reference, tol, max_iter)
    # equal laws have S = 0 = Δᵀ k Δ: quadratic by any measure
    same = quadratic <= 4 * jnp.finfo(quadratic.dtype).eps * epsilon
    regime = jnp.where(same, 1.0, 2 * plugin / jnp.where(same, 1.0, quadratic))
    converged = (jnp.maximum(first_error, second_error) <= tol) & jnp.isfinite(eif2).all()
    converged &= ot.representable(fixed.cost, epsilon) & fixed.valid
    return Influence(plugin, eif1, eif2, jax.lax.stop_gradient(regime), converged)


def _first_order(fixed: Design, epsilon, tol, max_iter):
    """Plug-in divergence, first-order influence function, worst marginal error."""
    n = fixed.rows.shape[0]
    options = {"tol": tol, "max_iter": max_iter}
    to_atoms, atoms = fixed.cost[:, n:], fixed.cost[n:, n:]
    arms = jnp.stack([fixed.p1, fixed.p0])
    cross = ot.cross_potentials(atoms, fixed.p1, fixed.p0, epsilon, **options)
    own = jax.vmap(lambda p: ot.self_potential(atoms, p, epsilon, **options))(arms)

    own_values = jax.vmap(lambda p, f: ot.dual_value(atoms, p, p, f, f, epsilon))(arms, own.f)
    value = ot.dual_value(atoms, fixed.p1, fixed.p0, cross.f, cross.g, epsilon)
    plugin = value - own_values.sum() / 2
    # υ₁ is the cross potential extended from arm 0, less the self potential of arm 1
    duals = jnp.concatenate([jnp.stack([cross.g, cross.f]), own.f])
    laws = jnp.concatenate([arms[::-1], arms])
    extend = jax.vmap(lambda dual, law: ot.extend_potential(dual, law, to_atoms, epsilon))
    extended = extend(duals, laws)
    centred1, centred0 = extended[0] - extended[2], extended[1] - extended[3]
    eif1 = first_order_from_witnesses(fixed, centred1, centred0)
    error = jnp.maximum(cross.error, own.error.max())
    return plugin, jax.lax.stop_gradient(eif1), error


def first_order_from_witnesses(
    fixed: Design, witness1: Float[Array, " z"], witness0: Float[Array, " z"]
) -> Float[Array, " n"]:
    """Efficient influence function of a discrepancy D(P₁, P₀) from its two first derivatives.

    Args:
        fixed: points, weights and signed rows.
        witness1: derivative υ₁ of D in its first argument, over z = [outcomes; atoms].
        witness0: derivative υ₀ in its second argument.
    """
    n = fixed.rows.shape[0]
    mean1, mean0 = fixed.weights1 @ witness1[n:], fixed.weights0 @ witness0[n:]
    regression = mean1 + mean0
    return (
        fixed.treated * (witness1[:n] - mean1)
        + fixed.control * (witness0[:n] - mean0)
        + regression
        - regression.mean()
    )


def _second_order(fixed: Design, epsilon, reference, tol, max_iter):
    """I2, Δᵀ k Δ and the marginal error of the reference potential."""
    n = fixed.rows.shape[0]
    fixed = jax.lax.stop_gradient(fixed)
    difference = jnp.concatenate([jnp.zeros_like(fixed.treated), fixed.p1 - fixed.p0])
    rows = jnp.concatenate([fixed.rows, difference[None]])
    mu = reference_law(fixed, reference)
    potential = ot.self_potential(fixed.cost, mu, epsilon, tol=tol, max_iter=max_iter)
    form = _kernel_form(fixed.cost, mu, potential.f, rows, epsilon, full=reference == "balanced")
    return form[:n, :n], form[n, n], potential.error


def reference_law(fixed: Design, reference: str) -> Float[Array, " z"]:
    """Weights of the reference law over z = [outcomes; atoms].

    "balanced" puts half its mass on the outcomes, weighted by inverse probability, so that no
    outcome lies outside its support; "pooled" is ½(P̂₁ + P̂₀); "arm1" is P̂₁, the paper's choice.
    """
    pooled = (fixed.p1 + fixed.p0) / 2
    nothing = jnp.zeros_like(fixed.treated)
    if reference == "pooled":
        return jnp.concatenate([nothing, pooled])
    if reference == "arm1":
        return jnp.concatenate([nothing, fixed.p1])
    weights = fixed.treated + fixed.control
    return jnp.concatenate([weights / weights.sum(), pooled]) / 2


def _kernel_form(cost, mu, potential, rows, epsilon, *, full: bool):
    """Rows · k · rowsᵀ for the Hessian kernel k at μ; `full`: μ charges all points of `rows`."""
    scale = jnp.sqrt(mu)
    # ξ − 1 without cancellation where ξ is near one: large ε, close outcomes
    xi_less_1 = jnp.expm1((potential[:, None] + potential[None, :] - cost) / epsilon)
    deflated = xi_less_1 * scale[:, None] * scale[None, :]
    if full:
        inverse = jnp.where(scale > 0, 1 / jnp.where(scale > 0, scale, 1), 0)
        return epsilon * _resolvent_form(deflated, rows * inverse)
    # constants of ξ drop out: rows sum to zero
    smoothed = rows @ xi_less_1
    return epsilon * (smoothed @ rows.T + _resolvent_form(deflated, smoothed * scale))


def _resolvent_form(
    operator: Float[Array, "z z"], rows: Float[Array, "n z"]
) -> Float[Array, "n n"]:
    """Rows · M (I − M²)⁻¹ · rowsᵀ = ½ rows [(I − M)⁻¹ − (I + M)⁻¹] rowsᵀ for 0 ≤ M < I."""
    # never differentiated: the batching rule of the factorisation has no transpose
    operator, rows = jax.lax.stop_gradient((operator, rows))
    diagonal = jnp.arange(operator.shape[0])

    # one sign after the other: the two factors need not be in memory together
    def add(total, sign):
        shifted = (sign * operator).at[diagonal, diagonal].add(1)
        return total - sign * inverse_form(shifted, rows) / 2, None

    start = jnp.zeros((rows.shape[0],) * 2, operator.dtype)
    return jax.lax.scan(add, start, jnp.array([-1, 1], operator.dtype))[0]


def first_order_eif(
    outcome: Float[Array, "n d"],
    treatment: Float[Array, " n"],
    propensity: Float[Array, " n"],
    law: ConditionalLaw,
    *,
    epsilon: Scalar,
    tol: float | None = None,
    max_iter: int = 2000,
) -> Float[Array, " n"]:
    """Efficient influence function of S_ε at each observation (Lemma 3.1, Algorithm 1).

    Args:
        outcome: outcomes of the evaluation sample.
        treatment: 0 or 1.
        propensity: P(A = 1 | x) of each observation, used as given.
        law: conditional outcome laws at the covariates of the evaluation sample.
        epsilon: regularisation in units of the cost.
        tol: marginal error; by default 1e-9 in float64 and 1e-5 in float32.
        max_iter: bound on Sinkhorn iterations.

    Raises:
        ValueError: shapes, values or ε are not as described.

    >>> import jax, jax.numpy as jnp
    >>> from jaxicml.methods.sinkhorn_effect.laws import conditional_law
    >>> y = jnp.array([[0.0], [1.0], [2.0], [3.0]])
    >>> a = jnp.array([0.0, 1.0, 0.0, 1.0])
    >>> uniform = jnp.full((4, 2), 0.5)
    >>> law = conditional_law(y[1::2], y[::2], uniform, uniform)
    >>> first_order_eif(y, a, jnp.full(4, 0.5), law, epsilon=1.0).shape
    (4,)
    """
    check_sample(outcome, treatment, propensity, law)
    epsilon = ot.checked_epsilon("epsilon", epsilon, outcome.dtype)
    ot.check_solver(tol, max_iter)
    tol = ot.default_tolerance(outcome.dtype) if tol is None else tol
    return _first_order_alone(outcome, treatment, propensity, law, epsilon, tol, max_iter)


@functools.partial(jax.jit, static_argnames=("tol", "max_iter"))
def _first_order_alone(outcome, treatment, propensity, law, epsilon, tol, max_iter):
    fixed = design(outcome, treatment, propensity, law)
    return _first_order(fixed, epsilon, tol, max_iter)[1]


def second_order_eif(
    outcome: Float[Array, "n d"],
    treatment: Float[Array, " n"],
    propensity: Float[Array, " n"],
    law: ConditionalLaw,
    *,
    epsilon: Scalar,
    reference: str = "balanced",
    tol: float | None = None,
    max_iter: int = 2000,
) -> Float[Array, "n n"]:
    """Second-order influence function I2 of each pair of observations (eq. 10).

    Symmetric and positive semi-definite; NaN where the reference law cannot be inverted in the
    dtype of the data.

    Args:
        outcome: outcomes of the evaluation sample.
        treatment: 0 or 1.
        propensity: P(A = 1 | x) of each observation, used as given.
        law: conditional outcome laws at the covariates of the evaluation sample.
        epsilon: regularisation in units of the cost.
        reference: "balanced", "pooled" or "arm1".
        tol: marginal error; by default 1e-9 in float64 and 1e-5 in float32.
        max_iter: bound on Sinkhorn iterations.

    Raises:
        ValueError: shapes, values, ε or the reference are not as described.
    """
    check_sample(outcome, treatment, propensity, law)
    epsilon = ot.checked_epsilon("epsilon", epsilon, outcome.dtype)
    ot.check_solver(tol, max_iter)
    checks.check_choice("reference", reference, REFERENCES)
    tol = ot.default_tolerance(outcome.dtype) if tol is None else tol
    return _second_order_alone(
        outcome, treatment, propensity, law, epsilon, reference, tol, max_iter
    )


@functools.partial(jax.jit, static_argnames=("reference", "tol", "max_iter"))
def _second_order_alone(outcome, treatment, propensity, law, epsilon, reference, tol, max_iter):
    fixed = design(outcome, treatment, propensity, law)
    return _second_order(fixed, epsilon, reference, tol, max_iter)[0]


def check_sample(outcome, treatment, propensity, law: ConditionalLaw) -> None:
    """The checks that every estimator of this method makes of an evaluation sample."""
    checks.check_floats("outcome", outcome, (None, None))
    n, d = outcome.shape
    checks.check_array("treatment", treatment, (n,))
    checks.check_binary("treatment", treatment)
    checks.check_floats("propensity", propensity, (n,), finite=False)
    checks.check_open_unit("propensity", propensity)
    checks.check_instance("law", law, ConditionalLaw)
    check_atoms(law, n=n, d=d, prefix="law.")


def hadamard_kernel(
    atoms: Float[Array, "m d"],
    mu: Float[Array, " m"],
    query_a: Float[Array, "a d"],
    query_b: Float[Array, "b d"],
    *,
    epsilon: Scalar,
    tol: float | None = None,
    max_iter: int = 2000,
) -> Float[Array, "a b"]:
    """Hessian kernel k of h ↦ S_ε(μ + hγ, μ) at h = 0: d²S/dh² = γᵀ k γ for Σγ = 0 (Theorem 3.2).

    k(y, y') = ε {ξ(y, y') − 1 + q(y)ᵀ M (I − M²)⁻¹ q(y')} with q(y) = √μ (ξ(·, y) − 1): symmetric,
    positive semi-definite, and k μ = 0. Queries may lie anywhere, but far from the atoms
    ξ(y, y) grows without bound.

    Args:
        atoms: support of the reference law μ.
        mu: its weights.
        query_a: points of the rows.
        query_b: points of the columns.
        epsilon: regularisation in units of the cost.
        tol: marginal error; by default 1e-9 in float64 and 1e-5 in float32.
        max_iter: bound on Sinkhorn iterations.

    Raises:
        ValueError: shapes, weights or ε are not as described.

    >>> import jax.numpy as jnp
    >>> atoms = jnp.array([[0.0], [1.0], [2.0]])
    >>> k = hadamard_kernel(atoms, jnp.full(3, 1 / 3), atoms, atoms, epsilon=1.0)
    >>> bool(abs(k.sum()) < 1e-4)
    True
    """
    checks.check_floats("atoms", atoms, (None, None))
    checks.check_floats("mu", mu, (atoms.shape[0],))
    checks.check_row_stochastic("mu", mu[None])
    for name, query in (("query_a", query_a), ("query_b", query_b)):
        checks.check_floats(name, query, (None, atoms.shape[1]))
    epsilon = ot.checked_epsilon("epsilon", epsilon, atoms.dtype)
    ot.check_solver(tol, max_iter)
    tol = ot.default_tolerance(atoms.dtype) if tol is None else tol
    return _hadamard_kernel(atoms, mu, query_a, query_b, epsilon, tol, max_iter)


@functools.partial(jax.jit, static_argnames=("tol", "max_iter"))
def _hadamard_kernel(atoms, mu, query_a, query_b, epsilon, tol, max_iter):
    own = ot.half_squared_cost(atoms, atoms)
    f = ot.self_potential(own, mu, epsilon, tol=tol, max_iter=max_iter).f
    extend = lambda cost: ot.extend_potential(f, mu, cost, epsilon)
    to_a, to_b = ot.half_squared_cost(query_a, atoms), ot.half_squared_cost(query_b, atoms)
    f_a, f_b = extend(to_a), extend(to_b)
    xi_less_1 = lambda f, g, cost: jnp.expm1((f[:, None] + g[None, :] - cost) / epsilon)

    scale = jnp.sqrt(mu)
    deflated = xi_less_1(f, f, own) * scale[:, None] * scale[None, :]
    q_a, q_b = xi_less_1(f_a, f, to_a) * scale, xi_less_1(f_b, f, to_b) * scale
    identity = jnp.eye(atoms.shape[0], dtype=atoms.dtype)
    solve = lambda sign: jax.scipy.linalg.solve(identity + sign * deflated, q_b.T, assume_a="pos")
    less, more = jax.lax.map(solve, jnp.array([-1, 1], atoms.dtype))
    between = xi_less_1(f_a, f_b, ot.half_squared_cost(query_a, query_b))
    return epsilon * (between + q_a @ (less - more) / 2)
