"""The contract of every public entry point, over all `rows.py`."""

import importlib
import inspect
import pkgutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxicml.methods
from tests.contract import collect

ROWS = collect()
COMPILED = [row for row in ROWS if not row.host]
by_name = lambda rows: pytest.mark.parametrize("row", rows, ids=lambda row: row.entry)


def floats(tree):
    return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]


def data(tree):
    """Leaves as NumPy arrays, keys as their bits."""
    raw = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    return [np.asarray(raw(jnp.asarray(x))) for x in jax.tree.leaves(tree)]


@by_name(COMPILED)
def test_jit_equals_eager(row, x64):
    args = row.key() + row.arrays()
    chex.assert_trees_all_close(
        data(jax.jit(row.call)(*args)), data(row.call(*args)), rtol=row.rtol, atol=row.rtol
    )


@by_name([row for row in COMPILED if row.vmap])
def test_vmap_equals_loop(row, x64):
    first, second = row.arrays(seed=0), row.arrays(seed=1)
    batch = tuple(
        jnp.stack([a, b]) if i in row.vmap else a
        for i, (a, b) in enumerate(zip(first, second, strict=True))
    )
    axes = (None,) * row.random + tuple(0 if i in row.vmap else None for i in range(len(first)))
    one = lambda k: row.call(
        *row.key(), *(b[k] if i in row.vmap else b for i, b in enumerate(batch))
    )
    mapped = data(jax.jit(jax.vmap(row.call, in_axes=axes))(*row.key(), *batch))
    looped = [np.stack(pair) for pair in zip(data(one(0)), data(one(1)), strict=True)]
    chex.assert_trees_all_close(mapped, looped, rtol=row.rtol, atol=row.rtol)


@by_name(COMPILED)
def test_one_trace_for_equal_shapes(row):
    chex.clear_trace_counter()
    counted = jax.jit(chex.assert_max_traces(row.call, n=1))
    for seed in (0, 1):
        jax.block_until_ready(counted(*row.key(seed), *row.arrays("float32", seed)))


@by_name([row for row in COMPILED if row.grad])
def test_gradients_are_finite(row, x64):
    args = row.arrays()

    def total(*wrt):
        filled = list(args)
        for position, value in zip(row.grad, wrt, strict=True):
            filled[position] = value
        return sum(leaf.sum() for leaf in floats(row.call(*row.key(), *filled)))

    grads = jax.grad(total, argnums=tuple(range(len(row.grad))))(*(args[i] for i in row.grad))
    chex.assert_tree_all_finite(grads)
    assert any(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(grads))


@by_name([row for row in ROWS if row.random])
def test_same_key_same_result_other_key_other(row):
    args = row.arrays("float32")
    same, again, other = (data(row.call(*row.key(seed), *args)) for seed in (0, 0, 1))
    chex.assert_trees_all_equal(same, again)
    assert any(not np.array_equal(a, b, equal_nan=True) for a, b in zip(same, other, strict=True))


@pytest.mark.parametrize(
    ("row", "dtype"),
    [pytest.param(row, d, id=f"{row.entry}-{d}") for row in COMPILED for d in row.dtypes],
)
def test_dtype_in_dtype_out(row, dtype):
    out = floats(row.call(*row.key(), *row.arrays(dtype)))
    assert out, "no float output: give the row dtypes=()"
    assert {str(leaf.dtype) for leaf in out} == {dtype}
    chex.assert_tree_all_finite(out)


@pytest.mark.parametrize(
    ("row", "bad"),
    [pytest.param(row, bad, id=f"{row.entry}-{bad.what}") for row in ROWS for bad in row.bad],
)
def test_bad_input_is_refused(row, bad, as_user):
    args = list(row.arrays("float32"))
    for position, value in bad.args.items():
        args[position] = value(args[position]) if callable(value) else value
    with pytest.raises(ValueError, match=bad.match):
        row.call(*row.key(), *args)


def entries(module):
    """Functions, and classes that are called for their result, in `__all__`."""
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        calls = inspect.isclass(value) and "__call__" in vars(value)
        if inspect.isfunction(value) or calls or (callable(value) and not inspect.isclass(value)):
            yield f"{module.__name__.removeprefix('jaxicml.')}.{name}"


@pytest.mark.parametrize("name", [m.name for m in pkgutil.iter_modules(jaxicml.methods.__path__)])
def test_every_public_entry_has_a_row(name):
    module = importlib.import_module(f"jaxicml.methods.{name}")
    covered = {entry for row in ROWS for entry in (row.entry, *row.also)}
    assert sorted(set(entries(module)) - covered) == []
