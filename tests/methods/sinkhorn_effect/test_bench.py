"""The benchmark stays alive, and its NumPy side computes what the method does."""

import jax
import numpy as np
import pytest

from experiments.bench import sinkhorn_effect as bench
from jaxicml.harness.progress import Silent


@pytest.mark.slow
def test_smallest_size():
    out = bench.run(bench.SIZES["smoke"], Silent())
    ids = {entry.id for entry in out.entries}
    assert {"potentials, ott-jax", "pipeline", "memory", "cost", "growth"} <= ids
    peers = {entry.peer for entry in out.entries} | set(out.missing)
    assert peers == {"ott-jax", "POT", "geomloss", "NumPy", "limit"}
    assert all(entry.ratio > 0 for entry in out.entries)


@pytest.mark.slow
def test_numpy_pipeline_equals_ours(x64):
    key = jax.random.key(1)
    sample = bench.draw(key, 30, (0.5, 2.0))
    ours = bench.aggregated(key, sample, 4999)
    theirs = bench.numpy_pipeline(0, jax.tree.map(np.asarray, sample), 4999)
    for name in ("plugin", "onestep", "second_order"):
        np.testing.assert_allclose(getattr(theirs, name), getattr(ours.per_eps, name), rtol=1e-6)
    # other draws of the same null
    np.testing.assert_allclose(theirs.p_value, ours.p_value, atol=0.03)
