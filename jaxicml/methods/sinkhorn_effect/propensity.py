r"""Propensity models e(x) = P(A = 1 | X = x): ridge logistic regression and a small network.

Ridge logistic: with z the standardised covariates,

    min_{β, b}  (1/n) Σ_i [ log(1 + e^{η_i}) − a_i η_i ] + (λ/2) ‖β‖²,     η_i = b + z_iᵀβ,

by damped Newton steps. The loss is a mean, so λ does not change its meaning with n; it equals
scikit-learn's `LogisticRegression(C=1/(n λ))` on z. The intercept b is not penalised.
"""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Shaped

from jaxicml import checks
from jaxicml.methods.sinkhorn_effect.linalg import solve_positive
from jaxicml.methods.sinkhorn_effect.networks import (
    MLP,
    Standardiser,
    check_training,
    fit_by_validation,
    split_weights,
)
from jaxicml.types import Key, Scalar

__all__ = [
    "ClippedPropensity",
    "LogisticPropensity",
    "NetworkPropensity",
    "clip_propensity",
    "logistic_propensity",
    "mlp_propensity",
]


class LogisticPropensity(eqx.Module):
    """A fitted logistic regression; call it on covariates.

    Attributes:
        standardise: mean and scale of the training covariates.
        coefficients: β, per standard deviation of each covariate.
        intercept: b, the log odds at the mean covariates.
    """

    standardise: Standardiser
    coefficients: Float[Array, " p"]
    intercept: Float[Array, ""]

    def __call__(self, x: Float[Array, "n p"]) -> Float[Array, " n"]:
        """Returns P(A = 1 | x) for each row."""
        checks.check_array("x", x, (None, self.coefficients.shape[0]))
        return jax.nn.sigmoid(self.standardise(x) @ self.coefficients + self.intercept)


class NetworkPropensity(eqx.Module):
    """A fitted network; call it on covariates.

    Attributes:
        standardise: mean and scale of the training covariates.
        network: standardised covariates to log odds.
        training_loss: log loss on the training part at each step.
        validation_loss: log loss on the held-out part at each step.
    """

    standardise: Standardiser
    network: MLP
    training_loss: Float[Array, " steps"]
    validation_loss: Float[Array, " steps"]

    def __call__(self, x: Float[Array, "n p"]) -> Float[Array, " n"]:
        """Returns P(A = 1 | x) for each row."""
        checks.check_array("x", x, (None, self.standardise.mean.shape[0]))
        return jax.nn.sigmoid(self.network(self.standardise(x))[:, 0])


class ClippedPropensity(NamedTuple):
    """Propensities away from 0 and 1."""

    propensity: Float[Array, " n"]
    """In [η, 1 − η]."""
    fraction: Float[Array, ""]
    """Share of the rows that were moved: much of it says that positivity is in doubt."""


def logistic_propensity(
    x: Float[Array, "n p"],
    a: Shaped[Array, " n"],
    *,
    l2: Scalar = 1e-3,
    num_steps: int = 25,
) -> LogisticPropensity:
    """Ridge logistic regression by Newton's method; finite for separable data too.

    Each step is halved until the loss does not grow. Cost: n p² + p³ a step.

    Args:
        x: covariates.
        a: treatments, 0 or 1.
        l2: ridge penalty λ on the coefficients of standardised covariates, against the mean loss.
        num_steps: Newton steps; a dozen reaches the precision of the arrays.

    Returns:
        The fitted model.

    Raises:
        ValueError: shapes that disagree, values that are not finite, treatments other than 0 and
            1, an empty arm, a penalty that is not positive or fewer than one step.

    >>> x = jnp.array([[0.0], [1.0], [2.0], [3.0]])
    >>> e = logistic_propensity(x, jnp.array([0, 1, 0, 1]), l2=0.1)(x)
    >>> print(f"{e[0]:.3f} {e[3]:.3f}")
    0.291 0.709
    """
    check_treated(x, a)
    checks.check_scalar("l2", l2)
    checks.check_positive("l2", l2)
    checks.check_integer("num_steps", num_steps, low=1)
    return _fit_logistic(x, a.astype(x.dtype), jnp.asarray(l2, x.dtype), num_steps)


def mlp_propensity(
    key: Key,
    x: Float[Array, "n p"],
    a: Shaped[Array, " n"],
    *,
    width: int = 32,
    depth: int = 2,
    steps: int = 500,
    learning_rate: Scalar = 3e-3,
    weight_decay: Scalar = 1e-3,
    validation: Scalar = 0.2,
) -> NetworkPropensity:
    """A tanh network for the log odds, with the parameters that did best on held-out rows.

    All rows in every step (AdamW), one scan over the steps. Cost: n width² depth a step.

    Args:
        key: random key of the initial weights and of the split.
        x: covariates, standardised inside.
        a: treatments, 0 or 1.
        width: units in each hidden layer.
        depth: hidden layers.
        steps: updates.
        learning_rate: step size of Adam.
        weight_decay: decay of all parameters per unit of learning rate.
        validation: share of the rows that is held out.

    Returns:
        The fitted model.

    Raises:
        ValueError: shapes that disagree, values that are not finite, treatments other than 0 and
            1, an empty arm, sizes below one or a held-out share outside (0, 1).

    >>> x = jnp.linspace(-2, 2, 60)[:, None]
    >>> model = mlp_propensity(jax.random.key(0), x, (jnp.abs(x[:, 0]) > 1).astype(int))
    >>> e = model(jnp.array([[-1.8], [0.0], [1.8]]))
    >>> print(e.round())
    [1. 0. 1.]
    """
    checks.check_key("key", key)
    check_treated(x, a)
    sizes = {"width": width, "depth": depth, "steps": steps}
    check_training(sizes, learning_rate, validation)
    checks.check_scalar("weight_decay", weight_decay)
    checks.check_not_negative("weight_decay", weight_decay)
    rates = (jnp.asarray(rate, x.dtype) for rate in (learning_rate, weight_decay))
    layers = (x.shape[1], *[width] * depth, 1)
    return _fit_mlp(key, x, a.astype(x.dtype), *rates, validation, layers, steps)


