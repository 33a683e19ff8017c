r"""Discrete conditional laws of the outcome given covariates, one per treatment arm.

    P̂(Y = t_{a,j} | A = a, x_i) = W_a[i, j]        atoms t_a, row-stochastic W_a
    P̂_a = Σ_j p_{a,j} δ_{t_{a,j}},   p_a = mean_i W_a[i, :]

Kernel law: W_a[i, j] ∝ 1{a_j = a} exp(−‖x_i − x_j‖²/(2 h²)) over training rows j. The bandwidth h
minimises the leave-one-out conditional energy score (the CRPS where the outcome is a number)

    mean_i [ Σ_j w_ij ‖y_j − y_i‖ − ½ Σ_jk w_ij w_ik ‖y_j − y_k‖ ].

References:
    T. Gneiting, A. E. Raftery, "Strictly proper scoring rules, prediction, and estimation", 2007.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from jaxicml import checks
from jaxicml.methods.sinkhorn_effect.potentials import checked_epsilon, half_squared_cost
from jaxicml.methods.sinkhorn_effect.propensity import check_treated
from jaxicml.types import Scalar

__all__ = [
    "BandwidthChoice",
    "ConditionalLaw",
    "conditional_law",
    "kernel_law",
    "select_bandwidth",
]


class ConditionalLaw(eqx.Module):
    """Laws of Y given A = a and X = x_i on finitely many atoms, at n evaluation covariates.

    Attributes:
        atoms1: atoms of the treated arm, in outcome units.
        atoms0: atoms of the control arm.
        weights1: row i is the law of the treated arm at x_i; rows sum to one.
        weights0: the same for the control arm.
        shared: both arms live on the same atoms (then `atoms1` equals `atoms0`); an arm may give
            an atom no weight. Shapes then do not depend on the sizes of the arms.
    """

    atoms1: Float[Array, "m1 d"]
    atoms0: Float[Array, "m0 d"]
    weights1: Float[Array, "n m1"]
    weights0: Float[Array, "n m0"]
    shared: bool = eqx.field(static=True, default=False)

    @property
    def marginal1(self) -> Float[Array, " m1"]:
        """Weights of P̂_1: the treated law averaged over the evaluation covariates."""
        return self.weights1.mean(0)

    @property
    def marginal0(self) -> Float[Array, " m0"]:
        """Weights of P̂_0: the control law averaged over the evaluation covariates."""
        return self.weights0.mean(0)


class BandwidthChoice(NamedTuple):
    """The bandwidth with the smallest score, and all scores."""

    bandwidth: Float[Array, ""]
    """In units of the covariates."""
    scores: Float[Array, " k"]
    """Leave-one-out conditional energy scores, in outcome units."""


def conditional_law(
    atoms1: Float[Array, "m1 d"],
    atoms0: Float[Array, "m0 d"],
    weights1: Float[Array, "n m1"],
    weights0: Float[Array, "n m0"],
    *,
    shared: bool = False,
) -> ConditionalLaw:
    """A law from atoms and weights of any origin (forests, simulators, the truth), checked.

    Args:
        atoms1: atoms of the treated arm.
        atoms0: atoms of the control arm.
        weights1: one row per evaluation covariate, summing to one.
        weights0: the same for the control arm.
        shared: promise that both arms have the same atoms.

    Returns:
        The law.

    Raises:
        ValueError: shapes that disagree, values that are not finite, weights that are negative or
            do not sum to one, or atoms that differ although `shared`.

    >>> atoms, weights = jnp.array([[0.0], [1.0]]), jnp.array([[0.5, 0.5], [1.0, 0.0]])
    >>> print(conditional_law(atoms, atoms, weights, weights).marginal1)
    [0.75 0.25]
    """
    checks.check_choice("shared", shared, (True, False))
    law = ConditionalLaw(atoms1, atoms0, weights1, weights0, shared=shared)
    check_atoms(law)
    checks.check_min_rows("weights1", weights1, 1)
    return jax.tree.map(jnp.asarray, law)


def check_atoms(
    law: ConditionalLaw, *, n: int | None = None, d: int | None = None, prefix: str = ""
) -> None:
    """Checks the arrays of a law, at n covariates for outcomes of dimension d where these are set.

    Raises:
        ValueError: shapes that disagree, values that are not finite, weights that are negative or
            do not sum to one, or atoms that differ although `shared`; after `prefix` the array.
    """
    checks.check_floats(f"{prefix}atoms1", law.atoms1, (None, d))
    checks.check_floats(f"{prefix}atoms0", law.atoms0, (None, law.atoms1.shape[1]))
    checks.check_floats(f"{prefix}weights1", law.weights1, (n, law.atoms1.shape[0]))
    rows = law.weights1.shape[0], law.atoms0.shape[0]
    checks.check_floats(f"{prefix}weights0", law.weights0, rows)
    checks.check_row_stochastic(f"{prefix}weights1", law.weights1)
    checks.check_row_stochastic(f"{prefix}weights0", law.weights0)
    if not law.shared:
        return
    checks.check_shape("atoms0", law.atoms0, law.atoms1.shape)
    known = not checks.is_traced(law.atoms1, law.atoms0)
    if known and not np.array_equal(law.atoms1, law.atoms0):
        raise ValueError("atoms0: expected the atoms of atoms1 when shared, got others")


def kernel_law(
    x_train: Float[Array, "m p"],
    a_train: Shaped[Array, " m"],
    y_train: Float[Array, "m d"],
    x_eval: Float[Array, "n p"],
    *,
    bandwidth: Scalar,
) -> ConditionalLaw:
    """Gaussian kernel weights on the training outcomes of each arm.

    One bandwidth serves all covariates: standardise them first. Weights are normalised in the log
    domain, so that a covariate far from all others still gets a law (its nearest neighbours').
    Cost: n × m × p operations, two n × m matrices.

    Args:
        x_train: covariates of the training rows.
        a_train: their treatments, 0 or 1.
        y_train: their outcomes, which become the shared atoms.
        x_eval: covariates at which the law is wanted.
        bandwidth: standard deviation of the kernel, in units of the covariates.

    Returns:
        A law on shared atoms: an arm gives no weight to outcomes of the other.

    Raises:
        ValueError: shapes that disagree, values that are not finite, treatments other than 0 and
            1, an empty arm or a bandwidth that is not positive.

    >>> x, a, y = jnp.zeros((4, 1)), jnp.array([1, 1, 0, 0]), jnp.arange(4.0)[:, None]
    >>> print(kernel_law(x, a, y, jnp.ones((1, 1)), bandwidth=0.5).weights1)
    [[0.5 0.5 0.  0. ]]
    """
    check_sample(x_train, a_train, y_train)
    checks.check_floats("x_eval", x_eval, (None, x_train.shape[1]))
    bandwidth = checked_epsilon("bandwidth", bandwidth, x_train.dtype)
    weights = _arm_weights(x_train, a_train, x_eval, bandwidth)
    weights1, weights0 = (arm.astype(y_train.dtype) for arm in weights)
    return ConditionalLaw(y_train, y_train, weights1, weights0, shared=True)


def select_bandwidth(
    x: Float[Array, "n p"],
    a: Shaped[Array, " n"],
    y: Float[Array, "n d"],
    bandwidths: Float[Array, " k"],
) -> BandwidthChoice:
    """The bandwidth whose kernel law best predicts each outcome from the rest of its arm.

    Rows of both arms count equally. Cost: one n × n × n product per bandwidth, one at a time;
    a few n × n matrices.

    Args:
        x: covariates.
        a: treatments, 0 or 1.
        y: outcomes.
        bandwidths: candidates, in units of the covariates.

    Returns:
        The candidate with the smallest leave-one-out score, and the scores.

    Raises:
        ValueError: as `kernel_law`, no candidate, or fewer than two rows in an arm.

    >>> x = jnp.linspace(-1, 1, 40)[:, None]
    >>> choice = select_bandwidth(x, jnp.arange(40) % 2, 5 * x, jnp.array([0.1, 3.0]))
    >>> print(choice.bandwidth)
    0.1
    """
    check_sample(x, a, y)
    checks.check_array("bandwidths", bandwidths, (None,))
    checks.check_min_rows("bandwidths", bandwidths, 1)
    checks.check_positive("bandwidths", bandwidths)
    if not checks.is_traced(a):
        for arm in (0, 1):
            checks.check_min_rows(f"a == {arm}", np.flatnonzero(np.asarray(a) == arm), 2)
    scores = _leave_one_out_scores(x, a, y, bandwidths.astype(x.dtype))
    return BandwidthChoice(bandwidths[jnp.argmin(scores)], scores)


def check_sample(x, a, y) -> None:
    """Checks covariates (n, p), treatments (n,) and outcomes (n, d) of one sample.

    Raises:
        ValueError: shapes that disagree, values that are not finite, treatments other than 0 and
            1, or an empty arm.
    """
    check_treated(x, a)
    checks.check_floats("y", y, (x.shape[0], None))


@jax.jit
def _arm_weights(x_train: Array, a_train: Array, x_eval: Array, bandwidth: Array):
    # divided before squaring: a tiny bandwidth must not vanish
    logits = -half_squared_cost(x_eval / bandwidth, x_train / bandwidth)
    return _normalised(logits, a_train == 1), _normalised(logits, a_train == 0)


@jax.jit
def _leave_one_out_scores(x: Array, a: Array, y: Array, bandwidths: Array) -> Array:
    cost = half_squared_cost(x, x)
    # differences, not a matmul: equal outcomes must be at distance exactly zero
    distance = jnp.sqrt(jnp.square(y[:, None] - y[None]).sum(-1))
    others = (a[:, None] == a[None, :]) & ~jnp.eye(len(a), dtype=bool)

    def score(bandwidth):
        weights = _normalised(-cost / bandwidth**2, others).astype(y.dtype)
        return (weights * distance - (weights @ distance) * weights / 2).sum(1).mean()

    return jax.lax.map(score, bandwidths)


def _normalised(logits: Array, keep: Array) -> Array:
    """Softmax of each row over the columns that are kept; the others get exactly zero."""
    return jax.nn.softmax(jnp.where(keep, logits, -jnp.inf), axis=1)
