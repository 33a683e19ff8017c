"""The contract of every public entry point, over all `rows.py`.

Each row is compiled once a dtype; the tests look at what these programs returned.
"""

import functools
import importlib
import inspect
import pkgutil
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxicml.methods
from tests.contract import collect

ROWS = collect()
COMPILED = [row for row in ROWS if not row.host]


def by_name(rows, *, wide=False):
    """One test a row; `wide` ones, in float64, are slow where the row is."""
    marks = lambda row: [pytest.mark.slow] * (wide and row.slow)
    return pytest.mark.parametrize(
        "row", [pytest.param(row, id=row.entry, marks=marks(row)) for row in rows]
    )


def floats(tree):
    return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]


def data(tree):
    """Leaves as NumPy arrays, keys as their bits."""
    raw = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    return [np.asarray(raw(jnp.asarray(x))) for x in jax.tree.leaves(tree)]


class Runs(NamedTuple):
    """What one compiled function returned for inputs of equal shapes."""

    traces: int
    first: Any
    again: Any
    other_key: Any
    other_inputs: Any


@functools.cache
def runs(row, dtype):
    """One function of the row in one dtype, called four times."""
    traces = []

    @jax.jit
    def program(*args):
        traces.append(args)
        return row.call(*args)

    first, second = row.arrays(dtype, 0), row.arrays(dtype, 1)
    calls = ((0, first), (0, first), (1, first), (1, second))
    outs = [jax.block_until_ready(program(*row.key(seed), *args)) for seed, args in calls]
    return Runs(len(traces), *outs)


def mapped_over(row):
    """Two inputs that differ where `vmap` maps, and what `vmap` needs to know of them."""
    first, second = row.arrays(seed=0), row.arrays(seed=1)
    at = [i in (row.vmap or ()) for i in range(len(first))]
    second = tuple(b if over else a for over, a, b in zip(at, first, second, strict=True))
    stack = lambda a, b: jnp.asarray(np.stack([a, b]))
    batch = tuple(stack(a, b) if over else a for over, a, b in zip(at, first, second, strict=True))
    axes = (None,) * row.random + tuple(0 if over else None for over in at)
    return first, second, batch, axes


@by_name(COMPILED, wide=True)
def test_jit_and_vmap_equal_an_eager_loop(row, x64):
    """Both at once, which saves a program; apart where they do not."""
    first, second, batch, axes = mapped_over(row)
    equal = functools.partial(chex.assert_trees_all_close, rtol=row.rtol, atol=row.rtol)
    one = data(row.call(*row.key(), *first))
    jit_equals_eager = lambda: equal(data(jax.jit(row.call)(*row.key(), *first)), one)
    if not row.vmap:
        return jit_equals_eager()
    other = data(row.call(*row.key(), *second))
    mapped = data(jax.jit(jax.vmap(row.call, in_axes=axes))(*row.key(), *batch))
    try:
        equal(mapped, [np.stack(pair) for pair in zip(one, other, strict=True)])
    except AssertionError as error:
        jit_equals_eager()
        raise AssertionError("jit equals eager, but vmap is no loop") from error


@by_name(COMPILED)
def test_one_trace_for_equal_shapes(row):
    assert runs(row, "float32").traces == 1


def uneven(leaf):
    """A sum with unequal weights: probabilities add to a constant, whose gradient is zero."""
    return (leaf * jnp.linspace(1, 2, leaf.size, dtype=leaf.dtype).reshape(leaf.shape)).sum()


@by_name([row for row in COMPILED if row.grad], wide=True)
def test_gradients_are_finite(row, x64):
    args = row.arrays()

    def total(*wrt):
        filled = list(args)
        for position, value in zip(row.grad, wrt, strict=True):
            filled[position] = value
        return sum(map(uneven, floats(row.call(*row.key(), *filled))))

    gradient = jax.jit(jax.grad(total, argnums=tuple(range(len(row.grad)))))
    grads = jax.tree.map(np.asarray, gradient(*(args[i] for i in row.grad)))
    chex.assert_tree_all_finite(grads)
    assert any(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(grads))


@by_name([row for row in ROWS if row.random])
def test_same_key_same_result_other_key_other(row):
    if row.host:
        args = row.arrays("float32")
        outs = [row.call(*row.key(seed), *args) for seed in (0, 0, 1)]
    else:
        _, *outs, _ = runs(row, "float32")
    same, again, other = map(data, outs)
    chex.assert_trees_all_equal(same, again)
    assert any(not np.array_equal(a, b, equal_nan=True) for a, b in zip(same, other, strict=True))


@pytest.mark.parametrize(
    ("row", "dtype"),
    [pytest.param(row, d, id=f"{row.entry}-{d}") for row in COMPILED for d in row.dtypes],
)
def test_dtype_in_dtype_out(row, dtype):
    out = floats(runs(row, dtype).first)
    assert out, "no float output: give the row dtypes=()"
    assert {str(leaf.dtype) for leaf in out} == {dtype}
    chex.assert_tree_all_finite(out)


def replaced(value, change):
    """The argument in the place of a good one; arrays become those that a user would pass."""
    new = change(value) if callable(change) else change
    return jnp.asarray(new) if isinstance(new, np.ndarray) else new


@pytest.mark.parametrize(
    ("row", "bad"),
    [pytest.param(row, bad, id=f"{row.entry}-{bad.what}") for row in ROWS for bad in row.bad],
)
def test_bad_input_is_refused(row, bad, as_user):
    args = list(row.arrays("float32"))
    for position, change in bad.args.items():
        if row.host:
            args[position] = change(args[position]) if callable(change) else change
        else:
            args[position] = replaced(args[position], change)
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
