"""Replications on one and two devices against a plain loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxicml.train import sharding
from jaxicml.types import Progress


def draw(key, scale, table):
    """Leaves of several shapes and types, one from a loop whose length differs from key to key."""
    noise = jax.random.normal(key, (3,))
    chosen = jax.random.randint(key, (), 0, table["rows"].shape[0])
    halve = lambda state: (state[0] / 2, state[1] + 1)
    steps = jax.lax.while_loop(lambda s: s[0] > 0.01, halve, (abs(noise[0]), 0))[1]
    return {"value": scale * noise, "row": table["rows"][chosen], "steps": steps, "up": noise > 0}


TABLE = {"rows": np.arange(10.0).reshape(5, 2)}


def looped(keys, scale=2.0, table=TABLE):
    table = jax.tree.map(jnp.asarray, table)
    outs = [jax.jit(draw)(key, scale, table) for key in keys]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *outs)


def assert_same(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert isinstance(a, np.ndarray)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("count", [1, 2, 5, 8])
@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize("batch_size", [None, 1, 3])
def test_equals_a_loop_on_any_number_of_devices(count, num_devices, batch_size):
    keys = jax.random.split(jax.random.key(count), count)
    with sharding.use_devices(jax.devices()[:num_devices]):
        out = sharding.replicate(draw, keys, 2.0, TABLE, batch_size=batch_size)
    assert_same(out, looped(keys))


def test_work_is_spread_over_all_devices():
    seen = []

    def where(key):
        jax.debug.callback(lambda d: seen.append(int(d)), jax.lax.axis_index("replications"))
        return jax.random.uniform(key)

    with sharding.use_devices(jax.devices()):
        sharding.replicate(where, jax.random.split(jax.random.key(1), 6))
    jax.effects_barrier()
    assert sorted(seen) == [0, 0, 0, 1, 1, 1]


def test_blocks_nest_and_are_left_behind():
    first, second = jax.devices()
    assert sharding.active_devices() == (first,)
    with sharding.use_devices([first, second]):
        with sharding.use_devices([second]):
            assert sharding.active_devices() == (second,)
            out = sharding.replicate(draw, jax.random.split(jax.random.key(0), 3), 2.0, TABLE)
        assert sharding.active_devices() == (first, second)
    assert sharding.active_devices() == (first,)
    assert_same(out, looped(jax.random.split(jax.random.key(0), 3)))


def test_an_error_within_the_block_restores_it():
    with pytest.raises(RuntimeError, match="mine"), sharding.use_devices(jax.devices()):
        raise RuntimeError("mine")
    assert len(sharding.active_devices()) == 1


def test_float64_stays_float64(x64):
    keys = jax.random.split(jax.random.key(0), 3)
    with sharding.use_devices(jax.devices()):
        out = sharding.replicate(draw, keys, 2.0, TABLE)
    assert out["value"].dtype == np.float64
    assert out["steps"].dtype == np.int64
    assert_same(out, looped(keys))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_kind_of_key_is_kept(impl):
    keys = jax.random.split(jax.random.key(3, impl=impl), 4)
    out = sharding.replicate(jax.random.uniform, keys)
    np.testing.assert_array_equal(out, [jax.jit(jax.random.uniform)(key) for key in keys])


def test_traced_once_for_equal_shapes():
    traces = []

    def counted(key, scale):
        traces.append(1)
        return scale * jax.random.uniform(key)

    keys = jax.random.split(jax.random.key(0), 4)
    for scale in (1.0, 2.0, 3.0):
        sharding.replicate(counted, keys, scale)
    assert len(traces) == 1


class Bar:
    """Remembers what it was asked to show."""

    def __init__(self):
        self.asked = []

    def track(self, items, description, total=None):
        self.asked.append((description, len(items)))
        yield from items

    def note(self, message):
        raise AssertionError(message)


def test_sweep_is_replicate_with_keys_of_its_own():
    bar, scales = Bar(), [1.0, 2.0, 2.0]
    assert isinstance(bar, Progress)
    settings = [(scale, TABLE) for scale in scales]
    outs = sharding.sweep(draw, jax.random.key(7), settings, 4, log=bar, label="scales")
    keys = jax.random.split(jax.random.key(7), (3, 4))
    for out, own, scale in zip(outs, keys, scales, strict=True):
        assert_same(out, looped(own, scale))
    assert not np.array_equal(outs[1]["value"], outs[2]["value"])
    assert bar.asked == [("scales", 3)]


def test_bad_input(as_user):
    keys = jax.random.split(jax.random.key(0), 2)
    with pytest.raises(
        ValueError, match="batch_size: expected a whole number of at least 1, got 0"
    ):
        sharding.replicate(draw, keys, 2.0, TABLE, batch_size=0)
    with (
        pytest.raises(ValueError, match="devices: expected at least one device, got none"),
        sharding.use_devices([]),
    ):
        pass
    assert len(sharding.active_devices()) == 1
