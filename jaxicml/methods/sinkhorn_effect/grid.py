"""The grid of regularisations ε, in units of the cost of a typical pair of outcomes."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxicml import checks
from jaxicml.methods.sinkhorn_effect.potentials import half_squared_cost

__all__ = ["DEFAULT_MULTIPLES", "epsilon_grid", "median_cost"]

DEFAULT_MULTIPLES = (0.5, 1.0, 2.0, 4.0, 8.0)
"""η of the grid ε = η · median cost."""


def epsilon_grid(
    outcome: Float[Array, "n d"], multiples: tuple[float, ...] = DEFAULT_MULTIPLES
) -> Float[Array, " e"]:
    """The grid ε = η · median cost of the given outcomes.

    >>> import jax.numpy as jnp
    >>> epsilon_grid(jnp.array([[0.0], [1.0], [2.0]]), (1.0, 4.0))
    Array([0.5, 2. ], dtype=float32)
    """
    grid = checked_grid("multiples", multiples, float)
    median = median_cost(outcome)
    return grid.astype(median.dtype) * median


def median_cost(outcome: Float[Array, "n d"]) -> Float[Array, ""]:
    """Median of ½‖y_i − y_j‖² over pairs i < j; outcome units squared.

    Memory: one n × n matrix and its n(n − 1)/2 pairs.
    """
    checks.check_floats("outcome", outcome, (None, None))
    checks.check_min_rows("outcome", outcome, 2)
    n = outcome.shape[0]
    first, second = jnp.triu_indices(n, 1)
    return jnp.median(half_squared_cost(outcome, outcome)[first, second])


def checked_grid(name: str, values, dtype) -> Float[Array, " e"]:
    """A grid of numbers in the dtype of the data: not empty, all above zero, none twice.

    Raises:
        ValueError: it is not.
    """
    grid = values if isinstance(values, jax.Array) else jnp.asarray(checks.as_numbers(name, values))
    checks.check_array(name, grid, (None,))
    if grid.shape[0] == 0:
        raise ValueError(f"{name}: expected at least one value, got none")
    checks.check_positive(name, grid)
    checks.check_distinct(name, grid)
    return grid.astype(jax.dtypes.canonicalize_dtype(dtype))
