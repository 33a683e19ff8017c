"""Replications of one computation, spread over devices.

A Monte-Carlo study or a sweep over seeds is one function of a key. `replicate` runs it for a vector
of keys: the keys are split over a mesh with one axis, each device works through its share in
chunks, and the results come back in the order of the keys. Nothing is communicated, so the
numbers do not depend on how many devices took part.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import PyTree

from jaxicml import checks
from jaxicml.types import Key, Keys, Progress

__all__ = ["active_devices", "replicate", "sweep", "use_devices"]

Device = Any
"""One of `jax.devices()`."""

_AXIS = "replications"
_chosen: tuple[Device, ...] | None = None


@contextlib.contextmanager
def use_devices(devices: Sequence[Device]) -> Iterator[None]:
    """Within the block, `replicate` spreads its keys over these devices.

    Args:
        devices: at least one; in several processes, all devices of all processes.

    Raises:
        ValueError: no device.
    """
    global _chosen
    if not devices:
        raise ValueError("devices: expected at least one device, got none")
    before, _chosen = _chosen, tuple(devices)
    try:
        yield
    finally:
        _chosen = before


def active_devices() -> tuple[Device, ...]:
    """The devices of the enclosing `use_devices`; outside of one, the first of this process."""
    return _chosen if _chosen is not None else (jax.local_devices()[0],)


def replicate(
    function: Callable, keys: Keys, *shared: PyTree, batch_size: int | None = None
) -> PyTree:
    """Calls `function(key, *shared)` for every key, over all active devices.

    Args:
        function: pure, of one key and the shared arguments; compiled once for each function
            object, so pass the same object when calling again.
        keys: one key per replication.
        shared: arrays that every replication sees.
        batch_size: replications that a device runs as one `vmap`; one after another by default.

    Returns:
        The results stacked over keys, as NumPy arrays on every process.

    Raises:
        ValueError: no key, or a batch size below one.

    >>> draws = replicate(jax.random.uniform, jax.random.split(jax.random.key(0), 3))
    >>> draws.shape
    (3,)
    """
    checks.check_shape("keys", keys, (None,))
    checks.check_integer("number of keys", keys.shape[0], low=1)
    if batch_size is not None:
        checks.check_integer("batch_size", batch_size, low=1)
    devices = active_devices()
    count = keys.shape[0]
    padded = -(-count // len(devices)) * len(devices)
    # the last devices repeat early keys; their results are cut off
    data = np.asarray(jax.random.key_data(keys))[np.arange(padded) % count]
    mesh = Mesh(np.array(devices), (_AXIS,))
    spread = NamedSharding(mesh, P(_AXIS))
    data = jax.make_array_from_callback(data.shape, spread, lambda index: data[index])
    everywhere = NamedSharding(mesh, P())
    shared = jax.tree.map(functools.partial(_place, sharding=everywhere), shared)
    out = _compiled(function, mesh, batch_size, jax.random.key_impl(keys))(data, *shared)
    return jax.tree.map(lambda leaf: _gather(leaf)[:count], out)


def sweep(
    function: Callable,
    key: Key,
    settings: Sequence[tuple],
    count: int,
    *,
    batch_size: int | None = None,
    log: Progress | None = None,
    label: str = "settings",
) -> list[PyTree]:
    """`replicate` for each of several settings, with keys of their own; compiled once.

    Args:
        function: pure, of one key and the arrays of a setting.
        key: split over settings and replications.
        settings: argument tuples of equal shapes.
        count: replications of each.
        batch_size: see `replicate`.
        log: shows progress over the settings.
        label: what the bar calls them.

    Returns:
        One stacked result a setting.

    >>> shifted = lambda key, shift: shift + jax.random.uniform(key)
    >>> near, far = sweep(shifted, jax.random.key(0), [(0.0,), (10.0,)], 4)
    >>> near.shape, bool(far.min() >= 10)
    ((4,), True)
    """
    keys = jax.random.split(key, (len(settings), count))
    rows = list(zip(keys, settings, strict=True))
    rows = rows if log is None else log.track(rows, label)
    return [replicate(function, own, *shared, batch_size=batch_size) for own, shared in rows]


def _place(leaf, sharding):
    leaf = np.asarray(leaf)
    return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index])


def _gather(leaf) -> np.ndarray:
    if not leaf.is_fully_addressable:
        return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
    return np.asarray(leaf)


@functools.lru_cache(maxsize=64)
def _compiled(function, mesh, batch_size, impl):
    def local(data, *shared):
        one = lambda row: function(jax.random.wrap_key_data(row, impl=impl), *shared)
        # one at a time without the axis of length one that would slow every product
        return jax.lax.map(one, data, batch_size=batch_size if batch_size != 1 else None)

    def specs(data, *shared):
        return jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(P(_AXIS), *(P() for _ in shared)),
            out_specs=P(_AXIS),
            check_vma=False,
        )(data, *shared)

    return jax.jit(specs)
