"""Positive definite solves that may be batched safely on every platform.

On the CPU, jaxlib factorises a batch of matrices by waiting for workers of the same small thread
pool that runs the program; two such calls at once, or one on each of two CPU devices, can wait for
one another for ever (seen with jaxlib 0.10.2 on two cores). A single matrix is factorised in place
without waiting. So under `vmap` the functions here take one matrix after another on the CPU and the
whole batch at once elsewhere.
"""

import functools
from collections.abc import Callable

import jax
from jaxtyping import Array, Float

__all__ = ["inverse_form", "solve_positive"]


def _safely_batched(function: Callable) -> Callable:
    """Gives `function` the batching rule described above."""
    mapped = jax.custom_batching.custom_vmap(function)

    @mapped.def_vmap
    def rule(axis_size, in_batched, *args):
        axes = tuple(0 if batched else None for batched in in_batched)
        at_once = jax.vmap(function, in_axes=axes, axis_size=axis_size)

        def one_by_one(*args):
            batch = [a for a, batched in zip(args, in_batched, strict=True) if batched]

            def one(row):
                rows = iter(row)
                return mapped(
                    *(next(rows) if b else a for a, b in zip(args, in_batched, strict=True))
                )

            return jax.lax.map(one, batch)

        return jax.lax.platform_dependent(*args, cpu=one_by_one, default=at_once), True

    return functools.wraps(function)(mapped)


@_safely_batched
def inverse_form(matrix: Float[Array, "z z"], rows: Float[Array, "n z"]) -> Float[Array, "n n"]:
    """Rows · matrix⁻¹ · rowsᵀ by Cholesky: symmetric; NaN where `matrix` is not positive definite.

    >>> import jax.numpy as jnp
    >>> inverse_form(2 * jnp.eye(3), jnp.ones((1, 3)))
    Array([[1.5]], dtype=float32)
    """
    factor = jax.lax.linalg.cholesky(matrix, symmetrize_input=False)
    half = jax.lax.linalg.triangular_solve(
        factor, rows, left_side=False, lower=True, transpose_a=True
    )
    return half @ half.T


def solve_positive(matrix: Float[Array, "p p"], vector: Float[Array, " p"]) -> Float[Array, " p"]:
    """Solution of matrix · x = vector for a positive definite matrix; differentiable in both.

    >>> import jax.numpy as jnp
    >>> solve_positive(2 * jnp.eye(2), jnp.array([1.0, 4.0]))
    Array([0.5, 2. ], dtype=float32)
    """
    fixed = jax.lax.stop_gradient(matrix)
    return jax.lax.custom_linear_solve(
        lambda x: matrix @ x, vector, lambda _, right: _cholesky_solve(fixed, right), symmetric=True
    )


@_safely_batched
def _cholesky_solve(matrix, vector):
    return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(matrix, lower=True), vector)
