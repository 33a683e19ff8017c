"""Replications over devices: the numbers do not depend on who computes them."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxicml.train import sharding


def draw(key, scale):
    """A replication with a loop whose length differs from key to key."""
    value = jax.random.uniform(key)
    halvings = jax.lax.while_loop(
        lambda s: s[0] > 0.01, lambda s: (s[0] / 2, s[1] + 1), (value, 0)
    )[1]
    return {"value": scale * value, "matrix": jnp.eye(2) * value, "halvings": halvings}


def keys(count):
    return jax.random.split(jax.random.key(3), count)


def by_loop(count, scale):
    rows = [draw(key, scale) for key in keys(count)]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)


@pytest.mark.parametrize("count", [1, 4, 5])
@pytest.mark.parametrize("batch_size", [None, 1, 2])
@pytest.mark.parametrize("num_devices", [1, 2])
def test_replicate_equals_a_loop(count, batch_size, num_devices):
    with sharding.use_devices(jax.devices()[:num_devices]):
        out = sharding.replicate(draw, keys(count), jnp.array(2.0), batch_size=batch_size)
    chex.assert_trees_all_close(out, by_loop(count, 2.0), rtol=1e-6)


def test_work_is_spread_over_all_devices():
    seen = set()

    def where(key):
        jax.debug.callback(lambda d: seen.add(int(d)), jax.lax.axis_index("replications"))
        return jax.random.uniform(key)

    with sharding.use_devices(jax.devices()[:2]):
        sharding.replicate(where, keys(4))
    jax.effects_barrier()
    assert seen == {0, 1}


def test_results_come_as_numpy_in_the_order_of_keys():
    out = sharding.replicate(jax.random.uniform, keys(6))
    assert isinstance(out, np.ndarray)
    np.testing.assert_array_equal(out, [jax.random.uniform(key) for key in keys(6)])


def test_compiled_once_for_one_function():
    traced = []

    def count(key, shift):
        traced.append(None)
        return shift + jax.random.uniform(key)

    for shift in (0.0, 1.0, 2.0):
        sharding.replicate(count, keys(3), shift)
    assert len(traced) == 1


def test_use_devices_nests_and_restores():
    first, second = jax.devices()[:2]
    outside = sharding.active_devices()
    with sharding.use_devices([second]):
        with sharding.use_devices([first, second]):
            assert sharding.active_devices() == (first, second)
        assert sharding.active_devices() == (second,)
    assert sharding.active_devices() == outside
    with pytest.raises(RuntimeError), sharding.use_devices([second]):
        raise RuntimeError
    assert sharding.active_devices() == outside


def test_float64_and_integers_keep_their_dtype(x64):
    out = sharding.replicate(draw, keys(2), jnp.array(1.0))
    assert out["value"].dtype == np.float64
    assert out["halvings"].dtype == np.int64


def test_sweep_gives_every_setting_its_own_keys():
    function = lambda key, shift: shift + jax.random.uniform(key)
    first, second = sharding.sweep(function, jax.random.key(0), [(0.0,), (0.0,)], 3)
    assert not np.array_equal(first, second)
    again = sharding.sweep(function, jax.random.key(0), [(0.0,), (0.0,)], 3)
    np.testing.assert_array_equal(first, again[0])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: sharding.replicate(draw, keys(2)[:0], 1.0), "number of keys: .* at least 1"),
        (lambda: sharding.replicate(draw, keys(2)[0], 1.0), r"keys: expected shape \(any\)"),
        (lambda: sharding.replicate(draw, keys(2), 1.0, batch_size=0), "batch_size: expected"),
        (lambda: sharding.use_devices([]).__enter__(), "devices: expected at least one"),
    ],
)
def test_bad_input(call, match, as_user):
    with pytest.raises(ValueError, match=match):
        call()
