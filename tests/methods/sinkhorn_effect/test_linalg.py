"""Batched solves: plain values, every platform's form, and no waiting for one another."""

import functools
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
    """Two nested batches, one batch, none, and either argument the same for all."""
    function, (matrix, right) = FUNCTIONS[name], inputs(name)
    loop = lambda m, r: [by_numpy(name, *pair) for pair in zip(m, r, strict=True)]
    shared = lambda array: np.broadcast_to(array[0], array.shape)

    @jax.jit
    def batched(matrix, right):
        one = jax.vmap(function)
        return {
            "nested": jax.vmap(one)(matrix, right),
            "none": function(matrix[0, 0], right[0, 0]),
            "same matrix": jax.vmap(function, (None, 0))(matrix[0, 0], right[0]),
            "same right": jax.vmap(function, (0, None))(matrix[0], right[0, 0]),
            "second axis": jax.vmap(function, (1, 0))(matrix[0].swapaxes(0, 1), right[0]),
        }

    ours = batched(matrix, right)
    expected = {
        "nested": by_numpy(name, matrix, right),
        "none": by_numpy(name, matrix[0, 0], right[0, 0]),
        "same matrix": loop(shared(matrix[0]), right[0]),
        "same right": loop(matrix[0], shared(right[0])),
        "second axis": loop(matrix[0], right[0]),
    }
    for what, value in expected.items():
        np.testing.assert_allclose(ours[what], value, atol=1e-9, err_msg=what)


inverse_form = jax.jit(linalg.inverse_form)


def test_inverse_form_is_symmetric_and_says_nan(x64):
    matrix, right = inputs("inverse_form")
    form = np.asarray(inverse_form(matrix[0, 0], right[0, 0]))
    np.testing.assert_array_equal(form, form.T)
    assert np.isnan(inverse_form(-np.eye(5), np.ones((4, 5)))).any()


def test_solve_is_differentiable(x64):
    matrix, right = (v[0] for v in inputs("solve_positive"))
    symmetric = lambda m: (m + m.swapaxes(1, 2)) / 2

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1))
    def gradient(matrix, right):
        return (jax.vmap(linalg.solve_positive)(symmetric(matrix), right) ** 2).sum()

    def loss(matrix, right):
        return (np.linalg.solve(symmetric(matrix), right[..., None]) ** 2).sum()

    def slope(by_matrix, by_right):
        ends = [loss(matrix + s * by_matrix, right + s * by_right) for s in (1e-6, -1e-6)]
        return (ends[0] - ends[1]) / 2e-6

    ours = gradient(matrix, right)
    step = np.zeros_like(matrix)
    step[1, 2, 3] = 1
    np.testing.assert_allclose(ours[0][1, 2, 3], slope(step, 0), rtol=1e-6)
    step = np.zeros_like(right)
    step[2, 1] = 1
    np.testing.assert_allclose(ours[1][2, 1], slope(0, step), rtol=1e-6)


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


@pytest.mark.slow
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
