"""Public entries of `jaxicml.train`."""

import jax

from jaxicml.train import sharding
from tests.contract import Bad, Row


def keys(rng):
    return (jax.random.split(jax.random.key(0), 3),)


no_key = lambda keys: keys[:0]

ROWS = [
    Row(
        "train.sharding.replicate",
        lambda keys: sharding.replicate(jax.random.uniform, keys),
        keys,
        host=True,
        bad=(
            Bad("no key", {0: no_key}, "number of keys: expected a whole number of at least 1"),
            Bad("one key", {0: lambda keys: keys[0]}, r"keys: expected shape \(any\), got \(\)"),
        ),
        also=("train.sharding.active_devices", "train.sharding.use_devices"),
    ),
    Row(
        "train.sharding.sweep",
        lambda keys: sharding.sweep(jax.random.uniform, keys[0], [()], 2),
        keys,
        host=True,
    ),
]
