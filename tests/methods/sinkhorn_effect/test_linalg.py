"""Batched solves: plain values, every platform's form, and no waiting for one another."""

import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxicml.methods.sinkhorn_effect import linalg

BATCH = (2, 3)
FUNCTIONS = {"inverse_form": linalg.inverse_form, "solve_positive": linalg.solve_positive}


def inputs(name, rng=None):
    """Positive definite matrices and right-hand sides with two batch dimensions."""
    rng = rng or np.random.default_rng(0)
    half = rng.normal(size=(*BATCH, 5, 5))
    right = rng.normal(size=(*BATCH, 4, 5) if name == "inverse_form" else (*BATCH, 5))
    return half @ half.swapaxes(-1, -2) + np.eye(5), right


def by_numpy(name, matrix, right):
    if name == "inverse_form":
        return right @ np.linalg.inv(matrix) @ right.swapaxes(-1, -2)
    return np.linalg.solve(matrix, right[..., None])[..., 0]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_batches_equal_numpy(name, x64):
    function, (matrix, right) = FUNCTIONS[name], inputs(name)
    expected = by_numpy(name, matrix, right)
    nested = jax.jit(jax.vmap(jax.vmap(function)))
    np.testing.assert_allclose(nested(matrix, right), expected, atol=1e-9)
    np.testing.assert_allclose(jax.vmap(function)(matrix[0], right[0]), expected[0], atol=1e-9)
    np.testing.assert_allclose(jax.jit(function)(matrix[0, 0], right[0, 0]), expected[0, 0])


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("axes", [(0, None), (None, 0), (1, 0)])
def test_either_argument_may_be_shared(name, axes, x64):
    function, (matrix, right) = FUNCTIONS[name], inputs(name)
    matrix, right = matrix[0], right[0]
    pick = lambda value, axis: jnp.moveaxis(value, 0, axis) if axis is not None else value[0]
    mapped = jax.jit(jax.vmap(function, in_axes=axes))(pick(matrix, axes[0]), pick(right, axes[1]))
    take = lambda value, axis, i: value[0 if axis is None else i]
    looped = [by_numpy(name, take(matrix, axes[0], i), take(right, axes[1], i)) for i in range(3)]
    np.testing.assert_allclose(mapped, looped, atol=1e-9)


def test_inverse_form_is_symmetric_and_says_nan(x64):
    matrix, right = inputs("inverse_form")
    form = linalg.inverse_form(jnp.array(matrix[0, 0]), jnp.array(right[0, 0]))
    np.testing.assert_array_equal(form, form.T)
    assert jnp.isnan(linalg.inverse_form(-jnp.eye(5), jnp.ones((2, 5)))).any()


def test_solve_is_differentiable(x64):
    matrix, right = map(jnp.array, inputs("solve_positive"))

    def loss(solve, matrix, right):
        return (jax.vmap(solve)((matrix + matrix.swapaxes(1, 2)) / 2, right) ** 2).sum()

    gradient = jax.jit(jax.grad(loss, argnums=(1, 2)), static_argnums=0)
    ours = gradient(linalg.solve_positive, matrix[0], right[0])
    h, direction = 1e-6, jnp.zeros_like(matrix[0]).at[1, 2, 3].set(1)
    ends = [loss(jnp.linalg.solve, matrix[0] + s * direction, right[0]) for s in (h, -h)]
    np.testing.assert_allclose(ours[0][1, 2, 3], (ends[0] - ends[1]) / (2 * h), rtol=1e-6)
    ends = [loss(jnp.linalg.solve, matrix[0], right[0].at[2, 1].add(s)) for s in (h, -h)]
    np.testing.assert_allclose(ours[1][2, 1], (ends[0] - ends[1]) / (2 * h), rtol=1e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("platform", "at_once"), [("cpu", False), ("cuda", True), ("tpu", True)])
def test_only_the_cpu_takes_one_matrix_after_another(name, platform, at_once):
    matrix, right = (jnp.array(v[0], "float32") for v in inputs(name))
    traced = jax.jit(jax.vmap(FUNCTIONS[name])).trace(matrix, right)
    text = traced.lower(lowering_platforms=(platform,)).as_text().lower()
    factorised = [line for line in text.splitlines() if "potrf" in line or "cholesky" in line]
    assert factorised
    batched = any("tensor<3x5x5xf32>" in line for line in factorised)
    assert batched == at_once


INDEPENDENT = """
    import jax, jax.numpy as jnp
    jax.config.update("jax_num_cpu_devices", 2)
    from jaxicml.methods.sinkhorn_effect import linalg

    @jax.jit
    def two(matrices, rows):
        form = jax.vmap(linalg.inverse_form)
        return form(matrices, rows) - form(matrices + jnp.eye(200), rows)

    rows = jnp.ones((64, 100, 200))
    matrices = jnp.broadcast_to(2 * jnp.eye(200), (64, 200, 200))
    both = [jax.device_put((matrices, rows), device) for device in jax.devices()]
    for _ in range(8):
        outs = [two(*args) for args in both]
        jax.block_until_ready(outs)
    print(float(outs[0][0, 0, 0]), float(outs[1][63, 99, 99]))
"""


def test_independent_batches_do_not_wait_for_one_another():
    """200/2 − 200/3 on two devices at once; a wait for ever is a time-out here."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(INDEPENDENT)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    np.testing.assert_allclose([float(v) for v in done.stdout.split()], 200 / 6, rtol=1e-4)
