"""Small networks of the nuisance models and how they are fitted.

A network here is a pytree of arrays and nothing else, so that fits can be mapped over seeds,
folds and replications with plain `jax.vmap`.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from jaxicml import checks
from jaxicml.types import Key, Scalar

__all__ = ["MLP", "Fit", "Standardiser", "check_training", "fit_by_validation", "split_weights"]


class MLP(eqx.Module):
    """Multi-layer perceptron with tanh between its layers; the last starts at zero.

    Acts on the last dimension and broadcasts over all others.
    """

    weights: tuple[Float[Array, "..."], ...]
    biases: tuple[Float[Array, "..."], ...]

    def __init__(self, sizes: tuple[int, ...], *, key: Key, dtype):
        """Layers of the given sizes, input first."""
        pairs = list(itertools.pairwise(sizes))
        counts = [rows * columns for rows, columns in pairs[:-1]]
        # one draw for all layers: each call of the generator costs compile time
        draws = jnp.split(jax.random.normal(key, (sum(counts),), dtype), np.cumsum(counts)[:-1])
        # variance 1/fan-in keeps tanh in its linear part; inputs are standardised
        hidden = [
            draw.reshape(pair) / math.sqrt(pair[0])
            for draw, pair in zip(draws, pairs[:-1], strict=True)
        ]
        self.weights = (*hidden, jnp.zeros(pairs[-1], dtype))
        self.biases = tuple(jnp.zeros(size, dtype) for size in sizes[1:])

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns the output for inputs along the last dimension."""
        layers = list(zip(self.weights, self.biases, strict=True))
        for weight, bias in layers[:-1]:
            x = jnp.tanh(x @ weight + bias)
        return x @ layers[-1][0] + layers[-1][1]


class Standardiser(eqx.Module):
    """Subtracts a mean and divides by a scale, column by column."""

    mean: Float[Array, " d"]
    scale: Float[Array, " d"]

    @classmethod
    def of(cls, values: Float[Array, "n d"], weights: Float[Array, " n"] | None = None):
        """Weighted mean and standard deviation; a constant column keeps its unit."""
        n = values.shape[0]
        weights = jnp.full(n, 1 / n, values.dtype) if weights is None else weights
        mean = weights @ values
        variance = weights @ (values - mean) ** 2
        # the rounding of a large constant column must not become its scale
        tiny = (8 * jnp.finfo(values.dtype).eps * jnp.abs(mean)) ** 2
        varies = variance > tiny
        return cls(mean, jnp.where(varies, jnp.sqrt(jnp.where(varies, variance, 1)), 1))

    @classmethod
    def unit(cls, d: int, dtype):
        """The identity on d columns."""
        return cls(jnp.zeros(d, dtype), jnp.ones(d, dtype))

    def __call__(self, values: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """Returns the standardised values."""
        return (values - self.mean) / self.scale

    def undo(self, values: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """Returns values in their own units."""
        return values * self.scale + self.mean


class Fit(NamedTuple):
    """Parameters with the smallest validation loss, and how the losses went."""

    parameters: Any
    training: Float[Array, " steps"]
    validation: Float[Array, " steps"]
    step: Int[Array, ""]
    """Index of the step whose parameters were kept."""


def check_training(sizes: dict[str, int], learning_rate: Scalar, validation: Scalar) -> None:
    """Checks what the fit of a network is given.

    Raises:
        ValueError: a size below one, a learning rate that is not positive, or a held-out share
            outside (0, 1).
    """
    for name, size in sizes.items():
        checks.check_integer(name, size, low=1)
    checks.check_scalar("learning_rate", learning_rate)
    checks.check_positive("learning_rate", learning_rate)
    checks.check_scalar("validation", validation)
    checks.check_open_unit("validation", validation)


def split_weights(
    key: Key, mask: Bool[Array, " n"], validation: Scalar, dtype
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Random split of the rows in a mask into training and validation weights, each summing to 1.

    Both parts keep at least one row as long as the mask has two.
    """
    count = mask.sum()
    held_out = jnp.clip(jnp.round(validation * count), 1, jnp.maximum(count - 1, 1))
    scores = jnp.where(mask, jax.random.uniform(key, mask.shape), jnp.inf)
    chosen = scores <= jnp.sort(scores)[held_out.astype(int) - 1]
    share = lambda rows: rows.astype(dtype) / rows.sum().astype(dtype)
    return share(mask & ~chosen), share(mask & chosen)


def fit_by_validation(
    parameters: Any,
    losses: Callable[[Any], tuple[Array, Array]],
    optimizer: optax.GradientTransformation,
    *,
    steps: int,
) -> Fit:
    """Descends the training loss in one scan and keeps the best parameters by validation loss.

    Args:
        parameters: arrays to fit.
        losses: maps parameters to (training loss, validation loss), both from one evaluation.
        optimizer: an optax transformation.
        steps: how many updates.

    Returns:
        The parameters after the best step. A loss that turns NaN never wins.
    """

    def step(carry, _):
        current, state, best, best_loss = carry
        (training, validation), gradient = jax.value_and_grad(losses, has_aux=True)(current)
        better = validation < best_loss
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), current, best)
        update, state = optimizer.update(gradient, state, current)
        carry = (
            optax.apply_updates(current, update),
            state,
            best,
            jnp.where(better, validation, best_loss),
        )
        return carry, (training, validation)

    start = (parameters, optimizer.init(parameters), parameters, jnp.inf)
    (_, _, best, _), (training, validation) = jax.lax.scan(step, start, length=steps)
    return Fit(best, training, validation, jnp.nanargmin(validation))