def clip_propensity(propensity: Float[Array, " n"], eta: Scalar = 0.02) -> ClippedPropensity:
    """Moves propensities into [η, 1 − η] and reports how many had to move.

    Args:
        propensity: estimates of P(A = 1 | x); a saturated model may say exactly 0 or 1.
        eta: distance from 0 and 1 to keep, below 1/2; 0 moves nothing.

    Returns:
        The clipped propensities and the share that was clipped.

    Raises:
        ValueError: a propensity outside [0, 1], propensities that are no vector, or `eta` outside
            [0, 1/2).

    >>> e, fraction = clip_propensity(jnp.array([0.001, 0.5]))
    >>> print(e, fraction)
    [0.02 0.5 ] 0.5
    """
    checks.check_floats("propensity", propensity, (None,), finite=False)
    checks.check_range("propensity", propensity, 0.0, 1.0)
    check_clip("eta", eta)
    eta = jnp.asarray(eta, propensity.dtype)
    outside = (propensity < eta) | (propensity > 1 - eta)
    return ClippedPropensity(
        jnp.clip(propensity, eta, 1 - eta), outside.mean(dtype=propensity.dtype)
    )


def check_clip(name: str, eta: Scalar) -> None:
    """Checks a distance that propensities keep from 0 and 1: in [0, 1/2), where 0 clips nothing.

    Raises:
        ValueError: it is something else.
    """
    checks.check_scalar(name, eta)
    checks.check_not_negative(name, eta)
    checks.check_below(name, eta, 0.5)


@partial(jax.jit, static_argnames="num_steps")
def _fit_logistic(x: Array, a: Array, l2: Array, num_steps: int) -> LogisticPropensity:
    standardise = Standardiser.of(x)
    z = jnp.column_stack([standardise(x), jnp.ones_like(a)])
    penalty = jnp.full(z.shape[1], l2).at[-1].set(0)
    halvings = 0.5 ** jnp.arange(10, dtype=x.dtype)

    def objective(beta):
        return _log_loss(z @ beta, a).mean() + penalty @ beta**2 / 2

    def newton(_, beta):
        e = jax.nn.sigmoid(z @ beta)
        gradient = z.T @ (e - a) / len(a) + penalty * beta
        hessian = (z.T * (e * (1 - e))) @ z / len(a) + jnp.diag(penalty)
        candidates = beta - halvings[:, None] * solve_positive(hessian, gradient)
        # equal up to rounding counts as no growth: near the optimum the full step is taken
        bound = objective(beta) * (1 + 8 * jnp.finfo(x.dtype).eps)
        allowed = jax.vmap(objective)(candidates) <= bound
        return jnp.where(allowed.any(), candidates[jnp.argmax(allowed)], beta)

    beta = jax.lax.fori_loop(0, num_steps, newton, jnp.zeros(z.shape[1], x.dtype))
    return LogisticPropensity(standardise, beta[:-1], beta[-1])


@partial(jax.jit, static_argnames=("sizes", "steps"))
def _fit_mlp(key, x, a, learning_rate, weight_decay, validation, sizes, steps):
    network_key, split_key = jax.random.split(key)
    standardise = Standardiser.of(x)
    z = standardise(x)
    inside, outside = split_weights(split_key, jnp.ones(a.shape, bool), validation, x.dtype)

    def losses(network):
        loss = _log_loss(network(z)[:, 0], a)
        return inside @ loss, outside @ loss

    network = MLP(sizes, key=network_key, dtype=x.dtype)
    optimizer = optax.adamw(learning_rate, weight_decay=weight_decay)
    fit = fit_by_validation(network, losses, optimizer, steps=steps)
    return NetworkPropensity(standardise, fit.parameters, fit.training, fit.validation)


def check_treated(x, a) -> None:
    """Checks covariates (n, p) and treatments (n,) of one sample.

    Raises:
        ValueError: shapes that disagree, values that are not finite, treatments other than 0 and
            1, or an empty arm.
    """
    checks.check_floats("x", x, (None, None))
    checks.check_array("a", a, (x.shape[0],))
    checks.check_binary("a", a)


def _log_loss(log_odds: Array, a: Array) -> Array:
    """−log P(A = a) at the given log odds."""
    return jax.nn.softplus(log_odds) - a * log_odds
